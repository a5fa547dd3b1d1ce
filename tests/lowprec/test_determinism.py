"""The same bits for any thread count, chunking and instruction set, and for reference and cpu."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lowprec as lp
from lowprec.testing.strategies import arrays, formats, keys, rounding_modes
from lowprec.values.rounding import MODES

FORMATS = ["float16", "bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "tfloat32", "float8_e8m0fnu", "float4_e2m1fn"]


def sample(size: int) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    rng = np.random.default_rng(0)
    x = (rng.standard_normal(size) * 2.0 ** rng.integers(-30, 18, size)).astype(np.float32)
    x[:4] = [0.0, -0.0, np.inf, -np.inf]
    return x


@pytest.mark.parametrize("isa", lp.testing.isa_names())
@pytest.mark.parametrize("fmt", FORMATS)
def test_instruction_sets_and_threads(isa: str, fmt: str) -> None:
    x = sample(150_001)
    for mode in MODES:
        for bits in (5, 16, 32) if mode == "stochastic" else (16,):
            want = lp.encode(x, fmt, mode, key=1, random_bits=bits, offset=12345)
            with lp.testing.isa(isa):
                for threads in (1, 2, 4):
                    with lp.num_threads(threads):
                        got = lp.encode(x, fmt, mode, key=1, random_bits=bits, offset=12345)
                    np.testing.assert_array_equal(got, want)
                values = lp.round(x, fmt, mode, key=1, random_bits=bits, offset=12345)
            np.testing.assert_array_equal(values, lp.decode(want, fmt))


@pytest.mark.parametrize("isa", lp.testing.isa_names())
def test_every_instruction_set_is_the_reference(isa: str) -> None:
    x = sample(200)
    with lp.testing.isa(isa):
        for fmt in FORMATS:
            for mode in MODES:
                got = lp.encode(x, fmt, mode, key=2, offset=7)
                with lp.testing.backend("reference"):
                    np.testing.assert_array_equal(got, lp.encode(x, fmt, mode, key=2, offset=7))


@pytest.mark.parametrize("bits", [16, 32])
@pytest.mark.parametrize("size", [1, 2, 63, 64, 65, 255, 256, 1000])
def test_any_chunks(bits: int, size: int) -> None:
    x = sample(2000 if size > 2 else 400)
    want = lp.round(x, "float8_e5m2", "stochastic", key=9, random_bits=bits, offset=2**40 + 3)
    parts = [
        lp.round(x[i : i + size], "float8_e5m2", "stochastic", key=9, random_bits=bits, offset=2**40 + 3 + i)
        for i in range(0, x.size, size)
    ]
    np.testing.assert_array_equal(np.concatenate(parts), want)


def test_element_indices_beyond_32_bits() -> None:
    x = np.full(256, 1.1)
    base = lp.encode(x, "float8_e5m2", "stochastic", key=1, offset=0)
    far = lp.encode(x, "float8_e5m2", "stochastic", key=1, offset=2**35)
    assert not np.array_equal(base, far)
    with lp.testing.backend("reference"):
        np.testing.assert_array_equal(lp.encode(x, "float8_e5m2", "stochastic", key=1, offset=2**35), far)


@pytest.mark.parametrize("isa", lp.testing.isa_names())
def test_the_environment_chooses_the_instruction_set(isa: str) -> None:
    code = "import lowprec; print(lowprec._kernels.isa())"
    found = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "LOWPREC_ISA": isa}, capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == isa


def test_unknown_instruction_sets_are_refused() -> None:
    with (
        pytest.raises(ValueError, match="instruction set 'v9' is not one this machine can run: "),
        lp.testing.isa("v9"),
    ):
        pass


def test_num_threads_is_a_context() -> None:
    before = lp.threads.current()
    with lp.num_threads(3):
        assert lp.threads.current() == 3
    assert lp.threads.current() == before
    with pytest.raises(ValueError, match="at least 1, not 0"), lp.num_threads(0):
        pass


@settings(max_examples=150, deadline=None, derandomize=True)
@given(data=st.data(), fmt=formats(), mode=rounding_modes(), key=keys(), offset=st.integers(0, 2**63))
def test_reference_and_cpu_agree_on_anything(
    data: st.DataObject, fmt: lp.FloatFormat, mode: str, key: lp.Key, offset: int
) -> None:
    x = data.draw(arrays(data.draw(st.sampled_from(["float16", "float32", "float64", "bfloat16"]))))
    with np.errstate(invalid="ignore"):
        x = x[~np.isnan(x.astype(np.float64))] if fmt.nan_code is None else x
    got = lp.encode(x, fmt, mode, key=key, offset=offset)
    with lp.testing.backend("reference"):
        np.testing.assert_array_equal(got, lp.encode(x, fmt, mode, key=key, offset=offset))


@settings(max_examples=100, deadline=None, derandomize=True)
@given(data=st.data(), fmt=formats(), mode=rounding_modes(), key=keys())
def test_a_value_of_the_format_never_moves(data: st.DataObject, fmt: lp.FloatFormat, mode: str, key: lp.Key) -> None:
    x = data.draw(arrays(fmt, finite=True)).astype(np.float64)
    np.testing.assert_array_equal(lp.round(x, fmt, mode, key=key), x)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(data=st.data(), fmt=formats(), mode=rounding_modes())
def test_rounding_is_monotone(data: st.DataObject, fmt: lp.FloatFormat, mode: str) -> None:
    if mode == "stochastic" or not fmt.zero:
        return
    x = np.sort(data.draw(arrays("float32", finite=True)).astype(np.float64), axis=None)
    got = lp.round(x, fmt, mode, overflow="saturate")
    assert (np.diff(got) >= 0).all()
