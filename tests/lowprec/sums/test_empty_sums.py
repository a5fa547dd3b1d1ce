"""Sums of no terms: +0 in any number of stages, whatever was summed before and whatever stood where they go."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import lowprec as lp
from tests.lowprec.sums_cases import Array

FULL = np.full((40, 21), 3.75, np.float16)


def zeros(*shape: int) -> Array:
    return np.zeros(shape, np.float16)


CALLS: dict[str, tuple[tuple[int, ...], Callable[..., Any]]] = {
    "matmul": ((3, 20), lambda **how: lp.matmul(zeros(3, 0), zeros(0, 20), **how)),
    "matmul, batches": ((2, 9, 5), lambda **how: lp.matmul(zeros(2, 9, 0), zeros(0, 5), **how)),
    "reduce_sum, rows": ((40,), lambda **how: lp.reduce_sum(zeros(40, 0), 1, **how)),
    "reduce_sum, columns": ((3, 21), lambda **how: lp.reduce_sum(zeros(3, 0, 21), 1, **how)),
    "scatter_add": ((4, 21), lambda **how: scatter(zeros(0, 21), [], **how)),
    "scatter_add, some rows": ((4, 21), lambda **how: scatter(FULL[:2], [5, 5], **how)),
    "conv2d": ((1, 2, 3, 5), lambda **how: lp.conv2d(zeros(1, 3, 4, 0), zeros(2, 2, 0, 5), **how)),
    "conv2d, groups": ((1, 2, 3, 6), lambda **how: lp.conv2d(zeros(1, 3, 4, 0), zeros(2, 2, 0, 6), groups=6, **how)),
    "conv2d_input_gradient": (
        (1, 3, 4, 2),
        lambda **how: lp.conv2d_input_gradient(zeros(1, 2, 3, 0), zeros(2, 2, 2, 0), (3, 4), **how),
    ),
    "conv2d_input_gradient, between strides": ((3, 4, 4), lambda out=None, **how: unreached(out, **how)),
    "conv2d_weight_gradient": (
        (2, 2, 2, 5),
        lambda **how: lp.conv2d_weight_gradient(zeros(0, 3, 4, 2), zeros(0, 2, 3, 5), (2, 2), **how),
    ),
    "conv2d_weight_gradient, groups": (
        (2, 2, 1, 6),
        lambda **how: lp.conv2d_weight_gradient(zeros(0, 3, 4, 6), zeros(0, 2, 3, 6), (2, 2), groups=6, **how),
    ),
}


def scatter(updates: Array, indices: list[int], *, out: Array | None = None, **how: Any) -> Array:
    """The rows but for the last two; an order of several stages is given as one value."""
    rounding = {name: how.pop(name) for name in ("rounding", "key", "infinite_input")}
    how.pop("splits")
    order = lp.Accumulation(None, **{"out" if name == "out_format" else name: value for name, value in how.items()})
    whole = lp.scatter_add(np.array(indices, np.int64), updates, 6, accumulation=order, **rounding)
    if out is None:
        return whole[:4]
    out[...] = whole[:4]
    return out


def unreached(out: Array | None, **how: Any) -> Array:
    """Columns of an input that no window reaches: windows of one column are three apart."""
    gradient, weight = FULL[:3, :12].reshape(1, 3, 3, 4), FULL[:1, :16].reshape(1, 1, 4, 4)
    whole = lp.conv2d_input_gradient(gradient, weight, (3, 7), stride=(1, 3), **how)
    between = whole[0][:, [1, 2, 4, 5]]
    if out is None:
        return between
    out[...] = between
    return out


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("stages", [1, 2, 3])
@pytest.mark.parametrize("splits", [1, 3])
def test_no_terms_are_zero(name: str, stages: int, splits: int, host_backend: str) -> None:
    shape, call = CALLS[name]
    for accumulate, fmt in (("float32", "float32"), ("float16", "float16"), ("bfloat16", "float8_e4m3fnuz")):
        for rounding in ("nearest_even", "down", "stochastic"):
            how: dict[str, Any] = dict(accumulate=accumulate, out_format=fmt, stages=stages, splits=splits)
            how |= {"rounding": rounding, "key": 1, "infinite_input": "max"}
            lp.matmul(FULL[:16], FULL[:16].T, **how)  # leaves its sums where those of no terms are to be
            lp.reduce_sum(FULL, 1, **how)
            lp.reduce_sum(FULL, 0, **how)
            out = np.full(shape, 1.0, lp.as_format(fmt).dtype)
            for result in (call(**how), call(out=out, **how)):
                lp.testing.assert_same_bits(result, np.zeros(shape, out.dtype))


@pytest.mark.parametrize("stages", [1, 2, 3])
def test_no_terms_have_no_power_of_two(stages: Any, host_backend: str) -> None:
    how: dict[str, Any] = dict(stages=stages, out_format="float8_e8m0fnu")
    for result in (lp.matmul(zeros(2, 0), zeros(0, 2), **how), lp.reduce_sum(zeros(3, 0), 1, **how)):
        assert np.isnan(np.float32(result)).all()


def test_chains_of_no_terms(host_backend: str) -> None:
    lp.matmul(FULL[:16], FULL[:16].T)
    for fmt in ("float16", "float32", "float8_e4m3fnuz"):
        got = lp.matmul_part(zeros(9, 0), zeros(0, 5), accumulate=fmt)
        lp.testing.assert_same_bits(got, np.zeros((9, 5), got.dtype))
        got = lp.reduce_part(zeros(2, 0, 5), accumulate=fmt)
        lp.testing.assert_same_bits(got, np.zeros((2, 5), got.dtype))
        got = lp.sum_parts(np.zeros((0, 2, 5), np.float16), fmt=fmt)
        lp.testing.assert_same_bits(got, np.zeros((2, 5), got.dtype))
    lp.testing.assert_same_bits(lp.scaled_matmul(zeros(2, 0), zeros(0, 3), stages=3), np.zeros((2, 3), np.float32))
