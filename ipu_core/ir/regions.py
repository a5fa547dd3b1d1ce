"""The kinds of region that there are: a loop over parts of a batch, a loop along places, and a branch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from ipu_core.ir.block import Literal, Note, Region, Var, typed
from lowprec import Key


@dataclass(frozen=True, eq=False)
class Loop(Region):
    """A body that runs several times; each time from the carries of the time before. Its values are the last ones.

    Attributes:
        count: how often. The key of an iteration is `iteration_key`.
        fed: (whole, part): inputs of the Block that hold the parts of all iterations one after the other along
            the first axis, each with the body's value for the part of an iteration.
        carries: (value before an iteration, value after it), zeros before the first.
    """

    count: int
    fed: tuple[tuple[Var, Var], ...]
    carries: tuple[tuple[Var, Var], ...]

    @property
    def operands(self) -> tuple[Var, ...]:
        """What is fed."""
        return tuple(whole for whole, _ in self.fed)

    @property
    def own(self) -> tuple[Var, ...]:
        """The parts of an iteration, and the carries before it."""
        return (*(part for _, part in self.fed), *(before for before, _ in self.carries))

    @property
    def ends(self) -> tuple[Var, ...]:
        """The carries after an iteration."""
        return tuple(after for _, after in self.carries)

    @property
    def results(self) -> tuple[Var, ...]:
        """The carries after the last iteration."""
        return self.ends

    @property
    def stand_ins(self) -> Mapping[Var, Var]:
        """Of what is fed only the part of an iteration is in memory at a time."""
        return dict(self.fed)

    def carrying(self, *pairs: tuple[Var, Var]) -> Self:
        """The same with more carries, which begin as zeros."""
        return replace(self, carries=(*self.carries, *pairs))

    def part(self, part: Var, whole: Any, number: int) -> Any:
        """An iteration's part of what is fed."""
        rows = part.type.shape[0]
        return whole[number * rows : (number + 1) * rows]

    def lines(self, note: Note) -> Iterator[str]:
        """How often, of what, the body, and what goes on to the next iteration."""
        fed = ", ".join(str(part) for _, part in self.fed)
        yield f"{self.count} iterations, each with its part of {fed}, from zeros:"
        yield from Region.lines(self, note)
        yield from (f"  {typed(before)} <- {after}" for before, after in self.carries)


@dataclass(frozen=True, eq=False)
class Scan(Loop):
    """A loop along places, whose carries begin with given values and whose body knows its place; nothing is fed.

    What a place reads of an array is a row that it gathers at `place`, what it leaves a row that it sets there, in a
    carry: so both are equations, which every pass knows.

    Attributes:
        starts: what the carries are before the first place.
        place: the number of the place, one int32 in an array; it decides the key too (`iteration_key`).
        backwards: whether the last place comes first, as in the gradient of a scan.
    """

    starts: tuple[Var | Literal, ...] = ()
    place: Var = field(kw_only=True)
    backwards: bool = False

    @property
    def operands(self) -> tuple[Var, ...]:
        """What the carries begin with."""
        return tuple(dict.fromkeys(start for start in self.starts if isinstance(start, Var)))

    @property
    def own(self) -> tuple[Var, ...]:
        """The place, and the carries before it."""
        return (self.place, *(before for before, _ in self.carries))

    def carrying(self, *pairs: tuple[Var, Var]) -> Self:
        """The same with more carries, which begin as zeros."""
        starts = (*self.starts, *(Literal(0.0) for _ in pairs))
        return replace(self, carries=(*self.carries, *pairs), starts=starts)

    @property
    def places(self) -> range:
        """The numbers of the places, in the order in which they come."""
        return range(self.count)[::-1] if self.backwards else range(self.count)

    def lines(self, note: Note) -> Iterator[str]:
        """How often, from what, the body, and what goes on to the next place."""
        order = ", the last first" if self.backwards else ""
        begin = ", ".join(f"{before} = {start}" for (before, _), start in zip(self.carries, self.starts, strict=True))
        yield f"{self.count} places, {self.place}{order}, from {begin}:"
        yield from Region.lines(self, note)
        yield from (f"  {typed(before)} <- {after}" for before, after in self.carries)


@dataclass(frozen=True, eq=False)
class Branch(Region):
    """A body that runs only if a flag is not 0. Values made in it, or before, are then chosen in place of old ones.

    Attributes:
        flag: one number.
        chosen: (result, new, old): an output of the Block, which is the new value if the flag is not 0, else the old
            one, the carried input in its place.
        names: what is checked, by position in the Block's last output, which holds 1 for what made the flag 0.
        beside: whether what is streamed of the state is made before and stored beside its old value, which stays until
            the flag is known; only machines have such memory.
    """

    flag: Var
    chosen: tuple[tuple[Var, Var, Var], ...]
    names: tuple[str, ...] = ()
    beside: bool = False

    @property
    def operands(self) -> tuple[Var, ...]:
        """The flag, and the old values."""
        return (self.flag, *(old for _, _, old in self.chosen))

    @property
    def ends(self) -> tuple[Var, ...]:
        """The new values."""
        return tuple(new for _, new, _ in self.chosen)

    @property
    def results(self) -> tuple[Var, ...]:
        """The chosen values."""
        return tuple(result for result, _, _ in self.chosen)

    @property
    def stand_ins(self) -> Mapping[Var, Var]:
        """What is new is written over the old state in the end, and need not be moved before."""
        return {result: new for result, new, _ in self.chosen}

    def lines(self, note: Note) -> Iterator[str]:
        """The flag and the body."""
        yield f"if {self.flag}, else the state stays as it was:"
        yield from Region.lines(self, note)


def iteration_key(key: Key, number: int, depth: int = 1) -> Key:
    """The key of an iteration of a loop, or of a place of a scan, from that of what is around it.

    The first one's is the key itself; equations outside take the step's. It is the rule of a machine's `Repeat`.

    Args:
        key: of the step, or of the iteration around.
        number: of the iteration, or of the place, from 0.
        depth: how many loops are around the body: 1 in the outermost.
    """
    return key.fold_in((depth << 32) + number) if number else key


def path_key(key: Key, path: Sequence[int]) -> Key:
    """The key of an iteration in loops in loops, by the number of each, the outermost first."""
    for depth, number in enumerate(path, 1):
        key = iteration_key(key, number, depth)
    return key
