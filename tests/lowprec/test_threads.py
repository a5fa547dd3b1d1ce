"""Threads of the compiled loops: forks, processes of every kind, calls from many threads, refusals, their number.

What could hang runs in a session of its own, which is killed as a whole when its time is over.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

import lowprec as lp
from lowprec import _kernels
from lowprec.threads import MOST, environment_threads

ROOT = Path(__file__).parents[2]
POOL = ("born", "pieces", "nested", "callers", "failures", "several_pieces", "waiting")


def output_of(command: Sequence[str | Path], seconds: float, **environment: str) -> str:
    """What a command prints; it and all it started are killed after some seconds.

    Raises:
        AssertionError: it took longer or failed.
    """
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env={**os.environ, **environment},
    )
    try:
        printed, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise AssertionError(f"{command} still ran after {seconds} s") from None
    assert process.returncode == 0, printed
    return printed


SANITIZED = pytest.param(("-fsanitize=thread",), id="thread sanitizer", marks=pytest.mark.slow)


@pytest.mark.parametrize("flags", [pytest.param((), id="plain"), SANITIZED])
def test_the_pool_of_threads(tmp_path: Path, flags: tuple[str, ...]) -> None:
    program = tmp_path / "threads"
    cpu = ROOT / "kernels" / "cpu"
    sources = (ROOT / "tests" / "kernels" / "threads.cpp", cpu / "threads" / "threads.cpp")
    include = (f"-I{cpu}", f"-I{ROOT / 'kernels' / 'include'}")
    command = ["g++", "-std=gnu++17", "-O1", "-g", *flags, *include, *map(str, sources), "-pthread", "-o", str(program)]
    output_of(command, 600)
    checks = POOL if flags else (*POOL, "forks", "no_threads")  # the sanitizer's own threads do not survive a fork
    assert output_of([program, *checks], 600) == "ok\n"


PROGRAM = """
import concurrent.futures, multiprocessing, os, sys, threading
import numpy as np
import lowprec as lp

A = np.random.default_rng(0).normal(size=(128, 128)).astype(np.float32)
X = np.random.default_rng(1).normal(size=1_000_000).astype(np.float32)

def digest(threads):
    with lp.num_threads(threads):
        product = lp.matmul(A, A, accumulate="float16", rounding="stochastic", key=1)
        return hash((product.tobytes(), lp.astype(X, "float8_e5m2", "stochastic", key=2).tobytes()))

def child_of_fork(work):
    child = os.fork()
    if child == 0:
        os._exit(0 if work() else 1)
    assert os.waitpid(child, 0)[1] == 0

if __name__ == "__main__":
    want = digest(2)
    assert want == digest(1)
"""


def run_program(folder: Path, body: str, seconds: float = 600) -> str:
    """Runs PROGRAM with more behind it. Hashes are the same in all processes."""
    path = folder / "program.py"
    path.write_text(PROGRAM + "".join(f"    {line}\n" for line in body.strip().splitlines()))
    return output_of([sys.executable, "-W", "ignore::DeprecationWarning", path], seconds, PYTHONHASHSEED="0")


def test_a_forked_child_computes(tmp_path: Path) -> None:
    run_program(tmp_path, "child_of_fork(lambda: digest(2) == want and digest(3) == want)")


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads are listed on Linux")
def test_a_forked_child_has_threads_of_its_own(tmp_path: Path) -> None:
    """The parent's are not there: a child that counted on them would compute alone for ever, if with the same bits."""
    body = """
def threads():
    return len(os.listdir("/proc/self/task"))
def child():
    alone = threads()
    return alone == 1 and digest(2) == want and threads() == 2 and digest(2) == want
assert threads() > 1
child_of_fork(child)
"""
    run_program(tmp_path, body)


def test_a_childs_child_computes(tmp_path: Path) -> None:
    body = """
def grandchild():
    child_of_fork(lambda: digest(2) == want)
    return digest(2) == want
child_of_fork(grandchild)
"""
    run_program(tmp_path, body)


def test_forks_while_other_threads_compute(tmp_path: Path) -> None:
    body = """
stop = threading.Event()
def compute():
    while not stop.is_set():
        assert digest(2) == want
busy = [threading.Thread(target=compute) for _ in range(2)]
for thread in busy:
    thread.start()
for _ in range(20):
    child_of_fork(lambda: digest(2) == want)
stop.set()
for thread in busy:
    thread.join()
"""
    run_program(tmp_path, body)


def test_a_fork_waits_for_a_change_of_threads_and_forgets_those_of_other_threads(tmp_path: Path) -> None:
    body = """
from lowprec import _kernels, threads
default, inside, leave = _kernels.default_threads(), threading.Event(), threading.Event()
def other():
    with lp.num_threads(default + 3):
        inside.set()
        leave.wait()
busy = threading.Thread(target=other)
busy.start()
inside.wait()
assert _kernels.default_threads() == default + 3
child_of_fork(lambda: _kernels.default_threads() == default and digest(2) == want)
with lp.num_threads(default + 5):
    child_of_fork(lambda: _kernels.default_threads() == default + 5)
leave.set()
busy.join()
for _ in range(20):
    held, done = threading.Event(), threading.Event()
    def change():
        with threads._lock:
            held.set()
            done.wait(0.02)
    busy = threading.Thread(target=change)
    busy.start()
    held.wait()
    child_of_fork(lambda: digest(2) == want)
    busy.join()
assert _kernels.default_threads() == default
"""
    run_program(tmp_path, body)


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_of_every_kind_compute(tmp_path: Path, method: str) -> None:
    body = f"""
context = multiprocessing.get_context({method!r})
with context.Pool(2) as pool:
    assert pool.map(digest, [1, 2, 2, 3]) == [want] * 4
with concurrent.futures.ProcessPoolExecutor(2, context) as pool:
    assert list(pool.map(digest, [1, 2, 2, 3])) == [want] * 4
"""
    run_program(tmp_path, body)


