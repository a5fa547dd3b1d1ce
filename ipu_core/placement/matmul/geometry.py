"""The grid of a product on tiles: a Placement made concrete for its sizes; planner and graph builder both read it."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np

from ipu_core.chip.integers import Ints
from ipu_core.placement.axis_blocks import Blocks, Segment
from ipu_core.placement.cuts import PlacementProblem
from ipu_core.placement.matmul.placement import Placement
from ipu_core.placement.matmul.product import Product
from lowprec.integers import ceil_div


class Turn(NamedTuple):
    """What all tiles work off at a time: a piece of their blocks.

    Attributes:
        rows, columns: which piece of every block of rows and of columns.
        load_a, load_b: whether the held operand must be sent for it.
        part, depth: which of the parts of every tile, and which piece of their k's.
        first, last: whether it is the first or last turn of its piece of rows and columns.
    """

    rows: int
    columns: int
    load_a: bool
    load_b: bool
    part: int = 0
    depth: int = 0
    first: bool = True
    last: bool = True


class TurnGroup(NamedTuple):
    """Vertices of one shape in a turn (for every product of a batch).

    Attributes:
        parts: numbers of the parts, and their k's in this turn.
        rows, columns: of the blocks.
        apart: from the number of one vertex's part to the next one's.
    """

    parts: Segment
    rows: Segment
    columns: Segment
    apart: int


@dataclass(frozen=True)
class Geometry:
    """Blocks along every axis of a product (batch, m, k) x (batch, k, n).

    Attributes:
        batch, rows, columns: blocks over tiles, and pieces in time for rows and columns.
        parts: blocks over tiles of the Accumulation's parts, and pieces in time.
        spans: first and last of the k's of each part.
        depth: k's of a part that are worked off in a turn: whole groups, or the whole part.
        rows_fastest: whether tile numbers run fastest along rows.
        hold: operand whose piece stays on the tile: "none", "a" or "b".
        first: the tile of the first block.
        around: tiles of the chip: after the last one comes tile 0.
    """

    batch: Blocks
    rows: Blocks
    columns: Blocks
    parts: Blocks
    spans: tuple[tuple[int, int], ...]
    depth: int
    rows_fastest: bool
    hold: str
    first: int = 0
    around: int = 1 << 31

    @cached_property
    def grid(self) -> tuple[int, int, int, int]:
        """Blocks along (batch, parts, rows, columns)."""
        return self.batch.count, self.parts.count, self.rows.count, self.columns.count

    @cached_property
    def tiles(self) -> int:
        """How many tiles are in use, from `first` on."""
        return int(np.prod(self.grid))

    @cached_property
    def share(self) -> int:
        """Rows of a block's piece that each of its tiles sums the parts of."""
        return max(1, ceil_div(self.rows.piece, max(1, self.parts.count)))

    @cached_property
    def spreads(self) -> bool:
        """Whether tiles share the runs of parts and the columns of a single row, see `spread`, and not its rows."""
        return self.batch.size == 1 and self.rows.size == 1 and self.parts.count > 1

    def tile(self, batch: Ints, part: Ints, row: Ints, column: Ints) -> Ints:
        """The tile of a block, given its place along each axis of the grid (arrays that broadcast)."""
        _, parts, rows, columns = self.grid
        inner = column * rows + row if self.rows_fastest else row * columns + column
        return (self.first + (batch * parts + part) * (rows * columns) + inner) % self.around

    @property
    def chunk(self) -> int:
        """k's of a whole part."""
        return self.spans[0][1] - self.spans[0][0]

    @cached_property
    def depths(self) -> int:
        """Pieces in which the k's of a whole part are worked off."""
        return max(1, ceil_div(self.chunk, max(1, self.depth)))

    def span(self, length: int, depth: int) -> int:
        """How many k's of a part of this length the piece `depth` covers."""
        return max(0, min(self.depth, length - depth * self.depth))

    def turns(self) -> Iterator[Turn]:
        """The turns in order; the held operand is loaded only when its piece changes."""
        rows, columns = self.rows.turns, self.columns.turns
        # Pieces of the held operand go by in the outer loop: each is loaded once, and stays while all of the other's
        # pass.
        if self.hold == "b":
            order = [(i, j, True, i == 0) for j in range(columns) for i in range(rows)]
        else:
            held = self.hold == "a"
            order = [(i, j, j == 0 or not held, True) for i in range(rows) for j in range(columns)]
        pieces = [(part, depth) for part in range(self.parts.turns) for depth in range(self.depths)]
        for i, j, load_a, load_b in order:
            for number, piece in enumerate(pieces):
                first, last = number == 0, number == len(pieces) - 1
                yield Turn(i, j, load_a and first, load_b and first, *piece, first, last)

    def groups(self, turn: Turn) -> Iterator[TurnGroup]:
        """The vertices of a turn by shape, at most 8 groups; parts and products of a batch are single vertices.

        With a batch, or with several parts of a tile in a turn that are not all of them, every part is a group of its
        own (vertices have at most three axes).
        """
        for parts, apart in self.part_segments(turn):
            for rows in self.rows.segments(turn.rows):
                for columns in self.columns.segments(turn.columns):
                    yield TurnGroup(parts, rows, columns, apart)

    def part_segments(self, turn: Turn) -> Iterator[tuple[Segment, int]]:
        """Parts of equal length in a turn, and from the number of one to the next: `start`, `length` are their k's."""
        last = self.spans[-1][1] - self.spans[-1][0]
        size, whole = self.parts.size, self.parts.size - (last < self.chunk)
        for first, apart in self._first_parts(turn):
            numbers = range(first, size, apart)
            even = len(range(first, whole, apart))
            # The last part may be short, and is a group of its own then: vertices of a group have one shape.
            for found, length in ((numbers[:even], self.chunk), (numbers[even:], last)):
                covered = self.span(length, turn.depth)
                if not found or (turn.depth and not covered):
                    continue
                segment = Segment(
                    found[0], len(found), found[0] * self.chunk + turn.depth * self.depth, apart * self.chunk, covered
                )
                yield from self._by_batch(segment, apart)

    def _first_parts(self, turn: Turn) -> list[tuple[int, int]]:
        """First part of every run of parts that tiles work on together, and from one part of a run to the next."""
        if self.parts.turns == 1:
            return [(0, 1)]
        start = turn.part * self.parts.piece
        return [(part, self.parts.block) for part in range(start, min(start + self.parts.piece, self.parts.block))]

    def _by_batch(self, parts: Segment, apart: int) -> Iterator[tuple[Segment, int]]:
        if self.batch.size == 1:
            yield parts, apart
            return
        for i in range(parts.runs):
            yield parts._replace(first=parts.first + i * apart, runs=1, start=parts.start + i * parts.step), apart

    def words(self) -> str:
        """The blocks in words."""
        pieces = (
            ""
            if self.rows.turns * self.columns.turns == 1
            else (f" in pieces of {self.rows.piece} x {self.columns.piece}")
        )
        serial = ""
        if self.parts.turns > 1 or self.depths > 1:
            serial = f", {self.depth} k's of {self.parts.piece if self.depths == 1 else 1} at a time"
        return (
            f"{self.tiles} tiles, each {self.rows.block} rows x {self.columns.block} columns{pieces} "
            f"x {self.parts.block} of {self.parts.size} parts of {self.chunk}{serial}"
        )


