"""Programs: what an engine does with a graph, in Poplar's words, as frozen data."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ipu_core.chip.system import System
from ipu_core.graph.streams import DataStream, RemoteBuffer
from ipu_core.graph.tensor import Tensor, element_type
from ipu_core.graph.vertices import ComputeSet
from lowprec import Collective
from lowprec.checks import expect, integer, shown
from lowprec.integers import ceil_div

CROSSINGS = ("all_reduce", "reduce_scatter", "all_gather", "all_reduce_max", "broadcast")
SUMMING = CROSSINGS[:2]
SHARDED = CROSSINGS[1:3]


@dataclass(frozen=True, eq=False)
class Sequence:
    """Programs one after another: ``Sequence(a, b, c)``."""

    steps: tuple["Program", ...]

    def __init__(self, *steps: "Program") -> None:
        for step in steps:
            _check_program(step)
        object.__setattr__(self, "steps", steps)


@dataclass(frozen=True, eq=False)
class Execute:
    """Runs a compute set: gather remote operands, compute on all tiles, scatter remote results."""

    compute_set: ComputeSet

    def __post_init__(self) -> None:
        expect(ComputeSet, compute_set=self.compute_set)


@dataclass(frozen=True, eq=False)
class Copy:
    """Copies elements between tensors of one shape and format, over the exchange where tiles differ.

    Attributes:
        source, destination: from where to where.
        name: for profiles.
        reorders: whether the elements must come in the destination's order, as the operands of a matrix unit must: the
            tiles then move once more what arrives, piece by piece, where less than a vector stays together. Without
            it the order within a tile costs nothing.
    """

    source: Tensor
    destination: Tensor
    name: str = ""
    reorders: bool = False

    def __post_init__(self) -> None:
        expect(Tensor, source=self.source, destination=self.destination)
        expect(bool, reorders=self.reorders)
        _check_transfer("Copy", self.source, self.destination.format, self.destination.shape)
        _check_writable("Copy", self.destination)


@dataclass(frozen=True, eq=False)
class CrossReplica:
    """What all replicas of the program make of what each has; where one machine runs alone, all have the same.

    Attributes:
        source, destination: what each has, and where the result goes: of one shape, or where each keeps or has a shard
            alone, of ceil(n / replicas) elements in one axis, n of the other.
        replicas: how many there are.
        kind: "all_reduce", "reduce_scatter" (each keeps its shard of the sum), "all_gather" (each has what all have,
            one after the other), "all_reduce_max", or "broadcast": what the first has.
        collective: of a sum: its order, formats and rounding, see `lowprec.all_reduce`; None otherwise.
        system: whose links; None: a system of so many chips like the graph's.
        operation: folded into the key for random bits, as that of vertices (see `Codelet`).
        name: for profiles.
        by_host: whether the host makes it of what all send it anyway, such as a loss: then no link is used.
    """

    source: Tensor
    destination: Tensor
    replicas: int
    kind: str = "all_reduce"
    collective: Collective | None = None
    system: System | None = None
    operation: int = 0
    name: str = ""
    by_host: bool = False

    def __post_init__(self) -> None:
        expect(Tensor, source=self.source, destination=self.destination)
        expect(bool, by_host=self.by_host)
        integer("CrossReplica: replicas", self.replicas, 1)
        if self.kind not in CROSSINGS:
            raise ValueError(f"CrossReplica: kind is one of {', '.join(CROSSINGS)}, not {shown(self.kind)}")
        if self.kind in SUMMING:
            expect(Collective, collective=self.collective)
        elif self.collective is not None:
            raise ValueError(f"CrossReplica: {self.kind} has no order of additions: collective is for sums")
        if self.system is not None:
            expect(System, system=self.system)
            if self.system.chips < self.replicas:
                raise ValueError(
                    f"CrossReplica: {self.replicas} replicas are more than the {self.system.chips} chips of "
                    f"{self.system.name}"
                )
        integer("CrossReplica: operation", self.operation, 0)
        shape = self.source.shape
        if self.kind in SHARDED:
            whole, shard = (self.source, self.destination)[:: 1 if self.kind == "reduce_scatter" else -1]
            if shard.shape != (ceil_div(whole.size, self.replicas),):
                raise ValueError(
                    f"CrossReplica: a shard of {whole.size} elements is one axis of "
                    f"{ceil_div(whole.size, self.replicas)}, not {shard.shape}"
                )
            shape = self.destination.shape
        # The sum may have another format than its terms, what is one of them has theirs.
        fmt = self.destination.format if self.kind in SUMMING else self.source.format
        _check_transfer("CrossReplica", self.destination, fmt, shape)
        _check_writable("CrossReplica", self.destination)


@dataclass(frozen=True, eq=False)
class CrossReplicas:
    """Several in one, as one array that the others lie behind: every message holds a chunk of each of them."""

    each: tuple[CrossReplica, ...]

    def __init__(self, *each: CrossReplica) -> None:
        for one in each:
            expect(CrossReplica, each=one)
        if len({(one.replicas, one.system) for one in each}) > 1:
            raise ValueError("CrossReplicas: all are of one number of replicas and one system")
        object.__setattr__(self, "each", each)


@dataclass(frozen=True, eq=False)
class Copies:
    """Copies in one exchange phase, behind one barrier: ``Copies(a, b)``; none writes what another reads or writes.

    Poplar makes one phase of neighbouring copies that are independent. A program says which are one here.
    """

    copies: tuple[Copy, ...]

    def __init__(self, *copies: Copy) -> None:
        for copy in copies:
            expect(Copy, copy=copy)
        object.__setattr__(self, "copies", copies)


@dataclass(frozen=True, eq=False)
class WriteUndef:
    """Says that a tensor's elements hold nothing worth keeping from here on (for liveness; the values stay)."""

    tensor: Tensor

    def __post_init__(self) -> None:
        expect(Tensor, tensor=self.tensor)


