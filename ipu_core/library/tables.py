"""Rows of tables on tiles: looked up by index, and added up at indices. Tiles share the columns, then the rows.

Where a tile would hold much of a table, others take runs of its rows, as in PopLibs' `multiSlice` and `multiUpdate`.
"""

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from ipu_core.chip import cost, tile, tile_scatter
from ipu_core.chip.target import Target
from ipu_core.graph.codelet import Codelet, Input, Output, Param, Static
from ipu_core.graph.graph import Graph
from ipu_core.graph.program import Execute
from ipu_core.graph.tensor import Tensor
from ipu_core.library.elementwise import add_array, begin_of, elementwise
from ipu_core.library.moves import is_float32
from lowprec import Accumulation
from lowprec.integers import ceil_div

SHARE = 16
"""A tile holds at most 1 / SHARE of its memory of a table, or of a sum of rows, before other tiles take runs of the
rows. Smaller tables stay whole: runs would only bring their indices to more tiles."""


class Gather(Codelet):
    """Rows of a table by index: those in a run of its rows, and zeros for the others."""

    trusted = True
    supervisor = True
    table = Input(None, ndim=2)
    indices = Input("int32", ndim=1)
    first = Param()
    rows = Param()
    out = Output(None, ndim=2)

    def compute(self) -> None:
        """Copies rows; an index outside all rows is an error."""
        # negative indices count from the last of all rows, so the run alone cannot tell where they lie
        places, here = tile_scatter.in_run(self.indices[0], self.first, self.table.shape[-2], self.rows)
        self.out[..., here, :] = self.table[..., places[here], :]
        # `Choose` never takes these rows; they are written so that memory holds the same in every run
        self.out[..., ~here, :] = 0

    def cycles(self, target: Target) -> Any:
        """Cycles of each vertex, as if all rows were in its run."""
        return cost.copy_rows(target, self.out.shape[-2], self.out.shape[-1], self.out.itemsize)


class Choose(Codelet):
    """Of what all runs looked up for an index, the row of the run that the index lies in."""

    trusted = True
    supervisor = True
    found = Input(None, ndim=3)
    indices = Input("int32", ndim=1)
    each = Param()
    rows = Param()
    out = Output(None, ndim=2)

    def compute(self) -> None:
        """Copies rows."""
        runs = self.indices[0] % self.rows // self.each
        self.out[...] = self.found[..., runs, np.arange(runs.size), :]

    def cycles(self, target: Target) -> Any:
        """Cycles of each vertex."""
        return cost.copy_rows(target, self.out.shape[-2], self.out.shape[-1], self.out.itemsize)


class ScatterAdd(Codelet):
    """Rows added at indices of zeroed rows, in float32 and in the order of the indices; those of a run of rows."""

    trusted = True
    supervisor = True
    indices = Input("int32", ndim=1)
    updates = Input(None, ndim=2)
    first = Param()
    rows = Param()
    accumulation: ClassVar[Any] = Static(None)
    out = Output("float32", ndim=2)

    def compute(self) -> None:
        """Adds; an index outside all rows is an error."""
        tile_scatter.scatter_add(self.indices[0], self.updates, self.out, self.first, self.rows, self.accumulation)
        if self.control.traps:
            tile.check_sum("scatter_add", self.control, (self.updates,), self.out)

    def cycles(self, target: Target) -> Any:
        """Cycles of each vertex: its rows are cleared, every update is read and added, as if all were its own."""
        rows = self.out.shape[-2] + 2 * self.updates.shape[-2]
        return cost.copy_rows(target, rows, self.out.shape[-1], self.out.itemsize)


class ScatterMax(ScatterAdd):
    """The largest of the rows at each index, element by element; 0 where there is none."""

    out = Output(None, ndim=2)

    def compute(self) -> None:
        """Compares; an index outside all rows is an error."""
        tile_scatter.scatter_max(self.indices[0], self.updates, self.out, self.first, self.rows)


