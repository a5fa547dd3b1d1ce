"""NaN results have the format's one code, positive, on every instruction set; codes are compared, not values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

import lowprec as lp
import lowprec.testing as lpt
from lowprec.spec.elementwise_op import OPERATIONS

Array = npt.NDArray[Any]
DTYPES: list[Any] = [np.float32, np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e5m2]
# Infinities whose sum is NaN and NaNs of both signs: what processors hand on, or make, has either sign.
TERMS = np.array([[np.inf, np.nan, -np.nan, -np.inf, 1.0]] * 40, np.float32)
TERMS[::2] *= -1
RESULTS = ["float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e4m3fnuz"]


def assert_one_nan(result: Array, fmt: str) -> None:
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
