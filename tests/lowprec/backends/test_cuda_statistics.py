"""Counts of CuPy arrays on CuPy's double, with the bits of NumPy arrays and of the reference."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

import lowprec as lp
from lowprec import backends
from lowprec.backends.cuda import device
from lowprec.statistics import Magnitudes, magnitudes
from lowprec.statistics.counts import counted
from lowprec.values.formats import as_format

Array = npt.NDArray[Any]
RNG = np.random.default_rng(13)


def values(size: int, dtype: Any = np.float32) -> Array:
    """Numbers of many sizes, zeros, infinities, NaN of both signs, and subnormal numbers."""
    x = RNG.standard_normal(size) * 2.0 ** RNG.integers(-30, 15, size)
    x[::7], x[3::50], x[5::60], x[6::61], x[4::45] = 0.0, np.nan, -np.inf, -np.nan, 1e-41
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        return np.asarray(x.astype(dtype))


def agree(got: Magnitudes, want: Magnitudes) -> None:
    assert got[:5] == want[:5]
    assert got.exponents.dtype == want.exponents.dtype
    np.testing.assert_array_equal(got.exponents, want.exponents)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16], ids=str)
@pytest.mark.parametrize("size", [1, 15, 16, 17, 1000, 70_001, 140_000])
def test_counts_are_the_cpus(size: int, dtype: Any, device_arrays: ModuleType) -> None:
    x = values(size, dtype)
    for sample in (None, 0, 1, 100, 65_537):
        agree(magnitudes(device_arrays.asarray(x), sample=sample), magnitudes(x, sample=sample))


@pytest.mark.parametrize("dtype", [np.float32, np.float16], ids=str)
def test_counts_are_the_references(dtype: Any, device_arrays: ModuleType) -> None:
    x = values(3000, dtype)
    with backends.backend("reference"):
        want = magnitudes(x, sample=50)
    agree(magnitudes(device_arrays.asarray(x), sample=50), want)


@pytest.mark.parametrize("factor", [1.0, -0.375, 3e38, 1e-38])
def test_numbers_times_a_factor(factor: float, device_arrays: ModuleType) -> None:
    x, fmt = values(2000), as_format("float32")
    here, there = np.zeros(256, np.int64), np.full(256, 3, np.int64)
    single = float(np.float32(factor))
    got = counted(device_arrays.asarray(x), fmt, 500, 7, there, single)
    assert got == counted(x, fmt, 500, 7, here, single)
    np.testing.assert_array_equal(there, here + 3)  # they are added


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2", "float4_e2m1fn"])
def test_narrow_formats_are_decoded_there(name: str, device_arrays: ModuleType) -> None:
    fmt = as_format(name)
    for size in (5, 70_000, 200_000):
        codes = RNG.integers(0, 1 << fmt.bits, size).astype(np.uint8)
        for sample in (None, 1000):
            got = magnitudes(device_arrays.asarray(codes), fmt, sample=sample)
            agree(got, magnitudes(codes, fmt, sample=sample))


def test_any_strides_and_no_elements(device_arrays: ModuleType) -> None:
    x = values(6000).reshape(60, 100)
    for view in (lambda a: a.T, lambda a: a[::-2, 3:], lambda a: a[:0], lambda a: a[3, 4], lambda a: a[:, ::7].T):
        agree(magnitudes(view(device_arrays.asarray(x))), magnitudes(np.asarray(view(x))))


@pytest.mark.parametrize("threads, blocks", [(1, 1), (33, 2), (256, 3)])
def test_any_grid_and_block_gives_the_same(
    threads: int, blocks: int, cupy: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "THREADS", threads)
    monkeypatch.setattr(device, "BLOCKS_PER_PROCESSOR", blocks)
    for dtype in (np.float32, np.float16):
        x = values(66_000, dtype)
        agree(magnitudes(cupy.asarray(x), sample=5000), magnitudes(x, sample=5000))
    # A walk that meets the end of the array exactly.
    here, there = np.zeros((2, 256), np.int64)
    counted(x, as_format(x.dtype), 5000, 600, here)
    counted(cupy.asarray(x), as_format(x.dtype), 5000, 600, there)
    np.testing.assert_array_equal(there, here)


def test_arrays_of_here_travel(cupy: ModuleType) -> None:
    x = values(500)
    with backends.backend("cuda"):
        cupy.calls.clear()
        got = magnitudes(x)
        assert cupy.calls["launch"] == 2
    agree(got, magnitudes(x))


def test_refusals(device_arrays: ModuleType) -> None:
    with pytest.raises(ValueError, match="not of float64"):
        magnitudes(device_arrays.asarray(np.ones(3)))
    with pytest.raises(ValueError, match="not -1"):
        magnitudes(device_arrays.asarray(np.ones(3, np.float32)), sample=-1)
    with pytest.raises(TypeError, match=r"runs on NumPy arrays only: give it x\.get"):
        lp.statistics.shares(device_arrays.asarray(np.ones(3, np.float32)), "float16")
