"""What a black box was asked and gave, and which candidates give the same."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from lowprec.identification.arithmetic import Arithmetic
from lowprec.identification.black_box import differing
from lowprec.identification.probes import Probe
from lowprec.types import Array
from lowprec.values.accumulation import MOST_ALIGNED_BITS

FEW = 16
"""Terms of the sums that have one or four of them, and rows that a candidate is tried on before all."""


@dataclass(frozen=True)
class Asked:
    """What a black box was asked, and gave.

    Attributes:
        counts: the elements that are compared; None: all.
        terms: the first so many are computed, the others being zero; None: all.

    +0 and -0 are the same here: which of them a result below the smallest number becomes depends on where groups end,
    which is not known yet. The random elements that decide at last tell them apart.
    """

    probe: Probe
    given: Array
    counts: Array | None = None
    terms: int | None = None

    def wrong(self, candidate: Arithmetic, rows: slice = slice(None)) -> Array | None:
        """Where a candidate differs in some rows; None where it does not compute such products."""
        try:
            got = candidate(self.probe.a[rows, : self.terms], self.probe.b[: self.terms])
        except (TypeError, ValueError):
            return None
        wrong = differing(self.given[rows], got)
        order = candidate.accumulation
        if order.aligned_bits == MOST_ALIGNED_BITS and order.group == 4:
            # It stands for any bits, of which few are left of subnormal numbers.
            smallest = candidate.operands.format.smallest_normal
            wrong &= _none_below(self.probe.a[rows, : self.terms], smallest, 1)[:, None]
            wrong &= _none_below(self.probe.b[: self.terms], smallest, 0)[None]
        wrong &= (self.given[rows] != 0) | (got != 0)
        return wrong if self.counts is None else wrong & self.counts[rows]

    def fits(self, candidate: Arithmetic) -> bool:
        """Whether a candidate gives these bits: asked of a few rows first."""
        for rows in (slice(0, FEW), slice(None)):
            wrong = self.wrong(candidate, rows)
            if wrong is None or wrong.any():
                return False
        return True

    def those(self, candidates: Iterable[Arithmetic]) -> list[Arithmetic]:
        """The candidates that fit, each once, in their order."""
        return [candidate for candidate in dict.fromkeys(candidates) if self.fits(candidate)]

    def first(self, candidates: Iterable[Arithmetic], name: Callable[[Arithmetic], Any]) -> list[Arithmetic]:
        """Of the candidates that fit the first of each name; a name that has one is not asked again."""
        found: dict[Any, Arithmetic] = {}
        for candidate in candidates:
            if name(candidate) not in found and self.fits(candidate):
                found[name(candidate)] = candidate
        return list(found.values())


def _none_below(x: Array, smallest: float, axis: int) -> Array:
    """Of each row or column whether all of its numbers are zero or at least so large."""
    whole: Array = ((x == 0) | (np.abs(x) >= smallest)).all(axis)
    return whole
