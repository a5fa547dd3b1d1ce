"""Codelets of convolutions: chains on blocks of the result, and sums of their parts; how their groups fold to one call.

Vertex axes are the result's five axes (see `ipu_core.placement.convolution.sizes`); a field's own axes follow.
"""

import itertools
import math
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from ipu_core.chip import tile, tile_convolution, tile_random
from ipu_core.chip.target import Target
from ipu_core.chip.tile import Bound
from ipu_core.graph.codelet import Input, Output, Param
from ipu_core.library.elementwise import Rounded
from ipu_core.library.folding import fold_axis
from ipu_core.library.matmul.chains import BlockPosition
from ipu_core.placement.convolution.sizes import Convolution, along, chain_cycles
from ipu_core.placement.cuts import PlacementProblem, stage_cycles
from lowprec import Accumulation, FloatFormat, Key
from lowprec import float16 as FLOAT16
from lowprec.values.rounding import NEAREST_EVEN
from lowprec.values.windows import BlockPlace

Array = npt.NDArray[Any]
Axes = Sequence[int | None]


def fold(array: Array, into: Axes) -> Array:
    """Joins every leading vertex axis to the own axis (negative) that its blocks follow each other along."""
    for axis in into:
        folded = fold_axis(array, 0, axis)
        assert folded is not None, (array.shape, array.strides, into)  # blocks of one length follow each other
        array = folded
    return array


def runs_of(vertices: Sequence[int], steps: Sequence[int], lengths: Sequence[int]) -> list[tuple[slice, ...]]:
    """Vertices whose blocks follow each other along every vertex axis: all along an axis, or one by one where other
    elements lie between their blocks, which are as long as the `lengths` and begin `steps` apart."""
    axes = zip(vertices, steps, lengths, strict=False)  # a sum's last own axes have no vertex axes
    each = [[slice(i, i + 1) for i in range(n)] if step != length else [slice(0, n)] for n, step, length in axes]
    return list(itertools.product(*each))


class _Chains(Rounded):
    """Base of the chains of images and of weights: windows, the other operand, and the place of blocks and part."""

    x = Input(None, ndim=7)
    other = Input(None, ndim=5)
    out = Output(None, ndim=5)
    accumulation: Any = Param()
    convolution: Any = Param()
    place: Any = Param()
    steps: Any = Param()
    span: Any = Param(())
    terms: Any = Param(0)
    operation_name: ClassVar[str]
    into: ClassVar[tuple[Axes, Axes]]

    def prepare(self) -> None:
        """Folds the blocks into one call; of pieces of blocks, which have others between them, into one for each."""
        order: Accumulation = self.accumulation
        if self.draws is not None and order.accumulate == FLOAT16:
            raise NotImplementedError("a convolution that accumulates in float16 draws no bits of the tiles' own")
        self._kernels = [self._kernel(blocks) for blocks in runs_of(self.out.shape[:5], self.steps, self.out.shape[5:])]

    def _kernel(self, blocks: tuple[slice, ...]) -> Bound:
        """The call of some of the blocks, which follow each other along every axis."""
        x, other = fold(self.x[blocks], self.into[0]), fold(self.other[blocks], self.into[1])
        out = self._in_order(fold(self.out[blocks], (-5, -4, -3, -2, -1)))
        return tile_convolution.convolution_part(
            self.operation_name, x, other, out, self.accumulation, self._place(blocks), self.span or None,
            self.rounding if self.draws is None else NEAREST_EVEN, self.control,
        )  # fmt: skip

    def _place(self, blocks: tuple[slice, ...]) -> BlockPlace:
        """Where the first of the blocks lies in the whole result."""
        lies: BlockPlace = self.place
        start = [run.start * step for run, step in zip(blocks, self.steps, strict=True)]
        return lies._replace(
            row=lies.row + start[0] * lies.outer + start[1] * lies.inner + start[2],
            batch=lies.batch + start[3],
            column=lies.column + start[4],
        )

    def _in_order(self, out: Array) -> Array:
        return out

    def compute(self) -> None:
        """Runs the kernels."""
        for kernel in self._kernels:
            kernel(self.key)

    def cycles(self, target: Target) -> int:
        """Cycles of each vertex."""
        shape: Convolution = self.convolution
        return int(
            chain_cycles(PlacementProblem(target, shape, self.accumulation), along(self.out.shape[-5:]), self.terms)
        )


class ImageChains(_Chains):
    """Sums of a convolution: windows (n, rows, columns, kh, kw, groups, C) times a weight (kh, kw, groups, C, N)."""

    operation_name = "conv2d"
    into = (-7, -6, -5, -2, None), (None, None, None, -3, -1)


