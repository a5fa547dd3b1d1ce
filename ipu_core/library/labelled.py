"""Rows and labels: the element of every row at its label picked, or a number added there, without one-hot rows."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ipu_core.chip import cost, tile, tile_integers
from ipu_core.chip.target import Target
from ipu_core.graph.codelet import Codelet, Input, Output, Param
from ipu_core.graph.graph import Graph
from ipu_core.graph.mapping import linear_mapping
from ipu_core.graph.program import Execute
from ipu_core.graph.tensor import Tensor
from ipu_core.graph.vertices import FieldSource
from ipu_core.library.elementwise import Operand, layout_of, pieces, vertex_tiles
from ipu_core.library.folding import join_axes
from ipu_core.library.moves import column_numbers, one_a_row, own_axes
from lowprec.values.rounding import NEAREST_EVEN


class PickAtLabel(Codelet):
    """Of every row the element in the column of its label; 0 where that is not among the vertex's columns."""

    trusted = True
    supervisor = True
    x = Input("float32", ndim=None)
    labels = Input("int32", ndim=None)
    out = Output("float32", ndim=None)
    first = Param(0)
    own_axes = Param(0)

    def compute(self) -> None:
        """Picks."""
        tile_integers.pick(self.x, self.labels, self.first, self.out)

    def cycles(self, target: Target) -> Any:
        """Cycles of each vertex: a label is compared, and an element moved, for every row [model]."""
        rows = math.prod(self.out.shape[self.out.ndim - self.own_axes :])
        return cost.copy_rows(target, rows, 1, self.x.itemsize)


class JoinPicked(Codelet):
    """Of every row what one of its pieces gave; the others gave zeros."""

    trusted = True
    supervisor = True
    parts = Input("float32", ndim=2)
    out = Output("float32", ndim=1)

    def compute(self) -> None:
        """Takes it."""
        tile_integers.picked(self.parts, self.out)

    def cycles(self, target: Target) -> Any:
        """Cycles of each vertex."""
        rows, count = self.parts.shape[-2:]
        return cost.reduce(target, count, rows, 4, together=True)


class AddAtLabel(Codelet):
    """A number added in the column of the label, another one in the others; a number or an array of each."""

    trusted = True
    supervisor = True
    labels = Input("int32", ndim=None)
    x = Input("float32", ndim=None)
    there = Input("float32", ndim=None, optional=True)
    elsewhere = Input("float32", ndim=None, optional=True)
    out = Output("float32", ndim=None)
    columns = Param()
    numbers: Any = Param(())
    own_axes = Param(1)

    def compute(self) -> None:
        """Chooses and adds, as a tile adds."""
        given = [getattr(self, name) if isinstance(name, str) else np.float32(name) for name in self.numbers]
        chosen = np.where(self.labels == self.columns, *given).astype(np.float32, copy=False)
        # the operands of `out` may be its own memory: what is chosen is an array apart
        *operands, out = join_axes([np.broadcast_to(chosen, self.out.shape), self.x, self.out])
        add = tile.elementwise("add", (chosen.dtype, chosen.dtype), out.dtype, NEAREST_EVEN, self.control)
        add(tuple(operands), None, 0, out)

    def cycles(self, target: Target) -> Any:
        """Cycles of each vertex: a comparison and a choice for every element beside the sum [model]."""
        elements = math.prod(self.out.shape[-self.own_axes :])
        return sum(cost.elementwise(target, op, elements, 4) for op in ("equal", "select", "add"))


