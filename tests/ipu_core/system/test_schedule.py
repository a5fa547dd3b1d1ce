"""Schedules: PopART's table, and every one against chips that pass micro-batches on, event by event."""

from __future__ import annotations

import heapq
from collections import deque
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ipu_core.figures import machines
from ipu_core.system.schedule import SCHEDULES, Schedule

TIMES = st.integers(0, 9)


@st.composite
def pipelines(draw: Any) -> tuple[list[int], list[int], int]:
    """Times forward and backward of each stage, which may differ, and micro-batches."""
    stages = draw(st.integers(1, 6))
    times = [draw(st.lists(TIMES, min_size=stages, max_size=stages)) for _ in "fb"]
    return times[0], times[1], draw(st.integers(1, 12))


class Ran(NamedTuple):
    """What chips did: (stage, pass, micro-batch) -> (begin, end), the most stashes of each, cycles."""

    works: dict[tuple[int, str, int], tuple[float, float]]
    stashes: list[int]
    cycles: int


class Chips:
    """Chips with an inbox each way; what is sent in a phase arrives after it."""

    def __init__(self, forward: list[int], backward: list[int], count: int) -> None:
        self.times = {"forward": forward, "backward": backward}
        self.stages, self.count = len(forward), count
        self.inbox: dict[str, list[deque[int]]] = {
            kind: [deque[int]() for _ in forward] for kind in ("forward", "backward")
        }
        self.inbox["forward"][0].extend(range(count))
        self.kept: list[set[int]] = [set() for _ in forward]
        self.most = [0] * self.stages
        self.works: dict[tuple[int, str, int], tuple[float, float]] = {}

    def start(self, stage: int, kind: str, now: float) -> tuple[int, float] | None:
        if not self.inbox[kind][stage]:
            return None
        batch = self.inbox[kind][stage].popleft()
        if kind == "forward":
            self.kept[stage].add(batch)
        else:  # the one in use is no stash
            self.most[stage] = max(self.most[stage], len(self.kept[stage]) - 1)
        end = now + self.times[kind][stage]
        self.works[stage, kind, batch] = now, end
        return batch, end

    def finish(self, stage: int, kind: str, batch: int) -> None:
        if kind == "backward":
            self.kept[stage].remove(batch)
            if stage:
                self.inbox[kind][stage - 1].append(batch)
        elif stage + 1 < self.stages:
            self.inbox[kind][stage + 1].append(batch)
        else:
            self.inbox["backward"][stage].append(batch)

    def together(self, passes: list[tuple[int, str]], now: float) -> float:
        """One phase: all that can start, until the slowest ends."""
        begun = [(stage, kind, self.start(stage, kind, now)) for stage, kind in passes]
        end = now
        for stage, kind, found in begun:
            if found is not None:
                end = max(end, found[1])
                self.finish(stage, kind, found[0])
        return end

    @property
    def over(self) -> bool:
        return sum(kind == "backward" for _, kind, _ in self.works) == self.stages * self.count

    def ran(self, cycles: int) -> Ran:
        assert not any(self.kept)
        return Ran(self.works, self.most, cycles)


def grouped(*given: Any) -> Ran:
    chips, now, cycles = Chips(*given), 0.0, 0
    while not chips.over:
        # what goes back in this cycle was sent in the last, but to the last chip by itself
        back = [(stage, "backward") for stage in range(chips.stages - 1) if chips.inbox["backward"][stage]]
        now = chips.together([(stage, "forward") for stage in range(chips.stages)], now)
        now = chips.together([*back, (chips.stages - 1, "backward")], now)
        cycles += 1
    return chips.ran(cycles)


def interleaved(*given: Any) -> Ran:
    chips, now, slot = Chips(*given), 0.0, 0
    while not chips.over:
        kinds = ["forward" if (slot - stage) % 2 == 0 else "backward" for stage in range(chips.stages)]
        now = chips.together(list(enumerate(kinds)), now)
        slot += 1
    return chips.ran(slot)


def by_events(turns: Any, *given: Any) -> Ran:
    """Chips without a barrier: each does what is its turn as soon as it is there."""
    chips = Chips(*given)
    events: list[tuple[float, int, str, int]] = []
    idle, at = set(range(chips.stages)), [0] * chips.stages
    now = 0.0
    while True:
        for stage in sorted(idle):
            if at[stage] < len(turns[stage]) and (found := chips.start(stage, turns[stage][at[stage]], now)):
                heapq.heappush(events, (found[1], stage, turns[stage][at[stage]], found[0]))
                idle.remove(stage)
                at[stage] += 1
        if not events:
            return chips.ran(0)
        now = events[0][0]
        while events and events[0][0] == now:
            _, stage, kind, batch = heapq.heappop(events)
            chips.finish(stage, kind, batch)
            idle.add(stage)


def sequential(forward: Any, backward: Any, count: int) -> Ran:
    return by_events([["forward", "backward"] * count] * len(forward), forward, backward, count)


def one_forward_one_backward(forward: Any, backward: Any, count: int) -> Ran:
    turns = []
    for stage in range(len(forward)):
        first = min(count, len(forward) - stage)
        turns.append(["forward"] * first + ["backward", "forward"] * (count - first) + ["backward"] * first)
    return by_events(turns, forward, backward, count)


