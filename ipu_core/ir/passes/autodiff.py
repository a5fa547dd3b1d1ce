"""Reverse-mode differentiation of a Block: one table from operation to the cotangents of its operands."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ipu_core.ir.block import Array, Block, Equation, Literal, Type, Var
from ipu_core.ir.bodies import equations_of
from ipu_core.ir.ops import CUSTOM, OPS, SCALES, STRUCTURE
from ipu_core.ir.parameters import name_of, name_parameters, sources
from ipu_core.ir.passes.cotangents import gradient_edges, needed_values, rules_of
from ipu_core.ir.passes.given_gradients import GivenGradients
from ipu_core.ir.passes.scale_check import check_scales
from ipu_core.ir.passes.scan_gradient import Cotangents, Kept, Meet, Read, ScanGradient
from ipu_core.ir.passes.schedule import dead_code
from ipu_core.ir.precision.loss_tail import as_loss
from ipu_core.ir.pytree import LEAF, PyTree, flatten, paths, unflatten
from ipu_core.ir.regions import Scan
from ipu_core.ir.trace.builder import Builder
from ipu_core.ir.trace.eager import as_array, is_number
from ipu_core.ir.trace.full import Full
from ipu_core.ir.trace.traced import TracedArray
from ipu_core.ir.trace.tracing import interpret, trace
from ipu_core.ir.trace.values import (
    Traced,
    Value,
    reduce_sum,
    shape_of,
)
from lowprec import astype
from lowprec import float32 as FLOAT32
from lowprec.processor import in_default_state


def _value(builder: Builder, atom: Var | Literal) -> Value:
    return atom.value if isinstance(atom, Literal) else TracedArray(builder, atom)


def _spread(ct: Value, equation: Equation) -> Value:
    """The cotangent as an array where an operand is one number for all elements: its gradient is a sum over them."""
    scalars = any(equation.output.type.shape != () == var.type.shape for var in equation.operands)
    if isinstance(ct, Full) and scalars and equation.op not in STRUCTURE:
        return _value(ct.builder, ct.atom)
    return ct


def backward(builder: Builder, block: Block, seeds: Mapping[Var, Traced], parameters: dict[Var, str]) -> list[Traced]:
    """Appends the equations of the gradient of a loss and gives its value for every parameter.

    An equation is grad_weight where it belongs to the cotangent of a value made of parameters alone (the parameter,
    its transpose, a norm of it), else grad_input. Second uses of a value add their cotangents.

    Args:
        builder: what holds the equations of the Block and receives the new ones.
        block: the forward equations.
        seeds: the cotangents to begin with: of a loss 1, or what it is multiplied by.
        parameters: the inputs to differentiate for, with their names.

    Raises:
        UnbalancedScale: see `check_scales`.
    """
    pulling = _Backward(builder, block, parameters)
    if any(equation.op in SCALES for equation in equations_of(block)):
        check_scales(gradient_edges(block, pulling.needed), *seeds)
    cotangents = {var: seed for var, seed in seeds.items() if var in pulling.needed}
    pulling.pull(block.equations, cotangents, lambda var: TracedArray(builder, var), lambda *_: False)
    builder.equations = pulling.kept.placed(builder.equations)
    return [cotangents.get(var, Full(builder, 0.0, var.type.shape)) for var in parameters]


class _Backward:
    """What all equations of a Block that is differentiated share.

    Attributes:
        builder: what receives the equations of the gradients.
        pure: what is made of parameters alone.
        needed: the values that have cotangents.
        kept: what scans keep for their gradients.
    """

    def __init__(self, builder: Builder, block: Block, parameters: dict[Var, str]) -> None:
        self.builder, self.pure, self.needed = builder, sources(block, parameters), needed_values(block, parameters)
        self.kept = Kept(builder)
        self._given = GivenGradients(builder, block, self.pure, self.needed)

    def pull(self, equations: Sequence[Equation], cotangents: Cotangents, read: Read, meet: Meet) -> None:
        """Passes cotangents back through equations: see `ir.passes.scan_gradient`."""
        for equation in reversed(equations):
            if equation.region is not None:
                gradient = ScanGradient(self.builder, equation, self.needed, self.kept, read, self.pull, self._names)
                gradient.run(cotangents)
            elif meet(equation, cotangents):
                continue
            elif equation.op == CUSTOM:
                self._given.run(equation, cotangents, read)
            elif equation.output in cotangents:
                self._pass(equation, cotangents, read)

    def _names(self, atom: Var) -> Mapping[str, str | None]:
        """The role of the cotangent of a value, and the parameter that it concerns."""
        return {"role": "grad_weight" if atom in self.pure else "grad_input", "parameter": name_of(self.pure, [atom])}

    def _pass(self, equation: Equation, cotangents: Cotangents, read: Read) -> None:
        """Passes the cotangent of one equation's result on to its operands."""
        ct = _spread(cotangents.pop(equation.output), equation)
        values = [x.value if isinstance(x, Literal) else read(x) for x in equation.inputs]
        y = read(equation.output)
        for rule, atom, x in zip(rules_of(equation), equation.inputs, values, strict=True):
            if not isinstance(atom, Var) or atom not in self.needed:
                continue
            name = name_of(self.pure, [atom] if atom in self.pure else equation.operands)
            family = equation.family if equation.family != OPS[equation.op].family else None
            role = "grad_weight" if atom in self.pure else "grad_input"
            here = self.builder.scoped(
                role=role, family=family, parameter=name, layer=equation.layer, checkpoint=equation.checkpoint,
                of=equation.number,
            )  # fmt: skip
            with here, self.builder.of_line(equation.source):
                new = rule(ct, equation, y, *values)
                if shape_of(x) == () != shape_of(new):
                    new = reduce_sum(new)
                if new is not None:
                    cotangents[atom] = cotangents[atom] + new if atom in cotangents else new


