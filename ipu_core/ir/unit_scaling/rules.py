"""The factors of results, equation by equation: one table from operation to rule."""

from __future__ import annotations

import math

import numpy as np

from ipu_core.ir.block import Equation, Literal, Var
from ipu_core.ir.exact import EXACT
from ipu_core.ir.ops import ELEMENTWISE, PRODUCTS, STRUCTURE
from ipu_core.ir.unit_scaling.additions import add, mix
from ipu_core.ir.unit_scaling.functions import LINEAR, drops, function_of_one, is_taken_up
from ipu_core.ir.unit_scaling.laws import Law, combined, normal, of_array, rounded
from ipu_core.ir.unit_scaling.nodes import GIVEN, REGIONS, Node, ScaleGraph
from ipu_core.ir.unit_scaling.product_laws import conv2d, dot
from ipu_core.ir.unit_scaling.regions import region
from ipu_core.ir.unit_scaling.results import Results, Rules


def results_of(graph: ScaleGraph, rules: Rules) -> Results:
    """The factors of a Block's results."""
    results = Results(graph, rules)
    for equation in graph.block.equations:
        if isinstance(equation.output.type.format, str):
            continue
        node = graph.node(equation)
        if node.kind == GIVEN:
            continue  # of unit size, as far as is known
        if node.kind in REGIONS:
            region(results, equation, node)
        elif node.kind == "function":
            function_of_one(results, equation, node)
        elif node.kind == "mix":
            if equation.op == "add":
                mix(results, equation, node)
        else:
            RULES.get(equation.op, _elementwise)(results, equation, node)
        statistic = not results.statistics.isdisjoint(equation.operands)
        if statistic and equation.op not in PRODUCTS and node.kind != "norm":
            results.statistics.add(equation.output)
    return results


def _move(results: Results, equation: Equation, node: Node) -> None:
    sizes = [var.type.size for var in equation.operands]
    if equation.op in ("slice", "gather", "take_along", "broadcast"):
        results.grow(node, equation.operands[0], math.sqrt(equation.output.type.size / max(1, sizes[0])))
    else:
        by = float(equation.params["factor"]) if equation.op == "scale_gradient" else 1.0
        for var in equation.operands:
            results.grow(node, var, by)
    results.pass_on(equation, equation.operands[0])
    if equation.op == "concatenate":
        results.laws[equation.output] = of_array(np.concatenate([results.law(var).few for var in equation.operands]))


def _sum(results: Results, equation: Equation, node: Node) -> None:
    (x,) = equation.operands
    law, terms = results.law(x), x.type.size // max(1, equation.output.type.size)
    results.grow(node, x, 1.0)
    apart = 1 - max(results.common_part(x), law.mean**2 / max(law.rms**2, 1e-12))
    deviation, mean = math.sqrt(terms * apart) * law.rms, terms * math.sqrt(1 - apart) * law.rms
    if _meets_itself(results, equation, x):
        results.statistics.add(equation.output)
    plain = not results.statistics.isdisjoint((x, equation.output))
    results.give(equation, normal(deviation, mean), 1.0 if plain else 1 / max(math.hypot(deviation, mean), 1e-12))


def _meets_itself(results: Results, equation: Equation, x: Var) -> bool:
    """Whether a sum is used beside what it is a sum of, as a mean that is subtracted: then it is left as it is."""
    maker = results.graph.made.get(x)
    ends = results.graph.ends(equation.output)
    ends += [after for end in ends if len(end.operands) == 1 for after in results.graph.ends(end.output)]
    others = {results.graph.shown(var) for end in ends if end.op in ELEMENTWISE for var in end.operands}
    return x in others or (maker is not None and any(
        results.above.get(var, 0) >> maker.number & 1 and not results.above[var] >> equation.number & 1
        for var in others
    ))  # fmt: skip


def _largest(results: Results, equation: Equation, node: Node) -> None:
    (x,) = equation.operands
    terms = x.type.size // max(1, equation.output.type.size)
    law = results.law(x).largest(terms).root()
    results.grow(node, x, terms**-0.5)
    results.give(equation, law, 1.0 if x in results.statistics else 1 / math.sqrt(law.rms * law.std))


def _multiply(results: Results, equation: Equation, node: Node) -> None:
    vectors = [var for var in equation.operands if results.graph.origin(var).vector]
    if len(equation.operands) == 2 and len(vectors) == 1:  # the scale of a norm, 1 at first
        other = next(var for var in equation.operands if var is not vectors[0])
        results.grow(node, other, 1.0)
        results.grow(node, vectors[0], results.law(other).rms)
        results.pass_on(equation, other)
        return
    _number(results, equation, node)
    if len(equation.operands) == 1:
        return
    gate = math.prod(results.gates.get(var, 1.0) for var in equation.operands)
    pure = any(results.graph.origin(var).constant for var in equation.operands)
    law = results.law(equation.output)
    if gate != 1:
        results.gates[equation.output] = gate
    elif not pure and results.statistics.isdisjoint(equation.operands) and law.std > 0:
        results.give(equation, normal(law.std, law.mean), 1 / law.std)


def _number(results: Results, equation: Equation, node: Node) -> None:
    """A product with a number or a quotient, which falls away where the next factor takes it up."""
    if len(equation.operands) > 1 or not is_taken_up(results, equation):
        _elementwise(results, equation, node)
        return
    results.dropped.add(equation.number)
    results.grow(node, equation.operands[0], 1.0)
    results.pass_on(equation, equation.operands[0])


def _select(results: Results, equation: Equation, node: Node) -> None:
    arrays = [x for x in equation.inputs[1:] if isinstance(x, Var)]
    if drops(results, equation) and len(arrays) == 1:
        kept = 1 - float(results.graph.made[equation.operands[0]].params["rate"])
        results.grow(node, arrays[0], math.sqrt(kept))
        results.factors[equation.output] = rounded(kept**-0.5)
    else:
        for var in arrays:
            results.grow(node, var, len(arrays) ** -0.5)
    if arrays:
        results.pass_on(equation, arrays[0])
    else:
        results.give(equation, normal())


def _scale(results: Results, equation: Equation, node: Node) -> None:
    number = equation.inputs[1]
    results.grow(node, equation.operands[0], 1.0)
    factor = number.value if isinstance(number, Literal) else 1.0
    results.give(equation, results.law(equation.operands[0]).times(factor).root())


def _elementwise(results: Results, equation: Equation, node: Node) -> None:
    """Any function of several values, left as it is."""
    laws = [x.value if isinstance(x, Literal) else results.law(x) for x in equation.inputs]
    if equation.op not in ELEMENTWISE or not all(math.isfinite(x.rms) for x in laws if isinstance(x, Law)):
        for var in equation.operands:
            results.grow(node, var, 1.0)
        results.give(equation, normal())
        return
    law, slopes = combined(EXACT[equation.op], laws)
    for x, slope in zip(equation.inputs, slopes, strict=True):
        if isinstance(x, Var):
            results.grow(node, x, slope if math.isfinite(slope) and slope > 0 else 1.0)
    results.give(equation, law if math.isfinite(law.rms) else normal())
    if equation.op not in LINEAR | {"multiply"}:
        results.statistics.add(equation.output)


RULES = {
    **dict.fromkeys(STRUCTURE, _move),
    "dot": dot,
    "conv2d": conv2d,
    "reduce_sum": _sum,
    "reduce_max": _largest,
    "add": add,
    "subtract": add,
    "multiply": _multiply,
    "divide": _number,
    "select": _select,
    "scale": _scale,
}
