"""The compiled pass over blocks against the same steps in NumPy, and `out=`."""

from __future__ import annotations

from typing import Any
from unittest import mock

import ml_dtypes
import numpy as np
import pytest

import lowprec as lp
import lowprec.testing as lpt
from lowprec.backends import cpu
from lowprec.scaling import block_steps
from lowprec.scaling.blocks import BlockArray, to_blocks
from lowprec.values.block_format import BlockFormat, block_formats
from lowprec.values.rounding import MODES

FORMATS = [
    *block_formats.values(),
    BlockFormat("codes of six bits", lp.p3109(6, 3), lp.float8_e8m0fnu, 5),
    BlockFormat("float32 scales", lp.float4_e2m1fn, lp.float32, 4),
    BlockFormat("bfloat16", lp.bfloat16, lp.float8_e8m0fnu, 7),
    BlockFormat("long blocks", lp.float16, lp.float8_e4m3fn, 3000),
    BlockFormat("few scales", lp.float8_e4m3fn, lp.FloatFormat("e3m0", 3, 0, infinities=False, nan="top"), 16),
    BlockFormat("single values", lp.float8_e5m2, lp.float8_e8m0fnu, 1),
]
SHAPES = [(1,), (37,), (4, 64), (5, 45), (3, 40, 7), (70, 3), (66, 2500), (2, 9000), (0, 4)]
DTYPES: list[Any] = [np.float32, np.float64, np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e5m2]


def bits(blocks: BlockArray) -> tuple[np.ndarray, np.ndarray]:
    return blocks.elements.view(blocks.format.element.code_dtype), blocks.scales.view(blocks.format.scale.code_dtype)


def in_steps(x: np.ndarray, fmt: BlockFormat, **options: Any) -> BlockArray:
    with mock.patch.object(cpu, "quantize", return_value=False), np.errstate(all="ignore"):
        return to_blocks(x, fmt, **options)


