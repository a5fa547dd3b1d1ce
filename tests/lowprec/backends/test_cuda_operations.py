"""Arithmetic, functions and sums of CuPy arrays on CuPy's double: the kernels' source, compiled by g++, as the CPU."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

import lowprec as lp
from lowprec.backends.cuda import device
from lowprec.values.elementwise_op import OPERATIONS
from lowprec.values.rounding import MODES
from tests.lowprec.backends.test_cuda_arrays import same

Array = npt.NDArray[Any]
ARITHMETIC = {"add": 2, "subtract": 2, "multiply": 2, "divide": 2, "sqrt": 1, "fma": 3, "scaled_add": 3}
RNG = np.random.default_rng(11)
SPECIAL = np.float32([0, -0.0, 1, -1, np.inf, -np.inf, np.nan, 1e-45, -1e-40, 3.4e38, 65504, 2.0**-24])
OPERANDS: tuple[Array, ...] = (
    np.concatenate([RNG.standard_normal(118).astype(np.float32), SPECIAL]).reshape(2, 65),
    RNG.standard_normal(65).astype(np.float16),
    np.abs(RNG.standard_normal((2, 1))).astype(ml_dtypes.bfloat16),
)
ORDERS = ("sequential", "blocked", "pairwise", "kahan")


def agree(call: Callable[..., Any], cupy: ModuleType, *arrays: Array, **keywords: Any) -> None:
    """The call gives the same of CuPy arrays as of NumPy's."""
    same(call(*map(cupy.asarray, arrays), **keywords), np.asarray(call(*arrays, **keywords)))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("op", ARITHMETIC)
def test_arithmetic_is_the_cpus(op: str, mode: str, device_arrays: ModuleType) -> None:
    fmt = ("float16", "float8_e5m2", "bfloat16")[MODES.index(mode) % 3]
    arrays = OPERANDS[: ARITHMETIC[op]]
    agree(lambda *x: getattr(lp, op)(*x, fmt, mode, key=5, offset=2**40 + 3), device_arrays, *arrays)


@pytest.mark.parametrize("mode", ["nearest_even", "nearest_away", "stochastic", "odd"])
@pytest.mark.parametrize("fmt", ["float64", "float32"])
def test_ends_of_float64_are_left_to_the_reference(fmt: str, mode: str, device_arrays: ModuleType) -> None:
    x = np.array([1e308, 1e-310, 3.0, 0.1, 1e-300, np.inf, np.nan])
    for op in ("add", "multiply", "divide", "sqrt"):
        arrays = (x, x[::-1].copy())[: ARITHMETIC[op]]
        agree(lambda *given: getattr(lp, op)(*given, fmt, mode, key=2), device_arrays, *arrays)  # noqa: B023
    agree(lambda a: lp.multiply(a, 1e-310, fmt, mode, key=2), device_arrays, x)


def test_more_random_bits_than_a_double_carries(device_arrays: ModuleType) -> None:
    agree(lambda a, b: lp.multiply(a, b, "float32", "stochastic", key=2, random_bits=32), device_arrays, *OPERANDS[:2])


@pytest.mark.parametrize("op", OPERATIONS)
def test_float32_op_is_the_cpus(op: str, device_arrays: ModuleType) -> None:
    mode = MODES[list(OPERATIONS).index(op) % len(MODES)]
    arrays = OPERANDS[: OPERATIONS[op]]
    agree(lambda *x: lp.float32_op(op, *x, fmt="bfloat16", rounding=mode, key=5, offset=1), device_arrays, *arrays)
    agree(lambda *x: lp.float32_op(op, *x), device_arrays, *arrays)


@pytest.mark.parametrize("mode", ["nearest_even", "stochastic"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.float8_e8m0fnu], ids=str)
def test_float32_sums_and_maxima(dtype: Any, mode: str, device_arrays: ModuleType) -> None:
    x = (np.abs(RNG.standard_normal((3, 7, 5))) * 8).astype(dtype)
    hows: list[dict[str, Any]] = [
        {"accumulate": "float16", "group": 4, "random_bits": 24},
        {"splits": 3, "accumulate": "float8_e5m2", "out_format": "float16", "overflow": "saturate"},
        {"splits": 7, "stages": 3, "accumulate": "bfloat16", "group": 2},
        {"out_format": "float64"},
    ]
    for axis in (None, 1, (0, 2), -1, ()):
        for how in hows:
            agree(lambda a: lp.reduce_sum(a, axis, rounding=mode, key=3, **how), device_arrays, x)  # noqa: B023
        if axis != ():
            agree(lambda a: lp.reduce_max(a, axis, keepdims=True), device_arrays, x)  # noqa: B023


