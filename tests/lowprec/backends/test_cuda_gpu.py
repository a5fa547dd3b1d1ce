"""What only a GPU can show: streams, captured graphs, real CuPy arrays, more than 2^32 elements. Skipped elsewhere."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import lowprec as lp
from lowprec import backends
from lowprec.backends.cuda import device
from lowprec.values.rounding import MODES

pytestmark = pytest.mark.cuda


@pytest.fixture
def gpu() -> Any:
    """The real CuPy, where there is a GPU."""
    try:
        with backends.backend("cuda"):
            return device.cupy()
    except (ImportError, RuntimeError) as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("fmt", ["float16", "bfloat16", "float8_e4m3fn", "float4_e2m1fn", "float8_e8m0fnu"])
def test_a_million_bit_patterns_as_on_the_cpu(fmt: str, mode: str, gpu: Any) -> None:
    x = np.random.default_rng(0).integers(0, 2**32, 1_000_003, np.uint32).view(np.float32)
    x = np.where(np.isnan(x), np.float32(1), x)
    got = lp.encode(gpu.asarray(x), fmt, mode, key=9, offset=5)
    np.testing.assert_array_equal(got.get(), lp.encode(x, fmt, mode, key=9, offset=5))


@pytest.mark.parametrize("fmt", ["bfloat16", "float16", "float8_e5m2", "float8_e8m0fnu"])
def test_subnormals_are_not_flushed(fmt: str, gpu: Any) -> None:
    codes = np.arange(1 << lp.as_format(fmt).bits).astype(lp.as_format(fmt).code_dtype)
    got = lp.decode(gpu.asarray(codes), fmt).get()
    np.testing.assert_array_equal(got.view(np.uint32), lp.decode(codes, fmt).view(np.uint32))


def test_work_goes_to_the_current_stream(gpu: Any) -> None:
    x = gpu.asarray(np.random.default_rng(1).standard_normal(1 << 24).astype(np.float32))
    gpu.cuda.Device().synchronize()
    stream = gpu.cuda.Stream(non_blocking=True)
    with stream:
        out = lp.astype(x, "float16", "stochastic", key=1)
        done = stream.record()
    done.synchronize()
    np.testing.assert_array_equal(out.get(), lp.astype(x.get(), "float16", "stochastic", key=1))


def test_a_captured_graph_replays(gpu: Any) -> None:
    x = gpu.asarray(np.ones(1000, np.float32) / 3)
    out = gpu.asarray(np.zeros(1000, np.uint16))
    lp.encode(x, "float16", "stochastic", key=1, out=out)  # compiles
    want = out.get()
    stream = gpu.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        lp.encode(x, "float16", "stochastic", key=1, out=out)
        graph = stream.end_capture()
        out.data.memset_async(0, out.nbytes)
        graph.launch()
    stream.synchronize()
    np.testing.assert_array_equal(out.get(), want)


def test_storage_dtypes_of_ml_dtypes_travel_home(gpu: Any) -> None:
    x = np.random.default_rng(2).standard_normal((30, 40)).astype(np.float32)
    narrow = lp.astype(gpu.asarray(x), "float8_e4m3fn")
    assert narrow.dtype == ml_dtypes.float8_e4m3fn
    np.testing.assert_array_equal(narrow.get(), lp.astype(x, "float8_e4m3fn"))
    np.testing.assert_array_equal(lp.decode(narrow, narrow.dtype).get(), lp.round(x, "float8_e4m3fn"))


def test_more_elements_than_32_bits_count(gpu: Any) -> None:
    count = 2**32 + 1000
    if gpu.cuda.runtime.memGetInfo()[0] < 4 * count:
        pytest.skip("needs 17 GB of free GPU memory")
    x = gpu.zeros(count, np.float16)
    tail = np.random.default_rng(3).standard_normal(3000).astype(np.float16)
    x[-3000:].set(tail)
    got = lp.encode(x, "float8_e4m3fn", "stochastic", key=4)
    want = lp.encode(tail, "float8_e4m3fn", "stochastic", key=4, offset=count - 3000)
    np.testing.assert_array_equal(got[-3000:].get(), want)
