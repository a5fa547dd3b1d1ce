"""The grid of a product on tiles: a Placement made concrete for its sizes; planner and graph builder both read it."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ipu_core.plan.accumulation import Accumulation
from ipu_core.plan.placement import Blocks, Placement, Segment
from ipu_core.target import Target

__all__ = ["Geometry", "Group", "Step", "geometry"]

Ints = npt.NDArray[np.int64]


class Step(NamedTuple):
    """One serial step: which piece of every block of rows and of columns, and what must be sent for it."""

    rows: int
    columns: int
    load_a: bool
    load_b: bool


class Group(NamedTuple):
    """Vertices of one shape in a serial step: parts and their k's, rows and columns (for every product of a batch)."""

    parts: Segment
    rows: Segment
    columns: Segment


@dataclass(frozen=True)
class Geometry:
    """Blocks along every axis of a product (batch, m, k) x (batch, k, n).

    Attributes:
        batch, rows, columns: blocks over tiles, and pieces in time for rows and columns.
        parts: blocks over tiles of the Accumulation's parts.
        spans: first and last of the k's of each part.
        rows_fastest: whether tile numbers run fastest along rows.
        hold: operand whose piece stays on the tile: "none", "a" or "b".
    """

    batch: Blocks
    rows: Blocks
    columns: Blocks
    parts: Blocks
    spans: tuple[tuple[int, int], ...]
    rows_fastest: bool
    hold: str

    @property
    def grid(self) -> tuple[int, int, int, int]:
        """Blocks along (batch, parts, rows, columns)."""
        return self.batch.count, self.parts.count, self.rows.count, self.columns.count

    @property
    def tiles(self) -> int:
        """Tiles in use: 0 to this number."""
        return int(np.prod(self.grid))

    @property
    def share(self) -> int:
        """Rows of a block's piece that each of its tiles sums the parts of."""
        return max(1, -(-self.rows.piece // max(1, self.parts.count)))

    def tile(self, batch: Ints, part: Ints, row: Ints, column: Ints) -> Ints:
        """The tile of a block, given its place along each axis of the grid (arrays that broadcast)."""
        _, parts, rows, columns = self.grid
        inner = column * rows + row if self.rows_fastest else row * columns + column
        return (batch * parts + part) * (rows * columns) + inner

    def steps(self) -> Iterator[Step]:
        """The serial steps in order; the held operand is loaded only when its piece changes."""
        rows, columns = self.rows.steps, self.columns.steps
        if self.hold == "b":
            yield from (Step(i, j, True, i == 0) for j in range(columns) for i in range(rows))
        else:
            held = self.hold == "a"
            yield from (Step(i, j, j == 0 or not held, True) for i in range(rows) for j in range(columns))

    def groups(self, step: Step) -> Iterator[Group]:
        """The vertices of a serial step by shape, at most 8 groups; parts and products of a batch are single vertices.

        With a batch every part is a group of its own (vertices have at most three axes).
        """
        for parts in self.part_segments():
            for rows in self.rows.segments(step.rows):
                for columns in self.columns.segments(step.columns):
                    yield Group(parts, rows, columns)

    def part_segments(self) -> Iterator[Segment]:
        """Parts of equal length: `first` and `runs` number parts, `start`, `step` and `length` their k's."""
        spans = self.spans
        chunk, last = spans[0][1] - spans[0][0], spans[-1][1] - spans[-1][0]
        even = len(spans) if last == chunk else len(spans) - 1
        found = [Segment(0, even, 0, chunk, chunk), Segment(even, len(spans) - even, even * chunk, chunk, last)]
        for part in found:
            if self.batch.size == 1 and part.runs:
                yield part
            else:
                yield from (
                    part._replace(first=part.first + i, runs=1, start=part.start + i * chunk) for i in range(part.runs)
                )

    def words(self) -> str:
        """The blocks in words."""
        pieces = (
            ""
            if self.rows.steps * self.columns.steps == 1
            else (f" in pieces of {self.rows.piece} x {self.columns.piece}")
        )
        return (
            f"{self.tiles} tiles, each {self.rows.block} rows x {self.columns.block} columns{pieces} "
            f"x {self.parts.block} of {self.parts.size} parts of {self.spans[0][1] - self.spans[0][0]}"
        )


def geometry(
    target: Target, batch: int, m: int, k: int, n: int, accumulation: Accumulation, placement: Placement, grain: int
) -> Geometry:
    """The grid of a Placement for a product of these sizes, its columns cut in multiples of `grain`.

    Raises:
        ValueError: the Placement needs more tiles than the target has.
    """
    spans = accumulation.parts(k) or ((0, 0),)
    result = Geometry(
        Blocks.cut(batch, placement.batch, 1, 1),
        Blocks.cut(m, placement.rows, placement.serial_rows, 1),
        Blocks.cut(n, placement.columns, placement.serial_columns, grain),
        Blocks.cut(len(spans), placement.parts, 1, 1),
        spans,
        placement.order == "rows",
        placement.hold,
    )
    if result.tiles > target.tiles:
        raise ValueError(
            f"the placement ({placement.words()}) of {batch} x {m} x {k} x {n} in {len(spans)} parts needs "
            f"{result.tiles} tiles; {target.name} has {target.tiles}"
        )
    return result