def pick_at_labels(graph: Graph, x: Tensor, labels: Tensor, out: Tensor, *, name: str = "pick") -> list[Execute]:
    """Adds the element of every row at its label, 0 where that is no column: `out` from x (.., classes), labels (..).

    Args:
        graph: where.
        x: float32, a whole variable in the layout of its shape, of more than one row.
        labels: int32.
        out: float32, as many elements as rows, mapped.
        name: of the compute sets.
    """
    if not out.size:
        return []
    layout, rows = layout_of(graph, x), out.size
    count = layout.shape[1] // layout.columns
    flat = out.reshape(rows)
    if count > 1:  # a row lies on several tiles: each looks among its own columns
        made = graph.add_variable("float32", (rows, count), f"{name}: partials", temporary=True)
        made.variable.map_as(linear_mapping(made.size, layout.per_tile, layout.first, layout.around))
        results = [made]
    else:
        whole, rest = divmod(rows, layout.rows)
        results = [flat[: whole * layout.rows].reshape(whole, layout.rows)] if whole else []
        results += [flat[whole * layout.rows :].reshape(1, rest)] if rest else []
    compute_set = graph.add_compute_set(name)
    wide = pieces(layout, one_a_row(labels), x.shape)
    for (tiles, _), source, label, result in zip(
        vertex_tiles(layout), pieces(layout, x, x.shape), wide, results, strict=True
    ):
        fields = {"x": source, "labels": _one_column(label), "out": result}
        params: dict[str, Any] = {"own_axes": 1}
        if count > 1:
            params = {"first": np.broadcast_to(np.arange(count) * layout.columns, tiles.shape)}
        graph.add_vertices(compute_set, PickAtLabel, tiles, fields, params)
    return [Execute(compute_set), *(_joined(graph, made, out, name) if count > 1 else [])]


def _one_column(source: FieldSource) -> FieldSource:
    """What vertices touch of labels, once for a row."""
    if isinstance(source, Tensor):
        return Tensor(source.variable, source.offset, source.shape[:-1], source.strides[:-1])
    return source[0], np.asarray(source[1])[..., 0]


def _joined(graph: Graph, parts: Tensor, out: Tensor, name: str) -> list[Execute]:
    """Adds the sums of the parts of every row, where the results lie."""
    compute_set, layout = graph.add_compute_set(f"{name}: sum parts"), layout_of(graph, out)
    (rows, count), flat = parts.shape, out.reshape(out.size)
    whole, rest = divmod(rows, layout.chunk)
    for first, tiles, each in ((0, whole, layout.chunk), (whole, min(rest, 1), rest)):
        cut = slice(first * layout.chunk, first * layout.chunk + tiles * each)
        if tiles:
            fields = {"parts": parts[cut].reshape(tiles, each, count), "out": flat[cut].reshape(tiles, each)}
            graph.add_vertices(compute_set, JoinPicked, layout.tile(first + np.arange(tiles)), fields)
    return [Execute(compute_set)]


def add_at_labels(
    graph: Graph, x: Tensor, labels: Tensor, there: Operand, elsewhere: Operand, out: Tensor, *, name: str = "add"
) -> list[Execute]:
    """Adds to every element of x (.., classes) `there` in the column of the row's label, and `elsewhere` in the others.

    Args:
        graph: where.
        x: float32.
        labels: int32 (..).
        there, elsewhere: numbers, or float32 tensors of the result's shape or that broadcast to it.
        out: float32, a whole variable in the layout of its shape; it may be that of x.
        name: of the compute set.
    """
    if not out.size:
        return []
    compute_set, layout = graph.add_compute_set(name), layout_of(graph, out)
    given = {"there": there, "elsewhere": elsewhere}
    tensors = {"x": x, "labels": one_a_row(labels), "out": out}
    tensors |= {field: one for field, one in given.items() if isinstance(one, Tensor)}
    cut = {field: pieces(layout, tensor, out.shape) for field, tensor in tensors.items()}
    numbers = tuple(field if isinstance(one, Tensor) else float(one) for field, one in given.items())
    for number, ((tiles, _), columns) in enumerate(
        zip(vertex_tiles(layout), column_numbers(layout, out.shape), strict=True)
    ):
        params = {"columns": columns, "numbers": numbers, "own_axes": own_axes(layout)}
        graph.add_vertices(compute_set, AddAtLabel, tiles, {key: parts[number] for key, parts in cut.items()}, params)
    return [Execute(compute_set)]
