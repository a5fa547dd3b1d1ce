"""stochastic_half and stochastic_even (Fitzgibbon and Felix, arXiv 2504.20634): their laws, by all random values."""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import gfloat
import gfloat.formats
import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

import lowprec as lp
from lowprec.backends.reference.random import rounding_bits
from lowprec.backends.reference.rounding import round_number
from lowprec.values.rounding import FEW_BIT_MODES, few_bit_rule, rounding_rule

# The authors' experiments (graphcore-research/arith25-stochastic-rounding) call these gfloat's SRC, SRF and SRFF.
GFLOAT = {"stochastic_even": "Stochastic", "stochastic_half": "StochasticFast", "stochastic": "StochasticFastest"}
Floats = npt.NDArray[np.float64]


def mean_result(x: float, mode: str, bits: int) -> Fraction:
    """The mean over all random values of x rounded to float16, exactly."""
    make = rounding_rule if mode == "stochastic" else few_bit_rule
    rule = make("float16", mode, bits)
    codes = [round_number(x, rule, Fraction(r, 1 << bits)) for r in range(1 << bits)]
    return sum((Fraction(rule.fmt.value_of(code or 0)) for code in codes), Fraction(0)) / (1 << bits)


def biases(mode: str, bits: int, extra: int) -> list[Fraction]:
    """Mean result less x, in quanta, of x with `extra` bits beyond the random ones: all fractions of two codes."""
    steps = 1 << (bits + extra)
    points = [1 + 2.0**-10 * i / steps for i in range(2 * steps)]
    return [(mean_result(x, mode, bits) - Fraction(x)) * 1024 for x in points]


@pytest.mark.parametrize("bits", [1, 2, 3, 4])
def test_the_bias_of_each_mode_is_what_the_docstring_says(bits: int) -> None:
    def bias(mode: str, extra: int) -> Fraction:
        some = biases(mode, bits, extra)
        return sum(some, Fraction(0)) / len(some)

    for extra in (1, 2, 3):
        ulp = Fraction(1, 2**bits)
        assert bias("stochastic", extra) == -ulp / 2 + ulp / 2 ** (extra + 1)
        assert bias("stochastic_half", extra) == ulp / 2 ** (extra + 1)  # of the ties
        assert bias("stochastic_even", extra) == 0
    assert max(map(abs, biases("stochastic_even", bits, 3))) <= Fraction(1, 2 ** (bits + 1))


# The thresholds of P3109 (StochasticA, B and C), in integers: a fraction f goes up where they hold.
THRESHOLDS: dict[str, Callable[[Fraction, int, int], bool]] = {
    "stochastic": lambda f, n, r: math.floor(f * 2**n) + r >= 2**n,
    "stochastic_half": lambda f, n, r: math.floor(f * 2 ** (n + 1)) + 2 * r + 1 >= 2 ** (n + 1),
    "stochastic_even": lambda f, n, r: builtins.round(f * 2**n) + r >= 2**n,  # Fractions round to even
}


@pytest.mark.parametrize("mode", THRESHOLDS)
@pytest.mark.parametrize("fmt", ["float8_e4m3fn", "float8_e5m2", "float16", "binary8p3se"])
def test_every_fraction_and_random_number_follows_the_published_threshold(mode: str, fmt: str) -> None:
    """With the random bits that the elements have: 256 fractions of a normal, a subnormal and a negative code."""
    target = lp.as_format(fmt)
    for code in (target.min_normal_code + 1, 1, target.min_normal_code | target.sign_bit):
        low, high = (Fraction(target.value_of(c)) for c in (code, code + 1))
        fractions = [Fraction(i, 256) for i in range(256)]
        x = np.array([float(low + f * (high - low)) for f in fractions])
        for n in (1, 3, 6):
            got = lp.encode(x, target, mode, key=4, random_bits=n)
            up = [THRESHOLDS[mode](f, n, rounding_bits(n, 4, i)) for i, f in enumerate(fractions)]
            np.testing.assert_array_equal(got, code + np.array(up))


