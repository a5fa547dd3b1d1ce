"""NaN results have the format's one code, positive, on every backend and instruction set; codes are compared.

The rule has no exception: whatever NaN goes in, of either sign and any payload, and whatever the processor makes of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

import lowprec as lp
import lowprec.testing as lpt
from lowprec.values.elementwise_op import OPERATIONS

Array = npt.NDArray[Any]
DTYPES: list[Any] = [np.float32, np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e5m2]
# Infinities whose sum is NaN and NaNs of both signs: what processors hand on, or make, has either sign.
TERMS = np.array([[np.inf, np.nan, -np.nan, -np.inf, 1.0]] * 40, np.float32)
TERMS[::2] *= -1
RESULTS = ["float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e4m3fnuz"]


def assert_one_nan(result: Array, fmt: Any) -> None:
    """There are NaNs in a result, all with the format's code."""
    known = lp.as_format(fmt)
    codes = np.ascontiguousarray(result).view(known.code_dtype)
    found = np.unique(codes[np.isnan(result.astype(np.float64))])
    assert found.tolist() == [known.nan_code]


SUMS: dict[str, Callable[..., Any]] = {
    "matmul": lambda x, fmt, mode: lp.matmul(x, x.T, accumulate=fmt, group=1, rounding=mode, key=1),
    "matmul, thin": lambda x, fmt, mode: lp.matmul(x.T[:1], x, accumulate=fmt, rounding=mode, key=1),
    "matmul, out": lambda x, fmt, mode: lp.matmul(x, x.T, out_format=fmt, rounding=mode, key=1),
    "pairwise": lambda x, fmt, mode: lp.matmul(x, x.T, accumulate=fmt, adder="pairwise", rounding=mode, key=1),
    "splits": lambda x, fmt, mode: lp.matmul(x.T, x, accumulate=fmt, splits=3, rounding=mode, key=1),
    "reduce_sum": lambda x, fmt, mode: lp.reduce_sum(x, 0, accumulate=fmt, group=1, rounding=mode, key=1),
    "reduce_sum, rows": lambda x, fmt, mode: lp.reduce_sum(x, accumulate=fmt, rounding=mode, key=1),
    "reduce_max": lambda x, fmt, mode: lp.astype(lp.reduce_max(x, 0), fmt),
    "sum_parts": lambda x, fmt, mode: lp.sum_parts(x.reshape(4, 10, 1, 5), fmt=fmt, rounding=mode, key=1),
    "conv2d": lambda x, fmt, mode: lp.conv2d(x.reshape(1, 5, 8, 5), x[:10].reshape(1, 2, 5, 5), accumulate=fmt),
    "scatter_add": lambda x, fmt, mode: lp.scatter_add(np.arange(40) % 3, x, 3, accumulate=fmt, rounding=mode, key=1),
    "sum": lambda x, fmt, mode: lp.sum(x, fmt, mode, axis=0, key=1),
    "cumulative_sum": lambda x, fmt, mode: lp.cumulative_sum(x, fmt, mode, axis=0, key=1),
    "kahan_sum": lambda x, fmt, mode: lp.kahan_sum(x, fmt, mode, axis=0, key=1),
    "dot": lambda x, fmt, mode: lp.dot(x, x[::-1], fmt, mode, axis=0, key=1),
    "add": lambda x, fmt, mode: lp.add(x, x[::-1], fmt, mode, key=1),
    "multiply": lambda x, fmt, mode: lp.multiply(x, x[:, ::-1] * 0, fmt, mode, key=1),
    "astype": lambda x, fmt, mode: lp.astype(x, fmt, mode, key=1),
    "round": lambda x, fmt, mode: lp.astype(lp.round(x.astype(np.float32), fmt, mode, key=1), fmt),
}


@pytest.mark.parametrize("isa", lpt.isa_names())
@pytest.mark.parametrize("fmt", RESULTS)
@pytest.mark.parametrize("call", SUMS.values(), ids=SUMS)
def test_sums_and_roundings(call: Callable[..., Any], fmt: str, isa: str) -> None:
    with lpt.isa(isa), np.errstate(all="ignore"):
        for dtype in DTYPES:
            for mode in ("nearest_even", "toward_zero", "stochastic"):
                assert_one_nan(np.asarray(call(TERMS.astype(dtype), fmt, mode)), fmt)


