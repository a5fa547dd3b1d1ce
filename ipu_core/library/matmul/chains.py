"""Codelets that add: chains of products, chains of terms, sums of parts; and how their groups of vertices are cut."""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from ipu_core import cost, tile, tile_random
from ipu_core.graph.codelet import Codelet, Input, Output, Param
from ipu_core.library.folding import continues, first_along, fold_all
from ipu_core.plan.cuts import stage_cycles
from ipu_core.target import Target
from lowprec import Accumulation, Rounding
from lowprec.spec.rounding import NEAREST_EVEN, STOCHASTIC

Array = npt.NDArray[Any]


class Origin(NamedTuple):
    """Where vertices' blocks lie in the whole result, as numbers or arrays that broadcast to the vertex axes.

    Random bits are made of these, so they do not depend on the placement.
    """

    row: Any = 0
    column: Any = 0
    first_group: Any = 0
    batch: Any = 0

    def at_first(self, axis: int, axes: int) -> "Origin":
        """The places of the vertices at index 0 of a vertex axis."""
        return Origin(*(first_along(value, axis, axes) for value in self))


def fold(
    views: list[Array], axes: str, origin: Origin, into: Mapping[str, tuple[int | None, ...]]
) -> tuple[list[Array], Origin]:
    """Joins vertex axes named in `into` to the fields' own axes where the memory allows it, innermost first.

    Args:
        views: the fields of a group.
        axes: a letter for each vertex axis.
        origin: of the vertices.
        into: for a letter, the axis of each field (negative) that it continues, None where the field does not vary.
    """
    for position in reversed(range(len(axes))):
        letter = axes[position]
        one = views[0].shape[position] == 1
        if one or (letter in into and _in_a_row(views[-1], letter, position, len(axes), origin)):
            joined = fold_all(views, position, into.get(letter, (None,) * len(views)))
            if joined is not None:
                origin = origin.at_first(position, len(axes))
                views, axes = joined, axes[:position] + axes[position + 1 :]
    return views, origin


def _in_a_row(out: Array, letter: str, position: int, axes: int, origin: Origin) -> bool:
    """Whether the vertices along an axis lie one after the other in the whole result, not only in memory."""
    values, length = (origin.row, out.shape[-2]) if letter == "m" else (origin.column, out.shape[-1])
    return continues(values, position, axes, length)


class _Summing(Codelet):
    """What all of them have: an Accumulation, the names of the vertex axes and the place of the blocks."""

    supervisor = True
    accumulation: Any = Param()
    axes = Param("")
    origin: Any = Param(Origin())
    rounding: ClassVar[Rounding] = NEAREST_EVEN
    _kernel: Callable[[Any], None]

    def compute(self) -> None:
        """Runs the kernel made ready by `prepare`."""
        self._kernel(self.key)


class MatmulChains(_Summing):
    """Multiplies an (m, k) by a (k, n) block: one chain per result, rounded after every group of products."""

    a = Input(None, ndim=2)
    b = Input(None, ndim=2)
    out = Output(None, ndim=2)
    operand_name = Param("")
    goes_on: ClassVar[bool] = False
    takes_scale: ClassVar[bool] = False

    def prepare(self) -> None:
        """Folds the grid of blocks into as few and large products as the memory allows."""
        partial = [self.partial] if self.goes_on else []  # type: ignore[attr-defined]
        if self.draws is not None:
            if self.takes_scale:
                raise NotImplementedError("a product with a scale draws no bits of the tiles' own")
            given = self.a, self.b, self.out, self.accumulation, self.control, self.draws
            self._kernel = tile_random.matmul_part(*given, *partial)
            return
        into = {"m": (-2, None, *(-2 for _ in partial), -2), "n": (None, -1, *(-1 for _ in partial), -1)}
        views, origin = fold([self.a, self.b, *partial, self.out], self.axes, self.origin, into)
        a, b, *partial, out = views
        initial, scale = (partial[0] if partial else None), None
        if self.takes_scale:
            every: Array = self.scale  # type: ignore[attr-defined]
            scale = every[(0,) * every.ndim + (...,)]  # all vertices have the same
        self._kernel = tile.matmul_part(
            a, b, out, self.accumulation, origin, self.rounding, self.control, initial, scale
        )

    def cycles(self, target: Target) -> int:
        """Cycles of each vertex."""
        order: Accumulation = self.accumulation
        (m, k), n = self.a.shape[-2:], self.b.shape[-1]
        unit = cost.amp_shape(target, self.operand_name, order.accumulate.name)
        return int(cost.matmul(target, m, k, n, shape=unit, group=order.group_of(k), goes_on=self.goes_on))


