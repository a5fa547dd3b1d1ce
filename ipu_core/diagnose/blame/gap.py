"""How far the losses of one run lie above another's, what diverged, and whether seeds tell two runs apart."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Losses = npt.NDArray[np.float64]
WINDOW = 10  # a loss "after n steps" is the mean of the last tenth of them
DIVERGED = 2.0  # losses count at most as much as so many times the first one
MOST = 0.6  # of the final gap
STUDENT = 2.92  # of two degrees of freedom: what chance exceeds in one of 20 triples
NOISES = 2.0  # standard deviations


BEGAN = "it began in "
"""Words of `finite.cause` before the name of an equation."""


class Diverged(NamedTuple):
    """Where a run left what is training.

    Attributes:
        step: the first whose loss is not finite; or from which on all lie above twice the first loss.
        loss: of that step.
        where: in words, the equation that made the first number that is not finite; "" where all are finite.
    """

    step: int
    loss: float
    where: str = ""

    @property
    def equation(self) -> str:
        """The name of that equation, "" where it is none."""
        return self.where.removeprefix(BEGAN) if self.where.startswith(BEGAN) else ""

    def __str__(self) -> str:
        what = "is above twice the first one from" if math.isfinite(self.loss) else f"is {self.loss} in"
        return f"the loss {what} step {self.step}{self.where and f'; {self.where}'}"


class Gap:
    """How far the losses of one run lie above those of another, after some steps.

    Args:
        low: the run that is explained.
        reference: the one in float32.
    """

    def __init__(self, low: Losses, reference: Losses) -> None:
        self.first = first_of(reference)
        self._low, self._reference = low, reference

    def level(self, losses: Losses, steps: int) -> float:
        """The loss after so many steps; one that is not finite, or beyond `DIVERGED`, counts as that."""
        window = max(1, steps // WINDOW)
        # One infinite loss would make every share infinite or NaN.
        bound = bound_of(self.first)
        part = losses[steps - window : steps]
        return float(np.minimum(np.where(np.isfinite(part), part, bound), bound).mean())

    def size(self, steps: int) -> float:
        """The share of what the reference learnt that is missing."""
        low, reference = (self.level(losses, steps) for losses in (self._low, self._reference))
        return (low - reference) / self.unit(steps)

    def unit(self, steps: int) -> float:
        """What the reference learnt; where that is nothing, a gap is a share of the first loss."""
        learnt = self.first - self.level(self._reference, steps)
        return learnt if learnt > 0 else abs(self.first) or 1.0

    def closed(self, losses: Losses, steps: int) -> float:
        """How much of the gap another run closes: 0 nothing, 1 all."""
        low, reference = (self.level(each, steps) for each in (self._low, self._reference))
        return (low - self.level(losses, steps)) / (low - reference) if low != reference else 0.0

    def horizon(self, tolerance: float) -> int:
        """The first eighth, quarter or half of the steps, or all, after which most of the gap is there."""
        steps = len(self._low)
        for parts in (8, 4, 2):
            part = steps // parts
            # Wider than the tolerance by then: else a trial of that length has no gap to close.
            if part >= WINDOW and self.size(part) >= max(2 * tolerance, MOST * self.size(steps)):
                return part
        return steps


def first_of(losses: Losses) -> float:
    """The mean loss of the first tenth; of its finite ones where it ends in others."""
    part = losses[: max(1, len(losses) // WINDOW)]
    known = part[np.isfinite(part)]
    return float(known.mean()) if known.size else math.nan


def bound_of(first: float) -> float:
    """What a loss that is not finite, or larger than this, counts as."""
    return first + (DIVERGED - 1) * abs(first)


def mean_of(losses: Losses, steps: int) -> float:
    """The loss after so many steps as it is, NaN of a run that ended in one."""
    return float(losses[steps - max(1, steps // WINDOW) : steps].mean())


def improves(losses: Losses, others: Losses) -> bool:
    """Whether a run of a few steps has learnt something, or lies below another one of the same batches.

    The second half of its steps counts: the last tenth of so few is the noise of a batch or two. To lie below one that
    diverged is nothing.
    """
    half = len(losses) // 2
    mean, other = float(losses[half:].mean()), float(others[half:].mean())
    return math.isfinite(mean) and (mean < losses[0] or mean < other <= bound_of(float(others[0])))


def above(losses: Losses, first: float, start: int) -> Diverged | None:
    """Where a run of finite losses left for good what lies below twice its first loss; None: it did not.

    Args:
        losses: of the run.
        first: its first loss.
        start: the number of its first step.
    """
    beyond = losses > bound_of(first)
    if not mean_of(losses, len(losses)) > bound_of(first):
        return None
    # Where even the last one lies below, the mean of the last ones says it: then from the last crossing on.
    inside = np.flatnonzero(~beyond[: int(np.flatnonzero(beyond)[-1]) + 1])
    place = int(inside[-1]) + 1 if inside.size else 0
    return Diverged(start + place, float(losses[place]))


def told_apart(gaps: Sequence[float], noise: float, least: float) -> bool:
    """Whether a difference seen in some seeds is one, and no chance.

    Either its mean is beyond what chance makes of one in 20, or it is in every seed larger than what is asked for and
    than the noise between seeds.

    Args:
        gaps: the difference in each seed.
        noise: standard deviation of what it is compared with, over the seeds.
        least: what is asked for.
    """
    values = np.asarray(gaps)
    deviation = float(values.std(ddof=1)) / math.sqrt(values.size)
    return bool(values.mean() > max(least, STUDENT * deviation) or values.min() > max(least, NOISES * noise))
