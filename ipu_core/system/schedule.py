"""Schedules of a pipeline: who does which micro-batch when, how long it takes, what is kept meanwhile.

PopART's notes on pipelines, with K chips and G micro-batches an update. "grouped": in a pipeline cycle all chips go
forward at once and then all backward, so that with the same F and B on every chip G + 2K - 2 cycles take
(G + K - 1)(F + B). "interleaved": chips that go forward and chips that go backward take turns in slots as long as the
slower of both, K(F + B) + 2(G - 1) max(F, B) with K > 1, and half the stashes. "sequential": one micro-batch at a time,
as a model that is only cut: GK(F + B). "1f1b": as other machines do, without a barrier, each stage on its own:
(G + K - 1)(F + B). What a backward pass makes again is in B; messages between stages are in neither.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

from lowprec.checks import integer, iterable, number, shown

FORWARD, BACKWARD = "forward", "backward"


class Work(NamedTuple):
    """What one stage does with one micro-batch.

    Attributes:
        stage: from 0.
        kind: "forward" or "backward".
        micro_batch: from 0.
        cycle: of the pipeline, from 0: grouped, both passes of a chip are in one; else a pass is one.
        begin, end: seconds, without the wait for slower chips.
    """

    stage: int
    kind: str
    micro_batch: int
    cycle: int
    begin: float
    end: float


@dataclass(frozen=True)
class Schedule:
    """A pipeline's timetable: ``Schedule("grouped", forward=(2.0,) * 3, backward=(4.0,) * 3, micro_batches=5)``.

    Attributes:
        name: one of SCHEDULES.
        forward, backward: seconds of a micro-batch on each stage.
        micro_batches: of an update.

    Raises:
        ValueError: another name, stages that differ in number, a time below 0.
    """

    name: str
    forward: tuple[float, ...]
    backward: tuple[float, ...]
    micro_batches: int

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or self.name not in SCHEDULES:
            raise ValueError(f"there is no schedule {shown(self.name)}; there are {', '.join(SCHEDULES)}")
        integer("micro_batches", self.micro_batches, 1)
        for field in (FORWARD, BACKWARD):
            object.__setattr__(self, field, tuple(_time(field, each) for each in iterable(field, getattr(self, field))))
        if not self.forward or len(self.forward) != len(self.backward):
            raise ValueError(
                f"forward and backward say each stage's time, not {len(self.forward)} and {len(self.backward)} times"
            )

    @property
    def stages(self) -> int:
        """How many there are."""
        return len(self.forward)

    @cached_property
    def timetable(self) -> tuple[Work, ...]:
        """All that is done, in the order in which it begins."""
        return tuple(sorted(_TIMETABLES[self.name](self), key=lambda work: (work.begin, work.cycle, work.stage)))

    @property
    def seconds(self) -> float:
        """Until the last stage's last pass ends."""
        return max(work.end for work in self.timetable)

    @property
    def cycles(self) -> int:
        """Pipeline cycles, see `Work.cycle`."""
        return 1 + max(work.cycle for work in self.timetable)

    @property
    def busy(self) -> float:
        """Seconds that all stages together work."""
        return self.micro_batches * (math.fsum(self.forward) + math.fsum(self.backward))

    @property
    def efficiency(self) -> float:
        """The share of the stages' time in which they work."""
        whole = self.stages * self.seconds
        return self.busy / whole if whole else 1.0

    @property
    def bubble(self) -> float:
        """The share in which they wait: while the pipeline fills and empties, and for slower stages."""
        return max(0.0, 1 - self.efficiency)

    @property
    def stashes(self) -> tuple[int, ...]:
        """Inputs that each stage keeps at most beside the one in use."""
        last, most = self.stages - 1, self.micro_batches - 1
        each = {"grouped": 2, "interleaved": 1, "1f1b": 1, "sequential": 0}[self.name]
        return tuple(min(most, each * (last - stage)) for stage in range(self.stages))

    def order(self, stage: int) -> tuple[tuple[str, int], ...]:
        """(pass, micro-batch) in the order in which a stage does them."""
        integer("stage", stage, 0, self.stages - 1)
        return tuple((work.kind, work.micro_batch) for work in self.timetable if work.stage == stage)

    def picture(self) -> str:
        """The timetable as text, a line for each stage and a column for each cycle: f2 forward, b0 backward."""
        cells = [["" for _ in range(self.cycles)] for _ in range(self.stages)]
        for work in self.timetable:
            cells[work.stage][work.cycle] += f"{work.kind[0]}{work.micro_batch}"
        wide = max(len(cell) for line in cells for cell in line)
        return "\n".join(" ".join(cell.ljust(wide) for cell in line).rstrip() for line in cells)