class StochasticMatmulChains(MatmulChains):
    """The same, rounded stochastically."""

    uses_key = True
    rounding = STOCHASTIC


class GoingOnMatmulChains(MatmulChains):
    """The same, each chain going on from its partial result (which it may overwrite), at a border of groups."""

    partial = Input(None, ndim=2)
    goes_on = True


class StochasticGoingOnMatmulChains(GoingOnMatmulChains):
    """The same, rounded stochastically."""

    uses_key = True
    rounding = STOCHASTIC


class ScaledMatmulChains(MatmulChains):
    """The same of fp8 tensors that have a scale, a power of two, which the unit multiplies in before it adds."""

    scale = Input("float32", ndim=0)
    takes_scale = True


class StochasticScaledMatmulChains(ScaledMatmulChains):
    """The same, rounded stochastically."""

    uses_key = True
    rounding = STOCHASTIC


class GoingOnScaledMatmulChains(ScaledMatmulChains):
    """The same, each chain going on from its partial result."""

    partial = Input(None, ndim=2)
    goes_on = True


class StochasticGoingOnScaledMatmulChains(GoingOnScaledMatmulChains):
    """The same, rounded stochastically."""

    uses_key = True
    rounding = STOCHASTIC


CHAINS = {
    (False, False): (MatmulChains, GoingOnMatmulChains),
    (True, False): (StochasticMatmulChains, StochasticGoingOnMatmulChains),
    (False, True): (ScaledMatmulChains, GoingOnScaledMatmulChains),
    (True, True): (StochasticScaledMatmulChains, StochasticGoingOnScaledMatmulChains),
}
"""Codelets of products, to begin chains and to go on: by whether they round stochastically and have a scale."""


class ReduceChains(_Summing):
    """Adds the k terms of an (m, k, n) block: one chain per result."""

    x = Input(None, ndim=3)
    out = Output(None, ndim=2)

    def prepare(self) -> None:
        """Folds the grid of blocks into as few and large sums as the memory allows."""
        if self.draws is not None:
            self._kernel = tile_random.reduce_part(self.x, self.out, self.accumulation, self.control, self.draws)
            return
        (x, out), origin = fold([self.x, self.out], self.axes, self.origin, {"m": (-3, -2), "n": (-1, -1)})
        self._kernel = tile.reduce_part(x, out, self.accumulation, origin, self.rounding, self.control)

    def cycles(self, target: Target) -> int:
        """Cycles of each vertex."""
        m, k, n = self.x.shape[-3:]
        return int(cost.reduce(target, k, m * n, self.x.itemsize))


class StochasticReduceChains(ReduceChains):
    """The same, rounded stochastically."""

    uses_key = True
    rounding = STOCHASTIC


class MaxChains(ReduceChains):
    """The largest of the k terms of an (m, k, n) block; NaN if one is NaN."""

    def prepare(self) -> None:
        """Folds the grid of blocks as a sum does."""
        (x, out), _ = fold([self.x, self.out], self.axes, self.origin, {"m": (-3, -2), "n": (-1, -1)})
        self._kernel = tile.reduce_max(x, out)


class SumParts(_Summing):
    """Sums parts (P, m, n) in float32, ascending, and rounds once: to the accumulator's format or to the result's."""

    parts = Input(None, ndim=3)
    out = Output(None, ndim=2)
    final = Param(True)
    index = Param(0)

    def prepare(self) -> None:
        """Folds the grid of blocks."""
        fmt = self.accumulation.out if self.final else self.accumulation.accumulate
        if self.draws is not None:
            parts = np.moveaxis(self.parts, -3, 0)
            self._kernel = tile_random.sum_parts(parts, self.out, fmt, self.control, self.draws)
            return
        (parts, out), origin = fold([self.parts, self.out], self.axes, self.origin, {"m": (-2, -2), "n": (-1, -1)})
        tag: Literal["stage", "output"] = "output" if self.final else "stage"
        self._kernel = tile.sum_parts(parts, out, fmt, tag, self.index, origin, self.rounding, self.control)

    def cycles(self, target: Target) -> int:
        """Cycles of each vertex."""
        terms, m, n = self.parts.shape[-3:]
        return int(np.asarray(stage_cycles(target, terms, np.asarray(m * n), self.parts.itemsize)))


class StochasticSumParts(SumParts):
    """The same, rounded stochastically."""

    uses_key = True
    rounding = STOCHASTIC
