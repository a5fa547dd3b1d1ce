"""Does the points of a study one after another here, or on any executor, and tells what happens to them."""

import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import BrokenExecutor, Executor, Future
from contextlib import contextmanager
from functools import partial
from multiprocessing import parent_process
from queue import SimpleQueue
from typing import Any, NamedTuple

import lowprec
from ipu_core.errors import refusal_in_words
from ipu_core.study.pool import WorkerDied
from ipu_core.study.progress import Sender, Wire, listening

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
SHARED = "shared"
"""Marks a warning that Python gave and that says the same of every item: it is told once."""


class Outcome(NamedTuple):
    """How an item ended, as its worker sends it.

    Attributes:
        kind, payload: As of an `Event`, "done" or "failed".
        told: How many reports went before it.
        unsaid: Warnings that could not.
    """

    kind: str
    payload: dict[str, Any]
    told: int
    unsaid: list[dict[str, Any]]


def run_here(work: Work, items: Iterable[Any], listen: Listen, threads: int = 1) -> None:
    """Does all items in this process; an exception fails its item only."""
    for item in items:
        kind, payload = _attempt(work, item, partial(_report, listen, item), threads)
        listen(Event(item, kind, payload))


def run_on(executor: Executor, work: Work, items: Iterable[Any], listen: Listen, threads: int = 1) -> None:
    """Does the items on an executor: processes, threads, a cluster's client; `listen` is called here.

    What a work reports is heard at once from workers on this machine. From others nothing is heard before an item is
    done: what it reported of its progress is lost then, its warnings come with the result.

    An item whose `WorkerDied` is begun again, once. Another executor that breaks fails what it had not finished.

    Args:
        executor: Any; it stays open.
        work: A function (item, report) -> result, which the executor can send; report(payload) may be called any time.
        items: Which it can send too. Started in this order, finished in any.
        listen: Gets every Event. An exception in it, such as KeyboardInterrupt, cancels what is not begun; workers on
            this machine give up what they have begun as soon as they report.
        threads: Threads of lowprec's loops in each worker.
    """
    listed, again, heard, said = list(items), set[int](), Counter[int](), set[str]()
    waiting: dict[int, Future[Outcome]] = {}
    # One queue for reports and ends: `listen` is called in this thread only, by one event after another.
    told: SimpleQueue[tuple[int, Future[Outcome] | dict[str, Any]]] = SimpleQueue()

    def begin(number: int, path: str) -> None:
        # A submission may fail at once where an executor has broken: the other items still get their ends.
        waiting[number] = _submitted(executor, work, listed[number], Wire(path, number), threads)
        waiting[number].add_done_callback(lambda future: told.put((number, future)))

    with listening(lambda number, payload: told.put((number, payload))) as path:
        try:
            for number in range(len(listed)):
                begin(number, path)
            while waiting:
                number, news = told.get()
                item = listed[number]
                if isinstance(news, dict):
                    heard[number] += 1
                    # Each worker warns for itself; the user needs it once.
                    if not (SHARED in news and news["warning"] in said):
                        listen(_reported(item, news))
                    if SHARED in news:
                        said.add(news["warning"])
                elif (error := _error(news)) is None and heard[number] < news.result().told:
                    told.put((number, news))  # its last reports are still on their way: they come first
                # Once: an item that needs too much memory would kill every new process too.
                elif isinstance(error, WorkerDied) and number not in again:
                    again.add(number)
                    listen(_reported(item, {"warning": f"{error}: it is begun again"}))
                    begin(number, path)
                else:
                    del waiting[number]
                    _tell(item, news, listen)
        finally:
            for future in waiting.values():
                future.cancel()


def _submitted(executor: Executor, work: Work, item: Any, wire: Wire, threads: int) -> Future[Outcome]:
    try:
        return executor.submit(_attempt_there, work, item, wire, threads)
    except BrokenExecutor as error:
        broken: Future[Outcome] = Future()
        broken.set_exception(error)
        return broken


def _tell(item: Any, future: Future[Outcome], listen: Listen) -> None:
    """Passes on how an item ended, after the warnings that did not come through the pipe."""
    error = _error(future)
    if error is not None:
        listen(Event(item, "failed", {"error": _in_words(error)}))
        return
    outcome = future.result()
    for warning in outcome.unsaid:
        listen(_reported(item, warning))
    listen(Event(item, outcome.kind, outcome.payload))


def _error(future: Future[Outcome]) -> BaseException | None:
    """The error of an item that the executor did not finish; None if it did."""
    return RuntimeError("its executor has given it up") if future.cancelled() else future.exception()


def _attempt_there(work: Work, item: Any, wire: Wire, threads: int) -> Outcome:
    """Does one item in a worker; its reports go through the wire."""
    with wire.opened() as report, _warnings_told(report):
        kind, payload = _attempt(work, item, report, threads)
        return Outcome(kind, payload, report.told, report.unsaid)


@contextmanager
def _warnings_told(report: Report) -> Iterator[None]:
    """Reports Python's warnings in a worker process, where nobody would see them."""
    # catch_warnings changes the whole process: not beside other threads, and not in the user's own.
    if parent_process() is None or threading.current_thread() is not threading.main_thread():
        yield  # it is shown where all warnings of that process are
        return
    with warnings.catch_warnings():

        def tell(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
            report({"warning": f"{category.__name__}: {message}", SHARED: True})

        warnings.showwarning = tell
        yield


def _attempt(work: Work, item: Any, report: Report | Sender, threads: int) -> tuple[str, dict[str, Any]]:
    try:
        with lowprec.num_threads(threads):
            return "done", work(item, report)
    except Exception as error:  # whatever a user's function raises, the other items go on
        return "failed", {"error": _in_words(error)}


def _report(listen: Listen, item: Any, payload: dict[str, Any]) -> None:
    listen(_reported(item, payload))


def _reported(item: Any, payload: dict[str, Any]) -> Event:
    return Event(item, REPORTED["warning" in payload], payload)


def _in_words(error: BaseException) -> str:
    """An error in one line; with its class where its message is not one of lowprec's."""
    if isinstance(error, OSError):
        return refusal_in_words(error) or type(error).__name__
    text, kind = (str(error).splitlines() or [""])[0], type(error).__name__
    if not text:
        return kind
    # Their messages are sentences here. A KeyError's is a bare key, which says nothing without its kind.
    ours = isinstance(error, ValueError | TypeError | RuntimeError | MemoryError | ImportError)
    return text if ours else f"{kind}: {text}"
