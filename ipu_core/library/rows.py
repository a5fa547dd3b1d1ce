"""Along rows on tiles: indices of the largest, the elements at indices, and elements put or added there."""

from typing import Any

import numpy as np
import numpy.typing as npt

from ipu_core.chip import cost, tile, tile_integers, tile_scatter
from ipu_core.chip.target import Target
from ipu_core.graph.codelet import Codelet, Input, Output
from ipu_core.graph.graph import Graph
from ipu_core.graph.program import Execute
from ipu_core.graph.tensor import Tensor
from ipu_core.library.elementwise import add_array, begin_of, elementwise
from ipu_core.library.moves import is_float32
from lowprec.integers import ceil_div


class TopIndices(Codelet):
    """Indices of the largest of every row, the largest first; of equal ones the lowest index first, NaN before all."""

    trusted = True
    supervisor = True
    x = Input(None, ndim=2)
    out = Output("int32", ndim=2)

    def compute(self) -> None:
        """Orders."""
        tile_integers.top_indices(self.x, self.out.shape[-1], self.out)

    def cycles(self, target: Target) -> Any:
        """Cycles of each vertex."""
        rows, k = self.out.shape[-2:]
        return cost.top(target, rows, self.x.shape[-1], k)

    def scratch(self, target: Target) -> Any:
        """A heap of values and indices per worker."""
        return target.workers * 8 * self.out.shape[-1]  # bytes of a float32 value and an int32 index


class TakeAlong(Codelet):
    """The elements of every row at its indices."""

    trusted = True
    supervisor = True
    x = Input(None, ndim=2)
    indices = Input("int32", ndim=2)
    out = Output(None, ndim=2)

    def compute(self) -> None:
        """Copies elements; an index outside the row is an error."""
        tile_integers.take_along(self.x, self.indices, self.out)

    def cycles(self, target: Target) -> Any:
        """Cycles of each vertex: every element is an indexed move of its own."""
        rows, k = self.out.shape[-2:]
        return cost.copy_rows(target, rows * k, 1, self.out.itemsize)


class PutAlong(Codelet):
    """Elements added at the indices of zeroed rows, in float32 and in the order of the indices."""

    trusted = True
    supervisor = True
    indices = Input("int32", ndim=2)
    updates = Input(None, ndim=2)
    out = Output("float32", ndim=2)

    def compute(self) -> None:
        """Adds; an index outside the row is an error."""
        tile_scatter.put_along(self.indices, self.updates, self.out)
        if self.control.traps:
            tile.check_sum("put_along", self.control, (self.updates,), self.out)

    def cycles(self, target: Target) -> Any:
        """Cycles of each vertex: every row is cleared, every update is read and added."""
        rows, k = self.updates.shape[-2:]
        cleared = cost.elementwise(target, "identity", rows * self.out.shape[-1], self.out.itemsize)
        return cleared + cost.copy_rows(target, 2 * rows * k, 1, self.out.itemsize)


def top_indices(graph: Graph, x: Tensor, out: Tensor, *, name: str = "top_indices") -> list[Execute]:
    """Adds the indices of the k largest of every row: out (.., k) int32 from x (.., n). Tiles share the rows.

    Args:
        graph: where.
        x: floats whose leading axes can be viewed as one.
        out: mapped.
        name: of the compute set.

    Raises:
        ValueError: leading axes that cannot be viewed as one.
    """
    return _along(graph, TopIndices, {"x": x, "out": out}, name)


def take_along(graph: Graph, x: Tensor, indices: Tensor, out: Tensor, *, name: str = "take_along") -> list[Execute]:
    """Adds the elements of every row at its indices: out (.., k) from x (.., n) and int32 (.., k).

    Raises:
        ValueError: leading axes that cannot be viewed as one.
    """
    return _along(graph, TakeAlong, {"x": x, "indices": indices, "out": out}, name)


def put_along(
    graph: Graph,
    indices: Tensor,
    updates: Tensor,
    out: Tensor,
    *,
    stochastic: bool = False,
    operation: int | None = None,
    name: str = "put_along",
) -> list[Execute]:
    """Adds zeroed rows with updates added at indices in float32, in their order, then rounded once.

    Args:
        graph: where.
        indices: int32 (.., k).
        updates: (.., k).
        out: (.., n), a whole variable in the layout of its shape.
        stochastic: round stochastically.
        operation: number folded into the key of the random bits.
        name: of the compute sets.

    Raises:
        ValueError: leading axes that cannot be viewed as one.
    """
    if not out.size:
        return []
    # summed in float32 and rounded once: many updates of one index add no roundings
    total = out if is_float32(out) else add_array(graph, "float32", out.shape, f"{name}: total", first=begin_of(out))
    programs = _along(graph, PutAlong, {"indices": indices, "updates": updates, "out": total}, name)
    if total is not out:
        converted = f"{name}: convert"
        programs += elementwise(
            graph, "identity", [total], out, stochastic=stochastic, operation=operation, name=converted
        )
    return programs


def _along(graph: Graph, codelet: type[Codelet], fields: dict[str, Tensor], name: str) -> list[Execute]:
    """A compute set of vertices that each have some rows of every field, all of their elements."""
    if not fields["out"].size:
        return []
    compute_set = graph.add_compute_set(name)
    rows = fields["out"].size // fields["out"].shape[-1]
    matrices = {field: tensor.reshape(rows, tensor.shape[-1]) for field, tensor in fields.items()}
    for first, tiles, count in _row_cuts(graph.target, rows):
        cut = {field: _cut_rows(matrix, first, tiles.size, count) for field, matrix in matrices.items()}
        graph.add_vertices(compute_set, codelet, tiles, cut)
    return [Execute(compute_set)]


def _row_cuts(target: Target, rows: int) -> list[tuple[int, npt.NDArray[np.int64], int]]:
    """(first row, tiles, rows per tile) of an even cut and a short last one."""
    # whole rows: a search for the largest of a row that lies on several tiles would have to exchange at every step
    each = ceil_div(rows, target.tiles)
    whole, rest = divmod(rows, each)
    found = [(0, np.arange(whole), each)] if whole else []
    return found + ([(whole * each, np.array([whole]), rest)] if rest else [])


def _cut_rows(matrix: Tensor, first: int, count: int, rows: int) -> Tensor:
    down, across = matrix.strides
    shape = (count, rows, matrix.shape[1])
    return Tensor(matrix.variable, matrix.offset + first * down, shape, (rows * down, down, across))
