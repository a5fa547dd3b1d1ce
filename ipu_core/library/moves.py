"""Moves on tiles: filling, putting arrays one after another or among zeros, one-hot rows."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ipu_core.chip import cost
from ipu_core.chip.target import Target
from ipu_core.graph.codelet import Codelet, Input, Output, Param
from ipu_core.graph.graph import Graph
from ipu_core.graph.program import Copy, Execute
from ipu_core.graph.tensor import Tensor
from ipu_core.library.elementwise import layout_of, pieces, vertex_tiles
from ipu_core.placement.layout import LinearLayout


class Fill(Codelet):
    """Sets elements to a value."""

    trusted = True
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


class OneHot(Codelet):
    """1 where the column is the label, else 0."""

    trusted = True
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
        return cost.elementwise(target, "equal", elements, 4)  # bytes of an int32 label


def fill(graph: Graph, out: Tensor, value: float, *, name: str = "fill") -> list[Execute]:
    """Adds a compute set that sets a whole variable, in the layout of its shape, to a value."""
    if not out.size:
        return []
    compute_set = graph.add_compute_set(name)
    layout = layout_of(graph, out)
    for (tiles, _), source in zip(vertex_tiles(layout), pieces(layout, out, out.shape), strict=True):
        graph.add_vertices(compute_set, Fill, tiles, {"out": source}, {"value": value, "own_axes": own_axes(layout)})
    return [Execute(compute_set)]


def concatenate(parts: Sequence[Tensor], out: Tensor, axis: int, *, name: str = "concatenate") -> list[Copy]:
    """The copies that put tensors one after another along an axis of a mapped one."""
    at, copies = 0, []
    for part in parts:
        place = out[(slice(None),) * axis + (slice(at, at + part.shape[axis]),)]
        at += part.shape[axis]
        # a Copy of nothing is left out: it would be a step of the program
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
    # filled whole and then written over: the zeros between elements are no blocks of the layout
    zeros = fill(graph, out, 0.0, name=f"{name}: zeros")
    if not x.size:
        return [*zeros]
    # the last element ends the slice: a gap behind it is padding of the other side
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
    layout = layout_of(graph, out)
    parts = zip(
        vertex_tiles(layout), pieces(layout, one_a_row(labels), out.shape), pieces(layout, out, out.shape),
        column_numbers(layout, out.shape), strict=True,
    )  # fmt: skip
    for (tiles, _), source, result, column in parts:
        params = {"columns": column, "own_axes": own_axes(layout)}
        graph.add_vertices(compute_set, OneHot, tiles, {"labels": source, "out": result}, params)
    return [Execute(compute_set)]


def is_float32(tensor: Tensor) -> bool:
    """Whether a tensor's elements are float32."""
    return tensor.dtype == np.float32


def one_a_row(labels: Tensor) -> Tensor:
    """Labels (..) as an array (.., 1) that broadcasts along rows."""
    # an axis of stride 0: every column compares the same label, without a copy of it
    return Tensor(labels.variable, labels.offset, (*labels.shape, 1), (*labels.strides, 0))


def column_numbers(layout: LinearLayout, shape: Sequence[int]) -> list[Any]:
    """For every element of the groups of a layout its place along the last axis of an array, vertex axes first."""
    rows, columns = layout.shape
    # without memory of its own: every row has the same numbers
    array = np.broadcast_to(np.arange(shape[-1], dtype=np.int32), (math.prod(shape[:-1]), shape[-1]))
    array = array.reshape(rows, columns)
    if layout.columns < columns:
        return [array.reshape(rows, columns // layout.columns, layout.columns)]
    whole, rest = divmod(rows, layout.rows)
    found = [array[: whole * layout.rows].reshape(whole, layout.rows, columns)] if whole else []
    return found + ([array[whole * layout.rows :].reshape(1, rest, columns)] if rest else [])


def own_axes(layout: LinearLayout) -> int:
    """Axes of a vertex of a layout: of a piece of a row, or of rows."""
    return 1 if layout.columns < layout.shape[1] else 2
