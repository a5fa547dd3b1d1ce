"""Weight gradients of convolutions by the compiled products: chains over all output positions, block by block.

A block of positions is copied out of the windows and multiplied while it lies in cache. Between blocks the sums stand
in float32, which holds every accumulator's values, and the chains of the next block start from them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from lowprec._caching import cached
from lowprec.backends.cpu.convolution import put_windows
from lowprec.backends.cpu.narrow_convolution import is_narrow, narrow_weight_sums
from lowprec.backends.cpu.products import product
from lowprec.integers import ceil_div
from lowprec.types import Array, Pair
from lowprec.values.accumulation import Accumulation
from lowprec.values.convolution_task import ConvolutionTask
from lowprec.values.sum_rules import SumRules, rules_in_float32
from lowprec.values.windows import BlockPlace, window_lines, window_view, with_zeros

WHOLE_BYTES = 1 << 23
"""Of positions that cannot be cut into blocks; if they need more, kernel positions are taken in turn."""
BLOCK_BYTES, LEAST_POSITIONS = 1 << 20, 256
"""A block has about so many bytes; but so many positions that sums are not read and written all the time."""
SHALLOW = 16
"""With fewer channels in a group images are laid out along lines of windows, not channels."""


def correlate_gradient(
    x: Array,
    gradient: Array,
    stride: Pair,
    dilation: Pair,
    padding: tuple[Pair, Pair],
    task: ConvolutionTask,
    out: Array,
) -> None:
    """Writes into out (kh, kw, groups, C, N) the products of the windows of x (n, h, w, groups, C) with gradient.

    Args:
        gradient: (n, oh, ow, groups, N).
        padding: zeros around x, as of `with_zeros`.
        task: how; its place is out's, its span is all.
    """
    if gradient.size and is_narrow(out.shape, gradient.shape[2], stride, dilation, task):
        narrow_weight_sums(x, gradient, stride, dilation, padding, task, out)
        return
    # Copied in runs of neighbouring windows where the channels of a position are too few for a run.
    view = window_lines if x.shape[4] < SHALLOW else window_view
    weight_sums(view(with_zeros(x, padding), out.shape[:2], stride, dilation, gradient.shape[1:3]), gradient, task, out)


def weight_sums(windows: Array, gradient: Array, task: ConvolutionTask, out: Array) -> None:
    """Writes into out (kh, kw, groups, C, N) the products of windows and gradient over all positions, or a span.

    Args:
        windows: (n, oh, ow, kh, kw, groups, C).
        gradient: (n, oh, ow, groups, N).
        task: how; its place is out's.
    """
    place = task.place
    groups, columns = gradient.shape[3:]
    count = gradient.shape[0] * gradient.shape[1] * gradient.shape[2]
    first, last = task.span or (0, count)
    bits = gradient.view(f"u{gradient.itemsize}")  # integers are copied as they are; some float types one by one
    right = bits.transpose(3, 0, 1, 2, 4).reshape(groups, count, columns).view(gradient.dtype)
    # Rows number random bits alone: without any, all kernel positions may be one product.
    if not task.rules.stochastic:
        place = place._replace(outer=out.shape[1] * out.shape[3], inner=out.shape[3])
    calls = _calls(windows.dtype, gradient.dtype, task.accumulation, task.rules)
    batches = np.arange(place.batch, place.batch + groups)
    least = _least(task, last - first)
    # `least` positions are the smallest block there can be, whatever they need.
    for high, wide in _kernel_blocks(out.shape, least * groups * out.shape[3] * windows.itemsize, place):
        row = place.row + high.start * place.outer + wide.start * place.inner
        target = out[high, wide].transpose(2, 0, 1, 3, 4)
        chains = np.empty((groups, math.prod(target.shape[1:4]), columns), np.float32)
        start, initial = first, None
        for panel in _panels(windows[:, :, :, high, wide], first, last, least):
            stop = start + panel.shape[1]
            # The last block's sums are results, in the result's dtype; all others go on, in float32.
            into = chains if stop < last else None
            # Blocks begin at whole groups, so that each group keeps its number among the random bits.
            coordinates = row, place.column, place.group + (start - first) // least, batches
            left = panel.swapaxes(1, 2), right[:, start:stop]
            result = calls[stop == last](*left, task.key, *coordinates, into, task.threads, initial)
            start, initial = stop, chains
        target[...] = result.reshape(target.shape)


@cached
def _calls(x: np.dtype[Any], gradient: np.dtype[Any], accumulation: Accumulation, rules: SumRules) -> tuple[Any, Any]:
    """Two prepared products: of a block from whose float32 sums the next block goes on, and of the last block."""
    return (
        # One stage: the roundings between stages are made once, behind the last block.
        product(x, gradient, replace(accumulation, stages=1), rules_in_float32(rules)),
        product(x, gradient, accumulation, rules),
    )


def _least(task: ConvolutionTask, count: int) -> int:
    """The number of positions of which blocks are multiples, so that a chain is cut only where it may be.

    1: anywhere; the group: where the chain is rounded; `count`, all positions: nowhere.
    """
    order = task.accumulation
    # A float32 chain, product by product: it can stop after any of them, and go on from where it was.
    if order.splits == 1 and order.adder == "sequential" and task.rules.step is None:
        return 1
    return max(1, min(order.group, count) if order.splits == 1 and order.group else count)


def _panels(windows: Array, first: int, last: int, least: int) -> Iterator[Array]:
    """The windows (n, oh, ow, kh, kw, groups, C) of positions [first, last) as (groups, positions, kh kw C), in blocks.

    All blocks but the last one have a multiple of `least` positions. They share memory: each is valid until the next.
    """
    _images, high, wide, *kernel, groups, channels = windows.shape
    terms = math.prod(kernel) * channels
    bits = windows.view(f"u{windows.itemsize}")
    positions = max(LEAST_POSITIONS, BLOCK_BYTES // max(1, groups * terms * windows.itemsize))
    lines = max(1, positions // max(1, wide))
    from_line, to_line = (first // wide, ceil_div(last, wide)) if first < last else (0, 0)
    # Up to least - 1 positions are left over from the block before.
    most = min(lines, to_line - from_line) * wide + least - 1
    if windows.strides[6] > windows.strides[2]:  # along what lies together
        buffer = np.empty((groups, terms, most), bits.dtype).swapaxes(1, 2)
    else:
        buffer = np.empty((groups, most, terms), bits.dtype)
    # A span without positions gives one empty block, so that the result is still written.
    if first >= last:
        yield buffer[:, :0].view(windows.dtype)
    skip, held = first - from_line * wide, 0
    for line in range(from_line, to_line, lines):
        end = min(line + lines, to_line)
        for images, rows in _boxes(line, end, high):
            piece = bits[images, rows]
            count = math.prod(piece.shape[:3])
            put_windows(buffer[:, held : held + count], piece, channels)
            held += count
        if end == to_line:
            held -= end * wide - last
        # Only where a chain may be cut: the rest waits for the next lines.
        take = held - skip if end == to_line else (held - skip) // least * least
        if take:
            yield buffer[:, skip : skip + take].view(windows.dtype)
        rest = held - skip - take
        if skip + take:
            # Fewer than `least`, moved to the front: NumPy copies through memory of its own where the two overlap.
            buffer[:, :rest] = buffer[:, skip + take : held]
        skip, held = 0, rest


def _boxes(line: int, end: int, high: int) -> Iterator[tuple[slice, slice]]:
    """The lines [line, end) of images of `high` lines each: runs of whole images, or of lines of one image."""
    while line < end:
        image, row = divmod(line, high)
        # Within an image its own lines come first; whole images after them are one copy.
        many = 1 if row else max(1, (end - line) // high)
        stop = min(many * high, row + end - line)
        yield slice(image, image + many), slice(row, min(stop, high))
        line += stop - row


def _kernel_blocks(shape: tuple[int, ...], position_bytes: int, place: BlockPlace) -> list[tuple[slice, slice]]:
    """Runs of kernel positions whose panels are not too large and whose rows follow each other."""
    high, wide, _groups, channels = shape[:4]
    # A product numbers its rows in a row: kernel positions whose rows have gaps need products of their own.
    if place.joined((high, wide, channels)) and high * wide * position_bytes <= WHOLE_BYTES:
        return [(slice(0, high), slice(0, wide))]
    if place.joined((1, wide, channels)) and wide * position_bytes <= WHOLE_BYTES:
        return [(slice(i, i + 1), slice(0, wide)) for i in range(high)]
    return [(slice(i, i + 1), slice(j, j + 1)) for i in range(high) for j in range(wide)]
