"""Arrays with one power-of-two scale, the IPU's fp8 tensors among them."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lowprec as lp
import lowprec.testing as lpt
from lowprec.scaling.tensor import IPU_EXPONENTS, to_scaled


@pytest.mark.parametrize("exponent", [-32, -5, 0, 1, 31])
@pytest.mark.parametrize("fmt", ["float8_e4m3fnuz", "float8_e5m2fnuz", "float16"])
def test_equals_rounding_of_the_scaled_value(fmt: str, exponent: int) -> None:
    rng = np.random.default_rng(1)
    x = np.ldexp(rng.standard_normal(500), exponent + rng.integers(-14, 9, 500))
    scaled = to_scaled(x, fmt, exponent)
    assert scaled.elements.dtype == lp.as_format(fmt).dtype
    lpt.assert_same_bits(scaled.elements, lp.astype(np.ldexp(x, -exponent), fmt))
    np.testing.assert_array_equal(scaled.dequantize(np.float64), np.ldexp(scaled.elements.astype(np.float64), exponent))


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=20), st.sampled_from(["f143", "f152", "float4_e2m1fn"]))
@settings(max_examples=100, derandomize=True, deadline=None)
def test_auto_takes_the_smallest_exponent_that_fits(items: list[float], fmt: str) -> None:
    scaled = to_scaled(np.array(items), fmt)
    amax, limit = max(abs(Fraction(v)) for v in items), Fraction(lp.as_format(fmt).max)
    fits = [e for e in range(-32, 32) if amax <= limit * Fraction(2) ** e]
    assert scaled.exponent == (fits[0] if amax else 0)


def test_limits_are_the_ipu_s_six_bits() -> None:
    assert IPU_EXPONENTS == (-32, 31)
    assert to_scaled(np.array([1e-30]), "f143").exponent == -32
    assert to_scaled(np.array([1e30]), "f152").exponent == 31
    assert to_scaled(np.array([1e-30]), "f143", limits=(-126, 127)).exponent < -100
    for nothing in (np.zeros(3), np.full(2, np.nan), np.zeros(0), np.array([np.inf])):
        assert to_scaled(nothing, "f143").exponent == 0
        assert to_scaled(nothing, "f143", limits=(3, 9)).exponent == 3
        assert to_scaled(nothing, "f143", limits=(-9, -3)).exponent == -3
        assert to_scaled(nothing, "f143", limits=(3, 9), axis=()).scale == 8
    for exponent in (-33, 32):
        with pytest.raises(ValueError, match=r"outside of -32\.\.31"):
            to_scaled(np.ones(1), "f143", exponent)


def test_ipu_overflow_is_at_max_times_the_scale() -> None:
    x = np.array([240 * 4.0, 241 * 4.0, 1e30, np.inf, -np.inf, np.nan], np.float32)
    saturated = to_scaled(x, "float8_e4m3fnuz", 2, overflow="ipu").dequantize()
    np.testing.assert_array_equal(saturated, [960, 960, 960, np.nan, np.nan, np.nan])
    refused = to_scaled(x, "float8_e4m3fnuz", 2, rounding="up", overflow="nan").dequantize()
    np.testing.assert_array_equal(refused, [960] + 5 * [np.nan])


def test_values_beyond_float32_under_the_scale_saturate_and_round_up() -> None:
    x = np.array([3e38, -3e38, 1e-45, -1e-45], np.float32)
    largest = to_scaled(x, "float8_e4m3fnuz", -32, overflow="saturate", rounding="up")
    np.testing.assert_array_equal(largest.elements.astype(np.float32)[:2], [240, -240])
    least = to_scaled(x, "float8_e4m3fnuz", 31, overflow="saturate", rounding="up")
    np.testing.assert_array_equal(least.elements.astype(np.float32)[2:], [2.0**-10, 0])


def test_stochastic_rounding_is_unbiased_and_chunks_agree() -> None:
    def rounding(x: np.ndarray, key: lp.Key) -> np.ndarray:
        return to_scaled(np.ldexp(x, -3), "f143", -3, rounding="stochastic", key=key).elements.astype(np.float32)

    points = np.array([0.3, 1.01, 3.0, 2.0**-12, 7.4, -200.1], np.float32)
    lpt.assert_unbiased(rounding, points, "f143", samples=4000)
    x = np.linspace(-1, 1, 90, dtype=np.float32)
    whole = to_scaled(x, "f152", -14, rounding="stochastic", key=3).elements
    part = to_scaled(x[40:], "f152", -14, rounding="stochastic", key=3, offset=40).elements
    np.testing.assert_array_equal(part.view(np.uint8), whole[40:].view(np.uint8))


def test_kinds_of_input_and_what_is_refused() -> None:
    for x in (np.float16(1.5), 1.5, [1.5], np.array(1.5, ml_dtypes.bfloat16)):
        assert np.asarray(to_scaled(x, "f143", 1)).tolist() in (1.5, [1.5])
    assert to_scaled(np.zeros((0, 3)), "f143").exponent == 0
    assert repr(to_scaled([1.0], "f143", 2)) == "<ScaledArray float8_e4m3fnuz (1,), times 2^2>"
    assert to_scaled([math.nan, math.inf], "f152").exponent == 0
    assert np.asarray(to_scaled([1.5], "float16", 200, limits=(0, 200)), np.float64)[0] == 0
    assert np.asarray(to_scaled([2.0**200], "float16", 200, limits=(0, 200)), np.float64)[0] == 2.0**200
    with pytest.raises(TypeError, match="floating-point"):
        to_scaled(np.ones(2, complex), "f143")
    with pytest.raises(TypeError, match="float32 or float64"):
        to_scaled([1.0], "f143").dequantize("float16")
    with pytest.raises(ValueError, match="copies"):
        np.asarray(to_scaled([1.0], "f143"), copy=False)


WIDE = np.float32([[1], [10], [100], [1e-3], [0], [5]]) * np.random.default_rng(3).normal(size=(6, 8)).astype(
    np.float32
)


@pytest.mark.parametrize("scale", [0.1, 3.0, np.float32(1e-3), np.full((6, 1), 0.7), np.linspace(0.1, 2, 8)])
def test_a_scale_of_any_size_divides_exactly_and_rounds_once(scale: Any) -> None:
    made = to_scaled(WIDE, "e4m3", scale=scale, overflow="saturate")
    divisors = np.broadcast_to(np.float32(scale), WIDE.shape)
    want = [
        lp.round(np.float64(Fraction(float(x)) / Fraction(float(d))), "e4m3", overflow="saturate")
        for x, d in zip(WIDE.flat, divisors.flat, strict=True)
    ]
    assert made.elements.astype(np.float64).ravel().tolist() == want
    products = made.elements.astype(np.float64) * divisors.astype(np.float64)
    lpt.assert_same_bits(made.dequantize(np.float64), products)
    lpt.assert_same_bits(made.dequantize(), products.astype(np.float32))
    assert np.shape(made.scale) == np.shape(scale)


@pytest.mark.parametrize(("axis", "shape"), [(0, (6, 1)), (-1, (1, 8)), ((0, 1), (6, 8)), (None, ())])
def test_automatic_scales_use_the_whole_range_and_never_more(axis: Any, shape: tuple[int, ...]) -> None:
    made = to_scaled(WIDE, "e4m3", scale="auto", axis=axis)
    kept = () if axis is None else np.atleast_1d(axis) % 2
    amax = np.abs(WIDE).max(axis=tuple({0, 1} - set(kept)), keepdims=axis is not None)
    assert np.shape(made.scale) == shape
    reach = np.where(amax > 0, np.float64(made.scale) * 448, amax)
    assert ((reach >= amax) & (reach <= amax * (1 + 2**-22))).all()
    assert np.isfinite(made.dequantize()).all()
    powers = to_scaled(WIDE, "e4m3", axis=axis)
    if axis is not None:
        for index in np.ndindex(shape):
            part = WIDE[tuple(slice(None) if n == 1 else slice(i, i + 1) for i, n in zip(index, shape, strict=True))]
            assert np.asarray(powers.scale)[index] == 2.0 ** to_scaled(part, "e4m3").exponent


def test_infinities_and_nan_have_no_part_in_a_scale() -> None:
    made = to_scaled([[1.0, math.inf], [math.nan, 4.0], [math.nan, math.inf]], "e5m2", scale="auto", axis=0)
    assert np.float64(made.scale).ravel().tolist() == [np.float32(1 / 57344), np.float32(4 / 57344), 1.0]
    assert repr(made) == "<ScaledArray float8_e5m2 (3, 2), times scales of shape (3, 1)>"
    assert repr(to_scaled([1.0], "e5m2", scale=0.5)) == "<ScaledArray float8_e5m2 (1,), times 0.5>"


@pytest.mark.parametrize(
    ("given", "kind", "words"),
    [
        ({"scale": -1.0}, ValueError, "scale must hold positive numbers that float32 holds, or be 'auto', not -1.0"),
        ({"scale": 1e-60}, ValueError, "not 1e-60"),
        ({"scale": "amax"}, ValueError, "not 'amax'"),
        ({"scale": np.ones(5)}, ValueError, r"scales of shape \(5,\) do not broadcast to x's \(6, 8\)"),
        ({"scale": 1.0, "axis": 0}, ValueError, r"has \(6,\) scales along axis 0, not an array of shape \(\)"),
        ({"scale": 1.0, "exponent": 3}, TypeError, "not both"),
        ({"exponent": 0.5}, TypeError, "exponent must be 'auto' or an integer, not 0.5; any other scale is scale="),
        ({"axis": 2}, ValueError, "axis 2 is out of bounds"),
    ],
)
def test_scales_that_are_none_are_refused(given: dict[str, Any], kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        to_scaled(WIDE, "e4m3", **given)
