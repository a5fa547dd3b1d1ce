"""The compiled loops against the reference, over random formats, modes, policies, orders and layouts."""

from __future__ import annotations

import time
import warnings
from typing import Any

import numpy as np

import lowprec
from lowprec.testing import backend
from tests.fuzz.lowprec_calls import CALLS
from tests.fuzz.wild import Draw

NAMES = ("round", "astype", "encode", "add", "multiply", "divide", "sqrt", "fma", "matmul", "reduce_sum", "reduce_max",
         "sum_parts", "scatter_add", "sum", "mean", "dot", "norm", "cumulative_sum", "conv2d", "conv2d_weight_gradient",
         "conv2d_input_gradient", "exp", "tanh", "to_blocks", "to_scaled", "hadamard", "pack", "unpack",
         "decode", "all_reduce")  # fmt: skip


def _arguments(case: int) -> tuple[str, dict[str, Any]]:
    d = Draw(case)
    name = d.one_of(NAMES)
    return name, {key: value for key, value in CALLS[name][1](d).items() if key != "out"}


def _outcome(name: str, given: dict[str, Any]) -> Any:
    """The result as arrays, or the kind of refusal."""
    try:
        result = CALLS[name][0](**given)
    except (TypeError, ValueError, IndexError) as error:
        return type(error).__name__
    if isinstance(result, lowprec.BlockArray):
        return [result.elements, result.scales]
    return [result.elements] if isinstance(result, lowprec.ScaledArray) else [np.asarray(result)]


def _same(a: Any, b: Any) -> bool:
    """The same dtype and bits; NaN is NaN."""
    if isinstance(a, str) or isinstance(b, str):
        return bool(a == b)
    for x, y in zip(a, b, strict=True):
        if x.dtype != y.dtype or x.shape != y.shape:
            return False
        codes = np.dtype(f"u{x.dtype.itemsize}")
        equal = np.ascontiguousarray(x).reshape(-1).view(codes) == np.ascontiguousarray(y).reshape(-1).view(codes)
        if x.dtype.kind not in "iu":
            equal |= np.isnan(x.astype(np.float64)).ravel() & np.isnan(y.astype(np.float64)).ravel()
        if not equal.all():
            return False
    return True


def compare(first: int, count: int, seconds: float | None = None) -> tuple[int, int, list[str]]:
    """Compares cases; (values compared, calls, differences in words)."""
    start, values, calls, differences = time.monotonic(), 0, 0, list[str]()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for case in range(first, first + count):
            if seconds is not None and time.monotonic() - start > seconds:
                break
            name, given = _arguments(case)
            fast = _outcome(name, given)
            with backend("reference"):
                slow = _outcome(name, given)
            calls += 1
            values += 0 if isinstance(fast, str) else sum(x.size for x in fast)
            if not _same(fast, slow):
                differences.append(f"case {case}: {name} differs from the reference")
    return values, calls, differences
