"""What was found, as data and in words with figures and source lines."""

from __future__ import annotations

import html
from dataclasses import dataclass, field

from ipu_core.ir.precision import Precision
from ipu_core.study.blame.lockstep import Update
from ipu_core.study.blame.switches import WORDS, Switch

WORST = 5  # updates that are listed


@dataclass(frozen=True)
class Culprit:
    """An equation at which the training was lost, and why.

    Attributes:
        switch: what was put into float32 to show it.
        equation: name, role and operation of the equation with the largest error: "w2 update scaled_add".
        line: of the model: "model.py:41"; "" where it is not known.
        kind: "lost updates", "lost increments", "underflow", "overflow", "partial sums" or "rounding".
        share: of the elements concerned (lost, zero, too large); of other kinds the relative error.
        begins: the first step looked at in which it was so.
        closed: how much of the gap to float32 this alone brings back.
    """

    switch: Switch
    equation: str
    line: str
    kind: str
    share: float
    begins: int
    closed: float

    def __str__(self) -> str:
        where = ", ".join(filter(None, (self.equation, self.line and "line {2} of {0}".format(*self.line.rpartition(":")))))
        since = f" from step {self.begins}" if self.begins else ""
        what = WHAT[self.kind].format(share=f"{100 * self.share:.2g} %", kept=WORDS[self.switch.cause])
        return f"{where}: {what}{since}; {self.switch} alone bring back {100 * self.closed:.0f} % of the loss"


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
    """Why a run lost what float32 learns.

    Attributes:
        precision: of the run.
        steps: that it did.
        first, loss, reference: the loss before, after in the precision, after in float32.
        gap: the share of what float32 learnt that is missing.
        culprits: what brings it back, alone or, where they are several, together; none where nothing is to blame.
        closed: how much of the gap the culprits together bring back.
        tried: every switch that was tried alone, with how much it closed.
        cure: the precision with the culprits in float32.
        updates: by parameter, what became of its updates in the steps looked at.
        looked: those steps.
        horizon: steps of each trial.
        spent: steps in all, as multiples of the run's.
    """

    precision: Precision
    steps: int
    first: float
    loss: float
    reference: float
    gap: float
    culprits: tuple[Culprit, ...] = ()
    closed: float = 0.0
    tried: dict[Switch, float] = field(default_factory=dict)
    cure: Precision | None = None
    updates: dict[str, Update] = field(default_factory=dict)
    looked: tuple[int, ...] = ()
    horizon: int = 0
    spent: float = 0.0
    healthy: bool = False

    def __str__(self) -> str:
        lines = [
            f"{self.precision.name}, {self.steps} steps: loss {self.loss:.4g}, float32 {self.reference:.4g} "
            f"(before: {self.first:.4g}); {_missing(self.gap)}"
        ]
        if self.healthy:
            lines.append("nothing: this precision costs no more than the tolerance")
        elif not self.culprits:
            lines.append("no single cause was found that brings back half of it")
        lines += [str(culprit) for culprit in self.culprits]
        if len(self.culprits) > 1:
            lines.append(f"together they bring back {100 * self.closed:.0f} %")
        others = {switch: closed for switch, closed in self.tried.items() if all(c.switch != switch for c in self.culprits)}
        if others:
            lines.append("tried too: " + "; ".join(f"{switch} {100 * closed:.0f} %" for switch, closed in others.items()))
        if self.cure is not None:
            lines.append(f"precision without it: {self.cure.name}")
        lines += self._updates()
        trials = f", {len(self.tried)} trials of {self.horizon} steps" if self.tried else ""
        lines.append(
            f"(two runs, {len(self.looked)} steps beside float64{trials}: {self.spent:.1f} times the steps of the run)"
        )
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"

    def _updates(self) -> list[str]:
        """What arrives of the updates, the worst first, where it is not all."""
        worst = sorted(self.updates.items(), key=lambda item: item[1].share)[:WORST]
        listed = [f"{name} {100 * update.share:.0f} %" for name, update in worst if update.share < WHOLE]
        return [f"of float64's updates from the same state arrive, along them: {', '.join(listed)}"] if listed else []


WHOLE = 0.95


def _missing(gap: float) -> str:
    return f"{100 * gap:.0f} % of what float32 learns is missing" if gap > 0 else "nothing is missing"
