"""Formats of 20 to 31 bits: codes there and back, every rounding against exact fractions, and one accumulator."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

import lowprec as lp
from lowprec.testing import isa_names

FORMATS = [
    lp.FloatFormat("e8m13", 8, 13),
    lp.FloatFormat("e8m22", 8, 22),
    lp.FloatFormat("e7m23", 7, 23),
    lp.FloatFormat("e5m25", 5, 25),
    lp.FloatFormat("e11m19", 11, 19),
    lp.FloatFormat("e2m20_none", 2, 20, infinities=False, nan="none"),
    lp.FloatFormat("e6m16_fnuz", 6, 16, infinities=False, nan="negative_zero"),
]


def nearest(x: float, fmt: lp.FloatFormat) -> float:
    """The value of a format next to a number within its range, ties to even."""
    exponent = max(math.frexp(x)[1] - 1, fmt.emin)
    quantum = Fraction(2) ** (exponent - fmt.mantissa_bits)
    return float(round(Fraction(x) / quantum) * quantum)


@pytest.mark.parametrize("isa", [None, *isa_names()])
@pytest.mark.parametrize("fmt", FORMATS, ids=lambda fmt: fmt.name)
def test_codes_there_and_back(fmt: lp.FloatFormat, isa: str | None) -> None:
    rng = np.random.default_rng(0)
    last = [0, 1, fmt.min_normal_code - 1, fmt.min_normal_code, fmt.max_code]
    codes = np.array([*last, *rng.integers(0, fmt.max_code + 1, 300)], np.uint32)
    codes = np.concatenate([codes, codes[1:] | np.uint32(fmt.sign_bit)])
    with lp.testing.backend("reference") if isa is None else lp.testing.isa(isa):
        values = lp.decode(codes, fmt)
        assert values.tolist() == [fmt.value_of(int(code)) for code in codes]
        np.testing.assert_array_equal(lp.encode(values, fmt), codes)
        wide = values.astype(np.float64)
        between = wide[5:300] * (1 + rng.random(295) * 2.0**-fmt.mantissa_bits)
        want = [nearest(float(x), fmt) for x in np.minimum(between, fmt.max)]
        assert lp.round(np.minimum(between, fmt.max), fmt).tolist() == want
        drawn = lp.round(wide[5:300] * (1 + 2.0**-40), fmt, "stochastic", key=1)
        assert np.mean(drawn == wide[5:300]) > 0.9


def test_the_largest_width_is_one_below_float32s() -> None:
    assert max(fmt.bits for fmt in FORMATS) == 31
    assert lp.FloatFormat("e8m13", 8, 13).bits == 22
    with pytest.raises(ValueError, match="has 33 bits; formats have at most 31"):
        lp.FloatFormat("e8m24", 8, 24)


def test_a_sum_stops_where_its_format_ends(host_backend: str) -> None:
    """Ones in FP22 stop at 2^14, where one is half a spacing; in the product's float32 chains too."""
    fp22, ones = FORMATS[0], np.ones(20_000, np.float32)
    assert lp.sum(ones[:100], fp22) == 100
    if host_backend == "cpu":
        assert lp.sum(ones, fp22) == 2**14
        assert lp.matmul(ones, ones, accumulate=fp22, group=1, out_format="float32") == 2**14
        assert lp.reduce_sum(ones, accumulate=fp22, group=1, out_format="float32") == 2**14
        means = [lp.sum(ones, fp22, "stochastic", key=key) for key in range(8)]
        assert 19_500 < np.mean(means) < 20_500
