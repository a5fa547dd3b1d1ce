"""Codelets that add: chains of products, chains of terms, sums of parts; and how their groups of vertices are cut."""

import itertools
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from ipu_core.chip import cost, tile, tile_random
from ipu_core.chip.target import Target
from ipu_core.graph.codelet import Input, Output, Param
from ipu_core.library.elementwise import Rounded
from ipu_core.library.folding import continues, first_along, fold_all
from ipu_core.placement.cuts import stage_cycles
from lowprec import Accumulation, FloatFormat

Array = npt.NDArray[Any]


class BlockPosition(NamedTuple):
    """Where vertices' blocks lie in the whole result, as numbers or arrays that broadcast to the vertex axes.

    Random bits are made of these, so they do not depend on the placement.
    """

    row: Any = 0
    column: Any = 0
    first_group: Any = 0
    batch: Any = 0

    def at_first(self, axis: int, axes: int) -> "BlockPosition":
        """The places of the vertices at index 0 of a vertex axis."""
        return BlockPosition(*(first_along(value, axis, axes) for value in self))


def fold(
    views: list[Array], axes: str, origin: BlockPosition, into: Mapping[str, tuple[int | None, ...]]
) -> tuple[list[Array], BlockPosition]:
    """Joins vertex axes named in `into` to the fields' own axes where the memory allows it, innermost first.

    Args:
        views: the fields of a group.
        axes: a letter for each vertex axis.
        origin: of the vertices.
        into: for a letter, the axis of each field (negative) that it continues, None where the field does not vary.
    """
    for position in reversed(range(len(axes))):
        letter = axes[position]
        # blocks that follow each other in memory but not in the result would get the random bits of other rows
        one = views[0].shape[position] == 1
        if one or (letter in into and _in_a_row(views[-1], letter, position, len(axes), origin)):
            joined = fold_all(views, position, into.get(letter, (None,) * len(views)))
            if joined is not None:
                origin = origin.at_first(position, len(axes))
                views, axes = joined, axes[:position] + axes[position + 1 :]
    return views, origin


def _in_a_row(out: Array, letter: str, position: int, axes: int, origin: BlockPosition) -> bool:
    """Whether the vertices along an axis lie one after the other in the whole result, not only in memory."""
    values, length = (origin.row, out.shape[-2]) if letter == "m" else (origin.column, out.shape[-1])
    return continues(values, position, axes, length)


class _Summing(Rounded):
    """Base of the codelets that add: an Accumulation, the letters of the vertex axes and the place of the blocks."""

    accumulation: Any = Param()
    axes = Param("")
    origin: Any = Param(BlockPosition())
    _kernel: Callable[[Any], None]

    def compute(self) -> None:
        """Runs the kernel made ready by `prepare`."""
        self._kernel(self.key)


class MatmulChains(_Summing):
    """Multiplies an (m, k) by a (k, n) block: one chain per result, rounded after every group of products.

    With a partial result, which it may overwrite, each chain goes on from there, at a border of groups. A scale of fp8
    tensors, a power of two, is multiplied in by the unit before it adds.
    """

    a = Input(None, ndim=2)
    b = Input(None, ndim=2)
    out = Output(None, ndim=2)
    scale = Input("float32", ndim=0, optional=True)
    partial = Input(None, ndim=2, optional=True)
    operand_name = Param("")

    def prepare(self) -> None:
        """Folds the grid of blocks into as few and large products as the memory allows."""
        partial = [] if self.partial is None else [self.partial]
        if self.draws is not None:
            if self.scale is not None:
                raise NotImplementedError("a product with a scale draws no bits of the tiles' own")
            # not folded: each vertex draws from its own tile's generators
            given = self.a, self.b, self.out, self.accumulation, self.control, self.draws
            self._kernel = tile_random.matmul_part(*given, *partial)
            return
        # out stands last: `fold` asks its shape whether the vertices lie in a row
        into = {"m": (-2, None, *(-2 for _ in partial), -2), "n": (None, -1, *(-1 for _ in partial), -1)}
        views, origin = fold([self.a, self.b, *partial, self.out], self.axes, self.origin, into)
        a, b, *partial, out = views
        initial, scale = (partial[0] if partial else None), self.scale
        if scale is not None:
            scale = scale[(0,) * scale.ndim + (...,)]  # all vertices have the same
        self._kernel = tile.matmul_part(
            a, b, out, self.accumulation, origin, self.rounding, self.control, initial, scale
        )

    def cycles(self, target: Target) -> int:
        """Cycles of each vertex."""
        order: Accumulation = self.accumulation
        (m, k), n = self.a.shape[-2:], self.b.shape[-1]
        unit = cost.amp_shape(target, self.operand_name, order.accumulate.name)
        # chains that go on from partials have no pass that zeroes them
        return int(cost.matmul(target, m, k, n, shape=unit, group=order.group_of(k), goes_on=self.partial is not None))


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
        return int(cost.reduce(target, k, m * n, self.x.itemsize, together=n == 1))


class MaxChains(ReduceChains):
    """The largest of the k terms of an (m, k, n) block, or of their magnitudes; NaN if one is NaN."""

    magnitudes = Param(False)

    def prepare(self) -> None:
        """Folds the grid of blocks as a sum does."""
        (x, out), _ = fold([self.x, self.out], self.axes, self.origin, {"m": (-3, -2), "n": (-1, -1)})
        self._kernel = tile.largest_magnitude(x, out, self.control) if self.magnitudes else tile.reduce_max(x, out)


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
        if not self.axes.startswith("p"):
            self._kernel = self._sums(self.parts, self.out, self.axes, self.origin, self.index, fmt)
            return
        # vertices of runs that follow each other: every intermediate result has its number
        origin = self.origin.at_first(0, len(self.axes))
        each = zip(self.parts, self.out, itertools.count(self.index), strict=False)
        kernels = [self._sums(parts, out, self.axes[1:], origin, index, fmt) for parts, out, index in each]

        def every(key: Any) -> None:
            for kernel in kernels:
                kernel(key)

        self._kernel = every

    def _sums(
        self, parts: Array, out: Array, axes: str, origin: BlockPosition, index: int, fmt: FloatFormat
    ) -> Callable[[Any], None]:
        """The sums of a run for all vertices along the other axes."""
        (parts, out), origin = fold([parts, out], axes, origin, {"m": (-2, -2), "n": (-1, -1)})
        tag: Literal["stage", "output"] = "output" if self.final else "stage"
        return tile.sum_parts(parts, out, fmt, tag, index, origin, self.rounding, self.control)

    def cycles(self, target: Target) -> int:
        """Cycles of each vertex."""
        terms, m, n = self.parts.shape[-3:]
        return int(np.asarray(stage_cycles(target, terms, np.asarray(m * n), self.parts.itemsize)))


class MaxParts(SumParts):
    """The largest of parts (P, m, n) instead of their sum; NaN if one is NaN."""

    def prepare(self) -> None:
        """Nothing is rounded, and no bits are drawn."""
        self._kernel = tile.reduce_max(np.moveaxis(self.parts, -3, -2), self.out)
