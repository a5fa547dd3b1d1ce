"""Products: sums of so many products of a weight and a value, or of two values."""

from __future__ import annotations

import math

import numpy as np

from ipu_core.ir.block import Equation, Var
from ipu_core.ir.convolution import place
from ipu_core.ir.unit_scaling.laws import normal
from ipu_core.ir.unit_scaling.nodes import Node
from ipu_core.ir.unit_scaling.results import Results
from lowprec.values.windows import Windows


def dot(results: Results, equation: Equation, node: Node) -> None:
    """The rule of a matrix product."""
    a, b = equation.operands if len(equation.operands) == 2 else equation.operands * 2
    inner, columns, rows = a.type.shape[-1], b.type.shape[-1], a.type.shape[-2]
    _product(results, equation, node, (a, b), inner, (columns, rows))


def conv2d(results: Results, equation: Equation, node: Node) -> None:
    """The rule of a convolution: the places of its windows in the padding count for nothing."""
    x, weight = equation.operands
    kh, kw, inputs, outputs = weight.type.shape
    inside = kh * kw * _share_inside(place("conv2d", x.type.shape, weight.type.shape, equation.params))
    back = inside * outputs / equation.params["groups"] / math.prod(equation.params["stride"])
    places = equation.output.type.size / outputs * inside / (kh * kw)
    _product(results, equation, node, (x, weight), inside * inputs, (back, places))


def _product(
    results: Results,
    equation: Equation,
    node: Node,
    operands: tuple[Var, Var],
    inner: float,
    terms: tuple[float, float],
) -> None:
    """A sum of so many products, and for each operand of how many products its gradient is a sum."""
    data = [not results.graph.origin(var).weight for var in operands]
    sizes = [results.size(var, published=not all(data)) for var in operands]
    last = results.rules.mup and sum(data) == 1 and results.is_last(equation)
    scores = results.rules.mup and all(data) and _is_scored(results, equation)
    squares = inner * math.prod(sizes) ** 2
    if all(data):  # what all rows of one have in common is added up by the mean of the other
        pairs = zip(operands, reversed(operands), strict=True)
        together = sum(
            results.common_part(a) * results.law(a).rms ** 2 * (inner * results.law(b).mean) ** 2 for a, b in pairs
        )
        squares += together
        common = together / squares
        results.level[equation.output] = results.common_part(operands[1])
    else:
        common = max(results.common_part(var) for var in operands)
    size = math.sqrt(squares)
    factor = (inner**-0.5 if last or scores else 1.0) / size
    for var, count, other in zip(operands, terms, reversed(sizes), strict=True):
        results.grow(node, var, math.sqrt(count) * other)
    results.give(equation, normal(size), factor)
    results.common[equation.output] = common


def _is_scored(results: Results, equation: Equation) -> bool:
    """Whether a product is what a softmax is made of."""
    ends = results.graph.ends(equation.output)
    return bool(ends) and all(results.graph.node(end).kind == "softmax" for end in ends)


def _share_inside(where: Windows) -> float:
    """The share of the windows' places that lie in the image, not in its padding."""
    share = 1.0
    for axis in range(2):
        starts = np.arange(where.count[axis]) * where.stride[axis] - where.padding[axis][0]
        places = starts[:, None] + np.arange(where.kernel[axis]) * where.dilation[axis]
        share *= float(np.mean((places >= 0) & (places < where.size[axis])))
    return share
