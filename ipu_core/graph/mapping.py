"""Tile mappings: which tile holds each element of a variable, as sorted intervals of its flat elements."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np

from ipu_core.chip.arrays import digest
from ipu_core.chip.integers import Ints
from ipu_core.errors import MappedTwice, UnmappedTensor
from lowprec.integers import ceil_div


class Pieces(NamedTuple):
    """Runs of elements cut where the tile changes: `run` says which run each piece came from."""

    run: Ints
    starts: Ints
    lengths: Ints
    tiles: Ints


@dataclass(frozen=True, eq=False)
class TileMapping:
    """Interval i holds the elements [starts[i], ends[i]) on tiles[i]; together they are [0, size)."""

    starts: Ints
    ends: Ints
    tiles: Ints

    @cached_property
    def digest(self) -> bytes:
        """The same for mappings that are equal."""
        return digest(np.stack([self.starts, self.ends, self.tiles]))

    def tiles_of(self, elements: Ints) -> Ints:
        """The tile of each flat element index."""
        return self.tiles[np.searchsorted(self.starts, elements, side="right") - 1]

    def elements_per_tile(self, tiles: int) -> Ints:
        """The number of elements on each of `tiles` tiles."""
        counts = np.bincount(self.tiles, weights=self.ends - self.starts, minlength=tiles)
        return counts.astype(np.int64)

    def cut(self, starts: Ints, lengths: Ints) -> Pieces:
        """Cuts runs of elements at the borders of the intervals; empty runs vanish."""
        ends = starts + lengths
        first = np.searchsorted(self.starts, starts, side="right") - 1
        counts = np.searchsorted(self.starts, ends, side="left") - first
        counts[lengths == 0] = 0
        if counts.size and counts.min() == 1 == counts.max():
            return Pieces(np.arange(starts.size), starts, lengths, self.tiles[first])
        run = np.repeat(np.arange(starts.size), counts)
        interval = np.arange(run.size) - np.repeat(np.cumsum(counts) - counts - first, counts)
        begin = np.maximum(starts[run], self.starts[interval])
        end = np.minimum(ends[run], self.ends[interval])
        return Pieces(run, begin, end - begin, self.tiles[interval])


@lru_cache(maxsize=256)
def linear_mapping(size: int, chunk: int, first: int = 0, around: int = 0) -> TileMapping:
    """Chunks of so many elements on tile 0, 1, ..; the last may be short. One for all variables that lie so.

    Args:
        size: elements.
        chunk: elements on a tile.
        first: the tile of the first chunk.
        around: tiles of the chip, after the last of which tile 0 follows; read only where `first` is not 0.
    """
    starts = np.arange(0, size, chunk, dtype=np.int64)
    tiles = np.arange(first, first + starts.size, dtype=np.int64)
    mapping = TileMapping(starts, np.minimum(starts + chunk, size), tiles % around if first else tiles)
    for array in (mapping.starts, mapping.ends, mapping.tiles):
        array.flags.writeable = False
    return mapping


def build_mapping(name: str, size: int, pieces: Sequence[tuple[Ints, Ints, Ints]]) -> TileMapping:
    """Joins pieces (starts, ends, tiles), in any order, into the mapping of a variable of `size` elements.

    Raises:
        UnmappedTensor: an element was given to no tile.
        MappedTwice: an element was given out twice.
    """
    empty = np.zeros(0, np.int64)
    starts, ends, tiles = (np.concatenate([empty, *(piece[i] for piece in pieces)]) for i in range(3))
    keep = ends > starts
    starts, ends, tiles = starts[keep], ends[keep], tiles[keep]
    order = np.argsort(starts, kind="stable")
    starts, ends, tiles = starts[order], ends[order], tiles[order]
    bounds = np.concatenate([starts, np.array([size])])
    before = np.concatenate([np.zeros(1, np.int64), ends])
    if (twice := np.flatnonzero(bounds[1:-1] < before[1:-1])).size:
        i = int(twice[0])
        raise MappedTwice(f"element {starts[i + 1]} of {name} is mapped to tile {tiles[i]} and to tile {tiles[i + 1]}")
    if (gaps := np.flatnonzero(bounds > before)).size:
        missing = int((bounds - before)[gaps].sum())
        raise UnmappedTensor(
            f"{name}: {missing} of {size} elements are mapped to no tile, the first is element {before[gaps[0]]}"
        )
    joins = np.concatenate([np.ones(min(1, starts.size), bool), tiles[1:] != tiles[:-1]])
    last = np.concatenate([joins[1:], np.ones(min(1, starts.size), bool)])
    return TileMapping(starts[joins], ends[last], tiles[joins])


def even_boundaries(size: int, parts: int) -> Ints:
    """Borders of `parts` chunks that differ by at most one: the longer chunks come first."""
    each, extra = divmod(size, parts)
    steps = np.full(parts + 1, each, np.int64)
    steps[1 : extra + 1] += 1
    steps[0] = 0
    return np.cumsum(steps)


def linear_boundaries(size: int, parts: int, grain: int = 1) -> Ints:
    """Borders of at most `parts` chunks of whole grains (the last may be short); chunks that would be empty vanish."""
    grains = ceil_div(size, grain)
    return np.minimum(even_boundaries(grains, max(1, min(parts, grains))) * grain, size)
