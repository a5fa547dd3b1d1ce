"""Counts of special values, of lost changes and of underflows, element by element: the definition."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from lowprec.types import Array

# These fix the order of additions, so that every instruction set gives the same bits. Compiled loops keep sixteen sums
# in vectors, and decode numbers of 16 bits to float32 so many at a time.
SUMS = 16
SIXTEEN_AT_A_TIME = 1 << 16


def magnitudes(
    x: Array, count: int, step: int, histogram: Array, factor: float = 1.0
) -> tuple[int, int, int, float, float]:
    """(zeros, infinite, NaN, sum of squares, largest magnitude) of numbers.

    Sum number i of sixteen adds up the squares of the numbers i, i + 16, i + 32, ...; then the sixteen are added in
    order. Of 16-bit numbers this is done for every SIXTEEN_AT_A_TIME of them, and the results are added in order.

    Args:
        x: float32, float16 or bfloat16.
        count, step: of `count` elements, `step` apart and going round at the end, the exponents are counted.
        histogram: int64, by float32's biased exponent; they are added to it.
        factor: of all numbers, in float32.
    """
    with np.errstate(all="ignore"):
        single = x.reshape(-1).astype(np.float32) * np.float32(factor)
    values = single.tolist()
    finite = [abs(value) if math.isfinite(value) else 0.0 for value in values]
    piece = len(finite) if x.dtype == np.float32 else SIXTEEN_AT_A_TIME
    total = sum(_squares(finite[begin : begin + piece]) for begin in range(0, len(finite), max(1, piece)))
    codes = single.view(np.uint32)
    for k in range(count):
        # The exponent as it lies in the code needs no logarithm; subnormal numbers count with the zeros.
        histogram[codes[k * step % codes.size] >> 23 & 0xFF] += 1
    nan = sum(map(math.isnan, values))
    infinite = sum(map(math.isinf, values))
    return finite.count(0.0) - nan - infinite, infinite, nan, total, max(finite, default=0.0)


def _squares(numbers: list[float]) -> float:
    squares = [0.0] * SUMS
    for i, value in enumerate(numbers):
        squares[i % SUMS] += value * value
    total = 0.0
    for square in squares:
        total += square
    return total


def changes(
    base: Array | None, direction: Array, scale: float, before: Array, after: Array, count: int, step: int
) -> tuple[int, int]:
    """How many elements should have changed, and how many of these did not.

    Args:
        base, direction, scale: the change is (base - before) + scale * direction, in float64; without base the product
            alone. Arrays of float32, float16 or bfloat16, of one size. It counts where it is finite and not zero and
            what was there is finite.
        before, after: the elements before the change, and after it.
        count, step: `count` elements are looked at, `step` apart and going round at the end.
    """

    def taken(x: Array) -> Any:
        return x.reshape(-1)[np.arange(count, dtype=np.int64) * step % max(1, x.size)].astype(np.float64)

    old = taken(before)
    with np.errstate(all="ignore"):
        change = scale * taken(direction)
        if base is not None:
            change += taken(base) - old
    wanted = np.isfinite(change) & (change != 0) & np.isfinite(old)
    return int(np.count_nonzero(wanted)), int(np.count_nonzero(wanted & (old == taken(after))))


def underflows(op: str, result: Array, left: Any, right: Any, scale: float, zeros: int, count: int) -> int:
    """How many of a sample of a result's zeros would be finite and not zero, were the result computed in float64.

    Args:
        op: "multiply", "divide", "scaled_add" (left + scale * right), "dot" or "reduce_sum" (of the last axis of left).
        result: float32, float16 or bfloat16.
        left, right: arrays of such, of the result's shape where op is elementwise, or of one element for all; or
            numbers.
        scale: of a scaled_add.
        zeros: how many zeros the result has.
        count: how many of them, spread over all, are computed again in float64 (sums in the order of their terms).
    """
    places = np.flatnonzero(result.reshape(-1) == 0)
    found = 0
    for k in range(count):
        index = np.unravel_index(places[chosen_zero(k, zeros, count)], result.shape)
        with np.errstate(all="ignore"):
            # NaN compares false: what is no number has not underflowed.
            found += 0 < np.abs(_ideal(op, index, left, right, scale)) < np.inf
    return found


def chosen_zero(k: int, zeros: int, count: int) -> int:
    """Which of the `zeros` zeros is computed again as number k of `count`.

    The zeros are cut into `count` runs; one is taken from each, at places within the runs that have no period.
    """
    first, last = k * zeros // count, (k + 1) * zeros // count
    # Multiples of the golden ratio: equal steps could meet the same column of every row.
    turn = k * 0.6180339887498949
    return first + int((turn - int(turn)) * (last - first))


def _ideal(op: str, index: tuple[Any, ...], left: Any, right: Any, scale: float) -> np.float64:
    if op == "dot":
        *lead, row, column = index
        return _total(left[(*lead, row)], right[(*lead, slice(None), column)])
    if op == "reduce_sum":
        return _total(left[index], np.ones(left.shape[-1]))
    x, y = (_number(operand, index) for operand in (left, right))
    return x * y if op == "multiply" else x / y if op == "divide" else x + scale * y


def _total(x: Array, y: Array) -> np.float64:
    total = np.float64(0)
    for a, b in zip(x.astype(np.float64), y.astype(np.float64), strict=True):
        total += a * b
    return total


def _number(operand: Any, index: tuple[Any, ...]) -> np.float64:
    if not isinstance(operand, np.ndarray):
        return np.float64(operand)
    return np.float64(operand.reshape(()) if operand.size == 1 else operand[index])
