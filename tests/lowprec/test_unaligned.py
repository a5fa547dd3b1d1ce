"""Operands at any address: products, sums, maxima, coordinates and what sums start from, one byte off their alignment.

Results must not change; under `make sanitize` no load may assume an alignment that an array does not have.
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

Array = npt.NDArray[Any]
DTYPES: list[Any] = [np.float32, np.float16, ml_dtypes.bfloat16]


def off_by_one(x: Array) -> Array:
    """A copy one byte behind an aligned address."""
    moved = np.zeros(x.nbytes + 1, np.uint8)[1:].view(x.dtype).reshape(x.shape)
    moved[...] = x
    assert not moved.flags.aligned
    return moved


def in_a_record(x: Array) -> Array:
    """A copy whose elements lie behind one byte each."""
    record = np.zeros(x.shape, [("byte", "i1"), ("x", x.dtype)])
    record["x"] = x
    return record["x"]


def numbers(shape: tuple[int, ...], dtype: Any) -> Array:
    return np.random.default_rng(len(shape)).normal(size=shape).astype(dtype)


def places(count: int) -> Array:
    return np.arange(7, 7 + count, dtype=np.int64).reshape(count)


# What is moved, and what it is for.
CALLS: dict[str, tuple[Callable[[Any], tuple[Array, ...]], Callable[..., Any]]] = {
    "matmul": (
        lambda dtype: (numbers((9, 37), dtype), numbers((37, 21), dtype)),
        lambda a, b: lp.matmul(a, b, accumulate="float16", group=4),
    ),
    "matmul, along k": (
        lambda dtype: (numbers((9, 37), dtype), numbers((21, 37), dtype)),
        lambda a, b: lp.matmul(a, b.T, accumulate="float16", rounding="stochastic", key=1),
    ),
    "matmul, turned": (
        lambda dtype: (numbers((37, 9), dtype), numbers((37, 21), dtype)),
        lambda a, b: lp.matmul(a.T, b, splits=3),
    ),
    "dot4": (
        lambda dtype: (numbers((5, 18), np.float16), numbers((18, 4), np.float16)),
        lambda a, b: lp.matmul(a, b, adder="dot4"),
    ),
    "pairwise": (
        lambda dtype: (numbers((5, 18), dtype), numbers((18, 4), dtype)),
        lambda a, b: lp.matmul(a, b, adder="pairwise"),
    ),
    "matmul_part": (
        lambda dtype: (numbers((3, 5, 8), dtype), numbers((3, 8, 4), dtype), places(3), numbers((3, 5, 4), np.float32)),
        lambda a, b, row, initial: lp.matmul_part(
            *(a, b), accumulate="float16", rounding="stochastic", key=2, row=row, batch=row, initial=initial
        ),
    ),
    "reduce_sum, last": (lambda dtype: (numbers((9, 70), dtype),), lambda x: lp.reduce_sum(x, accumulate="float16")),
    "reduce_sum, first": (
        lambda dtype: (numbers((70, 9), dtype),),
        lambda x: lp.reduce_sum(x, 0, accumulate="float16"),
    ),
    "reduce_sum, all": (lambda dtype: (numbers((70, 9), dtype),), lambda x: lp.reduce_sum(x, None)),
    "reduce_part": (
        lambda dtype: (numbers((3, 2, 20, 5), dtype), places(3)),
        lambda x, row: lp.reduce_part(x, accumulate="float16", rounding="stochastic", key=3, row=row, first_group=row),
    ),
    "sum_parts": (
        lambda dtype: (numbers((4, 3, 5, 9), np.float32), places(3)),
        lambda x, row: lp.sum_parts(x, fmt="float16", rounding="stochastic", key=3, row=row, index=row),
    ),
    "reduce_max, last": (lambda dtype: (numbers((9, 300), dtype),), lp.reduce_max),
    "reduce_max, first": (lambda dtype: (numbers((300, 9), dtype),), lambda x: lp.reduce_max(x, 0)),
    "reduce_max, short": (lambda dtype: (numbers((300, 9), dtype),), lp.reduce_max),
    "scatter_add": (
        lambda dtype: (numbers((20, 9), dtype),),
        lambda x: lp.scatter_add(np.arange(20) % 3, x, 4, accumulate="float16"),
    ),
    "sum": (lambda dtype: (numbers((9, 70), dtype),), lambda x: lp.sum(x, "float16", axis=1)),
    "sum of columns": (lambda dtype: (numbers((70, 9), dtype),), lambda x: lp.sum(x, "float16", axis=0)),
    "dot": (
        lambda dtype: (numbers((9, 70), dtype), numbers((9, 70), dtype)),
        lambda x, y: lp.dot(x, y, "bfloat16", "stochastic", key=4),
    ),
    "kahan_sum": (lambda dtype: (numbers((9, 70), dtype),), lambda x: lp.kahan_sum(x, "float16", axis=1)),
    "add": (lambda dtype: (numbers((9, 70), dtype),), lambda x: lp.add(x, x[::-1], "float16", "up")),
    "float32_op": (lambda dtype: (numbers((9, 71), dtype),), lambda x: lp.float32_op("multiply", x, x)),
    "round": (lambda dtype: (numbers((9, 71), dtype),), lambda x: lp.round(x, "float8_e5m2")),
    "to_blocks": (lambda dtype: (numbers((4, 64), dtype),), lambda x: lp.to_blocks(x, "mxfp8_e4m3").dequantize()),
}


@pytest.mark.parametrize("isa", lpt.isa_names())
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: np.dtype(dtype).name)
@pytest.mark.parametrize("name", CALLS)
def test_the_address_plays_no_part(name: str, dtype: Any, isa: str) -> None:
    operands, call = CALLS[name]
    given = operands(dtype)
    with lpt.isa(isa):
        want = call(*given)
        for moved in (off_by_one, in_a_record):
            lpt.assert_same_bits(call(*(moved(x) for x in given)), want)


@pytest.mark.parametrize("move", [off_by_one, in_a_record])
def test_results_go_to_any_address_with_the_draws_of_their_index(move: Callable[[Array], Array]) -> None:
    x = numbers((7, 9), np.float32)
    how: dict[str, Any] = dict(rounding="stochastic", key=2, offset=1234)
    calls: dict[str, Callable[..., Any]] = {
        "float32_op": lambda out: lp.float32_op("add", x, x[::-1], fmt="float16", out=out, **how),
        "exp": lambda out: lp.exp(x, "float16", out=out, **how),
        "fma": lambda out: lp.fma(x, x, 0.1, "float16", out=out, **how),
        "astype": lambda out: lp.astype(x, "float16", out=out, **how),
    }
    for call in calls.values():
        out = move(np.zeros(x.shape, np.float16))
        assert call(out) is out
        lpt.assert_same_bits(out.copy(), call(None))