class WeightChains(_Chains):
    """Sums of a weight gradient: windows times an output gradient (n, rows, columns, groups, N).

    With a partial result, which it may overwrite, each chain goes on from there, at a border of groups.
    """

    operation_name = "conv2d_weight_gradient"
    into = (-4, -3, -1, -2, None), (None, None, None, -2, -1)
    partial = Input(None, ndim=5, optional=True)

    def _kernel(self, blocks: tuple[slice, ...]) -> Bound:
        """The call of some of the blocks; where chains go on, a product for every kernel position and group."""
        if self.partial is None:
            return super()._kernel(blocks)
        x, other = fold(self.x[blocks], self.into[0]), fold(self.other[blocks], self.into[1])
        partial, out = (fold(one[blocks], (-5, -4, -3, -2, -1)) for one in (self.partial, self.out))
        (high, wide, channels, groups, _), place = out.shape, self._place(blocks)
        first, last = self.span or (0, math.prod(x.shape[:3]))
        # the windows' positions do not lie in a row: they are copied to where they do
        left = np.empty((groups, high, wide, channels, last - first), x.dtype)
        right = np.empty((groups, 1, 1, last - first, out.shape[4]), other.dtype)
        rows = place.row + np.arange(high)[:, None] * place.outer + np.arange(wide) * place.inner
        batches = place.batch + np.arange(groups)[:, None, None]
        rounding = self.rounding if self.draws is None else NEAREST_EVEN
        call = tile.matmul_part(
            left, right, out.transpose(3, 0, 1, 2, 4), self.accumulation,
            BlockPosition(rows[None], place.column, place.group, batches), rounding, self.control,
            partial.transpose(3, 0, 1, 2, 4),
        )  # fmt: skip

        def goes_on(key: Key | None) -> None:
            left[...] = x.transpose(5, 3, 4, 6, 0, 1, 2).reshape(*left.shape[:4], -1)[..., first:last]
            right[:, 0, 0] = other.transpose(3, 0, 1, 2, 4).reshape(groups, -1, out.shape[4])[:, first:last]
            call(key)

        return goes_on

    def _in_order(self, out: Array) -> Array:
        return out.transpose(0, 1, 3, 2, 4)  # the plan has (kh, kw, C, groups, N), lowprec groups first


class SumBlocks(Rounded):
    """Sums parts (P, result axes) in float32, ascending, and rounds once to the accumulator's or the result's format.

    Vertex axes are the first three of the result; a vertex has all groups, and some of the outputs.
    """

    parts = Input(None, ndim=6)
    out = Output(None, ndim=5)
    accumulation: Any = Param()
    place: Any = Param()
    steps: Any = Param()
    final = Param(True)
    index = Param(0)
    _kernels: Sequence[Bound]

    def prepare(self) -> None:
        """Folds the blocks; sums along the first two axes and the groups of the result are batched."""
        fmt = self.accumulation.out if self.final else self.accumulation.accumulate
        if self.draws is not None:
            # not folded: draws go vertex by vertex, and a folded view would lose which result is whose
            parts = np.moveaxis(self.parts, -6, 0)
            self._kernels = [tile_random.sum_parts(parts, self.out, fmt, self.control, self.draws)]
            return
        # vertices along the first three axes lie in a row, those of pieces apart; a share of the outputs is a group
        runs = runs_of(self.out.shape[:3], self.steps, self.out.shape[3:])
        self._kernels = [self._sum(blocks, fmt) for blocks in runs]

    def _sum(self, blocks: tuple[slice, ...], fmt: FloatFormat) -> Bound:
        """The call of some of the blocks, which follow each other along every axis."""
        parts, out = fold(self.parts[blocks], (-5, -4, -3)), fold(self.out[blocks], (-5, -4, -3))
        high, wide, groups = out.shape[0], out.shape[1], out.shape[3]
        lies, start = self.place, [run.start * step for run, step in zip(blocks, self.steps, strict=True)]
        # the result seen as a matrix, a row for each place and a product of the batch for each convolution group
        rows = lies.row + (start[0] + np.arange(high)[:, None]) * lies.outer + (start[1] + np.arange(wide)) * lies.inner
        place = BlockPosition(rows[None] + start[2], lies.column, 0, lies.batch + np.arange(groups)[:, None, None])
        tag: Literal["stage", "output"] = "output" if self.final else "stage"
        batched = parts.transpose(4, 1, 2, 0, 3, 5), out.transpose(3, 0, 1, 2, 4)
        return tile.sum_parts(*batched, fmt, tag, self.index, place, self.rounding, self.control)

    def compute(self) -> None:
        """Runs the kernels."""
        for kernel in self._kernels:
            kernel(self.key)

    def cycles(self, target: Target) -> int:
        """Cycles of each vertex."""
        results = math.prod(self.out.shape[-5:])
        return int(stage_cycles(target, self.parts.shape[-6], np.asarray(results), self.parts.itemsize))
