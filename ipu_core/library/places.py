"""Tables with a row for each place of a loop: a tile has some columns of the rows, of a run of them where many are.

So a place finds and leaves its row without that any other moves, as in PopLibs' `dynamicSlice` and `dynamicUpdate` of
tensors that are spread along the other axes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ipu_core.chip import cost, tile_integers, tile_scatter
from ipu_core.chip.integers import Ints
from ipu_core.chip.target import Target
from ipu_core.graph.codelet import Codelet, InOut, Input, Param
from ipu_core.graph.graph import Graph
from ipu_core.graph.program import Copy, Execute, Program, WriteUndef
from ipu_core.graph.tensor import Tensor, element_type
from ipu_core.library.tables import Choose, ColumnCut, Gather, column_cuts, rows_each, run_tiles
from lowprec.integers import ceil_div


class SetRow(Codelet):
    """One row of a table, if its number lies in a run of the rows."""

    trusted = True
    supervisor = True
    row = Input(None, ndim=2)
    place = Input("int32", ndim=1)
    first = Param()
    rows = Param()
    table = InOut(None, ndim=2)

    def compute(self) -> None:
        """Copies the row; the others stay as they are."""
        places, here = tile_scatter.in_run(self.place[0], self.first, self.table.shape[-2], self.rows)
        self.table[..., places[here], :] = self.row[..., here, :]

    def cycles(self, target: Target) -> Any:
        """Cycles of each vertex, as if the row were in its run."""
        return cost.copy_rows(target, 1, self.row.shape[-1], self.row.itemsize)


class Advance(Codelet):
    """A counter, on its way to the next number."""

    trusted = True
    supervisor = True
    step = Param()
    place = InOut("int32", ndim=1)

    def compute(self) -> None:
        """Adds."""
        tile_integers.advance(self.place, self.step)

    def cycles(self, target: Target) -> Any:
        """Cycles of each vertex."""
        return cost.copy_rows(target, 1, 1, 4)


@dataclass(frozen=True)
class TableBlock:
    """Some columns of a run of the rows of a table.

    Attributes:
        cut: which columns, and the tiles that share them.
        top: the first row.
        tiles: that have them.
        lies: (tiles, rows, columns).
    """

    cut: ColumnCut
    top: int
    tiles: Ints
    lies: Tensor


@dataclass(frozen=True)
class PlaceTable:
    """A table whose rows are found and left one at a time.

    Attributes:
        graph: where it is.
        shape: rows and columns.
        name: of its variables and compute sets.
        blocks: what lies where; those of a run of the rows together.
        each: the rows of a run.
    """

    graph: Graph
    shape: tuple[int, int]
    name: str
    blocks: tuple[TableBlock, ...]
    each: int

    @staticmethod
    def add(graph: Graph, fmt: Any, shape: tuple[int, int], name: str) -> PlaceTable:
        """A new one, with nothing in it yet."""
        rows, columns = shape
        cuts = column_cuts(graph.target, columns)
        each = rows_each(graph.target, rows, element_type(fmt)[1].itemsize, cuts)
        blocks = []
        for number, top in enumerate(range(0, rows, each)):
            for cut in cuts:
                tiles, here = run_tiles(cuts, cut, number), min(each, rows - top)
                lies = graph.add_variable(fmt, (tiles.size, here, cut.columns), name, temporary=True)
                graph.map_intervals(lies, np.arange(tiles.size) * here * cut.columns, tiles)
                blocks.append(TableBlock(cut, top, tiles, lies))
        return PlaceTable(graph, shape, name, tuple(blocks), each)

    def undefined(self) -> list[Program]:
        """Says that nothing of it is needed from before."""
        return [WriteUndef(block.lies) for block in self.blocks]

    def filled(self, rows: Tensor) -> list[Program]:
        """Copies all rows into it."""
        return [Copy(self._seen(rows, block), block.lies, self.name) for block in self.blocks]

    def shown(self, rows: Tensor) -> list[Program]:
        """Copies all rows out of it."""
        return [Copy(block.lies, self._seen(rows, block), self.name) for block in self.blocks]

    def _seen(self, rows: Tensor, block: TableBlock) -> Tensor:
        return block.cut.of(rows[block.top : block.top + block.lies.shape[1]])

    def set_row(self, row: Tensor, place: Tensor, name: str) -> list[Program]:
        """Leaves a row, (1, columns), at a place."""
        compute_set = self.graph.add_compute_set(name)
        for block in self.blocks:
            fields = {"row": block.cut.of(row), "place": block.cut.shared(place), "table": block.lies}
            self.graph.add_vertices(
                compute_set, SetRow, block.tiles, fields, {"first": block.top, "rows": self.shape[0]}
            )
        return [Execute(compute_set)]

    def row_at(self, place: Tensor, out: Tensor, name: str) -> list[Program]:
        """Finds the row of a place; `out` is (1, columns)."""
        compute_set, rows = self.graph.add_compute_set(name), self.shape[0]
        runs = ceil_div(rows, self.each)
        found = [self._found(out, cut, runs, f"{name}: found") if runs > 1 else cut.of(out)[None] for cut in self._cuts]
        for block in self.blocks:
            to = found[self._cuts.index(block.cut)][block.top // self.each]
            fields = {"table": block.lies, "indices": block.cut.shared(place), "out": to}
            self.graph.add_vertices(compute_set, Gather, block.tiles, fields, {"first": block.top, "rows": rows})
        if runs == 1:
            return [Execute(compute_set)]
        choice = self.graph.add_compute_set(f"{name}: choice")
        for cut, rows_found in zip(self._cuts, found, strict=True):
            fields = {"found": rows_found.transpose(1, 0, 2, 3), "indices": cut.shared(place), "out": cut.of(out)}
            self.graph.add_vertices(choice, Choose, cut.tiles, fields, {"each": self.each, "rows": rows})
        return [Execute(compute_set), Execute(choice)]

    @property
    def _cuts(self) -> list[ColumnCut]:
        return [block.cut for block in self.blocks if block.top == 0]

    def _found(self, out: Tensor, cut: ColumnCut, runs: int, name: str) -> Tensor:
        """What each run finds, on the tiles that have it."""
        found = self.graph.add_variable(out.format, (runs, cut.tiles.size, 1, cut.columns), name, temporary=True)
        homes = np.concatenate([block.tiles for block in self.blocks if block.cut is cut])
        self.graph.map_intervals(found, np.arange(homes.size) * cut.columns, homes)
        return found


def advance(graph: Graph, place: Tensor, step: int, name: str) -> list[Program]:
    """Adds what moves a counter on."""
    compute_set = graph.add_compute_set(name)
    graph.add_vertices(compute_set, Advance, [0], {"place": place[None]}, {"step": step})
    return [Execute(compute_set)]


def set_row(graph: Graph, row: Tensor, place: Tensor, table: Tensor, name: str) -> list[Program]:
    """Adds table[place] = row, for a table (rows, columns) that lies anyhow."""
    compute_set = graph.add_compute_set(name)
    for cut in column_cuts(graph.target, table.shape[1]):
        fields = {"row": cut.of(row), "place": cut.shared(place), "table": cut.of(table)}
        graph.add_vertices(compute_set, SetRow, cut.tiles, fields, {"first": 0, "rows": len(table)})
    return [Execute(compute_set)]
