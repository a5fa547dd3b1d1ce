"""Convolutions element by element: the terms of every kernel position, in groups that do not cross it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lowprec.backends.reference.chains import AddGroup, Element, dot, group_adder, round_sum, sum_stages
from lowprec.backends.reference.products import stored_values
from lowprec.integers import ceil_div
from lowprec.types import Array, Pair
from lowprec.values.convolution_task import ConvolutionTask
from lowprec.values.keys import key_value
from lowprec.values.operands import operand_format
from lowprec.values.windows import window_view, with_zeros

Terms = tuple[list[float], list[float]]


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
    windows = window_view(with_zeros(x, padding), weight.shape[:2], stride, dilation, out.shape[1:3])
    correlate_windows(windows, weight, task, out)


def correlate_windows(windows: Array, weight: Array, task: ConvolutionTask, out: Array) -> None:
    """Writes into out (n, oh, ow, groups, N) the products of windows (n, oh, ow, kh, kw, groups, C) with weight.

    Args:
        weight: (kh, kw, groups, C, N).
        task: how; its place is out's.
    """
    with np.errstate(invalid="ignore"):
        values, factors = windows.astype(np.float64), weight.astype(np.float64)
    place, bits = task.place, 0 if task.key is None else key_value(task.key)
    first, last = task.span or (0, None)
    sums, add = np.empty(out.shape, np.float64), _adder(windows, weight, task)
    for image, high, wide, group, column in np.ndindex(*out.shape):
        window = values[image, high, wide, :, :, group]
        # A span counts groups, not products: a split sum is cut where it is rounded.
        terms = groups_of(window, factors[:, :, group, :, column], task.accumulation.group)[first:last]
        row = place.row + image * place.outer + high * place.inner + wide
        here = Element(bits, place.batch + group, row, place.column + column, place.group)
        sums[image, high, wide, group, column] = ragged_dot(terms, task, here, add)
    out[...] = stored_values(sums, task.rules, None)


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
    windows = window_view(with_zeros(x, padding), out.shape[:2], stride, dilation, gradient.shape[1:3])
    weight_sums(windows, gradient, task, out)


def weight_sums(windows: Array, gradient: Array, task: ConvolutionTask, out: Array) -> None:
    """Writes into out (kh, kw, groups, C, N) the products of windows and gradient over all positions, or a span.

    Args:
        windows: (n, oh, ow, kh, kw, groups, C).
        gradient: (n, oh, ow, groups, N).
        task: how; its place is out's.
    """
    with np.errstate(invalid="ignore"):
        values, factors = windows.astype(np.float64), gradient.astype(np.float64)
    place, bits = task.place, 0 if task.key is None else key_value(task.key)
    first, last = task.span or (0, None)
    sums, add = np.empty(out.shape, np.float64), _adder(windows, gradient, task)
    for high, wide, group, channel, column in np.ndindex(*out.shape):
        # Over (image, row, column) in C order: all positions are one chain, whose groups may reach into the next image.
        left = values[:, :, :, high, wide, group, channel].ravel()[first:last].tolist()
        right = factors[:, :, :, group, column].ravel()[first:last].tolist()
        row = place.row + high * place.outer + wide * place.inner + channel
        here = Element(bits, place.batch + group, row, place.column + column, place.group)
        sums[high, wide, group, channel, column] = dot(left, right, task.accumulation, task.rules, here, add)
    out[...] = stored_values(sums, task.rules, None)


def _adder(a: Array, b: Array, task: ConvolutionTask) -> AddGroup:
    return group_adder(task.accumulation, task.rules, operand_format(a.dtype), operand_format(b.dtype))


def groups_of(window: Array, factors: Array, size: int | None) -> list[Terms]:
    """The terms (kh, kw, C) of one element, cut into groups of at most `size` channels of one kernel position."""
    channels = window.shape[-1]
    size = size or max(1, channels)
    return [
        (window[position][c : c + size].tolist(), factors[position][c : c + size].tolist())
        for position in np.ndindex(*window.shape[:2])
        for c in range(0, channels, size)
    ]


def ragged_dot(groups: Sequence[Terms], task: ConvolutionTask, place: Element, add: AddGroup) -> float:
    """One element of a convolution: parts of ceil(groups / splits) groups, rounded after every group, and their sum.

    Not `dot`: the last group of every kernel position may be short.
    """
    order, rules = task.accumulation, task.rules
    length = max(1, ceil_div(len(groups), order.splits))
    parts = []
    for first in range(0, len(groups), length):
        partial = 0.0
        for number, (a, b) in enumerate(groups[first : first + length], place.first_group + first):
            partial = add(partial, a, b)
            partial = round_sum(partial, rules.step, "step", place, number)
        parts.append(partial)
    return sum_stages(parts, order, rules, place)
