"""A product of matrices, or a sum of terms, as the planner sees it: sizes, formats and how the operands lie."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ipu_core.chip import cost
from ipu_core.chip.integers import Ints
from ipu_core.chip.target import Target
from ipu_core.placement.axis_blocks import COLUMN_GRAIN
from ipu_core.placement.cuts import PlacementProblem, item_bytes
from ipu_core.placement.layout import Stored, stored


@dataclass(frozen=True)
class Product:
    """The sizes, formats and operand layouts of (batch, m, k) x (batch, k, n), or of the sum over k of (m, k, n).

    Attributes:
        batch, m, k, n: sizes.
        operands: name of the operands' format.
        a, b, out: layouts; the plan's cycles hold for operands that lie so. b is None for a sum.
    """

    batch: int
    m: int
    k: int
    n: int
    operands: str
    a: Stored
    b: Stored | None
    out: Stored

    @cached_property
    def grain(self) -> int:
        """Columns are cut in multiples of this."""
        return COLUMN_GRAIN if self.b else cost.width(2)

    @cached_property
    def loaded(self) -> tuple[tuple[str, Stored], ...]:
        """The operands by name; a sum's terms are called x and never held."""
        return (("a", self.a), ("b", self.b)) if self.b else (("x", self.a),)

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Size by axis name."""
        return {"b": self.batch, "m": self.m, "k": self.k, "n": self.n}


def product_of(
    target: Target,
    m: int,
    k: int,
    n: int,
    *,
    batch: int = 1,
    operands: str = "float16",
    lies: Sequence[Stored | None] = (None, None, None),
) -> Product:
    """The product (batch, m, k) x (batch, k, n).

    Args:
        target: the chip.
        m, k, n, batch: sizes.
        operands: name of both operands' format.
        lies: how a, b and the result lie; None: stored as written, in the layout every array gets.

    Raises:
        ValueError: a negative size.
    """
    if min(m, k, n, batch) < 0:
        raise ValueError(f"sizes must not be negative: batch {batch}, m {m}, k {k}, n {n}")
    sizes = {"b": batch, "m": m, "k": k, "n": n}
    a, b, out = (one or stored(target, axes, sizes) for one, axes in zip(lies, ("bmk", "bkn", "bmn"), strict=True))
    return Product(batch, m, k, n, operands, a, b, out)


def sum_of(
    target: Target,
    outer: int,
    terms: int,
    inner: int,
    *,
    operands: str = "float16",
    lies: Sequence[Stored | None] = (None, None),
) -> Product:
    """The sum (or the maximum) of (outer, terms, inner) over the terms. Its rows are the outer, its columns the inner.

    Args:
        target: the chip.
        outer, terms, inner: sizes.
        operands: name of the terms' format.
        lies: how terms and result lie; None: stored as written, in the layout every array gets.

    Raises:
        ValueError: a negative size.
    """
    if min(outer, terms, inner) < 0:
        raise ValueError(f"sizes must not be negative: outer {outer}, terms {terms}, inner {inner}")
    sizes = {"b": 1, "m": outer, "k": terms, "n": inner}
    x, out = (one or stored(target, axes, sizes) for one, axes in zip(lies, ("mkn", "bmn"), strict=True))
    return Product(1, outer, terms, inner, operands, x, None, out)


def chain_cycles(problem: PlacementProblem[Product], m: Any, k: Any, n: Any, goes_on: bool = False) -> Ints:
    """Cycles of one vertex that makes m x n chains of k steps, or goes on with them from partial results."""
    target, product, accumulation = problem
    if product.b is None:
        return cost.reduce(target, k, m * n, item_bytes(product.operands), together=np.asarray(n) == 1)
    unit = cost.amp_shape(target, product.operands, accumulation.accumulate.name)
    return cost.matmul(target, m, k, n, shape=unit, group=accumulation.group_of(product.k), goes_on=goes_on)
