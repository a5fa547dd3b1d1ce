"""The cotangents of what every operation reads: one table, and which values have any."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from ipu_core.ir import convolution
from ipu_core.ir.block import Block, Equation, Var
from ipu_core.ir.bodies import flat
from ipu_core.ir.exact import inner
from ipu_core.ir.gradient_rule import ways as gradient_ways
from ipu_core.ir.ops import CUSTOM, GROUP_SUM, SCALES, SET_ROW
from ipu_core.ir.passes.scale_check import Edge
from ipu_core.ir.regions import Scan
from ipu_core.ir.trace.full import Full
from ipu_core.ir.trace.values import (
    Value,
    apply,
    broadcast,
    elementwise,
    in_format,
    reduce_sum,
    reshape,
    shape_of,
    swap,
    transpose,
    where,
)
from ipu_core.ir.trace.whole_numbers import trunc

Cotangent = Callable[..., Value]
"""From (cotangent of the result, equation, result, *operands) to the cotangent of one operand."""

HALF_ROOT_TAU = 1 / math.sqrt(2 * math.pi)


def _unbroadcast(ct: Value, equation: Equation, y: Value, x: Value) -> Value:
    """Sums a cotangent over the axes along which x was repeated."""
    shape, target = shape_of(y), shape_of(x)
    new = len(shape) - len(target)
    axes = [i for i, n in enumerate(shape) if i < new or (target[i - new] == 1 and n != 1)]
    return reshape(reduce_sum(ct, axes, keepdims=False), target)


def _reduced(ct: Value, equation: Equation, x: Value) -> Value:
    """The cotangent of a reduction's result, repeated along the reduced axes."""
    axes = equation.params["axis"]
    kept = tuple(1 if axis in axes else n for axis, n in enumerate(shape_of(x)))
    return broadcast(reshape(ct, kept), shape_of(x))


def _chosen(ct: Value, chosen: Value, a: Value, b: Value) -> Value:
    """The cotangent of an operand where it was chosen of two, and half of it where both are equal."""
    return where(chosen, ct, where(elementwise("equal", a, b), 0.5 * ct, 0.0))


def _reduce_max(ct: Value, equation: Equation, y: Value, x: Value) -> Value:
    """Shared equally between the elements that are the maximum."""
    mask = elementwise("equal", x, _reduced(y, equation, x))
    count = reduce_sum(mask, equation.params["axis"], keepdims=True)
    return _reduced(ct, equation, x) * (mask / count)


def _scatter_max(ct: Value, equation: Equation, y: Value, index: Value, x: Value) -> Value:
    """Shared equally between the rows that have the maximum."""
    mask = elementwise("equal", x, apply("gather", y, index))
    count = apply("scatter_add", index, mask, rows=equation.params["rows"])
    return apply("gather", ct, index) * (mask / apply("gather", count, index))


def _gather(ct: Value, equation: Equation, y: Value, x: Value, index: Value) -> Value:
    if isinstance(ct, Full) and not ct.shape:  # of a single element: what is scattered has axes
        index, ct = reshape(index, (1,)), reshape(ct, (1,))
    return apply("scatter_add", index, ct, rows=shape_of(x)[0])


def _slice(ct: Value, equation: Equation, y: Value, x: Value) -> Value:
    start, step = equation.params["start"], equation.params["step"]
    reach = [max(0, (n - 1) * s + 1) if n else 0 for n, s in zip(shape_of(y), step, strict=True)]
    high = tuple(n - a - r for n, a, r in zip(shape_of(x), start, reach, strict=True))
    return apply("pad", ct, low=start, high=high, interior=tuple(s - 1 for s in step))


def _pad(ct: Value, equation: Equation, y: Value, x: Value) -> Value:
    return ct[inner(shape_of(x), equation.params)]


def _concatenate(position: int) -> Cotangent:
    def rule(ct: Value, equation: Equation, y: Value, *xs: Value) -> Value:
        axis = equation.params["axis"]
        start = sum(shape_of(x)[axis] for x in xs[:position])
        return ct[(slice(None),) * axis + (slice(start, start + shape_of(xs[position])[axis]),)]

    return rule


def _gelu_second(ct: Value, e: Equation, y: Value, x: Value) -> Value:
    square = elementwise("square", x)
    return ct * (elementwise("exp", square * -0.5) * HALF_ROOT_TAU * (2.0 - square))


