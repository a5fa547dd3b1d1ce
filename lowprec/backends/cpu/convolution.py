"""Convolutions by the compiled products: windows are copied into panels, block by block, and multiplied."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from lowprec.backends.cpu.dense_convolution import dense_sums, is_dense
from lowprec.backends.cpu.narrow_convolution import is_narrow, narrow_sums
from lowprec.backends.cpu.products import product
from lowprec.backends.cpu.thin_convolution import as_lanes, is_thin, thin_sums
from lowprec.integers import ceil_div
from lowprec.types import Array, Pair
from lowprec.values.accumulation import Accumulation
from lowprec.values.convolution_task import ConvolutionTask
from lowprec.values.windows import contiguous, window_view, with_zeros

PANEL_BYTES = 1 << 20
"""About so many bytes of windows are copied at a time, and multiplied while they lie in cache."""
NARROW = 8
"""So few outputs of a group leave most lanes of a vector empty: windows take their place as the product's columns."""


def correlate(
    x: Array,
    weight: Array,
    stride: Pair,
    dilation: Pair,
    padding: tuple[Pair, Pair],
    task: ConvolutionTask,
    out: Array,
) -> None:
    """Writes into out (n, oh, ow, groups, N) the products of the windows of x (n, h, w, groups, C) with weight.

    Args:
        weight: (kh, kw, groups, C, N).
        padding: zeros around x, as of `with_zeros`.
        task: how; its place is out's, its span is all.
    """
    # From the most particular way to the most general; all give the same bits.
    if is_dense(x, weight.shape, out.shape[2], stride, dilation, task):
        dense_sums(x, weight, stride, dilation, padding, task, out)
        return
    if is_narrow(weight.shape, out.shape[2], stride, dilation, task):
        narrow_sums(x, weight, stride, dilation, padding, task, out)
        return
    x = with_zeros(x, padding)
    if is_thin(x.dtype, weight, task):
        windows = window_view(as_lanes(x), weight.shape[:2], stride, dilation, out.shape[1:3])
        _thin(windows, weight, task, out)
        return
    # The copy of windows into panels reads runs of memory: of neighbouring windows, or of the channels of a position.
    if _turned(weight, task):
        x = contiguous(x.transpose(3, 4, 0, 1, 2)).transpose(2, 3, 4, 0, 1)
    elif weight.shape[0] * weight.shape[1] > 1 and x.strides[-1] != x.itemsize:
        x = contiguous(x)
    windows = window_view(x, weight.shape[:2], stride, dilation, out.shape[1:3])
    correlate_windows(windows, weight, task, out)


def correlate_windows(windows: Array, weight: Array, task: ConvolutionTask, out: Array) -> None:
    """Writes into out (n, oh, ow, groups, N) the products of windows (n, oh, ow, kh, kw, groups, C) with weight.

    Args:
        weight: (kh, kw, groups, C, N).
        task: how; its place is out's.
    """
    if is_thin(windows.dtype, weight, task):
        _thin(windows, weight, task, out)
        return
    turned = _turned(weight, task)
    task, depth, terms = _padded(task, weight.shape[3])
    factors = weight_matrix(weight, depth)
    dtypes = (weight.dtype, windows.dtype) if turned else (windows.dtype, weight.dtype)
    # Rows number random bits alone: without any, all lines of windows are one product.
    if not task.rules.stochastic:
        task = task._replace(place=task.place._replace(outer=out.shape[1] * out.shape[2], inner=out.shape[2]))
    job = _PanelJob(product(*dtypes, task.accumulation, task.rules), factors[:, terms], task, turned)
    groups = windows.shape[5]
    # A 1 x 1 kernel's windows are the images themselves: a product of operands where they lie.
    direct = not turned and depth == weight.shape[3] and weight.shape[0] * weight.shape[1] == 1
    runs = list(blocks(out.shape[:3], groups * factors.shape[1] * windows.itemsize))
    most = max(((i.stop - i.start) * (r.stop - r.start) for i, r in runs), default=0) * out.shape[2]
    # Zeros once: no window ever writes the channels that are made up, and all blocks share the memory.
    panel = np.zeros(0 if direct else most * groups * factors.shape[1], windows.dtype)
    for images, rows in runs:
        piece = windows[images, rows]
        if direct:
            # NumPy cannot tell what -1 is where there are no elements.
            left = piece.reshape(math.prod(piece.shape[:3]), groups, -1 if piece.size else 0).swapaxes(0, 1)
        else:
            left = turned_panel(panel, piece, depth) if turned else window_panel(panel, piece, depth)
        job.multiply(left[..., terms], images.start, rows.start, out[images, rows])


