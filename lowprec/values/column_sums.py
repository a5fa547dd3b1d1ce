"""Sums of columns as data: what every backend is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from lowprec._caching import cached
from lowprec.integers import ceil_div
from lowprec.values.float_format import FloatFormat
from lowprec.values.formats import float32
from lowprec.values.rounding import RoundingRule

Kind = Literal["sequential", "running", "kahan", "pair"]


@cached
def carrier(fmt: FloatFormat) -> np.dtype[Any]:
    """The dtype that sums in a format are computed into: float32, or float64 where that does not hold them."""
    return np.dtype(np.float32 if float32.contains(fmt) else np.float64)


@dataclass(frozen=True, eq=False)  # compared by identity: made once per set of arguments, by a cache
class ColumnSum:
    """How columns are summed over the middle axis of (outer, size, inner): every addition is exact, then rounded once.

    The step of element i of x (C order, from an offset on) takes the random bits of index i; Kahan's four take 4 i to
    4 i + 3, the sum of a pair those of its own index among the results.

    Attributes:
        rule: the rounding of every step; its format holds the sum.
        kind: "sequential": from +0 over `block` terms, then again from +0, results (outer, blocks, inner). "running":
            every step is a result, (outer, size, inner). "kahan": one compensated sum, (outer, 1, inner). "pair": terms
            0 and 1, 2 and 3, ... are added, (outer, size / 2, inner).
        block: terms of one sequential sum, or more than there are; 2 for pairs.
    """

    rule: RoundingRule
    # Not the name of an order of `lowprec.sum`: blocked and pairwise sums are made of several of these.
    kind: Kind
    block: int

    def results(self, size: int) -> int:
        """How many results `size` terms have."""
        if self.kind == "sequential":
            return ceil_div(size, self.block)
        return size if self.kind == "running" else size // 2 if self.kind == "pair" else 1
