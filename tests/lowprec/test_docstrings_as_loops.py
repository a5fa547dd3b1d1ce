"""What the docstrings say of every addition, every rounding and its random bits, against the loops of `sum_oracle`."""

from __future__ import annotations

import pydoc
import re
from fractions import Fraction
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import lowprec as lp
from tests.lowprec import sum_oracle as oracle
from tests.lowprec.sum_oracle import BRAIN, FP22, HALF, SINGLE, Grid, Sum

NAMES: dict[Grid, Any] = {SINGLE: "float32", HALF: "float16", BRAIN: "bfloat16", FP22: lp.FloatFormat("e8m13", 8, 13)}
KEY = 2**40 + 5
LONG = 603
"""More than 124 groups of 4, with a short one at the end: parts in three stages."""


def normal(*shape: int, seed: int = 0, dtype: Any = np.float16) -> Any:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32).astype(dtype)


def options(how: Sum) -> dict[str, Any]:
    return dict(
        accumulate=NAMES[how.accumulate],
        out_format=NAMES[how.out],
        group=how.group,
        splits=how.splits,
        stages=how.stages,
        rounding="nearest_even" if how.key is None else "stochastic",
        key=how.key,
        random_bits=how.bits,
    )


PRODUCTS = {
    "short last group": (21, np.float16, Sum(HALF, HALF)),
    "stochastic": (40, np.float16, Sum(HALF, HALF, key=KEY)),
    "result in another format": (40, np.float16, Sum(HALF, BRAIN, key=KEY)),
    "parts of whole groups": (70, np.float16, Sum(HALF, HALF, 16, 3, key=KEY)),
    "one rounding per part": (70, np.float16, Sum(HALF, HALF, None, 4, key=KEY)),
    "most parts of one stage": (60, np.float16, Sum(HALF, HALF, 4, 15)),
    "two stages": (70, np.float16, Sum(HALF, BRAIN, 4, 20, key=KEY)),
    "most parts of two stages": (124, np.float16, Sum(HALF, HALF, 1, 124)),
    "three stages": (LONG, np.float16, Sum(HALF, HALF, 4, 200, key=KEY)),
    "three stages of few parts": (40, np.float16, Sum(BRAIN, BRAIN, 4, 5, 3, key=KEY)),
    "one stage of many parts": (80, np.float16, Sum(HALF, HALF, 4, 20, 1)),
    "fused products of float32": (40, np.float32, Sum(group=None)),
    "fused products of bfloat16": (40, ml_dtypes.bfloat16, Sum(BRAIN, SINGLE, 1)),
    "few random bits": (40, np.float16, Sum(HALF, HALF, 3, key=KEY, bits=5)),
    "many random bits": (40, np.float16, Sum(HALF, HALF, 3, 20, key=KEY, bits=27)),
    "dot4": (27, np.float16, Sum(SINGLE, HALF, 7, 2, adder="dot4", key=KEY)),
    "dot4 in float32": (27, np.float16, Sum(group=7, splits=2, adder="dot4")),
    "pairwise": (27, np.float32, Sum(HALF, HALF, 7, 2, adder="pairwise", key=KEY)),
    "22 bits": (27, np.float16, Sum(FP22, SINGLE, 4, 2)),
    "22 bits, one by one": (27, np.float32, Sum(FP22, SINGLE, 1, key=KEY)),
    "aligned": (27, np.float16, Sum(HALF, SINGLE, 7, 2, adder="aligned", places=13, key=KEY)),
    "aligned, more places than float32 has": (27, np.float16, Sum(FP22, SINGLE, 7, adder="aligned", places=35)),
    "aligned in float32": (27, np.float32, Sum(group=7, splits=2, adder="aligned", places=25)),
    "aligned, one by one": (27, ml_dtypes.bfloat16, Sum(group=1, adder="aligned", places=4)),
    "pairwise in float32": (27, np.float32, Sum(group=7, splits=2, adder="pairwise")),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_matmul(name: str, host_backend: str) -> None:
    size, dtype, how = PRODUCTS[name]
    a, b = normal(2, 1, 2, size, dtype=dtype), normal(2, size, 2, seed=1, dtype=dtype)
    got = lp.matmul(a, b, adder=how.adder, aligned_bits=how.places or None, offset=(7, 15), **options(how))
    lp.testing.assert_same_bits(got, oracle.matmul(a, b, how, (7, 15)).astype(got.dtype))


def test_operands_of_one_axis(host_backend: str) -> None:
    a, b, how = normal(3, 40), normal(40, 5, seed=1), Sum(HALF, HALF, key=KEY)
    lp.testing.assert_same_bits(lp.matmul(a[0], b, **options(how)), oracle.matmul(a[:1], b, how)[0].astype(np.float16))
    want = oracle.matmul(a, b[:, :1], how, (0, 4))[:, 0].astype(np.float16)
    lp.testing.assert_same_bits(lp.matmul(a, b[:, 0], offset=(0, 4), **options(how)), want)


def test_matmul_part(host_backend: str) -> None:
    """A chain of its own from given sums, with each vertex's row, column, batch and first group."""
    a, b, start = normal(3, 2, 21), normal(21, 2, seed=1), normal(2, 2, seed=2, dtype=np.float32)
    how, first = Sum(HALF, HALF, 4, key=KEY), 9
    rows, columns, batches = np.array([4, 0, 30]), np.array([2, 15, 16]), np.array([0, 5, 6])
    want = np.empty((3, 2, 2))
    for v, i, j in np.ndindex(3, 2, 2):
        place = int(batches[v]), int(rows[v]) + i, int(columns[v]) + j
        terms = list(zip(a[v, i], b[:, j], strict=True))
        want[v, i, j] = how.chain(terms, 4, place, first, Fraction(float(start[i, j])))
    where: dict[str, Any] = dict(row=rows, column=columns, batch=batches, first_group=first)
    got = lp.matmul_part(*(a, b), accumulate="float16", group=4, rounding="stochastic", key=KEY, initial=start, **where)
    lp.testing.assert_same_bits(got, want.astype(np.float16))


@pytest.mark.parametrize("axis", [0, 1, (0, 2), None])
def test_reduce_sum(axis: Any, host_backend: str) -> None:
    """A product with ones; row and column count the kept axes before and after the last summed one."""
    x, how = normal(4, 5, 6, dtype=np.float32), Sum(HALF, BRAIN, 3, 2, key=KEY)
    lines = rows_of_terms(x, axis)
    want = [
        [how.of([(term, 1) for term in line], 0, row, column) for column, line in enumerate(columns, 17)]
        for row, columns in enumerate(lines, 2)
    ]
    got = lp.reduce_sum(x, axis, offset=(2, 17), **options(how))
    lp.testing.assert_same_bits(got.ravel(), np.ravel(want).astype(got.dtype))


def rows_of_terms(x: Any, axis: Any) -> Any:
    """x (4, 5, 6) as (row, column, term)."""
    if axis is None:
        return x.reshape(1, 1, -1)
    if axis == (0, 2):
        return x.transpose(1, 0, 2).reshape(5, 1, -1)
    return np.moveaxis(x, axis, -1).reshape((1, 30, 4) if axis == 0 else (4, 6, 5))


ORDERS = ["sequential", "blocked", "pairwise", "kahan"]


class Steps:
    """Roundings to a grid that take their bits one index after the other, or wherever they are told."""

    def __init__(self, grid: Grid, key: int) -> None:
        self.grid, self.key = grid, key

    def __call__(self, x: Fraction, index: int, stage: int = 0) -> Fraction:
        key = oracle.fold_in(self.key, stage) if stage else self.key
        return self.grid.rounded(x, Fraction(oracle.element16(key, index), 1 << 16))


def summed(terms: list[Fraction], indices: list[int], order: str, fl: Steps, number: Any) -> Fraction:
    """One sum; `number(k, n)` is the index of intermediate result k of the n that it has."""
    zero = Fraction(0)
    if order == "kahan":
        s = c = zero
        for x, i in zip(terms, indices, strict=True):
            y = fl(x - c, 4 * i)
            t = fl(s + y, 4 * i + 1)
            s, c = t, fl(fl(t - s, 4 * i + 2) - y, 4 * i + 3)
        return s
    if order == "pairwise":
        level, stage = [fl(x, i) for x, i in zip(terms, indices, strict=True)], 0
        while len(level) > 1:
            stage, pairs = stage + 1, len(level) // 2
            sums = [fl(level[2 * k] + level[2 * k + 1], number(k, pairs), stage) for k in range(pairs)]
            level = sums + level[2 * pairs :]
        return level[0]
    run = 7 if order == "blocked" else len(terms)
    sums = []
    for k in range(0, len(terms), run):
        s = zero
        for x, i in zip(terms[k : k + run], indices[k : k + run], strict=True):
            s = fl(s + x, i)
        sums.append(s)
    if order == "blocked":
        s = zero
        for k, x in enumerate(sums):
            s = fl(s + x, number(k, len(sums)), 1)
        return s
    return sums[0]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("axis", [0, 1, (0, 2), None])
def test_sum(axis: Any, order: str, host_backend: str) -> None:
    """x is numbered as (row, term, column), and so are runs and pairs."""
    x = normal(4, 5, 6, dtype=np.float32)
    lines = rows_of_terms(x, axis)
    rows, columns, size = lines.shape
    want = np.empty((rows, columns))
    for i, j in np.ndindex(rows, columns):
        terms = [Fraction(float(x)) for x in lines[i, j]]
        indices = [(i * size + k) * columns + j for k in range(size)]
        fl = Steps(HALF, KEY)
        want[i, j] = summed(terms, indices, order, fl, lambda k, n, i=i, j=j: (i * n + k) * columns + j)
    got = lp.sum(x, "float16", "stochastic", axis=axis, order=order, block=7, key=KEY)
    lp.testing.assert_same_bits(np.ravel(got), want.ravel().astype(np.float16))
    total = np.array([[Fraction(float(s)) / size for s in row] for row in want]).ravel()
    means = [float(Steps(HALF, KEY)(s, i, 1 << 32)) for i, s in enumerate(total)]
    got = lp.mean(x, "float16", "stochastic", axis=axis, order=order, block=7, key=KEY)
    lp.testing.assert_same_bits(np.ravel(got), np.array(means, np.float16))


@pytest.mark.parametrize("function", [lp.conv2d, lp.reduce_sum, lp.sum])
def test_the_order_is_where_the_docstring_says(function: Any) -> None:
    """`help` finds the module, and no function of the same name in its place."""
    (name,) = re.findall(r'help\("(.+?)"\)', function.__doc__)
    page = pydoc.locate(name)
    assert isinstance(page, ModuleType)
    assert "Random bits" in page.__doc__ or "random bits" in page.__doc__
