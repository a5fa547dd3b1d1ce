"""MXINT8 (OCP MX v1.0, section 5.3.4) against exact fractions, in every rounding mode."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

import lowprec as lp
from lowprec.backends.reference.random import rounding_bits
from lowprec.scaling.blocks import to_blocks
from lowprec.values.block_format import BlockFormat, block_formats, int8_grid
from lowprec.values.rounding import MODES
from tests.lowprec.scaling.test_blocks import floor_log2


def expected(x: Fraction, mode: str, random: Fraction) -> int:
    """x in units of 2^-6 rounded to an integer of at most 127, from the words of each mode."""
    below = math.floor(abs(x))
    rest, negative = abs(x) - below, x < 0
    up = {
        "nearest_even": rest > Fraction(1, 2) or (rest == Fraction(1, 2) and below % 2 == 1),
        "nearest_away": rest >= Fraction(1, 2),
        "toward_zero": False,
        "up": rest > 0 and not negative,
        "down": rest > 0 and negative,
        "odd": rest > 0 and below % 2 == 0,
        "stochastic": rest + random >= 1,
    }[mode]
    size = min(below + up, 127)
    return -size if negative else size


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_equals_exact_fractions(mode: str, dtype: type) -> None:
    rng = np.random.default_rng(1)
    steps = np.arange(-127, 128) / 64
    near = np.concatenate([steps, steps + 1 / 128, np.nextafter((steps + 1 / 128).astype(dtype), dtype(9))])
    x = np.zeros((64, 32), dtype)
    x.flat = rng.permutation(np.resize(near, x.size))
    x = x * np.exp2(rng.integers(-30, 30, (64, 1))).astype(dtype)
    blocks = to_blocks(x, "mxint8", rounding=mode, key=5)
    for row in range(64):
        exponent = floor_log2(max(abs(Fraction(float(v))) for v in x[row]))
        assert float(blocks.scales[row, 0]) == 2.0**exponent
        for i in range(32):
            units = Fraction(float(x[row, i])) / Fraction(2) ** (exponent - 6)
            random = Fraction(rounding_bits(16, 5, 32 * row + i), 2**16)
            assert blocks.elements[row, i] == expected(units, mode, random)


def test_the_range_is_symmetric_but_minus_two_is_read() -> None:
    x = np.array([-2, 2, -1.99, 0.0, -0.0, 1 / 128, 3 / 128], np.float32)
    blocks = to_blocks(np.concatenate([x, [-1.0]]).astype(np.float32)[2:], "mxint8")
    assert blocks.elements.dtype == np.int8
    assert blocks.elements.tolist() == [-127, 0, 0, 0, 2, -64]
    assert to_blocks(x, "mxint8").elements.tolist() == [-64, 64, -64, 0, 0, 0, 1]
    blocks.elements[0] = -128
    assert blocks.dequantize()[0] == -2
    assert blocks.dequantize(np.float64)[0] == -2


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_are_said_by_the_scale(bad: float) -> None:
    x = np.ones((2, 64), np.float32)
    x[1, 40] = bad
    blocks = to_blocks(x, "mxint8", rounding="stochastic", key=1)
    np.testing.assert_array_equal(np.isnan(blocks.scales.astype(np.float32)), [[False, False], [False, True]])
    assert blocks.scales.view(np.uint8)[1, 1] == 0xFF
    assert blocks.elements[1, 40] == 0
    assert (blocks.elements[1, 41:] == 64).all()
    np.testing.assert_array_equal(np.isnan(blocks.dequantize()), np.arange(128).reshape(2, 64) >= 96)


def test_other_integer_grids_and_what_is_none() -> None:
    fine = BlockFormat("fine", lp.FloatFormat("q7", 1, 6, 8, infinities=False, nan="none"), lp.float8_e8m0fnu, 8, True)
    x = np.linspace(-1, 1, 24, dtype=np.float32)
    assert np.abs(to_blocks(x, fine).dequantize() - x).max() <= 1 / 64
    assert int8_grid.max == 127 / 64
    assert block_formats["mxint8"].bits_per_value == 8.25
    with pytest.raises(ValueError, match="int8 elements need 8 bits, 1 of them exponent"):
        BlockFormat("wrong", lp.float8_e4m3fn, lp.float8_e8m0fnu, 32, True)
