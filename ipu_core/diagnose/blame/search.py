"""`blame`: two runs, some steps beside float64 that rank suspects, and trials with one suspect in float32."""

from __future__ import annotations

from dataclasses import replace

from ipu_core.diagnose.blame.report import Blame, Culprit
from ipu_core.diagnose.blame.suspects import Suspects
from ipu_core.diagnose.blame.switches import CauseSwitch, trimmed
from ipu_core.diagnose.blame.trials import (
    ANOTHER,
    LOOK,
    Cost,
    Gap,
    Losses,
    Trial,
    Trials,
    check_tolerance,
    reference_of,
    taken,
)
from ipu_core.diagnose.defaults import BUDGET, TOLERANCE
from ipu_core.ir.precision.precision import Precision
from ipu_core.train.arguments import is_real
from ipu_core.train.data.batches import Batches
from ipu_core.train.loop import TrainLoop

LEAST_BUDGET = 3.5
ENOUGH = 0.75  # of the gap: what closes so much is the cause
SOME = 0.15  # what closes less is none
HALF = 0.5  # as long as the budget kept something from being tried
ALONE = 3.0  # a part so many times as suspect as the next one is tried before the whole model
LOOKS, AT_END = 8, 2
SPARSE = 60  # steps of the run for each that is looked at
SHORT = 30  # steps of a run that is looked at once
CAUSES = 3  # at most, one after another
TRIMMING = Cost(builds=0.8)
"""Of finding the rules of a cure that change something. Measured were 0.2 for weights to 1.4 for the backward pass."""