def differentiate(block: Block, scale: Var | None = None, *, has_aux: bool = False) -> Block:
    """The Block of (loss, gradients): a Block's only output and its gradient for the leaves of its first argument.

    What the loss is made of is in family "loss" (see `as_loss`), and the derivative of that too.

    With a scale, a number that becomes its last input, the gradients are those of the loss times it. With `has_aux` the
    outputs after the loss are its last ones, not differentiated.

    Raises:
        ValueError: not exactly one output, or one with axes; a loop; factors of gradients (`check_scales`).
        TypeError: the first argument holds integers.
    """
    one = len(block.outputs) == 1 or has_aux
    if not one or block.outputs[0].type.shape != () or block.outputs[0].type.format == "int32":
        given = ", ".join(str(var.type) for var in block.outputs)
        raise ValueError(f"only a loss that is one number without axes can be differentiated, not ({given})")
    if any(equation.region is not None and not isinstance(equation.region, Scan) for equation in block.equations):
        raise ValueError("a Block with a loop or a branch cannot be differentiated: differentiate what its body does")
    tree = block.arguments[0] if block.arguments else PyTree(list, (0,) * len(block.inputs))
    inputs = block.inputs[: tree.leaves]
    for var in inputs:
        if var.type.format == "int32":
            raise TypeError(f"cannot differentiate for the integers {var}: {var.type}")
    parameters = dict(zip(inputs, paths(tree), strict=True))
    block = as_loss(name_parameters(block, parameters), block.outputs[0])
    builder = Builder(block)
    seed = Full(builder, 1.0, ()) if scale is None else TracedArray(builder, scale)
    gradients = backward(builder, block, {block.outputs[0]: seed}, parameters)
    shaped = [_gradient(builder, g, var) for g, var in zip(gradients, inputs, strict=True)]
    result = None if has_aux else PyTree(tuple, (0, 1), (block.result or LEAF, tree))
    loss, *aux = block.outputs
    scaled = () if scale is None else (scale,)
    return dead_code(replace(block, inputs=(*block.inputs, *scaled), outputs=(loss, *shaped, *aux), result=result,
                             equations=tuple(builder.equations), constants=builder.constants))  # fmt: skip


def _gradient(builder: Builder, gradient: Traced, var: Var) -> Var:
    if not isinstance(gradient, Full):
        return gradient.node
    constant = Var(f"gradient.{var.name}", var.type)
    builder.constants[constant] = np.full(var.type.shape, gradient.number)
    return constant


def _is_wide(x: Value) -> bool:
    """Whether constants stay as wide as they can be: for float64 arrays, and in a Block, which rounds them itself."""
    return isinstance(x, Traced) or (not is_number(x) and as_array(x).dtype == np.float64)


def _single(constant: Array) -> Array:
    """A constant that differentiation made, as a program has it: in float32."""
    return constant if constant.dtype.kind in "iu" else constant.astype(np.float32)


def _like(gradient: Value, x: Value) -> Value:
    """The gradient of an array in its dtype, rounded to nearest even."""
    if isinstance(x, Traced) or is_number(x) or as_array(x).dtype == gradient.dtype:
        return gradient
    return np.asarray(astype(gradient, as_array(x).dtype))


@in_default_state
def value_and_grad(f: Callable[..., Any] | Block, scale: Value | None = None, *, has_aux: bool = False) -> Any:
    """The value of a loss together with its gradient for the first argument.

    Args:
        f: a function of (parameters, ...) that gives a loss without axes; or its Block.
        scale: for a function, a number: the gradients are those of the loss times it, the loss is itself.
        has_aux: for a function, whether it gives (loss, anything nested), of which only the loss is differentiated; the
            result then begins with that pair.

    Returns:
        For a function, a function of the same arguments that gives (loss, gradients nested as the parameters); it can
        be called on arrays and inside a function that is traced. The gradient of an array has its dtype; where every
        array of floats is float64, so is all arithmetic. For a Block, the Block of that.

    Raises:
        ValueError: the loss has axes, or factors of its gradient alone would make that wrong (see `nn.scale`).
        TypeError: a parameter is an integer.
    """
    if isinstance(f, Block):
        return differentiate(f)

    def gradient_of(*arguments: Any) -> tuple[Value, Any]:
        leaves, tree = flatten(arguments)
        types = [x.node.type if isinstance(x, Traced) else x for x in leaves]
        forward = trace(f, *unflatten(tree, types))
        block = differentiate(forward, None if scale is None else Var("scale", Type((), FLOAT32)), has_aux=has_aux)
        if not any(_is_wide(x) for x in leaves):
            block = replace(block, constants={v: a if v in forward.constants else _single(a) for v, a in
                                              block.constants.items()})  # fmt: skip
        value, *rest = interpret(block, leaves if scale is None else [*leaves, scale])
        inputs, inner = flatten(arguments[0])
        gradients = unflatten(inner, [_like(g, x) for g, x in zip(rest, inputs, strict=False)])
        if not has_aux:
            return value, gradients
        assert forward.result is not None
        return unflatten(forward.result, [value, *rest[len(inputs) :]]), gradients

    return gradient_of
