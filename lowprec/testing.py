"""Tools for test suites: backends and instruction sets as contexts, hypothesis strategies, assertions.

The strategies need the package hypothesis (`pip install 'lowprec[test]'`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from lowprec import _kernels
from lowprec.backends import backend
from lowprec.extras import optional
from lowprec.float_format import FloatFormat
from lowprec.formats import FormatLike, as_format, float32, format_of_dtype
from lowprec.formats import formats as named_formats
from lowprec.random import Key
from lowprec.rounding import decode, encode

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

__all__ = ["arrays", "assert_on_grid", "assert_same_bits", "assert_unbiased", "backend", "formats", "isa", "isa_names"]
__all__ += ["keys", "values"]

isa_names = _kernels.isa_names
"""The instruction sets this machine can run, worst first."""


@contextmanager
def isa(name: str) -> Iterator[None]:
    """Within the context, the compiled loops are those of the named instruction set (for the whole process).

    Raises:
        ValueError: not one of `isa_names()`.
    """
    before = _kernels.isa()
    _kernels.set_isa(name)
    try:
        yield
    finally:
        _kernels.set_isa(before)


# ---- hypothesis strategies ----


def _strategies() -> Any:
    return optional("hypothesis.strategies", extra="test")


def formats(*, custom: bool = True, max_bits: int = 19) -> SearchStrategy[FloatFormat]:
    """Formats: the named ones of at most `max_bits` bits and, with `custom`, arbitrary IEEE-like and finite ones."""
    st = _strategies()
    named = st.sampled_from([fmt for fmt in named_formats.values() if fmt.bits <= max_bits])
    if not custom:
        return named  # type: ignore[no-any-return]

    def make(exponent_bits: int, mantissa_bits: int, nan: str) -> FloatFormat:
        mantissa_bits = min(mantissa_bits, max_bits - 1 - exponent_bits)
        nan = "top" if nan == "ieee" and mantissa_bits == 0 else nan
        name = f"e{exponent_bits}m{mantissa_bits}_{nan}"
        return FloatFormat(name, exponent_bits, mantissa_bits, infinities=nan == "ieee", nan=nan)  # type: ignore[arg-type]

    nan_styles = st.sampled_from(["ieee", "top", "negative_zero", "none"])
    return st.one_of(named, st.builds(make, st.integers(2, min(8, max_bits - 1)), st.integers(0, 13), nan_styles))  # type: ignore[no-any-return]


def values(fmt: FormatLike, *, finite: bool = False) -> SearchStrategy[float]:
    """Values of a format as Python floats; zero, extremes and special values come up often."""
    st = _strategies()
    fmt = as_format(fmt)
    corners = [fmt.max_code, fmt.min_normal_code, max(fmt.min_normal_code - 1, 0), 0, 1]
    corners += [code | fmt.sign_bit for code in corners]
    if not finite:
        corners += [code for code in (fmt.inf_code, fmt.nan_code) if code is not None]
    codes = st.one_of(st.sampled_from(corners), st.integers(0, (1 << fmt.bits) - 1))
    found = codes.map(fmt.value_of)
    return found.filter(math.isfinite) if finite else found  # type: ignore[no-any-return]


def arrays(
    fmt: FormatLike, *, dtype: npt.DTypeLike = None, max_size: int = 40, finite: bool = False
) -> SearchStrategy[npt.NDArray[Any]]:
    """One-dimensional arrays of a format's values, in its storage dtype, or float32 where it has none."""
    st = _strategies()
    fmt = as_format(fmt)
    target = np.dtype(dtype) if dtype is not None else fmt.dtype or np.dtype(np.float32)

    def build(items: list[float]) -> npt.NDArray[Any]:
        return np.array(items, np.float64).astype(target)

    return st.lists(values(fmt, finite=finite), max_size=max_size).map(build)  # type: ignore[no-any-return]


def keys() -> SearchStrategy[Key]:
    """Keys, small seeds more often than large ones."""
    st = _strategies()
    return st.one_of(st.integers(0, 9), st.integers(0, 2**64 - 1)).map(Key)  # type: ignore[no-any-return]


# ---- assertions ----


def _bits(x: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The array's bytes as unsigned integers, with one code for every NaN."""
    fmt = format_of_dtype(x.dtype)
    if fmt is None:
        return x
    codes = np.ascontiguousarray(x).view(fmt.code_dtype)
    if fmt.nan_code is None:
        return codes
    return np.where(np.isnan(x.astype(np.float64)), fmt.code_dtype.type(fmt.nan_code), codes)


def assert_same_bits(actual: npt.ArrayLike, desired: npt.ArrayLike) -> None:
    """Fails unless both have the same dtype, shape and bits; any two NaNs are the same."""
    a, b = np.asarray(actual), np.asarray(desired)
    assert a.dtype == b.dtype, f"dtypes differ: {a.dtype} and {b.dtype}"
    assert a.shape == b.shape, f"shapes differ: {a.shape} and {b.shape}"
    wrong = np.atleast_1d(_bits(a) != _bits(b))
    if wrong.any():
        first = np.argwhere(wrong)[0]
        where = tuple(int(i) for i in first)
        left, right = np.atleast_1d(a)[where], np.atleast_1d(b)[where]
        raise AssertionError(
            f"{int(wrong.sum())} of {a.size} elements differ, the first at {where}: {left} and {right}"
        )


def assert_on_grid(x: npt.ArrayLike, fmt: FormatLike) -> None:
    """Fails unless every element of x is a value of the format."""
    fmt = as_format(fmt)
    array = np.asarray(x)
    back = decode(encode(array, fmt), fmt).astype(np.float64)
    given = array.astype(np.float64)
    off = ~((back == given) | (np.isnan(back) & np.isnan(given)))
    assert not off.any(), (
        f"{int(off.sum())} of {array.size} elements are not values of {fmt.name}, such as {array[off][0]}"
    )


def assert_unbiased(ups: int, trials: int, probability: float, *, points: int = 1, level: float = 1e-6) -> None:
    """Fails if `ups` of `trials` is not a plausible count for a probability, by the exact binomial law.

    Args:
        ups: how often the value was rounded up.
        trials: how often it was rounded.
        probability: the probability of rounding up.
        points: how many such tests the suite makes (Bonferroni: each gets level / points).
        level: probability that a correct implementation fails anywhere.
    """
    binom = optional("scipy.stats", extra="test").binom
    tail = level / points / 2
    low, high = binom.ppf(tail, trials, probability), binom.isf(tail, trials, probability)
    assert low <= ups <= high, (
        f"{ups} of {trials} went up; with P = {probability} between {low:.0f} and {high:.0f} should"
    )


def float32_neighbours(x: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """x in float32 with the next value on both sides of each element, for tests of rounding."""
    values32 = np.asarray(x, np.float64).astype(float32.dtype or np.float32)
    return np.concatenate(
        [np.nextafter(values32, np.float32(-np.inf)), values32, np.nextafter(values32, np.float32(np.inf))]
    )
