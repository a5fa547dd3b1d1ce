"""Elementwise functions of one value: nonlinearities, gates, and numbers that the next factor takes up."""

from __future__ import annotations

import math

from ipu_core.ir.block import Equation, Literal
from ipu_core.ir.exact import EXACT
from ipu_core.ir.ops import PRODUCTS
from ipu_core.ir.unit_scaling.laws import Law, of_one, rounded
from ipu_core.ir.unit_scaling.nodes import Node
from ipu_core.ir.unit_scaling.results import Results

ACTIVATIONS = frozenset(("relu", "gelu", "tanh", "sigmoid", "erf", "sin", "cos", "select", "maximum", "minimum"))
"""Make a function of one value a nonlinearity, whose result is scaled; squares, roots and quotients alone do not."""

LINEAR = frozenset(("add", "subtract", "multiply", "divide", "negative", "convert"))
"""With numbers: leave a value of deviation 1 a multiple of it."""


def function_of_one(results: Results, equation: Equation, node: Node) -> None:
    """The rule of an elementwise equation of one value: where the function ends, its result gets the factor."""
    assert node.root is not None
    if node.root not in results.inside:
        results.inside[node.root] = results.law(node.root).root()
    operands = [x.value if isinstance(x, Literal) else results.inside[x] for x in equation.inputs]
    law = results.inside[equation.output] = of_one(EXACT[equation.op], operands)
    if not results.graph.left_by(equation.output):
        return
    if results.graph.returned_to(equation.output):
        results.grow(node, node.root, _chosen(results, equation, law).slope)
    so_far = [e for e in node.equations if e.number <= equation.number]
    bent = any(e.op in ACTIVATIONS for e in so_far)
    if not bent and any(e.op not in LINEAR for e in so_far):
        results.statistics.add(equation.output)
    if len(so_far) == 1 and is_taken_up(results, equation):
        results.dropped.add(equation.number)
        results.growth[node, node.root] = 1.0
        results.pass_on(equation, node.root)
        return
    factor = 1 / law.std if bent and law.std > 0 else 1.0
    gate, mixes = _gates(results, equation)
    if bent and mixes:
        factor = 1.0
    elif bent and gate:
        factor = results.gates[equation.output] = rounded(1 / math.sqrt(law.rms * law.std))
    results.give(equation, law, factor)
    if bent:
        results.sizes[equation.output] = law.std * factor
    together = law.mean**2 + results.common_part(node.root) * (law.line * results.law(node.root).std) ** 2
    results.common[equation.output] = min(1.0, together / max(law.rms**2, 1e-12))


def _chosen(results: Results, equation: Equation, law: Law) -> Law:
    """The law of the elements that have a gradient: of a maximum's only the largest."""
    ends = results.graph.ends(equation.output)
    if not ends or any(end.op != "reduce_max" for end in ends):
        return law
    return law.largest(equation.output.type.size // max(1, ends[0].output.type.size))


def is_taken_up(results: Results, equation: Equation) -> bool:
    """Whether a number is one that the next factor makes nothing of: of a mean, before products and dropout."""
    if equation.op not in ("multiply", "divide") or not isinstance(equation.inputs[-1], Literal):
        return False
    maker = results.graph.made.get(equation.operands[0])
    summed = maker is not None and maker.op == "reduce_sum" and maker.output not in results.statistics
    ends = results.graph.ends(equation.output)
    return equation.output.type.size > 1 and (
        summed or bool(ends and all(e.op in PRODUCTS or drops(results, e) for e in ends))
    )


def drops(results: Results, equation: Equation) -> bool:
    """Whether an equation sets elements to 0 by a mask of dropout."""
    maker = results.graph.made.get(equation.operands[0]) if equation.op == "select" else None
    return maker is not None and maker.op == "dropout_mask"


def _gates(results: Results, equation: Equation) -> tuple[bool, bool]:
    """Whether a sigmoid is used to multiply others with alone, and that in mixtures alone."""
    own = results.graph.node(equation)
    ends = [end for end in results.graph.ends(equation.output) if results.graph.node(end) is not own]
    gate = equation.op == "sigmoid" and bool(ends) and all(end.op == "multiply" for end in ends)
    return gate, gate and all(results.graph.node(end).kind == "mix" for end in ends)
