"""Convolutions' sums on windows that lie anywhere: what a tile of a machine computes of them, and the weight gradient.

Windows have the axes (images, rows, columns, kernel rows, kernel columns, groups, channels) and any strides: a view
that `lowprec.windows.window_view` makes of padded images, or a part of one. `span` picks groups of products (see
`lowprec.convolution`) out of those that the operands hold, as first and last (exclusive): a part of a split sum.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from lowprec import backends, threads
from lowprec.caching import cached
from lowprec.convolution_operands import as_order
from lowprec.formats import FormatLike
from lowprec.keys import KeyLike
from lowprec.sums import Accumulator, Order, operand_format
from lowprec.sums import accumulator as make_accumulator
from lowprec.windows import Place

Array = npt.NDArray[Any]
Span = tuple[int, int]


class PreparedPart(Protocol):
    """Checked sums for operands of two dtypes."""

    def __call__(
        self,
        windows: Array,
        other: Array,
        out: Array,
        place: Place,
        key: KeyLike | None = None,
        span: Span | None = None,
    ) -> None: ...


@cached
def prepare_correlation(
    x_dtype: npt.DTypeLike,
    weight_dtype: npt.DTypeLike,
    accumulate: FormatLike = "float32",
    group: int | None = 16,
    rounding: str = "nearest_even",
    random_bits: int = 16,
    overflow: str | None = None,
    infinite_input: str | None = None,
    adder: str = "sequential",
) -> PreparedPart:
    """One chain per element of a convolution: f(windows, weight, out, place, key=None, span=None).

    `weight` is (kh, kw, groups, C, N), `out` (images, rows, columns, groups, N) in the storage dtype of `accumulate`.

    Raises:
        TypeError, ValueError: as `lowprec.conv2d`.
    """
    sums, order = _prepared(
        x_dtype, weight_dtype, accumulate, group, rounding, random_bits, overflow, infinite_input, adder
    )

    def call(
        windows: Array, other: Array, out: Array, place: Place, key: KeyLike | None = None, span: Span | None = None
    ) -> None:
        backends.current().correlate_windows(windows, other, sums, order, key, place, span, out, threads.current())

    return call


@cached
def prepare_weight_sums(
    x_dtype: npt.DTypeLike,
    gradient_dtype: npt.DTypeLike,
    accumulate: FormatLike = "float32",
    group: int | None = 16,
    rounding: str = "nearest_even",
    random_bits: int = 16,
    overflow: str | None = None,
    infinite_input: str | None = None,
    adder: str = "sequential",
) -> PreparedPart:
    """One chain per element of a weight gradient: f(windows, gradient, out, place, key=None, span=None).

    `gradient` is (images, rows, columns, groups, N), `out` (kh, kw, groups, C, N) in the storage dtype of
    `accumulate`; `span` counts output positions, not groups.

    Raises:
        TypeError, ValueError: as `lowprec.conv2d`.
    """
    sums, order = _prepared(
        x_dtype, gradient_dtype, accumulate, group, rounding, random_bits, overflow, infinite_input, adder
    )

    def call(
        windows: Array, other: Array, out: Array, place: Place, key: KeyLike | None = None, span: Span | None = None
    ) -> None:
        backends.current().weight_sums(windows, other, sums, order, key, place, span, out, threads.current())

    return call


def _prepared(
    x_dtype: npt.DTypeLike,
    other_dtype: npt.DTypeLike,
    accumulate: FormatLike,
    group: int | None,
    rounding: str,
    random_bits: int,
    overflow: str | None,
    infinite_input: str | None,
    adder: str,
) -> tuple[Accumulator, Order]:
    """The checked Accumulator and Order of chains."""
    dtypes = np.dtype(x_dtype), np.dtype(other_dtype)
    for fmt in map(operand_format, dtypes):
        if not (fmt.zero and fmt.signed):
            raise TypeError(f"{fmt.name} has no zero or no negative numbers; convert it, for example to bfloat16")
    sums = make_accumulator(accumulate, None, rounding, random_bits, overflow, infinite_input)
    return sums, as_order(group, 1, 1, adder, *dtypes)
