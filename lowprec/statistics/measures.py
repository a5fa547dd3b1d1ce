"""Distances between an array and what it should be: in ulps, relative, and in decibels."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lowprec.arrays import input_array
from lowprec.rounding import encode, round
from lowprec.spec.formats import FloatFormat, as_format, format_of_dtype
from lowprec.types import Array


def ulp_distance(x: ArrayLike, y: ArrayLike, fmt: Any = None) -> NDArray[np.float64]:
    """How many steps apart on a format's grid x and y are, elementwise: 0 if equal, 1 if neighbours.

    +0 and -0 are the same place, and infinity is one step beyond the largest finite value. Two NaNs are 0 apart; a
    NaN and a number are NaN apart.

    Args:
        x, y: Values on the format's grid, broadcast together.
        fmt: A format, name or dtype; None means that of x's dtype.

    Raises:
        ValueError: a value is not on the grid.
        TypeError: no format given and x's dtype is none.
    """
    x, y = input_array(x)[0], input_array(y)[0]
    fmt = _format_or_dtype(fmt, x)
    a, b = np.broadcast_arrays(_place(x, fmt), _place(y, fmt))
    # The places of float64 differ by up to 2^64, so the difference is taken as an unsigned number.
    steps = np.where(a > b, a.view(np.uint64) - b.view(np.uint64), b.view(np.uint64) - a.view(np.uint64))
    one, other = np.isnan(as_float64(x)), np.isnan(as_float64(y))
    distance = np.where(one & other, 0.0, steps.astype(np.float64))
    return np.asarray(np.where(one ^ other, np.nan, distance))


def ulp_error(x: ArrayLike, exact: ArrayLike, fmt: Any = None) -> NDArray[np.float64]:
    """|x - exact| in units of the format's spacing at `exact`, elementwise.

    At most 0.5 after a rounding to nearest, below 1 after any other. The spacing is that of the binade of `exact`,
    2^(floor(log2|exact|) - mantissa_bits), that of the subnormals below the smallest normal value, and goes on
    growing beyond the largest. Equal values, two NaNs and equal infinities are 0 apart; otherwise a NaN gives NaN
    and an infinity gives infinity.

    Args:
        x: What was computed.
        exact: What should have been, broadcast with x; taken as float64, which is as exact as this measure gets.
        fmt: A format, name or dtype; None means that of x's dtype.

    Raises:
        TypeError: no format given and x's dtype is none.
    """
    fmt = _format_or_dtype(fmt, input_array(x)[0])
    value, truth = as_float64(x), as_float64(exact)
    exponent = np.maximum(np.frexp(truth)[1] - 1, fmt.emin)
    exponent = np.where(truth == 0, fmt.emin, exponent)
    step = np.ldexp(1.0, exponent - fmt.mantissa_bits)
    return _distance(value, truth) / np.where(np.isfinite(truth), step, 1.0)


def relative_error(x: ArrayLike, exact: ArrayLike) -> NDArray[np.float64]:
    """|x - exact| / |exact|, elementwise, without a unit.

    Equal values (zeros and infinities too) and two NaNs give 0; a non-zero x where `exact` is zero gives infinity, as
    does one infinity; one NaN gives NaN.
    """
    value, truth = as_float64(x), as_float64(exact)
    distance = _distance(value, truth)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        ratio = distance / np.abs(truth)
    return np.asarray(np.where((distance == 0) | ~np.isfinite(distance), distance, ratio))


def signal_to_noise_ratio(
    signal: ArrayLike, approximation: ArrayLike, axis: int | tuple[int, ...] | None = None
) -> Any:
    """10 log10(sum signal^2 / sum (signal - approximation)^2), in decibels.

    6.02 dB are worth one bit. No noise gives infinity, a zero signal with noise gives -infinity; NaN or infinity in
    either gives NaN. Nothing at all (both sums zero) counts as no noise.

    Args:
        signal: The exact values.
        approximation: The values with errors, same shape.
        axis: Axes summed over; None means all.

    Returns:
        A float64 scalar, or an array of the remaining axes.
    """
    truth, value = as_float64(signal), as_float64(approximation)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        # Dividing by the largest magnitude keeps the squares within range.
        top = np.max(np.abs(truth), axis=axis, keepdims=True, initial=0.0)
        unit = np.where(top > 0, top, 1.0)
        power = np.sum((truth / unit) ** 2, axis=axis)
        noise = np.sum(((truth - value) / unit) ** 2, axis=axis)
        ratio = 10 * np.log10(power / noise)
    return np.where(noise == 0, np.inf, ratio)[()]


def as_float64(x: ArrayLike) -> NDArray[np.float64]:
    """Any real array, of NumPy or another library, as float64."""
    return input_array(x)[0].astype(np.float64, copy=False)


def _format_or_dtype(fmt: Any, x: Array) -> FloatFormat:
    if fmt is not None:
        return as_format(fmt)
    found = format_of_dtype(x.dtype)
    if found is None:
        raise TypeError(f"{x.dtype} is no floating-point format; say which one is meant with fmt=")
    return found


def _place(x: Array, fmt: FloatFormat) -> NDArray[np.int64]:
    """Position on the grid, an integer: neighbours differ by 1, zero is 0."""
    values = as_float64(x)
    if fmt.nan_code is None:
        values = np.where(np.isnan(values), 1.0, values)
    elif not fmt.infinities and np.isinf(values).any():
        raise ValueError(f"{fmt.name} has no infinity")
    on_grid = round(values, fmt, overflow="saturate", infinite_input="keep" if fmt.infinities else "max")
    off = (on_grid != values) & ~np.isnan(values)
    if off.any():
        raise ValueError(f"{values[off].flat[0]!r} is not a value of {fmt.name}; ulp_error measures such distances")
    codes = encode(values, fmt).astype(np.uint64)
    magnitudes = (codes & np.uint64(fmt.sign_bit - 1 if fmt.sign_bit else ~np.uint64(0))).astype(np.int64)
    places: NDArray[np.int64] = np.where((codes & np.uint64(fmt.sign_bit)) != 0, -magnitudes, magnitudes)
    return places


def _distance(value: NDArray[np.float64], truth: NDArray[np.float64]) -> NDArray[np.float64]:
    with np.errstate(invalid="ignore", over="ignore"):
        distance = np.abs(value - truth)
    return np.where((value == truth) | (np.isnan(value) & np.isnan(truth)), 0.0, distance)
