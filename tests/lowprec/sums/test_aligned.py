"""The aligned adder of products: every step of its contract by known numbers, and on all backends over random ones."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lowprec as lp
from tests.examples import examples
from tests.lowprec.sum_oracle import aligned, cut
from tests.lowprec.sums_cases import ACCUMULATORS, RESULTS, Array, arrays, assert_backends_agree, rounding_options

FP22 = lp.FloatFormat("e8m13", 8, 13)


def dot(a: Any, b: Any, bits: int, dtype: Any = np.float32, **options: Any) -> float:
    """The aligned sum of some products, in groups of 32 unless said."""
    left, right = np.asarray(a, dtype), np.asarray(b, dtype)
    options = {"group": 32, "out_format": "float32"} | options
    return float(lp.matmul(left, right, adder="aligned", aligned_bits=bits, **options))


def test_terms_lose_what_lies_behind_the_largest_exponent(host_backend: str) -> None:
    assert dot([1, 2**-13], [1, 1], 13) == 1 + 2**-13
    assert dot([1, 2**-14], [1, 1], 13) == 1
    assert dot([1, *[2**-14] * 31], [1] * 32, 13) == 1  # each alone, before they are added
    assert dot([1, 1.75 * 2**-13], [1, 1], 13) == 1 + 2**-13  # cut, not rounded
    assert dot([1, -1.75 * 2**-13], [1, 1], 13) == 1 - 2**-13  # toward zero, not down
    assert dot([1024, 1, -1024], [1, 1, 1], 9) == 0  # also where the largest terms cancel


def test_products_have_the_exponents_of_their_factors(host_backend: str) -> None:
    """1.5 * 1.5 = 2.25 stands in the binade of 1 * 1."""
    assert dot([1.5, 2**-13], [1.5, 1], 13) == 2.25 + 2**-13
    assert dot([2.25, 2**-13], [1, 1], 13) == 2.25


def test_subnormal_factors_have_the_smallest_normal_exponent(host_backend: str) -> None:
    """2^-24 has float16's exponent -14, and takes a finer term's last bits; in float32 it is a normal number."""
    small = [2.0**-24, 2.0**-14]
    assert dot(small, [1, 2**-11], 13, np.float32) == 2**-24 + 2**-25
    assert dot(small, [1, 2**-11], 10, np.float16) == 2**-24
    assert dot(small, [1, 2**-11], 11, np.float16) == 2**-24 + 2**-25
    half, brain = np.float16(small), np.asarray([1, 2**-11], ml_dtypes.bfloat16)
    for a, b in ((half, brain), (brain, half)):
        assert float(lp.matmul(a, b, adder="aligned", aligned_bits=10)) == 2**-24


def test_zeros_take_no_part(host_backend: str) -> None:
    assert dot([0, 2**-20], [60000, 2**-20], 3, np.float32) == 2**-40
    for zeros in ([0.0, 0.0], [-0.0, -0.0]):
        assert np.array_equal(np.signbit(dot(zeros, [1, 1], 13)), False)
    assert not np.signbit(dot([1, -1], [1, 1], 13))


def test_the_partial_sum_is_a_term_of_every_group(host_backend: str) -> None:
    """Terms that are 2^-14 of the sum so far are lost, and the sum's own last bits where a larger term comes."""
    assert dot([1, *[2**-14] * 32], [1] * 33, 13, group=1) == 1
    assert dot([1, *[2**-14] * 32], [1] * 33, 13, group=32) == 1
    assert dot([2**-13, 1], [1, 4], 13, group=1) == 4
    assert dot([1 + 2**-13, 2], [1, 1], 13, group=1) == 3 + 0  # 2^-13 lies behind 13 bits of 2
    assert dot([1 + 2**-13, 2], [1, 1], 14, group=1) == 3 + 2**-13


def test_the_sum_is_cut_once_and_rounded_once(host_backend: str) -> None:
    """With more places than float32 has: cut toward zero there, but a narrower accumulator rounds the exact sum."""
    assert dot([1, 2**-24], [1, 1], 30) == 1
    assert dot([1, 2**-23, -(2**-30)], [1, 1, 1], 30) == 1
    assert dot([-1, -(2**-24)], [1, 1], 30) == -1
    tie, above = [1, 2**-11], [1, 2**-11, 2**-30]
    assert dot(tie, [1] * 2, 30, accumulate="float16") == 1
    assert dot(above, [1] * 3, 30, accumulate="float16") == 1 + 2**-10
    assert dot(above, [1] * 3, 30, accumulate="float16", rounding="toward_zero") == 1
    assert dot(above, [1] * 3, 30, accumulate="float16", rounding="up") == 1 + 2**-10


