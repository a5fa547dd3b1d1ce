"""Runs of one training in several precisions: their losses, what they cost, and how much of a gap each one closes."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ipu_core.diagnose.blame.lockstep import Lockstep
from ipu_core.errors import NotFinite
from ipu_core.ir.precision.precision import Precision
from ipu_core.ir.precision.role_formats import FORMATS
from ipu_core.train.arguments import check_integer, is_real
from ipu_core.train.data.batches import Batches, Feed
from ipu_core.train.loop import TrainLoop
from ipu_core.train.state import State
from lowprec import float32 as FLOAT32

Losses = npt.NDArray[np.float64]
WINDOW = 10  # a loss "after n steps" is the mean of the last tenth of them
DIVERGED = 2.0  # losses count at most as much as so many times the first one


class Cost(NamedTuple):
    """A cost: in steps of the run that is explained, and in multiples of the time its loop took to make.

    One that takes at most b of both takes at most b times as long as making the loop and doing the run, as far as the
    constants below are right: they are round figures of what was measured. What takes less on one machine or model
    makes up for what takes more: whole searches took 1.4 to 4.9 times the run where up to 5 were allowed.
    """

    steps: float = 0.0
    builds: float = 0.0

    def of(self, steps: int) -> float:
        """As a multiple of a run of so many steps and the making of its loop: the larger of the two."""
        return max(self.steps / steps, self.builds)


STEP = Cost(1)
LOOK = Cost(15, 0.1)
"""Of one step in lockstep with float64: every equation as declared, exactly, and the exact step. Measured were 7 steps
(of 512 rows) to 23; of the smallest models, whose runs take no longer than the making of their loops, up to 50."""
MAKING, ANOTHER = Cost(builds=0.2), Cost(builds=0.4)
"""Of a loop in its own and in another precision, for which nothing is traced or differentiated. Measured were 0.12 to
0.23 and 0.24 to 0.8 of the first making, of perceptrons, convolutional nets and language models."""


class Trial:
    """A training under way.

    Attributes:
        losses: of its steps; what follows one that is not finite is not computed.
    """

    def __init__(self, loop: TrainLoop, batches: Sequence[Any]) -> None:
        self.loop, self.losses, self._batches = loop, list[float](), batches

    @property
    def ended(self) -> bool:
        """Whether its last loss is not finite."""
        return bool(self.losses) and not math.isfinite(self.losses[-1])

    def step(self) -> None:
        """Does one."""
        self.losses.append(self.loop.train(self._batches[len(self.losses)]))

    def after(self, steps: int) -> Losses:
        """The losses of so many steps."""
        losses = np.full(steps, np.nan)
        losses[: len(self.losses)] = self.losses[:steps]
        return losses


class Trials:
    """Runs from the state of one loop on the same batches, which leave the loop itself as it is.

    Attributes:
        spent: What they took.
        block: The typed step of the loop's own precision.
        seen: The errors of the steps of that run that were looked at.
        skipped: Steps of that run that its loss scale skipped.
    """

    def __init__(self, loop: TrainLoop, batches: Sequence[Any]) -> None:
        self.loop, self.batches, self.block = loop, batches, loop.block
        self.spent, self.skipped, self.seen = Cost(), 0, Lockstep()

    def begin(self, precision: Precision) -> Trial:
        """A new run in a precision, before its first step."""
        self.spend(MAKING if precision == self.loop.precision else ANOTHER)
        return Trial(self.loop.in_precision(precision), self.batches)

    def further(self, run: Trial, steps: int) -> Losses:
        """The losses of a run after so many steps, which it does as far as it has not yet."""
        while len(run.losses) < steps and not run.ended:
            run.step()
            self.spend(STEP)
        return run.after(steps)

    def run(self, precision: Precision, steps: int) -> Losses:
        """The losses of a run from its beginning."""
        return self.further(self.begin(precision), steps)

    def watched(self, looks: int, most: int) -> Losses:
        """The losses of the run in the loop's own precision, which is looked at in some evenly spread steps.

        Where it ends in a loss that is not finite, the last steps before are looked at too.

        Args:
            looks: in how many steps.
            most: looks in all.
        """
        steps, run, left = len(self.batches), self.begin(self.loop.precision), most
        self.block = run.loop.block
        places = {round(place) for place in np.linspace(0, steps - 1, looks)}
        before = list[tuple[State, Any]]()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NotFinite)
            for number, batch in enumerate(self.batches):
                if number in places:
                    self._look(run.loop, batch)
                    left -= 1
                # The last two states: the step that ended the run can only be looked at from before it.
                before = [*before[-1:], (run.loop.state, batch)]
                self.further(run, number + 1)
                if run.ended:
                    for state, own in before[-left:] if left else []:
                        run.loop.resume(state)
                        self._look(run.loop, own)
                    break
        self.skipped = len(run.loop.skipped)
        return run.after(steps)

    def spend(self, cost: Cost) -> None:
        """Counts what something took."""
        self.spent = Cost(self.spent.steps + cost.steps, self.spent.builds + cost.builds)

    def _look(self, loop: TrainLoop, batch: Any) -> None:
        self.seen.look(loop, batch)
        self.spend(LOOK)


class Gap:
    """How far the losses of one run lie above those of another, after some steps.

    Args:
        low: the run that is explained.
        reference: the one in float32.
    """

    def __init__(self, low: Losses, reference: Losses) -> None:
        self._first = float(reference[: max(1, len(reference) // WINDOW)].mean())
        self._low, self._reference = low, reference

    def level(self, losses: Losses, steps: int) -> float:
        """The loss after so many steps; one that is not finite, or beyond `DIVERGED`, counts as that."""
        window = max(1, steps // WINDOW)
        # One infinite loss would make every share infinite or NaN.
        bound = DIVERGED * abs(self._first)
        part = losses[steps - window : steps]
        return float(np.minimum(np.where(np.isfinite(part), part, bound), bound).mean())

    def size(self, steps: int) -> float:
        """The share of what the reference learnt that is missing."""
        low, reference = (self.level(losses, steps) for losses in (self._low, self._reference))
        learnt = self._first - reference
        # Where float32 learns nothing, the gap is a share of the first loss.
        return (low - reference) / learnt if learnt > 0 else (low - reference) / abs(self._first)

    def closed(self, losses: Losses, steps: int) -> float:
        """How much of the gap another run closes: 0 nothing, 1 all."""
        low, reference = (self.level(each, steps) for each in (self._low, self._reference))
        return (low - self.level(losses, steps)) / (low - reference)

    def horizon(self, tolerance: float) -> int:
        """The first eighth, quarter or half of the steps, or all, after which most of the gap is there."""
        steps = len(self._low)
        for parts in (8, 4, 2):
            part = steps // parts
            # Wider than the tolerance by then: else a trial of that length has no gap to close.
            if part >= WINDOW and self.size(part) >= max(2 * tolerance, MOST * self.size(steps)):
                return part
        return steps


MOST = 0.6  # of the final gap


def check_tolerance(tolerance: float) -> None:
    """Refuses what is no share.

    Raises:
        ValueError: it is no number, or not from 0 to 1.
    """
    if not is_real(tolerance) or not 0 <= tolerance <= 1:
        raise ValueError(f"tolerance must be a share of what float32 learns, from 0 to 1, not {tolerance!r}")


def reference_of(precision: Precision) -> Precision:
    """Float32 throughout, operands of products too, with what is neither format nor rounding as it is."""
    # Other fields stay: unit scaling or scaled moments decide what is traced, which the reference shares.
    wide: dict[str, Any] = dict.fromkeys(FORMATS, FLOAT32)
    plain: dict[str, Any] = {name: getattr(Precision(""), name) for name in ("rounding", "roundings", "rules")}
    return replace(precision, name="float32", scaling=None, promote=None, **plain, **wide)


def taken(loop: Any, batches: Batches, steps: int) -> list[Any]:
    """The batches of so many steps of a loop.

    Raises:
        TypeError: no loop.
        ValueError: no steps, or fewer batches.
    """
    if not isinstance(loop, TrainLoop):
        raise TypeError(f"a TrainLoop is needed, at the state from which to begin, not {loop!r}")
    check_integer("steps", steps, least=1)
    given = Feed(batches, loop.step).take(steps)
    if len(given) < steps:
        raise ValueError(f"{steps} steps need as many batches, there are {len(given)}")
    return given
