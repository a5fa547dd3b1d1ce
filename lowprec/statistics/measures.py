"""Distances between an array and what it should be: in ulps, relative, and in decibels.

They are float64. Of tensors of torch they are tensors; of arrays of JAX, which holds float64 only where jax_enable_x64
is set, they are JAX's there and NumPy's elsewhere. Of CuPy arrays the distances are CuPy's, made on their device.
Integers beyond 2^53 and masked elements are refused.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.lib.array_utils import normalize_axis_tuple
from numpy.typing import ArrayLike, NDArray

from lowprec._pieces import PIECE, in_pieces
from lowprec.backends.owner import is_cupy, load
from lowprec.foreign import measures_foreign
from lowprec.processor import in_default_state
from lowprec.rounding import encode, round
from lowprec.statistics.values import held_by_float64, real_operands
from lowprec.types import Array
from lowprec.values.conversion import Conversion, conversion_of
from lowprec.values.formats import FloatFormat, as_format, format_of_dtype
from lowprec.values.rounding import Rounding

Index = tuple[slice, ...]


@measures_foreign
@in_default_state
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
    x, y = real_operands(x, y)
    grid = _format_or_dtype(fmt, x)
    if is_cupy(x) or is_cupy(y):
        return load("cuda").distances("ulp_distance", x, y, grid, _grid_codes(grid))  # type: ignore[no-any-return]

    def distance(x: NDArray[np.float64], y: NDArray[np.float64]) -> NDArray[np.float64]:
        a, b = _place(x, grid), _place(y, grid)
        # The places of float64 differ by up to 2^64, so the difference is taken as an unsigned number.
        steps = np.where(a > b, a.view(np.uint64) - b.view(np.uint64), b.view(np.uint64) - a.view(np.uint64))
        one, other = np.isnan(x), np.isnan(y)
        return np.where(one ^ other, np.nan, np.where(one & other, 0.0, steps.astype(np.float64)))

    return in_pieces(distance, x, y)


@measures_foreign
@in_default_state
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
    x, exact = real_operands(x, exact)
    grid = _format_or_dtype(fmt, x)
    if is_cupy(x) or is_cupy(exact):
        return load("cuda").distances("ulp_error", x, exact, grid)  # type: ignore[no-any-return]

    def error(value: NDArray[np.float64], truth: NDArray[np.float64]) -> NDArray[np.float64]:
        exponent = np.maximum(np.frexp(truth)[1] - 1, grid.emin)
        # frexp gives 0 for zero, as if it were 1/2.
        exponent = np.where(truth == 0, grid.emin, exponent)
        step = np.ldexp(1.0, exponent - grid.mantissa_bits)
        with np.errstate(over="ignore"):
            # An infinite truth has no spacing: the distance there is 0, infinite or NaN already.
            return _distance(value, truth) / np.where(np.isfinite(truth), step, 1.0)

    return in_pieces(error, x, exact)


@measures_foreign
@in_default_state
def relative_error(x: ArrayLike, exact: ArrayLike) -> NDArray[np.float64]:
    """|x - exact| / |exact|, elementwise, without a unit.

    Equal values (zeros and infinities too) and two NaNs give 0; a non-zero x where `exact` is zero gives infinity, as
    does one infinity; one NaN gives NaN.
    """
    x, exact = real_operands(x, exact)
    if is_cupy(x) or is_cupy(exact):
        return load("cuda").distances("relative_error", x, exact)  # type: ignore[no-any-return]

    def error(value: NDArray[np.float64], truth: NDArray[np.float64]) -> NDArray[np.float64]:
        distance = _distance(value, truth)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            ratio = distance / np.abs(truth)
        # 0 / 0 and inf / inf are 0 where both are equal, not NaN.
        return np.where((distance == 0) | ~np.isfinite(distance), distance, ratio)

    return in_pieces(error, x, exact)


@in_default_state
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

    Raises:
        TypeError: an axis that is no integer.
        ValueError: arrays of two shapes; no such axis.
    """
    truth, value = held_by_float64(signal), held_by_float64(approximation)
    if truth.shape != value.shape:
        raise ValueError(f"signal and approximation differ in shape: {truth.shape} and {value.shape}")
    if truth.ndim == 0 and axis is None:
        # A number has no axis to sum over.
        truth, value = truth.reshape(1), value.reshape(1)
    try:
        axes = normalize_axis_tuple(range(truth.ndim) if axis is None else axis, truth.ndim)
    except TypeError:
        raise TypeError(f"axis must be an integer or a tuple of integers, not {axis!r}") from None
    top, power, noise = np.zeros((3, *(1 if a in axes else n for a, n in enumerate(truth.shape))))
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        for part, mine in _slabs(truth.shape, axes):
            # Two passes over the array: the sums need a unit first, or squares of 1e200 would overflow.
            largest = np.max(np.abs(truth[part].astype(np.float64)), axis=axes, keepdims=True, initial=0.0)
            top[mine] = np.maximum(top[mine], largest)
        unit = np.where(top > 0, top, 1.0)  # keeps the squares within range
        for part, mine in _slabs(truth.shape, axes):
            exact, error = truth[part] / unit[mine], (truth[part].astype(np.float64) - value[part]) / unit[mine]
            power[mine] += np.sum(exact**2, axis=axes, keepdims=True)
            noise[mine] += np.sum(error**2, axis=axes, keepdims=True)
        ratio = 10 * np.log10(power / noise)
    return np.where(noise == 0, np.inf, ratio).squeeze(axes)[()]


