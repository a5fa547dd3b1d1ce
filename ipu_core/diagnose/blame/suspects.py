"""Suspects by cause and part of the model: a score from the errors of their equations, and the worst equation."""

from __future__ import annotations

from ipu_core.diagnose.blame.errors import Errors
from ipu_core.diagnose.blame.lockstep import Lockstep
from ipu_core.diagnose.blame.report import Culprit
from ipu_core.diagnose.blame.switches import CauseSwitch, Parts
from ipu_core.diagnose.precision_table import source_lines
from ipu_core.ir.block import Block, Equation
from ipu_core.ir.bodies import equations_of

NEGLIGIBLE = 0.01  # beside the most suspect


class Suspects:
    """Switches (a cause in a part of the model) with their scores.

    Args:
        block: the typed step.
        seen: its errors in the steps that were looked at.
        steps: of the run.
    """

    def __init__(self, block: Block, seen: Lockstep, steps: int) -> None:
        self._block, self._seen, self._steps, self._parts = block, seen, steps, Parts(block)
        self._equations = {equation.number: equation for equation in equations_of(block)}
        self._worst: dict[CauseSwitch, tuple[float, int]] = {}
        self._silent: set[CauseSwitch] = set()
        for number, errors in seen.errors.items():
            self._suspect(self._equations[number], errors)

    def _suspect(self, equation: Equation, errors: Errors) -> None:
        switch = self._parts.switch(equation)
        if switch is None:
            return
        # Zeros lose nothing: behind an underflow an equation looks healthy.
        if not errors.signal and not errors.error:
            self._silent.add(switch)
        partial = min(1.0, errors.partial / errors.error) if errors.error else 0.0
        for one, share in ((CauseSwitch("partials", switch.part), partial), (switch, 1 - partial)):
            score = errors.suspicion(self._steps, share) if share else 0.0
            if score > self._worst.get(one, (0.0, 0))[0]:
                self._worst[one] = score, equation.number

    def causes(self, cleared: set[CauseSwitch]) -> list[str]:
        """The causes, the most suspect first, without those that are negligible or cleared."""
        scores: dict[str, float] = {}
        for switch, (score, _) in self._worst.items():
            if not {switch, CauseSwitch(switch.cause)} & cleared:
                scores[switch.cause] = max(score, scores.get(switch.cause, 0.0))
        least = NEGLIGIBLE * max(scores.values(), default=0.0)
        return sorted((cause for cause, score in scores.items() if score >= least), key=lambda cause: -scores[cause])

    def parts(self, cause: str, cleared: set[CauseSwitch]) -> list[tuple[float, CauseSwitch]]:
        """A cause's parts that are not cleared, the most suspect first."""
        found = [(score, one) for one, (score, _) in self._worst.items() if one.cause == cause and one not in cleared]
        return sorted(found, key=lambda pair: -pair[0])

    def hides(self, switch: CauseSwitch) -> bool:
        """Whether something of the same cause in another part had only zeros to work on, so that nothing was seen."""
        return any(one.cause == switch.cause and one.part != switch.part for one in self._silent)

    def culprit(self, switch: CauseSwitch, closed: float, before: int) -> Culprit:
        """The Culprit of a switch: its worst equation, source line and kind of error."""
        own = switch if switch.part else self.parts(switch.cause, set())[0][1]
        equation = self._equations[self._worst[own][1]]
        owner, errors = self._parts.owner(equation), self._seen.errors[equation.number]
        name = owner.name if owner is equation else f"an operand of {owner.name}"
        kind, share = _kind(switch.cause, errors)
        return Culprit(
            switch, name, source_lines(self._block)[owner.number], kind, share, errors.begins, closed, before
        )  # fmt: skip


def _kind(cause: str, errors: Errors) -> tuple[str, float]:
    """What most of the error of an equation is, and its figure."""
    kind = errors.kind()
    shares = {"overflow": errors.beyond / errors.elements, "underflow": errors.zeros / errors.elements}
    if kind == "lost":
        return ("lost updates" if cause == "weights" else "lost increments"), errors.lost / errors.wanted
    if kind in shares:
        return kind, shares[kind]
    return ("partial sums" if cause == "partials" else "rounding"), errors.size
