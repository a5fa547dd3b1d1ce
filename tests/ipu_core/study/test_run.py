"""What happens to items, done here or on an executor: results, progress, warnings, failures, deaths, interrupts."""

import functools
import os
import signal
import threading
import time
import warnings as python_warnings
from collections.abc import Callable
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import active_children, get_context
from pathlib import Path
from typing import Any

import pytest

from ipu_core.errors import Unvalidated
from ipu_core.study.pool import Processes
from ipu_core.study.progress import Abandoned, Wire, listening
from ipu_core.study.run import Event, Report, run_here, run_on
from lowprec import threads
from tests.examples import first


def work(factor: int, item: int, report: Report) -> dict[str, Any]:
    report({"step": item})
    if item == 6:
        report({"warning": "six is odd"})
    if item == 7:
        report({"warning": "seven " * 1000})
    if item == 3:
        raise ValueError("three is refused\nand this is detail")
    if item == 4:
        os._exit(9)
    return {"value": factor * item, "pid": os.getpid(), "threads": threads.current()}


def collect(run: Any, *args: Any, **more: Any) -> list[Event]:
    events: list[Event] = []

    def listen(event: Event) -> None:
        events.append(event)
        assert len(events) < 30, "this goes on for ever"

    run(functools.partial(work, 10), *args, listen, **more)
    return events


def on(executor: Executor) -> Any:
    return functools.partial(run_on, executor)


def outcome(events: list[Event]) -> dict[int, Any]:
    return {e.item: e.payload.get("value", e.payload.get("error")) for e in events if e.kind in ("done", "failed")}


def warnings(events: list[Event]) -> list[tuple[int, str]]:
    return [(e.item, e.payload["warning"]) for e in events if e.kind == "warning"]


def test_items_are_done_here_in_order_and_one_may_fail() -> None:
    events = collect(run_here, [1, 3, 2])
    assert [(e.item, e.kind) for e in events[:4]] == [
        (1, "progress"),
        (1, "done"),
        (3, "progress"),
        (3, "failed"),
    ]
    assert outcome(events) == {1: 10, 3: "three is refused", 2: 20}


KINDS: dict[str, Callable[[], Executor]] = {
    "processes": lambda: Processes(2),
    "threads": lambda: ThreadPoolExecutor(2),
    "standard": lambda: ProcessPoolExecutor(2, get_context("spawn")),
}


@pytest.mark.parametrize("kind", KINDS)
def test_any_executor_gives_the_same_outcome(kind: str) -> None:
    with KINDS[kind]() as executor:
        events = collect(on(executor), [1, 2, 3, 5, 6, 7])
    assert outcome(events) == {1: 10, 2: 20, 3: "three is refused", 5: 50, 6: 60, 7: 70}
    assert {e.payload["step"] for e in events if e.kind == "progress"} == {1, 2, 3, 5, 6, 7}
    assert sorted(warnings(events)) == [(6, "six is odd"), (7, "seven " * 1000)]
    pids = {e.payload["pid"] for e in events if e.kind == "done"}
    assert (os.getpid() in pids) == (kind == "threads")
    assert len(pids) <= 2
    ends = {e.item: place for place, e in enumerate(events) if e.kind in ("done", "failed")}
    assert all(place <= ends[e.item] for place, e in enumerate(events)), "nothing is told after the end"


def test_loops_have_the_threads_asked_for() -> None:
    with Processes(1) as executor:
        for run in (run_here, on(executor)):
            events = collect(run, [1], threads=3)
            assert [e.payload["threads"] for e in events if e.kind == "done"] == [3]


@pytest.mark.parametrize("processes", first(1, [1, 2]))
def test_an_item_whose_process_dies_is_begun_again_once(processes: int) -> None:
    with Processes(processes) as executor:
        events = collect(on(executor), [4, 1, 2])
    assert outcome(events) == {4: "its process ended with code 9", 1: 10, 2: 20}
    assert warnings(events) == [(4, "its process ended with code 9: it is begun again")]


def first_dies(folder: Path, item: int, report: Report) -> dict[str, Any]:
    try:
        (folder / str(item)).touch(exist_ok=False)
    except FileExistsError:
        return {"value": item}
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


