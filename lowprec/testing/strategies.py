"""Hypothesis strategies: formats, rounding modes, keys, and values and arrays of a format with its corners weighted."""

from __future__ import annotations

import math
from typing import Any, get_args

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import DTypeLike

from lowprec.random import Key
from lowprec.types import Array
from lowprec.values.float_format import MAX_BITS, FloatFormat, NanStyle
from lowprec.values.formats import FormatLike, as_format
from lowprec.values.formats import formats as named
from lowprec.values.rounding import MODES


def formats(*, custom: bool = True, max_bits: int = 64) -> st.SearchStrategy[FloatFormat]:
    """The named formats of at most `max_bits` bits and, unless `custom` is False, made-up ones (`custom_formats`)."""
    known = st.sampled_from([fmt for fmt in named.values() if fmt.bits <= max_bits])
    return known | custom_formats(max_bits=min(max_bits, MAX_BITS)) if custom else known


@st.composite
def custom_formats(draw: st.DrawFn, *, max_bits: int = MAX_BITS) -> FloatFormat:
    """Formats of 4 to `max_bits` bits with a sign and a zero, of every NaN, infinity and subnormal convention."""
    exponent_bits = draw(st.integers(2, min(8, max_bits - 2)))
    mantissa_bits = draw(st.integers(1, max_bits - 1 - exponent_bits))
    nan: NanStyle = draw(st.sampled_from(get_args(NanStyle)))
    # Other biases than IEEE's too: the ranges of the named formats alone would hide what is wrong at other ends.
    bias = 2 ** (exponent_bits - 1) - 1 + draw(st.integers(-3, 3))
    # nan="ieee" has its infinity beside its NaNs.
    infinities = nan == "ieee" or draw(st.booleans())
    subnormals = draw(st.booleans())
    name = f"e{exponent_bits}m{mantissa_bits}b{bias}_{nan}{'_inf' * infinities}{'_normal' * (not subnormals)}"
    return FloatFormat(name, exponent_bits, mantissa_bits, bias, True, infinities, nan, subnormals)


def rounding_modes(*, stochastic: bool = True) -> st.SearchStrategy[str]:
    """Names of the rounding modes; without "stochastic" (the one that needs a key) if told so."""
    return st.sampled_from([mode for mode in MODES if stochastic or mode != "stochastic"])


def keys() -> st.SearchStrategy[Key]:
    """Random keys over the whole range of seeds."""
    return st.builds(Key, st.integers(0, 2**64 - 1))


def codes(fmt: FormatLike, *, finite: bool = False) -> st.SearchStrategy[int]:
    """Codes of a format, half of them corners: zeros, both ends of the subnormals, 1, the largest, infinity, NaN."""
    fmt = as_format(fmt)
    magnitudes = {
        fmt.min_normal_code - 1,  # the largest subnormal
        fmt.min_normal_code,
        fmt.min_normal_code + 1,
        fmt.max_code - 1,
        fmt.max_code,
        0,
        1,
    }
    if not fmt.subnormals:
        # Not values of such a format; a smallest normal code of 1 stays.
        magnitudes -= {1, fmt.min_normal_code - 1} - {fmt.min_normal_code}
    if fmt.infinities and not finite:
        magnitudes.add(fmt.max_code + 1)
    corners = {m for m in magnitudes if 0 <= m <= fmt.max_code + 1}
    corners |= {m | fmt.sign_bit for m in corners}
    if not fmt.negative_zero:
        corners.discard(fmt.sign_bit)
    if not finite and fmt.nan_code is not None:
        corners.add(fmt.nan_code)
    # Half of the draws: corners are a few among up to 2^31 codes, and would hardly be met by chance.
    return st.sampled_from(sorted(corners)) | _finite_codes(fmt)


def _finite_codes(fmt: FloatFormat) -> st.SearchStrategy[int]:
    least = fmt.min_normal_code if not fmt.subnormals else 0
    positive = st.integers(least, fmt.max_code)
    if not fmt.signed:
        return positive
    # The code of -0 is NaN or none there.
    lowest = 0 if fmt.negative_zero else max(least, 1)
    return positive | st.integers(max(least, lowest), fmt.max_code).map(lambda code: code | fmt.sign_bit)


def values(fmt: FormatLike, *, finite: bool = False) -> st.SearchStrategy[float]:
    """Values of a format as Python floats, corners weighted as in `codes`."""
    fmt = as_format(fmt)
    return codes(fmt, finite=finite).map(fmt.value_of)


@st.composite
def near_values(draw: st.DrawFn, fmt: FormatLike) -> float:
    """Finite float64 numbers where rounding to a format is decided.

    On the grid, at midpoints and quarter points between neighbours, one float64 step beside any of these, and beyond
    the largest value up to twice as far.
    """
    fmt = as_format(fmt)
    code = draw(_finite_codes(fmt))
    value = fmt.value_of(code)
    magnitude = abs(value)
    exponent = max(math.frexp(magnitude)[1] - 1, fmt.emin) if magnitude else fmt.emin
    quantum = math.ldexp(1.0, exponent - fmt.mantissa_bits)
    between = draw(st.sampled_from((0.0, 0.25, 0.5, 0.75)))
    magnitude = magnitude + between * quantum if magnitude + quantum < math.inf else magnitude
    # One float64 beside a tie: where a rounding in two steps goes wrong.
    magnitude = draw(st.sampled_from((magnitude, math.nextafter(magnitude, math.inf), math.nextafter(magnitude, 0.0))))
    if draw(st.integers(0, 9)) == 0:
        # Up to twice the largest value, but finite in float64.
        magnitude = min(fmt.max, 2.0**1022) * draw(st.sampled_from((1.0, 1.0625, 1.5, 2.0)))
    return math.copysign(min(magnitude, np.finfo(np.float64).max), value)


def arrays(
    fmt: FormatLike,
    shape: int | tuple[int, ...] | st.SearchStrategy[Any] | None = None,
    *,
    dtype: DTypeLike | None = None,
    finite: bool = False,
) -> st.SearchStrategy[Array]:
    """Arrays of a format's values.

    Args:
        fmt: A format, name or dtype.
        shape: A shape or a strategy for shapes; None means 0 to 3 axes of 0 to 8 elements.
        dtype: Of the arrays; None means the format's storage dtype, or float64 if it has none.
        finite: Whether to leave out infinities and NaN.
    """
    fmt = as_format(fmt)
    if shape is None:
        shape = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=8)
    elements = values(fmt, finite=finite)
    # Each element drawn by itself: hypothesis would fill most places with one value.
    wide = hnp.arrays(np.float64, shape, elements=elements, fill=st.nothing())
    target = np.dtype(dtype) if dtype is not None else fmt.dtype or np.dtype(np.float64)
    return wide.map(lambda array: array.astype(target))
