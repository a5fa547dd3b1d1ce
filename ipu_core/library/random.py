"""Masks of dropout on tiles; their bits depend on an element's index alone."""

import math
from typing import Any

from ipu_core.chip import cost, tile, tile_random
from ipu_core.chip.target import Target
from ipu_core.graph.codelet import Codelet, Output, Param
from ipu_core.graph.graph import Graph
from ipu_core.graph.program import Execute
from ipu_core.graph.tensor import Tensor
from ipu_core.library.elementwise import layout_of, pieces, vertex_tiles
from ipu_core.library.folding import join_axes


class DropoutMask(Codelet):
    """1 for what is kept and 0 for what is dropped; bits depend on an element's index, not on the layout."""

    trusted = True
    supervisor = True
    uses_key = True  # whatever the rounding: a mask is random in every precision
    out = Output(None, ndim=None)
    rate = Param(0.0)
    offset = Param(0)
    own_axes = Param(1)

    def prepare(self) -> None:
        """Joins axes and makes the draw ready."""
        # the elements of a group are contiguous in the result: one draw from `offset` on makes all of them
        (self._result,) = join_axes([self.out])
        draws = self.draws
        self._mask = tile.dropout_mask(self.rate) if draws is None else tile_random.dropout_mask(self.rate, draws)

    def compute(self) -> None:
        """Draws."""
        self._mask(self.key, self.offset, self._result)

    def cycles(self, target: Target) -> Any:
        """Cycles of each vertex."""
        return cost.dropout(target, math.prod(self.out.shape[-self.own_axes :]), self.out.itemsize)


def dropout_mask(
    graph: Graph, out: Tensor, rate: float, *, operation: int | None = None, name: str = "dropout"
) -> list[Execute]:
    """Adds a compute set that draws a mask.

    Args:
        graph: where.
        out: a whole variable in the layout of its shape.
        rate: share that is dropped, in steps of 2^-16.
        operation: number folded into the key of the random bits.
        name: of the compute set.
    """
    if not out.size:
        return []
    compute_set = graph.add_compute_set(name)
    layout = layout_of(graph, out)
    own = 1 if layout.columns < layout.shape[1] else 2
    for (tiles, offset), source in zip(vertex_tiles(layout), pieces(layout, out, out.shape), strict=True):
        params = {"rate": rate, "offset": offset, "own_axes": own}
        graph.add_vertices(compute_set, DropoutMask, tiles, {"out": source}, params, operation)
    return [Execute(compute_set)]
