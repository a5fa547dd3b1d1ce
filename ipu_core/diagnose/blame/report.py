"""The result of `blame`, as data and as text with figures and source lines."""

from __future__ import annotations

import html
import math
import textwrap
from dataclasses import dataclass, field

from ipu_core.diagnose.blame.gap import Diverged
from ipu_core.diagnose.blame.settings import Setting
from ipu_core.diagnose.blame.switches import WORDS, CauseSwitch
from ipu_core.ir.precision.precision import Precision
from lowprec.statistics import UpdateCount

WORST = 5  # updates that are listed


@dataclass(frozen=True)
class Culprit:
    """An equation or a setting at which the training was lost, and why.

    Attributes:
        switch: what was changed to show it: a `CauseSwitch` put into float32, or a `Setting`.
        equation: name of the equation that matters most, "w2.update.scaled_add.47", or "an operand of" that; of a
            setting where it does its harm, "" where that is nowhere in the step.
        line: of the model: "model.py:41"; "" where it is not known.
        kind: "lost updates", "lost increments", "underflow", "overflow", "partial sums", "rounding", or "hidden" where
            only zeros reached it; of a setting what is wrong with it, in words.
        share: of the elements concerned (lost, zero, too large); of other kinds the relative error.
        begins: the first step looked at in which it was so.
        closed: how much of the gap to float32 this alone brings back; beside other culprits, of what they leave.
        before: how many other culprits were found first, and are changed too.
        alone: how much the one equation brings back, put into float32 without anything else; None: not tried.
        together: whether only all culprits together bring it back, and no one of them alone.
        seeds: how much of the gap is back in the other seeds, with all culprits changed; none where they were not run.
    """

    switch: CauseSwitch | Setting
    equation: str
    line: str
    kind: str
    share: float
    begins: int
    closed: float
    before: int = 0
    alone: float | None = None
    together: bool = False
    seeds: tuple[float, ...] = ()

    def __str__(self) -> str:
        if isinstance(self.switch, Setting):
            at = f", most at {self.equation}" if self.equation else ""
            what = "what is then missing" if self.before else "the loss"
            return f"{self.switch.cause}: {self.kind}{at}; with {self.switch} {_percent(self.closed)} of {what} is back"
        back = f"bring back {_percent(self.closed)} of {'what is then missing' if self.before else 'the loss'}"
        if self.together:
            back = f"bring back {_percent(self.closed)} of the loss with the others, and less without it"
        what = WHAT[self.kind].format(share=_percent(self.share), kept=WORDS[self.switch.cause])
        since = f" from step {self.begins}" if self.begins else ""
        return f"{self._where()}: {what}{since}; {self.switch} {'' if self.before or self.together else 'alone '}{back}"

    def _where(self) -> str:
        """The equation with its line, and how far it stands alone, in words."""
        file, _, number = self.line.rpartition(":")
        place = f"{self.equation}, line {number} of {file}" if self.line else self.equation
        parts = self.switch.parts() if isinstance(self.switch, CauseSwitch) else ""
        if self.alone is not None and self.alone >= self.closed - SHARED:
            return place
        # One equation that does not bring it back by itself must not be taken for the cause.
        only = "" if self.alone is None else f" ({_percent(self.alone)} by itself)"
        if self.alone is None and self.switch.part and not getattr(self.switch, "others", ()):
            return place
        return f"{f'in {parts}' if parts else 'everywhere'}, most at {place}{only}"