def _thin(windows: Array, weight: Array, task: ConvolutionTask, out: Array) -> None:
    """As `correlate_windows`, by `thin_sums`, block by block."""
    task, depth, terms = _padded(task, weight.shape[3])
    place = task.place
    factors = weight_matrix(weight, depth)
    runs = list(blocks(out.shape[:3], factors.size))  # of float32: so large that its memory is kept, not faulted anew
    most = max(((i.stop - i.start) * (r.stop - r.start) for i, r in runs), default=0) * out.shape[2]
    buffer = np.empty(most * factors.size, np.float32)
    for images, rows in runs:
        here = place._replace(row=place.row + images.start * place.outer + rows.start * place.inner)
        piece, target = windows[images, rows], out[images, rows]
        thin_sums(buffer, piece, factors, terms, task._replace(place=here), target)


def _turned(weight: Array, task: ConvolutionTask) -> bool:
    """Whether windows are the product's columns and outputs its rows (see NARROW)."""
    return weight.shape[4] <= NARROW and not task.rules.stochastic  # random bits tell rows from columns


def _padded(task: ConvolutionTask, channels: int) -> tuple[ConvolutionTask, int, slice]:
    """A convolution's task as that of a product: the channels of a kernel position are filled up to whole groups.

    So every group of the product ends where one of the convolution does. Channels that are made up give products
    (+0) * (-1) = -0, which leave any sum as it is, -0 and NaN included.

    Returns:
        The product's task; channels of a position, those made up included; and which terms its span is.
    """
    order, span = task.accumulation, task.span
    # Where nothing rounds between groups they may cross kernel positions: nothing has to be filled up.
    plain = span is None and task.rules.step is None and order.splits == 1 and order.adder == "sequential"
    order, group = _grouped(order, channels)
    terms = slice(None) if span is None else slice(span[0] * group, span[1] * group)
    return task._replace(accumulation=order), channels if plain else ceil_div(channels, group) * group, terms


@lru_cache(maxsize=4096)
def _grouped(order: Accumulation, channels: int) -> tuple[Accumulation, int]:
    """The Accumulation with a group of at most so many channels, and that group."""
    group = max(1, min(order.group or channels, channels))
    return replace(order, group=group), group


def weight_matrix(weight: Array, depth: int) -> Array:
    """Weights (kh, kw, groups, C, N) as (groups, kh kw depth, N), -1 where there is no channel; a view if it can be.

    In a copy those axes lie together that lie together in the weight, channels where an input's gradient has turned it:
    it is one of runs of memory.
    """
    high, wide, groups, channels, columns = weight.shape
    rows, row, _, channel, column = weight.strides
    # Kernel positions and channels lie at one stride: the reshape is a view.
    if depth == channels and row == channels * channel and rows == wide * row:
        return weight.transpose(2, 0, 1, 3, 4).reshape(groups, high * wide * depth, columns)
    inner = abs(channel) < abs(column)
    shape = (groups, columns, high, wide, depth) if inner else (groups, high, wide, depth, columns)
    copy = np.empty(shape, weight.dtype)
    terms = copy.transpose(0, 2, 3, 4, 1) if inner else copy
    bits = f"u{weight.itemsize}"  # see `contiguous`
    terms.view(bits)[..., :channels, :] = weight.view(bits).transpose(2, 0, 1, 3, 4)
    # Not 0: the made-up windows are +0, and (+0) * (-1) = -0 leaves a sum of -0 what it is, where +0 would not.
    terms[..., channels:, :] = -1.0
    if inner:
        return copy.reshape(groups, columns, high * wide * depth).swapaxes(1, 2)
    return copy.reshape(groups, high * wide * depth, columns)


