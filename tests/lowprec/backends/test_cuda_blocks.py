"""Block formats and scaled arrays of CuPy arrays, on CuPy's double or a GPU: the bits of the cpu backend."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

import lowprec as lp
from lowprec.scaling.blocks import BlockArray
from lowprec.values.block_format import block_formats
from lowprec.values.rounding import MODES
from tests.lowprec.backends.test_cuda_arrays import host, same

Array = npt.NDArray[Any]
RNG = np.random.default_rng(12)
NAMES = list(block_formats)


def numbers(*shape: int, dtype: Any = np.float32, spread: int = 40) -> Array:
    """Numbers of both signs and many sizes, zeros among them."""
    x = RNG.standard_normal(shape) * 2.0 ** RNG.integers(-spread, spread, shape)
    x.flat[::17] = 0
    with np.errstate(over="ignore", under="ignore"):
        return np.asarray(x.astype(dtype))


def special(x: Array) -> Array:
    """The same with infinities, NaN, the ends of the range, and blocks of nothing else."""
    x = x.copy()
    info = ml_dtypes.finfo(x.dtype)
    x[0, 3], x[1, 40], x[2, :32], x[3, 5], x[3, 6], x[4, :] = np.inf, np.nan, 0, -0.0, info.max, info.smallest_subnormal
    x[5, :], x[6, 2] = -np.inf, -info.max
    return x


def same_blocks(got: BlockArray, want: BlockArray) -> None:
    same(got.elements, want.elements)
    same(got.scales, want.scales)
    assert (got.axis, got.tensor_scale) == (want.axis, want.tensor_scale)


def agree(cupy: ModuleType, x: Array, *how: Any, **options: Any) -> None:
    """Quantised, and back in both dtypes."""
    got, want = lp.to_blocks(cupy.asarray(x), *how, **options), lp.to_blocks(x, *how, **options)
    same_blocks(got, want)
    for dtype in (np.float32, np.float64):
        same(got.dequantize(dtype), want.dequantize(dtype))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", NAMES)
def test_the_cpus_bits(name: str, mode: str, device_arrays: ModuleType) -> None:
    x = special(numbers(8, 70))
    for dtype in (np.float32, np.float64):
        agree(device_arrays, x.astype(dtype), name, rounding=mode, key=5, offset=2**40 + 1)


@pytest.mark.parametrize("name", NAMES)
def test_every_scale_rule_and_dtype(name: str, device_arrays: ModuleType) -> None:
    for rule in block_formats[name].scale_rules:
        for dtype in (np.float16, ml_dtypes.bfloat16, np.float64):
            agree(device_arrays, special(numbers(8, 50, dtype=dtype, spread=8)), name, scale_rule=rule)
    # Just at, below and above the significands at which the rules differ.
    edges = np.float32([[1, 1.5, 1.75, 1.875, 1.9375, 1.99, 1 + 2**-23]]).T * np.float32(2.0) ** np.arange(-3, 4)
    for rule in block_formats[name].scale_rules:
        agree(device_arrays, np.stack([edges, np.nextafter(edges, np.float32(9)), -edges]), name, 0, scale_rule=rule)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_any_axis_any_strides_and_wide_draws(axis: int, device_arrays: ModuleType) -> None:
    x = numbers(9, 35, 6)
    options: dict[str, Any] = {"rounding": "stochastic", "key": 2, "random_bits": 24}
    agree(device_arrays, x, "mxfp4_e2m1", axis, **options)
    got = lp.to_blocks(device_arrays.asarray(x).T[::-1], "nvfp4", axis, **options)
    same_blocks(got, lp.to_blocks(x.T[::-1], "nvfp4", axis, **options))


def test_scales_of_the_tensor(device_arrays: ModuleType) -> None:
    x = numbers(4, 50, spread=4)
    for scale in ("auto", 0.25, 2.0**-100):
        agree(device_arrays, x, "nvfp4", tensor_scale=scale, rounding="stochastic", key=3)
    agree(device_arrays, np.full((2, 20), np.nan, np.float32), "nvfp4", tensor_scale="auto")
    agree(device_arrays, np.zeros((0, 20), np.float32), "nvfp4", tensor_scale="auto")


@pytest.mark.parametrize("mode", ["nearest_even", "up", "stochastic"])
@pytest.mark.parametrize("name", ["float8_e4m3fnuz", "float8_e5m2", "float16", "e6m9"])
def test_scaled_arrays(name: str, mode: str, device_arrays: ModuleType) -> None:
    fmt: Any = lp.FloatFormat("e6m9", 6, 9) if name == "e6m9" else name
    for dtype, spread in ((np.float32, 40), (np.float64, 400), (np.float16, 8), (ml_dtypes.float8_e8m0fnu, 8)):
        x = numbers(8, 70, dtype=np.float64, spread=spread)
        x = np.abs(x).astype(dtype) if dtype == ml_dtypes.float8_e8m0fnu else special(x.astype(dtype))
        for exponent in ("auto", -7, 31):
            options: dict[str, Any] = {"rounding": mode, "key": 8, "offset": 5, "overflow": "ipu"}
            got = lp.to_scaled(device_arrays.asarray(x), fmt, exponent, **options)
            want = lp.to_scaled(x, fmt, exponent, **options)
            same(got.elements, want.elements)
            assert got.exponent == want.exponent
            for out in (np.float32, np.float64):
                same(got.dequantize(out), want.dequantize(out))


def test_scales_of_nan_alone_have_no_largest(device_arrays: ModuleType) -> None:
    # Code 0 of e8m0 is no zero, but 2^-127.
    x = np.full((2, 3), 255, np.uint8).view(ml_dtypes.float8_e8m0fnu)
    got, want = (lp.to_scaled(array, "float8_e5m2") for array in (device_arrays.asarray(x), x))
    assert got.exponent == want.exponent
    same(got.elements, want.elements)


def test_into_given_arrays(device_arrays: ModuleType) -> None:
    x = numbers(4, 70)
    first = lp.to_blocks(device_arrays.asarray(x[::-1]), "mxfp8_e5m2")
    again = lp.to_blocks(device_arrays.asarray(x), "mxfp8_e5m2", out=first)
    assert again.elements is first.elements
    same_blocks(again, lp.to_blocks(x, "mxfp8_e5m2"))
    out = device_arrays.zeros((4, 70), np.float32)
    assert again.dequantize(out=out) is out
    same(out, lp.to_blocks(x, "mxfp8_e5m2").dequantize())
    there = device_arrays.asarray(x)
    made = lp.to_scaled(there, "float32", 3, out=there)
    assert made.elements is there
    same(there, lp.to_scaled(x, "float32", 3).elements)


@pytest.mark.parametrize("threads, blocks", [(1, 1), (33, 2)])
def test_any_grid_and_block(threads: int, blocks: int, cupy: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lowprec.backends.cuda.device.THREADS", threads)
    monkeypatch.setattr("lowprec.backends.cuda.device.BLOCKS_PER_PROCESSOR", blocks)
    agree(cupy, numbers(40, 70), "nvfp4", rounding="stochastic", key=1)


def test_nothing_waits(cupy: ModuleType) -> None:
    x = cupy.asarray(numbers(4, 64))
    cupy.calls.clear()
    made = lp.to_blocks(x, "mxfp8_e4m3")
    assert cupy.calls == {"launch": 1, "alloc": 2}
    made.dequantize()
    assert cupy.calls == {"launch": 2, "alloc": 3}


def test_refusals(device_arrays: ModuleType) -> None:
    there = device_arrays.asarray(numbers(2, 32))
    with pytest.raises(TypeError, match="on a GPU floating-point arrays are scaled, not int64"):
        lp.to_blocks(device_arrays.asarray(np.ones((2, 32), np.int64)), "mxint8")
    with pytest.raises(ValueError, match="stochastic_even to mxfp8_e4m3 runs on NumPy arrays only"):
        lp.to_blocks(there, "mxfp8_e4m3", rounding="stochastic_even", key=1)
    with pytest.raises(ValueError, match=r"scale= and axis= are for NumPy arrays: on a GPU .* exponent="):
        lp.to_scaled(there, "float8_e5m2", scale="auto")
    with pytest.raises(TypeError, match="out must be a CuPy array of float8_e5m2, not ndarray"):
        lp.to_blocks(there, "mxfp8_e5m2", out=lp.to_blocks(numbers(2, 32), "mxfp8_e5m2"))
    made = lp.to_blocks(there, "mxfp4_e2m1")
    with pytest.raises(TypeError, match="NumPy arrays only"):
        np.asarray(made)
    with pytest.raises(TypeError, match="NumPy arrays only"):
        lp.scaled_matmul(made, made)
    there[0, 0] = np.nan
    with pytest.raises(ValueError, match="NaN cannot be represented in float6_e2m3fn"):
        lp.to_scaled(there, "float6_e2m3fn")
    codes = device_arrays.asarray(np.full((1, 32), 16, np.uint8))
    wrong = BlockArray(made.format, codes, device_arrays.asarray(np.zeros((1, 1), np.uint8)), 1)
    with pytest.raises(ValueError, match="codes of float4_e2m1fn must be in"):
        wrong.dequantize()
    assert host(codes).max() == 16
