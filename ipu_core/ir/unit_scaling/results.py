"""What unit scaling finds of a Block: the factors of its results, and how values are distributed with them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ipu_core.ir.block import Equation, Var
from ipu_core.ir.ops import PRODUCTS
from ipu_core.ir.unit_scaling.laws import Law, normal, of_array, rounded
from ipu_core.ir.unit_scaling.nodes import GIVEN, Node, ScaleGraph

NEAR = 1e-3  # a factor so near to 1 is none


@dataclass(frozen=True)
class Rules:
    """What unit scaling may be asked for.

    Attributes:
        tau: share of variance that the branch of a residual addition brings; None: both operands as they come.
        by_depth: whether all residual branches bring as much together as what they are added to, as u-muP has it.
        mup: whether the last product is divided by its inputs, and attention's by the width, as u-muP has it.
        deviation: standard deviation of the data.
    """

    tau: float | None = None
    by_depth: bool = False
    mup: bool = False
    deviation: float = 1.0


class Results:
    """The factors of a Block's results, the laws of its values, and how much gradients grow on their way back.

    Attributes:
        laws: of every value with data or weights in it, as others see it.
        factors: of results, where they are not 1.
        shares: factors of operands of additions, by (number of the equation, position).
        dropped: numbers of the equations that multiply by a number which the next factor takes up.
        above: by value, the equations that it is made by, as bits of their numbers.
        residuals: the additions of which one operand is made of the other.
        growth: by (node, operand): root mean square of what one gradient of 1 of the node brings to the operand.
        sizes: what products take for the size of a value, where that is not its root mean square.
        common: shares of mean squares that all rows have in common.
        level: shares of mean squares that are the same along the last axis.
        gates: by how much a gate, or what it lets pass, is multiplied.
        statistics: squares, roots and what else is left as it is, and what is made of them.
        inside: laws within functions of one value, before their factors.
    """

    def __init__(self, graph: ScaleGraph, rules: Rules) -> None:
        self.graph, self.rules = graph, rules
        self.laws: dict[Var, Law] = {}
        self.factors: dict[Var, float] = {}
        self.shares: dict[tuple[int, int], float] = {}
        self.dropped: set[int] = set()
        self.growth: dict[tuple[Node, Var], float] = {}
        self.sizes: dict[Var, float] = {}
        self.common: dict[Var, float] = {}
        self.level: dict[Var, float] = {}
        self.gates: dict[Var, float] = {}
        self.statistics: set[Var] = set()
        self.inside: dict[Var, Law] = {}
        self.above = ancestors(graph)
        self.residuals = [e for e in graph.block.equations if self._is_residual(e)]
        for var in graph.block.inputs:
            self.laws[var] = normal() if graph.origin(var).pure else normal(rules.deviation)
        for var, array in graph.block.constants.items():
            self.laws[var] = of_array(array)

    def give(self, equation: Equation, law: Law, factor: float = 1.0) -> None:
        """Says what a result is, times its factor."""
        var = equation.output
        small = var.type.size == 1 or self.graph.origin(var).vector
        scaled = abs(factor - 1) > NEAR and math.isfinite(factor) and factor > 0 and not small
        if scaled:
            factor = self.factors[var] = rounded(factor)
        self.laws[var] = law.times(factor).root() if scaled else law

    def grow(self, node: Node, var: Var, by: float) -> None:
        """One more way from a node to an operand: independent ones add squares."""
        self.growth[node, var] = math.hypot(self.growth.get((node, var), 0.0), by)

    def common_part(self, var: Var) -> float:
        """The share of a value's mean square that all its rows have in common."""
        return self.common.get(var, 0.0)

    def law(self, var: Var) -> Law:
        """How a value is distributed."""
        return self.laws.get(var) or normal()

    def pass_on(self, equation: Equation, var: Var) -> None:
        """Says that a result is distributed as an operand is."""
        self.laws[equation.output] = self.law(var)
        for known in (self.sizes, self.gates, self.common, self.level):
            if var in known:
                known[equation.output] = known[var]

    def size(self, var: Var, *, published: bool) -> float:
        """How large the numbers of an operand are. The published rules take nonlinearities by their deviation, in
        products with weights; else it is the root mean square. Zeros, as states begin with, count as 1."""
        law = self.law(var)
        size = self.sizes.get(var, law.rms) if published else law.rms
        return size if size > 0 else 1.0

    def is_last(self, equation: Equation) -> bool:
        """Whether no other product comes after one."""
        return not any(self.above.get(e.output, 0) >> equation.number & 1 and e.op in PRODUCTS and e is not equation
                       for e in self.graph.block.equations)  # fmt: skip

    def _is_residual(self, equation: Equation) -> bool:
        alone = self.graph.node(equation).kind not in ("mix", GIVEN)
        several = equation.op == "add" and len(equation.operands) == 2 and alone
        return several and self.graph.straight(equation) is None and self.skip(equation) is not None

    def skip(self, equation: Equation) -> int | None:
        """The position of the operand of an addition that the other one is made of."""
        made = self.graph.made
        for i, j in ((0, 1), (1, 0)):
            skip, branch = equation.operands[i], equation.operands[j]
            own = made.get(skip)
            if own is not None and self.above.get(branch, 0) >> own.number & 1:
                return i
        return None


def ancestors(graph: ScaleGraph) -> dict[Var, int]:
    """For every value the equations that it is made by, as bits of their numbers, its own among them."""
    above: dict[Var, int] = {}
    for equation in graph.block.equations:
        bits = 1 << equation.number
        for var in equation.operands:
            bits |= above.get(var, 0)
        above[equation.output] = bits
    return above