def _convolve(op: str, a: Value, b: Value, e: Equation, **extra: Any) -> Value:
    """One of the three convolutions with an equation's parameters."""
    return apply(op, a, b, **convolution.options(e.params), **extra)


def _images(gradient: Value, weight: Value, e: Equation, x: Value) -> Value:
    return _convolve("conv2d_input_gradient", gradient, weight, e, size=shape_of(x)[1:3])


def _kernel(x: Value, gradient: Value, e: Equation, weight: Value) -> Value:
    return _convolve("conv2d_weight_gradient", x, gradient, e, kernel=shape_of(weight)[:2])


COTANGENTS: dict[str, tuple[Cotangent, ...]] = {
    "negative": (lambda ct, e, y, x: -ct,),
    "absolute": (lambda ct, e, y, x: where(x > 0.0, ct, where(x < 0.0, -ct, 0.0)),),
    "relu": (lambda ct, e, y, x: where(y, ct, 0.0),),
    "square": (lambda ct, e, y, x: (2.0 * ct) * x,),
    "reciprocal": (lambda ct, e, y, x: -ct * elementwise("square", y),),
    "sqrt": (lambda ct, e, y, x: (0.5 * ct) / y,),
    "rsqrt": (lambda ct, e, y, x: (-0.5 * ct) * (y * elementwise("square", y)),),
    "exp": (lambda ct, e, y, x: ct * y,),
    "log": (lambda ct, e, y, x: ct / x,),
    "tanh": (lambda ct, e, y, x: ct * (1.0 - elementwise("square", y)),),
    "erf": (lambda ct, e, y, x: ct * (elementwise("exp", -elementwise("square", x)) * (2 / math.sqrt(math.pi))),),
    "sigmoid": (lambda ct, e, y, x: ct * (y * (1.0 - y)),),
    "sin": (lambda ct, e, y, x: ct * elementwise("cos", x),),
    "cos": (lambda ct, e, y, x: -ct * elementwise("sin", x),),
    "gelu": (lambda ct, e, y, x: ct * elementwise("gelu_gradient", x),),
    "gelu_gradient": (_gelu_second,),
    "add": (lambda ct, e, y, a, b: ct, lambda ct, e, y, a, b: ct),
    "subtract": (lambda ct, e, y, a, b: ct, lambda ct, e, y, a, b: -ct),
    "multiply": (lambda ct, e, y, a, b: ct * b, lambda ct, e, y, a, b: ct * a),
    "scale": (lambda ct, e, y, x, s: ct, lambda *_: None),
    "scale_gradient": (lambda ct, e, y, x: ct * e.params["factor"],),
    "divide": (lambda ct, e, y, a, b: ct / b, lambda ct, e, y, a, b: -(ct / b) * y),
    "maximum": (
        lambda ct, e, y, a, b: _chosen(ct, elementwise("greater", a, b), a, b),
        lambda ct, e, y, a, b: _chosen(ct, elementwise("greater", b, a), a, b),
    ),
    "minimum": (
        lambda ct, e, y, a, b: _chosen(ct, elementwise("greater", b, a), a, b),
        lambda ct, e, y, a, b: _chosen(ct, elementwise("greater", a, b), a, b),
    ),
    "select": (
        lambda ct, e, y, c, a, b: None,
        lambda ct, e, y, c, a, b: where(c, ct, 0.0),
        lambda ct, e, y, c, a, b: where(c, 0.0, ct),
    ),
    "scaled_add": (
        lambda ct, e, y, a, b, s: ct,
        lambda ct, e, y, a, b, s: ct * s,
        lambda ct, e, y, a, b, s: ct * b,
    ),
    "fmod": (lambda ct, e, y, a, b: ct, lambda ct, e, y, a, b: -ct * trunc(a / b)),
    "convert": (lambda ct, e, y, x: in_format(ct, x.format),),
    "to_blocks": (lambda ct, e, y, x: in_format(ct, x.format),),
    "hadamard": (lambda ct, e, y, x: apply("hadamard", ct, **e.params),),
    # Every replica's cotangent reaches every replica's value.
    "all_reduce": (lambda ct, e, y, x: apply("all_reduce", ct, **e.params),),
    GROUP_SUM: (lambda ct, e, y, x: apply(GROUP_SUM, ct, **e.params),),
    "reduce_sum": (lambda ct, e, y, x: _reduced(ct, e, x),),
    "reduce_max": (_reduce_max,),
    "dot": (lambda ct, e, y, a, b: apply("dot", ct, swap(b)), lambda ct, e, y, a, b: apply("dot", swap(a), ct)),
    "scaled_dot": (
        lambda ct, e, y, a, b, s: apply("scaled_dot", ct, swap(b), s),
        lambda ct, e, y, a, b, s: apply("scaled_dot", swap(a), ct, s),
        lambda ct, e, y, a, b, s: reduce_sum(ct * apply("dot", a, b)),
    ),
    "conv2d": (lambda ct, e, y, x, w: _images(ct, w, e, x), lambda ct, e, y, x, w: _kernel(x, ct, e, w)),
    "conv2d_input_gradient": (
        lambda ct, e, y, g, w: _convolve("conv2d", ct, w, e),
        lambda ct, e, y, g, w: _kernel(ct, g, e, w),
    ),
    "conv2d_weight_gradient": (
        lambda ct, e, y, x, g: _images(g, ct, e, x),
        lambda ct, e, y, x, g: _convolve("conv2d", x, ct, e),
    ),
    "transpose": (lambda ct, e, y, x: transpose(ct, tuple(np.argsort(e.params["perm"]))),),
    "reshape": (lambda ct, e, y, x: reshape(ct, shape_of(x)),),
    "broadcast": (_unbroadcast,),
    "slice": (_slice,),
    "pad": (_pad,),
    "gather": (_gather, lambda *_: None),
    "scatter_add": (lambda *_: None, lambda ct, e, y, i, x: apply("gather", ct, i)),
    "scatter_max": (lambda *_: None, _scatter_max),
    SET_ROW: (
        lambda ct, e, y, row, i, x: apply("gather", ct, i),
        lambda *_: None,
        lambda ct, e, y, row, i, x: apply(SET_ROW, np.zeros(shape_of(row), np.float32), i, ct),
    ),
    "take_along": (lambda ct, e, y, x, i: apply("put_along", i, ct, size=shape_of(x)[-1]), lambda *_: None),
    "put_along": (lambda *_: None, lambda ct, e, y, i, x: apply("take_along", ct, i)),
}
"""Operations that are missing are constant almost everywhere: step, floor, rint, greater, equal, one_hot, top_indices,
dropout_mask, stop_gradient; or are made of what has no gradient: all_reduce_max, first_replica, each_replica. Where
there is no derivative: equal elements of a maximum or minimum share its gradient equally (of topk the chosen ones have
it), that of absolute and relu at 0 is 0. What shards are made of, reduce_scatter and all_gather, stands behind all
gradients."""


