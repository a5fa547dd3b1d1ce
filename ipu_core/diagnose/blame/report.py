"""The result of `blame`, as data and as text with figures and source lines."""

from __future__ import annotations

import html
import textwrap
from dataclasses import dataclass, field

from ipu_core.diagnose.blame.switches import WORDS, CauseSwitch
from ipu_core.ir.precision.precision import Precision
from lowprec.statistics import UpdateCount

WORST = 5  # updates that are listed


@dataclass(frozen=True)
class Culprit:
    """An equation at which the training was lost, and why.

    Attributes:
        switch: what was put into float32 to show it.
        equation: name of the equation with the largest error, "w2.update.scaled_add.47", or "an operand of" that.
        line: of the model: "model.py:41"; "" where it is not known.
        kind: "lost updates", "lost increments", "underflow", "overflow", "partial sums" or "rounding".
        share: of the elements concerned (lost, zero, too large); of other kinds the relative error.
        begins: the first step looked at in which it was so.
        closed: how much of the gap to float32 this alone brings back; beside other culprits, of what they leave.
        before: how many other culprits were found first, and are in float32 too.
    """

    switch: CauseSwitch
    equation: str
    line: str
    kind: str
    share: float
    begins: int
    closed: float
    before: int = 0

    def __str__(self) -> str:
        file, _, number = self.line.rpartition(":")
        place = f"{self.equation}, line {number} of {file}" if self.line else self.equation
        where = place if self.switch.part else f"everywhere, most at {place}"
        what = WHAT[self.kind].format(share=_percent(self.share), kept=WORDS[self.switch.cause])
        since = f" from step {self.begins}" if self.begins else ""
        back = f"bring back {_percent(self.closed)} of {'what is then missing' if self.before else 'the loss'}"
        return f"{where}: {what}{since}; {self.switch} {'' if self.before else 'alone '}{back}"


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
WHAT = {
    "lost updates": "{share} of the updates rounded to nothing",
    "lost increments": "{share} of the increments of {kept} rounded to nothing",
    "underflow": "underflow, {share} became zero",
    "overflow": "overflow, {share} beyond the largest number",
    "partial sums": "partial sums lose {share} of the result",
    "rounding": "rounding loses {share} of the result",
}


@dataclass(frozen=True)
class Blame:
    """What `blame` found: losses, culprits, trials and the cure.

    Attributes:
        precision: of the run.
        steps: that it did.
        first, loss, reference: the loss before, after in the precision, after in float32.
        gap: the share of what float32 learnt that is missing.
        culprits: what brings it back, alone or, where they are several, together; none where nothing is to blame.
        closed: how much of the gap the culprits together bring back.
        tried: every trial: what was put into float32, beside the culprits before it, how much of what was missing then
            came back, and after how many steps.
        cure: the precision with the culprits in float32.
        updates: by parameter, what became of its updates in the steps looked at.
        looked: those steps.
        horizon: steps after which that is so.
        spent: what all of it took at most, as a multiple of the run (see `blame`).
        healthy: whether no more is missing than the tolerance.
        skipped: steps that the loss scale skipped.
        stopped: whether the budget ended before all suspects were tried.
    """

    precision: Precision
    steps: int
    first: float
    loss: float
    reference: float
    gap: float
    culprits: tuple[Culprit, ...] = ()
    closed: float = 0.0
    tried: tuple[tuple[CauseSwitch, float, int], ...] = ()
    cure: Precision | None = None
    updates: dict[str, UpdateCount] = field(default_factory=dict)
    looked: tuple[int, ...] = ()
    horizon: int = 0
    spent: float = 0.0
    healthy: bool = False
    skipped: int = 0
    stopped: bool = False

    def __str__(self) -> str:
        skipped = f" ({self.skipped} of them skipped)" if self.skipped else ""
        lines = [
            f"{self.precision.name}, {_steps(self.steps)}{skipped}: loss {self.loss:.4g}, float32 {self.reference:.4g} "
            f"(before: {self.first:.4g}); {self._missing()}"
        ]
        if self.healthy:
            lines.append("nothing: this precision costs no more than the tolerance")
        elif not self.culprits:
            lines.append(f"no single cause was found that brings back half of it{self._ended()}")
        lines += [str(culprit) for culprit in self.culprits]
        if self.cure is not None:
            lines.append(f"after {self.horizon} steps without it: {_percent(self.closed)} of the loss is back")
        found = {culprit.switch for culprit in self.culprits}
        others = [f"{switch} {_percent(closed)}" for switch, closed, _ in self.tried if switch not in found]
        if others:
            lines.append(f"tried too: {'; '.join(others)}")
        if self.cure is not None:
            lines.append(f"precision without it: {self.cure.name}")
        lines += self._updates()
        lengths = ", ".join(str(length) for _, _, length in self.tried)
        trials = f", trials of {lengths} steps" if self.tried else ""
        lines.append(f"({_steps(len(self.looked))} beside float64{trials}; in all {self.spent:.1f} times the run)")
        return "\n".join(map(_wrapped, lines))

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
            return "nothing is missing"
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