@pytest.mark.parametrize("mode", GFLOAT)
@pytest.mark.parametrize("bits", [1, 2, 5])
@pytest.mark.parametrize("fmt", ["float8_e4m3fn", "float8_e5m2", "float16"])
def test_the_same_random_bits_give_gfloats_results(mode: str, bits: int, fmt: str) -> None:
    infos = {"float8_e4m3fn": "ocp_e4m3", "float8_e5m2": "ocp_e5m2", "float16": "binary16"}
    info = getattr(gfloat.formats, f"format_info_{infos[fmt]}")
    rng = np.random.default_rng(bits)
    x = rng.normal(size=300).astype(np.float32) * np.float32(2.0) ** rng.integers(-20, 8, 300).astype(np.float32)
    x[:100] = np.round(x[:100] * 64) / 64  # ties
    got = lp.round(x, fmt, mode, key=5, random_bits=bits, overflow="saturate")
    want = [
        gfloat.round_float(
            info, float(v), gfloat.RoundMode[GFLOAT[mode]], sat=True, srbits=rounding_bits(bits, 5, i), srnumbits=bits
        )
        for i, v in enumerate(x)
    ]
    np.testing.assert_array_equal(got, np.array(want, np.float32))


@pytest.mark.parametrize("mode", FEW_BIT_MODES)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ml_dtypes.bfloat16, np.int16, np.int64])
def test_compiled_and_reference_agree(mode: str, dtype: Any) -> None:
    rng = np.random.default_rng(3)
    wild = np.ldexp(rng.normal(size=200), rng.integers(-30, 12, 200))
    x = np.concatenate([wild, rng.integers(-300, 300, 100) / 32, [0.0, -0.0, 65519.0, 65520, 1e5, 2.0**-25]])
    if np.dtype(dtype).kind == "i":
        x = np.clip(np.round(x), -30000, 30000)
    else:
        x = np.append(x, [np.inf, -np.inf, np.nan])
    with np.errstate(over="ignore"):
        x = x.astype(dtype)
    for fmt in ("float16", "bfloat16", "float32", "f143", "float8_e8m0fnu", "tfloat32"):
        for bits in (1, 4, 16):
            for call in (lp.encode, lp.round):
                source = lp.float32 if np.dtype(dtype).kind == "i" else lp.as_format(dtype)
                target = lp.as_format(fmt)
                if call is lp.round and (np.dtype(dtype).kind == "i" or not source.contains(target)):
                    continue
                got = call(x, fmt, mode, key=9, random_bits=bits, offset=5)
                with lp.testing.backend("reference"):
                    lp.testing.assert_same_bits(got, call(x, fmt, mode, key=9, random_bits=bits, offset=5))


@pytest.mark.parametrize("mode", FEW_BIT_MODES)
def test_values_of_the_format_never_move(mode: str) -> None:
    values = lp.decode(np.arange(1 << 16, dtype=np.uint16), "float16")
    for bits in (1, 16):
        got = lp.round(values, "float16", mode, key=1, random_bits=bits)
        np.testing.assert_array_equal(got, values)


@pytest.mark.parametrize("mode", FEW_BIT_MODES)
def test_the_smallest_numbers_become_the_smallest_of_a_format_without_zero(mode: str, host_backend: str) -> None:
    x = np.array([5e-324, 1e-310, 2.0**-1022, 2.0**-128, 2.0**-127])
    for bits in (1, 16):
        assert lp.encode(x, "float8_e8m0fnu", mode, key=1, random_bits=bits).tolist() == [0] * 5


@pytest.mark.parametrize("mode", FEW_BIT_MODES)
def test_enough_bits_make_the_modes_the_same(mode: str) -> None:
    x = np.random.default_rng(0).normal(size=1000).astype(np.float32)
    lp.testing.assert_same_bits(
        lp.astype(x, "float16", mode, key=2, random_bits=14),
        lp.astype(x, "float16", "stochastic", key=2, random_bits=14),
    )


def test_refusals() -> None:
    x = np.ones(3, np.float32)
    with pytest.raises(ValueError, match="random_bits of 1 to 16"):
        lp.round(x, "float16", "stochastic_even", key=1, random_bits=17)
    with pytest.raises(ValueError, match="needs key="):
        lp.round(x, "float16", "stochastic_half")
    with pytest.raises(ValueError, match="narrower than float64"):
        lp.round(x.astype(float), "float64", "stochastic_half", key=1)
    with pytest.raises(ValueError, match="needs a format with subnormals"):
        lp.round(x, lp.FloatFormat("flat", 4, 3, subnormals=False), "stochastic_half", key=1)
    for call in (lambda **k: lp.float32_op("exp", x, **k), lambda **k: lp.add(x, x, "float16", **k)):
        with pytest.raises(ValueError, match="stochastic_even"):
            call(rounding="stochastic_even", key=1)
    with pytest.raises(ValueError, match="stochastic_even is for round, astype and encode; sums take"):
        lp.matmul(x, x, accumulate="float16", rounding="stochastic_even", key=1)
