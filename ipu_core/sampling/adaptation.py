"""Adaptation of Hamiltonian Monte Carlo: the step by dual averaging, a scale of each part of a position."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ipu_core.ir.pytree import map_leaves
from lowprec import round as rounded

GAMMA, DELAY, POWER = 0.05, 10.0, 0.75
"""Of dual averaging, as its paper has them."""
WINDOWS = (0.15, 0.3, 0.55, 0.8)
"""Where scales are taken anew, of the draws of a warm-up: from the draws since the time before, beginning at the first.
Afterwards, and before, only the step is adapted."""
SHRINK, SMALL = 5.0, 1e-3
"""How many draws of the small variance are mixed in, as Stan does."""


@dataclass(frozen=True)
class DualAveraging:
    """A step towards a rate of acceptance (Hoffman and Gelman, JMLR 15, 2014, section 3.2).

    Attributes:
        target: the rate of acceptance.
        centre: the logarithm that steps are drawn to.
        count, error, average, step: of the draws so far; the latter two are logarithms.
    """

    target: float
    centre: float
    step: float
    count: int = 0
    error: float = 0.0
    average: float = 0.0

    @classmethod
    def begun(cls, step: float, target: float) -> DualAveraging:
        """From a first guess."""
        # Drawn to larger steps, for these cost less.
        return cls(target, math.log(10 * step), math.log(step))

    def after(self, accept: float) -> DualAveraging:
        """With one more draw, of a mean probability of acceptance."""
        count = self.count + 1
        share = 1 / (count + DELAY)
        error = (1 - share) * self.error + share * (self.target - accept)
        step = self.centre - math.sqrt(count) / GAMMA * error
        weight = count**-POWER
        return replace(self, count=count, error=error, step=step, average=weight * step + (1 - weight) * self.average)


def coarse(x: Any) -> Any:
    """Numbers to 8 bits: as good, and the same on every machine, whatever the last bit of its exp or of a long sum."""
    return rounded(np.asarray(x, np.float32), "bfloat16")


def scales_of(window: Sequence[Any]) -> Any:
    """A scale of every part of a position, from draws of all chains: the standard deviation, drawn to a small one."""

    def one(*draws: Any) -> Any:
        values = np.asarray(draws, np.float64)
        flat = values.reshape(-1, *values.shape[2:])
        count = len(flat)
        variance = flat.var(axis=0, ddof=1) if count > 1 else np.full(flat.shape[1:], SMALL)
        return coarse(np.sqrt(count / (count + SHRINK) * variance + SMALL * SHRINK / (count + SHRINK)))

    return map_leaves(one, *window)


def windows(draws: int) -> dict[int, int]:
    """By the number of a draw after which scales are taken anew, the first draw of its window."""
    ends = [round(share * draws) for share in WINDOWS]
    begins = [0, *ends[:-1]]
    # A window of a few draws says nothing of a variance.
    return {end: begin for begin, end in zip(begins[1:], ends[1:], strict=True) if end - begin >= 5}
