"""Layouts: where the elements of an array lie, and how many elements of a box lie on each tile, in closed form."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from ipu_core.chip import cost
from ipu_core.chip.integers import Ints
from ipu_core.chip.target import Target
from lowprec.integers import ceil_div

HALF_BYTES = 2  # layouts are chosen for halves and serve every format, so that a cast never moves an element


@dataclass(frozen=True)
class LinearLayout:
    """An array of rows x columns (all leading axes together x the last) in vertices of contiguous elements.

    Every vertex has `rows` whole rows, or one piece of `columns` elements of a row (the columns then divide the
    row evenly); `per_tile` vertices in turn lie on each tile from the first on. So flat element f lies f // chunk
    tiles on from there; after the last tile comes tile 0.

    Attributes:
        shape: (rows, columns) of the array.
        rows, columns: of one vertex; the last vertex may have fewer rows.
        per_tile: vertices per tile.
        first: the tile where it begins.
        around: tiles of the chip; read only where it does not begin at tile 0.
    """

    shape: tuple[int, int]
    rows: int
    columns: int
    per_tile: int = 1
    first: int = 0
    around: int = 0

    @property
    def chunk(self) -> int:
        """Elements per tile, in C order (the last tile may have fewer)."""
        return self.rows * self.columns * self.per_tile

    @property
    def size(self) -> int:
        """Elements of the array."""
        return self.shape[0] * self.shape[1]

    @property
    def tiles(self) -> int:
        """Tiles in use."""
        return ceil_div(self.size, self.chunk) if self.size else 0

    def tile(self, number: Any) -> Any:
        """The tile of a chunk's number, or of an array of such."""
        return (self.first + number) % self.around if self.first else number

    def words(self) -> str:
        """The layout in words."""
        piece = f"{self.rows} rows" if self.columns == self.shape[1] else f"pieces of {self.columns} columns"
        each = "" if self.per_tile == 1 else f", {self.per_tile} per tile"
        first = f" from tile {self.first}" if self.first else ""
        return f"{self.shape[0]} x {self.shape[1]} linear over {self.tiles} tiles{first} in {piece}{each}"


class Stored(NamedTuple):
    """How an operand of a sum lies: its axes as they are stored, outermost first, and elements per tile in that order.

    The axes are named b (batch), m, k, n; "bkm" is an a whose matrices are stored transposed, "mkn" the terms of a sum.
    The elements begin on tile `first`.
    """

    axes: str
    chunk: int
    first: int = 0


def stored(target: Target, axes: str, sizes: Mapping[str, int]) -> Stored:
    """An operand in the layout every array of its shape gets."""
    return Stored(axes, linear_layout(target, [sizes[axis] for axis in axes]).chunk)


def linear_layout(target: Target, shape: Sequence[int], first: int = 0) -> LinearLayout:
    """The layout every array of that shape gets: fewest cycles for elementwise work on halves, then fewest tiles.

    It depends on the shape, the target and the first tile only, so elementwise operations and casts find their operands
    at home.

    Args:
        target: the chip.
        shape: of the array.
        first: the tile where it begins.
    """
    found = _linear_layout(target, tuple(shape))
    return replace(found, first=first, around=target.tiles) if first else found


