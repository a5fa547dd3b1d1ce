"""What of a norm has an element for each of its input: all but its statistics, as PopNN computes norms of halves."""

from __future__ import annotations

from typing import Final

from ipu_core.ir.block import Block, Equation, Var
from ipu_core.ir.bodies import equations_of
from ipu_core.ir.ops import ELEMENTWISE, STRUCTURE

NORMS: Final = ("float32", "operands")
"""How norms are computed: in float32, or only their statistics."""


class Whitening:
    """What of a Block's norms is computed element by element, and what is a statistic.

    Sums of a norm, and what is made of sums and single numbers alone, are statistics. So are squares, which only
    variances are made of: those of halves overflow from 256 on.
    """

    def __init__(self, block: Block) -> None:
        self._definitions = {equation.output: equation for equation in equations_of(block)}
        self._elements: dict[Var, bool] = {}
        for equation in self._definitions.values():
            if equation.family == "norm" and equation.op in ELEMENTWISE and equation.op not in ("convert", "square"):
                self._elements[equation.output] = any(self._passes(var, equation) for var in equation.operands)

    def has(self, equation: Equation) -> bool:
        """Whether an equation of a norm has a result for each element of the norm's input: as narrow as that may be."""
        return self._elements.get(equation.output, False)

    def is_statistic(self, var: Var) -> bool:
        """Whether a value is a statistic of a norm, or the gradient of one."""
        made = self._made(var)
        if made is None:
            return False
        if made.op == "reduce_sum":
            summed = self._made(made.operands[0])
            return "norm" in (made.family, summed.family if summed is not None else "")
        return made.family == "norm" and made.op != "convert" and not self._elements.get(made.output, False)

    def _passes(self, var: Var, equation: Equation) -> bool:
        """Whether an operand makes an equation's result one of elements."""
        if (made := self._made(var)) is not None:
            # A statistic that is spread out has an element for each of the input, too.
            return not self.is_statistic(var) or made.output.type.size < equation.output.type.size
        # An input. Running statistics meet single numbers, or statistics of their size; the norm's own input meets what
        # is smaller, or running statistics that a trace has spread out, being constants.
        others = [other for other in equation.operands if other is not var]
        smaller = any(other.type.size < var.type.size for other in others)
        return smaller or (bool(others) and all(self._made(other) is None for other in others))

    def _made(self, var: Var) -> Equation | None:
        while (made := self._definitions.get(var)) is not None and made.op in STRUCTURE:
            var = made.operands[0]
        return made