@pytest.mark.parametrize("items", first(1, [2, 3]))
def test_every_item_may_lose_its_process_once(items: int, tmp_path: Path) -> None:
    events: list[Event] = []
    with Processes(2) as executor:
        run_on(executor, functools.partial(first_dies, tmp_path), range(items), events.append)
    assert outcome(events) == {i: i for i in range(items)}
    assert sorted(warnings(events)) == [(i, "its process ended with code -9: it is begun again") for i in range(items)]


def test_a_pool_that_breaks_fails_what_it_held() -> None:
    with ProcessPoolExecutor(1, get_context("spawn")) as executor:
        found = outcome(collect(on(executor), [1, 4, 2]))
    assert found[1] == 10
    assert found[4].startswith("A process in the process pool was terminated abruptly")
    assert found[2] == found[4]


class GivesUp(Executor):
    """As a cluster's client does when it loses its scheduler."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future = Future[Any]()
        future.cancel()
        future.set_running_or_notify_cancel()
        return future


def guess(item: int, report: Report) -> dict[str, Any]:
    for _ in range(2):
        python_warnings.warn("a lane is a guess", Unvalidated, stacklevel=1)
    python_warnings.warn(f"item {item}", RuntimeWarning, stacklevel=1)
    return {"value": item}


def test_what_python_warns_of_in_a_process_is_told_once() -> None:
    events: list[Event] = []
    with Processes(1) as executor:
        run_on(executor, guess, [1, 2], events.append)
    assert outcome(events) == {1: 1, 2: 2}
    assert warnings(events) == [
        (1, "Unvalidated: a lane is a guess"),
        (1, "RuntimeWarning: item 1"),
        (2, "RuntimeWarning: item 2"),
    ]


def test_what_an_executor_gives_up_has_failed() -> None:
    assert outcome(collect(on(GivesUp()), [1, 2])) == dict.fromkeys((1, 2), "its executor has given it up")


def test_what_cannot_be_sent_fails_alone() -> None:
    events: list[Event] = []
    with Processes(1) as executor:
        run_on(executor, functools.partial(work, 10), [lambda: None, 1], events.append)
    assert [e.kind for e in events if e.kind != "progress"] == ["failed", "done"]
    assert "<lambda>" in events[0].payload["error"]  # Pythons say differently that it cannot be sent


def linger(folder: Path, item: int, report: Report) -> dict[str, Any]:
    (folder / f"begun {item}").touch()
    try:
        while True:
            report({"step": item})
            time.sleep(0.01)
    except Abandoned:
        (folder / f"given up {item}").touch()
        raise


def test_an_interrupt_ends_what_is_begun_and_begins_nothing_else(tmp_path: Path) -> None:
    def interrupt(event: Event) -> None:
        raise KeyboardInterrupt

    with ThreadPoolExecutor(1) as executor, pytest.raises(KeyboardInterrupt):  # which cannot be ended from outside
        run_on(executor, functools.partial(linger, tmp_path), [1, 2], interrupt)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["begun 1", "given up 1"]


def test_a_pipe_that_is_not_there_or_full_loses_progress_and_no_warning(tmp_path: Path) -> None:
    with Wire(str(tmp_path / "nowhere"), 0).opened() as report:
        report({"step": 1})
        report({"warning": "late"})
        assert report.unsaid == [{"warning": "late"}]
    hold, heard = threading.Event(), list[dict[str, Any]]()

    def slowly(item: int, payload: dict[str, Any]) -> None:
        hold.wait()
        heard.append(payload)

    with listening(slowly) as path, Wire(path, 0).opened() as report:
        start = time.monotonic()
        for step in range(20_000):
            report({"step": step})
        report({"warning": "full"})
        assert time.monotonic() - start < 300  # it never waits
        hold.set()
    assert report.unsaid == [{"warning": "full"}]
    assert 100 < len(heard) < 20_000
    steps = [payload["step"] for payload in heard]
    assert steps[0] == 0
    assert steps == sorted(set(steps))  # the reader's own buffer may make room once more after some were lost
    assert not Path(path).exists()


def test_nothing_to_do_starts_nothing() -> None:
    before, threads_before = active_children(), threading.active_count()
    with Processes(2) as executor:
        assert collect(on(executor), []) == []
        assert active_children() == before
        assert threading.active_count() == threads_before
