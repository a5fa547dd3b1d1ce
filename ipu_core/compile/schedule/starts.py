"""Starts: on which tile each array of a Block begins.

From tile 0, unless memory is short: then arrays that leave tiles empty begin where the one before ended, as PopART lays
a tensor from where it laid the last (`LinearMapper` in its popx/linearmapper.cpp; the mapping of PopLibs that it turns
begins at tile 0). Arrays of as many elements, with as many to a tile, begin on one tile, so that work element by
element finds its operands at home; PopLibs derives the first tile of a convolution's operands from its sizes.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np

from ipu_core.chip.integers import Ints
from ipu_core.chip.target import Target
from ipu_core.compile.constants import held_constants
from ipu_core.ir.block import Block, Type, Var, dtype_of, per_block
from ipu_core.ir.bodies import equations_of
from ipu_core.ir.liveness.occupancy import occupancy
from ipu_core.ir.liveness.stays import Stay, stays
from ipu_core.placement.layout import Starts, linear_layout
from lowprec.integers import ceil_div

WORD: Final = 8  # bytes
CROWDED: Final = 2  # memory is short where the values need more than one part in so many of the fullest tile [model]
SPREAD: Final = 16  # an array leaves tiles empty that lies on fewer than all but one part in so many


class Lies(NamedTuple):
    """How arrays lie, those of all stays of a Block: an entry for each.

    Attributes:
        size, chunk: elements, and those on a tile.
        item: bytes of an element.
    """

    size: Ints
    chunk: Ints
    item: Ints

    def bytes_on(self, chunk: Ints | int) -> Ints:
        """Bytes of the chunk of a number, in whole words as an engine pads them."""
        elements = np.clip(self.size - chunk * self.chunk, 0, self.chunk)
        words: Ints = ceil_div(elements * self.item, WORD)
        return words * WORD


@per_block
def ordered_stays(block: Block) -> tuple[Stay, ...]:
    """The stays of a Block by their beginning."""
    return tuple(sorted(stays(block), key=lambda stay: stay.first))


def lies_of(block: Block, target: Target) -> Lies:
    """How the arrays of `ordered_stays` lie; one that an equal constant stands for has no elements."""
    held = held_constants(block)

    def lies(var: Var) -> tuple[int, int, int]:
        kind: Type = held[var].type if var in held else var.type
        layout = linear_layout(target, kind.shape)
        there = var not in held or held[var].first is var
        return layout.size * there, layout.chunk, dtype_of(kind.format).itemsize

    found = np.array([lies(stay.var) for stay in ordered_stays(block)], np.int64).reshape(-1, 3)
    return Lies(*found.T)


@per_block
def starts(block: Block, target: Target, short: bool = False) -> Starts:
    """The tiles where arrays begin that do not at tile 0.

    Args:
        block: typed.
        target: the chip.
        short: whether memory turned out to be short, however little the values need.
    """
    lies, count = lies_of(block, target), len(equations_of(block)) + 1
    spans = [(stay.first + 1, stay.last) for stay in ordered_stays(block)]
    needed = int(occupancy(spans, lies.bytes_on(0).tolist(), count).max())
    if not short and needed * CROWDED <= target.tile_memory:
        return {}
    found, at, pair = dict[tuple[int, int], int](), 0, target.tiles_per_supertile
    for size, chunk in zip(lies.size.tolist(), lies.chunk.tolist(), strict=True):
        tiles = ceil_div(size, chunk)
        if (size, chunk) in found or not 0 < tiles * SPREAD < target.tiles * (SPREAD - 1):
            continue
        found[size, chunk] = at
        at = ceil_div(at + tiles, pair) * pair % target.tiles
    return {key: first for key, first in found.items() if first}


@lru_cache(maxsize=256)
def tile_bytes(target: Target, kind: Type) -> int:
    """Bytes of an array on the tile where it begins, in whole words as an engine pads them."""
    most = min(kind.size, linear_layout(target, kind.shape).chunk) * dtype_of(kind.format).itemsize
    return ceil_div(most, WORD) * WORD


def fullest_tiles(block: Block, target: Target, begin: Starts) -> Iterator[tuple[int, Ints]]:
    """The tiles of which one is the fullest at any time, each with its bytes of `ordered_stays`.

    Where nothing begins a tile has no more of any array than the one before it.
    """
    lies = lies_of(block, target)
    keys = zip(lies.size.tolist(), lies.chunk.tolist(), strict=True)
    first = np.array([begin.get(key, 0) for key in keys], np.int64)
    for tile in sorted({0, *begin.values()}):
        yield tile, lies.bytes_on((tile - first) % target.tiles)