@lru_cache(maxsize=512)
def geometry(problem: PlacementProblem[Product], placement: Placement) -> Geometry:
    """The grid of a Placement of a product.

    Raises:
        ValueError: the Placement needs more tiles than the target has.
    """
    target, product, accumulation = problem
    # A sum without terms has one empty part: its zeros are written all the same.
    spans = accumulation.parts(product.k) or ((0, 0),)
    parts = Blocks.cut(len(spans), placement.parts, placement.serial_depth, 1)
    whole = spans[0][1] - spans[0][0]
    result = Geometry(
        Blocks.cut(product.batch, placement.batch, 1, 1),
        Blocks.cut(product.m, placement.rows, placement.serial_rows, 1),
        Blocks.cut(product.n, placement.columns, placement.serial_columns, product.grain),
        parts,
        spans,
        _depth(whole, accumulation.group_of(product.k), ceil_div(placement.serial_depth, parts.block)),
        placement.order == "rows",
        placement.hold,
        placement.first,
        target.tiles,
    )
    # Only from where the terms of a sum begin it goes on behind the last tile, as they do.
    first = 0 if product.b is None and placement.first == product.a.first else placement.first
    if first + result.tiles > target.tiles:
        raise ValueError(
            f"the placement ({placement.words()}) of {product.batch} x {product.m} x {product.k} x {product.n} in "
            f"{len(spans)} parts needs {first + result.tiles} tiles; {target.name} has {target.tiles}"
        )
    return result


def _depth(whole: int, group: int, cuts: int) -> int:
    """k's of a piece when a part of `whole` k's is cut in time: whole groups, or the part if it is not cut."""
    groups = ceil_div(whole, group)
    return min(whole, group * ceil_div(groups, cuts)) if cuts > 1 else whole