MACHINES = {
    "grouped": grouped, "interleaved": interleaved, "sequential": sequential, "1f1b": one_forward_one_backward,
}  # fmt: skip


@pytest.mark.parametrize("name", SCHEDULES)
@settings(derandomize=True, deadline=None, max_examples=150)
@given(pipelines())
def test_a_schedule_is_what_chips_do(name: str, pipeline: tuple[list[int], list[int], int]) -> None:
    made, ran = Schedule(name, *map(tuple, pipeline[:2]), pipeline[2]), MACHINES[name](*pipeline)  # type: ignore[arg-type]
    assert {work[:3]: (work.begin, work.end) for work in made.timetable} == ran.works
    assert list(made.stashes) == ran.stashes
    end = max(end for _, end in ran.works.values())
    assert made.seconds == end
    worked = sum(end - begin for begin, end in ran.works.values())
    assert made.bubble == pytest.approx(1 - worked / (made.stages * end) if end else 0.0)
    if ran.cycles:
        assert made.cycles == ran.cycles


@settings(derandomize=True, deadline=None)
@given(st.integers(1, 8), st.integers(1, 20), st.floats(0.1, 9), st.floats(0.1, 9))
def test_closed_forms_where_all_stages_are_alike(stages: int, count: int, forward: float, backward: float) -> None:
    times = {name: Schedule(name, (forward,) * stages, (backward,) * stages, count) for name in SCHEDULES}
    both, rounds = forward + backward, count + stages - 1
    assert times["grouped"].seconds == pytest.approx(rounds * both)
    assert times["grouped"].cycles == count + 2 * stages - 2
    assert times["grouped"].bubble == pytest.approx((stages - 1) / rounds)
    assert times["1f1b"].seconds == pytest.approx(rounds * both)
    assert times["1f1b"].bubble == pytest.approx((stages - 1) / rounds)
    assert times["sequential"].seconds == pytest.approx(count * stages * both)
    slower = 2 * (count - 1) * max(forward, backward) if stages > 1 else (count - 1) * both
    assert times["interleaved"].seconds == pytest.approx(stages * both + slower)
    assert times["interleaved"].cycles == times["1f1b"].cycles == 2 * rounds


def test_popart_s_table() -> None:
    """K = 3, G = 5: 9 cycles, fill and flush of 4 and a main phase of 1, 7 (F + B), stashes 4, 2, 0."""
    made = Schedule("grouped", (2.0,) * 3, (4.0,) * 3, 5)
    assert (made.cycles, made.seconds, made.stashes) == (9, 7 * 6.0, (4, 2, 0))
    passes = [sum(work.cycle == cycle for work in made.timetable) for cycle in range(9)]
    assert passes.count(2 * 3) == 1  # all chips forward and backward
    assert passes.index(2 * 3) == 4
    widths = [{work.end - work.begin for work in made.timetable if work.cycle == cycle} for cycle in range(9)]
    assert [sum(width) for width in widths] == [2, 2, 6, 6, 6, 6, 6, 4, 4]  # K - 1 of F, G of both, K - 1 of B
    assert made.order(2)[:4] == (("forward", 0), ("backward", 0), ("forward", 1), ("backward", 1))
    assert made.order(0)[:6] == (*(("forward", batch) for batch in range(5)), ("backward", 0))


def test_a_picture_is_the_timetable() -> None:
    lines = [line.split() for line in Schedule("grouped", (1.0,) * 2, (1.0,) * 2, 2).picture().splitlines()]
    assert lines == [["f0", "f1", "b0", "b1"], ["f0b0", "f1b1"]]
    assert Schedule("sequential", (1.0,), (1.0,), 2).picture() == "f0 b0 f1 b1"


def test_the_ledger_s_figures_are_the_schedule_s() -> None:
    figures = ("cycles", "time", "efficiency", "stashes")
    assert [machines.pipeline(3, 5, figure) for figure in figures] == [9, 7, pytest.approx(5 / 7), 4]
    assert (machines.ring(16, "messages"), machines.ring(16, "bytes")) == (30, 1.875)


def test_the_slowest_stage_decides() -> None:
    assert Schedule("grouped", (1.0, 3.0, 1.0), (2.0, 2.0, 5.0), 100).seconds == pytest.approx(100 * 8 + 2 * 5, abs=10)
    alike = Schedule("grouped", (3.0,) * 3, (5.0,) * 3, 100)
    assert alike.seconds == 102 * 8


@pytest.mark.parametrize(
    ("given_", "words"),
    [
        (("zigzag", (1.0,), (1.0,), 1), "no schedule 'zigzag'; there are grouped, interleaved, sequential, 1f1b"),
        (("grouped", (1.0, 2.0), (1.0,), 1), "forward and backward say each stage's time, not 2 and 1 times"),
        (("grouped", (), (), 1), "not 0 and 0 times"),
        (("grouped", (1.0,), (-1.0,), 1), "backward must be seconds of each stage, 0 or more, not -1.0"),
        (("grouped", (1.0,), (1.0,), 0), "micro_batches must be"),
    ],
)
def test_what_is_refused(given_: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Schedule(*given_)
