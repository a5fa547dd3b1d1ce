"""Values over scales in float64 or float32, such that one later rounding decides as it would on the exact quotient."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lowprec.types import Array


def scale_by_power(values: Array, exponents: Array | int) -> Array:
    """values * 2^exponents, exact within the dtype's range.

    Beyond it a finite non-zero value stays finite and non-zero. That is all a later rounding can see of it, because
    the grid lies far inside that range (see `lowprec.scaling.tensor.as_carrier`).
    """
    with np.errstate(under="ignore", over="ignore"):
        scaled = np.asarray(np.ldexp(values, exponents))
    return _kept_in_range(scaled, values)


def quotient(x: Array, divisor: NDArray[np.float64], bits: int = 64) -> NDArray[np.float64]:
    """x / divisor in float64, such that one later rounding decides as it would on the exact quotient.

    Rounding to odd always does. The nearest float64 does for a float32 x, if m * divisor has at most 52 bits for every
    boundary m of that rounding: both are then multiples of a unit so large that a quotient other than m is more than
    2^-53 m away from it.

    Args:
        x: float32 or float64.
        divisor: Positive.
        bits: Bits of the longest m * divisor.
    """
    with np.errstate(under="ignore", over="ignore", invalid="ignore"):
        q = np.asarray(x / divisor, dtype=np.float64)
    # The quick way; the exact remainder below takes several passes over memory.
    if x.dtype == np.float32 and bits <= 52:
        return _kept_in_range(q, x)
    remainder = _remainder(x.astype(np.float64, copy=False), q, divisor)
    codes = q.view(np.int64)
    # A quotient rounded away from zero steps back; then an inexact one gets an odd last bit.
    # NaN and infinity pass, as do quotients that under- or overflowed, which `_kept_in_range` sees to.
    inexact = (remainder != 0) & np.isfinite(remainder) & (q != 0)
    codes -= inexact & ((remainder < 0) != (q < 0))
    codes |= inexact
    return _kept_in_range(q, x)


def _remainder(x: NDArray[np.float64], q: NDArray[np.float64], divisor: NDArray[np.float64]) -> NDArray[np.float64]:
    """x - q * divisor, exactly, for q the nearest float64 quotient (Dekker's product)."""
    with np.errstate(all="ignore"):
        product = q * divisor
        q_high, d_high = _high_half(q), _high_half(divisor)
        q_low, d_low = q - q_high, divisor - d_high
        # In this order every term is exact (Dekker): NumPy has no fused multiply-add to ask.
        error = ((q_high * d_high - product) + q_high * d_low + q_low * d_high) + q_low * d_low
        return np.asarray((x - product) - error)


def _high_half(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """The upper 26 bits of a float64's significand (Veltkamp)."""
    shifted = x * 134217729.0  # 2^27 + 1
    return np.asarray(shifted - (shifted - x))


def _kept_in_range(scaled: Array, values: Array) -> Array:
    """Scaled values, in which what under- or overflowed is replaced by the smallest or largest float of its sign.

    So values that were finite and not zero before scaling stay so.
    """
    info = np.finfo(scaled.dtype)
    # Counted first: nearly always nothing was lost, and no mask has to be made.
    if np.count_nonzero(scaled) != np.count_nonzero(values):
        lost = (scaled == 0) & (values != 0)
        scaled = np.where(lost, np.copysign(info.smallest_normal, scaled), scaled)
    infinite = np.isinf(scaled)
    if infinite.any():
        scaled = np.where(infinite & np.isfinite(values), np.copysign(info.max, scaled), scaled)
    return scaled
