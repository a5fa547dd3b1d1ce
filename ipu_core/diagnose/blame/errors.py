"""The error of one equation: its results against float64's for the same operands, summed over some steps."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from ipu_core.ir.block import Array
from ipu_core.ir.precision.retype import cast
from lowprec import FloatFormat
from lowprec.statistics.underflow import underflowed
from lowprec.statistics.updates import wanted_and_lost

FULL = 0.5  # share of the worst from which on an equation is called bad
SMALL = 0.3  # weight of an error without bias beside one with
LOST = 0.3  # share of increments lost from which on they are the cause


@dataclass
class Errors:
    """Sums of squares over all elements and steps that were looked at.

    Of what is kept from step to step (weights, moments, sums of gradients) the error is compared with the increment,
    not with the value.

    Attributes:
        stochastic: whether the equation rounds stochastically.
        kept: whether its result is kept from step to step.
        signal: sum of squares of the exact results, or of their increments.
        error: sum of squares of exact minus computed results.
        along: sum of error times exact result, which is zero on average where rounding is unbiased.
        partial: sum of squares of the error that exact sums, rounded once, would not have.
        flushed, saturated: sums of squares of the errors of results that became zero, and of those that overflowed.
        elements, wanted: how many elements there were, and how many increments count.
        zeros, beyond, lost: how many became zero, were too large or became infinite or NaN, and left what is kept as
            it was; see `lowprec.statistics.underflow` and `lost_updates`.
        stuck: of those lost, how many left a zero.
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
    stuck: int = 0
    steps: list[tuple[int, float, float]] = field(default_factory=list)

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
        wanted = lost = 0
        if before is not None:
            asked, same = wanted_and_lost(base, reference, y)
            wanted, lost = int(np.count_nonzero(asked)), int(np.count_nonzero(same))
            self.stuck += int(np.count_nonzero(same & (y == 0)))
        signal = float(np.vdot(reference, reference))
        self.signal += signal
        self.error += total
        self.along += float(np.vdot(reference, missing))
        if sums:
            # The cast refuses what float32 lacks; such elements count as overflow anyway.
            partial = np.asarray(cast(np.clip(x, -LARGE, LARGE), fmt), np.float64) - np.where(np.isfinite(y), y, 0.0)
            self.partial += float(np.vdot(partial, partial))
        if flushed.any():
            self.flushed += float(np.square(missing[flushed]).sum())
            self.zeros += int(flushed.sum())
        if beyond.any():
            self.saturated += float(np.square(missing[beyond]).sum())
            self.beyond += int(beyond.sum())
        self.elements += x.size
        self.wanted += wanted
        self.lost += lost
        self.steps.append((step, _ratio(total, signal), lost / wanted if wanted else 0.0))

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
            share: the part of the squared error that counts.
        """
        noise = self.size * math.sqrt(share)
        bias = abs(self.along) / self.signal * share if self.signal else float(self.error > 0)
        # Noise of so many elements has by chance a mean of this size: less than 3 times it is no bias.
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
            # A lost change of a zero is below the format's smallest number; else it is too small beside the value.
            return "underflow" if self.stuck > FULL * self.lost else "lost"
        if self.saturated > FULL * self.error:
            return "overflow"
        return "underflow" if self.flushed > FULL * self.error else "rounding"


def sampled(values: Array) -> Array:
    """At most about `MOST` elements of an array, evenly spread, as float64."""
    flat = values.reshape(-1)
    return np.asarray(flat[:: 1 + flat.size // MOST], np.float64)


MOST = 8192  # no more, so that BLAS does not wake threads for them
LARGE = float(np.finfo(np.float32).max)


def _ratio(error: float, signal: float) -> float:
    return math.sqrt(error / signal) if signal else float(error > 0)
