"""Runs of one training in several precisions and settings: their losses, what they cost, and where they diverged."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from ipu_core.diagnose import finite
from ipu_core.diagnose.blame.gap import Diverged, Losses, above
from ipu_core.diagnose.blame.lockstep import Lockstep
from ipu_core.diagnose.blame.settings import Variant, is_finite
from ipu_core.ir.precision.precision import Precision
from ipu_core.ir.precision.role_formats import FORMATS
from ipu_core.train.arguments import check_integer, is_real
from ipu_core.train.data.batches import Batches, Feed
from ipu_core.train.loop import TrainLoop
from ipu_core.train.loss_scale import Skipped
from ipu_core.train.state import State
from lowprec import float32 as FLOAT32

SEEDS = 3
"""In so many seeds an effect is looked for: the batches as given, and in other orders with other random bits."""


class Cost(NamedTuple):
    """A cost: in steps of the run that is explained, and in multiples of the time its loop took to make.

    One that takes at most b of both takes at most b times as long as making the loop and doing the run, as far as the
    constants below are right: they are round figures of what was measured. What takes less on one machine or model
    makes up for what takes more.
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
ORIGIN = Cost(6, 0.1)
"""Of finding the equation that made the first number that is not finite: two steps with a look at each result."""


TRIMMING = Cost(builds=0.8)
"""Of finding the rules of a cure that change something. Measured were 0.2 for weights to 1.4 for the backward pass."""


class Trial:
    """A training under way.

    Args:
        loop: at its beginning.
        variant: what it is.
        batches: of its steps.

    Attributes:
        losses: of its steps; what follows one that ended it is not computed.
        start: the state before the first step.
        before: the last two states, each with its batch.
        ended: whether it ended, in a loss that is not finite of a step that was not skipped.
    """

    def __init__(self, loop: TrainLoop, variant: Variant, batches: Sequence[Any]) -> None:
        self.loop, self.variant, self.losses, self._batches = loop, variant, list[float](), batches
        self.start, self.before, self.ended = loop.state, list[tuple[State, Any]](), False
        self._known = len(loop.skipped)

    def step(self, keep: bool = False) -> None:
        """Does one; with the state before it kept, where that is asked for."""
        batch, skipped = self._batches[len(self.losses)], len(self.loop.skipped)
        if keep:
            self.before = [*self.before[-1:], (self.loop.state, batch)]
        loss = self.loop.train(batch)
        if not math.isfinite(loss):
            self.ended = len(self.loop.skipped) == skipped
            # A step that was skipped changes nothing, and neither does its loss.
            if not self.ended:
                loss = self.losses[-1] if self.losses else math.nan
        self.losses.append(loss)

    @property
    def skipped(self) -> tuple[Skipped, ...]:
        """Steps that its loss scale skipped."""
        return self.loop.skipped[self._known :]

    def after(self, steps: int) -> Losses:
        """The losses of so many steps."""
        losses = np.full(steps, np.nan)
        losses[: len(self.losses)] = self.losses[:steps]
        return losses