def test_maxima_of_zeros_and_nan(device_arrays: ModuleType) -> None:
    x = np.float32([[-0.0, 0.0, -0.0], [-0.0, -0.0, -0.0], [1, np.nan, 2], [-np.inf, -np.inf, -np.inf]])
    agree(lp.reduce_max, device_arrays, x)
    agree(lp.reduce_max, device_arrays, np.tile(x, 300))


@pytest.mark.parametrize("rounding", ["nearest_even", "stochastic"])
def test_scatter_add(rounding: str, device_arrays: ModuleType) -> None:
    indices = RNG.integers(-6, 6, (4, 5))
    updates = RNG.standard_normal((4, 5, 3, 2)).astype(np.float16)
    for how in ({"accumulate": "float16", "group": 2}, {"out_format": "bfloat16"}):
        agree(lambda i, u: lp.scatter_add(i, u, 6, rounding=rounding, key=8, **how), device_arrays, indices, updates)  # noqa: B023
    for wrong in (6, -7):
        indices[2, 3] = wrong
        with pytest.raises(IndexError, match=f"index {wrong} is out of bounds for 6 rows"):
            lp.scatter_add(device_arrays.asarray(indices), device_arrays.asarray(updates), 6)


@pytest.mark.parametrize("mode", ["nearest_even", "stochastic", "down"])
@pytest.mark.parametrize("fmt", ["float16", "float32", "e10m12", "float8_e4m3"])
def test_sums_rounded_at_every_addition(fmt: str, mode: str, device_arrays: ModuleType) -> None:
    how = lp.FloatFormat("e10m12", 10, 12) if fmt == "e10m12" else fmt
    x = RNG.standard_normal((3, 7, 5)).astype(np.float16)
    y = np.abs(RNG.standard_normal((7, 1))).astype(ml_dtypes.float8_e8m0fnu)
    for order in ORDERS:
        keywords: dict[str, Any] = {"order": order, "block": 3, "key": 4, "offset": 105}
        for axis in (1, None):
            agree(lambda a: lp.sum(a, axis, how, mode, **keywords), device_arrays, x)  # noqa: B023
        agree(lambda a: lp.mean(a, (0, 2), how, mode, **keywords | {"offset": 0}), device_arrays, x)  # noqa: B023
        if order != "kahan":
            agree(lambda a, b: lp.dot(a, b, 1, how, mode, **keywords), device_arrays, x, y)  # noqa: B023
            agree(lambda a: lp.norm(a, 1, how, mode, **keywords), device_arrays, x)  # noqa: B023
    agree(lambda a: lp.cumulative_sum(a, 0, how, mode, key=1), device_arrays, x)


@pytest.mark.parametrize("threads, blocks", [(1, 1), (33, 2), (256, 3)])
def test_any_grid_and_block_gives_the_same(
    threads: int, blocks: int, cupy: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "THREADS", threads)
    monkeypatch.setattr(device, "BLOCKS_PER_PROCESSOR", blocks)
    x = RNG.standard_normal((41, 30)).astype(np.float32)
    agree(lambda a: lp.multiply(a, a, "float16", "stochastic", key=5), cupy, x)
    agree(lambda a: lp.exp(a, "bfloat16", "stochastic", key=5), cupy, x)
    agree(lambda a: lp.reduce_sum(a, 0, splits=4, group=3, accumulate="float16", rounding="stochastic", key=1), cupy, x)
    agree(lambda a: lp.reduce_max(a), cupy, x)
    agree(lambda a: lp.sum(a, 1, "float16", "stochastic", key=1, order="pairwise"), cupy, x)


