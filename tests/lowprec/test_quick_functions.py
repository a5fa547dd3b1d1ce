"""Functions rounded to few bits are found by brackets: of every float32 the result lies in its bracket, on every
instruction set, and every rounding of it is the rounding of the float32 result. The short ways to that result give the
same bits as the full one."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import lowprec as lp
from lowprec import _kernels
from lowprec.testing.isa import isa
from lowprec.values.elementwise_op import OPERATIONS
from tests.lowprec.every_float32 import PARTS

FUNCTIONS = ("rsqrt", "exp", "log", "tanh", "erf", "sigmoid", "sin", "cos", "gelu", "gelu_gradient")
NUMBER = {name: list(OPERATIONS).index(name) for name in FUNCTIONS}


@pytest.mark.parametrize("level", _kernels.isa_names())
@pytest.mark.parametrize("name", FUNCTIONS)
def test_brackets_hold_in_every_binade(name: str, level: str) -> None:
    with isa(level):
        for start in range(0, 1 << 32, 1 << 22):
            assert _kernels.outside_brackets(NUMBER[name], start, start + 1024) == 0
            middle = start + (0x9E3779B1 * (start >> 22) & 0x3FF000)
            assert _kernels.outside_brackets(NUMBER[name], middle, middle + 1024) == 0


def test_other_operations_have_no_brackets() -> None:
    assert _kernels.outside_brackets(list(OPERATIONS).index("sqrt"), 5, 12) == 7


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("level", _kernels.isa_names())
@pytest.mark.parametrize("name", FUNCTIONS)
def test_brackets_hold_for_every_float32(name: str, level: str, part: int) -> None:
    size = (1 << 32) // PARTS
    with isa(level):
        assert _kernels.outside_brackets(NUMBER[name], part * size, (part + 1) * size) == 0


def every_code(dtype: Any) -> np.ndarray[Any, Any]:
    return np.arange(1 << 16, dtype=np.uint16).view(dtype)


@pytest.mark.parametrize("level", _kernels.isa_names())
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_all_16_bit_inputs_give_the_rounded_float32_result(name: str, level: str, dtype: Any) -> None:
    x = every_code(dtype)
    with isa(level):
        whole = lp.float32_op(name, x)
        for fmt in ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"):
            for rounding in ("nearest_even", "stochastic", "up"):
                for overflow in (None, "saturate"):
                    how: dict[str, Any] = {"rounding": rounding, "key": 11, "offset": 3, "overflow": overflow}
                    got = lp.float32_op(name, x, fmt=fmt, **how)
                    lp.testing.assert_same_bits(got, lp.astype(whole, fmt, **how))


@pytest.mark.parametrize("level", _kernels.isa_names())
@pytest.mark.parametrize("name", FUNCTIONS)
def test_results_that_the_short_ways_leave_open_are_the_full_ones(name: str, level: str) -> None:
    """One element alone is evaluated in full; here few, many and all of a vector are open, and written in place."""
    rng = np.random.default_rng(3)
    ends = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, 3.9375, -3.9375, 7.875, 1e-40, -1e-40, 3e38], np.float32)
    sizes = np.repeat([0.01, 1.0, 30.0, 1e-35], 160)
    x = np.concatenate([(sizes * rng.normal(size=sizes.size)).astype(np.float32), ends, rng.permutation(ends)])
    with isa(level):
        want = np.array([lp.float32_op(name, x[i : i + 1])[0] for i in range(x.size)])
        got = x.copy()
        lp.float32_op(name, got, out=got)
    lp.testing.assert_same_bits(got, want)


@pytest.mark.parametrize("level", _kernels.isa_names())
@pytest.mark.parametrize("count", [1, 15, 17, 255, 1000, 1025, 3001])
def test_any_length_and_stride(level: str, count: int) -> None:
    x = np.random.default_rng(count).normal(size=2 * count).astype(np.float32)
    with isa(level):
        for view in (x[:count], x[::2], x[1 : count + 1]):
            want = lp.astype(lp.gelu(view.copy()), "float16", "stochastic", key=5, offset=77)
            got = lp.gelu(view, "float16", "stochastic", key=5, offset=77)
            lp.testing.assert_same_bits(got, want)


@pytest.mark.parametrize("level", _kernels.isa_names())
def test_an_overflow_between_equal_codes_is_seen(level: str) -> None:
    """Finite results beyond the largest become NaN, infinite ones the largest value: neither may hide the other."""
    x = np.full(1 << 18, np.finfo(np.float32).max)
    how: dict[str, Any] = {"rounding": "stochastic", "key": 6, "overflow": "nan", "infinite_input": "max"}
    with isa(level):
        got, want = lp.gelu(x, "bfloat16", **how), lp.astype(lp.gelu(x), "bfloat16", **how)
    assert 0 < np.count_nonzero(~np.isnan(want.astype(np.float32))) < 100
    lp.testing.assert_same_bits(got, want)


def test_nan_is_refused_where_there_is_none() -> None:
    x = np.array([0.5, np.nan, 1.0], np.float32)
    with pytest.raises(ValueError, match="NaN"):
        lp.float32_op("tanh", x, fmt="float4_e2m1fn")


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_float32_rounds_to_float16_as_its_result(name: str, part: int) -> None:
    size = (1 << 32) // PARTS
    for start in range(part * size, (part + 1) * size, 1 << 22):
        x = np.arange(start, start + (1 << 22), dtype=np.uint32).view(np.float32)
        lp.testing.assert_same_bits(lp.float32_op(name, x, fmt="float16"), lp.astype(lp.float32_op(name, x), "float16"))