def test_below_and_beyond_float32(host_backend: str) -> None:
    tiny = 2.0**-75
    assert dot([tiny, tiny], [tiny, tiny / 2], 13) == 0  # 1.5 * 2^-150, cut to whole 2^-149
    assert dot([tiny] * 3, [tiny] * 3, 13) == 2.0**-149
    assert dot([tiny, 2.0**-60], [tiny, 2.0**-67], 30) == 2.0**-127
    huge = np.asarray([2.0**127, 2.0**127])
    assert dot(huge, [1, 1], 13) == np.inf
    assert dot(huge, [-1, -1], 13) == -np.inf
    assert dot([2.0**127] * 2, [1, 1 - 2.0**-24], 30) == float(np.finfo(np.float32).max)
    assert dot(huge, huge, 13, ml_dtypes.bfloat16) == np.inf
    assert dot([np.inf, 1], [1, 1], 13) == np.inf
    assert np.isnan(dot([np.inf, np.inf], [1, -1], 13))
    assert np.isnan(dot([np.inf, 1], [0, 1], 13))
    assert np.isnan(dot([np.nan, 1], [1, 1], 13))


def test_the_registers_of_an_8_bit_tensor_core(host_backend: str) -> None:
    """Beside 448, whose exponent is 8, terms keep what 13 places reach, down to 2^-5."""
    core: dict[str, Any] = {"accumulate": FP22, "rounding": "toward_zero"}
    for k in range(12):
        small = 7.5 * 2.0**-k
        expected = 448 + np.floor(small * 2**5) / 2**5
        assert dot([448, small], [1, 1], 13, ml_dtypes.float8_e4m3fn if k < 6 else np.float32, **core) == expected
    assert dot([1, 1 + 2**-13], [1, 1], 13, **core) == 2  # the register itself has 13 bits


@settings(max_examples=60, derandomize=True, deadline=None)
@given(st.data())
def test_the_definition_in_fractions(data: st.DataObject) -> None:
    """One group of normal float16 numbers, by the words of the contract."""
    rng, bits = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1))), data.draw(st.integers(1, 35))
    count = data.draw(st.integers(1, 40))
    a, b = (1 + rng.random((2, count))) * 2.0 ** rng.integers(-9, 9, (2, count)) * rng.choice([-1, 1], (2, count))
    a, b = a.astype(np.float16), b.astype(np.float16)
    want = cut(aligned(Fraction(0), list(zip(a, b, strict=True)), bits))
    assert Fraction(dot(a, b, bits, np.float16, group=64)) == want


@examples(quick=100, slow=200)
@given(st.data(), rounding_options())
def test_every_backend_gives_the_same_bits(data: st.DataObject, options: dict[str, Any]) -> None:
    m, k, n = data.draw(st.sampled_from([(1, 1, 1), (2, 9, 3), (7, 40, 1), (3, 33, 19), (5, 6, 40)]))
    a, b = data.draw(arrays((m, k))), data.draw(arrays((k, n)))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    if data.draw(st.booleans()):
        a = _spread(a, rng)
    assert_backends_agree(
        *(lp.matmul, a, b),
        **options,
        adder="aligned",
        aligned_bits=data.draw(st.sampled_from([1, 4, 11, 13, 23, 25, 35])),
        accumulate=data.draw(st.sampled_from([*ACCUMULATORS, FP22, lp.FloatFormat("e6m22", 6, 22)])),
        group=data.draw(st.sampled_from([1, 3, 4, 16, 32])),
        splits=data.draw(st.sampled_from([1, 1, 3])),
        out_format=data.draw(st.sampled_from(RESULTS)),
        offset=(data.draw(st.integers(0, 99)), data.draw(st.integers(0, 99))),
    )


def _spread(a: Array, rng: np.random.Generator) -> Array:
    """Elements of very different sizes."""
    with np.errstate(all="ignore"):
        wide = a.astype(np.float64) * 2.0 ** rng.integers(-30, 30, a.shape)
        return np.asarray(wide.astype(np.float32).astype(a.dtype))


def test_parts_and_continued_chains(host_backend: str) -> None:
    rng = np.random.default_rng(1)
    a, b = rng.normal(size=(3, 64)).astype(np.float16), rng.normal(size=(64, 5)).astype(np.float16)
    order = lp.Accumulation(group=8, adder="aligned", aligned_bits=9)
    first = lp.matmul_part(a[:, :24], b[:24], accumulation=order)
    whole = lp.matmul_part(a[:, 24:], b[24:], accumulation=order, initial=first, first_group=3)
    lp.testing.assert_same_bits(whole, lp.matmul(a, b, accumulation=order))
    halves = [lp.matmul_part(a[:, k : k + 32], b[k : k + 32], accumulation=order) for k in (0, 32)]
    split = lp.matmul(a, b, group=8, splits=2, adder="aligned", aligned_bits=9)
    lp.testing.assert_same_bits(split, halves[0] + halves[1])


def test_sums_over_axes_refuse_it() -> None:
    with pytest.raises(ValueError, match="adder='aligned' is for products"):
        lp.reduce_sum(np.ones(4, np.float32), accumulation=lp.Accumulation(4, adder="aligned", aligned_bits=9))
