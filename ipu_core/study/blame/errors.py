"""What one equation loses to its formats: its results beside float64's for the same operands, over some steps."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from ipu_core.ir.block import Array
from ipu_core.ir.retype import cast
from lowprec import FloatFormat

FULL = 0.5  # share of the worst from which on an equation is called bad
SMALL = 0.3  # weight of an error without bias beside one with
LOST = 0.3  # share of increments lost from which on they are the cause


@dataclass
class Errors:
    """Sums of squares over all elements and steps that were looked at.

    Of what is kept from step to step (weights, moments, sums of gradients) the error is compared with the increment,
    not with the value.

    Attributes:
        stochastic: whether the equation rounds so.
        kept: whether it makes what is kept.
        signal: of the exact result, or of its increment.
        error: of what is missing of it.
        along: missing times exact, which is zero on average where rounding is unbiased.
        partial: of the part of the error that exact sums, rounded once, would not have.
        flushed, saturated: of the errors of results that became zero, and of those beyond the largest number.
        elements, wanted: how many elements there were, and how many increments that are not zero.
        zeros, beyond, lost: how many became zero, were too large, and left what is kept as it was.
        steps: (step, relative error then, share of increments lost then).
    """

    stochastic: bool
    kept: bool
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
    steps: list[tuple[int, float, float]] = field(default_factory=list)

    def add(self, step: int, made: Array, exact: Array, fmt: FloatFormat, before: Array | None, sums: bool) -> None:
        """Takes up the results of one step.

        Args:
            step: its number.
            made: what the equation made.
            exact: float64's result for the same operands.
            fmt: of the result.
            before: what was kept, for an equation of what is kept.
            sums: whether the equation has partial sums narrower than float32.
        """
        y, x = (np.asarray(value, np.float64).ravel() for value in (made, exact))
        base = np.zeros(1) if before is None else np.asarray(before, np.float64).ravel()
        known = np.isfinite(x)
        with np.errstate(all="ignore"):
            reference = np.where(known, x - base, 0.0)
            missing = np.where(known, np.where(np.isfinite(y), x - y, x), 0.0)
            flushed = known & (y == 0) & (x != 0)
            beyond = known & (np.abs(x) > fmt.max)
            lost = (reference != 0) & (y == base) if before is not None else np.zeros(0, bool)
            signal, error = (float(np.vdot(a, a)) for a in (reference, missing))
            rounded = np.asarray(cast(np.clip(np.where(known, x, 0.0), -LARGE, LARGE), fmt), np.float64) if sums else y
            partial = np.where(known & np.isfinite(y), rounded - y, 0.0)
        self.signal += signal
        self.error += error
        self.along += float(np.vdot(reference, missing))
        self.partial += float(np.vdot(partial, partial))
        self.flushed += float(np.vdot(missing[flushed], missing[flushed]))
        self.saturated += float(np.vdot(missing[beyond], missing[beyond]))
        self.elements += x.size
        self.wanted += int(np.count_nonzero(reference)) if before is not None else 0
        self.zeros += int(flushed.sum())
        self.beyond += int(beyond.sum())
        self.lost += int(lost.sum())
        share = lost.sum() / max(1, np.count_nonzero(reference)) if before is not None else 0.0
        self.steps.append((step, _ratio(error, signal), float(share)))

    @property
    def size(self) -> float:
        """The error relative to what should have been there."""
        return _ratio(self.error, self.signal)

    def suspicion(self, steps: int, share: float = 1.0) -> float:
        """How much harm the error may do in a run of so many steps, between 0 and 1.

        What is missing on average counts whole. The rest is noise, which counts less: where it is drawn anew in every
        step, or falls on what is kept, it averages out.

        Args:
            steps: of the run.
            share: of the squares of the error that is meant.
        """
        noise = self.size * math.sqrt(share)
        bias = abs(self.along) / self.signal * share if self.signal else float(self.error > 0)
        chance = self.size / math.sqrt(max(1, self.elements))
        weight = 1 / math.sqrt(steps) if self.stochastic or self.kept else SMALL
        return min(1.0, math.hypot(max(0.0, bias - 3 * chance), noise * weight))

    @property
    def begins(self) -> int:
        """The first step looked at with at least half of the worst error."""
        worst = max(size for _, size, _ in self.steps)
        return next(step for step, size, _ in self.steps if size >= FULL * worst)

    def kind(self) -> str:
        """What most of the error is: "lost", "underflow", "overflow" or "rounding"."""
        if self.wanted and self.lost > LOST * self.wanted:
            return "lost" if self.flushed < FULL * self.error else "underflow"
        if self.saturated > FULL * self.error:
            return "overflow"
        return "underflow" if self.flushed > FULL * self.error else "rounding"


LARGE = float(np.finfo(np.float32).max)


def _ratio(error: float, signal: float) -> float:
    return math.sqrt(error / signal) if signal else float(error > 0)