def _wrapped(line: str) -> str:
    """A line in as many as fit a terminal; names of precisions stay whole, and numbers with their percent sign."""
    joined = line.replace(" %", f"{JOINED}%")
    filled = textwrap.fill(joined, WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    return filled.replace(JOINED, " ")


def _percent(share: float) -> str:
    """In percent, to a whole one where that says something."""
    digits = 1 if ZERO <= abs(share) < LEAST else 0
    return f"{100 * share + 0.0:.{digits}f} %" if abs(share) >= ZERO else "0 %"


JOINED = "\N{NO-BREAK SPACE}"
ZERO = 0.0005
LEAST = 0.01
WIDTH = 100
SHARED = 0.1  # of the gap: what an equation may leave by itself that its switch brings back, where it is the cause
WHAT = {
    "lost updates": "{share} of the updates rounded to nothing",
    "lost increments": "{share} of the increments of {kept} rounded to nothing",
    "underflow": "underflow, {share} became zero",
    "overflow": "overflow, {share} beyond the largest number",
    "partial sums": "partial sums lose {share} of the result",
    "rounding": "rounding loses {share} of the result",
    "hidden": "only zeros reached it, so that its own error was not seen",
}


@dataclass(frozen=True)
class Blame:
    """What `blame` found: losses, culprits, trials and the cure.

    Attributes:
        precision: of the run.
        steps: that it did.
        first, loss, reference: the loss before, after in the precision, after in float32; NaN of a run that ended.
        gap: the share of what float32 learnt that is missing; a loss that is not finite, or above twice the first one,
            counts as that.
        culprits: what brings it back, alone or, where they are several, together; none where nothing is to blame.
        closed: how much of the gap the culprits together bring back.
        cured: the loss with all of them changed, after `horizon` steps; NaN: there are none.
        tried: every trial: what was changed, beside the culprits before it, how much of what was missing then came
            back, and after how many steps.
        cure: the precision with the culprits in float32; None: it is not the precision that is to be changed.
        settings: that the cure changes.
        updates: by parameter, what became of its updates in the steps looked at.
        looked: those steps.
        horizon: steps after which that is so.
        spent: what all of it took at most, as a multiple of the run (see `blame`).
        healthy: whether no more is missing than the tolerance, and float32 itself learns.
        skipped: steps that the loss scale skipped.
        stopped: whether the budget ended before all suspects were tried.
        diverged, reference_diverged: where the run, and where it in float32, left what is training; None: nowhere.
        gaps: the gap in each seed, after the steps of a trial; none where one seed was run.
        chance: whether the seeds do not tell from chance what is missing, or what the culprits bring back.
        notes: what else was seen, in words.
    """

    precision: Precision
    steps: int
    first: float
    loss: float
    reference: float
    gap: float
    culprits: tuple[Culprit, ...] = ()
    closed: float = 0.0
    cured: float = math.nan
    tried: tuple[tuple[CauseSwitch | Setting, float, int], ...] = ()
    cure: Precision | None = None
    settings: tuple[Setting, ...] = ()
    updates: dict[str, UpdateCount] = field(default_factory=dict)
    looked: tuple[int, ...] = ()
    horizon: int = 0
    spent: float = 0.0
    healthy: bool = False
    skipped: int = 0
    stopped: bool = False
    diverged: Diverged | None = None
    reference_diverged: Diverged | None = None
    gaps: tuple[float, ...] = ()
    chance: bool = False
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [self._losses(), *self._outcome()]
        lines += [str(culprit) for culprit in self.culprits]
        if self.culprits:
            seeds = self.culprits[0].seeds
            others = f" ({' and '.join(map(_percent, seeds))} in two other seeds)" if seeds else ""
            lines.append(f"after {self.horizon} steps without it: {_percent(self.closed)} of the loss is back{others}")
            if not seeds:
                lines.append("seen in one seed: the budget was not enough for three")
        found = {culprit.switch for culprit in self.culprits}
        rest = [f"{switch} {_percent(closed)}" for switch, closed, _ in self.tried if switch not in found]
        if rest:
            lines.append(f"tried too: {'; '.join(rest)}")
        if self.cure is not None:
            lines.append(f"precision without it: {self.cure.name}")
        lines += [*self.notes, *self._updates()]
        lengths = ", ".join(str(length) for _, _, length in self.tried)
        trials = f", trials of {lengths} steps" if self.tried else ""
        lines.append(f"({_steps(len(self.looked))} beside float64{trials}; in all {self.spent:.1f} times the run)")
        return "\n".join(map(_wrapped, lines))

    def _losses(self) -> str:
        skipped = f" ({self.skipped} of them skipped)" if self.skipped else ""
        own = f"diverged, {self.diverged}" if self.diverged else f"loss {self.loss:.4g}"
        wide = f"float32 {self.reference:.4g}"
        if self.reference_diverged:
            wide = f"float32 diverged too, {self.reference_diverged}"
        missing = "" if self.reference_diverged else f"; {self._missing()}"
        return (
            f"{self.precision.name}, {_steps(self.steps)}{skipped}: {own}, {wide} (before: {self.first:.4g}){missing}"
        )

    def _outcome(self) -> list[str]:
        """What came of it where there is no culprit, in words."""
        if self.healthy:
            return ["nothing: this precision costs no more than the tolerance"]
        if self.culprits:
            return []
        if self.chance:
            gaps = " and ".join(map(_percent, self.gaps[1:]))
            what = f"{gaps} are missing in two other seeds" if self.gaps else "the seeds differ too much"
            return [f"no claim: this cannot be told from chance: {what}"]
        if self.gap <= 0 or self.reference_diverged:
            return [
                f"it is not the precision: float32 does no better, and no setting that was tried does{self._ended()}"
            ]
        return [f"no single cause was found that brings back half of it{self._ended()}"]

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"

    def _ended(self) -> str:
        """Whether the budget ended the search before all was tried, in words; "" where it did not."""
        if not self.looked:
            return ": within the budget so short a run cannot be looked into"
        return ", and the budget ended before all suspects were tried: a larger one goes on" if self.stopped else ""

    def _missing(self) -> str:
        if self.gap <= 0:
            return "nothing is missing" if self.reference < self.first else "nothing is missing, and nothing learnt"
        if self.reference >= self.first:
            return f"float32 learns nothing yet, this ends {_percent(self.gap)} of the first loss above it"
        return f"{_percent(self.gap)} of what float32 learns is missing"

    def _updates(self) -> list[str]:
        """What arrives of the updates, the worst first, where it is not all."""
        kept = {name: update.kept for name, update in self.updates.items() if update.kept < WHOLE}
        listed = [f"{name} {_percent(kept[name])}" for name in sorted(kept, key=lambda name: kept[name])[:WORST]]
        return [f"of float64's updates from the same state arrive, along them: {', '.join(listed)}"] if listed else []


WHOLE = 0.95


def _steps(count: int) -> str:
    return f"{count} step{'' if count == 1 else 's'}"
