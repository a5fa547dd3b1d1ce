"""The error of one equation: its results against float64's for the same operands, summed over some steps."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields

import numpy as np

from ipu_core.ir.block import Array
from ipu_core.ir.precision.retype import cast
from lowprec import FloatFormat
from lowprec.statistics.underflow import underflowed
from lowprec.statistics.updates import wanted_and_lost

FULL = 0.5  # share of the worst from which on an equation is called bad
BAD = 0.1  # relative error, or share of increments lost, from which on it is in any case: what comes later may follow
SMALL = 0.3  # weight of an error without bias beside one with


@dataclass
class Sums:
    """Sums of squares over all elements of some steps that were looked at.

    Attributes:
        signal: sum of squares of the exact results, or of their increments.
        error: sum of squares of exact minus computed results.
        along: sum of error times exact result, which is zero on average where rounding is unbiased.
        partial: sum of squares of the error that exact sums, rounded once, would not have.
        flushed, saturated: sums of squares of the errors of results that became zero, and of those that overflowed.
        elements, wanted: how many elements there were, and how many increments count.
        zeros, beyond, lost: how many became zero, were too large or became infinite or NaN, and left what is kept as
            it was; see `lowprec.statistics.underflow` and `lost_updates`.
        stuck: of those lost, how many left a zero.
    """

    signal: float = 0.0
    error: float = 0.0
    along: float = 0.0
    partial: float = 0.0
    flushed: float = 0.0
    saturated: float = 0.0
    elements: int = 0
    wanted: int = 0
    zeros: int = 0
    beyond: int = 0
    lost: int = 0
    stuck: int = 0

    @property
    def size(self) -> float:
        """The error relative to what should have been there."""
        return _ratio(self.error, self.signal)

    @property
    def badness(self) -> float:
        """The share that is wrong: of the results, or of the increments that were lost, where they are more."""
        # Where a moment divides, small ones matter as much as large ones, of which alone the sums of squares speak.
        return max(self.size, self.lost / self.wanted if self.wanted else 0.0)

    def plus(self, other: Sums) -> None:
        """Adds the sums of other steps."""
        for each in fields(Sums):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))

    def kind(self) -> str:
        """What most of the error is: "lost", "underflow", "overflow" or "rounding"."""
        if self.wanted and self.lost > BAD * self.wanted:
            # A lost change of a zero is below the format's smallest number; else it is too small beside the value.
            return "underflow" if self.stuck > FULL * self.lost else "lost"
        if self.saturated > FULL * self.error:
            return "overflow"
        return "underflow" if self.flushed > FULL * self.error else "rounding"

    def bias(self) -> float:
        """The share of the results that is missing on average, beyond what noise of so many elements has by chance."""
        if not self.signal:
            return float(self.error > 0)
        # A mean of less than 3 times what chance gives is no bias.
        return max(0.0, abs(self.along) / self.signal - 3 * self.size / math.sqrt(max(1, self.elements)))


@dataclass
class Errors(Sums):
    """The sums over all steps that were looked at, and those of each.

    Of what is kept from step to step (weights, moments, sums of gradients) the error is compared with the increment,
    not with the value.

    Attributes:
        stochastic: whether the equation rounds stochastically.
        kept: whether its result is kept from step to step.
        steps: (step, its sums), in order.
    """

    stochastic: bool = False
    kept: bool = False
    steps: list[tuple[int, Sums]] = field(default_factory=list)

    def add(self, step: int, made: Array, exact: Array, fmt: FloatFormat, before: Array | None, sums: bool) -> None:
        """Takes up the results of one step.

        Args:
            step: its number.
            made: what the equation made, or a sample of it.
            exact: float64's result for the same operands, there.
            fmt: of the result.
            before: what was kept there, for an equation of what is kept.
            sums: whether the equation has partial sums narrower than float32.
        """
        base = np.zeros(1) if before is None else np.asarray(before, np.float64)
        y, x = np.asarray(made, np.float64), np.asarray(exact, np.float64)
        with np.errstate(all="ignore"):
            reference = x if before is None else x - base
            missing = x - y
            # One product tells whether any element is not finite; the masks below take several passes.
            if not np.isfinite(total := float(np.vdot(missing, missing))):
                known = np.isfinite(reference)
                x, reference = np.where(known, x, 0.0), np.where(known, reference, 0.0)
                # What is not finite in float64 too says nothing. What is infinite in y alone is missing whole.
                y = np.where(known, y, 0.0)
                missing = x - np.where(np.isfinite(y), y, 0.0)
                total = float(np.vdot(missing, missing))
            flushed, beyond = underflowed(x, y), (np.abs(x) > fmt.max) | ~np.isfinite(y)
        one = Sums(float(np.vdot(reference, reference)), total, float(np.vdot(reference, missing)), elements=x.size)
        if before is not None:
            asked, same = wanted_and_lost(base, reference, y)
            one.wanted, one.lost = int(np.count_nonzero(asked)), int(np.count_nonzero(same))
            one.stuck = int(np.count_nonzero(same & (y == 0)))
        if sums:
            # The cast refuses what float32 lacks; such elements count as overflow anyway.
            partial = np.asarray(cast(np.clip(x, -LARGE, LARGE), fmt), np.float64) - np.where(np.isfinite(y), y, 0.0)
            one.partial = float(np.vdot(partial, partial))
        if flushed.any():
            one.flushed, one.zeros = float(np.square(missing[flushed]).sum()), int(flushed.sum())
        if beyond.any():
            one.saturated, one.beyond = float(np.square(missing[beyond]).sum()), int(beyond.sum())
        self.plus(one)
        # The micro-batches of a step are one look.
        if self.steps and self.steps[-1][0] == step:
            self.steps[-1][1].plus(one)
        else:
            self.steps.append((step, one))

    def suspicion(self, steps: int, share: float = 1.0) -> float:
        """How much harm the error may do in a run of so many steps, between 0 and 1.

        What is missing on average counts whole. The rest is noise, which counts less: where it is drawn anew in every
        step, or falls on what is kept, it averages out. Looks weigh the less the later they are: what is wrong late may
        follow from what was wrong before.

        Args:
            steps: of the run.
            share: the part of the squared error that counts.
        """
        weight = 1 / math.sqrt(steps) if self.stochastic or self.kept else SMALL
        harms = [min(1.0, math.hypot(one.bias() * share, one.size * math.sqrt(share) * weight))
                 for _, one in self.steps]  # fmt: skip
        weights = [1 / (1 + place) for place in range(len(harms))]
        return sum(map(float.__mul__, weights, harms)) / sum(weights) if harms else 0.0

    @property
    def early(self) -> tuple[int, Sums]:
        """The first step looked at in which it was bad: with at least half of the worst error, or one that is large."""
        worst = max(one.badness for _, one in self.steps)
        bad = ((step, one) for step, one in self.steps if one.badness >= min(BAD, FULL * worst))
        return next(bad, self.steps[0])


def sampled(values: Array) -> Array:
    """At most about `MOST` elements of an array, evenly spread, as float64."""
    flat = values.reshape(-1)
    return np.asarray(flat[:: 1 + flat.size // MOST], np.float64)


MOST = 8192  # no more, so that BLAS does not wake threads for them
LARGE = float(np.finfo(np.float32).max)


def _ratio(error: float, signal: float) -> float:
    return math.sqrt(error / signal) if signal else float(error > 0)
