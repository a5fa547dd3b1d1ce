"""Convolutions by the compiled products: windows are copied into panels, block by block, and multiplied."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from lowprec.backends.cpu.products import product
from lowprec.keys import KeyLike
from lowprec.sums import Accumulator, Order
from lowprec.windows import Pair, contiguous, window_view

Array = npt.NDArray[Any]
PANEL_BYTES = 1 << 20
NARROW = 8
"""So few outputs of a group leave most lanes of a vector empty: windows take their place as the product's columns."""


def correlate(
    x: Array,
    weight: Array,
    stride: Pair,
    dilation: Pair,
    accumulator: Accumulator,
    order: Order,
    key: KeyLike | None,
    place: tuple[int, int, int],
    out: Array,
    threads: int,
) -> None:
    """Writes into out (n, oh, ow, groups, N) the products of the windows of x (n, h, w, groups, C) with weight.

    Args:
        weight: (kh, kw, groups, C, N).
        place: row and column of out's first element and number of its first group (batch), for the random bits.
    """
    turned = weight.shape[4] <= NARROW and not accumulator.stochastic  # random bits tell rows from columns
    if turned:
        x = contiguous(x.transpose(3, 4, 0, 1, 2)).transpose(2, 3, 4, 0, 1)
    elif weight.shape[0] * weight.shape[1] > 1 and x.strides[-1] != x.itemsize:
        x = contiguous(x)
    order, depth = channel_padding(order, accumulator, x.shape[-1])
    windows = window_view(x, weight.shape[:2], stride, dilation, out.shape[1:3])
    factors = weight_matrix(weight, depth)
    dtypes = (weight.dtype, x.dtype) if turned else (x.dtype, weight.dtype)
    call = product(*dtypes, accumulator, order)
    row, column, batch = place
    batches = batch if x.shape[3] == 1 else np.arange(batch, batch + x.shape[3])
    direct = not turned and depth == x.shape[-1] and weight.shape[0] * weight.shape[1] == 1
    runs = list(blocks(out.shape[:3], x.shape[3] * factors.shape[1] * x.itemsize))
    most = max(((i.stop - i.start) * (r.stop - r.start) for i, r in runs), default=0) * out.shape[2]
    panel = np.zeros(0 if direct else most * x.shape[3] * factors.shape[1], x.dtype)
    for images, rows in runs:
        target = out[images, rows]
        piece = windows[images, rows]
        lines = piece.shape[0] * piece.shape[1] * piece.shape[2]
        if direct:
            left = piece.reshape(lines, *x.shape[3:]).swapaxes(0, 1)
        else:
            left = _turned_panel(panel, piece, depth) if turned else _panel(panel, piece, depth)
        first = row + (images.start * out.shape[1] + rows.start) * out.shape[2]
        _multiply(call, left, factors, key, (first, column), batches, target, turned, threads)


def channel_padding(order: Order, accumulator: Accumulator, channels: int) -> tuple[Order, int]:
    """The order of a product whose groups end with every kernel position, and the channels that this takes.

    Missing channels are made up by products (+0) * (-1) = -0, which leave any sum as it is, -0 and NaN included.
    """
    group = max(1, min(order.group or channels, channels))
    plain = accumulator.step is None and order.splits == 1 and order.adder == "sequential"
    return replace(order, group=group), channels if plain else -(-channels // group) * group


def weight_matrix(weight: Array, depth: int) -> Array:
    """Weights (kh, kw, groups, C, N) as (groups, kh kw depth, N), -1 where there is no channel."""
    high, wide, groups, channels, columns = weight.shape
    result = np.empty((groups, high, wide, depth, columns), weight.dtype)
    result[..., :channels, :] = weight.transpose(2, 0, 1, 3, 4)
    result[..., channels:, :] = -1.0
    return result.reshape(groups, high * wide * depth, columns)


def blocks(shape: tuple[int, ...], bytes_per_window: int) -> Iterator[tuple[slice, slice]]:
    """Runs of whole images, or of rows of one image, whose panel has about PANEL_BYTES."""
    images, high, wide = shape
    lines = max(1, PANEL_BYTES // max(1, bytes_per_window * wide))
    if lines >= high:
        many = max(1, lines // max(1, high))
        for i in range(0, images, many):
            yield slice(i, min(images, i + many)), slice(0, high)
        return
    count = -(-high // lines)
    ends = [high * i // count for i in range(count + 1)]  # even rather than full with a small rest
    for i in range(images):
        for start, stop in pairwise(ends):
            yield slice(i, i + 1), slice(start, stop)


def _panel(buffer: Array, piece: Array, depth: int) -> Array:
    """The windows piece (n, oh, ow, kh, kw, groups, C) copied into the flat buffer as (groups, n oh ow, kh kw depth).

    Depth is the fastest axis, so what lies beyond C is zero in any shape of piece, once the buffer is.
    """
    groups, channels = piece.shape[5:]
    shape = (groups, *piece.shape[:5], depth)
    panel = buffer[: math.prod(shape)].reshape(shape)
    bits = f"u{piece.itemsize}"  # integers are copied as they are; some float types of ml_dtypes one by one
    panel.view(bits)[..., :channels] = piece.view(bits).transpose(5, 0, 1, 2, 3, 4, 6)
    return panel.reshape(groups, math.prod(shape[1:4]), math.prod(shape[4:]))


def _turned_panel(buffer: Array, piece: Array, depth: int) -> Array:
    """As `_panel`, but windows are the fastest axis."""
    groups, channels = piece.shape[5:]
    shape = (groups, *piece.shape[3:5], depth, *piece.shape[:3])
    panel = buffer[: math.prod(shape)].reshape(shape)
    bits = f"u{piece.itemsize}"
    panel.view(bits)[:, :, :, :channels] = piece.view(bits).transpose(5, 3, 4, 6, 0, 1, 2)
    panel.view(bits)[:, :, :, channels:] = 0
    return panel.reshape(groups, math.prod(shape[1:4]), math.prod(shape[4:])).swapaxes(1, 2)


def _multiply(
    call: Any,
    left: Array,
    factors: Array,
    key: KeyLike | None,
    start: Pair,
    batches: Any,
    target: Array,
    turned: bool,
    threads: int,
) -> None:
    """left (groups, windows, K) times factors (groups, K, N) into target (n, oh, ow, groups, N)."""
    groups, columns = target.shape[3:]
    flat = target.reshape(-1, groups, columns) if target.size else target[:0]
    if groups == 1:
        left, factors = left[0], factors[0]
    direct = target.size > 0 and np.may_share_memory(flat, target)
    into = None if not direct else flat[:, 0] if groups == 1 else flat.swapaxes(0, 1)
    if turned:
        into = None if into is None else into.swapaxes(-1, -2)
        result = call(factors.swapaxes(-1, -2), left.swapaxes(-1, -2), key, 0, 0, 0, batches, into, threads)
        result = result.swapaxes(-1, -2)
    else:
        result = call(left, factors, key, *start, 0, batches, into, threads)
    if not direct and target.size:
        result = result[:, None] if groups == 1 else result.swapaxes(0, 1)
        target[...] = result.reshape(target.shape)