@dataclass(frozen=True, eq=False)
class Sync:
    """A barrier over all tiles."""


@dataclass(frozen=True, eq=False)
class AbortOnNaN:
    """Stops the run with a FloatingPointException if the tensor holds a NaN."""

    tensor: Tensor

    def __post_init__(self) -> None:
        expect(Tensor, tensor=self.tensor)


@dataclass(frozen=True, eq=False)
class Repeat:
    """Runs `body` `count` times. Random keys differ from iteration to iteration.

    The first iteration has the key that `body` alone would have. Each later one has that with a number of its own
    folded in, before vertices fold in the number of their operation (see `Codelet`); so it is in a `RepeatWhile`.

    Attributes:
        runs: whether each iteration is a run of its own, with the key of as many runs of `body` by the engine.
        backwards: whether the first iteration has the key of the last, the second of the one before, and so on: what
            goes back over the iterations of another loop draws as that did.
        operation: folded into the key before the numbers of iterations; None: nothing is. `add_traced` gives a loop the
            number that its other vertices have, so that its bits are those of the function with the key of that number.
    """

    count: int
    body: "Program"
    runs: bool = False
    backwards: bool = False
    operation: int | None = None

    def __post_init__(self) -> None:
        expect(int, count=self.count)
        if self.count < 0:
            raise ValueError(f"Repeat needs a count of at least 0, not {self.count}")
        expect(bool, runs=self.runs, backwards=self.backwards)
        if self.runs and self.backwards:
            raise ValueError("Repeat: runs of their own have no order but their own: runs or backwards, not both")
        if self.operation is not None:
            integer("Repeat: operation", self.operation, 0)
        _check_program(self.body)


@dataclass(frozen=True, eq=False)
class RepeatWhile:
    """Runs `condition`, then `body` while the one-element `predicate` is not zero."""

    condition: "Program"
    predicate: Tensor
    body: "Program"

    def __post_init__(self) -> None:
        _check_program(self.condition)
        _check_scalar("RepeatWhile", self.predicate)
        _check_program(self.body)


@dataclass(frozen=True, eq=False)
class If:
    """Runs `then` if the one-element `predicate` is not zero, else `otherwise`."""

    predicate: Tensor
    then: "Program"
    otherwise: "Program" = field(default_factory=Sequence)

    def __post_init__(self) -> None:
        _check_scalar("If", self.predicate)
        _check_program(self.then)
        _check_program(self.otherwise)


@dataclass(frozen=True, eq=False)
class Switch:
    """Runs the case that the one-element `control`, an int32 or uint32, names, else `default`."""

    control: Tensor
    cases: Mapping[int, "Program"]
    default: "Program" = field(default_factory=Sequence)

    def __post_init__(self) -> None:
        _check_number("Switch", self.control)
        if not isinstance(self.cases, Mapping):
            raise TypeError(f"Switch: cases must be a dict from numbers to programs, not {shown(self.cases)}")
        for value, case in self.cases.items():
            integer("Switch: a case's number", value)
            _check_program(case)
        _check_program(self.default)


@dataclass(frozen=True, eq=False)
class Call:
    """Runs a program that several places share; its code and steps exist once."""

    function: "Program"
    name: str = ""

    def __post_init__(self) -> None:
        _check_program(self.function)
        expect(str, name=self.name)


