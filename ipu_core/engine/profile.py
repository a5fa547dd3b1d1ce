"""A Profile: what one run of a program costs, step by step, and what it needs in memory."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from ipu_core.chip.integers import Ints
from ipu_core.chip.target import Target
from ipu_core.engine.data import to_data
from ipu_core.engine.memory import MemoryAccount
from ipu_core.engine.steps import StepAccount
from ipu_core.engine.words import in_words
from ipu_core.engine.work import Work, Works, counted_in_steps, equations_of_steps


@dataclass(frozen=True, eq=False)
class Step:
    """One step of a program and how often it runs: a compute set, a copy, a transfer or a barrier.

    `cycles` and `exchanged` are of all its executions, so they add up to those of the profile. What is of one execution
    stands in `account`, so are the figures of a step that are printed, and those in `to_json`.

    Attributes:
        account: the cost of one execution, with arrays by tile.
        count: executions in one run of the program.
        begin: cycle of the run in which it begins for the first time.
        every: cycles from one execution to the next in the loop that repeats it; 0: no loop does.
    """

    account: StepAccount
    count: int
    begin: int = 0
    every: int = 0

    @property
    def name(self) -> str:
        """Name of the compute set, or what is copied."""
        return self.account.name

    @property
    def kind(self) -> str:
        """execute, copy, stream, remote, links or sync."""
        return self.account.kind

    @property
    def operations(self) -> tuple[str, ...]:
        """Names of all that it does at once: of the compute sets that were joined to one, or its own."""
        return self.account.joined or (self.name,)

    @property
    def cycles(self) -> int:
        """Cycles of all executions."""
        return self.count * self.account.cycles

    @property
    def exchanged(self) -> int:
        """Bytes received by tiles in all executions."""
        return self.count * self.account.exchanged

    @property
    def bytes_in(self) -> Ints:
        """Bytes that each tile receives in one execution."""
        return self.account.gather.received + self.account.scatter.received

    @property
    def bytes_out(self) -> Ints:
        """Bytes that each tile sends in one execution."""
        return self.account.gather.sent + self.account.scatter.sent

    @property
    def active_tiles(self) -> int:
        """Tiles that compute."""
        return int(np.count_nonzero(self.account.compute))

    @property
    def balance(self) -> float:
        """Mean over all tiles of compute cycles, as a share of the slowest tile's; 1 is perfect, 0 means no compute."""
        slowest = self.account.compute_cycles
        return float(self.account.compute.mean() / slowest) if slowest else 0.0


class HostTransfer(NamedTuple):
    """What passes between the host and the tiles in one step of a program.

    Attributes:
        name: of the step.
        to_tiles: whether the host sends it; otherwise it receives it.
        bytes: of one execution.
        begin: cycle of the run in which the first begins.
        cycles: of one execution, its barrier included.
        runs: executions in one run of the program.
        every: cycles from one to the next in the loop that repeats it; 0: no loop does.
        bytes_per_second: of one execution, its barrier left out.
    """

    name: str
    to_tiles: bool
    bytes: int
    begin: int
    cycles: int
    runs: int
    every: int
    bytes_per_second: float


class Split(NamedTuple):
    """Cycles by what is done in them.

    Attributes:
        compute: a tile computes.
        exchange: it receives or sends, the host and streaming memory included.
        sync: it waits at a barrier, or for a tile that takes longer.
    """

    compute: float
    exchange: float
    sync: float

    def words(self) -> str:
        """As shares."""
        whole = max(1.0, sum(self))
        return ", ".join(f"{name} {100 * part / whole:.0f} %" for name, part in zip(self._fields, self, strict=True))


