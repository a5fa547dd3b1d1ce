"""Ctrl-C while the command line is being imported: one line and exit code 130; nothing changes for other programs."""

import contextlib
import os
import signal
import subprocess
import sys
import time
import types
from pathlib import Path

import pytest

from ipu_core import interruption
from tests.examples import first
from tests.ipu_core.test_kills import workers

INTERRUPT = """
import signal, sys

def interrupt(event, arguments):
    if event == "import" and not sent:
        module = sys.modules.get({module!r})
        if module is not None and not getattr(module.__spec__, "_initializing", False):
            sent.append(True)
            signal.raise_signal({number})

sent = []
sys.addaudithook(interrupt)
"""


def interrupted_at(folder: Path, module: str, *line: str, number: int = signal.SIGINT) -> tuple[int, str]:
    """Runs Python, interrupted by the first import after that of a module; gives the exit code and what it said."""
    (folder / "sitecustomize.py").write_text(INTERRUPT.format(module=module, number=int(number)))
    path = os.pathsep.join([str(folder), *sys.path])
    run = subprocess.run(
        [sys.executable, *line], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False
    )
    return run.returncode, run.stderr


@pytest.mark.parametrize(
    "module", ["ipu_core.interruption", "lowprec.values.formats", "ipu_core.ir.block", "ipu_core.errors"]
)
def test_an_interrupted_import_of_the_command_line_is_one_line(module: str, tmp_path: Path) -> None:
    code, errors = interrupted_at(tmp_path, module, "-m", "ipu_core", "profile")
    assert code == 130, errors
    assert errors.strip() == "interrupted before anything was begun"


@pytest.mark.parametrize(("number", "said"), first(1, [(15, "terminated"), (1, "hung up")]))
def test_a_terminated_import_is_one_line_too(number: int, said: str, tmp_path: Path) -> None:
    code, errors = interrupted_at(tmp_path, "ipu_core.ir.block", "-m", "ipu_core", "profile", number=number)
    assert (code, errors) == (128 + number, f"\n{said} before anything was begun\n")


def test_the_installed_script_too(tmp_path: Path) -> None:
    script = tmp_path / "ipu-core"
    script.write_text("from ipu_core.__main__ import main\nraise SystemExit(main())\n")
    code, errors = interrupted_at(tmp_path, "ipu_core.interruption", str(script), "profile")
    assert code == 130, errors
    assert "Traceback" not in errors


def test_other_programs_get_their_exception(tmp_path: Path) -> None:
    code, errors = interrupted_at(tmp_path, "ipu_core.interruption", "-c", "import ipu_core")
    assert code == -signal.SIGINT
    assert errors.rstrip().endswith("KeyboardInterrupt")


def test_other_programs_keep_what_sigterm_does(tmp_path: Path) -> None:
    code, errors = interrupted_at(tmp_path, "ipu_core.interruption", "-c", "import ipu_core", number=signal.SIGTERM)
    assert (code, errors) == (-signal.SIGTERM, "")


@pytest.mark.parametrize(
    ("workers", "number", "group"),
    first(2, [(1, 15, False), (2, 15, True), (2, 15, False), (1, 1, True), (2, 1, True)]),
)
def test_sigterm_ends_a_study_as_ctrl_c_does(workers: int, number: int, group: bool, tmp_path: Path) -> None:
    """What was finished is kept, nothing is left in the temporary folder, and the same command goes on."""
    out, temporary = tmp_path / "out", tmp_path / "temporary"
    temporary.mkdir()
    line = [sys.executable, "-m", "ipu_core", "study", "--layers", "64-16-10", "--batch", "32", "--engine", "direct"]
    line += ["--steps", "400", "--lr", "0.05", "--seeds", "60", "--precisions", "fp32.32", "--out", str(out)]
    process = subprocess.Popen(
        [*line, "--workers", str(workers)], env={**os.environ, "TMPDIR": str(temporary)},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    results = out / "results.jsonl"
    while process.poll() is None and not (results.exists() and b"\n" in results.read_bytes()):
        time.sleep(0.01)
    (os.killpg if group else os.kill)(process.pid, number)
    if number == signal.SIGTERM:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, number)  # GNU's timeout sends it twice
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 128 + number, errors
    said = {15: "terminated", 1: "hung up"}[number]
    assert errors.endswith(f"\n{said}; finished points are kept, the same command goes on from here\n")
    assert "Traceback" not in errors
    assert list(temporary.iterdir()) == []
    finished = results.read_bytes().count(b"\n")
    assert 1 <= finished < 60
    line[line.index("--seeds") + 1] = "1"
    again = subprocess.run(line, capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stderr
    assert not list(out.glob(".*"))


def test_a_signal_that_is_ignored_stays_so(tmp_path: Path) -> None:
    """As with nohup."""
    script = tmp_path / "ipu-core"
    numbers = "(signal.SIGHUP, signal.SIGTERM)"
    script.write_text(f"import signal\nimport ipu_core\nprint(*map(signal.getsignal, {numbers}))\n")
    path = os.pathsep.join(sys.path)
    run = f"trap '' HUP; exec {sys.executable} {script} study"
    done = subprocess.run(
        ["bash", "-c", run], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=True
    )
    ignored, heard = done.stdout.split(maxsplit=1)
    assert ignored in ("1", "Handlers.SIG_IGN")
    assert "function _end" in heard


def test_a_second_signal_does_not_disturb_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until some seconds later: the first may have been lost."""
    before, now = signal.getsignal(signal.SIGTERM), 100.0
    monkeypatch.setattr(interruption, "time", types.SimpleNamespace(monotonic=lambda: now))
    try:
        signal.signal(signal.SIGTERM, interruption._end)
        interruption.restore()
        with pytest.raises(interruption.Terminated) as raised:
            signal.raise_signal(signal.SIGTERM)
        assert interruption.exit_code(raised.value) == 143
        try:
            signal.raise_signal(signal.SIGTERM)
        except interruption.Terminated:
            pytest.fail("the second one was heard too")
        now = 103.0
        with pytest.raises(interruption.Terminated):
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert interruption.exit_code(KeyboardInterrupt()) == 130


def test_an_interrupted_terminal_ends_workers_without_a_word(tmp_path: Path) -> None:
    small = ["--layers", "64-16-10", "--steps", "100000", "--batch", "32", "--engine", "direct", "--workers", "2"]
    process = subprocess.Popen(
        [sys.executable, "-m", "ipu_core", "study", *small, "--out", str(tmp_path)],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    while not workers(process.pid) and process.poll() is None:  # which import for a while
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 130
    assert "Traceback" not in errors


@pytest.mark.parametrize(
    ("arguments", "script", "whether"),
    [
        (["python", "-m", "ipu_core", "study"], "-m", True),
        (["python", "-X", "dev", "-mipu_core"], "-m", True),
        (["/usr/bin/ipu-core", "study"], "/usr/bin/ipu-core", True),
        (["ipu-core.exe"], "ipu-core.exe", True),
        (["python", "-m", "pytest"], "-m", False),
        (["python", "mine.py", "-m", "ipu_core"], "mine.py", False),
        (["python"], "", False),
        (["python", "-c", "spawn_main()", "--multiprocessing-fork"], "/usr/bin/ipu-core", False),
    ],
)
def test_which_processes_are_the_command_line(arguments: list[str], script: str, whether: bool) -> None:
    assert interruption.is_command_line(arguments, script) is whether
