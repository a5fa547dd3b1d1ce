"""The kinds of region that there are: a loop, and a branch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ipu_core.ir.block import Region, Var, typed
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

    def part(self, part: Var, whole: Any, number: int) -> Any:
        """An iteration's part of what is fed."""
        rows = part.type.shape[0]
        return whole[number * rows : (number + 1) * rows]

    def lines(self) -> Iterator[str]:
        """How often, of what, the body, and what goes on to the next iteration."""
        fed = ", ".join(str(part) for _, part in self.fed)
        yield f"{self.count} iterations, each with its part of {fed}, from zeros:"
        yield from Region.lines(self)
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

    def lines(self) -> Iterator[str]:
        """The flag and the body."""
        yield f"if {self.flag}, else the state stays as it was:"
        yield from Region.lines(self)


def iteration_key(key: Key, number: int) -> Key:
    """The key of an iteration of a loop, from that of the step; the first iteration's is the step's own.

    Equations outside take the step's. It is the rule of a machine's `Repeat` that no other encloses.
    """
    return key.fold_in((1 << 32) + number) if number else key