@lru_cache(maxsize=1024)
def _linear_layout(target: Target, shape: tuple[int, ...]) -> LinearLayout:
    columns = shape[-1] if shape else 1
    rows = math.prod(shape[:-1]) if shape else 1
    if rows == 1:
        rows, columns = columns, 1  # a vector may be cut anywhere
    size = rows * columns
    if not size:
        return LinearLayout((rows, columns), 1, max(1, columns))
    full = cost.width(HALF_BYTES) * target.workers  # elements that keep every worker busy for one vector
    least = ceil_div(rows, target.tiles)
    # As few rows as all tiles allow; as many as give every worker a vector; and the first rounded up to whole vectors
    # for all workers.
    wanted = {least, max(least, full // columns), full * ceil_div(least * columns, full) // columns}
    pieces = [(1, columns // d, ceil_div(rows * d, target.tiles)) for d in _divisors(columns) if d > 1]
    candidates = np.array([*pieces, *((max(1, min(q, rows)), columns, 1) for q in wanted if q >= least)], np.int64)
    vertex, each = candidates[:, 0] * candidates[:, 1], candidates[:, 2]
    cycles = cost.elementwise(target, "add", vertex, HALF_BYTES) * np.minimum(each, ceil_div(size, vertex))
    best = np.lexsort((each, ceil_div(size, vertex * each), cycles))[0]
    return LinearLayout((rows, columns), *candidates[best].tolist())


def _divisors(n: int) -> list[int]:
    small = [d for d in range(1, math.isqrt(n) + 1) if n % d == 0]
    return small + [n // d for d in reversed(small) if d * d != n]


class Range(NamedTuple):
    """The numbers from lo to hi (exclusive) of every period below `end`, or just once without a period.

    Bounds are ints or arrays; a periodic range starts in the first period.
    """

    lo: Any
    hi: Any
    period: int = 0
    end: int = 1 << 62

    def below(self, x: Any) -> Any:
        """How many of the numbers are smaller than x."""
        length = self.hi - self.lo
        if not self.period:
            return np.minimum(np.maximum(x - self.lo, 0), length)
        x = np.minimum(x, self.end)
        return x // self.period * length + np.minimum(np.maximum(x % self.period - self.lo, 0), length)

    def has(self, x: Any) -> Any:
        """Whether x is one of the numbers."""
        within = x % self.period if self.period else x
        return (self.lo <= within) & (within < self.hi) & (x < self.end)


def owned(
    chunk: int, tiles: int, sizes: Sequence[int], box: Sequence[Range], *, neighbours: bool = False, first: int = 0,
    around: int = 0,
) -> Ints:  # fmt: skip
    """How many elements of a box lie on each of the tiles, when flat element f lies on tile f // chunk.

    Args:
        chunk: elements per tile.
        tiles: how many (even with `neighbours`).
        sizes: the array's axes, outermost first.
        box: one Range per axis; its bounds may be arrays with an entry per tile.
        neighbours: count for each tile what lies on the other tile of its pair.
        first: the tile of element 0; after tile `around` - 1 comes tile 0.
        around: tiles of the chip; read only where `first` is not 0.
    """
    # Elements of the box before a flat position, at both borders of each tile: their difference is the tile's. Listing
    # elements would take memory for each.
    borders = _digits(chunk, tiles, tuple(sizes), neighbours, first, around)
    counts = [axis.below(size) if axis.period else axis.hi - axis.lo for size, axis in zip(sizes, box, strict=True)]
    result: Any = 0
    inside: Any = True
    for i, (at, size, axis) in enumerate(zip(borders, sizes, box, strict=True)):
        everything = not axis.period and isinstance(axis.lo, int) and axis.lo == 0 and axis.hi == size
        result = result + inside * (at if everything else axis.below(at)) * math.prod(counts[i + 1 :])
        inside = inside & (at < size if everything else axis.has(at))
    counted: Ints = np.asarray(result[1] - result[0], np.int64)
    return counted


@lru_cache(maxsize=64)
def _digits(chunk: int, tiles: int, sizes: tuple[int, ...], neighbours: bool, first: int, around: int) -> list[Ints]:
    """For each axis the index at the first element of every tile, and behind its last one: (2, tiles)."""
    size = math.prod(sizes)
    numbers = np.arange(tiles, dtype=np.int64)
    # Tiles of a pair differ in their last bit.
    numbers = numbers ^ 1 if neighbours else numbers
    if first:
        # Beyond the chip's last tile is at most the missing half of its pair, which has nothing.
        numbers = np.where(numbers < around, (numbers - first) % around, size)
    start = np.minimum(numbers * chunk, size)
    left = np.stack([start, np.minimum(start + chunk, size)])
    digits = []
    for i in range(len(sizes)):
        stride = math.prod(sizes[i + 1 :])
        digits.append(left // stride if stride else left)
        left = left - digits[-1] * stride
    return digits