class ColumnCut(NamedTuple):
    """Tiles that share columns: tile i of `tiles` has the columns from first + i * columns on."""

    first: int
    tiles: npt.NDArray[np.int64]
    columns: int

    def of(self, rows: Tensor) -> Tensor:
        """Each tile's columns of rows."""
        down, across = rows.strides
        shape, strides = (self.tiles.size, len(rows), self.columns), (self.columns * across, down, across)
        return Tensor(rows.variable, rows.offset + self.first * across, shape, strides)

    def shared(self, indices: Tensor) -> Tensor:
        """The same indices for each tile."""
        return indices.broadcast_to(self.tiles.size, indices.size)


def gather(graph: Graph, table: Tensor, indices: Tensor, out: Tensor, *, name: str = "gather") -> list[Execute]:
    """Adds out = table[indices] along the first axis. Tiles share the columns.

    In a large table with at least twice as many rows as there are indices, each tile looks all indices up in its run of
    the rows; then, index by index, the row of the right run is chosen.

    Args:
        graph: where.
        table: (rows, ...).
        indices: int32 of any shape; negative ones count from the last row.
        out: mapped, the shape of indices and then the table's other axes.
        name: of the compute sets.

    Raises:
        ValueError: a table of more axes that cannot be viewed as rows and columns.
    """
    if not out.size:
        return []
    rows, flat, result = table.reshape(len(table), -1), indices.reshape(-1), out.reshape(indices.size, -1)
    cuts = column_cuts(graph.target, rows.shape[1])
    # each run gives a row for every index: of few rows that is more than half of the table, and nothing is won
    each = rows_each(graph.target, len(rows), rows.dtype.itemsize, cuts) if 2 * flat.size <= len(rows) else len(rows)
    if each >= len(rows):
        return _look_up(graph, rows, flat, [cut.of(result)[None] for cut in cuts], cuts, each, name)
    found = [_found(graph, result, cuts, cut, ceil_div(len(rows), each), f"{name}: found") for cut in cuts]
    programs = _look_up(graph, rows, flat, found, cuts, each, name)
    compute_set = graph.add_compute_set(f"{name}: choice")
    # as many tiles choose as looked up, each for a share of the indices
    share, params = ceil_div(flat.size, len(found[0])), {"each": each, "rows": len(rows)}
    for number, top in enumerate(range(0, flat.size, share)):
        some = slice(top, top + share)
        for cut, place in zip(cuts, found, strict=True):
            mine = place[:, :, some].transpose(1, 0, 2, 3)
            fields = {"found": mine, "indices": cut.shared(flat[some]), "out": cut.of(result[some])}
            graph.add_vertices(compute_set, Choose, run_tiles(cuts, cut, number), fields, params)
    return [*programs, Execute(compute_set)]


def _found(graph: Graph, result: Tensor, cuts: Sequence[ColumnCut], cut: ColumnCut, runs: int, name: str) -> Tensor:
    """What runs of a table's rows have for a cut of the result, each on the tile that looks it up."""
    found = graph.add_variable(result.format, (runs, cut.tiles.size, len(result), cut.columns), name, temporary=True)
    homes = np.concatenate([run_tiles(cuts, cut, number) for number in range(runs)])
    graph.map_intervals(found, np.arange(homes.size) * len(result) * cut.columns, homes)
    return found


def _look_up(
    graph: Graph,
    rows: Tensor,
    indices: Tensor,
    found: Sequence[Tensor],
    cuts: Sequence[ColumnCut],
    each: int,
    name: str,
) -> list[Execute]:
    """Adds the look-ups in runs of `each` rows; `found` has (runs, tiles, indices, columns) for each cut."""
    compute_set = graph.add_compute_set(name)
    for cut, places in zip(cuts, found, strict=True):
        for number in range(len(places)):
            top = number * each
            fields = {"table": cut.of(rows[top : top + each]), "indices": cut.shared(indices), "out": places[number]}
            graph.add_vertices(
                compute_set, Gather, run_tiles(cuts, cut, number), fields, {"first": top, "rows": len(rows)}
            )
    return [Execute(compute_set)]