@pytest.mark.parametrize("fmt", RESULTS)
@pytest.mark.parametrize("call", SUMS.values(), ids=SUMS)
def test_sums_and_roundings_of_the_reference(call: Callable[..., Any], fmt: str) -> None:
    with lpt.backend("reference"), np.errstate(all="ignore"):
        for dtype in DTYPES:
            assert_one_nan(np.asarray(call(TERMS[:20].repeat(2, 0).astype(dtype), fmt, "stochastic")), fmt)


def nan_codes(fmt: lp.FloatFormat) -> Array:
    """Codes that are NaN: all of a narrow format, of float32 and float64 those of both signs at either end."""
    if fmt.bits <= 16:
        codes = np.arange(1 << fmt.bits, dtype=fmt.code_dtype)
        return codes[[np.isnan(fmt.value_of(int(code))) for code in codes]]
    first = (2**fmt.exponent_bits - 1 << fmt.mantissa_bits) + 1
    ends = [first, first | 1 << fmt.mantissa_bits - 1, fmt.sign_bit - 1]
    return np.array([*ends, *(code | fmt.sign_bit for code in ends)], fmt.code_dtype)


WITH_NAN = [fmt for fmt in lp.formats.values() if fmt.nan_code is not None]
WITH_NAN += [lp.FloatFormat("wide range", 11, 10), lp.FloatFormat("top and infinity", 4, 3, nan="top")]


@pytest.mark.parametrize("fmt", WITH_NAN, ids=lambda fmt: fmt.name)
def test_decoded(host_backend: str, fmt: lp.FloatFormat) -> None:
    """Among numbers, in runs that are shorter and longer than the loops' vectors, panels and tables are made for."""
    numbers = np.array([0, 1, fmt.max_code], fmt.code_dtype)
    mixed = np.concatenate([nan_codes(fmt), numbers])
    for isa in lpt.isa_names() if host_backend == "cpu" else lpt.isa_names()[:1]:
        with lpt.isa(isa):
            for size in (1, 7, 40, 1100):
                codes = np.resize(mixed, size)
                for stored in (codes, codes if fmt.dtype is None else codes.view(fmt.dtype)):
                    values = lp.decode(stored, fmt)
                    assert_one_nan(values, values.dtype)
                    is_nan = np.isin(codes, numbers, invert=True)
                    np.testing.assert_array_equal(np.isnan(values), is_nan)


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2", "mxfp8_e4m3", "mxfp8_e5m2"])
def test_dequantized(host_backend: str, name: str) -> None:
    """Elements that someone else made, with NaNs of either sign."""
    x = np.ones((2, 64), np.float32)
    made = lp.to_blocks(x, name) if name.startswith("mx") else lp.to_scaled(x, name)
    element = lp.as_format(made.elements.dtype)
    codes = made.elements.view(np.uint8)
    codes[:, ::3] = np.resize(nan_codes(element), codes[:, ::3].shape)
    for dtype in (np.float32, np.float64):
        assert_one_nan(made.dequantize(dtype), dtype)
        assert np.count_nonzero(np.isnan(made.dequantize(dtype))) == 2 * 22


def test_rotated() -> None:
    for dtype in (np.float32, np.float64):
        x = np.array([[np.inf, -np.inf, 1, 2], [-np.nan, 1, 1, 1], [1, np.nan, -np.nan, 0], [1, 1, 1, 1]], dtype)
        for key in (None, 3):
            for inverse in (False, True):
                assert_one_nan(lp.hadamard(x, key=key, inverse=inverse), dtype)


@pytest.mark.parametrize("isa", lpt.isa_names())
@pytest.mark.parametrize("operation", OPERATIONS)
def test_operations_of_float32(operation: str, isa: str) -> None:
    count, codes = OPERATIONS[operation], np.uint32(0x7FC00000)
    nan = np.array([0x7FC00000, 0xFFC00000, 0x7F800001, 0xFFFFFFFF] * 11, np.uint32).view(np.float32)
    with lpt.isa(isa), np.errstate(all="ignore"):
        result = lp.float32_op(operation, *(nan,) * count)
        made = lp.float32_op(operation, *(np.float32([-np.inf, np.inf] * 9),) * count)
    assert set(result.view(np.uint32)[np.isnan(result)].tolist()) <= {int(codes)}
    assert set(made.view(np.uint32)[np.isnan(made)].tolist()) <= {int(codes)}
