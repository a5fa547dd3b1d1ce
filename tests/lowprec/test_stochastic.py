"""The stochastic law: binomial tests at every kind of point, exact probabilities, and gfloat fed the same bits."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from scipy.stats import binomtest

import lowprec as lp
from lowprec import _kernels
from lowprec.backends.reference.random import rounding_bits
from lowprec.testing.isa import isa
from lowprec.values.rounding import rounding_rule
from tests.lowprec.oracle import grid, magnitude_codes

TRIALS = 1 << 16
FRACTIONS = (0.03, 0.25, 0.5, 0.7071, 0.99)
LEVEL = 1e-9  # of one point; a few hundred points leave a false alarm of 1e-6, and the keys are fixed


def places(fmt: lp.FloatFormat) -> dict[str, int]:
    """A magnitude code in every kind of place."""
    return {
        "below the smallest subnormal": 0,
        "subnormal": max(1, fmt.min_normal_code // 2),
        "subnormal to normal": fmt.min_normal_code - 1,
        "normal": fmt.min_normal_code * 3 + 1,
        "carry into the next binade": fmt.min_normal_code * 4 - 1,
        "overflow": fmt.max_code,
    }


@pytest.mark.parametrize("fmt", ["float16", "bfloat16", "float8_e4m3fn", "float8_e5m2fnuz", "float4_e2m1fn"])
@pytest.mark.parametrize("bits", [8, 16, 32])
def test_binomial_law_at_every_kind_of_point(fmt: str, bits: int) -> None:
    f = lp.as_format(fmt)
    values = grid(f)
    for n, ((where, code), fraction) in enumerate(itertools.product(places(f).items(), FRACTIONS)):
        for sign in (1.0, -1.0):
            low, high = values[code], values[code + 1]
            x = sign * (low + fraction * (high - low))
            got = lp.encode(np.full(TRIALS, x), f, "stochastic", key=lp.Key(n).fold_in(bits), random_bits=bits)
            stays = lp.encode(np.float64(sign * low), f)
            ups = int(np.count_nonzero(got != stays))
            if sign < 0 and code == 0 and not f.negative_zero:
                ups = int(np.count_nonzero(got != 0))
            if code == f.max_code and f.inf_code is None and f.nan_code is None:
                assert ups == 0  # saturates onto the value it came from
                continue
            exact = (abs(x) - low) / (high - low)
            chance = np.floor(exact * 2.0**bits) / 2.0**bits
            assert binomtest(ups, TRIALS, chance).pvalue > LEVEL, (where, fraction, sign, ups / TRIALS, chance)


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_the_law_over_every_random_word(bits: int) -> None:
    """Few-bit rounding enumerated: of the 2^n equally likely words exactly floor(fraction 2^n) round up."""
    fmt = lp.float8_e4m3fn
    for fraction in np.linspace(0, 1, 41)[:-1]:
        r = np.arange(1 << bits) / 2.0**bits
        codes = magnitude_codes(np.full(r.size, 1 + fraction / 8), fmt, "stochastic", r)
        assert np.count_nonzero(codes == codes.max()) in (np.floor(fraction * 2**bits), r.size)


def test_mean_error_with_16_bits() -> None:
    """The mean of a million roundings is within 2^-17 quanta, plus five standard errors, of x."""
    quantum = 2.0**-10
    x = np.random.default_rng(0).uniform(1, 2, 1 << 20)
    error = (lp.round(x, "float16", "stochastic", key=3) - x) / quantum
    assert abs(error.mean()) < 2.0**-17 + 5 * error.std() / 2.0**10


def test_a_representable_value_never_moves() -> None:
    codes = np.arange(1 << 16, dtype=np.uint16)
    x = codes.view(np.float16).astype(np.float32)
    x = x[np.isfinite(x)]
    np.testing.assert_array_equal(lp.round(x, "float16", "stochastic", key=1), x)


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float6_e3m2fn"])
def test_against_gfloat_with_the_same_random_bits(name: str) -> None:
    gfloat = pytest.importorskip("gfloat")
    from gfloat import formats as gf

    theirs = {
        "float16": gf.format_info_binary16,
        "bfloat16": gf.format_info_bfloat16,
        "float8_e4m3fn": gf.format_info_ocp_e4m3,
        "float8_e5m2": gf.format_info_ocp_e5m2,
        "float6_e3m2fn": gf.format_info_ocp_e3m2,
    }[name]
    mode_of = {
        "nearest_even": gfloat.RoundMode.TiesToEven,
        "nearest_away": gfloat.RoundMode.TiesToAway,
        "toward_zero": gfloat.RoundMode.TowardZero,
        "up": gfloat.RoundMode.TowardPositive,
        "down": gfloat.RoundMode.TowardNegative,
        "stochastic": gfloat.RoundMode.StochasticFastest,
    }
    rng = np.random.default_rng(1)
    fmt = lp.as_format(name)
    exponents = rng.uniform(fmt.emin - fmt.mantissa_bits - 2, min(fmt.emax + 1, 100), 300)
    x = (rng.choice([-1, 1], 300) * 2.0**exponents).astype(np.float32).astype(np.float64)
    for mode, their_mode in mode_of.items():
        for bits in (1, 4, 16) if mode == "stochastic" else (16,):
            got = lp.round(x, name, mode, key=5, random_bits=bits, overflow="saturate")
            for i, value in enumerate(x):
                words = {"srbits": rounding_bits(bits, 5, i), "srnumbits": bits} if mode == "stochastic" else {}
                want = gfloat.round_float(theirs, float(value), their_mode, sat=True, **words)
                assert got[i] == want, (mode, bits, value)


def test_rule_keeps_random_bits_only_where_they_matter() -> None:
    assert rounding_rule(lp.float16, "up", 7) == rounding_rule(lp.float16, "up", 16)
    assert rounding_rule(lp.float16, "stochastic", 7) != rounding_rule(lp.float16, "stochastic", 16)


@pytest.mark.parametrize("level", _kernels.isa_names())
@pytest.mark.parametrize("scale", [1e-8, 1e-6, 3e-5, 1e-3, 1.0])
@pytest.mark.parametrize("bits", [16, 3])
def test_whole_panels_round_as_their_parts(level: str, scale: float, bits: int) -> None:
    """Parts too short for any short cut, among them subnormals, zeros and what has no finite result."""
    x = (np.random.default_rng(2).normal(size=2048) * scale).astype(np.float32)
    x[::37], x[5::91] = 0.0, -0.0
    x[1500::100], x[1501::100], x[1502::200] = np.inf, np.nan, 65519.0
    for name in ("float16", "bfloat16", "float8_e5m2"):
        how: dict[str, Any] = {"rounding": "stochastic", "key": 8, "random_bits": bits}
        with isa(level):
            whole = lp.encode(x, name, **how)
            parts = [lp.encode(x[i : i + 64], name, offset=i, **how) for i in range(0, x.size, 64)]
        np.testing.assert_array_equal(whole, np.concatenate(parts))
