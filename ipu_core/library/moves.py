"""Moves on tiles: filling, looking up rows by index, adding rows at indices, one-hot rows."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ipu_core import cost, tile
from ipu_core.graph.codelet import Codelet, Input, Output, Param
from ipu_core.graph.graph import Graph
from ipu_core.graph.program import Copy, Execute
from ipu_core.graph.tensor import Tensor
from ipu_core.library.elementwise import add_array, elementwise, pieces, vertex_tiles
from ipu_core.plan.layout import LinearLayout, linear_layout
from ipu_core.target import Target
from lowprec.integers import ceil_div

SHARE = 16
"""The part of a tile's memory that it may hold of a sum of rows before others take some: large tables, not small ones,
whose runs would need their indices on more tiles."""


class Fill(Codelet):
    """Sets elements to a value."""

    supervisor = True
    out = Output(None, ndim=None)
    value = Param(0.0)
    own_axes = Param(1)

    def compute(self) -> None:
        """Writes."""
        self.out[...] = self.value

    def cycles(self, target: Target) -> Any:
        """Cycles of each vertex."""
        elements = math.prod(self.out.shape[-self.own_axes :])
        return cost.elementwise(target, "identity", elements, self.out.itemsize)


class Gather(Codelet):
    """Rows of a table (rows, columns) by index."""

    supervisor = True
    table = Input(None, ndim=2)
    indices = Input("int32", ndim=1)
    out = Output(None, ndim=2)

    def compute(self) -> None:
        """Copies rows; an index outside the table is an error."""
        self.out[...] = np.take(self.table, self.indices[0], axis=-2, mode="raise")

    def cycles(self, target: Target) -> Any:
        """Cycles of each vertex."""
        return cost.copy_rows(target, self.out.shape[-2], self.out.shape[-1], self.out.itemsize)


class OneHot(Codelet):
    """1 where the column is the label, else 0."""

    supervisor = True
    labels = Input("int32", ndim=None)
    columns = Param()
    own_axes = Param(1)
    out = Output(None, ndim=None)

    def compute(self) -> None:
        """Compares."""
        self.out[...] = self.labels == self.columns

    def cycles(self, target: Target) -> Any:
        """Cycles of each vertex."""
        elements = math.prod(self.out.shape[-self.own_axes :])
        return cost.elementwise(target, "equal", elements, 4)


class ScatterAdd(Codelet):
    """Rows added at indices of zeroed rows, in float32 and in the order of the indices; those of a run of rows."""

    supervisor = True
    indices = Input("int32", ndim=1)
    updates = Input(None, ndim=2)
    first = Param()
    rows = Param()
    out = Output("float32", ndim=2)

    def compute(self) -> None:
        """Adds; an index outside all rows is an error."""
        tile.scatter_add(self.indices[0], self.updates, self.out, self.first, self.rows)

    def cycles(self, target: Target) -> Any:
        """Cycles of each vertex: its rows are cleared, every update is read and added, as if all were its own."""
        rows = self.out.shape[-2] + 2 * self.updates.shape[-2]
        return cost.copy_rows(target, rows, self.out.shape[-1], self.out.itemsize)


def fill(graph: Graph, out: Tensor, value: float, *, name: str = "fill") -> list[Execute]:
    """Adds a compute set that sets a whole variable, in the layout of its shape, to a value."""
    if not out.size:
        return []
    compute_set = graph.add_compute_set(name)
    layout = linear_layout(graph.target, out.shape)
    for (tiles, _), source in zip(vertex_tiles(layout), pieces(layout, out, out.shape), strict=True):
        graph.add_vertices(compute_set, Fill, tiles, {"out": source}, {"value": value, "own_axes": _own(layout)})
    return [Execute(compute_set)]


def concatenate(parts: Sequence[Tensor], out: Tensor, axis: int, *, name: str = "concatenate") -> list[Copy]:
    """The copies that put tensors one after another along an axis of a mapped one."""
    at, copies = 0, []
    for part in parts:
        place = out[(slice(None),) * axis + (slice(at, at + part.shape[axis]),)]
        at += part.shape[axis]
        if part.size:
            copies.append(Copy(part, place, name))
    return copies


def pad(
    graph: Graph, x: Tensor, out: Tensor, *, low: Sequence[int], interior: Sequence[int], name: str = "pad"
) -> list[Execute | Copy]:
    """Adds zeros with a tensor among them.

    Args:
        graph: where.
        x: what is padded.
        out: a whole variable in the layout of its shape.
        low: zeros before the first element of each axis.
        interior: zeros between two elements of each.
        name: of the copy.
    """
    zeros = fill(graph, out, 0.0, name=f"{name}: zeros")
    if not x.size:
        return [*zeros]
    ends = zip(x.shape, low, interior, strict=True)
    inner = out[tuple(slice(first, first + (n - 1) * (gap + 1) + 1, gap + 1) for n, first, gap in ends)]
    return [*zeros, Copy(x, inner, name)]


def one_hot(graph: Graph, labels: Tensor, out: Tensor, *, name: str = "one_hot") -> list[Execute]:
    """Adds rows with a 1 in the labelled column: out (.., classes) from labels (..); other labels give zeros.

    Args:
        graph: where.
        labels: int32.
        out: a whole variable in the layout of its shape.
        name: of the compute set.
    """
    if not out.size:
        return []
    compute_set = graph.add_compute_set(name)
    layout = linear_layout(graph.target, out.shape)
    wide = Tensor(labels.variable, labels.offset, (*labels.shape, 1), (*labels.strides, 0))
    columns = np.broadcast_to(np.arange(out.shape[-1], dtype=np.int32), (math.prod(out.shape[:-1]), out.shape[-1]))
    numbers = _pieces_of_array(layout, columns)
    parts = zip(
        vertex_tiles(layout), pieces(layout, wide, out.shape), pieces(layout, out, out.shape), numbers, strict=True
    )
    for (tiles, _), source, result, column in parts:
        params = {"columns": column, "own_axes": _own(layout)}
        graph.add_vertices(compute_set, OneHot, tiles, {"labels": source, "out": result}, params)
    return [Execute(compute_set)]


def gather(graph: Graph, table: Tensor, indices: Tensor, out: Tensor, *, name: str = "gather") -> list[Execute]:
    """Adds out = table[indices] along the first axis. Tiles share the columns: each sees all rows of its own.

    Args:
        graph: where.
        table: (rows, ...).
        indices: int32 of any shape.
        out: mapped, the shape of indices and then the table's other axes.
        name: of the compute set.

    Raises:
        ValueError: a table of more axes that cannot be viewed as rows and columns.
    """
    if not out.size:
        return []
    compute_set = graph.add_compute_set(name)
    rows = table.reshape(table.shape[0], -1)
    flat, result = indices.reshape(-1), out.reshape(indices.size, -1)
    for first, tiles, columns in _column_cuts(graph.target, rows.shape[1]):
        fields = {
            "table": _cut_columns(rows, first, tiles.size, columns),
            "indices": flat.broadcast_to(tiles.size, flat.size),
            "out": _cut_columns(result, first, tiles.size, columns),
        }
        graph.add_vertices(compute_set, Gather, tiles, fields)
    return [Execute(compute_set)]


def scatter_add(
    graph: Graph,
    indices: Tensor,
    updates: Tensor,
    out: Tensor,
    *,
    stochastic: bool = False,
    operation: int | None = None,
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
        name: of the compute sets.

    Raises:
        ValueError: updates of more axes that cannot be viewed as rows and columns.
    """
    if not out.size:
        return []
    wide = is_float32(out)
    total = out if wide else add_array(graph, "float32", out.shape, f"{name}: total")
    compute_set = graph.add_compute_set(name)
    flat, rows = indices.reshape(indices.size), updates.reshape(indices.size, -1 if updates.size else 0)
    result = total.reshape(out.shape[0], -1)
    cuts = _column_cuts(graph.target, result.shape[1])
    across = sum(tiles.size for _, tiles, _ in cuts)
    each = _rows_each(graph.target, result, across, cuts[0][2])
    for number, top in enumerate(range(0, result.shape[0], each)):
        for first, tiles, columns in cuts:
            fields = {
                "indices": flat.broadcast_to(tiles.size, flat.size),
                "updates": _cut_columns(rows, first, tiles.size, columns),
                "out": _cut_columns(result[top : top + each], first, tiles.size, columns),
            }
            params = {"first": top, "rows": result.shape[0]}
            graph.add_vertices(compute_set, ScatterAdd, tiles + number * across, fields, params)
    programs = [Execute(compute_set)]
    if not wide:
        converted = f"{name}: convert"
        programs += elementwise(
            graph, "identity", [total], out, stochastic=stochastic, operation=operation, name=converted
        )
    return programs


