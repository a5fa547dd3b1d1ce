"""Starts: on which tile each array of a Block begins.

Arrays that leave tiles empty begin where the one before ended, as PopART lays a tensor from where it laid the last
(`LinearMapper` in its popx/linearmapper.cpp; the mapping of PopLibs that it turns begins at tile 0). Work element by
element finds its operands at home: small arrays that meet in it begin on one tile, and so do all large ones of as many
elements with as many to a tile, whose sums and products then have one plan; PopLibs derives the first tile of a
convolution's operands from its sizes.
"""

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np

from ipu_core.chip.integers import Ints
from ipu_core.chip.target import Target
from ipu_core.compile.constants import held_constants
from ipu_core.compile.labelled import labelled
from ipu_core.ir.block import Block, Type, Var, dtype_of, per_block
from ipu_core.ir.bodies import carries_of, equations_of, outputs_of
from ipu_core.ir.liveness.lifetimes import in_place, lifetimes
from ipu_core.ir.liveness.stays import Stay, occupancy, stays
from ipu_core.ir.ops import ELEMENTWISE
from ipu_core.placement.layout import linear_layout
from lowprec.integers import ceil_div

Starts = Mapping[Var, int]
"""By values in whose memory arrays lie, the tiles where these begin; the others begin at tile 0."""

NOWHERE: Final[Starts] = {}
WORD: Final = 8  # bytes
SMALL: Final = 4  # an array is small that lies on one part in so many of the tiles, or fewer [model]
CROWDED: Final = 2  # values crowd a tile that need more than one part in so many of it
TOGETHER: Final = 64  # tiles that are looked at at a time
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
def ordered_stays(block: Block, target: Target) -> tuple[Stay, ...]:
    """The stays of a Block by their beginning: of what is made, until the last that reads it."""
    found, last = labelled(block, target), dict[Var, int]()
    for position, some in found.used.items():
        last |= {var: max(position, last.get(var, position)) for var in some}
    there = (stay for stay in stays(block) if stay.var not in found.rows)
    until = (stay._replace(last=max(stay.last, last.get(stay.var, stay.last))) for stay in there)
    return tuple(sorted(until, key=lambda stay: stay.first))


def lies_of(block: Block, target: Target) -> Lies:
    """How the arrays of `ordered_stays` lie; one that an equal constant stands for has no elements."""
    held = held_constants(block)

    def lies(var: Var) -> tuple[int, int, int]:
        kind: Type = held[var].type if var in held else var.type
        layout = linear_layout(target, kind.shape)
        there = var not in held or held[var].first is var
        return layout.size * there, layout.chunk, dtype_of(kind.format).itemsize

    found = np.array([lies(stay.var) for stay in ordered_stays(block, target)], np.int64).reshape(-1, 3)
    return Lies(*found.T)


@per_block
def starts(block: Block, target: Target) -> Starts:
    """The tiles where arrays begin that do not at tile 0, by the values in whose memory they lie.

    Where the values need more than half of the fullest tile small arrays begin as large ones do, if it is emptier then.

    Args:
        block: typed.
        target: the chip.
    """
    begin = _begun(block, target, _kin(block))
    if CROWDED * (needed := _needed(block, target, begin)) <= target.tile_memory:
        return begin
    other = _begun(block, target, None)
    return other if _needed(block, target, other) < needed else begin


def _begun(block: Block, target: Target, kin: Mapping[Var, Var] | None) -> Starts:
    """Where arrays begin; small ones with their kin, or without as all of their size do."""
    lies = lies_of(block, target)
    begun, found, at, pair = dict[tuple[Var | None, int, int], int](), dict[Var, int](), 0, target.tiles_per_supertile
    sizes = zip(lies.size.tolist(), lies.chunk.tolist(), strict=True)
    for stay, (size, chunk) in zip(ordered_stays(block, target), sizes, strict=True):
        tiles = ceil_div(size, chunk)
        if not 0 < tiles * SPREAD < target.tiles * (SPREAD - 1):
            continue
        small = kin is not None and tiles * SMALL <= target.tiles
        key = kin.get(stay.var, stay.var) if small and kin is not None else None, size, chunk
        if key not in begun:
            begun[key] = at
            at = ceil_div(at + tiles, pair) * pair % target.tiles
        found[stay.var] = begun[key]
    for new, old in in_place(block).items():
        found[new] = found.get(old, 0)
    return {var: first for var, first in found.items() if first}


def _needed(block: Block, target: Target, begin: Starts) -> int:
    """The bytes that the values need of the fullest tile."""
    spans = [(stay.first + 1, stay.last) for stay in ordered_stays(block, target)]
    count = len(equations_of(block)) + 1
    return max(int(occupancy(spans, sizes, count).max()) for _, sizes in fullest_tiles(block, target, begin))


def _kin(block: Block) -> Mapping[Var, Var]:
    """By value that meets others element by element, or is written over them, one that stands for all of them."""
    views, parents = lifetimes(block).views, dict[Var, Var]()

    def eldest(var: Var) -> Var:
        while (above := parents.get(var, var)) is not var:
            parents[var] = parents.get(above, above)
            var = above
        return var

    def meet(some: Var, other: Var) -> None:
        if (first := eldest(views[some].root)) is not (second := eldest(views[other].root)):
            parents[second] = first

    for old, new in [*zip(block.inputs[: block.carried], outputs_of(block), strict=False), *carries_of(block)]:
        meet(old, new)
    for equation in equations_of(block):
        made = equation.output
        for var in equation.operands if equation.op in ELEMENTWISE else ():
            if views[var].whole and var.type.shape == made.type.shape:
                meet(made, var)
    return {var: eldest(var) for var in list(parents)}


@lru_cache(maxsize=256)
def tile_bytes(target: Target, kind: Type) -> int:
    """Bytes of an array on the tile where it begins, in whole words as an engine pads them."""
    most = min(kind.size, linear_layout(target, kind.shape).chunk) * dtype_of(kind.format).itemsize
    return ceil_div(most, WORD) * WORD


def fullest_tiles(block: Block, target: Target, begin: Starts) -> Iterator[tuple[Ints, Ints]]:
    """The tiles of which one is the fullest at any time, some at a time, with their bytes (tiles, `ordered_stays`).

    Where nothing begins a tile has no more of any array than the one before it.
    """
    lies = lies_of(block, target)
    first = np.array([begin.get(stay.var, 0) for stay in ordered_stays(block, target)], np.int64)
    tiles = np.array(sorted({0, *begin.values()}), np.int64)
    for some in np.split(tiles, range(TOGETHER, tiles.size, TOGETHER)):
        yield some, lies.bytes_on((some[:, None] - first) % target.tiles)
