"""Blocks: an axis cut over tiles, and every tile's block in pieces that it takes in turns."""

from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

from lowprec.integers import ceil_div

COLUMN_GRAIN: Final = 16  # columns are cut in whole groups of AMP output channels


class Segment(NamedTuple):
    """Equally long runs of an axis: run i is [start + i*step, start + i*step + length), of block first + i."""

    first: int
    runs: int
    start: int
    step: int
    length: int


@dataclass(frozen=True)
class Blocks:
    """One axis of `size` numbers cut into blocks of `block` (the last may be short), each worked off in pieces,
    one in every turn.

    Attributes:
        size: numbers along the axis.
        block: numbers per tile.
        piece: numbers per turn.
    """

    size: int
    block: int
    piece: int

    @cached_property
    def count(self) -> int:
        """Blocks that are not empty."""
        return ceil_div(self.size, self.block) if self.size else 0

    @cached_property
    def turns(self) -> int:
        """Pieces of a whole block."""
        return ceil_div(self.block, self.piece)

    def segments(self, piece: int = 0) -> tuple[Segment, ...]:
        """What a turn covers: the whole blocks, then the short last one; at most two, none of them empty."""
        skip = piece * self.piece
        whole, rest = divmod(self.size, self.block)
        length, last = min(self.piece, self.block - skip), max(0, min(self.piece, rest - skip))
        if last == length:
            return (Segment(0, whole + 1, skip, self.block, length),)
        found = (
            Segment(0, whole, skip, self.block, length),
            Segment(whole, 1, whole * self.block + skip, self.block, last),
        )
        return tuple(segment for segment in found if segment.runs and segment.length > 0)

    @staticmethod
    def cut(size: int, cuts: int, turns: int, grain: int) -> "Blocks":
        """Cuts into at most `cuts` blocks of at most `turns` pieces, all of whole grains but the last."""
        grains = max(1, ceil_div(size, grain))
        block = ceil_div(grains, cuts)
        return Blocks(size, block * grain, ceil_div(block, turns) * grain)
