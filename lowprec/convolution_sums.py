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
from lowprec.backends.cpu.convolution import turned_panel, window_panel
from lowprec.caching import cached
from lowprec.convolution_operands import as_order
from lowprec.formats import FormatLike
from lowprec.keys import KeyLike
from lowprec.sums import Accumulator, Order, operand_format
from lowprec.sums import accumulator as make_accumulator
from lowprec.windows import Place

Array = npt.NDArray[Any]
Span = tuple[int, int]
PANEL_BYTES = 1 << 23
SHALLOW = 16
"""With fewer channels in a group images are laid out, and panels copied, along lines of windows, not channels."""


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
        weight_sums(windows, other, sums, order, key, place, span, out)

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


def weight_sums(
    windows: Array,
    gradient: Array,
    sums: Accumulator,
    order: Order,
    key: KeyLike | None,
    place: Place,
    span: Span | None,
    out: Array,
) -> None:
    """Writes into out (kh, kw, groups, C, N) the products of windows and gradient over all positions, or a span."""
    groups, columns = gradient.shape[3:]
    count = gradient.shape[0] * gradient.shape[1] * gradient.shape[2]
    positions = slice(None) if span is None else slice(*span)
    bits = gradient.view(f"u{gradient.itemsize}")  # integers are copied as they are; some float types one by one
    right = bits.transpose(3, 0, 1, 2, 4).reshape(groups, count, columns).view(gradient.dtype)[:, positions]
    if not sums.stochastic:
        place = place._replace(outer=out.shape[1] * out.shape[3], inner=out.shape[3])
    call = backends.current().product(windows.dtype, gradient.dtype, sums, order)
    batches = np.arange(place.batch, place.batch + groups)
    channels = out.shape[3]
    for high, wide in _kernel_blocks(out.shape, count * groups * channels * windows.itemsize, place):
        piece = windows[:, :, :, high, wide]
        fill = turned_panel if piece.strides[6] > piece.strides[2] else window_panel  # along what lies together
        panel = fill(np.empty(piece.size, piece.dtype), piece, channels)[:, positions]
        row = place.row + high.start * place.outer + wide.start * place.inner
        left = panel.swapaxes(1, 2)
        result = call(left, right, key, row, place.column, place.group, batches, None, threads.current())
        target = out[high, wide]
        target[...] = result.reshape(groups, *target.shape[:2], channels, columns).transpose(1, 2, 0, 3, 4)


def _kernel_blocks(shape: tuple[int, ...], position_bytes: int, place: Place) -> list[tuple[slice, slice]]:
    """Runs of kernel positions whose panels are not too large and whose rows follow each other."""
    high, wide, _groups, channels = shape[:4]
    if place.joined((high, wide, channels)) and high * wide * position_bytes <= PANEL_BYTES:
        return [(slice(0, high), slice(0, wide))]
    if place.joined((1, wide, channels)) and wide * position_bytes <= PANEL_BYTES:
        return [(slice(i, i + 1), slice(0, wide)) for i in range(high)]
    return [(slice(i, i + 1), slice(j, j + 1)) for i in range(high) for j in range(wide)]
