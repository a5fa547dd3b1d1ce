"""Block formats step by step in NumPy: for everything that a backend's one pass over memory does not take."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowprec.arithmetic import multiply
from lowprec.rounding import decode, encode
from lowprec.scaling.quotients import quotient, scale_by_power
from lowprec.scaling.tensor import as_carrier, from_storage
from lowprec.types import Array
from lowprec.values.block_format import NEVER, SIGNIFICAND_BITS, BlockFormat, BlockTask, carry_from
from lowprec.values.formats import float32
from lowprec.values.rounding import Rounding


def quantize(task: BlockTask, x: Array) -> tuple[Array, Array]:
    """The codes of x's elements and those of their scales, as two arrays."""
    fmt, axis, rule, tensor, rounding, key, offset = task
    values = as_carrier(x, fmt.element)
    amax = _block_amax(values, axis, fmt.block)
    if fmt.power_of_two:
        exponents = _shared_exponents(fmt, rule, amax)
        scales = np.asarray(encode(np.ldexp(1.0, exponents), fmt.scale))
        # Exact, whatever the exponents: the rounding that follows is the only one.
        scaled = scale_by_power(values, _spread(-exponents, axis, fmt.block, values.shape[axis]))
    else:
        scales = _real_scales(fmt, rule, amax, tensor)
        divisors = decode(scales, fmt.scale).astype(np.float64) * tensor
        # The longest boundary of a rounding has the element's bits and the random ones behind them; times the divisor's
        # bits it says whether the nearest quotient decides as the exact one (see `quotient`).
        deciding = fmt.element.precision + (32 if rounding.random_bits == "exact" else rounding.random_bits)
        bits = deciding + fmt.scale.precision + float32.precision
        scaled = quotient(values, _spread(divisors, axis, fmt.block, values.shape[axis]), bits)
    # Before encode, which refuses NaN in such a format.
    if fmt.element.nan_code is None:
        scales, scaled = _void_blocks(fmt, axis, scales, scaled)
    codes = encode(scaled, fmt.element, rounding, key=key, offset=offset)
    return (to_integers(codes).view(np.uint8) if fmt.integers else codes), scales


def dequantize(
    fmt: BlockFormat, elements: Array, scales: Array, axis: int, tensor: float, dtype: np.dtype[Any]
) -> Array:
    """The values, element * scale * tensor scale, exact and rounded once to float32 or float64."""
    spread = _spread(from_storage(scales, fmt.scale).astype(np.float64), axis, fmt.block, elements.shape[axis])
    if tensor != 1.0:
        with np.errstate(over="ignore", under="ignore"):
            spread = spread * tensor  # exact: at most 19 and 24 bits
    return np.asarray(multiply(np.asarray(_element_values(fmt, elements)), spread, dtype))


def to_integers(codes: NDArray[np.uint8]) -> NDArray[np.int8]:
    """Codes of sign and magnitude in two's complement."""
    # -0 becomes 0: two's complement has no other.
    sizes = (codes & 0x7F).astype(np.int8)
    return np.where(codes & 0x80, -sizes, sizes)


def _element_values(fmt: BlockFormat, elements: Array) -> Array:
    if fmt.integers:
        return elements.astype(np.float32) * np.float32(fmt.element.smallest_subnormal)
    return from_storage(elements, fmt.element)


def _block_reduce(ufunc: np.ufunc, values: Array, axis: int, block: int) -> Array:
    """Reduces every block along an axis to one value; the last block may be short."""
    length = values.shape[axis]
    # reduceat takes a short last block, which a reshape does not.
    if axis == values.ndim - 1 or length % block:
        return np.asarray(ufunc.reduceat(values, np.arange(0, length, block), axis=axis))
    # Away from the last axis reduceat is eight times slower than this.
    split = (*values.shape[:axis], length // block, block, *values.shape[axis + 1 :])
    return np.asarray(ufunc.reduce(values.reshape(split), axis=axis + 1))


def _block_amax(values: Array, axis: int, block: int) -> NDArray[np.float64]:
    """Largest finite magnitude of every block; 0 where there is none."""
    magnitudes = np.abs(values)
    amax = _block_reduce(np.maximum, magnitudes, axis, block)
    # Asked of the maxima, which show whether any element is not finite: nearly all arrays need no second pass.
    if not np.isfinite(amax).all():
        magnitudes[~np.isfinite(magnitudes)] = 0
        amax = _block_reduce(np.maximum, magnitudes, axis, block)
    return amax.astype(np.float64)


def _spread(per_block: Array, axis: int, block: int, length: int) -> Array:
    """Repeats what belongs to a block for each of its values: `length` values along the axis, the last block short."""
    spread = np.repeat(per_block, block, axis)
    return spread[(slice(None),) * axis + (slice(length),)]


def _shared_exponents(fmt: BlockFormat, rule: str, amax: NDArray[np.float64]) -> NDArray[np.int32]:
    # frexp's fraction lies in [1/2, 1): twice it is the significand, and the exponent is one too large.
    fraction, exponent = np.frexp(amax)
    parts = np.where(amax > 0, 2 * fraction - 1, 0) * 2.0**SIGNIFICAND_BITS
    limit = carry_from(rule, fmt.element)
    # A whole number in float64, exactly: amax has at most 52 fraction bits.
    carries = parts >= limit if limit < NEVER else np.zeros(parts.shape, bool)
    wanted = exponent - 1 - fmt.element.emax + carries
    least = math.frexp(fmt.scale.smallest_subnormal)[1] - 1
    # The logarithm is never computed: near a power of two its rounding would decide the scale.
    return np.where(amax > 0, np.clip(wanted, least, fmt.scale.emax), least).astype(np.int32)


def _real_scales(fmt: BlockFormat, rule: str, amax: NDArray[np.float64], tensor: float) -> Array:
    wanted = quotient(amax, np.asarray(fmt.element.max * tensor))
    # No scale rounds to zero: its block would be divided by it.
    wanted = np.maximum(wanted, fmt.scale.smallest_subnormal)
    return np.asarray(
        encode(wanted, fmt.scale, Rounding("up" if rule == "up" else "nearest_even", overflow="saturate"))
    )


def _void_blocks(fmt: BlockFormat, axis: int, scales: Array, scaled: Array) -> tuple[Array, Array]:
    """Scales with NaN where a block holds an infinity or NaN, and scaled values with 0 in the place of these.

    For formats whose elements have no NaN.
    """
    bad = ~np.isfinite(scaled)
    if bad.any():
        void = _block_reduce(np.logical_or, bad, axis, fmt.block)
        scales = np.where(void, np.array(fmt.scale.nan_code, scales.dtype), scales)
        scaled = np.where(bad, np.zeros((), scaled.dtype), scaled)
    return scales, scaled
