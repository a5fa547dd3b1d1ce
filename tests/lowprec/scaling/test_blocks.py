"""Block formats against exact fractions and against gfloat, and their scales, special values and random bits."""

from __future__ import annotations

import bisect
import math
from fractions import Fraction
from functools import cache
from itertools import pairwise
from typing import Any

import gfloat
import ml_dtypes
import numpy as np
import pytest
from gfloat import formats as gfloat_formats
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import lowprec as lp
import lowprec.testing as lpt
from lowprec.scaling.block_steps import to_integers
from lowprec.scaling.blocks import BlockArray, to_blocks
from lowprec.values.block_format import BlockFormat, as_block_format, block_formats

MX = [name for name in block_formats if name.startswith("mx")]
SMALL = [name for name in block_formats if block_formats[name].element.nan_code is None]
TABLES = {
    "mxfp8_e4m3": ml_dtypes.float8_e4m3fn,
    "mxfp8_e5m2": ml_dtypes.float8_e5m2,
    "mxfp6_e2m3": ml_dtypes.float6_e2m3fn,
    "mxfp6_e3m2": ml_dtypes.float6_e3m2fn,
    "mxfp4_e2m1": ml_dtypes.float4_e2m1fn,
    "mxint8": np.int8,
    "nvfp4": ml_dtypes.float4_e2m1fn,
}
PUBLISHED = {  # largest element and its exponent: OCP MX v1.0, section 5.3
    "mxfp8_e4m3": (448.0, 8),
    "mxfp8_e5m2": (57344.0, 15),
    "mxfp6_e2m3": (7.5, 2),
    "mxfp6_e3m2": (28.0, 4),
    "mxfp4_e2m1": (6.0, 2),
    "mxint8": (127 / 64, 0),
}


@cache
def magnitudes(dtype: Any) -> list[Fraction]:
    """The finite magnitudes of a dtype, in the order of their codes; of MXINT8's elements for int8."""
    if dtype is np.int8:
        return [Fraction(i, 64) for i in range(128)]
    bits = 4 if "4" in np.dtype(dtype).name[:7] else 6 if "6" in np.dtype(dtype).name[:7] else 8
    values = np.arange(1 << (bits - 1), dtype=np.uint8).view(dtype).astype(np.float64)
    return [Fraction(v) for v in values if math.isfinite(v)]


def element_values(blocks: BlockArray) -> np.ndarray:
    """What the elements stand for, without their scales."""
    return blocks.elements.astype(np.float64) * (2.0**-6 if blocks.format.integers else 1)


def nearest_even(x: Fraction, table: list[Fraction]) -> Fraction:
    """Nearest entry, ties to the even code, saturating, with x's sign."""
    size = min(abs(x), table[-1])
    above = bisect.bisect(table, size)
    beside = range(above - 1, min(above + 1, len(table)))
    best = min(beside, key=lambda code: (abs(table[code] - size), code % 2))
    return table[best] if x >= 0 else -table[best]


def floor_log2(x: Fraction) -> int:
    e = x.numerator.bit_length() - x.denominator.bit_length()
    return e if x >= Fraction(2) ** e else e - 1


def expected_block(block: list[float], name: str) -> tuple[Fraction, list[Fraction]]:
    """Scale and elements of one block of finite values by the OCP rule, in fractions."""
    numbers = [Fraction(v) for v in block]
    amax = max(abs(v) for v in numbers)
    exponent = floor_log2(amax) - PUBLISHED[name][1] if amax else -127
    scale = Fraction(2) ** min(max(exponent, -127), 127)
    table = magnitudes(TABLES[name])
    return scale, [nearest_even(v / scale, table) for v in numbers]


@pytest.mark.parametrize("name", PUBLISHED)
def test_constants_are_the_specification_s(name: str) -> None:
    fmt = block_formats[name]
    assert (fmt.element.max, fmt.element.emax) == PUBLISHED[name]
    assert (fmt.block, fmt.scale) == (32, lp.float8_e8m0fnu)
    assert fmt.bits_per_value == fmt.element.bits + 0.25
    assert to_blocks(np.ones(1), name).elements.dtype == np.dtype(TABLES[name])


