"""Suspects by cause and part of the model: a score from errors of their equations, and the equation that matters."""

from __future__ import annotations

from ipu_core.diagnose.blame.errors import Errors, Sums
from ipu_core.diagnose.blame.influence import influences
from ipu_core.diagnose.blame.lockstep import Lockstep
from ipu_core.diagnose.blame.report import Culprit
from ipu_core.diagnose.blame.switches import PASSES, CauseSwitch, Parts
from ipu_core.diagnose.precision_table import source_lines
from ipu_core.ir.block import Equation
from ipu_core.ir.bodies import equations_of
from ipu_core.ir.precision.rules import names_of
from ipu_core.train.loop import TrainLoop

NEGLIGIBLE = 0.01  # beside the most suspect
GUILTY = 0.1  # of the influence of the most suspect part, from which on another is guilty too
NOTHING = 1e-3  # an influence so small says nothing of which equation it is


class Suspects:
    """Switches (a cause in a part of the model) with their scores.

    Args:
        loop: of the typed step.
        seen: its errors in the steps that were looked at.
        steps: of the run.
    """

    def __init__(self, loop: TrainLoop, seen: Lockstep, steps: int) -> None:
        self._loop, self._seen, self._steps, self._parts = loop, seen, steps, Parts(loop.block)
        self._equations = {equation.number: equation for equation in equations_of(loop.block)}
        self._scores: dict[CauseSwitch, dict[int, float]] = {}
        self._silent: dict[CauseSwitch, int] = {}
        self._known: dict[int, float] = {}
        for number, errors in seen.errors.items():
            self._suspect(self._equations[number], errors)

    def _suspect(self, equation: Equation, errors: Errors) -> None:
        switch = self._parts.switch(equation)
        if switch is None:
            return
        # Zeros lose nothing: behind an underflow an equation looks healthy.
        if not errors.signal and not errors.error:
            self._silent.setdefault(switch, equation.number)
        partial = min(1.0, errors.partial / errors.error) if errors.error else 0.0
        for one, share in ((CauseSwitch("partials", switch.part), partial), (switch, 1 - partial)):
            score = errors.suspicion(self._steps, share) if share else 0.0
            if score > 0:
                self._scores.setdefault(one, {})[equation.number] = score

    def causes(self, cleared: set[CauseSwitch]) -> list[str]:
        """The causes, the most suspect first, without those that are negligible or cleared."""
        scores: dict[str, float] = {}
        for switch, found in self._scores.items():
            if not {switch, CauseSwitch(switch.cause)} & cleared:
                scores[switch.cause] = max(*found.values(), scores.get(switch.cause, 0.0))
        least = NEGLIGIBLE * max(scores.values(), default=0.0)
        return sorted((cause for cause, score in scores.items() if score >= least), key=lambda cause: -scores[cause])

    def hidden(self, cleared: set[CauseSwitch]) -> list[str]:
        """The causes as `causes` has them, and behind them those of which only zeros were seen, and so no error."""
        found = self.causes(cleared)
        silent = sorted({one.cause for one in self._silent if CauseSwitch(one.cause) not in cleared})
        return [*found, *(cause for cause in silent if cause not in found)]

    def parts(self, cause: str, cleared: set[CauseSwitch]) -> list[tuple[float, CauseSwitch]]:
        """A cause's parts that are not cleared, the most suspect first."""
        found = [(max(found.values()), one) for one, found in self._scores.items()
                 if one.cause == cause and one not in cleared]  # fmt: skip
        return sorted(found, key=lambda pair: -pair[0])

    def hides(self, switch: CauseSwitch) -> bool:
        """Whether something of the same cause in another part had only zeros to work on, so that nothing was seen."""
        return any(one.cause == switch.cause and one.part != switch.part for one in self._silent)

    def zero(self) -> str:
        """The name of the most suspect equation in which gradients become zero; "" where none is."""
        backward = {
            n: score for one, found in self._scores.items() if one.cause == "backward" for n, score in found.items()
        }
        found = {n: score for n, score in backward.items() if self._seen.errors[n].early[1].kind() == "underflow"}
        return self._parts.owner(self._equations[max(found, key=found.__getitem__)]).name if found else ""

    def named(self, switch: CauseSwitch, count: int) -> list[int]:
        """The equations of a switch, by number, the one that matters most first.

        Args:
            switch: the cause, and the parts that are meant.
            count: of how many it may be computed what they alone do to a step; fewer than 2: the largest error decides.
        """
        parts = {switch.part, *switch.others} - {""}
        scores: dict[int, float] = {}
        for one, found in self._scores.items():
            if one.cause == switch.cause and (not parts or one.part in parts):
                scores |= found
        ranked = sorted(scores, key=lambda number: -scores[number])
        if not ranked:
            return [number for one, number in self._silent.items() if one.cause == switch.cause]
        if count < 2 or len(ranked) < 2:
            return ranked
        early = self._seen.errors[ranked[0]].early[0]
        _, inputs, key = min(self._seen.given, key=lambda given: abs(given[0] - early))
        fresh = [number for number in ranked[:count] if number not in self._known]
        self._known |= influences(self._loop, inputs, key, fresh)
        # Operands come in their formats: what saturated there is seen behind an equation that loses nothing itself.
        own = {number: self._seen.errors[number].early[1].badness for number in ranked[:count]}
        least = NEGLIGIBLE * max(own.values())
        best = sorted(ranked[:count], key=lambda number: (own[number] < least, -self._known[number]))
        return best if self._known[best[0]] >= NOTHING else ranked

    def alone(self, switch: CauseSwitch, number: int) -> CauseSwitch:
        """The switch that puts the values of one equation, and what goes into it, into float32, and nothing else."""
        owner = self._parts.owner(self._equations[number])
        product = owner.role if switch.cause in PASSES and owner.role in ROLES else ""
        return CauseSwitch(switch.cause, next(names_of(owner)), (), product or "")

    def culprit(self, switch: CauseSwitch, number: int, closed: float, before: int) -> Culprit:
        """The Culprit of a switch: an equation of it, its source line and kind of error."""
        equation = self._equations[number]
        owner = self._parts.owner(equation)
        name = owner.name if owner is equation else f"an operand of {owner.name}"
        begins, sums = self._seen.errors[number].early
        kind, share = _kind(switch.cause, sums)
        line = source_lines(self._loop.block)[owner.number]
        begins = begins if begins > self._seen.given[0][0] else 0
        return Culprit(switch, name, line, kind, share, begins, closed, before)


ROLES = ("forward", "grad_input", "grad_weight")


def _kind(cause: str, errors: Sums) -> tuple[str, float]:
    """What most of the error of an equation is, and its figure."""
    if not errors.signal and not errors.error:
        return "hidden", 0.0
    kind = errors.kind()
    shares = {"overflow": errors.beyond / errors.elements, "underflow": errors.zeros / errors.elements}
    if kind == "lost":
        return ("lost updates" if cause == "weights" else "lost increments"), errors.lost / errors.wanted
    if kind in shares:
        return kind, shares[kind]
    return ("partial sums" if cause == "partials" else "rounding"), errors.size
