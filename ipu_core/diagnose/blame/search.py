"""`blame`: two runs, some steps beside float64 that rank suspects, and trials with one suspect changed."""

from __future__ import annotations

import math
from dataclasses import replace

from ipu_core.diagnose.blame.causes import ENOUGH, HALF, Causes
from ipu_core.diagnose.blame.gap import WINDOW, Diverged, Gap, improves, mean_of
from ipu_core.diagnose.blame.report import Blame, Culprit
from ipu_core.diagnose.blame.seeds import Seeds
from ipu_core.diagnose.blame.setting_search import LOWER, MANY, Doubt, doubts, of_loss_scale
from ipu_core.diagnose.blame.settings import Setting, Variant, not_finite, numbers_in_words
from ipu_core.diagnose.blame.switches import CauseSwitch, trimmed
from ipu_core.diagnose.blame.trials import (
    ANOTHER,
    LOOK,
    MAKING,
    SEEDS,
    TRIMMING,
    Cost,
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
LEAST_RUNS = 3  # in the precision, in float32, and one trial
LOOKS, AT_END = 8, 2
SPARSE = 60  # steps of the run for each that is looked at
SHORT = 30  # steps of a run that is looked at once
SETTINGS = 2  # at most, that float32 suffers from too
CERTAIN = ("state", "batch")  # settings that are wrong whatever is learnt without them


def blame(
    loop: TrainLoop, batches: Batches, steps: int, *, tolerance: float = TOLERANCE, budget: float = BUDGET
) -> Blame:
    """Says which equation, and which cause, keeps a training in low precision from learning what float32 learns.

    From the loop's state it runs the steps in the loop's precision and in float32. Where float32 does not train either,
    or gradients overflow under a loss scale, settings are suspects: NaN in the state or in a batch, the loss scale, the
    learning rate, clipping. Where the losses are the same within the tolerance, nothing is to blame. Else some steps of
    the run, beside float64 for the same weights, batch and operands, say of every equation what its formats lose, and
    one suspect after another (a cause, in one part of the model or everywhere) is put into float32, by rules of the
    precision, to see how much of the loss that brings back. Trials are as long as it takes for most of the gap to be
    there; the cure is run for all steps where the budget is enough, and where much is still missing then, the search
    goes on from it. What is claimed is seen in three seeds (the batches as given and in two other orders, with other
    random bits), where the budget is enough; what these do not tell from chance is not claimed. All of it is done on
    the direct engine with random bits of the key; the loop itself stays as it is.

    The whole takes at most `budget` times as long as the run: as making its loop and doing its steps on that engine.
    That is held by counting, not by a clock, so that the same is found whatever else the machine does: all steps
    together are at most so many times the run's, one beside float64 counted as 15, and all preparations so many times
    what making the loop took (see `trials.Cost`). Of a short run fewer steps are looked at and fewer suspects tried; of
    the shortest it is only said whether anything is missing.

    Args:
        loop: at the state from which the run begins.
        batches: as `TrainLoop.run` takes them.
        steps: of the run to be explained.
        tolerance: the share of what float32 learns that may be missing.
        budget: how much may be computed, as a multiple of the run itself.

    Raises:
        ValueError: no steps, or a budget in which nothing can be tried; a tolerance that is no share; fewer batches
            than steps; a loop of several replicas.
        TypeError: no loop.
    """
    if not is_real(budget) or not budget >= LEAST_BUDGET:
        raise ValueError(f"budget must be at least {LEAST_BUDGET:g} times the run, not {budget!r}")
    check_tolerance(tolerance)
    given = taken(loop, batches, steps)
    if loop.training.replicas > 1:
        raise ValueError(
            f"blame looks at the equations of one program, and the loop has {loop.training.replicas} replicas of it: "
            "give one with replicas=1, whose batch is whole"
        )
    search = Search(Trials(loop, given, budget), tolerance)
    return replace(search.found(), spent=search.trials.spent.of(steps))


class Search:
    """What becomes of a run: its facts, settings that are wrong, causes in the precision, and other seeds.

    Args:
        trials: of the run.
        tolerance: the share of what float32 learns that may be missing.
    """

    def __init__(self, trials: Trials, tolerance: float) -> None:
        self.trials, self._tolerance, self._steps = trials, tolerance, trials.steps
        self._variant, self._seeds = Variant(trials.loop.precision), Seeds(trials)
        self._low = self._first = self._watched()
        self._reference = self._float32()
        self._culprits: list[Culprit] = []
        self._tried: list[tuple[CauseSwitch | Setting, float, int]] = []
        self._stopped, self._horizon = False, self._steps
        self._doubtful: tuple[Trial, Variant, int, int] | None = None
        # So many steps of other seeds show what the run lacks; a batch that is at fault may come late in them.
        self._length = self._gap().horizon(tolerance)

    def _watched(self) -> Trial:
        """The run as it is, with the steps looked at that the budget allows."""
        steps, left = self._steps, (self.trials.budget - LEAST_RUNS) * self._steps - self.trials.spent.steps
        looks = max(1 if steps < SHORT else 2, min(LOOKS, steps // SPARSE))
        most = int(max(0, min(looks + AT_END, left / LOOK.steps)))
        return self.trials.watched(self._variant, min(looks, most), most)

    def _float32(self) -> Trial:
        run = self.trials.begin(replace(self._variant, precision=reference_of(self.trials.loop.precision)))
        self.trials.further(run, self._steps)
        return run

    def _gap(self) -> Gap:
        return Gap(self._low.after(self._steps), self._reference.after(self._steps))

    def found(self) -> Blame:
        """What is found."""
        facts = self._facts()
        while len(self._culprits) < SETTINGS and self._setting(facts.reference_diverged):
            pass
        sick = self.trials.diverged(self._reference) is not None
        missing = not sick and self._gap().size(self._steps) > self._tolerance
        gaps, clear = list[float](), True
        if missing:
            trial = Cost(self._length, ANOTHER.builds)
            gaps, clear = self._compared(self._low, self._reference, trial, least=self._tolerance)
        if not self._culprits:
            facts = replace(facts, gaps=tuple(gaps), chance=not clear)
        if facts.chance:
            return replace(facts, tried=tuple(self._tried), stopped=self._stopped)
        # What settings alone have left is looked into where the seeds show that it is something.
        precision = self._precision() if missing and clear and (gaps or not self._culprits) else None
        if not self._culprits:
            return replace(facts, healthy=not (missing or sick), tried=tuple(self._tried), stopped=self._stopped)
        return self._confirmed(replace(facts, cure=precision))

    def _facts(self) -> Blame:
        """The two runs in figures."""
        low, reference, seen = self._low, self._reference, self.trials.seen
        losses, wide = low.after(self._steps), reference.after(self._steps)
        bad = not_finite(self.trials.batches, self.trials.loop.step)
        note = f"infinities or NaN in the batch of {numbers_in_words(bad)}" if bad else ""
        return Blame(
            self.trials.loop.precision, self._steps, reference.losses[0], mean_of(losses, self._steps),
            mean_of(wide, self._steps), self._gap().size(self._steps), updates=seen.updates,
            looked=tuple(step for step, _, _ in seen.losses), skipped=len(low.skipped),
            diverged=self.trials.diverged(low), reference_diverged=self.trials.diverged(reference),
            notes=(note,) if note else (),
        )  # fmt: skip

    def _setting(self, diverged: Diverged | None) -> bool:
        """Finds a setting without which float32 learns what it does not learn now; whether there is one."""
        for doubt in doubts(self.trials, self._low, self._reference, diverged if not self._culprits else None):
            # The run itself is done again with it too.
            if not self.trials.affords(ANOTHER, MAKING, Cost(2 * self._steps)):
                self._stopped = True
                return False
            run = self.trials.begin(self._reference.variant.with_setting(doubt.setting))
            share = self._gains(run, certain=doubt.setting.cause in CERTAIN)
            self._tried.append((doubt.setting, share, len(run.losses)))
            if share >= HALF:
                before = self._low.after(self._steps)
                self._take(doubt, share)
                self._reference, self._low = run, self._watched()
                closed = Gap(before, run.after(self._steps)).closed(self._low.after(self._steps), self._steps)
                self._culprits[-1] = replace(self._culprits[-1], closed=closed)
                if doubt.setting.cause not in CERTAIN:
                    self._length = self._gap_of(self._first).horizon(self._tolerance)
                return True
        return False

    def _gains(self, run: Trial, *, certain: bool) -> float:
        """How much of what a run in float32 learns the present one does not; 0 where it learns nothing itself.

        Args:
            run: with a setting changed.
            certain: whether the setting is wrong whatever is learnt without it, as NaN in a batch is.
        """
        early = max(min(WINDOW, self._steps), self._steps // 8)
        # What does no better by then is not worth the rest of the run.
        if not certain and not improves(self.trials.further(run, early), self._reference.after(early)):
            return 0.0
        gap = Gap(self._reference.after(self._steps), self.trials.further(run, self._steps))
        if certain or self.trials.diverged(run) is not None:
            return float(self.trials.diverged(run) is None)
        learns = gap.level(run.after(self._steps), self._steps) < run.losses[0]
        # In other seeds too: a rate at the edge diverges in one and not in another.
        if learns and self.trials.affords(Cost(2 * (SEEDS - 1) * early), Cost(self._steps)):
            pairs = zip(self._seeds.losses(run, early), self._seeds.losses(self._reference, early), strict=True)
            learns = all(improves(*pair) for pair in pairs)
        return gap.size(self._steps) if learns else 0.0

    def _take(self, doubt: Doubt, closed: float) -> None:
        made = Culprit(doubt.setting, doubt.equation, "", doubt.why, 1.0, 0, closed, len(self._culprits))
        self._culprits.append(made)
        self._variant = self._variant.with_setting(doubt.setting)
        self._length = self._steps if doubt.setting.cause in CERTAIN else self._length

    def _precision(self) -> Precision | None:
        """Finds what is missing beside float32: a loss scale, causes in the precision or a rate; gives the cure."""
        if not self.trials.seen.given:
            return None
        causes = self._causes()
        if self._loss_scale(causes):
            if self._gap().size(self._steps) <= self._tolerance:
                return None
            if not self.trials.affords(MAKING, Cost(self._steps)):
                self._stopped = True
                return None
            # What only zeros or nothing at all came to before is to be seen now.
            self._low = self._watched()
            causes = self._causes()
        # Float32 gradients would bear that scale too: where it could not be tried, they are not to be called the cause.
        if self._stopped and self._low.skipped:
            return None
        causes.search()
        self._tried += causes.tried
        self._stopped = self._stopped or causes.stopped
        if causes.run is None:
            self._give_up()
            self._slower()
            return None
        self._culprits += causes.culprits
        self._low, self._horizon = causes.run, causes.horizon
        self._length = min(self._length, self._horizon)
        self.trials.spend(TRIMMING)
        return trimmed(causes.run.variant.precision, self.trials.loop.precision, self.trials.loop.ideal)

    def _give_up(self) -> None:
        """Takes back a setting that was changed only because nothing else could be tried under it."""
        if self._doubtful is not None:
            self._low, self._variant, self._horizon, self._length = self._doubtful
            self._culprits.pop()

    def _causes(self) -> Causes:
        return Causes(self.trials, self._low, self._reference.after(self._steps), self._tolerance, len(self._culprits))

    def _loss_scale(self, causes: Causes) -> bool:
        """Whether another loss scale brings the loss back, which float32 gradients would do too."""
        zero = causes.zero()
        if self._low.start.steps.scale is None or not (self._low.skipped or zero):
            return False
        # One step at the least comes before the trial.
        if not self.trials.affords(ANOTHER, MAKING, Cost(causes.length + 1)):
            self._stopped = True
            return False
        doubt = of_loss_scale(self.trials, self._low, self._variant, zero, causes.length)
        return doubt is not None and self._changed(doubt, causes.length)

    def _slower(self) -> None:
        """Tries a smaller rate where the precision diverges at one that float32 bears."""
        diverged = self.trials.diverged(self._low)
        if diverged is None or not self.trials.affords(MAKING, Cost(self._steps)):
            return
        why = f"this precision diverges with it, from step {diverged.step}, and float32 does not"
        self._changed(Doubt(Setting("learning rate", LOWER[0]), why, diverged.equation), self._steps)

    def _changed(self, doubt: Doubt, length: int) -> bool:
        """Whether a setting brings the loss back in the precision itself; it is taken then."""
        run = self.trials.begin(self._variant.with_setting(doubt.setting))
        whole = self._gap()
        closed = whole.closed(self.trials.further(run, length), length)
        self._tried.append((doubt.setting, closed, length))
        # While most steps are skipped nothing else can bring anything back: the search goes on from what runs.
        begins = run.start.steps.step not in [each.step for each in run.skipped]
        frees = begins and len(self._low.skipped) > MANY * len(self._low.losses)
        if closed < ENOUGH and not frees:
            return False
        self._doubtful = (self._low, self._variant, self._horizon, self._length) if closed < ENOUGH else None
        if self.trials.affords(Cost(self._steps - length)):
            closed = whole.closed(self.trials.further(run, self._steps), self._steps)
            length = self._steps
        self._take(doubt, closed)
        self._low, self._horizon = run, length
        self._length = min(self._length, length)
        return True

    def _compared(self, worse: Trial, better: Trial, *after: Cost, least: float = 0.0) -> tuple[list[float], bool]:
        """How far one run lies above another in each seed, if the budget allows it, and whether that is no chance.

        Args:
            worse, better: the runs.
            after: what has to be left of the budget.
            least: what it is to be after all steps, and not after the fewer ones of a trial.
        """
        shares, clear = list[float](), True
        # What a few steps do not tell apart all of them may.
        for length in dict.fromkeys((self._length, self._horizon)):
            if length < self._length:
                continue
            cost = self._seeds.cost((worse, better, self._reference), length)
            # Before there is a cure, a trial has to be possible after it.
            if not self.trials.affords(cost, *after):
                break
            self._length = length
            asked = least if length == self._steps else 0.0
            shares, clear = self._seeds.tell(worse, better, self._reference, length, asked)
            if clear:
                break
        return shares, clear

    def _gap_of(self, run: Trial) -> Gap:
        return Gap(run.after(self._steps), self._reference.after(self._steps))

    def _confirmed(self, facts: Blame) -> Blame:
        """The culprits with what they bring back together, in every seed; none where the seeds do not show it."""
        whole, final = self._gap_of(self._first), self._low.after(self._horizon)
        shares, clear = self._compared(self._first, self._low)
        made = replace(
            facts, tried=tuple(self._tried), stopped=self._stopped, horizon=self._horizon,
            settings=self._variant.settings, closed=whole.closed(final, self._horizon),
            cured=mean_of(final, self._horizon),
        )  # fmt: skip
        if not clear:
            back = " and ".join(f"{100 * share:.2g} %" for share in shares)
            note = f"{', '.join(str(one.switch) for one in self._culprits)}: {back} of it come back in the seeds"
            return replace(
                made, chance=True, cure=None, settings=(), notes=(*facts.notes, note), cured=math.nan, closed=0.0
            )
        return replace(made, culprits=tuple(replace(one, seeds=self._back(shares)) for one in self._culprits))

    def _back(self, shares: list[float]) -> tuple[float, ...]:
        """What is back in the other seeds, as a share of what is missing there."""
        if not shares:
            return ()
        missing, _ = self._seeds.shares(self._first, self._reference, self._reference, self._length)
        return tuple(got / there if there else 0.0 for got, there in zip(shares[1:], missing[1:], strict=True))