def test_nvfp4_has_blocks_of_16_and_e4m3_scales() -> None:
    fmt = block_formats["nvfp4"]
    assert (fmt.block, fmt.scale, fmt.element, fmt.bits_per_value) == (16, lp.float8_e4m3fn, lp.float4_e2m1fn, 4.5)
    assert "16 x float4_e2m1fn" in str(fmt)


@pytest.mark.parametrize("name", MX)
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
@settings(max_examples=15, derandomize=True, deadline=None)
@given(data=st.data())
def test_mx_equals_exact_fractions(name: str, dtype: Any, data: st.DataObject) -> None:
    fmt = lp.as_format(np.dtype(dtype))
    length = data.draw(st.sampled_from([1, 31, 32, 33, 70]))
    x = data.draw(lpt.arrays(fmt, (length,), finite=True))
    if data.draw(st.booleans()):  # values of one size, so that more than the largest survive
        x = (x.astype(np.float64) % 4 - 1.5).astype(dtype)
    blocks = to_blocks(x, name)
    scales, elements = blocks.scales.astype(np.float64), element_values(blocks)
    values = blocks.dequantize(np.float64)
    for i in range(math.ceil(length / 32)):
        part = slice(32 * i, min(32 * i + 32, length))
        scale, wanted = expected_block([float(v) for v in x[part]], name)
        assert Fraction(scales[i]) == scale
        assert [Fraction(v) for v in elements[part]] == wanted
        assert [Fraction(v) for v in values[part]] == [v * scale for v in wanted]


@pytest.mark.parametrize("name", MX)
def test_every_tie_and_neighbour_under_a_fixed_scale(name: str) -> None:
    """Midpoints of the element grid and one float32 step beside them, in blocks led by a power of two."""
    table = magnitudes(TABLES[name])
    lead = 2.0 ** PUBLISHED[name][1]
    ties = np.array([float((a + b) / 2) for a, b in pairwise(table)] + [float(table[-1])], np.float32)
    points = np.concatenate([ties, np.nextafter(ties, np.float32(0)), np.nextafter(ties, np.float32(np.inf))])
    points = np.concatenate([points, -points])
    x = np.full((points.size, 32), lead, np.float32)
    x[:, 1] = points
    wanted = [float(nearest_even(Fraction(float(p)), table)) for p in points]
    for power in (-130, -20, 0, 90):
        got = to_blocks(np.ldexp(x.astype(np.float64), power), name)
        if power > -127:
            np.testing.assert_array_equal(got.scales.astype(np.float64), 2.0**power)
            np.testing.assert_array_equal(element_values(got)[:, 1], wanted)
        else:  # below the smallest scale the block's largest value is no longer in the top binade
            np.testing.assert_array_equal(got.scales.astype(np.float64), 2.0**-127)
            smaller = [float(nearest_even(Fraction(float(p)) / 8, table)) for p in points]
            np.testing.assert_array_equal(element_values(got)[:, 1], smaller)


@pytest.mark.parametrize("name", MX)
def test_agrees_with_gfloat(name: str) -> None:
    info = getattr(gfloat_formats, f"format_info_{name}")
    x = np.random.default_rng(3).standard_normal((6, 32)) * np.exp2(np.arange(6) * 7 - 20)[:, None]
    x[5] = 0
    x = x.astype(np.float32)
    wanted = [gfloat.quantize_block(info, row.astype(np.float64), gfloat.compute_scale_amax) for row in x]
    np.testing.assert_array_equal(to_blocks(x, name).dequantize(), np.array(wanted, np.float32))


# ---- axes, tails and shapes ----