@dataclass(frozen=True, eq=False)
class StreamCopy:
    """Moves one transfer between a host stream and a tensor; the stream's direction says which way."""

    stream: DataStream
    tensor: Tensor

    def __post_init__(self) -> None:
        expect(DataStream, stream=self.stream)
        _check_transfer(f"StreamCopy {self.stream.name!r}", self.tensor, self.stream.format, self.stream.shape)
        if self.stream.to_device:
            _check_writable("StreamCopy", self.tensor)


@dataclass(frozen=True, eq=False)
class RemoteLoad:
    """Reads an entry of a remote buffer into a tensor; `entry` is a number or a one-element integer tensor."""

    buffer: RemoteBuffer
    tensor: Tensor
    entry: int | Tensor = 0

    def __post_init__(self) -> None:
        _check_remote("RemoteLoad", self.buffer, self.tensor, self.entry)
        _check_writable("RemoteLoad", self.tensor)


@dataclass(frozen=True, eq=False)
class RemoteStore:
    """Writes a tensor into an entry of a remote buffer; `entry` is a number or a one-element integer tensor."""

    tensor: Tensor
    buffer: RemoteBuffer
    entry: int | Tensor = 0

    def __post_init__(self) -> None:
        _check_remote("RemoteStore", self.buffer, self.tensor, self.entry)


@dataclass(frozen=True, eq=False)
class Overlap:
    """Runs programs in order, transfers among them beside what comes after: ``Overlap(load, a, b, store, c)``.

    The results are those of a `Sequence`. A transfer with streaming memory begins where it stands, or when those before
    it have ended, which share one channel, and what follows runs meanwhile, until something uses the tensor that is
    loaded, or writes one that is stored: that waits. After the last program all transfers have ended.
    """

    steps: tuple["Program", ...]

    def __init__(self, *steps: "Program") -> None:
        for step in steps:
            _check_program(step)
        object.__setattr__(self, "steps", steps)


Program = (
    Sequence
    | Execute
    | Copy
    | CrossReplica
    | CrossReplicas
    | Copies
    | WriteUndef
    | Sync
    | AbortOnNaN
    | Repeat
    | RepeatWhile
    | If
    | Switch
    | Call
    | StreamCopy
    | RemoteLoad
    | RemoteStore
    | Overlap
)


def _check_program(step: Any) -> None:
    if not isinstance(step, Program):
        names = ", ".join(kind.__name__ for kind in Program.__args__)
        raise TypeError(f"{shown(step)} is no program; programs are {names}")


def _format_name(spec: Any) -> str:
    fmt = element_type(spec)[0]
    return fmt if isinstance(fmt, str) else fmt.name


def _check_transfer(what: str, tensor: Tensor, fmt: Any, shape: tuple[int, ...]) -> None:
    expect(Tensor, tensor=tensor)
    if _format_name(tensor.format) != _format_name(fmt) or tensor.shape != tuple(shape):
        raise ValueError(
            f"{what}: {_format_name(tensor.format)}{list(tensor.shape)} of {tensor.variable.name} does not match "
            f"{_format_name(fmt)}{list(shape)}"
        )


def _check_writable(what: str, tensor: Tensor) -> None:
    if tensor.variable.constant:
        raise ValueError(f"{what} would write the constant {tensor.variable}")


def _check_scalar(what: str, tensor: Tensor) -> None:
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{what} needs a Tensor of one element, not {shown(tensor)}")
    if tensor.size != 1:
        raise ValueError(f"{what} needs a tensor of one element, not shape {tensor.shape} of {tensor.variable}")


def _check_number(what: str, tensor: Tensor) -> None:
    _check_scalar(what, tensor)
    if (name := _format_name(tensor.format)) not in ("int32", "uint32"):
        raise ValueError(f"{what} needs a whole number, an int32 or uint32, not {name} of {tensor.variable}")


def _check_remote(what: str, buffer: RemoteBuffer, tensor: Tensor, entry: int | Tensor) -> None:
    expect(RemoteBuffer, buffer=buffer)
    _check_transfer(f"{what} {buffer.name!r}", tensor, buffer.format, buffer.shape)
    if isinstance(entry, Tensor):
        _check_number(f"{what} {buffer.name!r}: entry", entry)
    elif not 0 <= integer(f"{what} {buffer.name!r}: entry", entry) < buffer.entries:
        raise ValueError(f"{what} {buffer.name!r}: entry {entry} is outside 0..{buffer.entries - 1}")