def is_float32(tensor: Tensor) -> bool:
    """Whether a tensor's elements are float32."""
    return tensor.dtype == np.float32


def _own(layout: LinearLayout) -> int:
    return 1 if layout.columns < layout.shape[1] else 2


def _column_cuts(target: Target, columns: int) -> list[tuple[int, npt.NDArray[np.int64], int]]:
    """(first column, tiles, columns per tile) of an even cut and a short last one."""
    each = max(cost.width(4), ceil_div(columns, target.tiles))
    whole, rest = divmod(columns, each)
    found = [(0, np.arange(whole), each)] if whole else []
    return found + ([(whole * each, np.array([whole]), rest)] if rest else [])


def _rows_each(target: Target, result: Tensor, across: int, columns: int) -> int:
    """The rows that a tile adds up where so many tiles share the columns: all, or as few as make it a small part of its
    memory, as far as there are tiles."""
    rows = result.shape[0]
    small = ceil_div(rows * columns * result.dtype.itemsize, target.tile_memory // SHARE)
    return ceil_div(rows, max(1, min(small, target.tiles // across)))


def _cut_columns(tensor: Tensor, first: int, count: int, columns: int) -> Tensor:
    down, across = tensor.strides
    shape = (count, tensor.shape[0], columns)
    return Tensor(tensor.variable, tensor.offset + first * across, shape, (columns * across, down, across))


def _pieces_of_array(layout: LinearLayout, array: Any) -> list[Any]:
    """A (rows, columns) array cut like the groups of a layout."""
    rows, columns = layout.shape
    array = array.reshape(rows, columns)
    if layout.columns < columns:
        return [array.reshape(rows, columns // layout.columns, layout.columns)]
    whole, rest = divmod(rows, layout.rows)
    found = [array[: whole * layout.rows].reshape(whole, layout.rows, columns)] if whole else []
    return found + ([array[whole * layout.rows :].reshape(1, rest, columns)] if rest else [])