@pytest.mark.parametrize("name", block_formats)
@pytest.mark.parametrize("shape", [(64,), (1,), (33, 3), (64, 5), (2, 40, 3), (2, 0, 3), (0,), (4, 0)])
def test_any_axis_equals_the_last_axis_moved(name: str, shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    for axis in range(-len(shape), len(shape)):
        moved = np.moveaxis(x, axis, -1)
        got, want = to_blocks(x, name, axis), to_blocks(moved, name)
        assert got.axis == axis % len(shape)
        assert got.scales.shape[axis] == math.ceil(shape[axis] / block_formats[name].block)
        np.testing.assert_array_equal(np.moveaxis(got.dequantize(), axis, -1), want.dequantize())
        np.testing.assert_array_equal(np.moveaxis(got.scales, axis, -1), want.scales)


def test_strides_byte_order_lists_and_integers_do_not_matter() -> None:
    x = np.random.default_rng(1).integers(-99, 99, (6, 80))
    want = to_blocks(x.astype(np.float32), "mxfp6_e2m3").dequantize()
    for same in (x, x.tolist(), x.astype(">f8"), np.asfortranarray(x.astype(np.float32)), x.astype(np.int8)):
        np.testing.assert_array_equal(to_blocks(same, "mxfp6_e2m3").dequantize(), want)
    wide = np.zeros((12, 160), np.float32)
    wide[::2, ::2] = x
    np.testing.assert_array_equal(to_blocks(wide[::2, ::2], "mxfp6_e2m3").dequantize(), want)


def test_results_carry_storage_dtypes_and_sizes() -> None:
    blocks = to_blocks(np.ones((4, 40)), "mxfp4_e2m1")
    assert blocks.elements.dtype == ml_dtypes.float4_e2m1fn
    assert blocks.scales.dtype == ml_dtypes.float8_e8m0fnu
    assert (blocks.shape, blocks.scales.shape) == ((4, 40), (4, 2))
    assert blocks.size_in_bits == 160 * 4 + 8 * 8
    np.testing.assert_array_equal(np.asarray(blocks), np.ones((4, 40), np.float32))
    assert "mxfp4_e2m1 (4, 40)" in repr(blocks)
    with pytest.raises(ValueError, match="copies"):
        np.asarray(blocks, copy=False)
    with pytest.raises(TypeError, match="float32 or float64"):
        blocks.dequantize(np.float16)


def test_a_format_without_storage_dtype_keeps_codes() -> None:
    fmt = BlockFormat("mine", lp.p3109(6, 3), lp.float8_e8m0fnu, 8)
    x = np.random.default_rng(0).standard_normal(20).astype(np.float32)
    blocks = to_blocks(x, fmt)
    assert blocks.elements.dtype == np.uint8
    assert np.abs(blocks.dequantize() - x).max() < 0.15 * np.abs(x).max()


# ---- special values ----


@pytest.mark.parametrize("name", block_formats)
def test_zero_blocks(name: str) -> None:
    x = np.zeros((2, 32), np.float32)
    x[0, 3] = -0.0
    blocks = to_blocks(x, name)
    np.testing.assert_array_equal(blocks.dequantize(), 0)
    negative = np.signbit(x) & (name != "mxint8")  # two's complement knows no -0
    np.testing.assert_array_equal(np.signbit(blocks.dequantize()), negative)
    np.testing.assert_array_equal(blocks.scales.astype(np.float64), block_formats[name].scale.smallest_subnormal)


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_without_an_element_nan_the_scale_is_nan(name: str, bad: float) -> None:
    fmt = block_formats[name]
    x = np.full((3, 2 * fmt.block + 5), 6, np.float32)
    x[1, fmt.block + 2] = bad
    x[2, -1] = bad
    blocks = to_blocks(x, name, rounding="up")
    expected = np.zeros((3, 3), bool)
    expected[1, 1] = expected[2, 2] = True
    np.testing.assert_array_equal(np.isnan(blocks.scales.astype(np.float32)), expected)
    values = blocks.dequantize()
    assert np.isnan(values[1, fmt.block : 2 * fmt.block]).all()
    assert np.isnan(values[2, 2 * fmt.block :]).all()
    assert np.isnan(values).sum() == fmt.block + 5
    np.testing.assert_array_equal(values[~np.isnan(values)], 6)


def test_element_nan_and_infinity_stay_in_their_place() -> None:
    x = np.ones(32, np.float32)
    x[[3, 5, 7]] = np.nan, np.inf, -np.inf
    for name, infinite in (("mxfp8_e4m3", [np.nan, np.nan]), ("mxfp8_e5m2", [np.inf, -np.inf])):
        values = to_blocks(x, name).dequantize()
        np.testing.assert_array_equal(values[[3, 5, 7]], [np.nan, *infinite])
        np.testing.assert_array_equal(np.delete(values, [3, 5, 7]), 1)


def test_a_nan_scale_makes_its_block_nan() -> None:
    blocks = to_blocks(np.ones(64), "mxfp8_e4m3")
    blocks.scales.view(np.uint8)[0] = 0xFF
    np.testing.assert_array_equal(np.isnan(blocks.dequantize()), np.arange(64) < 32)


@pytest.mark.parametrize("name", MX)
def test_scales_clamp_and_elements_saturate(name: str) -> None:
    huge = to_blocks(np.array([1e300, -1e300, 1e30]), name)
    np.testing.assert_array_equal(huge.scales.astype(np.float64), 2.0**127)
    limit = block_formats[name].element.max
    np.testing.assert_array_equal(element_values(huge), [limit, -limit, 0])
    tiny = to_blocks(np.array([1e-300, -5e-324]), name, rounding="up")
    np.testing.assert_array_equal(tiny.scales.astype(np.float64), 2.0**-127)
    least = block_formats[name].element.smallest_subnormal
    np.testing.assert_array_equal(element_values(tiny), [least, 0])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", block_formats)
def test_what_scaling_would_flush_still_rounds_up(name: str, dtype: Any) -> None:
    x = np.array([2.0**127, np.finfo(dtype).smallest_subnormal], dtype)
    least = block_formats[name].element.smallest_subnormal
    assert element_values(to_blocks(x, name, rounding="up"))[1] == least
    assert element_values(to_blocks(x, name, rounding="down"))[1] == 0
    assert element_values(to_blocks(-x, name, rounding="down"))[1] == -least


def test_a_quotient_beyond_float64_saturates() -> None:
    blocks = to_blocks(np.array([1e308, -1e308]), "nvfp4", tensor_scale=2.0**-126)
    assert blocks.scales.astype(np.float32)[0] == 448
    np.testing.assert_array_equal(blocks.elements.astype(np.float32), [6, -6])


def test_overflow_is_an_option_and_float32_may_overflow_in_dequantize() -> None:
    x = np.array([1.999, 1.0], np.float32)
    assert np.isinf(to_blocks(x, "mxfp8_e5m2", overflow="infinity").dequantize()[0])
    assert np.isnan(to_blocks(x, "mxfp8_e4m3", overflow="nan").dequantize()[0])
    assert to_blocks(x, "mxfp8_e5m2").dequantize()[0] == 1.75
    top = to_blocks(np.array([np.finfo(np.float32).max]), "mxfp8_e4m3", scale_rule="ceil")
    assert (top.dequantize()[0], top.dequantize(np.float64)[0]) == (np.inf, 2.0**128)
    assert np.asarray(top, np.float64)[0] == 2.0**128
    assert np.asarray(top, np.float16).dtype == np.float16


# ---- stochastic ----


@pytest.mark.parametrize("name", block_formats)
def test_random_index_is_the_element_s_own(name: str) -> None:
    """Chunks with offset, other axes and the plain rounding of scaled values draw the same bits."""
    fmt = block_formats[name]
    x = np.random.default_rng(2).standard_normal((6, 45)).astype(np.float32)
    whole = to_blocks(x, name, rounding="stochastic", key=7)
    rows = to_blocks(x[2:4], name, rounding="stochastic", key=7, offset=90)
    np.testing.assert_array_equal(rows.dequantize(), whole.dequantize()[2:4])
    down = to_blocks(x, name, axis=0, rounding="stochastic", key=7)
    for blocks, axis in ((whole, 1), (down, 0)):
        scales = np.repeat(blocks.scales.astype(np.float64), fmt.block, axis)[:6, :45]
        wanted = lp.encode(x / scales, fmt.element, "stochastic", key=7, overflow="saturate")
        wanted = to_integers(wanted) if fmt.integers else wanted
        np.testing.assert_array_equal(blocks.elements.view(np.uint8), wanted.view(np.uint8))
    assert (to_blocks(x, name, rounding="stochastic", key=8).dequantize() != whole.dequantize()).any()


@pytest.mark.parametrize("name", block_formats)
def test_stochastic_rounding_is_unbiased(name: str) -> None:
    """Every value in a block whose first value fixes the scale at 1."""
    fmt = block_formats[name]
    lead = 2.0**fmt.element.emax if fmt.power_of_two else fmt.element.max

    def rounding(x: np.ndarray, key: lp.Key) -> np.ndarray:
        block = np.full((x.size, fmt.block), lead, x.dtype)
        block[:, 1] = x
        values = to_blocks(block, fmt, rounding="stochastic", key=key)
        assert (values.scales.astype(np.float32) == 1).all()
        return values.dequantize()[:, 1]

    least = fmt.element.smallest_subnormal
    points = np.array([0.3 * least, 1.5 * least, -1.01, 1.0, 0.9 * lead, 0.0, 1.7 * least], np.float32)
    lpt.assert_unbiased(rounding, points, fmt.element, samples=4000, key=11)


def test_same_bits_from_the_reference_backend() -> None:
    x = np.random.default_rng(4).standard_normal((3, 40)).astype(np.float32)
    for name in block_formats:
        for mode in ("nearest_even", "stochastic"):
            want = to_blocks(x, name, rounding=mode, key=1)
            with lpt.backend("reference"):
                got = to_blocks(x, name, rounding=mode, key=1)
                np.testing.assert_array_equal(got.dequantize(), want.dequantize())
            np.testing.assert_array_equal(got.elements.view(np.uint8), want.elements.view(np.uint8))


@pytest.mark.parametrize("name", MX)
@given(x=hnp.arrays(np.float32, hnp.array_shapes(max_dims=2, max_side=50), elements=st.floats(width=32)))
@settings(max_examples=40, derandomize=True, deadline=None)
def test_quantising_twice_changes_nothing(name: str, x: np.ndarray) -> None:
    """On the grid of the same scales nothing moves; with the "floor" rule the scale is found again."""
    once = to_blocks(x, name)
    twice = to_blocks(once.dequantize(np.float64), name)
    np.testing.assert_array_equal(twice.dequantize(np.float64), once.dequantize(np.float64))


# ---- what is refused ----


def test_bad_arguments_say_what_is_allowed() -> None:
    x = np.ones(32)
    with pytest.raises(ValueError, match="unknown block format 'mxfp5'; known: mxfp8_e4m3"):
        to_blocks(x, "mxfp5")
    with pytest.raises(TypeError, match="BlockFormat or its name"):
        as_block_format(8)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="none of floor, ceil, even, rceil"):
        to_blocks(x, "mxfp8_e4m3", scale_rule="nearest")
    with pytest.raises(ValueError, match="none of nearest, up"):
        to_blocks(x, "nvfp4", scale_rule="floor")
    with pytest.raises(ValueError, match="0-d"):
        to_blocks(1.0, "mxfp8_e4m3")
    with pytest.raises(ValueError, match="no tensor scale"):
        to_blocks(x, "mxfp8_e4m3", tensor_scale=2.0)
    with pytest.raises(np.exceptions.AxisError):
        to_blocks(x, "mxfp8_e4m3", axis=1)
    with pytest.raises(ValueError, match="key="):
        to_blocks(x, "mxfp8_e4m3", rounding="stochastic")
    with pytest.raises(ValueError, match="could not say NaN"):
        BlockFormat("mute", lp.float4_e2m1fn, lp.float6_e3m2fn, 8)
    with pytest.raises(TypeError, match="floating-point"):
        to_blocks(np.zeros(3, "V4"), "mxfp8_e4m3")
    with pytest.raises(ValueError, match="at least one value"):
        BlockFormat("none", lp.float4_e2m1fn, lp.float8_e8m0fnu, 0)
    for wrong in (np.ones(3, complex), np.ones(3, bool), np.array(["1"])):
        with pytest.raises(TypeError, match="floating-point"):
            to_blocks(wrong, "mxfp8_e4m3")
    with pytest.raises(ValueError, match=r"2\^53"):
        to_blocks(np.array([2**53 + 1]), "mxfp8_e4m3")
