"""Processes as an executor: deaths, interrupts, and no process left behind."""

import multiprocessing
import os
import resource
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

import pytest

from ipu_core.study.pool import Processes, WorkerDied


def test_a_death_costs_the_others_nothing(tmp_path: Path) -> None:
    begun, ended = tmp_path / "begun", tmp_path / "ended"
    with Processes(2) as executor:
        long = executor.submit(linger, begun, ended)
        wait_for(begun.exists)
        with pytest.raises(WorkerDied, match="its process ended with code 7"):
            executor.submit(os._exit, 7).result()
        assert not long.done()
        assert executor.submit(pow, 2, 5).result() == 32
        ended.touch()
        assert long.result() is None


def test_exceptions_come_back_and_processes_are_kept_and_hear_of_no_interrupts() -> None:
    with Processes(1) as executor:
        one = executor.submit(os.getpid).result()
        with pytest.raises(ZeroDivisionError):
            executor.submit(divmod, 1, 0).result()
        assert executor.submit(os.getpid).result() == one
        assert signal.SIGINT in executor.submit(signal.pthread_sigmask, signal.SIG_BLOCK, []).result()
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])
    with pytest.raises(RuntimeError, match="after shutdown"):
        executor.submit(os.getpid)


def test_an_exception_ends_the_processes_at_once(tmp_path: Path) -> None:
    futures: list[Future[None]] = []
    begun = tmp_path / "begun"

    def interrupted() -> None:
        with Processes(2) as executor:
            executor.submit(pow, 2, 5).result()
            futures.append(executor.submit(linger, begun))
            futures.extend(executor.submit(time.sleep, 600) for _ in range(3))
            wait_for(begun.exists)  # what no process has begun is cancelled, not ended
            raise KeyboardInterrupt

    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert time.monotonic() - start < 300  # of the 600 seconds that each would take
    assert isinstance(futures[0].exception(), WorkerDied)
    assert all(future.cancelled() or future.exception() is not None for future in futures)
    assert not multiprocessing.active_children()


def test_all_are_started_where_that_is_asked_for() -> None:
    with Processes(2) as executor:
        assert not multiprocessing.active_children()
        executor.start()
        children = {child.pid for child in multiprocessing.active_children()}
        assert len(children) == 2
        assert {executor.submit(os.getpid).result() for _ in range(4)} <= children


@pytest.mark.parametrize("limit", range(1, 9))
def test_what_the_system_refuses_is_said_before_there_is_anything_to_lose(
    limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However far it comes: that many more files may be open."""
    with Processes(2) as executor:
        used, (_, most) = len(os.listdir("/proc/self/fd")), resource.getrlimit(resource.RLIMIT_NOFILE)
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        resource.setrlimit(resource.RLIMIT_NOFILE, (used - 1 + limit, most))
        try:
            with pytest.raises(OSError, match=r"no 2 workers: too many open files: .*--workers 1 trains"):
                executor.start()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, most))
    assert not multiprocessing.active_children()


def test_threads_may_have_them_too() -> None:
    made: list[int] = []

    def use() -> None:
        with Processes(1) as executor:
            made.append(executor.submit(pow, 3, 3).result())

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    assert made == [27]


def linger(begun: Path, until: Path | None = None) -> None:
    """Says that it has begun, with the number of its process, and stays until there is another file."""
    begun.with_suffix(".draft").write_text(str(os.getpid()))
    begun.with_suffix(".draft").rename(begun)
    wait_for(until.exists if until is not None else lambda: False, 600)


def employ(file: Path) -> None:
    with Processes(1) as executor:
        executor.submit(linger, file).result()


def test_a_worker_ends_with_its_parent(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    parent = multiprocessing.get_context("spawn").Process(target=employ, args=(file,))
    parent.start()
    wait_for(file.exists)
    parent.kill()
    parent.join()
    wait_for(lambda: ended(file.read_text()))


def ended(pid: str) -> bool:
    """Whether a process is no more, or waits for a parent that does not ask for it."""
    try:
        return "zombie" in Path("/proc", pid, "status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True


def wait_for(condition: Callable[[], bool], seconds: float = 300) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)
