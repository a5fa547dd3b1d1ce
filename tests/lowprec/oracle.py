"""An oracle that knows nothing of bit tricks: it looks values up in the sorted list of a format's values.

Every difference it takes is exact in float64 for the short formats and inputs it is used on.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from lowprec.backends.reference.random import element_bits
from lowprec.values.float_format import FloatFormat
from lowprec.values.rounding import RoundingRule

Floats = npt.NDArray[np.float64]


@cache
def grid(fmt: FloatFormat) -> Floats:
    """The values of magnitude codes 0, 1, ..., going on one binade beyond the largest as if it existed."""
    codes = np.arange(fmt.max_code + (2 << fmt.mantissa_bits) + 2)
    field, mantissa = np.divmod(codes, 1 << fmt.mantissa_bits)
    fraction = mantissa / 2.0**fmt.mantissa_bits
    if not fmt.zero:
        return np.ldexp(1 + fraction, field + fmt.emin)
    normal = np.ldexp(1 + fraction, field + fmt.emin - 1)
    values = np.where(field > 0, normal, np.ldexp(fraction, fmt.emin))
    return values if fmt.subnormals else np.where((field == 0) & (mantissa > 0), np.nan, values)


def magnitude_codes(x: Floats, fmt: FloatFormat, mode: str, random: Floats | float = 0.0) -> npt.NDArray[Any]:
    """Codes of |x| rounded on the grid without an upper end; x finite."""
    values = grid(fmt)
    valid = np.flatnonzero(~np.isnan(values))
    known = values[valid]
    size = np.minimum(np.abs(x), known[-1])
    if not fmt.zero:
        size = np.maximum(size, known[0])
    below = np.searchsorted(known, size, side="right") - 1
    above = np.minimum(below + 1, known.size - 1)
    gap = known[above] - known[below]
    fraction = np.divide(size - known[below], gap, out=np.zeros_like(size), where=gap > 0)
    odd = valid[below] % 2 == 1
    negative = np.signbit(x)
    ups = {
        "nearest_even": (fraction > 0.5) | ((fraction == 0.5) & odd),
        "nearest_away": fraction >= 0.5,
        "toward_zero": np.zeros(x.shape, bool),
        "up": (fraction > 0) & ~negative,
        "down": (fraction > 0) & negative,
        "odd": (fraction > 0) & ~odd,
        "stochastic": fraction + random >= 1,
    }
    return valid[np.where(ups[mode], above, below)]


def expected_codes(x: Floats, rule: RoundingRule, random: Floats | float = 0.0) -> npt.NDArray[Any]:
    """Whole codes of x by a rule, special values included (NaN only where the format has one)."""
    fmt = rule.fmt
    negative = np.signbit(x)
    finite = np.isfinite(x)
    code = magnitude_codes(np.where(finite, x, 1.0), fmt, rule.mode, random).astype(np.int64)
    over = code > fmt.max_code
    if rule.flush:
        code = np.where(code < fmt.min_normal_code, 0, code)
    signed = np.where(negative & (fmt.negative_zero | (code != 0)), code | fmt.sign_bit, code)
    signed = np.where(over, np.where(negative, rule.over_neg, rule.over_pos), signed)
    if not fmt.signed:
        signed = np.where(negative & ((code != 0) | (not fmt.zero)), rule.negative, signed)
    if not fmt.zero:
        signed = np.where(x == 0, rule.none, signed)
    signed = np.where(np.isinf(x), np.where(negative, rule.inf_neg, rule.inf_pos), signed)
    nan_code = 0 if fmt.nan_code is None else fmt.nan_code
    return np.where(np.isnan(x), nan_code, signed)


def interesting(fmt: FloatFormat) -> npt.NDArray[np.float32]:
    """Every value, midpoint and quarter point, the overflow zone, one float32 step either side, both signs."""
    values = grid(fmt)
    values = values[~np.isnan(values)]
    steps = np.diff(values)
    points = [values, *(values[:-1] + part * steps for part in (0.25, 0.5, 0.75))]
    points.append(np.array([fmt.max * 2, fmt.max * 3, 3.4e38, 1e-45, 1e-30]))
    with np.errstate(over="ignore"):
        some = np.unique(np.concatenate(points)).astype(np.float32)
    some = some[np.isfinite(some)]
    near = np.concatenate([some, np.nextafter(some, np.float32(np.inf)), np.nextafter(some, np.float32(-np.inf))])
    near = near[np.isfinite(near)]
    return np.concatenate([near, -near, np.array([np.inf, -np.inf], np.float32)])


@cache
def random_fractions(bits: int, key: int, count: int) -> Floats:
    """r / 2^bits of elements 0 .. count-1, by the reference's map."""
    tag = 1 if bits <= 16 else 2
    return np.array([element_bits(tag, bits, key, i) for i in range(count)]) / 2.0**bits