class Trials:
    """Runs from the state of one loop on the same batches, which leave the loop itself as it is.

    Args:
        loop: at that state.
        batches: one for each step.
        budget: how much may be computed, as a multiple of the run itself.

    Attributes:
        spent: What they took.
        block: The typed step of the loop's own precision.
        seen: The errors of the steps of that run that were looked at.
    """

    def __init__(self, loop: TrainLoop, batches: Sequence[Any], budget: float = math.inf) -> None:
        self.loop, self.batches, self.block, self.budget = loop, batches, loop.block, budget
        self.spent, self.seen = Cost(), Lockstep()

    def begin(self, variant: Variant) -> Trial:
        """A new run, before its first step."""
        own = variant.precision == self.loop.precision
        self.spend(MAKING if own else ANOTHER)
        return Trial(variant.of(self.loop), variant, variant.batches(self.batches, self.loop.step))

    def further(self, run: Trial, steps: int) -> Losses:
        """The losses of a run after so many steps, which it does as far as it has not yet."""
        while len(run.losses) < steps and not run.ended:
            run.step()
            self.spend(STEP)
        return run.after(steps)

    def run(self, variant: Variant, steps: int) -> Losses:
        """The losses of a run from its beginning."""
        return self.further(self.begin(variant), steps)

    def seeded(self, run: Trial, seed: int, steps: int) -> Losses:
        """The losses of a run with another seed: its batches in another order, with other random bits.

        The run itself stays where it is.

        Args:
            run: whose precision and settings are taken.
            seed: from 1.
            steps: how many.
        """
        now, first = run.loop.state, run.start.steps
        order = np.random.default_rng(seed).permutation(len(self.batches))
        batches = run.variant.batches(self.batches, self.loop.step)
        # Far from the numbers of steps, with which the key is folded too.
        key = first.key.fold_in(APART + seed)
        run.loop.resume(replace(run.start, steps=first._replace(key=key)))
        losses = self.further(Trial(run.loop, run.variant, [batches[n] for n in order]), steps)
        run.loop.resume(now)
        return losses

    def watched(self, variant: Variant, looks: int, most: int) -> Trial:
        """The run in the loop's own precision, which is looked at in some evenly spread steps.

        Where it ends in a loss that is not finite, the last steps before are looked at too.

        Args:
            variant: of that precision.
            looks: in how many steps.
            most: looks in all.
        """
        steps, run, left = len(self.batches), self.begin(variant), most
        self.block, self.seen = run.loop.block, Lockstep()
        places = {round(place) for place in np.linspace(0, steps - 1, looks)}
        for number, batch in enumerate(variant.batches(self.batches, self.loop.step)):
            if number in places:
                self._look(run.loop, batch)
                left -= 1
            run.step(keep=True)
            self.spend(STEP)
            if run.ended:
                now = run.loop.state
                for state, own in run.before[-left:] if left else []:
                    run.loop.resume(state)
                    self._look(run.loop, own)
                run.loop.resume(now)
                break
        return run

    def looked(self, run: Trial) -> Lockstep:
        """A look at the first step of a run, which stays where it is."""
        now, seen = run.loop.state, Lockstep()
        run.loop.resume(run.start)
        seen.look(run.loop, run.variant.batches(self.batches, self.loop.step)[0])
        run.loop.resume(now)
        self.spend(LOOK)
        return seen

    def diverged(self, run: Trial) -> Diverged | None:
        """Where a run left what is training; None: it did not."""
        start = run.start.steps.step
        if not run.ended and not np.isfinite(run.losses).any():
            return Diverged(start, run.losses[0], "every step is skipped")
        if not run.ended:
            return above(np.array(run.losses), run.losses[0], start)
        place = start + len(run.losses) - 1
        if not run.before:
            return Diverged(place, run.losses[-1])
        if not is_finite(run.before[-1][1]):
            return Diverged(place, run.losses[-1], "infinities or NaN are in its batch")
        if not self.affords(ORIGIN):
            return Diverged(place, run.losses[-1], "where it began is beyond the budget")
        self.spend(ORIGIN)
        now, inputs, keys = run.loop.state, [], []
        # The last two states: a step may write weights that are not finite, which the next one's loss shows.
        for state, batch in run.before:
            run.loop.resume(state)
            given, key = run.loop.next_step(batch)
            inputs.append(given[run.loop.block.carried :])
            keys.append(key)
        run.loop.resume(now)
        loop, first = run.loop, run.before[0][0].leaves
        where = finite.cause(loop.block, loop.accumulations, loop.control, first, inputs, keys)
        return Diverged(place, run.losses[-1], where)

    @property
    def steps(self) -> int:
        """Of the run that is explained."""
        return len(self.batches)

    def affords(self, *costs: Cost) -> bool:
        """Whether the budget is enough for something, and for what has to follow."""
        return Cost(*map(sum, zip(self.spent, TRIMMING, *costs, strict=True))).of(self.steps) <= self.budget

    def spend(self, cost: Cost) -> None:
        """Counts what something took."""
        self.spent = Cost(self.spent.steps + cost.steps, self.spent.builds + cost.builds)

    def _look(self, loop: TrainLoop, batch: Any) -> None:
        self.seen.look(loop, batch)
        self.spend(LOOK)


APART = 2**63


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