def numbers(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Numbers of many sizes, with zeros and now and then special values and the ends of the range."""
    x = rng.standard_normal(shape) * np.exp2(rng.integers(-9, 9, shape))
    if rng.random() < 0.3:
        x *= np.exp2(rng.integers(-140, 120, shape))
    with np.errstate(all="ignore"):
        x = x.astype(dtype)
    x[rng.random(shape) < 0.1] = 0
    if rng.random() < 0.5:
        for value in (np.nan, np.inf, -np.inf):
            x[rng.random(shape) < 0.01] = value
    return x


def policies(fmt: BlockFormat) -> list[str]:
    element = fmt.element
    return ["saturate", *["infinity"] * element.infinities, *["nan"] * (element.nan_code is not None)]


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda fmt: fmt.name)
def test_equals_the_steps(fmt: BlockFormat) -> None:
    """Modes, policies, scale rules, dtypes, axes, instruction sets and threads, drawn at random."""
    rng = np.random.default_rng(len(fmt.name))
    for _ in range(60):
        dtype, shape = DTYPES[rng.integers(len(DTYPES))], SHAPES[rng.integers(len(SHAPES))]
        x = numbers(rng, shape, dtype)
        options: dict[str, Any] = {
            "axis": int(rng.integers(len(shape))),
            "rounding": MODES[rng.integers(len(MODES))],
            "scale_rule": fmt.scale_rules[rng.integers(len(fmt.scale_rules))],
            "overflow": policies(fmt)[rng.integers(len(policies(fmt)))],
            "key": 7,
            "random_bits": int(rng.choice([1, 16, 20, 32])),
            "offset": int(rng.integers(200)),
        }
        if not fmt.power_of_two:
            options["tensor_scale"] = [None, "auto", 2.0**-20, float(np.float32(0.1)), 2.0**-126][rng.integers(5)]
        want = in_steps(x, fmt, **options)
        with lpt.isa(lpt.isa_names()[rng.integers(len(lpt.isa_names()))]), lp.num_threads(int(rng.integers(1, 4))):
            got = to_blocks(x, fmt, **options)
            values = {dtype: got.dequantize(dtype) for dtype in (np.float32, np.float64)}
        assert got.tensor_scale == want.tensor_scale
        for ours, theirs in zip(bits(got), bits(want), strict=True):
            np.testing.assert_array_equal(ours, theirs, err_msg=f"{x.dtype} {shape} {options}")
        for kind, some in values.items():
            exact = block_steps.dequantize(
                fmt, want.elements, want.scales, want.axis, want.tensor_scale, np.dtype(kind)
            )
            np.testing.assert_array_equal(some, exact)
            np.testing.assert_array_equal(np.signbit(some) & (some == 0), np.signbit(exact) & (exact == 0))


def test_few_bit_modes_and_exact_bits_go_step_by_step() -> None:
    x = np.random.default_rng(0).integers(-99, 99, (3, 64)).astype(np.float32)
    assert (to_blocks(x, "mxfp4_e2m1", rounding="stochastic_even", random_bits=4, key=1).dequantize() % 0.5 == 0).all()
    exact = to_blocks(x, "mxfp8_e4m3", rounding="stochastic", random_bits="exact", key=1)
    assert np.abs(exact.dequantize() - x).max() < 8  # the spacing of the largest elements
    with pytest.raises(ValueError, match="needs key="):
        to_blocks(x, "mxfp8_e4m3", rounding="stochastic")
    with pytest.raises(ValueError, match="unknown rounding 'best'"):
        to_blocks(x, "mxfp8_e4m3", rounding="best")
    with pytest.raises(ValueError, match="format with NaN"):
        to_blocks(x, "mxint8", overflow="nan")


@pytest.mark.parametrize("fmt", ["float8_e4m3fnuz", "float8_e5m2", "float16", "float4_e2m1fn", "float64"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_scaled_arrays_equal_the_steps(fmt: str, dtype: Any) -> None:
    rng = np.random.default_rng(3)
    for mode in MODES:
        for exponent in (-140, -32, -3, 0, 5, 31, 130):
            x = numbers(rng, (3, 1500), dtype)
            x[np.isnan(x)] = 1
            options: dict[str, Any] = {"limits": (-200, 200), "rounding": mode, "key": 3, "random_bits": 16}
            got = lp.to_scaled(x, fmt, exponent, **options)
            with mock.patch.object(cpu, "scale_and_round", return_value=False), np.errstate(all="ignore"):
                want = lp.to_scaled(x, fmt, exponent, **options)
            lpt.assert_same_bits(got.elements, want.elements)
            with np.errstate(all="ignore"):
                exact = np.ldexp(want.elements.astype(np.float64), exponent)
                np.testing.assert_array_equal(got.dequantize(np.float64), exact)
                np.testing.assert_array_equal(got.dequantize(), exact.astype(np.float32))


def test_a_nan_is_refused_where_the_elements_of_a_scaled_array_have_none() -> None:
    with pytest.raises(ValueError, match="NaN cannot be represented in float4_e2m1fn"):
        lp.to_scaled(np.array([1.0, np.nan], np.float32), "float4_e2m1fn", 0)


def test_codes_beyond_the_format_are_refused() -> None:
    made = to_blocks(np.ones(64, np.float32), "mxfp6_e2m3")
    made.elements.view(np.uint8)[5] = 64
    with pytest.raises(ValueError, match=r"codes of float6_e2m3fn must be in \[0, 64\)"):
        made.dequantize()


# ---- out= ----


@pytest.mark.parametrize("name", block_formats)
@pytest.mark.parametrize("axis", [0, 1])
def test_out_is_written_anew(name: str, axis: int) -> None:
    rng = np.random.default_rng(5)
    x, y = rng.standard_normal((2, 40, 50)).astype(np.float32)
    first = to_blocks(x, name, axis)
    for rounding in ("nearest_even", "stochastic_half"):  # in one pass and in steps
        second = to_blocks(y, name, axis, rounding=rounding, key=1, out=first)
        assert second.elements is first.elements
        assert second.scales is first.scales
        for ours, theirs in zip(bits(second), bits(to_blocks(y, name, axis, rounding=rounding, key=1)), strict=True):
            np.testing.assert_array_equal(ours, theirs)
    values = np.empty((40, 50))
    assert second.dequantize(out=values) is values
    np.testing.assert_array_equal(values, second.dequantize(np.float64))


def test_scaled_arrays_go_into_out() -> None:
    x, elements = np.linspace(-1, 1, 50, dtype=np.float32), np.empty(50, ml_dtypes.float8_e4m3fnuz)
    made = lp.to_scaled(x, "f143", out=elements)
    assert made.elements is elements
    lpt.assert_same_bits(elements, lp.to_scaled(x, "f143").elements)
    values = np.empty(50, np.float32)
    assert made.dequantize(out=values) is values
    np.testing.assert_array_equal(values, made.dequantize())


def test_an_out_that_does_not_fit_is_refused() -> None:
    x = np.ones((4, 64), np.float32)
    made = to_blocks(x, "mxfp8_e4m3")
    with pytest.raises(ValueError, match="out is mxfp8_e4m3 along axis 1, the result mxint8 along axis 1"):
        to_blocks(x, "mxint8", out=made)
    with pytest.raises(ValueError, match=r"out\.elements has shape \(4, 64\), the result \(4, 32\)"):
        to_blocks(x[:, :32], "mxfp8_e4m3", out=made)
    with pytest.raises(TypeError, match="out must be an array of float32, not float64"):
        made.dequantize(np.float32, out=np.empty((4, 64)))
    with pytest.raises(ValueError, match="C-contiguous and writable"):
        made.dequantize(out=np.empty((64, 4), np.float32).T)
