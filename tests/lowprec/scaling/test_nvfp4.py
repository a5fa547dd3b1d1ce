"""NVFP4 against exact fractions: real scales, a tensor scale, and a division that rounds once."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import lowprec as lp
from lowprec import FloatFormat, decode, encode
from lowprec.scaling.blocks import BlockArray, to_blocks
from lowprec.scaling.quotients import quotient
from lowprec.values.block_format import BlockFormat
from tests.lowprec.scaling.test_blocks import magnitudes, nearest_even


def nvfp4_oracle(block: list[float], tensor: Fraction) -> tuple[Fraction, list[Fraction]]:
    scale_table = magnitudes(ml_dtypes.float8_e4m3fn)
    amax = max(abs(Fraction(v)) for v in block)
    scale = max(nearest_even(amax / 6 / tensor, scale_table), scale_table[1])
    return scale, [nearest_even(Fraction(v) / (scale * tensor), magnitudes(ml_dtypes.float4_e2m1fn)) for v in block]


@pytest.mark.parametrize("tensor_scale", [None, "auto", 2.0**-20, float(np.float32(0.1))])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_nvfp4_equals_exact_fractions(tensor_scale: Any, dtype: Any) -> None:
    rng = np.random.default_rng(5)
    x = (rng.standard_normal((12, 37)) * np.exp2(rng.integers(-14, 4, (12, 1)))).astype(dtype)
    x[3] = 0
    x[4, :16] = 1e-7  # rounds to a zero scale, which is not allowed
    x[5, ::2] = x[5, 1]  # quotients on the grid
    blocks = to_blocks(x, "nvfp4", tensor_scale=tensor_scale)
    assert blocks.tensor_scale == float(np.float32(blocks.tensor_scale))
    scales, elements = blocks.scales.astype(np.float64), blocks.elements.astype(np.float64)
    for row, start in np.ndindex(12, 3):
        part = slice(16 * start, min(16 * start + 16, 37))
        scale, wanted = nvfp4_oracle([float(v) for v in x[row, part]], Fraction(blocks.tensor_scale))
        assert Fraction(scales[row, start]) == scale
        assert [Fraction(v) for v in elements[row, part]] == wanted
    exact = elements * np.repeat(scales, 16, axis=1)[:, :37] * blocks.tensor_scale
    np.testing.assert_array_equal(blocks.dequantize(np.float64), exact)
    np.testing.assert_array_equal(blocks.dequantize(), exact.astype(np.float32))


@pytest.mark.parametrize("mode", ["nearest_even", "up", "down", "odd", "toward_zero", "stochastic"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("tensor", [float(np.float32(v)) for v in (1 / 3, 0.7, 1.9e-5)])
def test_nvfp4_divides_and_rounds_once(mode: str, dtype: Any, tensor: float) -> None:
    """Quotients a float64 step or less from a boundary, where a rounded division decides wrongly."""
    steps = np.array([0.25, 0.5, 0.75, 1.0, 1.25, 2.5, 3.5, 5.0, 6.0])
    scale = 0.75
    near = (steps * scale * tensor).astype(dtype)
    near = np.concatenate([near, np.nextafter(near, dtype(0)), np.nextafter(near, dtype(9))])
    x = np.zeros((near.size, 16), dtype)
    x[:, 0], x[:, 1] = 6 * scale * tensor, near
    x = np.concatenate([x, -x])
    blocks = to_blocks(x, "nvfp4", tensor_scale=tensor, rounding=mode, key=9, random_bits=32)
    np.testing.assert_array_equal(blocks.scales.astype(np.float64), scale)
    for row in range(len(x)):
        exact = Fraction(float(x[row, 1])) / (Fraction(scale) * Fraction(tensor))
        table = [v if exact >= 0 else -v for v in magnitudes(ml_dtypes.float4_e2m1fn)]
        below = max((v for v in table if abs(v) <= abs(exact)), key=abs)
        above = min((v for v in table if abs(v) >= abs(exact)), key=abs, default=table[-1])
        odd = table.index(below) % 2 == 1
        random = Fraction(int(rounding_word(32, 9, row * 16 + 1)), 2**32)
        fraction = (exact - below) / (above - below) if above != below else Fraction(0)
        wanted = {
            "nearest_even": nearest_even(exact, magnitudes(ml_dtypes.float4_e2m1fn)),
            "toward_zero": below,
            "up": max(below, above),
            "down": min(below, above),
            "odd": below if odd or above == below else above,
            "stochastic": above if fraction + random >= 1 else below,
        }[mode]
        assert Fraction(float(blocks.elements[row, 1])) == wanted, (row, float(exact))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_quotient_rounds_to_odd(dtype: Any) -> None:
    rng = np.random.default_rng(8)
    divisor = rng.integers(2**27, 2**28, 3000) * 2.0**-30
    x = (rng.standard_normal(3000) * np.exp2(rng.integers(-60, 60, 3000))).astype(dtype)
    x[:500] = divisor[:500] * 3
    q = quotient(x, divisor, 64)
    for i in range(x.size):
        exact = Fraction(float(x[i])) / Fraction(divisor[i])
        if Fraction(q[i]) == exact:
            continue
        toward_zero = q[i] if abs(Fraction(q[i])) < abs(exact) else np.nextafter(q[i], 0)
        assert (
            abs(Fraction(toward_zero))
            < abs(exact)
            < abs(Fraction(np.nextafter(toward_zero, math.copysign(math.inf, q[i]))))
        )
        assert q[i : i + 1].view(np.int64)[0] % 2 == 1


def rounding_word(bits: int, key: int, index: int) -> int:
    """The random integer the element of an index draws, found through the public rounding itself."""
    low, high = 0, 2**bits
    while low + 1 < high:  # 1 + f rounds up to 2 exactly if f + r / 2^n >= 1
        middle = (low + high) // 2
        f = 1 - middle / 2**bits
        went_up = lp.round(1 + f, lp.FloatFormat("one", 4, 0, infinities=False, nan="none"), "stochastic",
                           key=key, random_bits=bits, offset=index) == 2.0  # fmt: skip
        low, high = (middle, high) if went_up else (low, middle)
    return low


def test_tensor_scale_auto_uses_the_whole_range_of_scales() -> None:
    x = np.random.default_rng(0).standard_normal((8, 64)).astype(np.float32) * 1e-9
    blocks = to_blocks(x, "nvfp4", tensor_scale="auto")
    assert blocks.scales.astype(np.float32).max() == 448
    assert blocks.tensor_scale == np.float32(np.abs(x).max() / (6 * 448))
    assert np.linalg.norm(blocks.dequantize() - x) < 0.12 * np.linalg.norm(x)
    assert to_blocks(np.zeros(5), "nvfp4", tensor_scale="auto").tensor_scale == 1.0


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf, 1e-45, 0.1])
def test_a_bad_tensor_scale_is_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="positive normal float32"):
        to_blocks(np.ones(16), "nvfp4", tensor_scale=bad)


def test_wide_scales_divide_exactly_too() -> None:
    """A float32 scale times a float32 tensor scale: the short cut of the division no longer holds."""
    fmt = BlockFormat("wide", lp.float4_e2m1fn, lp.float32, 4)
    rng = np.random.default_rng(3)
    x = rng.standard_normal((200, 4)).astype(np.float32)
    tensor = float(np.float32(0.3))
    blocks = to_blocks(x, fmt, tensor_scale=tensor)
    table = magnitudes(ml_dtypes.float4_e2m1fn)
    for i, j in np.ndindex(200, 4):
        exact = Fraction(float(x[i, j])) / (Fraction(float(blocks.scales[i, 0])) * Fraction(tensor))
        assert Fraction(float(blocks.elements[i, j])) == nearest_even(exact, table)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_wide_scales_and_a_tensor_scale_are_one_product(dtype: Any, host_backend: str) -> None:
    """Element times scale alone would overflow float32, underflow it, or not be a float32."""
    scale = FloatFormat("wide", 8, 9, infinities=False, nan="top")
    fmt = BlockFormat("wide", FloatFormat("fine", 4, 14), scale, 4)
    for tensor in (2.0**-100, 1.0, float(np.float32(1.1))):
        elements = encode(np.array([[1.0001, -3.3, 15.1, 240.0]] * 4), fmt.element)
        scales = encode(np.array([[2.0**127], [2.0**-120], [1.2345], [255.5 * 2.0**119]]), scale)
        array = BlockArray(fmt, elements, scales, 1, tensor)
        exact = [
            [
                Fraction(float(decode(code, fmt.element))) * Fraction(float(decode(row[0], scale))) * Fraction(tensor)
                for code in line
            ]
            for line, row in zip(elements, scales, strict=True)
        ]
        got = array.dequantize(dtype)
        want = [[rounded(value, dtype) for value in line] for line in exact]
        assert got.tolist() == want


def rounded(value: Fraction, dtype: Any) -> float:
    """The nearest float64 or float32, ties to even, from the definition."""
    precision, least, limit = (24, -149, 2**128) if dtype == np.float32 else (53, -1074, 2**1024)
    size = abs(value)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    exponent -= Fraction(2) ** exponent > size
    quantum = Fraction(2) ** max(exponent - precision + 1, least)
    nearest = round(size / quantum) * quantum
    return math.copysign(math.inf if nearest >= limit else float(nearest), value)


def test_an_automatic_tensor_scale_that_underflows_is_the_smallest() -> None:
    for amax in (5e-324, 1e-320, 1e-300, 1e-36):
        array = to_blocks(np.array([amax, 0.0, -amax]), "nvfp4", tensor_scale="auto")
        wanted = Fraction(amax) / (6 * 448)
        assert array.tensor_scale == max(float(np.float32(float(wanted))), 2.0**-126)
    assert to_blocks(np.array([0.0, np.inf, np.nan]), "nvfp4", tensor_scale="auto").tensor_scale == 1.0
