"""Convolutions element by element: the terms of every kernel position, in groups that do not cross it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from lowprec.backends.reference.chains import ADD, Place, round_sum, sum_stages
from lowprec.backends.reference.products import stored_values
from lowprec.keys import KeyLike, key_value
from lowprec.sums import Accumulator, Order
from lowprec.windows import Pair, window_view

Array = npt.NDArray[Any]
Terms = tuple[list[float], list[float]]


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
    del threads
    with np.errstate(invalid="ignore"):
        windows = window_view(x.astype(np.float64), weight.shape[:2], stride, dilation, out.shape[1:3])
        factors = weight.astype(np.float64)
    bits = 0 if key is None else key_value(key)
    sums = np.empty(out.shape, np.float64)
    for row, (image, high, wide) in enumerate(np.ndindex(*out.shape[:3])):
        for group in range(out.shape[3]):
            window = windows[image, high, wide, :, :, group]
            for column in range(out.shape[4]):
                terms = groups_of(window, factors[:, :, group, :, column], order.group)
                here = Place(bits, place[2] + group, place[0] + row, place[1] + column)
                sums[image, high, wide, group, column] = ragged_dot(terms, accumulator, order, here)
    out[...] = stored_values(sums, accumulator, None)


def groups_of(window: Array, factors: Array, size: int) -> list[Terms]:
    """The terms (kh, kw, C) of one element, cut into groups of at most `size` channels of one kernel position."""
    channels = window.shape[-1]
    size = size or max(1, channels)
    return [
        (window[position][c : c + size].tolist(), factors[position][c : c + size].tolist())
        for position in np.ndindex(*window.shape[:2])
        for c in range(0, channels, size)
    ]


def ragged_dot(groups: Sequence[Terms], accumulator: Accumulator, order: Order, place: Place) -> float:
    """One element: parts of ceil(groups / splits) groups, each rounded after every group, and their sum."""
    length = max(1, math.ceil(len(groups) / order.splits))
    parts = []
    for first in range(0, len(groups), length):
        partial = 0.0
        for number, (a, b) in enumerate(groups[first : first + length], first):
            partial = ADD[order.adder](partial, a, b)
            partial = round_sum(partial, accumulator.step, "step", place, number)
        parts.append(partial)
    return sum_stages(parts, accumulator, order, place)
