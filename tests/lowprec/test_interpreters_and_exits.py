"""Other interpreters of a process, and its end with threads and children: one sentence, or nothing, is said."""

from __future__ import annotations

import subprocess
import sys

import pytest

ROUND = 'lowprec.round(np.ones(3, "f4"), "float16")'
HELD = """
import threading, time
import numpy as np
import ipu_core, lowprec
block = ipu_core.trace(lambda x, y: np.tanh(x @ y), np.ones((3, 3), "f4"), np.ones((3, 3), "f4"))
def prepared():
    return ipu_core.Machine.build(block, ipu_core.Target("gc200", tiles=4))
"""
ENDS = {
    "a daemon thread that holds prepared calls": """
ready = threading.Event()
def hold():
    kept = prepared()
    ready.set()
    time.sleep(100)
threading.Thread(target=hold, daemon=True).start()
ready.wait()
""",
    "a daemon thread inside of the compiled loops": """
begun = threading.Event()
def work():
    x = np.ones((400, 400), "f4")
    while True:
        begun.set()
        lowprec.matmul(x, x)
threading.Thread(target=work, daemon=True).start()
begun.wait()
time.sleep(0.05)
""",
    "a forked child of a process with threads": """
import os
ready = threading.Event()
def hold():
    kept = prepared()
    ready.set()
    time.sleep(100)
threading.Thread(target=hold, daemon=True).start()
ready.wait()
child = os.fork()
if child:
    os.waitpid(child, 0)
""",
    "an object that another one holds to the end": "import builtins\nbuiltins.kept = np.kept = prepared()",
    "a cycle": "kept = [prepared()]\nkept.append(kept)\nimport gc\ngc.disable()\ndel kept",
    "a call at the end": "import atexit\natexit.register(prepared().run, [np.ones((3, 3), 'f4')] * 2, 1)",
    "an error with a frame that holds some": "def fail():\n    kept = prepared()\n    raise SystemExit(0)\nfail()",
    "a generator that has not ended": "def some():\n    kept = prepared()\n    yield kept\nrows = some()\nnext(rows)",
}


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=100)


@pytest.mark.parametrize("how", ENDS)
def test_a_process_ends_without_a_word(how: str) -> None:
    done = run(HELD + ENDS[how])
    assert (done.returncode, done.stderr) == (0, "")


def test_an_object_that_was_lost_is_still_named() -> None:
    lost = "lowprec._kernels.DefaultState()"
    done = run(f"import ctypes, lowprec\nctypes.pythonapi.Py_IncRef(ctypes.py_object({lost}))")
    assert "nanobind: leaked 1 instances!" in done.stderr


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="the module has another name there")
@pytest.mark.parametrize("first", ["main", "another"])
def test_a_second_interpreter_gets_one_sentence(first: str) -> None:
    code = f"import lowprec, numpy as np\nprint(len({ROUND}))"
    second = "try:\n    import lowprec\nexcept ImportError as error:\n    print(type(error).__name__, error)"
    run_there = "import _xxsubinterpreters as them\nthere = them.create()\nthem.run_string(there, {!r})\n"
    done = run(f"{code}\n{run_there.format(second)}" if first == "main" else f"{run_there.format(code)}\n{second}")
    assert (done.returncode, done.stderr) == (0, "")
    numbers, sentence = done.stdout.splitlines()
    assert numbers == "3"
    assert sentence == (
        "ImportError lowprec can be in one interpreter of a process alone, as NumPy can, which is in another one "
        "already: use processes in place of sub-interpreters"
    )


def test_threads_of_the_loops_are_no_reason_for_silence() -> None:
    code = "import lowprec, numpy as np, sys\nx = np.ones((900, 900), 'f4')\nlowprec.matmul(x, x)\n"
    done = run(code + "print(len(sys._current_frames()))")
    assert done.stdout == "1\n"
