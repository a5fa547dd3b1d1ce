"""The factors of gradients: by how much the gradient of each value is multiplied, so that each begins with a size of 1.

Call p(v) by how much the gradient that is computed of a value is more than the true one. Whatever these numbers are,
all gradients are right but for them where the gradient that comes to x by way of y is multiplied by p(x) / p(y): their
product along any way to the loss is p(x). So each p can be chosen so that the gradient of its value has size 1, and
what comes by several ways is added in true proportion: no operation needs one factor for results and gradients, and the
branch of a residual addition has its share where it begins, not where it ends. Where a value is used once the factor is
that of the published table.
"""

from __future__ import annotations

import math

from ipu_core.ir.block import Var
from ipu_core.ir.unit_scaling.laws import rounded
from ipu_core.ir.unit_scaling.nodes import Node, ScaleGraph
from ipu_core.ir.unit_scaling.results import Results

SAME = 1e-9
NEAR = 1e-3  # a factor so near to 1 is none


def gradient_factors(graph: ScaleGraph, results: Results) -> dict[tuple[Node, Var], float]:
    """The factor of the gradient that a node gives its operand, where it is not 1."""
    fixed = (node for node in map(graph.node, graph.block.equations) if node.fixed)
    inside: dict[Node, float] = dict.fromkeys(fixed, 1.0)  # p within a node, before the factors of its results
    outside: dict[Var, float] = {}

    def more(var: Var) -> float:
        maker = graph.made.get(var)
        node = None if maker is None else graph.node(maker)
        if node is not None and node in inside:  # another result of the node has chosen
            return inside[node] * results.factors.get(var, 1.0)
        readers = dict.fromkeys(map(graph.node, graph.edges.get(var, ())))  # the order of a set would be chance
        ways = [way for way in readers if way is not node and way in inside]
        total = math.hypot(*(results.growth.get((way, var), 1.0) / inside[way] for way in ways))
        if not 0 < total < math.inf:
            return 1.0
        near = (inside[way] for way in ways if abs(inside[way] * total - 1) < NEAR)
        return next(near, rounded(1 / total))  # one that needs no factor

    for equation in reversed(graph.block.equations):
        node, var = graph.node(equation), equation.output
        if graph.returned_to(var):
            outside[var] = more(var)
            inside.setdefault(node, outside[var] / results.factors.get(var, 1.0))
    found = {}
    for var, readers in graph.edges.items():
        potential = outside[var] if var in outside else more(var)
        for node in dict.fromkeys(map(graph.node, readers)):
            factor = potential / inside.get(node, 1.0)
            if var not in {e.output for e in node.equations} and abs(factor - 1) > SAME:
                found[node, var] = factor
    return found
