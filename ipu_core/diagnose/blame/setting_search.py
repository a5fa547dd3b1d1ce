"""What speaks against a setting: a state or batches not finite, clipping, a rate or loss scale out of place."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ipu_core.diagnose.blame.gap import Diverged, first_of, mean_of
from ipu_core.diagnose.blame.settings import (
    MOST,
    Setting,
    Variant,
    in_words,
    not_finite,
    not_finite_state,
    numbers_in_words,
    sizes,
)
from ipu_core.diagnose.blame.switches import Parts
from ipu_core.diagnose.blame.trials import ANOTHER, Cost, Trial, Trials
from ipu_core.ir.bodies import equations_of
from ipu_core.train.loss_scale import LossScale

FIERCE = 0.3  # of the norm of gradients: what clipping leaves of it where it is a suspect
RISEN = 1.25  # times the first loss: what a rate that is too large makes of it
LOWER = tuple(8.0**-power for power in range(1, 8))  # of the learning rate
STILL = 0.01  # of the norm of the weights: what all updates of a run together move where the rate is a suspect
SLIGHT = 0.25  # of the first loss: what noise may seem to have learnt at such a rate
MOVE = 2.0  # what they are to move then
FAR = 100.0  # times the usual size: batches that are suspects where float32 diverges
USUAL = 65536.0  # loss scale
STEEP, PROBES = 1 / 16, 12
MANY = 0.5  # of the steps


@dataclass(frozen=True)
class Doubt:
    """A setting that may be wrong.

    Attributes:
        setting: what is tried instead.
        why: in words.
        equation: where it does its harm; "" nowhere in the step.
    """

    setting: Setting
    why: str
    equation: str = ""


def doubts(trials: Trials, low: Trial, reference: Trial, diverged: Diverged | None) -> Iterator[Doubt]:
    """Settings that float32 too would suffer from, the most certain first.

    Args:
        trials: that have looked at the run.
        low: the run, done.
        reference: the same in float32.
        diverged: where that left what is training; None: nowhere.
    """
    changed = {one.cause for one in low.variant.settings}
    if "state" not in changed and (broken := not_finite_state(trials.loop)):
        held = ", ".join(f"{name} ({count})" for name, count in list(broken.items())[:MOST])
        more = f" and {len(broken) - MOST} more arrays" if len(broken) > MOST else ""
        yield Doubt(Setting("state"), f"infinities or NaN in {held}{more} before step {trials.loop.step}")
    yield from _of_batches(trials, low.variant, diverged)
    left = float(np.median(trials.seen.clips or [1.0]))
    if left <= FIERCE and "clipping" not in changed:
        yield Doubt(Setting("clipping"), f"it leaves {100 * left:.2g} % of the norm of the gradients")
    if len(reference.skipped) > MANY * len(reference.losses) and "loss scale" not in changed:
        doubt = of_loss_scale(trials, reference, reference.variant)
        if doubt is not None:
            yield doubt
    if "learning rate" not in changed:
        yield from _of_rate(trials, reference, diverged)


def _of_batches(trials: Trials, variant: Variant, diverged: Diverged | None) -> Iterator[Doubt]:
    # A step that a loss scale skips is none: NaN in its batch does no harm.
    if diverged is None:
        return
    first = trials.loop.step
    batches = variant.batches(trials.batches, first)
    bad = not_finite(batches, first)
    if 0 < len(bad) < len(batches):
        yield Doubt(Setting("batch", bad), f"infinities or NaN in that of {numbers_in_words(bad)}")
    elif not bad:
        largest = sizes(batches)
        usual = float(np.median(largest))
        far = tuple(first + n for n, size in enumerate(largest) if size > FAR * usual)
        if far:
            size = max(largest)
            yield Doubt(Setting("batch", far), f"numbers up to {size:.2g} in that of {numbers_in_words(far)}, "
                                               f"up to {usual:.2g} in others")  # fmt: skip


def _of_rate(trials: Trials, reference: Trial, diverged: Diverged | None) -> Iterator[Doubt]:
    losses = reference.after(trials.steps)
    first, seen = reference.losses[0], trials.seen
    risen = mean_of(losses, trials.steps) > first + (RISEN - 1) * abs(first)
    if diverged is not None or risen:
        what = (
            f"float32 diverges with it too, from step {diverged.step}" if diverged else "the loss rises in float32 too"
        )
        for factor in LOWER:
            yield Doubt(Setting("learning rate", factor), what)
    moved = float(np.median(seen.moves)) * trials.steps if seen.moves else 1.0
    learnt = first_of(losses) - mean_of(losses, trials.steps)
    if 0 < moved < STILL and abs(learnt) < SLIGHT * abs(first):
        factor = float(8.0 ** np.round(np.log(MOVE / moved) / np.log(8.0)))
        what = f"{trials.steps} steps with it move the weights by at most {100 * moved:.2g} % of their norm"
        for each in (factor, factor / 8):
            yield Doubt(Setting("learning rate", each), what)


def of_loss_scale(trials: Trials, run: Trial, variant: Variant, zero: str = "", length: int = 0) -> Doubt | None:
    """A loss scale under which gradients neither overflow nor become zero, found in a few steps; None: there is none.

    Args:
        trials: that do these steps.
        run: under the scale that may be wrong, done.
        variant: the run in which another is looked for.
        zero: the equation in which gradients become zero; "": they overflow.
        length: steps that have to be left of the budget.
    """
    scale = run.start.steps.scale
    if scale is None:
        return None
    now, skipped = float(scale.value), run.skipped
    start = min(USUAL, now * STEEP) if skipped else max(USUAL, now if now < USUAL else now / STEEP)
    # As many steps as it takes to come down: each is skipped until the gradients of a first step fit.
    probe = trials.begin(variant.with_setting(Setting("loss scale", LossScale(start, backoff_factor=STEEP))))
    for _ in range(min(PROBES, trials.steps)):
        if not trials.affords(ANOTHER, Cost(length + 1)):
            return None
        count, fits = len(probe.skipped), probe.loop.loss_scale
        trials.further(probe, len(probe.losses) + 1)
        if len(probe.skipped) == count:
            break
    else:
        return None
    if fits is None or fits == now:
        return None
    if skipped:
        names = skipped[0].names
        at = next((name for name in names if not name.startswith("gradient of")), names[0])
        made = next((equation for equation in equations_of(run.loop.block) if equation.name == at), None)
        at = at if made is None else Parts(run.loop.block).owner(made).name
        why = (f"{len(skipped)} of {len(run.losses)} steps skipped, from step {skipped[0].step} at a scale of "
               f"{in_words(skipped[0].scale)}: gradients overflow")  # fmt: skip
        return Doubt(Setting("loss scale", LossScale(fits)), why, at)
    return Doubt(Setting("loss scale", LossScale(fits)), f"gradients become zero at a scale of {in_words(now)}", zero)
