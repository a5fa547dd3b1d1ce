"""Plans of products and sums from their sizes, as most tests want them."""

from typing import Any

from ipu_core.chip.target import Target
from ipu_core.placement.layout import Stored
from ipu_core.placement.matmul import SumPlan, plan_sum, product_of, sum_of


def plan_matmul(
    target: Target, m: int, k: int, n: int, *, batch: int = 1, operands: str = "float16", a: Stored | None = None,
    b: Stored | None = None, **wanted: Any,
) -> SumPlan:  # fmt: skip
    """The plan of (batch, m, k) x (batch, k, n)."""
    return plan_sum(target, product_of(target, m, k, n, batch=batch, operands=operands, lies=(a, b, None)), **wanted)


def plan_reduction(
    target: Target, outer: int, terms: int, inner: int, *, operands: str = "float16", x: Stored | None = None,
    **wanted: Any,
) -> SumPlan:  # fmt: skip
    """The plan of the sum of (outer, terms, inner) over the terms."""
    return plan_sum(target, sum_of(target, outer, terms, inner, operands=operands, lies=(x, None)), **wanted)
