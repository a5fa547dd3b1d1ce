"""Packing and Hadamard rotations of CuPy arrays, on CuPy's double or a GPU: the bits of the cpu backend."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import lowprec as lp
from tests.lowprec.backends.test_cuda_arrays import same

RNG = np.random.default_rng(13)


@pytest.mark.parametrize("bits", range(1, 9))
def test_packing_of_any_width(bits: int, device_arrays: ModuleType) -> None:
    fmt = lp.FloatFormat(f"u{bits}", bits, 0, 1, signed=False, nan="none", infinities=False)
    for shape in ((7,), (3, 5), (2, 3, 16), (4, 1), (0, 5), (3, 0)):
        codes = RNG.integers(0, 1 << bits, shape).astype(np.uint8)
        want = lp.pack(codes, fmt)
        got = lp.pack(device_arrays.asarray(codes), fmt)
        same(got, want)
        same(lp.unpack(got, fmt, shape[-1]), codes)
    codes = RNG.integers(0, 1 << bits, (6, 10)).astype(np.uint8)
    same(lp.pack(device_arrays.asarray(codes).T[::2], fmt), lp.pack(codes.T[::2], fmt))


def test_packing_of_storage_dtypes_and_what_it_refuses(device_arrays: ModuleType) -> None:
    x = RNG.standard_normal((3, 7)).astype(ml_dtypes.float4_e2m1fn)
    there = device_arrays.asarray(x.view(np.uint8))
    same(lp.pack(there, "float4_e2m1fn"), lp.pack(x, "float4_e2m1fn"))
    there[2, 6] = 16
    with pytest.raises(ValueError, match="codes of float4_e2m1fn must be in"):
        lp.pack(there, "float4_e2m1fn")
    with pytest.raises(ValueError, match="7 codes of float4_e2m1fn take rows of 4 bytes"):
        lp.unpack(there, "float4_e2m1fn", 7)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ml_dtypes.float8_e5m2], ids=str)
@pytest.mark.parametrize("block", [1, 2, 8, 16])
def test_rotations(block: int, dtype: Any, device_arrays: ModuleType) -> None:
    x = RNG.standard_normal((3, 16, 5)).astype(dtype)
    x[0, 1, 2], x[1, 9, 0] = np.nan, np.inf
    there = device_arrays.asarray(x)
    for options in ({}, {"key": 3}, {"key": 3, "inverse": True}):
        same(lp.hadamard(there, 1, block=block, **options), lp.hadamard(x, 1, block=block, **options))
    turned: dict[str, Any] = {"axis": 1, "block": block, "key": 1}
    same(lp.hadamard(there.T, **turned), lp.hadamard(x.T, **turned))
    same(there, x)


def test_a_rotation_of_nothing_and_what_is_refused(device_arrays: ModuleType) -> None:
    same(lp.hadamard(device_arrays.zeros((0, 4), np.float32), key=1), np.zeros((0, 4), np.float32))
    with pytest.raises(ValueError, match="blocks of 4 do not divide an axis of 6"):
        lp.hadamard(device_arrays.zeros((2, 6), np.float32), block=4)
    with pytest.raises(TypeError, match="hadamard takes floating-point arrays, not int32"):
        lp.hadamard(device_arrays.zeros((2, 4), np.int32))