def blocks(shape: tuple[int, ...], bytes_per_window: int) -> Iterator[tuple[slice, slice]]:
    """Runs of whole images, or of rows of one image, whose panel has about PANEL_BYTES."""
    images, high, wide = shape
    # Whole lines of windows: `_by_lines` and the rows of random bits need them so.
    lines = max(1, PANEL_BYTES // max(1, bytes_per_window * wide))
    if lines >= high:
        many = max(1, lines // max(1, high))
        for i in range(0, images, many):
            yield slice(i, min(images, i + many)), slice(0, high)
        return
    count = ceil_div(high, lines)
    ends = [high * i // count for i in range(count + 1)]  # even rather than full with a small rest
    for i in range(images):
        for start, stop in pairwise(ends):
            yield slice(i, i + 1), slice(start, stop)


def window_panel(buffer: Array, piece: Array, depth: int) -> Array:
    """The windows piece (n, oh, ow, kh, kw, groups, C) copied into the flat buffer as (groups, n oh ow, kh kw depth).

    Depth is the fastest axis, so what lies beyond C is zero in any shape of piece, once the buffer is.
    """
    shape = piece.shape[5], math.prod(piece.shape[:3]), math.prod(piece.shape[3:5]) * depth
    panel = buffer[: math.prod(shape)].reshape(shape)
    put_windows(panel, piece, depth)
    return panel


def turned_panel(buffer: Array, piece: Array, depth: int) -> Array:
    """As `window_panel`, but windows are the fastest axis."""
    positions, channels = math.prod(piece.shape[3:5]), piece.shape[6]
    shape = piece.shape[5], positions * depth, math.prod(piece.shape[:3])
    panel = buffer[: math.prod(shape)].reshape(shape)
    # Cleared every time: here pieces of other lengths have their made-up channels at other places of the buffer.
    rest = panel.reshape(shape[0], positions, depth, shape[2])[:, :, channels:]
    rest.view(f"u{piece.itemsize}")[...] = 0
    put_windows(panel.swapaxes(1, 2), piece, depth)
    return panel.swapaxes(1, 2)


def put_windows(panel: Array, piece: Array, depth: int) -> None:
    """Copies the windows piece (n, oh, ow, kh, kw, groups, C) into panel (groups, n oh ow, kh kw depth)."""
    bits = f"u{piece.itemsize}"  # integers are copied as they are; some float types of ml_dtypes one by one
    target = panel.view(bits).reshape(piece.shape[5], *piece.shape[:5], depth)[..., : piece.shape[6]]
    target[...] = piece.view(bits).transpose(5, 0, 1, 2, 3, 4, 6)


class _PanelJob(NamedTuple):
    """What all blocks of windows have in common.

    Attributes:
        call: the prepared product.
        factors: the weight as (groups, K, N).
        task: how; its place is that of the whole result.
        turned: whether windows are the product's columns.
    """

    call: Any
    factors: Array
    task: ConvolutionTask
    turned: bool

    def multiply(self, left: Array, image: int, line: int, target: Array) -> None:
        """left (groups, windows, K) times the factors into target (n, oh, ow, groups, N), which begins at a row."""
        place, groups = self.task.place, left.shape[0]
        key, threads = self.task.key, self.task.threads
        row = place.row + image * place.outer + line * place.inner
        if not target.size:
            return
        if not place.joined(target.shape):
            self._by_lines(left, row, target)
            return
        # In a result of another layout, or in a part of one, the reshape may be a copy; then the product gets memory of
        # its own.
        flat = target.reshape(-1, groups, target.shape[4])
        into = flat.swapaxes(0, 1) if np.may_share_memory(flat, target) else None
        batches: Any = np.arange(place.batch, place.batch + groups)
        factors = self.factors
        if groups == 1:  # without the axis of groups the product has more ways to be cut over threads
            left, factors, batches, into = left[0], factors[0], place.batch, None if into is None else into[0]
        if self.turned:
            into = None if into is None else into.swapaxes(-1, -2)
            # Without coordinates: nothing is drawn (`_turned`).
            operands = factors.swapaxes(-1, -2), left.swapaxes(-1, -2)
            result = self.call(*operands, key, 0, 0, 0, batches, into, threads).swapaxes(-1, -2)
        else:
            result = self.call(left, factors, key, row, place.column, place.group, batches, into, threads)
        if into is None:
            target[...] = (result[:, None] if groups == 1 else result.swapaxes(0, 1)).reshape(target.shape)

    def _by_lines(self, left: Array, row: int, target: Array) -> None:
        """As `multiply`, where the block's rows have gaps: one call, with every line of windows as a vertex."""
        images, lines, wide, groups = target.shape[:4]
        place = self.task.place
        rows = row + np.arange(images)[:, None] * place.outer + np.arange(lines) * place.inner
        batches = np.arange(place.batch, place.batch + groups)[:, None, None]
        windows = left.reshape(groups, images, lines, wide, left.shape[2])
        factors, into = self.factors[:, None, None], target.transpose(3, 0, 1, 2, 4)
        coordinates = rows[None], place.column, place.group, batches
        self.call(windows, factors, self.task.key, *coordinates, into, self.task.threads)
