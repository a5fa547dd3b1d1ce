"""What float32 numbers are like, counted one by one."""

from __future__ import annotations

import math

import numpy as np

from lowprec.types import Array

SUMS = 16


def magnitudes(x: Array, count: int, step: int, histogram: Array) -> tuple[int, int, int, float, float]:
    """(zeros, infinite, NaN, sum of squares, largest magnitude) of float32.

    The squares are added up in sixteen sums of every sixteenth number each, and these in order.

    Args:
        x: float32.
        count, step: the exponents of so many elements, a step apart and going round at the end, are counted.
        histogram: int64, by float32's biased exponent; they are added to it.
    """
    values = x.reshape(-1).tolist()
    finite = [abs(value) if math.isfinite(value) else 0.0 for value in values]
    squares = [0.0] * SUMS
    for i, value in enumerate(finite):
        squares[i % SUMS] += value * value
    total = 0.0
    for square in squares:
        total += square
    codes = x.reshape(-1).view(np.uint32)
    for k in range(count):
        histogram[codes[k * step % codes.size] >> 23 & 0xFF] += 1
    nan = sum(map(math.isnan, values))
    infinite = sum(map(math.isinf, values))
    return finite.count(0.0) - nan - infinite, infinite, nan, total, max(finite, default=0.0)
