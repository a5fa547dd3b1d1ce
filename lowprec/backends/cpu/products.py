"""Products and sums by the compiled loops: each function makes a call object once per specification."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from lowprec import _kernels
from lowprec.backends.cpu.operands import native_step, operand_type
from lowprec.backends.cpu.rounding import native_rounding
from lowprec.types import Array
from lowprec.values.accumulation import ADDERS, Accumulation
from lowprec.values.formats import float32, float64
from lowprec.values.keys import TAGS
from lowprec.values.operands import exact_products, operand_format
from lowprec.values.rounding import Rounding, rounding_rule
from lowprec.values.sum_rules import SumRules, sum_rules

LONGEST = 1 << 62  # beyond any array's length more is the same; the kernels add lengths to these in 64 bits


@lru_cache(maxsize=4096)
def native_accumulator(rules: SumRules) -> _kernels.Accumulator:
    """The rules as the kernels take them."""
    fmt = rules.out
    # The numbers of `enum Storage` in kernels/cpu/rounding/rounding_jobs.h.
    storage = 4 if fmt == float32 else 5 if fmt == float64 else fmt.code_dtype.itemsize - 1
    # What is stored is rounded already; as float64 a float32 sum is only widened.
    stored = rounding_rule(float32 if fmt == float64 else fmt)
    return _kernels.Accumulator(
        *native_step(rules.step),
        *native_step(rules.final),
        native_rounding(stored),
        storage,
        rules.out_dtype,
        rules.one_format,
    )


def _native_order(accumulation: Accumulation) -> _kernels.Order:
    # The loops call back for the lengths of a sum: Accumulation is the one home of their formulas.
    def cut(terms: int) -> tuple[int, int, int, int]:
        group, part, _, stages, run = accumulation.cut(terms)
        return min(group, LONGEST), min(part, LONGEST), stages, run

    return _kernels.Order(cut, ADDERS.index(accumulation.adder))


@lru_cache(maxsize=4096)
def product(a: np.dtype[Any], b: np.dtype[Any], accumulation: Accumulation, rules: SumRules) -> _kernels.ProductCall:
    """f(a, b, key, row, column, first_group, batch, out, threads, initial=None); batch None numbers the products.

    initial: what every element's chain starts from, of the result's shape and dtype or float32; one part only. The
    Accumulation says the order; types and roundings are the rules'.
    """
    left, right = operand_format(a), operand_format(b)
    # How `initial` is read: in the result's dtype, or in float32 where loops read no such operand (float64).
    sums = operand_type(rules.out_dtype if float32.contains(rules.out) else np.dtype(np.float32))
    return _kernels.ProductCall(
        operand_type(a),
        operand_type(b),
        sums,
        native_accumulator(rules),
        _native_order(accumulation),
        exact_products(left, right),
        accumulation.aligned_bits or 0,
        (left.emin, right.emin),
    )


@lru_cache(maxsize=4096)
def reduce(x: np.dtype[Any], accumulation: Accumulation, rules: SumRules) -> _kernels.ReduceCall:
    """f(x, key, row, column, first_group, batch, out, threads) for x (.., m, k, n)."""
    return _kernels.ReduceCall(operand_type(x), native_accumulator(rules), _native_order(accumulation))


@lru_cache(maxsize=4096)
def scatter(x: np.dtype[Any], accumulation: Accumulation, rules: SumRules) -> Callable[..., Array]:
    """f(x, indices, rows, key, row, column, batch, out, threads) for x (.., k, n) into (.., rows, n)."""
    return reduce(x, accumulation, rules).scatter


@lru_cache(maxsize=4096)
def sum_parts(x: np.dtype[Any], rules: SumRules, tag: str) -> _kernels.SumCall:
    """f(parts, key, index, row, column, batch, out, threads) for parts (P, .., m, n), rounded at the end."""
    return _kernels.SumCall(operand_type(x), native_accumulator(rules), TAGS[tag])


@lru_cache(maxsize=4096)
def maximum(x: np.dtype[Any]) -> _kernels.MaximumCall:
    """f(x, out, threads) for x (m, k, n)."""
    # A maximum is one of the elements, which its own format stores as they are.
    unrounded = sum_rules(Accumulation(out=operand_format(x)), Rounding())
    return _kernels.MaximumCall(operand_type(x), native_accumulator(unrounded))
