"""Processes of this machine as an executor in which the death of one costs the others nothing."""

from __future__ import annotations

import errno
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from multiprocessing import parent_process, resource_tracker
from multiprocessing.connection import wait
from multiprocessing.context import SpawnContext, SpawnProcess
from types import TracebackType
from typing import Any

from ipu_core.errors import refusal_in_words


class WorkerDied(RuntimeError):
    """A worker process ended before its task was done."""


class Processes(Executor):
    """Spawned processes, each of them the only one of a standard pool, which a thread of this process waits for.

    A standard pool of several fails everything that it holds, done or not begun, as soon as one of them dies. Here a
    death fails the future of what that process was doing with `WorkerDied`, and the next thing gets a new process.

    They do not hear of Ctrl-C, which is this process's to handle, and end with it, even where it is killed.

    Args:
        workers: How many, started by `start` or where they are first needed.

    Raises:
        OSError: not even what they share can be started.
    """

    def __init__(self, workers: int) -> None:
        self._count = workers
        with self._refused():
            _track()
        self._threads = ThreadPoolExecutor(workers, "worker", _ignore_interrupts)
        self._lock = threading.Lock()
        self._workers: list[_Worker] = []
        self._idle: list[_Worker] = []
        self._over = False

    def start(self) -> None:
        """Starts all processes, so that what the system refuses is found before there is anything to lose.

        Raises:
            OSError: too few files may be open, there are no semaphores or no more processes.
        """
        with self._refused():
            # In the pool's threads, which block SIGINT: a process inherits that from the thread that starts it.
            for hired in [self._threads.submit(self._hire) for _ in range(self._count)]:
                hired.result()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """As any executor's; what is sent is pickled."""
        return self._threads.submit(self._do, partial(fn, *args, **kwargs))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """As any executor's; where it waits, the processes are gone when it is back."""
        self._threads.shutdown(wait, cancel_futures=cancel_futures)
        if wait:
            self.terminate_workers()

    def terminate_workers(self) -> None:
        """Ends all processes at once; whatever they were doing is lost."""
        with self._lock:
            self._over = True
            for worker in self._workers:
                worker.end()
        self._threads.shutdown(cancel_futures=True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # After an exception, Ctrl-C among them, nobody waits for what is under way.
        if kind is not None:
            self.terminate_workers()
        self.shutdown()

    def _do(self, call: Callable[[], Any]) -> Any:
        with self._lock:
            # A thread may have waited for the lock while everything was ended: it must not start a process anew.
            if self._over:
                raise CancelledError
            worker = self._idle.pop() if self._idle else self._hired()
            future = worker.pool.submit(call)
        try:
            return future.result()
        except BrokenProcessPool:
            with self._lock:
                raise WorkerDied(f"its process ended with code {worker.end()}") from None
        finally:
            with self._lock:
                (self._idle.append if worker.living else self._workers.remove)(worker)

    @contextmanager
    def _refused(self) -> Iterator[None]:
        """What the system refuses, with the way out."""
        try:
            yield
        except OSError as error:
            words = refusal_in_words(error)
            raise OSError(f"no {self._count} workers: {words}; --workers 1 trains in this process") from error

    def _hire(self) -> None:
        with self._lock:
            self._idle.append(self._hired())

    def _hired(self) -> _Worker:
        self._workers.append(_Worker())
        return self._workers[-1]


class _Worker:
    """A process, the only one of its standard pool.

    Raises:
        OSError: the system does not let it be started.
    """

    def __init__(self) -> None:
        self._context = _Watched()
        try:
            self.pool = ProcessPoolExecutor(1, self._context, _end_with_parent)
        except (OSError, NotImplementedError) as error:
            # Every other failure of a pool's start is that of its semaphores, and ends in an OSError without a path.
            if isinstance(error, OSError) and error.errno == errno.EMFILE:
                raise
            raise OSError(f"this system gives no semaphores, which need a /dev/shm ({error})") from error
        try:
            self.pool.submit(os.getpid)  # a pool starts its process with the first thing to do
        except OSError:
            self.pool.shutdown()
            raise
        self.living = True

    def end(self) -> int | None:
        """Ends the process, if it has not; gives its exit code."""
        self.living = False
        process = self._context.process
        if process is not None:
            # shutdown alone waits for what the process is doing.
            process.terminate()
        self.pool.shutdown()
        return None if process is None else process.exitcode


class _Watched(SpawnContext):
    """A context that keeps the last process started in it; a pool does not tell its exit code."""

    process: SpawnProcess | None = None

    def Process(self, *args: Any, **kwargs: Any) -> SpawnProcess:  # type: ignore[override]
        # The exit code is what tells a crash from a kill for want of memory.
        self.process = SpawnProcess(*args, **kwargs)
        return self.process


def _track() -> None:
    """Starts the resource tracker from this thread: starting it unblocks SIGINT in the thread that does so.

    The tracker ignores SIGINT and SIGTERM by itself; SIGHUP, which a terminal sends the whole group, is blocked here.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    try:
        resource_tracker.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _ignore_interrupts() -> None:
    """Blocks SIGINT in this thread: the processes that it starts inherit that from their first instruction on.

    Without it a worker that is still importing when a terminal interrupts the whole group prints a traceback.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})


def _end_with_parent() -> None:
    def follow() -> None:
        parent = parent_process()
        if parent is not None:
            # A parent that is killed tells nobody: its pipe ends, and a worker would go on for hours.
            wait([parent.sentinel])
            # Not sys.exit, which in a thread ends the thread alone.
            os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
