"""Random numbers on tiles: masks, truth values, uniform and normal; their bits depend on an element's index alone."""

import math
from collections.abc import Sequence
from typing import Any

from ipu_core import cost, tile, tile_distributions, tile_random
from ipu_core.graph.codelet import Codelet, Output, Param
from ipu_core.graph.graph import Graph
from ipu_core.graph.program import Execute, Program
from ipu_core.graph.tensor import Tensor
from ipu_core.library.elementwise import add_array, pieces, vertex_tiles
from ipu_core.library.folding import join_axes
from ipu_core.plan.layout import linear_layout
from ipu_core.target import Target


class DropoutMask(Codelet):
    """1 for what is kept and 0 for what is dropped; bits depend on an element's index, not on the layout."""

    supervisor = True
    uses_key = True
    out = Output(None, ndim=None)
    rate = Param(0.0)
    offset = Param(0)
    own_axes = Param(1)

    def prepare(self) -> None:
        """Joins axes and makes the draw ready."""
        (self._result,) = join_axes([self.out])
        draws = self.draws
        self._mask = tile.dropout_mask(self.rate) if draws is None else tile_random.dropout_mask(self.rate, draws)

    def compute(self) -> None:
        """Draws."""
        self._mask(self.key, self.offset, self._result)

    def cycles(self, target: Target) -> Any:
        """Cycles of each vertex."""
        return cost.dropout(target, math.prod(self.out.shape[-self.own_axes :]), self.out.itemsize)


class Uniform(Codelet):
    """Uniform numbers between two bounds; bits depend on an element's index, not on the layout."""

    supervisor = True
    uses_key = True
    out = Output(None, ndim=None)
    low = Param(0.0)
    high = Param(1.0)
    offset = Param(0)
    own_axes = Param(1)

    def prepare(self) -> None:
        """Joins axes and makes the draw ready."""
        if self.draws is not None:
            raise ValueError("uniform and normal numbers are drawn with a key, not by the tiles' own generators")
        (self._result,) = join_axes([self.out])
        self._draw = self.draw_of(self._result.dtype)

    def draw_of(self, dtype: Any) -> tile_distributions.Draw:
        """The draw into a dtype."""
        return tile_distributions.uniform(self.low, self.high, dtype, self.control)

    def compute(self) -> None:
        """Draws."""
        assert self.key is not None
        self._draw(self.key, self.offset, self._result)

    def cycles(self, target: Target) -> Any:
        """Cycles of each vertex, as those of a mask: the same bits, and one operation more in the same loop."""
        return cost.dropout(target, math.prod(self.out.shape[-self.own_axes :]), self.out.itemsize)


class Normal(Uniform):
    """Normal numbers; bits depend on an element's index, not on the layout."""

    mean = Param(0.0)
    deviation = Param(1.0)

    def draw_of(self, dtype: Any) -> tile_distributions.Draw:
        """The draw into a dtype."""
        return tile_distributions.normal(self.mean, self.deviation, dtype, self.control)

    def cycles(self, target: Target) -> Any:
        """Cycles of each vertex."""
        return cost.normal(target, math.prod(self.out.shape[-self.own_axes :]), self.out.itemsize)


def uniform(
    graph: Graph,
    shape: Sequence[int],
    programs: list[Program],
    *,
    low: float = 0.0,
    high: float = 1.0,
    fmt: Any = "float32",
    operation: int = 0,
    name: str = "uniform",
) -> Tensor:
    """Adds an array of uniform numbers in [low, high], `high` coming only by rounding, and returns it.

    Args:
        graph: where.
        shape: of the result.
        programs: what is to be run is appended to it.
        low, high: the bounds.
        fmt: of the result, rounded to nearest from float32.
        operation: number folded into the engine's key: give every draw its own.
        name: for profiles.

    Raises:
        ValueError: bounds that are not finite, or in the wrong order.
    """
    if not -math.inf < low <= high < math.inf:
        raise ValueError(f"uniform numbers need finite bounds low <= high, not {low} and {high}")
    out = add_array(graph, fmt, shape, name)
    programs += _drawn(graph, Uniform, out, {"low": low, "high": high}, operation, name)
    return out


def normal(
    graph: Graph,
    shape: Sequence[int],
    programs: list[Program],
    *,
    mean: float = 0.0,
    deviation: float = 1.0,
    fmt: Any = "float32",
    operation: int = 0,
    name: str = "normal",
) -> Tensor:
    """Adds an array of normal numbers, and returns it; the other arguments are those of `uniform`.

    Args:
        mean, deviation: of the distribution.

    Raises:
        ValueError: a deviation below 0.
    """
    if not deviation >= 0:
        raise ValueError(f"a standard deviation is at least 0, not {deviation}")
    out = add_array(graph, fmt, shape, name)
    programs += _drawn(graph, Normal, out, {"mean": mean, "deviation": deviation}, operation, name)
    return out


def bernoulli(
    graph: Graph,
    shape: Sequence[int],
    programs: list[Program],
    *,
    probability: float = 0.5,
    fmt: Any = "float32",
    operation: int = 0,
    name: str = "bernoulli",
) -> Tensor:
    """Adds an array of ones, each with a probability in steps of 2^-16, and zeros; other arguments as `uniform`.

    Raises:
        ValueError: a probability outside [0, 1].
    """
    if not 0 <= probability <= 1:
        raise ValueError(f"a probability must be in [0, 1], not {probability}")
    out = add_array(graph, fmt, shape, name)
    programs += dropout_mask(graph, out, 1 - probability, operation=operation, name=name)
    return out


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
    return _drawn(graph, DropoutMask, out, {"rate": rate}, operation, name)


def _drawn(
    graph: Graph, codelet: type[Codelet], out: Tensor, given: dict[str, float], operation: int | None, name: str
) -> list[Execute]:
    """A compute set that draws a whole variable in the layout of its shape."""
    if not out.size:
        return []
    compute_set = graph.add_compute_set(name)
    layout = linear_layout(graph.target, out.shape)
    own = 1 if layout.columns < layout.shape[1] else 2
    for (tiles, offset), source in zip(vertex_tiles(layout), pieces(layout, out, out.shape), strict=True):
        params = {**given, "offset": offset, "own_axes": own}
        graph.add_vertices(compute_set, codelet, tiles, {"out": source}, params, operation)
    return [Execute(compute_set)]
