"""Counts of CuPy arrays on CuPy's double, with the bits of NumPy arrays and of the reference."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

import lowprec as lp
from lowprec import backends, statistics
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
        statistics.lost_updates(*[device_arrays.asarray(np.ones(3, np.float32))] * 3)


def pairs(size: int, fmt: str) -> tuple[Array, Array]:
    """Values of a format and others that are near, far, equal, zeros, infinities and NaN, each beside each."""
    x = np.asarray(lp.round(values(size), fmt), np.float64)
    y = np.where(RNG.integers(0, 3, size) == 0, np.roll(x, 1), x * RNG.choice([1.0, 0.5, -1.0, 1.0625], size))
    return x, np.asarray(lp.round(y, fmt), np.float64)


@pytest.mark.parametrize("fmt", ["float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e8m0fnu", "float4_e2m1fn"])
def test_distances_are_the_cpus(fmt: str, device_arrays: ModuleType) -> None:
    size = 3000
    x, y = pairs(size, fmt) if fmt not in ("float8_e8m0fnu", "float4_e2m1fn") else (
        lp.round(abs(RNG.standard_normal(size)) + 0.1, fmt), lp.round(abs(RNG.standard_normal(size)) + 0.1, fmt)
    )  # fmt: skip
    there = device_arrays.asarray
    for shape in ((size,), (60, 50), (0, 3), ()):
        a, b = (np.resize(v, shape) for v in (x, y))
        for measure in (statistics.ulp_distance, statistics.ulp_error):
            np.testing.assert_array_equal(measure(there(a), there(b), fmt).get(), measure(a, b, fmt))
        got = statistics.relative_error(there(a), there(b))
        assert (got.dtype, got.shape) == (np.float64, shape)
        np.testing.assert_array_equal(got.get(), statistics.relative_error(a, b))
    exact = x * (1 + 1e-3 * RNG.standard_normal(size))
    exact[:3] = 5e-324, 1e-320, 1.7e308
    np.testing.assert_array_equal(
        statistics.ulp_error(there(x), there(exact), fmt).get(), statistics.ulp_error(x, exact, fmt)
    )


def test_distances_of_float64_and_its_subnormal_numbers(device_arrays: ModuleType) -> None:
    x = RNG.integers(0, 2**64, 3000, dtype=np.uint64).view(np.float64)
    x[:6] = 0.0, -0.0, 5e-324, -2e-323, np.inf, np.finfo(np.float64).max
    y = np.concatenate((x[1:], x[:1]))
    there = device_arrays.asarray
    for measure in (statistics.ulp_distance, statistics.ulp_error, statistics.relative_error):
        np.testing.assert_array_equal(measure(there(x), there(y)).get(), measure(x, y))


def test_distances_between_dtypes_broadcast_and_with_numbers(device_arrays: ModuleType) -> None:
    x, rows = values(60, np.float16).reshape(6, 10), np.arange(1, 11, dtype=np.int64)
    there = device_arrays.asarray
    for measure in (statistics.ulp_error, statistics.relative_error):
        np.testing.assert_array_equal(measure(there(x), there(rows)).get(), measure(x, rows))
        np.testing.assert_array_equal(measure(there(x), 0.25).get(), measure(x, 0.25))
        np.testing.assert_array_equal(measure(there(x).T, there(x.T)).get(), measure(x.T, x.T))
    # A number may stand first, where the format is named.
    np.testing.assert_array_equal(statistics.ulp_error(0.3, there(x), "float16").get(),
                                  statistics.ulp_error(0.3, x, "float16"))  # fmt: skip


@pytest.mark.parametrize("at", [0, 1, 2999])
def test_a_value_that_is_off_the_grid_is_named(at: int, device_arrays: ModuleType) -> None:
    x, y = pairs(3000, "float16")
    off = x.copy()
    off[at], off[2999] = 1.0001, 1.0003
    there = device_arrays.asarray
    for a, b in ((off, y), (y, off)):
        with pytest.raises(ValueError) as here:
            statistics.ulp_distance(a, b, "float16")
        with pytest.raises(ValueError) as found:
            statistics.ulp_distance(there(a), there(b), "float16")
        assert str(found.value) == str(here.value)


def test_kinds_of_values_are_counted_as_on_the_cpu(device_arrays: ModuleType) -> None:
    there = device_arrays.asarray
    for dtype in (np.float32, np.float16, np.float64, ml_dtypes.bfloat16):
        x = values(70_001, dtype)
        rounded = np.where(RNG.integers(0, 2, x.size) == 0, 0, x).astype(dtype)
        assert statistics.underflow(there(x), there(rounded)) == statistics.underflow(x, rounded)
        assert statistics.underflow(there(x), -0.0) == statistics.underflow(x, -0.0)
        got, want = statistics.exponent_histogram(there(x)), statistics.exponent_histogram(x)
        assert got[2:] == want[2:]
        np.testing.assert_array_equal(got.exponents, want.exponents)
        np.testing.assert_array_equal(got.counts, want.counts)
    tiny = np.array([5e-324, 2.2e-308, 2.3e-308, -1.7e308, 0.0, 1.0])
    np.testing.assert_array_equal(statistics.exponent_histogram(there(tiny)).counts,
                                  statistics.exponent_histogram(tiny).counts)  # fmt: skip
    nothing: Array = np.zeros(0, np.float32)
    assert statistics.exponent_histogram(there(nothing)).size == 0
    assert np.isnan(statistics.underflow(there(nothing), there(nothing)).share)


@pytest.mark.parametrize("fmt", ["float16", "bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e8m0fnu",
                                 "float6_e2m3fn", "float4_e2m1fn", "float32"])  # fmt: skip
@pytest.mark.parametrize("rounding", ["nearest_even", "toward_zero", "up", "stochastic"])
def test_shares_are_the_cpus(fmt: str, rounding: str, device_arrays: ModuleType) -> None:
    wide = values(70_001, np.float64)
    wide[1:2000] *= 1e9
    for x in (wide, values(3000, np.float16), np.arange(-300, 300, dtype=np.int16).reshape(20, 30)):
        want = statistics.shares(x, fmt, rounding, key=3)  # type: ignore[arg-type]
        got = statistics.shares(device_arrays.asarray(x), fmt, rounding, key=3)  # type: ignore[arg-type]
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("threads, blocks", [(1, 1), (33, 2), (256, 3)])
def test_any_grid_and_block_measures_the_same(
    threads: int, blocks: int, cupy: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "THREADS", threads)
    monkeypatch.setattr(device, "BLOCKS_PER_PROCESSOR", blocks)
    x, y = pairs(3001, "float16")
    a, b = cupy.asarray(x), cupy.asarray(y)
    np.testing.assert_array_equal(statistics.ulp_distance(a, b, "float16").get(),
                                  statistics.ulp_distance(x, y, "float16"))  # fmt: skip
    assert statistics.shares(a, "float8_e5m2") == statistics.shares(x, "float8_e5m2")
    assert statistics.exponent_histogram(a).size == x.size


def test_measures_that_lie_elsewhere_are_refused(device_arrays: ModuleType) -> None:
    x = np.ones(3, np.float32)
    there = device_arrays.asarray(x)
    for measure in (statistics.ulp_distance, statistics.relative_error, statistics.underflow):
        with pytest.raises(TypeError, match="lie on a GPU"):
            measure(there, x)
    with pytest.raises(TypeError, match="of real numbers"):
        statistics.underflow(device_arrays.asarray(np.ones(3, bool)), 0)
    with pytest.raises(ValueError, match="integers beyond 2"):
        statistics.exponent_histogram(device_arrays.asarray(np.array([2**60])))
    for call in (lambda: statistics.signal_to_noise_ratio(there, there),
                 lambda: statistics.plot_ulp_distance(there, there)):  # fmt: skip
        with pytest.raises(TypeError, match=r"runs on NumPy arrays only: give it x\.get"):
            call()
