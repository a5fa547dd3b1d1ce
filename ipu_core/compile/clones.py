"""Several Blocks on one chip, each on tiles of its own, as one program: what they do at the same time is one superstep.

Poplar runs one program on a chip, so clones go in step: the compute sets that are next in each become one, so do their
copies, and the slowest of them says how long it takes. What cannot be joined, a branch or loops of unlike counts, runs
one after another. The host sends what all of them read once, and the first of them hands it on.
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from ipu_core.chip.control import FloatingPointControl
from ipu_core.chip.target import Target
from ipu_core.compile.fitting import fitting
from ipu_core.compile.lowering.lower import Lowered
from ipu_core.compile.machine import planned
from ipu_core.compile.planning import BlockPlan
from ipu_core.compile.work import works_of
from ipu_core.engine.accountant import ProgramAccount, account
from ipu_core.engine.profile import Profile
from ipu_core.engine.work import Works
from ipu_core.graph import program as p
from ipu_core.graph.adoption import adopt
from ipu_core.graph.graph import Graph
from ipu_core.graph.phases import several
from ipu_core.graph.streams import DataStream
from ipu_core.graph.tensor import Tensor, Variable
from ipu_core.ir.block import Block
from ipu_core.ir.bodies import branch_of
from lowprec import Accumulation


class OnTiles(NamedTuple):
    """One of the Blocks that share a chip.

    Attributes:
        name: before the names of its steps.
        block, accumulations, control: as of `Machine.build`.
        tiles: how many it has.
    """

    name: str
    block: Block
    accumulations: Mapping[int, Accumulation]
    control: FloatingPointControl
    tiles: int


Streamed = tuple[tuple[int, int], ...]
"""Whose a stream is: the number of a clone, and that of its feed or result. A feed of one shape is the same for all,
numbers of each lie side by side."""


@dataclass(frozen=True, eq=False)
class Joined:
    """Clones in one graph.

    Attributes:
        graph, program: of all.
        lowered: of each; the graphs that these name are empty.
        feeds, results: by stream of the program, whose it is.
    """

    graph: Graph
    program: p.Program
    lowered: tuple[Lowered, ...]
    feeds: Mapping[DataStream, Streamed]
    results: Mapping[DataStream, Streamed]


@dataclass(frozen=True, eq=False)
class ClonesBill:
    """What a step of all clones costs on their chip.

    Attributes:
        plans: of the products and sums of each.
        account: of the program.
        works: what the equations compute, by name behind the clone's.
        flags: of each, what says whether its step counts; None: it has no branch.
    """

    plans: tuple[BlockPlan, ...]
    account: ProgramAccount
    works: Works
    flags: tuple[Variable | None, ...]

    def profile(self, renewed: Sequence[bool | None]) -> Profile:
        """The account of a step.

        Args:
            renewed: of each clone, whether its state became new; None: it still may do either.
        """
        known = zip(self.flags, renewed, strict=True)
        holds = {flag: did for flag, did in known if flag is not None and did is not None}
        measured = len(holds) == sum(flag is not None for flag in self.flags)
        return replace(self.account.profile(0, holds, measured=measured), works=self.works)


def clones_bill(clones: Sequence[OnTiles], target: Target, batch: int, *, share: bool, parallel: bool) -> ClonesBill:
    """Plans Blocks for tiles of their own, joins and accounts them.

    Args:
        clones: in the order of their tiles.
        target: the chip.
        batch: how many feeds of each, its first ones, are of the batch that all share.
        share, parallel: as of `bill`, of each.

    Raises:
        OutOfTileMemory, OutOfStreamingMemory: as `Machine.build`.
    """

    def make(parallel: bool, spare: int) -> ClonesBill:
        made = joined(clones, target, batch, share=share, parallel=parallel, spare=spare)
        works = {
            f"{clone.name}.{name}": work._replace(layer=f"{clone.name}.{work.layer}".rstrip("."))
            for clone, one in zip(clones, made.lowered, strict=True)
            for name, work in works_of(one.block, one.plan).items()
        }
        # What a step costs depends on no rounding, so any clone's control will do.
        done = account(made.graph, [made.program], clones[0].control)
        return ClonesBill(tuple(one.plan for one in made.lowered), done, works, tuple(map(_flag, made.lowered)))

    return fitting(make, parallel=parallel, memory=lambda made: made.account.memory)


def joined(
    clones: Sequence[OnTiles], target: Target, batch: int, *, share: bool, parallel: bool, spare: int = 0
) -> Joined:
    """Lowers each Block on tiles of its own and joins the programs; arguments as of `clones_bill` and `planned`."""
    graph, first = Graph(target), 0
    made, keys = list[Lowered](), dict[DataStream, Hashable]()
    for clone in clones:
        chip = replace(target, tiles=clone.tiles)
        one = planned(
            clone.block, chip, clone.accumulations, clone.control, share=share, parallel=parallel, spare=spare
        )
        for number, stream in enumerate(one.feeds):
            place = number if number < batch else number - len(one.feeds)  # the rate is the first number of all
            keys[stream] = (number < batch, place, str(stream.format), stream.shape if number < batch else ())
        keys |= {stream: (number, str(stream.format)) for number, stream in enumerate(one.results)}
        # Each draws with a key of its own, into which nothing but its own numbers is folded.
        adopt(
            graph, one.graph, np.arange(first, first + clone.tiles), instead={}, name=clone.name, operation=0,
            inside=frozenset(one.graph.compute_sets),
        )  # fmt: skip
        made.append(one)
        first += clone.tiles
    streams = {
        stream: (number, place)
        for number, one in enumerate(made)
        for own in (one.feeds, one.results)
        for place, stream in enumerate(own)
    }
    joining = _Joining(graph, keys, streams, tuple(clone.name for clone in clones))
    steps = joining.together([_called(one.program, clone.name) for clone, one in zip(clones, made, strict=True)])
    return Joined(graph, p.Sequence(*steps), tuple(made), joining.feeds, joining.results)


def _flag(lowered: Lowered) -> Variable | None:
    branch = branch_of(lowered.block)
    return None if branch is None else lowered.tensors[branch.flag].variable


RESULT = "result "  # how streams of results are called
Heads = list[tuple[list[p.Program], p.Program]]
"""What is left of programs, each with its next step."""


@dataclass
class _Joining:
    """Joins programs on tiles of their own.

    Attributes:
        graph: of all.
        keys: by stream, what those of other clones have in common with which it is one; of feeds it begins with whether
            they bring the same.
        streams: whose each is.
        names: of the clones.
        feeds, results: the streams of the joined program so far.
    """

    graph: Graph
    keys: Mapping[DataStream, Hashable]
    streams: Mapping[DataStream, tuple[int, int]]
    names: Sequence[str]
    feeds: dict[DataStream, Streamed] = field(default_factory=dict)
    results: dict[DataStream, Streamed] = field(default_factory=dict)

    def together(self, programs: Sequence[p.Program]) -> list[p.Program]:
        """The steps of all, each program's in its order."""
        left, steps = [list(_flat(program)) for program in programs], list[p.Program]()
        while heads := [(some, some[0]) for some in left if some]:
            taken, made = self._next(heads)
            for some, _ in taken:
                some.pop(0)
            steps += made
        return steps

    def _next(self, heads: Heads) -> tuple[Heads, list[p.Program]]:
        """Those whose next steps are taken, and what these become together."""
        # Moves come first, so that all have a compute set next; results last, or the host would read one by one.
        if found := [each for each in heads if isinstance(each[1], p.WriteUndef)]:
            return found, [step for _, step in found]
        if found := [each for each in heads if _feeds(each[1])]:
            return self._streamed(found)
        if found := [each for each in heads if isinstance(each[1], p.Copy | p.Copies)]:
            return found, [p.Copies(*_copies(step for _, step in found))]
        if found := [each for each in heads if isinstance(each[1], p.Execute)]:
            sets = [step.compute_set for _, step in found if isinstance(step, p.Execute)]
            return found, [p.Execute(self.graph.join(sets, several([each.name for each in sets])))]
        if found := [each for each in heads if isinstance(each[1], p.Repeat)]:
            return self._repeated(found)
        if found := [each for each in heads if not isinstance(each[1], p.StreamCopy)]:
            return found[:1], [found[0][1]]
        return self._streamed(heads)

    def _repeated(self, heads: Heads) -> tuple[Heads, list[p.Program]]:
        """Loops of as many rounds as the first one's."""
        loops = [(some, loop) for some, loop in heads if isinstance(loop, p.Repeat)]
        first = loops[0][1]
        alike = [(some, loop) for some, loop in loops if (loop.count, loop.backwards) == (first.count, first.backwards)]
        body = p.Sequence(*self.together([loop.body for _, loop in alike]))
        return [(some, loop) for some, loop in alike], [replace(first, body=body)]

    def _streamed(self, heads: Heads) -> tuple[Heads, list[p.Program]]:
        """Transfers with the host that are one with the first one's."""
        moves = [(some, step) for some, step in heads if isinstance(step, p.StreamCopy)]
        key = self.keys[moves[0][1].stream]
        alike = [(some, step) for some, step in moves if self.keys[step.stream] == key]
        each = [step for _, step in alike]
        taken: Heads = [(some, step) for some, step in alike]
        whose = tuple(self.streams[step.stream] for step in each)
        stream, tensors = each[0].stream, [step.tensor for step in each]
        place = self.feeds if stream.to_device else self.results
        shared = stream.to_device and isinstance(key, tuple) and key[0] is True
        if shared or len(each) == 1:
            stream = replace(stream, name=self._named(stream))
            place[stream] = whose
            copies = [p.Copy(tensors[0], tensor, stream.name) for tensor in tensors[1:] if tensor.size]
            return taken, [replace(each[0], stream=stream), *([p.Copies(*copies)] if copies else [])]
        beside, parts = self._beside(stream, tensors)
        name = several([self._named(step.stream) for step in each])
        one = DataStream(name, stream.format, beside.shape, stream.to_device)
        place[one] = whose
        pairs = zip(parts, tensors, strict=True)
        if stream.to_device:
            copies = [p.Copy(part, tensor, name) for part, tensor in pairs]
            return taken, [p.StreamCopy(one, beside), p.Copies(*copies)]
        copies = [p.Copy(tensor, part, name) for part, tensor in pairs]
        return taken, [p.Copies(*copies), p.StreamCopy(one, beside)]

    def _named(self, stream: DataStream) -> str:
        """The name of a stream; of a result, which is one clone's, with the clone's, as steps have it."""
        if stream.to_device:
            return stream.name
        return f"{RESULT}{self.names[self.streams[stream][0]]}.{stream.name.removeprefix(RESULT)}"

    def _beside(self, stream: DataStream, tensors: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """A variable on the first clone's first tile that has the elements of all, and their places in it."""
        sizes = [tensor.size for tensor in tensors]
        made = self.graph.add_variable(stream.format, (sum(sizes),), f"{stream.name} of {len(sizes)}")
        self.graph.set_tile_mapping(made, 0)
        ends = np.cumsum(sizes).tolist()
        parts = zip(tensors, ends, strict=True)
        return made, [made[end - tensor.size : end].reshape(tensor.shape) for tensor, end in parts]


def _called(program: p.Program, name: str) -> p.Program:
    """The program with a name before those of its copies, as those of its compute sets have it."""
    match program:
        case p.Sequence(steps):
            return p.Sequence(*(_called(step, name) for step in steps))
        case p.Copy():
            return replace(program, name=f"{name}.{program.name}")
        case p.Copies(copies):
            return p.Copies(*(replace(copy, name=f"{name}.{copy.name}") for copy in copies))
        case p.Repeat(_, body):
            return replace(program, body=_called(body, name))
        case p.If(_, then, otherwise):
            return replace(program, then=_called(then, name), otherwise=_called(otherwise, name))
    return program


def _flat(program: p.Program) -> Iterator[p.Program]:
    """The steps of a program in order."""
    if isinstance(program, p.Sequence):
        for step in program.steps:
            yield from _flat(step)
    else:
        yield program


def _copies(steps: Iterable[p.Program]) -> Iterator[p.Copy]:
    """Copies that are all of other programs, and so of one phase."""
    for step in steps:
        if isinstance(step, p.Copies):
            yield from step.copies
        elif isinstance(step, p.Copy):
            yield step


def _feeds(step: p.Program) -> bool:
    return isinstance(step, p.StreamCopy) and step.stream.to_device
