"""The search among causes in the precision: trials with one suspect in float32, from the most to the least suspect."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import replace

from ipu_core.diagnose.blame.gap import Gap, Losses
from ipu_core.diagnose.blame.report import SHARED, Culprit
from ipu_core.diagnose.blame.suspects import Suspects
from ipu_core.diagnose.blame.switches import CauseSwitch
from ipu_core.diagnose.blame.trials import ANOTHER, LOOK, Cost, Trial, Trials
from ipu_core.ir.precision.precision import Precision

ENOUGH = 0.75  # of the gap: what closes so much is a cause
ALL = 0.9  # what closes so much leaves nothing that could be told from noise
SOME = 0.15  # what closes less is none
HALF = 0.5  # as long as the budget kept something from being tried
ALONE = 3.0  # a part so many times as suspect as the next one is tried before the whole model
CAUSES = 3  # at most, one after another
SEVERAL = 3  # parts that are named beside the whole model
NAMED = 2  # equations that are tried by themselves
INFLUENCE = Cost(8)  # of a step in float64 with one equation as declared: half a look
MOST_INFLUENCES = 8
SHARE = 0.5  # of the steps of a run, that influences may take


class Causes:
    """Trials, from the most to the least suspect, until something explains the gap or the budget is spent.

    Args:
        trials: that have looked at the run.
        low: the run that is explained.
        reference: the losses of the same in float32.
        tolerance: the share of what float32 learns that may be missing.
        before: how many settings were found first, and are changed in both.

    Attributes:
        culprits: What was found, one after another.
        run: With all of them in float32; None: there is none.
        closed: How much of the gap that closes, after `horizon` steps.
        length: Of the trials against the whole gap.
        tried: Every trial: what was put into float32 beside the culprits before, how much of what was missing then
            came back, and after how many steps.
        stopped: Whether the budget kept something from being tried.
    """

    def __init__(self, trials: Trials, low: Trial, reference: Losses, tolerance: float, before: int) -> None:
        self._trials, self._reference, self._tolerance, self._before = trials, reference, tolerance, before
        self._steps, self._variant, self._loop = len(reference), low.variant, low.loop
        losses = low.after(self._steps)
        self._whole = Gap(losses, reference)
        self._suspects = Suspects(low.loop, trials.seen, self._steps)
        self.culprits: list[Culprit] = []
        self.run: Trial | None = None
        self.closed, self.horizon = 0.0, 0
        self.tried: list[tuple[CauseSwitch, float, int]] = []
        self.stopped = False
        self._begin(losses)
        self.length = self._length

    def _begin(self, low: Losses) -> None:
        """Takes the losses of a run as the gap that is to be closed next."""
        self._gap = Gap(low, self._reference)
        self._length = self._gap.horizon(self._tolerance)
        self._known: dict[CauseSwitch, tuple[float, Trial]] = {}

    def _look_again(self, run: Trial) -> None:
        """Looks at the cured run: what saturated before hides what overflows behind it."""
        if self._trials.affords(LOOK, ANOTHER, Cost(2 * self._length)):
            self._suspects = Suspects(run.loop, self._trials.looked(run), self._steps)

    def zero(self) -> str:
        """The name of the equation in which most of the gradients become zero; "" where they do not."""
        return self._suspects.zero()

    def search(self) -> None:
        """Finds what it can."""
        while len(self.culprits) < CAUSES:
            if (switch := self._best()) is None:
                if not self.stopped:
                    self._together()
                break
            closed, run = self._known[switch]
            self.culprits.append(self._culprit(switch, closed))
            self._finish(run)
            left = Gap(run.after(self.horizon), self._reference[: self.horizon]).size(self.horizon)
            # Within the tolerance nothing is left to blame, however little of the gap was closed.
            if self.horizon < self._steps or self.closed >= ALL or left <= self._tolerance:
                break
            self._begin(run.after(self.horizon))
            self._look_again(run)
        if len(self.culprits) > 1:
            self._prune()

    def _finish(self, run: Trial) -> None:
        """Takes a run as the cure, over all steps where that can be paid: early losses may not last."""
        self.run = run
        self.horizon = self._steps if self._trials.affords(Cost(self._steps - len(run.losses))) else len(run.losses)
        self.closed = self._whole.closed(self._trials.further(run, self.horizon), self.horizon)

    def _precision(self, switches: Iterable[CauseSwitch]) -> Precision:
        """The precision of the run with switches off, beside nothing else."""
        off = functools.reduce(lambda made, one: one.off(made, self._loop.ideal), switches, self._variant.precision)
        return off

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
        return {c.switch for c in self.culprits if isinstance(c.switch, CauseSwitch)}

    def _in(self, cause: str) -> CauseSwitch | None:
        """The parts in which this cause closes the gap: one, some, or the whole model; None where it does not."""
        ranked = self._suspects.parts(cause, self._cleared)
        everywhere, first = CauseSwitch(cause), ranked[0][1]
        rivals, hides = [score for score, _ in ranked[1:]], self._suspects.hides(first)
        more = self._trials.affords(ANOTHER, ANOTHER, Cost(2 * self._length))  # else one trial is to say the cause
        # A part by itself says more than the whole model, but costs a trial more where it is not enough.
        alone = not rivals or (more and ranked[0][0] >= ALONE * rivals[0])
        if alone and not hides and (one := self._closes(first)) >= ENOUGH and (one >= ALL or not rivals):
            return first
        if not (rivals or hides):
            return None
        if (whole := self._closes(everywhere)) < ENOUGH:
            return first if self._known.get(first, (0.0,))[0] >= ENOUGH else None
        # Named alone only where the other parts add nothing to it.
        if self._closes(first) >= whole - SHARED:
            return first
        return self._some(cause, [one.part for _, one in ranked], whole) or everywhere

    def _some(self, cause: str, parts: list[str], whole: float) -> CauseSwitch | None:
        """The most suspect parts that together do as much as the whole model, where they are few of many."""
        for count in range(2, min(SEVERAL, len(parts) - 1) + 1):
            # What is left must still pay for the cure and the other seeds.
            if not self._trials.affords(ANOTHER, Cost(3 * self._length)):
                return None
            some = CauseSwitch(cause, parts[0], tuple(parts[1:count]))
            if self._closes(some) >= whole - SHARED:
                return some
        return None

    def _closes(self, switch: CauseSwitch) -> float:
        """How much of the gap a switch closes; 0 where that can no longer be tried."""
        if switch not in self._known:
            if not self._trials.affords(ANOTHER, Cost(self._length)):
                self.stopped = True
                return 0.0
            self._known[switch] = self._trial([*self._in_order, switch])
            self.tried.append((switch, self._known[switch][0], self._length))
        return self._known[switch][0]

    @property
    def _in_order(self) -> list[CauseSwitch]:
        return [c.switch for c in self.culprits if isinstance(c.switch, CauseSwitch)]

    def _trial(self, switches: Iterable[CauseSwitch]) -> tuple[float, Trial]:
        run = self._trials.begin(replace(self._variant, precision=self._precision(switches)))
        return self._gap.closed(self._trials.further(run, self._length), self._length), run

    def _culprit(self, switch: CauseSwitch, closed: float) -> Culprit:
        """A switch with the equation that matters most in it, which is tried by itself where the budget allows."""
        most = int(min(MOST_INFLUENCES, SHARE * self._steps / INFLUENCE.steps))
        if not self._trials.affords(Cost((most + 1) * INFLUENCE.steps + 3 * self._steps)):
            most = 0
        names = self._suspects.named(switch, most)
        if most > 1 and len(names) > 1:
            self._trials.spend(Cost((min(most, len(names)) + 1) * INFLUENCE.steps))
        tried: dict[int, float] = {}
        for number in names[:NAMED]:
            # The cure over all steps and in other seeds comes first.
            if not self._trials.affords(ANOTHER, Cost(3 * self._length + self._steps)):
                break
            only = self._suspects.alone(switch, number)
            alike = str(self._precision([*self._in_order, only]).apply(self._loop.ideal)) == str(
                self._precision([*self._in_order, switch]).apply(self._loop.ideal)
            )
            tried[number] = closed if alike else self._trial([*self._in_order, only])[0]
            if tried[number] >= closed - SHARED:
                break
        best = max(tried, key=lambda number: tried[number]) if tried else names[0]
        made = self._suspects.culprit(switch, best, closed, self._before + len(self.culprits))
        return replace(made, alone=tried.get(best))

    def _together(self) -> None:
        """Finds causes of which each by itself is enough to lose the loss, so that none alone brings it back."""
        first = self._in_order
        rest = [CauseSwitch(cause) for cause in self._suspects.hidden(self._cleared)]
        if len(rest) < 2 or (known := self._joint([*first, *rest])) is None or known[0] < ENOUGH:
            return
        for one in rest[::-1]:
            fewer = [other for other in rest if other != one]
            if len(fewer) > 1 and (less := self._joint([*first, *fewer])) is not None and less[0] >= ENOUGH:
                rest, known = fewer, less
        if self.stopped:
            return
        closed, run = known
        for one in rest:
            made = self._suspects.culprit(
                one, self._suspects.named(one, 0)[0], closed, self._before + len(self.culprits)
            )
            self.culprits.append(replace(made, together=True))
        self._finish(run)

    def _joint(self, switches: list[CauseSwitch]) -> tuple[float, Trial] | None:
        if not self._trials.affords(ANOTHER, Cost(self._length)):
            self.stopped = True
            return None
        return self._trial(switches)

    def _prune(self) -> None:
        """Drops culprits without which the others bring back as much: those that only undo what another one did."""
        assert self.run is not None
        self._begin_whole()
        reached = self._gap.closed(self.run.after(self._length), self._length)
        for culprit in list(self.culprits[:-1]):
            others = [c.switch for c in self.culprits if c is not culprit and isinstance(c.switch, CauseSwitch)]
            if len(self.culprits) < 2 or (known := self._joint(others)) is None:
                return
            if known[0] >= reached - SHARED:
                kept = [c for c in self.culprits if c is not culprit]
                self.culprits = [replace(c, before=self._before + n) for n, c in enumerate(kept)]
                if len(kept) == 1:
                    self.culprits = [replace(self.culprits[0], closed=known[0])]
                self._finish(known[1])

    def _begin_whole(self) -> None:
        self._gap, self._length = self._whole, self.length
