"""Layers whose inputs are made again from their outputs, so that no gradient needs them kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ipu_core.ir.block import Block, Type, Var
from ipu_core.ir.passes.autodiff import backward
from ipu_core.ir.passes.schedule import dead_code
from ipu_core.ir.pytree import flatten, unflatten
from ipu_core.ir.trace.builder import Builder
from ipu_core.ir.trace.custom import with_rule
from ipu_core.ir.trace.full import Full
from ipu_core.ir.trace.traced import TracedArray
from ipu_core.ir.trace.tracing import interpret, traced_part
from ipu_core.ir.trace.values import Traced, Value, elementwise, scope, shape_of
from lowprec.checks import shown

Branch = Callable[[Any, Value], Value]
"""(parameters, an array) -> an array."""


def reversible(f: Branch, g: Branch) -> Callable[[Any, Any, Value, Value], tuple[Value, Value]]:
    """A reversible residual layer: (params_f, params_g, x1, x2) -> (y1, y2), y1 = x1 + f(x2) and y2 = x2 + g(y1).

    Its gradient makes the inputs again, x2 = y2 - g(y1) and x1 = y1 - f(x2), and what f and g compute on the way, as
    Gomez et al. do (arXiv 1707.04585, 2017). Layers that follow one another at once keep nothing but the results of the
    last: each takes what the one after it made again. That is the value but for rounding, which the gradients have too.
    What is made again is computed as the forward pass is, with random bits of its own.

        layer = nn.reversible(lambda p, x: nn.relu(x @ p), lambda p, x: nn.relu(x @ p))
        for weights_f, weights_g in params["layers"]:
            x1, x2 = layer(weights_f, weights_g, x1, x2)

    Args:
        f: (params_f, x2) -> an array of x1's shape; a traced value that it uses must be in its arguments.
        g: (params_g, y1) -> an array of x2's shape; likewise.

    Raises:
        TypeError: no functions.
        ValueError: when it is called, another shape; dropout in a function, whose mask would be drawn anew.
    """
    for name, function in (("f", f), ("g", g)):
        if not callable(function):
            raise TypeError(f"nn.reversible takes two functions; {name} is {shown(function)}")

    def reversible(params_f: Any, params_g: Any, x1: Value, x2: Value) -> Any:
        y1 = elementwise("add", x1, _like("f", f(params_f, x2), "x1", x1))
        y2 = elementwise("add", x2, _like("g", g(params_g, y1), "x2", x2))
        return (y1, y2), (params_f, params_g, y1, y2)

    def undone(kept: Any, dy: Any) -> Any:
        params_f, params_g, y1, y2 = kept
        g1, (of_g, new1) = _derived(g, params_g, y1, dy[1])
        with scope(y2, role="forward"):
            x2 = elementwise("subtract", y2, g1)
        dx1 = dy[0] if new1 is None else elementwise("add", dy[0], new1)
        f2, (of_f, new2) = _derived(f, params_f, x2, dx1)
        with scope(y1, role="forward"):
            x1 = elementwise("subtract", y1, f2)
        dx2 = dy[1] if new2 is None else elementwise("add", dy[1], new2)
        return (of_f, of_g, dx1, dx2), (None, None, x1, x2)

    def layer(params_f: Any, params_g: Any, x1: Value, x2: Value) -> tuple[Value, Value]:
        y1, y2 = with_rule(reversible, undone, (params_f, params_g, x1, x2), again=True)
        return y1, y2

    return layer


def _like(name: str, result: Any, of: str, x: Value) -> Value:
    if not isinstance(result, Traced) and not hasattr(result, "shape"):
        raise TypeError(f"nn.reversible: {name} must give an array, not {shown(result)}")
    if shape_of(result) != shape_of(x):
        raise ValueError(f"nn.reversible: {name} gives the shape {shape_of(result)}, {of} has {shape_of(x)}")
    return result


def _derived(f: Branch, params: Any, x: Value, dy: Value) -> tuple[Value, tuple[Any, Value | None]]:
    """The result of a function, and for its cotangent those of the arguments; None where there is none."""
    part = traced_part(f, params, x, role="forward")
    block = part.block([part.result])
    if any("operation" in equation.params for equation in block.equations):
        raise ValueError(
            "nn.reversible: f and g are computed again for the gradient, where dropout would draw another mask; put it "
            "before the layer or after it"
        )
    builder, seed = Builder(block), Var("cotangent", Type(shape_of(dy), dy.format))
    floats = {var: "" for var in block.inputs if not isinstance(var.type.format, str)}
    found = dict(
        zip(floats, backward(builder, block, {block.outputs[0]: TracedArray(builder, seed)}, floats), strict=True)
    )
    given = [var for var in block.inputs if var in found and not isinstance(found[var], Full)]
    outputs = (block.outputs[0], *(found[var].node for var in given))
    whole = Block((*block.inputs, seed), outputs, tuple(builder.equations), builder.constants)
    y, *cotangents = interpret(dead_code(whole), [*part.given, dy])
    by_input = dict(zip(given, cotangents, strict=True))
    inputs = iter(block.inputs)
    leaves, tree = flatten((params, x))
    made = [by_input.get(next(inputs)) if isinstance(leaf, Traced) else None for leaf in leaves]
    of_params, of_x = unflatten(tree, made)
    return y, (of_params, of_x)
