"""Runs the points of a study one after another here, or in worker processes that report through pipes."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple

import lowprec

Report = Callable[[dict[str, Any]], None]
Work = Callable[[Any, Report], dict[str, Any]]


class Event(NamedTuple):
    """What happened to an item.

    "progress" or "warning" (payload: what its work reported, with a "warning" in it or not), "done" (the result) or
    "failed" ({"error"}).
    """

    item: Any
    kind: str
    payload: dict[str, Any]


Listen = Callable[[Event], None]
REPORTED = ("progress", "warning")


@dataclass
class _Worker:
    process: BaseProcess
    connection: Connection
    item: Any = None


def run_here(work: Work, items: Iterable[Any], listen: Listen, threads: int = 1) -> None:
    """Does all items in this process; an exception fails its item only."""
    with lowprec.num_threads(threads):
        for item in items:
            _attempt(work, item, listen)


def run_in_processes(work: Work, items: Iterable[Any], listen: Listen, workers: int, threads: int = 1) -> None:
    """Does the items in `workers` fresh processes of `threads` threads each; `listen` is called here.

    Args:
        work: A picklable function (item, report) -> result; report(payload) may be called at any time.
        items: Picklable. Started in this order, finished in any.
        listen: Gets every Event. An exception in it, such as KeyboardInterrupt, ends the workers.
        workers: Processes.
        threads: Threads of lowprec's loops in each.
    """
    waiting = iter(items)
    with _started(work, workers, threads) as crew:
        busy = [worker for worker in crew if _assign(worker, waiting)]
        while busy:
            ready = wait([worker.connection for worker in busy])
            for worker in [worker for worker in busy if worker.connection in ready]:
                event = _receive(worker)
                listen(event)
                if event.kind in REPORTED:
                    continue
                if not worker.process.is_alive() or not _assign(worker, waiting):
                    busy.remove(worker)
        for item in waiting:
            listen(Event(item, "failed", {"error": "no worker process is left"}))


@contextmanager
def _started(work: Work, workers: int, threads: int) -> Iterator[list[_Worker]]:
    context = multiprocessing.get_context("spawn")
    crew: list[_Worker] = []
    try:
        with _deaf_to_interrupts():
            for _ in range(workers):
                here, there = context.Pipe()
                process = context.Process(target=_serve, args=(there, work, threads), daemon=True)
                process.start()
                there.close()
                crew.append(_Worker(process, here))
        yield crew
    finally:
        for worker in crew:
            worker.process.terminate()
        for worker in crew:
            worker.process.join()
            worker.connection.close()


@contextmanager
def _deaf_to_interrupts() -> Iterator[None]:
    """Ignores Ctrl-C for a moment: processes started in it ignore it from their first instruction on.

    Without it a worker that is still importing when a terminal interrupts the whole group prints a traceback.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may say what signals do
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _assign(worker: _Worker, waiting: Iterator[Any]) -> bool:
    for item in waiting:
        worker.item = item
        worker.connection.send(item)
        return True
    return False


def _receive(worker: _Worker) -> Event:
    try:
        kind, payload = worker.connection.recv()
    except (EOFError, ConnectionResetError):
        worker.process.join()
        return Event(worker.item, "failed", {"error": f"its process ended with code {worker.process.exitcode}"})
    return Event(worker.item, kind, payload)


def _serve(connection: Connection, work: Work, threads: int) -> None:
    """A worker's main loop. Ctrl-C is the parent's to handle; when the parent dies, so does the worker."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with lowprec.num_threads(threads):
        while True:
            item = connection.recv()
            _attempt(work, item, lambda event: connection.send((event.kind, event.payload)))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def _attempt(work: Work, item: Any, listen: Listen) -> None:
    try:
        result = work(item, lambda payload: listen(Event(item, REPORTED["warning" in payload], payload)))
    except Exception as error:  # whatever a user's function raises, the other items go on
        listen(Event(item, "failed", {"error": _in_words(error)}))
    else:
        listen(Event(item, "done", result))


def _in_words(error: Exception) -> str:
    """One line; errors that are not ours to word are called by their kind as well."""
    text, kind = (str(error).splitlines() or [""])[0], type(error).__name__
    if not text:
        return kind
    return (
        text
        if isinstance(error, ValueError | TypeError | RuntimeError | MemoryError | ImportError)
        else f"{kind}: {text}"
    )
