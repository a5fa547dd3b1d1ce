"""The workers: results, progress, failures, deaths, and no process left behind."""

import functools
import multiprocessing
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ipu_core.study.pool import Event, Report, run_here, run_in_processes
from lowprec import threads


def work(factor: int, item: int, report: Report) -> dict[str, Any]:
    report({"step": item})
    if item == 6:
        report({"warning": "six is odd"})
    if item == 3:
        raise ValueError("three is refused\nand this is detail")
    if item == 4:
        os._exit(9)
    return {"value": factor * item, "pid": os.getpid(), "threads": threads.current()}


def collect(run: Any, *args: Any, **more: Any) -> list[Event]:
    events: list[Event] = []
    run(functools.partial(work, 10), *args, events.append, **more)
    return events


def outcome(events: list[Event]) -> dict[int, Any]:
    return {e.item: e.payload.get("value", e.payload.get("error")) for e in events if e.kind in ("done", "failed")}


def test_items_are_done_here_in_order_and_one_may_fail() -> None:
    events = collect(run_here, [1, 3, 2])
    assert [(e.item, e.kind) for e in events[:4]] == [
        (1, "progress"),
        (1, "done"),
        (3, "progress"),
        (3, "failed"),
    ]
    assert outcome(events) == {1: 10, 3: "three is refused", 2: 20}


def test_processes_give_the_same_outcome() -> None:
    events = collect(run_in_processes, [1, 2, 3, 5, 6], workers=2)
    assert outcome(events) == {1: 10, 2: 20, 3: "three is refused", 5: 50, 6: 60}
    assert {e.payload["step"] for e in events if e.kind == "progress"} == {1, 2, 3, 5, 6}
    assert [(e.item, e.payload) for e in events if e.kind == "warning"] == [(6, {"warning": "six is odd"})]
    pids = {e.payload["pid"] for e in events if e.kind == "done"}
    assert os.getpid() not in pids
    assert len(pids) <= 2


def test_loops_have_the_threads_asked_for() -> None:
    for run, more in ((run_here, {}), (run_in_processes, {"workers": 1})):
        events = collect(run, [1], **more, threads=3)
        assert [e.payload["threads"] for e in events if e.kind == "done"] == [3]


def test_a_worker_that_dies_fails_its_item_and_the_other_goes_on() -> None:
    assert outcome(collect(run_in_processes, [4, 1, 2], workers=2)) == {
        4: "its process ended with code 9",
        1: 10,
        2: 20,
    }
    assert outcome(collect(run_in_processes, [4, 1], workers=1))[1] == "no worker process is left"


def test_an_interrupt_ends_the_workers() -> None:
    def interrupt(event: Event) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_in_processes(functools.partial(work, 10), [1, 2], interrupt, workers=2)
    assert not multiprocessing.active_children()


def linger(file: Path, item: int, report: Report) -> dict[str, Any]:
    file.with_suffix(".draft").write_text(str(os.getpid()))
    file.with_suffix(".draft").rename(file)
    time.sleep(600)
    return {}


def employ(file: Path) -> None:
    run_in_processes(functools.partial(linger, file), [1], lambda event: None, workers=1)


def test_a_worker_ends_with_its_parent(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    parent = multiprocessing.get_context("spawn").Process(target=employ, args=(file,))
    parent.start()
    wait_for(file.exists)
    parent.kill()
    parent.join()
    pid = file.read_text()
    wait_for(lambda: not Path("/proc", pid).exists() or "zombie" in Path("/proc", pid, "status").read_text())


def wait_for(condition: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_nothing_to_do_starts_nothing() -> None:
    start = time.monotonic()
    assert collect(run_in_processes, [], workers=0) == []
    assert time.monotonic() - start < 0.5
