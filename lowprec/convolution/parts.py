"""Convolutions' sums on windows that lie anywhere: what a tile of a machine computes of them, and the weight gradient.

Windows have the axes (images, rows, columns, kernel rows, kernel columns, groups, channels) and any strides: a view
that `lowprec.values.windows.window_view` makes of padded images, or a part of one. `span` picks groups of products (see
`lowprec.convolution`) out of those that the operands hold, as first and last (exclusive): a part of a split sum.
"""

from __future__ import annotations

from typing import Protocol

import numpy.typing as npt

from lowprec import backends, threads
from lowprec._caching import cached
from lowprec.types import Array, Span
from lowprec.values.accumulation import Accumulation
from lowprec.values.convolution_task import ConvolutionTask
from lowprec.values.keys import KeyLike
from lowprec.values.operands import factor_dtypes, operand_format
from lowprec.values.rounding import Rounding
from lowprec.values.sum_rules import part_rules
from lowprec.values.windows import BlockPlace


class PreparedBlock(Protocol):
    """Checked sums for operands of two dtypes."""

    def __call__(
        self,
        windows: Array,
        other: Array,
        out: Array,
        place: BlockPlace,
        key: KeyLike | None = None,
        span: Span | None = None,
    ) -> None: ...


def prepare_correlation(
    x_dtype: npt.DTypeLike, weight_dtype: npt.DTypeLike, accumulation: Accumulation, rounding: Rounding
) -> PreparedBlock:
    """One chain per element of a convolution: f(windows, weight, out, place, key=None, span=None).

    `weight` is (kh, kw, groups, C, N), `out` (images, rows, columns, groups, N) in the storage dtype of the
    accumulator. Of the Accumulation its group, accumulator and adder count.

    Raises:
        TypeError, ValueError: as `lowprec.conv2d`.
    """
    return _prepared("correlate_windows", x_dtype, weight_dtype, accumulation, rounding)


def prepare_weight_sums(
    x_dtype: npt.DTypeLike, gradient_dtype: npt.DTypeLike, accumulation: Accumulation, rounding: Rounding
) -> PreparedBlock:
    """One chain per element of a weight gradient: f(windows, gradient, out, place, key=None, span=None).

    `gradient` is (images, rows, columns, groups, N), `out` (kh, kw, groups, C, N) in the storage dtype of the
    accumulator; `span` counts output positions, not groups. Of the Accumulation its group, accumulator and adder count.

    Raises:
        TypeError, ValueError: as `lowprec.conv2d`.
    """
    return _prepared("weight_sums", x_dtype, gradient_dtype, accumulation, rounding)


@cached
def _prepared(
    name: str, x: npt.DTypeLike, other: npt.DTypeLike, accumulation: Accumulation, rounding: Rounding
) -> PreparedBlock:
    """The checked call of the backends' function of a name, `correlate_windows` or `weight_sums`."""
    part = accumulation.one_part()
    # Here no array is there to be converted, as `conv2d` does.
    for fmt in map(operand_format, factor_dtypes(x, other, part.adder)):
        if not (fmt.zero and fmt.signed):
            raise TypeError(f"{fmt.name} has no zero or no negative numbers; convert it, for example to bfloat16")
    # Of the part: it is stored in the accumulator's format, not in that of the whole result.
    rules = part_rules(part, rounding)

    def call(
        windows: Array,
        other: Array,
        out: Array,
        place: BlockPlace,
        key: KeyLike | None = None,
        span: Span | None = None,
    ) -> None:
        task = ConvolutionTask(part, rules, key, place, span, threads.current())
        # By name, at the call: the backend in force may be another one than when this was prepared.
        getattr(backends.current(), name)(windows, other, task, out)

    return call