def blame(
    loop: TrainLoop, batches: Batches, steps: int, *, tolerance: float = TOLERANCE, budget: float = BUDGET
) -> Blame:
    """Says which equation, and which cause, keeps a training in low precision from learning what float32 learns.

    From the loop's state it runs the steps in the loop's precision and in float32. Where the losses are the same within
    the tolerance, nothing is to blame. Else some steps of the run, beside float64 for the same weights, batch and
    operands, say of every equation what its formats lose, and one suspect after another (a cause, in one part of the
    model or everywhere) is put into float32, by rules of the precision, to see how much of the loss that brings back.
    Trials are as long as it takes for most of the gap to be there; the cure is run for all steps where the budget is
    enough, and where much is still missing then, the search goes on from it. All of it is done on the direct engine
    with random bits of the key; the loop itself stays as it is.

    The whole takes at most `budget` times as long as the run: as making its loop and doing its steps on that engine.
    That is held by counting, not by a clock, so that the same is found whatever else the machine does: all steps
    together are at most so many times the run's, one beside float64 counted as 15, and all preparations so many times
    what making the loop took (see `trials.Cost`). Of a run of 8 or 9 steps one step is looked at and one suspect tried;
    of a shorter one it is only said whether anything is missing.

    Args:
        loop: at the state from which the run begins.
        batches: as `TrainLoop.run` takes them.
        steps: of the run to be explained.
        tolerance: the share of what float32 learns that may be missing.
        budget: how much may be computed, as a multiple of the run itself.

    Raises:
        ValueError: no steps, or a budget in which nothing can be tried; a tolerance that is no share; fewer batches
            than steps.
        TypeError: no loop.
    """
    if not is_real(budget) or not budget >= LEAST_BUDGET:
        raise ValueError(f"budget must be at least {LEAST_BUDGET:g} times the run, not {budget!r}")
    check_tolerance(tolerance)
    trials = Trials(loop, taken(loop, batches, steps))
    looks = max(1 if steps < SHORT else 2, min(LOOKS, steps // SPARSE))
    # What three runs leave of the budget.
    most = int(min(looks + AT_END, (budget - LEAST_RUNS) * steps / LOOK.steps))
    low = trials.watched(min(looks, most), most)
    reference = trials.run(reference_of(loop.precision), steps)
    gap, seen = Gap(low, reference), trials.seen
    found = Blame(
        loop.precision, steps, float(reference[0]), gap.level(low, steps), gap.level(reference, steps), gap.size(steps),
        updates=seen.updates, looked=tuple(step for step, _, _ in seen.losses), skipped=trials.skipped,
        healthy=not gap.size(steps) > tolerance,
    )  # fmt: skip
    if not found.healthy:
        search = Search(trials, low, reference, tolerance, budget)
        search.search()
        found = replace(
            found, culprits=tuple(search.culprits), closed=search.closed, tried=tuple(search.tried),
            cure=search.trimmed, horizon=search.horizon, stopped=search.stopped,
        )  # fmt: skip
    return replace(found, spent=trials.spent.of(steps))


LEAST_RUNS = 3  # in the precision, in float32, and one trial


class Search:
    """Trials, from the most to the least suspect, until something explains the gap or the budget is spent.

    Attributes:
        culprits: What was found, one after another.
        cure: The precision with all of them in float32.
        closed: How much of the gap that closes, after `horizon` steps.
        tried: Every trial: what was put into float32 beside the culprits before, how much of what was missing then
            came back, and after how many steps.
        stopped: Whether the budget kept something from being tried.
    """

    def __init__(self, trials: Trials, low: Losses, reference: Losses, tolerance: float, budget: float) -> None:
        self._trials, self._reference, self._tolerance, self._budget = trials, reference, tolerance, budget
        self._steps, self._whole = len(low), Gap(low, reference)
        self._suspects = Suspects(trials.block, trials.seen, self._steps)
        self.culprits: list[Culprit] = []
        self.cure, self.closed, self.horizon = trials.loop.precision, 0.0, 0
        self.tried: list[tuple[CauseSwitch, float, int]] = []
        self.stopped = False
        self._begin(low)

    def _begin(self, low: Losses) -> None:
        """Takes the losses of a run as the gap that is to be closed next."""
        self._gap = Gap(low, self._reference)
        self._length = self._gap.horizon(self._tolerance)
        self._known: dict[CauseSwitch, tuple[float, Trial]] = {}

    @property
    def trimmed(self) -> Precision | None:
        """The cure without rules that change nothing; None: there is no culprit."""
        if not self.culprits:
            return None
        self._trials.spend(TRIMMING)
        return trimmed(self.cure, self._trials.loop.precision, self._trials.loop.ideal)

    def search(self) -> None:
        """Finds what it can."""
        while len(self.culprits) < CAUSES and (switch := self._best()) is not None:
            closed, run = self._known[switch]
            self.culprits.append(self._suspects.culprit(switch, closed, len(self.culprits)))
            self.cure = switch.off(self.cure, self._trials.loop.ideal)
            # A cure is shown over the whole run where that can be paid: early losses may not last.
            whole = self._affordable(Cost(self._steps - self._length))
            self.horizon = self._steps if whole else self._length
            losses = self._trials.further(run, self.horizon)
            self.closed = self._whole.closed(losses, self.horizon)
            left = Gap(losses, self._reference[: self.horizon]).size(self.horizon)
            # Within the tolerance nothing is left to blame, however little of the gap was closed.
            if self.horizon < self._steps or self.closed >= ENOUGH or left <= self._tolerance:
                return
            self._begin(losses)

    def _best(self) -> CauseSwitch | None:
        """What closes the gap, or else most of what anything closes; None: nothing does."""
        for cause in self._suspects.causes(self._cleared):
            if (best := self._in(cause)) is not None:
                return best
        # With untried suspects left, what closes a little may be beside the cause.
        least = HALF if self.stopped else SOME
        some = [(closed, switch) for switch, (closed, _) in self._known.items() if closed >= least]
        return max(some)[1] if some else None

    @property
    def _cleared(self) -> set[CauseSwitch]:
        return {culprit.switch for culprit in self.culprits}

    def _in(self, cause: str) -> CauseSwitch | None:
        """The part in which this cause closes the gap: one, or the whole model; None where it does not."""
        ranked = self._suspects.parts(cause, self._cleared)
        everywhere, first = CauseSwitch(cause), ranked[0][1]
        rivals, hides = [score for score, _ in ranked[1:]], self._suspects.hides(first)
        more = self._affordable(ANOTHER, ANOTHER, Cost(2 * self._length))  # else the one trial is to say the cause
        # A part by itself says more than the whole model, but costs a trial more where it is not enough.
        alone = not rivals or (more and ranked[0][0] >= ALONE * rivals[0])
        if alone and not hides and self._closes(first) >= ENOUGH:
            return first
        if not (rivals or hides) or (whole := self._closes(everywhere)) < ENOUGH:
            return None
        # Named alone only where the other parts add little to it.
        return first if self._closes(first) >= ENOUGH * whole else everywhere

    def _affordable(self, *costs: Cost) -> bool:
        """Whether the budget is enough for something, and for what has to follow."""
        parts = zip(self._trials.spent, TRIMMING, *costs, strict=True)
        return Cost(*map(sum, parts)).of(self._steps) <= self._budget

    def _closes(self, switch: CauseSwitch) -> float:
        """How much of the gap a switch closes; 0 where that can no longer be tried."""
        if switch not in self._known:
            if not self._affordable(ANOTHER, Cost(self._length)):
                self.stopped = True
                return 0.0
            run = self._trials.begin(switch.off(self.cure, self._trials.loop.ideal))
            losses = self._trials.further(run, self._length)
            self._known[switch] = self._gap.closed(losses, self._length), run
            self.tried.append((switch, self._known[switch][0], self._length))
        return self._known[switch][0]