def _slabs(shape: tuple[int, ...], axes: tuple[int, ...]) -> Iterator[tuple[Index, Index]]:
    """Slabs of about PIECE elements of an array, cut across its longest axis.

    Yields:
        The index of a slab, and the index of the place its sum over `axes` (kept with length 1) is added to.
    """
    if not shape:
        yield (), ()
        return
    longest = int(np.argmax(shape))
    step = max(1, PIECE * shape[longest] // max(1, math.prod(shape)))
    before = (slice(None),) * longest
    for begin in range(0, shape[longest], step):
        part = (*before, slice(begin, begin + step))
        # Along an axis that is summed all slabs have one place; along one that is kept each has its own.
        yield part, before if longest in axes else part


def _format_or_dtype(fmt: Any, x: Array) -> FloatFormat:
    if fmt is not None:
        return as_format(fmt)
    found = format_of_dtype(x.dtype)
    if found is None:
        raise TypeError(f"{x.dtype} is no floating-point format; say which one is meant with fmt=")
    return found


def _grid_codes(fmt: FloatFormat) -> Conversion:
    """float64's conversion to the codes of a grid: of a value that is not on it those of another."""
    how = Rounding(overflow="saturate", infinite_input="keep" if fmt.infinities else "max")
    return conversion_of("code", np.dtype(np.float64), fmt, how)


def _place(values: NDArray[np.float64], fmt: FloatFormat) -> NDArray[np.int64]:
    """Position on the grid, an integer: neighbours differ by 1, zero is 0."""
    if fmt.nan_code is None:
        # In place of NaN any value will do: the caller overwrites those places.
        values = np.where(np.isnan(values), 1.0, values)
    elif not fmt.infinities and np.isinf(values).any():
        raise ValueError(f"{fmt.name} has no infinity")
    on_grid = round(values, fmt, overflow="saturate", infinite_input="keep" if fmt.infinities else "max")
    off = (on_grid != values) & ~np.isnan(values)
    if off.any():
        raise ValueError(f"{values[off].flat[0]!r} is not a value of {fmt.name}; ulp_error measures such distances")
    codes = encode(values, fmt).astype(np.uint64)
    # Codes of magnitudes ascend with the values, in steps of one from neighbour to neighbour.
    magnitudes = (codes & np.uint64(fmt.sign_bit - 1 if fmt.sign_bit else ~np.uint64(0))).astype(np.int64)
    places: NDArray[np.int64] = np.where((codes & np.uint64(fmt.sign_bit)) != 0, -magnitudes, magnitudes)
    return places


def _distance(value: NDArray[np.float64], truth: NDArray[np.float64]) -> NDArray[np.float64]:
    """|value - truth|, 0 for equal infinities and two NaNs."""
    with np.errstate(invalid="ignore", over="ignore"):
        distance = np.abs(value - truth)
    return np.where((value == truth) | (np.isnan(value) & np.isnan(truth)), 0.0, distance)