@dataclass(frozen=True, eq=False)
class Profile:
    """The account of one run of one program. ``print(profile)`` shows it; `ipu_core.report` renders it further.

    Attributes:
        target: the chip.
        program: the program's number.
        steps: those that run, each once, in the order in which the program names them first.
        memory: of the whole engine.
        measured: whether data-dependent parts count a real run (otherwise one iteration and the first option of each).
        outline: the program's lines, as (depth, name of the step or what repeats or chooses those below).
        runs: how many runs of another program this one is: more than 1 for a call of several training steps.
        call: of a run that is made several at a time, the account of them all; None: each is made alone.
        works: what the equations compute of which the program was made, by name; nothing where nobody said.
        update_overhead: seconds of an update that are given (`Execution(update_overhead=)`), in no cycles.
    """

    target: Target
    program: int
    steps: tuple[Step, ...]
    memory: MemoryAccount
    measured: bool
    outline: tuple[tuple[int, str], ...] = ()
    runs: int = 1
    call: "Profile | None" = None
    works: Works = field(default_factory=dict)
    update_overhead: float = 0.0

    @property
    def cycles(self) -> int:
        """Cycles of one run."""
        return sum(step.cycles for step in self.steps)

    @property
    def compute_cycles(self) -> int:
        """Cycles in which the slowest tile computes."""
        return sum(step.count * step.account.compute_cycles for step in self.steps)

    @property
    def exchange_cycles(self) -> int:
        """Cycles of exchange, with the host and streaming memory included."""
        return sum(step.count * step.account.exchange_cycles for step in self.steps)

    @property
    def sync_cycles(self) -> int:
        """Cycles of barriers."""
        return sum(step.count * step.account.sync_cycles for step in self.steps)

    @cached_property
    def mean_tile(self) -> Split:
        """Cycles of one run as the mean tile spends them: what it waits for others is sync."""
        compute = sum(step.count * float(step.account.compute.mean()) for step in self.steps)
        exchange = sum(step.count * step.account.mean_exchange(self.target) for step in self.steps)
        return Split(compute, exchange, self.cycles - compute - exchange)

    @property
    def seconds(self) -> float:
        """Modelled time of one run."""
        return self.target.seconds(self.cycles)

    @property
    def seconds_per_update(self) -> float:
        """Modelled time of the updates of one run, and what is given beside it for each of them."""
        return self.seconds + self.runs * self.update_overhead

    @property
    def microseconds(self) -> float:
        """Modelled time of one run, in microseconds."""
        return 1e6 * self.seconds

    @property
    def joules(self) -> tuple[float, float]:
        """Modelled time of one run times the power that was published of the chip's share of its machine: a range."""
        least, most = self.target.power
        return self.seconds * least, self.seconds * most

    @property
    def exchanged(self) -> int:
        """Bytes received by tiles in one run."""
        return sum(step.exchanged for step in self.steps)

    @property
    def loaded(self) -> int:
        """Bytes from streaming memory to the tiles in one run."""
        return self._received("remote")

    @property
    def stored(self) -> int:
        """Bytes from the tiles to streaming memory in one run."""
        return self._sent("remote")

    @property
    def from_host(self) -> int:
        """Bytes from the host to the tiles in one run."""
        return self._received("stream")

    @property
    def to_host(self) -> int:
        """Bytes from the tiles to the host in one run."""
        return self._sent("stream")

    def _received(self, kind: str) -> int:
        return sum(step.exchanged for step in self.steps if step.kind == kind)

    def _sent(self, kind: str) -> int:
        return sum(step.count * int(step.account.gather.sent.sum()) for step in self.steps if step.kind == kind)

    @property
    def streaming_cycles(self) -> int:
        """Cycles of those transfers, their barriers included, whether they passed beside other steps or not."""
        return sum(step.cycles for step in self._remote) + self.hidden_cycles

    @property
    def hidden_cycles(self) -> int:
        """Of those, the cycles that passed beside other steps: they are not in `cycles`."""
        return sum(step.count * step.account.hidden for step in self._remote)

    @property
    def tiles_cycles(self) -> int:
        """Cycles of everything but those transfers."""
        return self.cycles + self.hidden_cycles - self.streaming_cycles

    @property
    def overlap_bound(self) -> int:
        """Cycles that a run takes at least, if transfers pass beside everything they do not depend on.

        The longest of three: the tiles' own, the transfers' own, and what comes before the first store, which waits for
        it, with all transfers from that store on.
        """
        bounds = [self.tiles_cycles, self.streaming_cycles]
        # A store sends, a load does not: the first step that sends to streaming memory.
        first = next((i for i, s in enumerate(self.steps) if s.kind == "remote" and s.account.gather.sent.any()), None)
        if first is not None and self.steps[first].count == 1:
            before = sum(step.cycles for step in self.steps[:first] if step.kind != "remote")
            later = (step for step in self.steps[first:] if step.kind == "remote")
            bounds.append(before + sum(step.cycles + step.count * step.account.hidden for step in later))
        return max(bounds)

    @property
    def _remote(self) -> list[Step]:
        return [step for step in self.steps if step.kind == "remote"]

    @cached_property
    def bytes_in(self) -> Ints:
        """Bytes each tile receives in one run."""
        return self._by_tile([step.bytes_in for step in self.steps])

    @cached_property
    def bytes_out(self) -> Ints:
        """Bytes each tile sends in one run."""
        return self._by_tile([step.bytes_out for step in self.steps])

    @cached_property
    def equations(self) -> tuple[tuple[str, ...], ...]:
        """The names of the equations in `works` that each of the steps does, all or a part of."""
        return equations_of_steps([step.account for step in self.steps], self.works)

    @cached_property
    def counted(self) -> tuple[tuple[str, ...], ...]:
        """The same, every equation in one step alone, the one that computes longest: there its work counts."""
        return counted_in_steps([step.account for step in self.steps], self.equations)

    def sources(self, number: int) -> tuple[str, ...]:
        """Lines of the user's code that asked for what a step does, as "model.py:41", in order.

        Args:
            number: of the step in `steps`.
        """
        return tuple(sorted({line for name in self.equations[number] if (line := self.works[name].source)}))

    def peak_seconds(self, number: int) -> float | None:
        """Seconds of the arithmetic that counts in a step, all executions, at `Target.peak_flops` of its formats.

        Args:
            number: of the step in `steps`.

        Returns:
            0 without arithmetic; None where the target has no figure for one of the formats.
        """
        total = 0.0
        for name in self.counted[number]:
            # What does no arithmetic needs no rate, whatever its format.
            seconds = self.works[name].seconds(self.target) if self.works[name].flops else 0.0
            if seconds is None:
                return None
            total += seconds
        return self.steps[number].count * total

    @property
    def flops(self) -> int:
        """Floating-point operations of one run, by shapes (see `Work`); 0 where nobody said what its steps compute."""
        return sum(step.count * work.flops for step, work in self._works)

    @property
    def memory_bytes(self) -> int:
        """Bytes that operands and results move between tile memories and registers in one run [model]."""
        return sum(step.count * work.bytes for step, work in self._works)

    @property
    def _works(self) -> Iterator[tuple[Step, Work]]:
        for step, names in zip(self.steps, self.counted, strict=True):
            yield from ((step, self.works[name]) for name in names)

    @property
    def host(self) -> tuple[HostTransfer, ...]:
        """What the host sends and receives in one run, in the order in which it begins."""
        found = []
        for step in sorted((one for one in self.steps if one.kind == "stream"), key=lambda one: one.begin):
            account = step.account
            sent = int(account.gather.sent.sum())
            size, seconds = sent or account.exchanged, self.target.seconds(account.exchange_cycles)
            rate = size / seconds if seconds else 0.0
            times = step.begin, account.cycles, step.count, step.every
            found.append(HostTransfer(step.name, not sent, size, *times, rate))
        return tuple(found)

    @cached_property
    def compute_by_tile(self) -> Ints:
        """Cycles each tile computes in one run."""
        return self._by_tile([step.account.compute for step in self.steps])

    def _by_tile(self, columns: Sequence[Ints]) -> Ints:
        total = np.zeros(self.target.tiles, np.int64)
        for step, column in zip(self.steps, columns, strict=True):
            total += step.count * column
        return total

    def to_json(self) -> dict[str, Any]:
        """The profile as plain data for `json.dump`: totals, steps, memory; arrays by tile as lists.

        Of a call of several runs it has the totals.
        """
        return to_data(self)

    def __str__(self) -> str:
        return in_words(self)
