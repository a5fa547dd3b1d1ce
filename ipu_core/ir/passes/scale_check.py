"""Whether gradients are right where equations have another factor backwards than forwards.

A factor that only the gradient has (or only the result) multiplies the gradient of everything before it that reaches
the loss by way of its edge. What reaches the loss by another way too then adds contributions of different scales: the
gradient is wrong, and nothing shows it. It is right, up to one positive constant per parameter, exactly where the
product of these factors is the same along every way to the loss (after Blake, Orr and Luschi, arXiv 2303.11257,
proposition 5.1: the edge of a factor on its own must be a cut-edge, a bridge, of the graph).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ipu_core.ir.block import Equation, Literal, Var

SAME = 1e-9  # relative difference of products of the same factors in another order


class UnbalancedScale(ValueError):
    """A factor of the gradient alone on one of several ways to the loss."""

    def __init__(self, *args: object) -> None:  # for inspect.signature, which knows none of Python's own
        super().__init__(*args)


class Edge(NamedTuple):
    """The way of a gradient from the result of an equation, or from one of a region's, to one of its operands."""

    equation: Equation
    operand: Var
    of: Var | None = None

    @property
    def result(self) -> Var:
        """What the gradient comes from."""
        return self.equation.output if self.of is None else self.of

    @property
    def factor(self) -> float:
        """The factor of the gradient over that of the result."""
        if self.equation.op == "scale_gradient":
            return float(self.equation.params["factor"])
        if self.equation.op == "scale":
            number = self.equation.inputs[1]
            assert isinstance(number, Literal)
            return 1 / number.value
        return 1.0


def arriving(edges: Iterable[Edge], *losses: Var) -> list[Edge]:
    """The edges by way of which a gradient of the loss comes, the last ones first.

    Args:
        edges: in the order of their equations. Some lead nowhere: to what is compared, or has its gradient stopped.
        losses: where gradients begin.
    """
    reached, found = {*losses}, []
    for edge in reversed(list(edges)):
        if edge.result in reached:
            reached.add(edge.operand)
            found.append(edge)
    return found


def check_scales(edges: Iterable[Edge], *losses: Var) -> None:
    """Refuses factors with which a gradient is wrong.

    Args:
        edges: of all values that depend on a parameter, in the order of their equations.
        losses: where gradients begin.

    Raises:
        UnbalancedScale: with the value, the edge and its line.
    """
    products: dict[Var, float] = dict.fromkeys(losses, 1.0)
    ways: dict[Var, Edge] = {}
    for edge in arriving(edges, *losses):
        product = products[edge.result] * edge.factor
        if edge.operand not in products:
            products[edge.operand], ways[edge.operand] = product, edge
        elif not math.isclose(product, products[edge.operand], rel_tol=SAME):
            raise UnbalancedScale(_refusal(edge, ways))


def _refusal(edge: Edge, ways: dict[Var, Edge]) -> str:
    one, other = [edge, *_way(edge.result, ways)], list(_way(edge.operand, ways))
    alone = [e for e in (*one, *other) if e.factor != 1 and (e in one) != (e in other)]
    factors = "; ".join(f"{_words(e)} times {e.factor:.6g}" for e in alone)
    return (
        f"the gradient of {edge.operand} would be wrong: it reaches the loss by several ways, and only one of them has "
        f"{factors}. A factor of the gradient alone must be on a bridge, the only way to the loss of all that is "
        "before it, or be matched by as much on every other way"
    )


def _way(var: Var, ways: dict[Var, Edge]) -> Iterator[Edge]:
    """The edges from a value to the loss that were found first."""
    while var in ways:
        yield ways[var]
        var = ways[var].result


def _words(edge: Edge) -> str:
    where = f" ({edge.equation.source})" if edge.equation.source else ""
    return f"{edge.operand} -> {edge.equation.name}{where}"