def test_any_layout_in_and_out(device_arrays: ModuleType) -> None:
    x = RNG.standard_normal((6, 10, 14)).astype(np.float32)
    there = device_arrays.asarray(x)
    for view in (lambda a: a.T, lambda a: a[::-1, :, ::-2], lambda a: a[:, 3:4], lambda a: a[2, 3, 4], lambda a: a[:0]):
        here = np.asarray(view(x))
        same(
            lp.add(view(there), 1.5, "float16", "stochastic", key=1), lp.add(here, 1.5, "float16", "stochastic", key=1)
        )
        same(lp.tanh(view(there)), np.asarray(lp.tanh(here)))
        if here.ndim:
            same(lp.sum(view(there), 0), np.asarray(lp.sum(here, 0)))
            same(
                lp.reduce_sum(view(there), (0, 2), keepdims=True),
                np.asarray(lp.reduce_sum(here, (0, 2), keepdims=True)),
            )
    out = device_arrays.asarray(np.zeros((10, 12), np.float16))[:, ::2].T
    assert lp.reduce_sum(there, 2, out_format="float16", out=out) is out
    same(out, lp.reduce_sum(x, 2, out_format="float16"))
    total = device_arrays.asarray(np.zeros((6, 20, 14), np.float32))[:, ::2]
    assert lp.subtract(there, there[:1], out=total) is total
    same(total, lp.subtract(x, x[:1]))
    assert lp.add(there, there, out=there) is there
    same(there, lp.add(x, x))


def test_nothing_waits_and_nothing_is_copied(cupy: ModuleType) -> None:
    x = cupy.asarray(RNG.standard_normal((64, 64)).astype(np.float32))
    out = cupy.asarray(np.zeros((64, 64), np.float16))
    cupy.calls.clear()
    lp.multiply(x.T, x, "float16", "stochastic", key=1, out=out)
    lp.float32_op("add", x, 2.0, fmt="float16", out=out)
    assert cupy.calls == {"launch": 2}
    lp.reduce_sum(x, 0, splits=4)
    assert cupy.calls == {"launch": 4, "alloc": 2}  # parts, and the result
    lp.sum(x, 1)
    assert cupy.calls == {"launch": 5, "alloc": 3}


def test_refusals(device_arrays: ModuleType) -> None:
    x = np.ones((4, 6), np.float32)
    there = device_arrays.asarray(x)
    with pytest.raises(TypeError, match=r"lie on a GPU .* and here .a ndarray.: move them together"):
        lp.add(there, x)
    with pytest.raises(TypeError, match=r"lie on a GPU .* and here .a ndarray.: move them together"):
        lp.float32_op("add", x, there)
    with pytest.raises(TypeError, match="indices and updates lie on a GPU"):
        lp.scatter_add(np.arange(4), there, 4)
    with pytest.raises(ValueError, match="needs key="):
        lp.float32_op("add", there, 1.0, fmt="float16", rounding="stochastic")
    with pytest.raises(ValueError, match="needs key="):
        lp.reduce_sum(there, accumulate="float16", rounding="stochastic")
    with pytest.raises(ValueError, match="out shares memory with the input"):
        lp.add(there[:, :4], 1.0, out=there[:, 1:5])
    with pytest.raises(TypeError, match="out must be a CuPy array of float32, not ndarray"):
        lp.exp(there, out=x)
    with pytest.raises(ValueError, match="adder='pairwise' is for products"):
        lp.reduce_sum(there, accumulation=lp.Accumulation(adder="pairwise"))
    there[0, 0] = np.nan
    with pytest.raises(ValueError, match="NaN cannot be represented in float4_e2m1fn"):
        lp.add(there, 1.0, "float4_e2m1fn")
    with pytest.raises(ValueError, match="a NaN was met and the format has none"):
        lp.float32_op("add", there, 1.0, fmt="float4_e2m1fn")
    with pytest.raises(ValueError, match="a NaN arose"):
        lp.reduce_sum(there, out_format="float4_e2m1fn")
    wide = lp.FloatFormat("e11m3b1024", 11, 3, 1024)
    for call in (lambda: lp.add(there, 1.0, wide), lambda: lp.sum(there, None, wide)):
        with pytest.raises(ValueError, match="reaches below float64's normal values and runs on NumPy arrays only"):
            call()
