"""Models under unit scaling, the scale of their values and gradients at first, and gradients without factors."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from ipu_core import Block, nn, trace, unit_scale, value_and_grad
from ipu_core.ir.block import Equation, Literal, Var
from ipu_core.ir.ops import STRUCTURE
from ipu_core.ir.pytree import flatten, map_leaves
from ipu_core.ir.run.evaluate import as_exact, exact_result, run
from ipu_core.study.models import cnn, lm, mlp
from ipu_core.study.models.size import Size
from lowprec import Key

CLASSES = 10


class Model(NamedTuple):
    """A loss, parameters to be drawn anew, and a batch of normal numbers and random labels."""

    loss: Callable[..., Any]
    params: Any
    batch: Any


def data(*shape: int) -> Any:
    return np.random.default_rng(5).normal(size=shape).astype(np.float32)


def labels(*shape: int, classes: int = CLASSES) -> Any:
    return np.random.default_rng(6).integers(0, classes, shape).astype(np.int32)


def zeros(*shape: int) -> Any:
    return np.zeros(shape, np.float32)


def perceptron(widths: tuple[int, ...] = (64, 256, 256, CLASSES), rows: int = 128) -> Model:
    return Model(mlp.loss, mlp.initial(widths, 0), (data(rows, widths[0]), labels(rows)))


def convolutional(rows: int = 64) -> Model:
    params = cnn.initial(cnn.kernels((64, 16, 32, CLASSES)), 0)
    return Model(cnn.loss, params, (data(rows, 64), labels(rows)))


def recurrent(kind: str = "lstm", width: int = 96, places: int = 8, rows: int = 96) -> Model:
    """One whose state begins with normal numbers, not zeros: after these the first step's are smaller."""
    runs = {"lstm": 4, "gru": 3}[kind] * width
    cell = {"input": zeros(64, runs), "hidden": zeros(width, runs), "bias": zeros(runs)}
    if kind == "gru":
        cell["hidden_bias"] = zeros(runs)

    def loss(params: Any, batch: Any) -> Any:
        x, y, *state = batch
        hidden, _ = getattr(nn, kind)(params["cell"], x, state[0] if kind == "gru" else tuple(state))
        return nn.softmax_cross_entropy(hidden @ params["head"], y)

    states = [data(2, rows, width)[i] for i in range(2)]
    batch = (data(rows, places, 64), labels(rows, places), *states[: 1 if kind == "gru" else 2])
    return Model(loss, {"cell": cell, "head": zeros(width, CLASSES)}, batch)


def transformer(layers: int = 4, width: int = 64, heads: int = 4, context: int = 64, rows: int = 8) -> Model:
    params = lm.initial(lm.layout(Size(layers=layers, width=width, heads=heads, context=context)), 0)
    x, y = labels(2, rows, context, classes=256)
    return Model(functools.partial(lm.loss, heads), params, (x, y))


def block_of(model: Model, **rules: Any) -> tuple[Block, list[Any]]:
    """The Block of the loss under unit scaling, and its inputs."""
    params = nn.unit_parameters(1, model.params)
    return trace(unit_scale(model.loss, **rules), params, model.batch), flatten((params, model.batch))[0]


def without_gradient_factors(block: Block) -> Block:
    """The same function whose gradient is the true one: factors of results have them too, others are 1."""

    def plain(equation: Equation) -> Equation:
        if equation.op == "scale":
            return replace(equation, op="multiply")
        if equation.op == "scale_gradient":
            return replace(equation, params=type(equation.params)({"factor": 1.0}))
        return equation

    return replace(block, equations=tuple(map(plain, block.equations)))


class Scale(NamedTuple):
    """The standard deviation of what an equation gives."""

    equation: Equation
    deviation: float


def scales(block: Block, inputs: list[Any], parameters: int) -> list[Scale]:
    """Of the Block of a loss: all its activations and the gradients of activations, in float64.

    Left out are what is float32 on its way (losses, norms, softmax), masks, derivatives that a gradient is multiplied
    with, single terms of a sum that is scaled as a whole, and what its own factor follows.
    """
    block = value_and_grad(block)
    values: dict[int, Any] = {}

    def rule(equation: Equation, operands: list[Any], number: int) -> Any:
        values[equation.number] = exact_result(equation, operands, Key(1))
        return values[equation.number]

    run(block, inputs, lambda x, _: as_exact(x), rule)
    readers: dict[Var, list[Equation]] = {}
    for equation in block.equations:
        for var in equation.operands:
            readers.setdefault(var, []).append(equation)

    def ends(var: Var) -> Iterator[Equation]:
        for reader in readers.get(var, ()):
            if reader.op in STRUCTURE:
                yield from ends(reader.output)
            else:
                yield reader

    of_data, of_loss = set(block.inputs[parameters:]), set[Var]()
    found = []
    for equation in block.equations:
        if not of_data.isdisjoint(equation.operands) or equation.op == "gather":
            of_data.add(equation.output)
        if equation.role != "forward" and (equation.family == "loss" or not of_loss.isdisjoint(equation.operands)):
            of_loss.add(equation.output)
        if (
            equation.role not in ("forward", "grad_input")
            or equation.family in ("loss", "norm", "softmax", "structure")
            or equation.op in MASKS
            or equation.output.type.size < LEAST
            or equation.output not in (of_data if equation.role == "forward" else of_loss)
            or _is_part(equation, list(ends(equation.output)))
        ):
            continue
        found.append(Scale(equation, float(np.std(values[equation.number]))))
    return found


MASKS = frozenset(("equal", "greater", "step", "one_hot", "dropout_mask"))
LEAST = 64  # elements of which a deviation says something


def _is_part(equation: Equation, ends: list[Equation]) -> bool:
    """Whether what follows is its own factor, or a sum of it and others."""
    if equation.role == "forward":
        term = equation.op == "scale" and all(end.op == "add" for end in ends)
        return term or any(end.op == "scale" for end in ends)
    return bool(ends) and all(
        end.role != "forward" and (end.op == "add" or any(isinstance(x, Literal) for x in end.inputs)) for end in ends
    )


def leaves_of(tree: Any) -> list[Any]:
    return flatten(map_leaves(np.asarray, tree))[0]
