"""Products and sums by the compiled loops: each function makes a call object once per specification."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from lowprec import _kernels
from lowprec.backends.cpu.operands import native_step, operand_type
from lowprec.backends.cpu.rounding import native_rounding
from lowprec.formats import float32, float64
from lowprec.keys import TAGS
from lowprec.rule import rounding_rule
from lowprec.sums import ADDERS, Accumulator, Order, exact_products, operand_format, part_length, stage_runs


@cache
def native_accumulator(accumulator: Accumulator) -> _kernels.Accumulator:
    """The accumulator as the kernels take it."""
    fmt = accumulator.out
    storage = 4 if fmt == float32 else 5 if fmt == float64 else fmt.code_dtype.itemsize - 1
    stored = rounding_rule(float32 if fmt == float64 else fmt)
    return _kernels.Accumulator(
        *native_step(accumulator.step),
        *native_step(accumulator.final),
        native_rounding(stored),
        storage,
        accumulator.out_dtype,
        accumulator.one_format,
    )


def _native_order(order: Order) -> _kernels.Order:
    def cut(terms: int) -> tuple[int, int, int, int]:
        group = order.group or max(1, math.ceil(terms / order.splits))
        part = part_length(order, terms)
        return group, part, *stage_runs(order, math.ceil(terms / part))

    return _kernels.Order(cut, ADDERS.index(order.adder))


@cache
def product(a: np.dtype[Any], b: np.dtype[Any], accumulator: Accumulator, order: Order) -> _kernels.ProductCall:
    """f(a, b, key, row, column, first_group, batch, out, threads, initial=None); batch None numbers the products.

    initial: what every element's chain starts from, of the result's shape and dtype or float32; one part only.
    """
    exact = exact_products(operand_format(a), operand_format(b))
    sums = operand_type(accumulator.out_dtype if float32.contains(accumulator.out) else np.dtype(np.float32))
    return _kernels.ProductCall(
        operand_type(a), operand_type(b), sums, native_accumulator(accumulator), _native_order(order), exact
    )


@cache
def reduce(x: np.dtype[Any], accumulator: Accumulator, order: Order) -> _kernels.ReduceCall:
    """f(x, key, row, column, first_group, batch, out, threads) for x (.., m, k, n)."""
    return _kernels.ReduceCall(operand_type(x), native_accumulator(accumulator), _native_order(order))


@cache
def scatter(x: np.dtype[Any], accumulator: Accumulator, order: Order) -> Callable[..., npt.NDArray[Any]]:
    """f(x, indices, rows, key, row, column, batch, out, threads) for x (.., k, n) into (.., rows, n)."""
    return reduce(x, accumulator, order).scatter


@cache
def sum_parts(x: np.dtype[Any], accumulator: Accumulator, tag: str) -> _kernels.SumCall:
    """f(parts, key, index, row, column, batch, out, threads) for parts (P, .., m, n)."""
    return _kernels.SumCall(operand_type(x), native_accumulator(accumulator), TAGS[tag])


@cache
def maximum(x: np.dtype[Any], accumulator: Accumulator) -> _kernels.MaximumCall:
    """f(x, out, threads) for x (m, k, n)."""
    return _kernels.MaximumCall(operand_type(x), native_accumulator(accumulator))