def rules_of(equation: Equation) -> tuple[Cotangent, ...]:
    if equation.op == "concatenate":
        return tuple(_concatenate(position) for position in range(len(equation.inputs)))
    return COTANGENTS.get(equation.op, ())


def needed_values(block: Block, parameters: Iterable[Var]) -> set[Var]:
    """The values that depend on a parameter: only these have cotangents."""
    needed = set(parameters)
    _add_needed(block.equations, needed)
    return needed


def _add_needed(equations: Iterable[Equation], needed: set[Var]) -> None:
    for equation in equations:
        if isinstance(scan := equation.region, Scan):
            pairs = list(zip(scan.carries, scan.starts, strict=True))
            needed |= {old for (old, _), start in pairs if start in needed}
            known = -1
            while known != len(needed):  # what one place leaves is what the next begins with
                known = len(needed)
                _add_needed(scan.body.equations, needed)
                needed |= {old for (old, new), _ in pairs if new in needed}
            continue
        ways = gradient_ways(equation) if equation.op == CUSTOM else equation.operands if rules_of(equation) else ()
        if any(var in needed for var in ways):
            needed.add(equation.output)


def gradient_edges(block: Block, needed: set[Var]) -> Iterator[Edge]:
    """The ways that gradients take, in the order of the equations."""
    for equation in block.equations:
        if equation.region is not None:
            for each in flat(equation.region.body.equations):
                if each.op in SCALES and Edge(each, each.operands[0]).factor != 1:
                    raise ValueError(
                        f"{each.name} in a scan: a factor of the gradient alone would count at every place; unroll=True"
                    )
            yield from (
                Edge(equation, var, new) for new in equation.outputs for var in equation.operands if var in needed
            )
            continue
        if equation.op == CUSTOM:
            yield from (Edge(equation, var) for var in gradient_ways(equation) if var in needed)
        for position, atom in enumerate(equation.inputs if rules_of(equation) else ()):
            if isinstance(atom, Var) and atom in needed and (equation.op, position) != ("select", 0):
                yield Edge(equation, atom)