def test_lokys_workers_compute(tmp_path: Path) -> None:
    pytest.importorskip("joblib")  # which scikit-learn brings
    body = """
import joblib
from program import digest as work
for _ in range(2):
    assert joblib.Parallel(2, backend="loky")(joblib.delayed(work)(n) for n in (1, 2, 2, 3)) == [want] * 4
"""
    run_program(tmp_path, body)


def test_torchs_data_loader_has_workers_that_compute(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    body = """
import torch
class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 6
    def __getitem__(self, i):
        return digest(1 + i % 3) == want
for _ in range(2):
    assert all(batch.all() for batch in torch.utils.data.DataLoader(Data(), batch_size=2, num_workers=2))
"""
    run_program(tmp_path, body)


def test_several_threads_compute_at_once(tmp_path: Path) -> None:
    body = """
with concurrent.futures.ThreadPoolExecutor(5) as pool:
    assert list(pool.map(digest, [1, 2, 3, 4, 5] * 8)) == [want] * 40
"""
    run_program(tmp_path, body)


def test_without_threads_the_caller_does_the_work(tmp_path: Path) -> None:
    """In a child that may make none: as a user who has no processes left."""
    body = """
import resource
def refused():
    resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
    if os.getuid() == 0:
        os.setuid(65534)  # root has no such limit
    try:
        threading.Thread(target=print).start()
    except RuntimeError:
        return digest(4) == want
child_of_fork(refused)
"""
    run_program(tmp_path, body)


def test_too_little_memory_for_a_thread_is_an_exception(tmp_path: Path) -> None:
    body = """
import resource
def refused():
    a, b, out = np.ones((64, 1 << 19), np.float16), np.ones((1 << 19, 64), np.float16), np.zeros((64, 64), np.float32)
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize() + (24 << 20)
    resource.setrlimit(resource.RLIMIT_AS, (used, used))
    try:
        with lp.num_threads(2):
            lp.matmul(a, b, out=out)
    except MemoryError:
        return digest(2) == want
child_of_fork(refused)
"""
    run_program(tmp_path, body)


# ---- the number in force ----


@pytest.mark.parametrize("n", [0, -1, MOST + 1, 1.5, "2", None])
def test_numbers_of_threads_out_of_range_are_refused(n: object) -> None:
    with pytest.raises(ValueError, match=r"num_threads needs an integer of at (least 1|most 1024), not "):
        lp.num_threads(n)  # type: ignore[arg-type]


def in_a_thread() -> list[int]:
    """What a new thread sees: its own setting and what the kernels take it for."""
    seen: list[int] = []
    thread = threading.Thread(target=lambda: seen.extend((lp.threads.current(), _kernels.default_threads())))
    thread.start()
    thread.join()
    return seen


def test_threads_started_in_the_context_follow_it() -> None:
    before = in_a_thread()
    with lp.num_threads(5):
        assert in_a_thread() == [0, 5]
        with lp.num_threads(3):
            assert in_a_thread() == [0, 3]
        assert in_a_thread() == [0, 5]
    assert in_a_thread() == before


def test_a_context_that_is_never_entered_changes_nothing() -> None:
    before = in_a_thread()
    lp.num_threads(7)
    assert in_a_thread() == before


def test_contexts_may_end_in_any_order() -> None:
    before = _kernels.default_threads()
    inner, outer = threading.Event(), threading.Event()

    def other() -> None:
        with lp.num_threads(6):
            inner.set()
            outer.wait(600)
            assert lp.threads.current() == 6

    thread = threading.Thread(target=other)
    with lp.num_threads(4):
        thread.start()
        assert inner.wait(600)
        assert _kernels.default_threads() == 6
        assert lp.threads.current() == 4
    assert _kernels.default_threads() == 6
    outer.set()
    thread.join()
    assert _kernels.default_threads() == before


def test_the_environment_says_how_many() -> None:
    every = environment_threads({"OMP_NUM_THREADS": "1000"})
    assert every == _kernels.default_threads()
    assert environment_threads({}) == environment_threads({"LOWPREC_NUM_THREADS": ""}) == 0
    assert environment_threads({"OMP_NUM_THREADS": "1"}) == 1
    assert environment_threads({"OMP_NUM_THREADS": " 1,4"}) == 1
    for unreadable in ("", "0", "-3", "many"):
        assert environment_threads({"OMP_NUM_THREADS": unreadable}) == 0
    assert environment_threads({"LOWPREC_NUM_THREADS": "3", "OMP_NUM_THREADS": "2"}) == 3
    for wrong in ("-1", "two", str(MOST + 1)):
        with pytest.raises(ValueError, match="LOWPREC_NUM_THREADS must be an integer of 1 to 1024, not "):
            environment_threads({"LOWPREC_NUM_THREADS": wrong})


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="affinity is Linux's")
def test_the_default_is_what_the_process_may_run_on() -> None:
    code = "import os, lowprec; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); "
    code += "print(lowprec._kernels.default_threads())"
    unset = {"LOWPREC_NUM_THREADS": "", "OMP_NUM_THREADS": ""}
    assert output_of([sys.executable, "-c", code], 600, **unset) == "1\n"


def test_free_threaded_python_is_refused(tmp_path: Path) -> None:
    program = tmp_path / "free.py"
    lines = [
        "import sys",
        "sys.abiflags = 't'",
        "try:",
        "    import lowprec",
        "except ImportError as e:",
        "    print(e)",
    ]
    program.write_text("\n".join(lines))
    assert "free-threaded Python" in output_of([sys.executable, program], 600)
