"""Finds out why: two runs, steps beside float64 that say what to suspect, and trials with one suspect in float32."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ipu_core.ir.block import Equation
from ipu_core.ir.rules import STATE, names_of
from ipu_core.study.blame.errors import Errors
from ipu_core.study.blame.report import Blame, Culprit
from ipu_core.study.blame.switches import Parts, Switch, trimmed
from ipu_core.study.blame.trials import Gap, Trials, reference_of, taken
from ipu_core.train.batches import Batches
from ipu_core.train.loop import TrainLoop
from ipu_core.train.precision_table import source_lines

TOLERANCE = 0.05
BUDGET = 5.0
ENOUGH = 0.75  # of the gap: what closes so much is the cause
SOME = 0.15  # what closes less is none
NEGLIGIBLE = 0.01  # beside the most suspect
ALONE = 3.0  # a part so many times as suspect as the next one is tried before the whole model
LOOKS = 8


def blame(
    loop: TrainLoop, batches: Batches, steps: int, *, tolerance: float = TOLERANCE, budget: float = BUDGET
) -> Blame:
    """Says which equation, and which cause, keeps a training in low precision from learning what float32 learns.

    From the loop's state it runs the steps in the loop's precision and in float32. Where the losses are the same within
    the tolerance, nothing is to blame. Else some steps of the run, beside float64 for the same weights, batch and
    operands, say of every equation what its formats lose, and one suspect after another (a cause, in one part of the
    model or everywhere) is put into float32, by rules of the precision, to see how much of the loss that brings back.
    All of it is done on the direct engine with random bits of the key; the loop itself stays as it is.

    Args:
        loop: at the state from which the run begins.
        batches: as `TrainLoop.run` takes them.
        steps: of the run to be explained.
        tolerance: the share of what float32 learns that may be missing.
        budget: how much may be computed, in steps, as a multiple of the run's own.

    Raises:
        ValueError: no steps, or a budget in which nothing can be tried; fewer batches than steps.
        TypeError: no loop.
    """
    if not budget >= LEAST_BUDGET:
        raise ValueError(f"budget must be at least {LEAST_BUDGET:g} times the run, not {budget!r}")
    trials = Trials(loop, taken(loop, batches, steps))
    low = trials.watched(max(2, min(LOOKS, steps // SPARSE)))
    reference = trials.run(reference_of(loop.precision), steps)
    gap = Gap(low, reference)
    seen = trials.seen
    known = Blame(
        loop.precision, steps, float(reference[0]), gap.level(low, steps), gap.level(reference, steps), gap.size(steps),
        updates=seen.updates, looked=tuple(step for step, _, _ in seen.losses), spent=trials.spent / steps,
        healthy=not gap.size(steps) > tolerance, skipped=trials.skipped,
    )  # fmt: skip
    if known.healthy:
        return known
    search = Search(trials, gap, gap.horizon(tolerance), budget * steps)
    culprits, closed = search.culprits()
    found = replace(known, culprits=culprits, closed=closed, tried=search.tried, horizon=search.horizon)
    if culprits:
        cure = loop.precision
        for culprit in culprits:
            cure = culprit.switch.off(cure, loop.ideal)
        found = replace(found, cure=trimmed(cure, loop.precision, loop.ideal))
        if search.horizon < steps and trials.spent + steps <= budget * steps:
            found = replace(found, closed=gap.closed(trials.run(cure, steps), steps), horizon=steps)
    return replace(found, trial=search.horizon, spent=trials.spent / steps)


SPARSE = 40  # steps of the run for each that is looked at
LEAST_BUDGET = 3.5


class Search:
    """Trials, from the most to the least suspect, until something explains the gap or the budget is spent.

    Attributes:
        horizon: Steps of a trial.
        tried: How much of the gap each closed.
        suspects: By switch for a part, how suspect it is.
    """

    def __init__(self, trials: Trials, gap: Gap, horizon: int, budget: float) -> None:
        self._trials, self._gap, self.horizon, self._budget = trials, gap, horizon, budget
        self._block = trials.loop.in_precision(trials.loop.precision).block
        self._equations = {equation.number: equation for equation in self._block.equations}
        self.tried: dict[Switch, float] = {}
        self._worst: dict[Switch, tuple[float, int]] = {}
        parts = Parts(self._block)
        for number, errors in trials.seen.errors.items():
            self._suspect(parts, self._equations[number], errors)
        self.suspects = {switch: score for switch, (score, _) in self._worst.items()}

    def _suspect(self, parts: Parts, equation: Equation, errors: Errors) -> None:
        switch = parts.switch(equation)
        if switch is None:
            return
        steps, partial = len(self._trials.batches), min(1.0, errors.partial / errors.error) if errors.error else 0.0
        for one, share in ((Switch("partials", switch.part), partial), (switch, 1 - partial)):
            score = errors.suspicion(steps, share) if share else 0.0
            if score > self._worst.get(one, (0.0, 0))[0]:
                self._worst[one] = score, equation.number

    def culprits(self) -> tuple[tuple[Culprit, ...], float]:
        """What explains the gap, and how much of it."""
        causes = {cause: self._ranked(cause)[0][0] for cause in {switch.cause for switch in self.suspects}}
        least = NEGLIGIBLE * max(causes.values(), default=0.0)
        for cause in sorted((c for c, score in causes.items() if score >= least), key=lambda c: -causes[c]):
            if (best := self._in(cause)) is not None:
                return (self._culprit(best, self.tried[best]),), self.tried[best]
        several = sorted((s for s, closed in self.tried.items() if closed >= SOME), key=lambda s: -self.tried[s])
        chosen: list[Switch] = []
        for switch in several:
            if all(switch.cause != other.cause for other in chosen):
                chosen.append(switch)
        if not chosen:
            return (), 0.0
        closed = self.tried[chosen[0]]
        if len(chosen) > 1 and self._affordable:
            closed = self._closed(chosen[:2])
            chosen = chosen[:2]
        else:
            chosen = chosen[:1]
        return tuple(self._culprit(switch, self.tried[switch]) for switch in chosen), closed

    def _in(self, cause: str) -> Switch | None:
        """The part in which this cause explains the gap: one, or the whole model; None where it does not."""
        ranked = self._ranked(cause)
        everywhere, first = Switch(cause), ranked[0][1]
        rivals = [score for score, _ in ranked[1:]]
        alone = not rivals or ranked[0][0] >= ALONE * rivals[0]
        if alone and self._try(first) >= ENOUGH:
            return first
        if not rivals or self._try(everywhere) < ENOUGH:
            return None
        return first if self._try(first) >= ENOUGH * self.tried[everywhere] else everywhere

    def _ranked(self, cause: str) -> list[tuple[float, Switch]]:
        return sorted(((score, s) for s, score in self.suspects.items() if s.cause == cause), key=lambda x: -x[0])

    @property
    def _affordable(self) -> bool:
        return self._trials.spent + self.horizon <= self._budget

    def _try(self, switch: Switch) -> float:
        """How much of the gap a switch closes; 0 where that can no longer be tried."""
        if switch not in self.tried:
            if not self._affordable:
                return 0.0
            self.tried[switch] = self._closed([switch])
        return self.tried[switch]

    def _closed(self, switches: Iterable[Switch]) -> float:
        precision = self._trials.loop.precision
        for switch in switches:
            precision = switch.off(precision, self._trials.loop.ideal)
        return self._gap.closed(self._trials.run(precision, self.horizon), self.horizon)

    def _culprit(self, switch: Switch, closed: float) -> Culprit:
        """The switch with the equation that it is about."""
        own = switch if switch.part else self._ranked(switch.cause)[0][1]
        equation = self._equations[self._worst[own][1]]
        errors = self._trials.seen.errors[equation.number]
        kind, share = _kind(switch.cause, errors)
        owner = Parts(self._block).owner(equation)
        name = f"{next(names_of(owner))} {equation.family if equation.family in STATE else owner.role}"
        name = name if owner is equation else f"an operand of {name}"
        line = source_lines(self._block)[owner.number]
        return Culprit(switch, name, line, kind, share, errors.begins, closed)


def _kind(cause: str, errors: Errors) -> tuple[str, float]:
    """What most of the error of an equation is, and its figure."""
    kind = errors.kind()
    shares = {"overflow": errors.beyond / errors.elements, "underflow": errors.zeros / errors.elements}
    if kind == "lost":
        return ("lost updates" if cause == "weights" else "lost increments"), errors.lost / errors.wanted
    if kind in shares:
        return kind, shares[kind]
    return ("partial sums" if cause == "partials" else "rounding"), errors.size
