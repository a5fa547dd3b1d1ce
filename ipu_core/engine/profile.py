"""A Profile: what one run of a program costs, step by step, and what it needs in memory."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from ipu_core.chip.integers import Ints
from ipu_core.chip.target import Target
from ipu_core.engine.memory import MemoryAccount
from ipu_core.engine.steps import StepAccount


@dataclass(frozen=True, eq=False)
class Step:
    """One step of a program and how often it runs: a compute set, a copy, a transfer or a barrier.

    `cycles` and `exchanged` are of all its executions, so they add up to those of the profile. What is of one execution
    stands in `account`, so are the figures of a step that are printed, and those in `to_json`.

    Attributes:
        account: the cost of one execution, with arrays by tile.
        count: executions in one run of the program.
    """

    account: StepAccount
    count: int

    @property
    def name(self) -> str:
        """Name of the compute set, or what is copied."""
        return self.account.name

    @property
    def kind(self) -> str:
        """execute, copy, stream, remote or sync."""
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
    def active_tiles(self) -> int:
        """Tiles that compute."""
        return int(np.count_nonzero(self.account.compute))

    @property
    def balance(self) -> float:
        """Mean over all tiles of compute cycles, as a share of the slowest tile's; 1 is perfect, 0 means no compute."""
        slowest = self.account.compute_cycles
        return float(self.account.compute.mean() / slowest) if slowest else 0.0


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
    """

    target: Target
    program: int
    steps: tuple[Step, ...]
    memory: MemoryAccount
    measured: bool
    outline: tuple[tuple[int, str], ...] = ()
    runs: int = 1
    call: "Profile | None" = None

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
        return self._by_tile([step.account.gather.received + step.account.scatter.received for step in self.steps])

    @cached_property
    def bytes_out(self) -> Ints:
        """Bytes each tile sends in one run."""
        return self._by_tile([step.account.gather.sent + step.account.scatter.sent for step in self.steps])

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
        memory = self.memory
        return {
            "target": {"name": self.target.name, "tiles": self.target.tiles, "clock": self.target.clock},
            **{name: getattr(self, name) for name in _TOTALS},
            "joules": list(self.joules),
            "mean_tile": self.mean_tile._asdict(),
            "call": None if self.call is None else {name: getattr(self.call, name) for name in _TOTALS},
            "steps": [_step_json(step) for step in self.steps],
            "outline": [list(line) for line in self.outline],
            "bytes_in": self.bytes_in.tolist(),
            "bytes_out": self.bytes_out.tolist(),
            "memory": {
                "available": memory.available,
                "peak": memory.peak.tolist(),
                "fullest_tile": memory.tile,
                "step": memory.step,
                "categories": memory.categories,
                "largest": [list(item) for item in memory.largest],
                "variables": [list(item) for item in memory.variables],
                "always": {name: by_tile.tolist() for name, by_tile in memory.always.items()},
                "remote": memory.remote,
                "remote_available": memory.remote_available,
                "unstreamed": memory.unstreamed.tolist(),
                "lifetimes": [[place.step, place.total, place.fullest] for place in memory.lifetimes],
            },
        }

    def __str__(self) -> str:
        shown = [step for step in self.steps if step.count and (step.cycles or step.account.hidden)]
        # Names are whole, however long: cut ones could not be told apart.
        width = max([len(_STEP), *(len(step.name) for step in shown)])
        rows = [
            _heading(self),
            *(f"{name}: {words}" for name, words in call_facts(self).items()),
            _columns(width),
            *(_line(step, width) for step in shown),
            "",
            *_memory(self.memory),
            *(f"{name}: {words}" for name, words in (host_facts(self) | streaming_facts(self)).items()),
        ]
        return "\n".join(rows)


_TOTALS = (
    "program", "runs", "measured", "cycles", "compute_cycles", "exchange_cycles", "sync_cycles", "microseconds",
    "exchanged", "from_host", "to_host", "loaded", "stored", "streaming_cycles", "hidden_cycles", "tiles_cycles",
    "overlap_bound",
)  # fmt: skip


_STEP = "step, with figures of one run"


def _step_json(step: Step) -> dict[str, Any]:
    account = step.account
    return {
        "name": step.name,
        "operations": list(step.operations),
        "kind": step.kind,
        "count": step.count,
        "cycles": account.cycles,
        "compute_cycles": account.compute_cycles,
        "exchange_cycles": account.exchange_cycles,
        "sync_cycles": account.sync_cycles,
        "exchanged": account.exchanged,
        "vertices": account.vertices,
        "active_tiles": step.active_tiles,
        "balance": step.balance,
    }


def _heading(profile: Profile) -> str:
    target = profile.target
    runs = f", {profile.runs} runs" if profile.runs > 1 else ""
    runs = runs if profile.call is None else f", one of {profile.call.runs} runs in a call"
    return (
        f"program {profile.program} on {target.name}, {target.tiles} tiles{runs}: {profile.cycles:,} cycles = "
        f"{profile.microseconds:,.2f} us (compute {profile.compute_cycles:,}, exchange {profile.exchange_cycles:,}, "
        f"sync {profile.sync_cycles:,}), {profile.exchanged:,} bytes exchanged"
    )


def _columns(width: int) -> str:
    columns = ("runs", 6), ("compute", 10), ("exchange", 10), ("sync", 6), ("bytes", 12), ("tiles", 6), ("balance", 7)
    named = " ".join(f"{name:>{width}}" for name, width in columns)
    return f"{_STEP:{width}} {'kind':8} {named}"


def _line(step: Step, width: int) -> str:
    account = step.account
    return (
        f"{step.name:{width}} {step.kind:8} {step.count:6} {account.compute_cycles:10,} {account.exchange_cycles:10,} "
        f"{account.sync_cycles:6} {account.exchanged:12,} {step.active_tiles:6} {step.balance:7.2f}"
    )


def _memory(memory: MemoryAccount) -> list[str]:
    parts = ", ".join(f"{name} {size:,}" for name, size in memory.categories.items() if size)
    largest = ", ".join(f"{name} {size:,}" for name, size in memory.largest)
    return [
        f"memory: fullest tile {memory.tile} needs {memory.peak_bytes:,} of {memory.available:,} bytes"
        + (f" at {memory.step!r}" if memory.step else ""),
        f"  by category: {parts}",
        f"  largest variables: {largest}",
    ]


def energy_words(profile: Profile) -> str:
    """Joules of one run, and of what they are made."""
    (least, most), (low, high) = profile.joules, profile.target.power
    amount = f"{least:.3g} J" if low == high else f"{least:.3g} to {most:.3g} J"
    return f"{amount} at the {low:g}{'' if low == high else f' to {high:g}'} W of a chip's share of its machine"


def call_facts(profile: Profile, of: str = "runs") -> dict[str, str]:
    """What a call of several runs costs, in words by name; nothing where each run is made alone."""
    call = profile.call
    if call is None:
        return {}
    time = f"{call.cycles:,} cycles = {call.microseconds:,.2f} us, {call.exchanged:,} bytes exchanged"
    moved = f"{call.from_host:,} bytes from the host and {call.to_host:,} to it, at {call.target.host_rate}"
    return {f"a call of {call.runs} {of}": f"{time}; {moved}"}


def host_facts(profile: Profile) -> dict[str, str]:
    """What a run moves from and to the host, and at which rate, in words by name; nothing where it moves nothing."""
    steps = [step for step in profile.steps if step.kind == "stream" and step.count]
    if not steps:
        return {}
    time = profile.target.seconds(sum(step.cycles for step in steps)) * 1e6
    return {
        "host": f"{profile.from_host:,} bytes from it and {profile.to_host:,} to it, {time:,.2f} us at "
        f"{profile.target.host_rate}, sync included"
    }


def streaming_facts(profile: Profile) -> dict[str, str]:
    """What streaming costs and saves, in words by name; nothing where nothing is streamed."""
    memory, target = profile.memory, profile.target
    if not memory.remote:
        return {}
    number = sum(step.count for step in profile.steps if step.kind == "remote")
    limit = f" of {memory.remote_available:,}" if memory.remote_available else ""
    beside = f", {profile.hidden_cycles:,} of {profile.streaming_cycles:,} cycles beside other steps"
    bound = {
        "beside each other": f"{profile.cycles:,} cycles for {profile.tiles_cycles:,} on the tiles and "
        f"{profile.streaming_cycles:,} of transfers, {profile.overlap_bound:,} or more where all that may does"
    }
    return {
        "streaming memory": f"{memory.remote:,}{limit} bytes",
        "transfers": f"{number}, {profile.loaded:,} bytes loaded and {profile.stored:,} stored",
        "their time": f"{target.seconds(profile.streaming_cycles) * 1e6:,.2f} us at "
        f"{target.streaming_rate}, {number * target.sync_cycles:,} cycles of sync included"
        + (beside if profile.hidden_cycles else ""),
        **(bound if profile.hidden_cycles else {}),
        "fullest tile without": f"{int(memory.unstreamed.max()):,} bytes if all of it lay on the tiles, "
        f"{memory.peak_bytes:,} as it is",
    }