def scatter_add(
    graph: Graph,
    indices: Tensor,
    updates: Tensor,
    out: Tensor,
    *,
    stochastic: bool = False,
    operation: int | None = None,
    accumulation: Accumulation | None = None,
    maximum: bool = False,
    name: str = "scatter_add",
) -> list[Execute]:
    """Adds out[indices] += updates on zeroed rows, summed in float32 in the order of the indices, then rounded once.

    Tiles share the columns, as in `gather`; where a tile would hold much of the result, others take runs of its rows.

    Args:
        graph: where.
        indices: int32 of any shape.
        updates: the shape of the indices and then the rows' own axes.
        out: (rows, ...), a whole variable in the layout of its shape.
        stochastic: round stochastically.
        operation: number folded into the key of the random bits.
        accumulation: where partial sums are rounded, to nearest, and to what; None: nowhere.
        maximum: the largest of the rows at each index, not their sum.
        name: of the compute sets.

    Raises:
        ValueError: updates of more axes that cannot be viewed as rows and columns.
    """
    if not out.size:
        return []
    wide = is_float32(out) or maximum
    total = out if wide else add_array(graph, "float32", out.shape, f"{name}: total", first=begin_of(out))
    compute_set = graph.add_compute_set(name)
    flat, rows = indices.reshape(indices.size), updates.reshape(indices.size, -1 if updates.size else 0)
    result = total.reshape(out.shape[0], -1)
    cuts = column_cuts(graph.target, result.shape[1])
    each = rows_each(graph.target, len(result), result.dtype.itemsize, cuts)
    codelet = ScatterMax if maximum else ScatterAdd
    # every run reads all indices and updates and takes its own: which those are is known in the step alone
    for number, top in enumerate(range(0, len(result), each)):
        for cut in cuts:
            fields = {
                "indices": cut.shared(flat),
                "updates": cut.of(rows),
                "out": cut.of(result[top : top + each]),
            }
            params = {"first": top, "rows": len(result)} | ({} if maximum else {"accumulation": accumulation})
            graph.add_vertices(compute_set, codelet, run_tiles(cuts, cut, number), fields, params)
    programs = [Execute(compute_set)]
    if not wide:
        converted = f"{name}: convert"
        programs += elementwise(
            graph, "identity", [total], out, stochastic=stochastic, operation=operation, name=converted
        )
    return programs


def column_cuts(target: Target, columns: int) -> list[ColumnCut]:
    """An even cut and a short last one."""
    # at least a 64-bit vector of float32: fewer columns cost a worker as much
    each = max(cost.width(4), ceil_div(columns, target.tiles))
    whole, rest = divmod(columns, each)
    found = [ColumnCut(0, np.arange(whole), each)] if whole else []
    return found + ([ColumnCut(whole * each, np.array([whole]), rest)] if rest else [])


def run_tiles(cuts: Sequence[ColumnCut], cut: ColumnCut, run: int) -> npt.NDArray[np.int64]:
    """The tiles of a cut that have a run of rows."""
    return cut.tiles + run * _across(cuts)


def _across(cuts: Sequence[ColumnCut]) -> int:
    return sum(cut.tiles.size for cut in cuts)


def rows_each(target: Target, rows: int, itemsize: int, cuts: Sequence[ColumnCut]) -> int:
    """The rows that a tile takes: all, or as few as make them a small part of its memory, as far as there are tiles."""
    # runs that hold no more than the share; the cuts need that many tiles each
    small = ceil_div(rows * cuts[0].columns * itemsize, target.tile_memory // SHARE)
    return ceil_div(rows, max(1, min(small, target.tiles // _across(cuts))))
