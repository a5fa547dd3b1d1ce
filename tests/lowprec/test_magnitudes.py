"""What an array is like: against NumPy in float64, and the same bits by every backend and instruction set."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import lowprec
from lowprec import testing
from lowprec.backends import cpu, reference
from lowprec.statistics import magnitudes
from lowprec.statistics.counts import PIECE

DTYPES: list[Any] = [np.float32, np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e5m2, ml_dtypes.float8_e4m3fn]
ARRAYS = hnp.arrays(np.uint32, st.integers(0, 100), elements=st.integers(0, 2**32 - 1))


@settings(max_examples=200, deadline=None, derandomize=True)
@given(bits=ARRAYS, isa=st.sampled_from(testing.isa_names()), count=st.integers(0, 100), step=st.integers(1, 100))
def test_the_compiled_loop_counts_as_the_reference(
    bits: npt.NDArray[np.uint32], isa: str, count: int, step: int
) -> None:
    x = bits.view(np.float32)
    count, step = (count, min(step, x.size)) if x.size else (0, 0)
    exponents = np.zeros((2, 256), np.int64)
    with testing.isa(isa):
        seen = cpu.magnitudes(x, count, step, exponents[0])
    assert seen == reference.magnitudes(x, count, step, exponents[1])
    assert np.array_equal(*exponents)


SHAPES: list[tuple[int, ...]] = [(), (0,), (3, 5), (PIECE + 17,), (3, PIECE)]
CASES = [
    pytest.param(
        backend, dtype, shape, id=f"{backend}-{np.dtype(dtype).name}-{shape}",
        marks=[pytest.mark.slow] * (backend == "reference" and PIECE + 17 in shape and dtype != np.float16),
    )
    for backend in ("reference", "cpu") for dtype in DTYPES for shape in SHAPES[: None if backend == "cpu" else -1]
]  # fmt: skip
"""Every dtype and shape; the reference takes long over arrays of several pieces."""


@pytest.mark.parametrize("backend, dtype, shape", CASES)
def test_an_array_is_as_numpy_finds_it(backend: str, dtype: Any, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(3)
    values = rng.normal(size=shape) * 2.0 ** rng.integers(-9, 4, shape)
    values.flat[::7], values.flat[3::50] = 0.0, np.nan
    x = np.asarray(lowprec.astype(values, dtype))
    plain = x.astype(np.float64)
    with testing.backend(backend):
        seen, whole = magnitudes(x, sample=100), magnitudes(x)
    finite = plain[np.isfinite(plain)]
    assert seen[:3] == ((plain == 0).sum(), np.isinf(plain).sum(), np.isnan(plain).sum())
    assert seen.largest == np.abs(finite).max(initial=0)
    assert seen.squares == pytest.approx((finite**2).sum(), rel=1e-13)
    assert seen.exponents.sum() == min(100, x.size)
    every = np.frexp(finite[finite != 0])[1] + 126
    assert np.array_equal(whole.exponents[1:255], np.bincount(every, minlength=255)[1:255])


def test_layouts_do_not_matter() -> None:
    x = np.random.default_rng(0).normal(size=(60, 50)).astype(np.float32)
    wanted = magnitudes(np.ascontiguousarray(x.T[::-2]), sample=99)
    seen = magnitudes(x.T[::-2], sample=99)
    assert seen[:5] == wanted[:5]
    assert np.array_equal(seen.exponents, wanted.exponents)


def test_codes_have_the_format_that_is_said() -> None:
    assert magnitudes(np.array([0x38, 0x40], np.uint8), "float8_e4m3fn").squares == 5.0


def test_bad_input_is_refused() -> None:
    with pytest.raises(TypeError, match="not of list"):
        magnitudes([1.0])
    with pytest.raises(ValueError, match="not of float64"):
        magnitudes(np.ones(3))
    with pytest.raises(ValueError, match="not -1"):
        magnitudes(np.ones(3, np.float32), sample=-1)
    with pytest.raises(ValueError, match="no such elements"):
        cpu.magnitudes(np.ones(3, np.float32), 1, 4, np.zeros(256, np.int64))
