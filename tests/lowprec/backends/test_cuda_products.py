"""Products of CuPy arrays, on CuPy's double or a GPU: the bits of the cpu backend."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import lowprec as lp
from lowprec import backends
from lowprec.values.rounding import MODES
from tests.lowprec.backends.test_cuda_arrays import same

RNG = np.random.default_rng(5)
A = RNG.standard_normal((70, 53)).astype(np.float32)
B = RNG.standard_normal((53, 90)).astype(np.float32)


def agree(cupy: ModuleType, a: Any, b: Any, **options: Any) -> None:
    same(lp.matmul(cupy.asarray(a), cupy.asarray(b), **options), np.asarray(lp.matmul(a, b, **options)))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("accumulate", ["float16", "bfloat16", "float8_e5m2", "float8_e4m3fnuz"])
def test_every_accumulator_and_mode(accumulate: str, mode: str, device_arrays: ModuleType) -> None:
    for group in (1, 4, 16, 23, None):
        agree(device_arrays, A, B, accumulate=accumulate, group=group, rounding=mode, key=3, offset=(2, 5))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float8_e4m3fn", "float8_e5m2fnuz", "float4_e2m1fn"])
def test_every_kind_of_operand(dtype: str, device_arrays: ModuleType) -> None:
    a, b = lp.astype(A, dtype), lp.astype(B, dtype)
    agree(device_arrays, a, b, accumulate="float32")
    agree(device_arrays, a, B, accumulate="float16", rounding="stochastic", key=2**64 - 1)
    agree(device_arrays, A, b, accumulate="float16", rounding="stochastic", key=1, random_bits=24)
    if dtype != "float4_e2m1fn":
        agree(device_arrays, a, b, accumulate="float16", out_format=dtype, splits=3, rounding="stochastic", key=4)


def test_scales_as_operands_reach_below_float32s_normals(device_arrays: ModuleType) -> None:
    scales = np.arange(53 * 3, dtype=np.uint8).reshape(53, 3).view(ml_dtypes.float8_e8m0fnu)
    agree(device_arrays, A, scales, accumulate="float32")


@pytest.mark.parametrize("splits, stages", [(2, None), (53, None), (20, 3), (53, 2)])
def test_parts_and_stages(splits: int, stages: int | None, device_arrays: ModuleType) -> None:
    options: dict[str, Any] = {
        "group": 1,
        "splits": splits,
        "stages": stages,
        "rounding": "stochastic",
        "key": 9,
        "offset": (0, 1),
    }
    agree(device_arrays, A, B, accumulate="float16", out_format="float32", **options)


@pytest.mark.parametrize("m, k, n", [(1, 1, 1), (1, 300, 2), (130, 17, 129), (3, 0, 4), (0, 3, 4), (64, 64, 65)])
def test_shapes(m: int, k: int, n: int, device_arrays: ModuleType) -> None:
    a, b = RNG.standard_normal((m, k)).astype(np.float16), RNG.standard_normal((k, n)).astype(np.float16)
    agree(device_arrays, a, b, accumulate="float16", rounding="stochastic", key=6)
    agree(device_arrays, a, b, accumulate="float32")


def test_batches_vectors_and_any_strides(device_arrays: ModuleType) -> None:
    many = RNG.standard_normal((2, 3, 20, 53)).astype(np.float32)
    options: dict[str, Any] = {"accumulate": "float16", "rounding": "stochastic", "key": 8}
    agree(device_arrays, many, B, **options)
    agree(device_arrays, many, RNG.standard_normal((3, 53, 5)).astype(np.float16), **options)
    for a, b in ((A[0], B), (A, B[:, 0]), (A[0], B[:, 0]), (many, B[:, 0])):
        agree(device_arrays, a, b, **options)
    a, b = device_arrays.asarray(A), device_arrays.asarray(B)
    same(lp.matmul(b.T[::2], a.T, **options), lp.matmul(B.T[::2], A.T, **options))
    same(lp.matmul(a[:, ::-1], b[::-1, 3:], **options), lp.matmul(A[:, ::-1], B[::-1, 3:], **options))


def test_infinities_nan_and_zeros(device_arrays: ModuleType) -> None:
    a = np.float32([[np.inf, 1, -1], [np.nan, 0, 0], [-0.0, -0.0, -0.0], [3e38, 3e38, -3e38], [1e-40, 1e-45, 2]])
    b = np.float32([[1, 0, 3e38], [1, -1, 1e-40], [1, 2, 65504]])
    for mode in MODES:
        for overflow in ("ieee", "satfinite"):
            agree(device_arrays, a, b, accumulate="float16", group=1, rounding=mode, overflow=overflow, key=1)
    agree(device_arrays, a, b)


def test_out_and_what_is_refused(device_arrays: ModuleType) -> None:
    a, b = device_arrays.asarray(A), device_arrays.asarray(B)
    out = device_arrays.zeros((90, 70), np.float16).T
    assert lp.matmul(a, b, accumulate="float16", out=out) is out
    same(out, np.asarray(lp.matmul(A, B, accumulate="float16")))
    with pytest.raises(ValueError, match=r"a has shape \(70, 53\), b \(70, 53\): the inner lengths differ"):
        lp.matmul(a, a)
    with pytest.raises(TypeError, match=r"on a GPU .* and here: move them together"):
        lp.matmul(a, B)
    with pytest.raises(ValueError, match="needs key="):
        lp.matmul(a, b, accumulate="float16", rounding="stochastic")
    with pytest.raises(ValueError, match="made by the sequential adder, not 'pairwise'"):
        lp.matmul(a, b, adder="pairwise")
    with pytest.raises(ValueError, match="a NaN arose"):
        lp.matmul(device_arrays.asarray(np.float32([[np.nan]])), b[:1], out_format="float6_e2m3fn")


def test_chains_go_on_from_given_sums(cupy: ModuleType) -> None:
    first = A.copy()
    options: dict[str, Any] = {"accumulate": "float16", "group": 4, "rounding": "stochastic", "key": 3}
    whole = lp.matmul_part(first, B, **options)
    with backends.backend("cuda"):
        half = lp.matmul_part(first[:, :24], B[:24], **options)
        got = lp.matmul_part(first[:, 24:], B[24:], first_group=6, initial=half, **options)
    np.testing.assert_array_equal(got.view(np.uint16), whole.view(np.uint16))
