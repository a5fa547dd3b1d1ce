"""Sums against MPFR (Fousse et al., ACM TOMS 33, 2007) and fractions: orders written out again, other arithmetic."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import gmpy2
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lowprec as lp

Terms = npt.NDArray[Any]
WAYS = {
    "nearest_even": gmpy2.RoundToNearest,
    "toward_zero": gmpy2.RoundToZero,
    "up": gmpy2.RoundUp,
    "down": gmpy2.RoundDown,
}
FORMATS = ["float16", "bfloat16", "float8_e5m2", "float32"]


def context(fmt: str, mode: str) -> Any:
    """MPFR in the precision and the exponents of a format with IEEE's subnormals and infinities."""
    info = lp.finfo(fmt)
    return gmpy2.context(
        precision=info.nmant + 1,
        emin=info.minexp - info.nmant + 1,
        emax=info.maxexp,
        subnormalize=True,
        round=WAYS[mode],
    )


def rounded(value: Any, fmt: str, mode: str) -> Any:
    """A number in the format."""
    with context(fmt, mode):
        return +value


def chain(terms: list[float], fmt: str, mode: str, group: int) -> Any:
    """A float32 chain from +0 that is rounded to the format after every group."""
    total = gmpy2.mpfr(0, 24)
    for start in range(0, len(terms), group):
        for term in terms[start : start + group]:
            with context("float32", "nearest_even"):
                total = total + gmpy2.mpfr(term, 24)
        total = rounded(total, fmt, mode)
    return total


def values(data: st.DataObject, count: int, spread: int) -> Terms:
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    x = rng.normal(size=count) * 2.0 ** rng.integers(-spread, spread + 1, size=count)
    return x.astype(np.float32)


@settings(max_examples=120, derandomize=True, deadline=None)
@given(
    fmt=st.sampled_from(FORMATS),
    mode=st.sampled_from(list(WAYS)),
    group=st.sampled_from([1, 3, 16]),
    splits=st.sampled_from([1, 1, 4]),
    data=st.data(),
)
def test_reduce_sum_is_mpfrs(fmt: str, mode: str, group: int, splits: int, data: st.DataObject) -> None:
    x = values(data, data.draw(st.integers(1, 60)), data.draw(st.sampled_from([0, 4, 14])))
    got = lp.reduce_sum(x, accumulate=fmt, group=group, splits=splits, rounding=mode, overflow="infinity")
    part = group * math.ceil(math.ceil(x.size / group) / splits)
    parts = [chain(x[k : k + part].tolist(), fmt, mode, group) for k in range(0, x.size, part)]
    with context("float32", "nearest_even"):
        total = sum(parts[1:], parts[0])
    want = float(rounded(total, fmt, mode))
    if not np.isfinite(want) or abs(want) == float(lp.finfo(fmt).max):
        return  # directed modes and overflow policies are other tests' business
    assert float(got) == want


@settings(max_examples=80, derandomize=True, deadline=None)
@given(fmt=st.sampled_from(FORMATS), mode=st.sampled_from(list(WAYS)), data=st.data())
def test_sums_and_dot_products_are_mpfrs(fmt: str, mode: str, data: st.DataObject) -> None:
    count, spread = data.draw(st.integers(1, 80)), data.draw(st.sampled_from([0, 3]))
    x, y = values(data, count, spread), values(data, count, spread)
    total, product = gmpy2.mpfr(0), gmpy2.mpfr(0)
    with context(fmt, mode):
        for a, b in zip(x.tolist(), y.tolist(), strict=True):
            total = gmpy2.add(total, gmpy2.mpfr(a, 24))
            product = gmpy2.fma(gmpy2.mpfr(a, 24), gmpy2.mpfr(b, 24), product)
    assert float(lp.sum(x, fmt, mode)) == float(total)
    assert float(lp.dot(x, y, fmt, mode)) == float(product)
    assert float(lp.cumulative_sum(x, fmt, mode)[-1]) == float(total)


@pytest.mark.parametrize("shape", [(1, 3000), (64, 300), (300, 64)])
@pytest.mark.parametrize("axis", [0, 1])
def test_exact_sums_are_fractions(shape: tuple[int, int], axis: int) -> None:
    """Integers of a few bits: every partial sum is a float32, so any order gives the fraction's sum."""
    x = np.random.default_rng(1).integers(-1000, 1000, size=shape).astype(np.float16)
    want = [sum(map(Fraction, line.tolist())) for line in (x.T if axis == 0 else x)]
    for got in (
        lp.reduce_sum(x, axis),
        lp.reduce_sum(x, axis, accumulate="float32", group=1, splits=20),
        lp.sum(x, "float32", axis=axis),
        lp.sum(x, "float32", axis=axis, order="pairwise"),
        lp.kahan_sum(x, "float32", axis=axis),
        lp.scatter_add(np.zeros(shape[axis], np.int64), np.moveaxis(x, axis, 0), 1)[0],
    ):
        assert [Fraction(float(value)) for value in got] == want


def test_stochastic_sums_are_unbiased_beyond_a_window() -> None:
    """Equal terms far below a quantum of their sum, in rows and columns: nearest stagnates, the mean does not."""
    ones = np.ones((300, 8192), np.float16)
    assert (lp.reduce_sum(ones, 1, accumulate="float16", group=1) == 2048).all()
    for got in (
        lp.reduce_sum(ones, 1, accumulate="float16", group=1, rounding="stochastic", key=1),
        lp.reduce_sum(ones.T.copy(), 0, accumulate="float16", group=1, rounding="stochastic", key=2),
        lp.scatter_add(
            np.zeros(8192, int), ones.T.copy(), 1, accumulate="float16", group=1, rounding="stochastic", key=3
        )[0],
    ):
        sums = got.astype(float)
        # The walk's variance is at most the sum of quantum^2 / 4 of its steps: 6144 steps of quanta up to 4.
        assert abs(sums.mean() - 8192) < 5 * (6144 * 16 / 4 / 300) ** 0.5
        assert sums.std() > 0