def _time(name: str, value: object) -> float:
    seconds = number(name, value)
    if not (seconds >= 0 and math.isfinite(seconds)):
        raise ValueError(f"{name} must be seconds of each stage, 0 or more, not {shown(value)}")
    return seconds


class _Pass(NamedTuple):
    stage: int
    kind: str
    micro_batch: int


def _grouped(made: Schedule) -> list[Work]:
    """Every cycle all forward, then all backward: stage s has a micro-batch back 2(K - 1 - s) cycles after it."""
    last = made.stages - 1
    cycles = [
        [
            [_Pass(stage, FORWARD, cycle - stage) for stage in range(made.stages)],
            [_Pass(stage, BACKWARD, cycle - 2 * last + stage) for stage in range(made.stages)],
        ]
        for cycle in range(made.micro_batches + 2 * last)
    ]
    return _in_step(made, cycles)


def _interleaved(made: Schedule) -> list[Work]:
    """Stages begin a micro-batch in every second slot, and go back in the others."""
    slots = [
        [
            [
                *(_Pass(s, FORWARD, (slot - s) // 2) for s in range(made.stages) if (slot - s) % 2 == 0),
                *(
                    _Pass(s, BACKWARD, (slot - 2 * made.stages + 1 + s) // 2)
                    for s in range(made.stages)
                    if (slot - s) % 2
                ),
            ]
        ]
        for slot in range(2 * (made.micro_batches + made.stages - 1))
    ]
    return _in_step(made, slots)


def _in_step(made: Schedule, cycles: Sequence[Sequence[Sequence[_Pass]]]) -> list[Work]:
    """Cycles of phases, each of which lasts as long as its slowest pass."""
    works, begin = [], 0.0
    for cycle, phases in enumerate(cycles):
        for phase in phases:
            there = [each for each in phase if 0 <= each.micro_batch < made.micro_batches]
            works += [Work(*each, cycle, begin, begin + _seconds(made, each)) for each in there]
            begin += max((_seconds(made, each) for each in there), default=0.0)
    return works


def _seconds(made: Schedule, one: _Pass) -> float:
    return (made.forward if one.kind == FORWARD else made.backward)[one.stage]


def _one_forward_one_backward(made: Schedule) -> list[Work]:
    """Stage s begins with K - 1 - s forward passes, then does one of each in turn, then what is left backward."""
    count, orders = made.micro_batches, []
    for stage in range(made.stages):
        first = min(count, made.stages - 1 - stage)
        order = [_Pass(stage, FORWARD, batch) for batch in range(first)]
        for batch in range(count):
            if first + batch < count:
                order.append(_Pass(stage, FORWARD, first + batch))
            order.append(_Pass(stage, BACKWARD, batch))
        orders.append(order)
    return _as_they_can(made, orders)


def _sequential(made: Schedule) -> list[Work]:
    """One micro-batch goes forward and back through all stages before the next."""
    both = (FORWARD, BACKWARD)
    orders = [
        [_Pass(stage, kind, batch) for batch in range(made.micro_batches) for kind in both]
        for stage in range(made.stages)
    ]
    return _as_they_can(made, orders)


def _as_they_can(made: Schedule, orders: Sequence[Sequence[_Pass]]) -> list[Work]:
    """Each stage does its passes in order, each when the stage before (or behind) has done its own."""
    done: dict[_Pass, Work] = {}
    before = {later: earlier for order in orders for earlier, later in pairwise(order)}
    waiting = [list(reversed(order)) for order in orders]
    while any(waiting):
        for left in waiting:
            while left:
                one = left[-1]
                needs = _needs(made, one, before)
                if not done.keys() >= set(needs):
                    break
                left.pop()
                begin = max((done[need].end for need in needs), default=0.0)
                cycle = max((done[need].cycle + 1 for need in needs), default=0)
                done[one] = Work(*one, cycle, begin, begin + _seconds(made, one))
    return list(done.values())


def _needs(made: Schedule, one: _Pass, before: Mapping[_Pass, _Pass]) -> list[_Pass]:
    """What has to be done before a pass: the stage's last one, and the same pass of its neighbour."""
    needs = [before[one]] if one in before else []
    step = -1 if one.kind == FORWARD else 1
    if 0 <= one.stage + step < made.stages:
        needs.append(one._replace(stage=one.stage + step))
    return needs


_TIMETABLES: Mapping[str, Callable[[Schedule], list[Work]]] = {
    "grouped": _grouped,
    "interleaved": _interleaved,
    "sequential": _sequential,
    "1f1b": _one_forward_one_backward,
}

SCHEDULES = tuple(_TIMETABLES)
