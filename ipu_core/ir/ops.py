"""The operations of a Block: one table from name to kind, family and type rule."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ipu_core.ir import convolution, shapes
from ipu_core.ir.block import Format, Literal, Params, Type, format_name, is_wide
from ipu_core.ir.convolution import Shape
from ipu_core.ir.shapes import Argument, ShapeRule
from lowprec import FloatFormat
from lowprec import float32 as FLOAT32
from lowprec import float64 as FLOAT64

INT32 = "int32"
CUSTOM = "custom_gradient"
"""A result whose gradient is given, then what it is a function of, and what its gradient reads: see `ir.gradient_rule`.
It is the result as it is."""

GROUP_SUM = "group_all_reduce"
"""A sum over neighbouring replicas in the middle of their passes, with which each goes on; COLLECTIVES are of all of
them, once, behind their passes."""
SET_ROW = "set_row"
"""A row, the place where it goes, and the table that is otherwise as it was: what a place of a scan leaves."""

EACH_REPLICA = "each_replica"
"""What each replica has of its own for the host, which reads all of it; the program goes on with the first one's."""

Kind = typing.Literal[
    "elementwise",
    "product",
    "convolution",
    "reduction",
    "scatter",
    "view",
    "move",
    "mask",
    "order",
    "blocks",
    "collective",
    "group",
]
"""What an operation does: one function of elements that lie alike, a product or sum of many, a view of an array or a
copy of some of its elements, 0 and 1 made of something else, the order of elements as int32 indices, blocks of
neighbours, which share a scale or are rotated, or what all replicas of the program make of what each of them has."""


@dataclass(frozen=True, slots=True)
class Op:
    """One operation.

    Attributes:
        name: as printed.
        kind: what it does, which the sets behind the table are derived from.
        family: the default family, which the precision table reads.
        arity: number of inputs; None for any number.
        shape: the shape of the result from the operands' types, or ValueError in words.
        exact: the result is one of the operand's values, 0 or 1, or the whole number beside one (`WHOLE_NUMBERS`), so
            it never rounds in the operand's format.
        integers: positions of the operands that are int32.
        either: positions of operands that may be floats or int32 numbers, all of one kind. The result is of that kind,
            but a comparison gives truth values, floats, and a conversion what it is asked for.
        params: names of its parameters, all needed.
        options: names of those that may be missing.
        neutral: numbers that change nothing as an operand, by position.
        part: a view that leaves elements out.
    """

    name: str
    kind: Kind
    family: str
    arity: int | None
    shape: ShapeRule
    exact: bool = False
    integers: tuple[int, ...] = ()
    either: tuple[int, ...] = ()
    params: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    neutral: Mapping[int, float] = field(default_factory=dict)
    part: bool = False


def _elementwise_op(name: str, arity: int = 1, family: str = "elementwise", **facts: Any) -> Op:
    return Op(name, "elementwise", family, arity, shapes.elementwise, **facts)


def _structural(name: str, kind: Kind, shape: ShapeRule, *params: str, arity: int | None = 1, **facts: Any) -> Op:
    return Op(name, kind, "structure", arity, shape, exact=True, params=params, **facts)


def _convolution_op(name: str, *params: str) -> Op:
    return Op(name, "convolution", "conv", 2, shapes.convolution(name), params=(*convolution.PARAMS, *params))


OPS = {op.name: op for op in (
    *(_elementwise_op(name, exact=True) for name in ("negative", "absolute", "relu", "step", "floor", "rint")),
    *(_elementwise_op(name, 2, exact=True, either=(0, 1)) for name in ("maximum", "minimum", "greater", "equal")),
    _elementwise_op("select", 3, exact=True, either=(1, 2)),
    _elementwise_op("square"),
    _elementwise_op("add", 2, neutral={0: 0, 1: 0}),
    _elementwise_op("subtract", 2, neutral={1: 0}),
    _elementwise_op("multiply", 2, neutral={0: 1, 1: 1}),
    _elementwise_op("scale", 2, neutral={1: 1}),
    *(_elementwise_op(name, 1, "nonlinearity") for name in (
        "reciprocal", "sqrt", "rsqrt", "exp", "log", "tanh", "erf", "sigmoid", "sin", "cos", "gelu", "gelu_gradient",
    )),
    _elementwise_op("divide", 2, "nonlinearity", neutral={1: 1}),
    _elementwise_op("fmod", 2, "nonlinearity"),
    _elementwise_op("scaled_add", 3, "scaled_add"),
    Op("convert", "elementwise", "cast", 1, shapes.same, exact=True, either=(0,), options=("rounding", "operation")),
    Op("dot", "product", "matmul", 2, shapes.dot),
    Op("scaled_dot", "product", "matmul", 3, shapes.scaled_dot),
    _convolution_op("conv2d"),
    _convolution_op("conv2d_input_gradient", "size"),
    _convolution_op("conv2d_weight_gradient", "kernel"),
    Op("reduce_sum", "reduction", "reduction", 1, shapes.reduce, params=("axis", "keepdims"), options=("shards",)),
    Op("reduce_max", "reduction", "reduction", 1, shapes.reduce_max, exact=True, params=("axis", "keepdims")),
    Op(
        "scatter_add", "scatter", "reduction", 2, shapes.scatter, integers=(0,), params=("rows",),
        options=("accumulation",),
    ),
    Op("scatter_max", "scatter", "reduction", 2, shapes.scatter, exact=True, integers=(0,), params=("rows",)),
    Op("put_along", "scatter", "reduction", 2, shapes.put_along, integers=(0,), params=("size",)),
    _structural("transpose", "view", shapes.transpose, "perm"),
    _structural("reshape", "view", shapes.reshape, "shape"),
    _structural("broadcast", "view", shapes.broadcast, "shape"),
    _structural("slice", "view", shapes.slice, "start", "stop", "step", part=True),
    _structural("stop_gradient", "view", shapes.same),
    _structural("scale_gradient", "view", shapes.same, "factor"),
    _structural(CUSTOM, "view", shapes.same, "rule", "result", arity=None),
    _structural("concatenate", "move", shapes.concatenate, "axis", arity=None),
    _structural("pad", "move", shapes.pad, "low", "high", "interior"),
    _structural("gather", "move", shapes.gather, arity=2, integers=(1,), either=(0,)),
    _structural("take_along", "move", shapes.take_along, arity=2, integers=(1,), either=(0,)),
    _structural(SET_ROW, "move", shapes.set_row, arity=3, integers=(1,), either=(0, 2)),
    Op("top_indices", "order", "elementwise", 1, shapes.top_indices, exact=True, params=("k",)),
    Op("to_blocks", "blocks", "cast", 1, shapes.to_blocks, params=("format", "axis", "rule")),
    Op("hadamard", "blocks", "cast", 1, shapes.hadamard, params=("axis", "block")),
    Op("all_reduce", "collective", "gradient_sum", 1, shapes.same, params=("replicas", "collective")),
    Op(GROUP_SUM, "group", "reduction", 1, shapes.same, params=("replicas", "collective")),
    Op("reduce_scatter", "collective", "gradient_sum", 1, shapes.shard, params=("replicas", "collective")),
    Op("all_gather", "collective", "structure", 1, shapes.gathered, exact=True, params=("replicas", "shape")),
    Op("all_reduce_max", "collective", "reduction", 1, shapes.same, exact=True, params=("replicas",)),
    Op("first_replica", "collective", "structure", 1, shapes.same, exact=True, params=("replicas",)),
    Op(EACH_REPLICA, "collective", "structure", 1, shapes.same, exact=True, params=("replicas",)),
    Op("dropout_mask", "mask", "elementwise", 1, shapes.same, exact=True, params=("rate", "operation")),
    Op("one_hot", "mask", "elementwise", 1, shapes.one_hot, exact=True, integers=(0,), params=("classes",)),
)}  # fmt: skip
"""Every operation by name."""


def _of(*kinds: Kind) -> frozenset[str]:
    return frozenset(name for name, op in OPS.items() if op.kind in kinds)


ELEMENTWISE = _of("elementwise")
"""Compute an array of their own, element by element where their operands of that shape lie."""

SCALES = frozenset(("scale", "scale_gradient"))
"""Have another factor backwards than forwards: a result that is multiplied, a gradient that is."""

COMPUTED_AS: Mapping[str, str] = {name: name for name in ELEMENTWISE} | {"convert": "identity", "scale": "multiply"}
"""What the machine does for each: "scale" is a multiplication that its gradient passes by."""

VIEWS = _of("view")
"""Cost nothing where strides can express them: the operand's memory seen otherwise."""

WHOLE_VIEWS = frozenset(name for name in VIEWS if not OPS[name].part)
STRUCTURE = _of("view", "move")
"""Move elements without looking at them; the result has the operand's format."""

CONVOLUTIONS = _of("convolution")
GATHERS = frozenset(("gather", "take_along"))
"""Moves whose second operand says where from."""

DOTS = _of("product")
"""Products of matrices; those with a scale, a power of two, multiply it in before anything is rounded."""

COLLECTIVES = _of("collective")
"""Of what each of R replicas of a program has: the sum in the order of a `lowprec.Collective`, whole or a shard of it
for each, what all have one after another, the largest, what the first has, or what each has, of which the program goes
on with the first one's and the host reads all. Where a program runs alone all replicas have the same, and it is the
first."""

LARGEST = frozenset(("reduce_max", "scatter_max", "all_reduce_max", "first_replica", EACH_REPLICA, "all_gather"))
"""Give one of the values of their last operand, in its format."""

PRODUCTS = DOTS | CONVOLUTIONS
PLANNED = _of("product", "convolution", "reduction")
"""Make one element of many: they have a place on tiles, and the sums an order."""

COMPARISONS = frozenset(("greater", "equal"))
"""Give truth values, 0 and 1, of floats and of int32 numbers."""

WHOLE_NUMBERS = frozenset(("floor", "rint"))
"""Give whole numbers, which formats of a small range need not have."""

SUMS = frozenset(name for name in PLANNED if not OPS[name].exact)
"""Have an accumulator with a format of its own."""


def promote(formats: list[Format]) -> FloatFormat:
    """The format of a result nobody asked for: the operands' own if they agree, else float32; float64 for wide ones."""
    floats = [f for f in formats if isinstance(f, FloatFormat)]
    if floats and all(f is floats[0] or f == floats[0] for f in floats):
        return floats[0]
    return FLOAT64 if any(map(is_wide, floats)) else FLOAT32


def check(name: str, operands: tuple[Argument, ...], params: Params) -> Shape:
    """The shape of the result of the operation of that name on such operands.

    Raises:
        ValueError: unknown operation, wrong number of operands, other parameters, shapes that do not fit.
        TypeError: an integer where a float is needed, or the other way round.
    """
    if name not in OPS:
        raise ValueError(f"unknown operation {name!r}; there are {', '.join(sorted(OPS))}")
    op = OPS[name]
    if op.arity is not None and len(operands) != op.arity:
        raise ValueError(f"{name}: {op.arity} operands, not {len(operands)}")
    if not set(op.params) <= set(params) <= {*op.params, *op.options}:
        takes = ", ".join((*op.params, *op.options)) or "none"
        raise ValueError(f"{name}: its parameters are {takes}; given were {', '.join(params) or 'none'}")
    _check_kinds(op, operands)
    try:
        return op.shape(operands, params)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def _check_kinds(op: Op, operands: tuple[Argument, ...]) -> None:
    """Refuses integers where floats are needed, and the other way round."""
    kinds = [isinstance(x, Type) and isinstance(x.format, str) for x in operands]
    if not op.integers and not any(kinds):
        return
    for position, (operand, integer) in enumerate(zip(operands, kinds, strict=True)):
        free = position in op.either or (op.name in STRUCTURE and not op.integers)
        if integer != (position in op.integers) and not free:
            wanted = (
                "int32 numbers" if position in op.integers else "floats (int32 numbers are compared, index and label)"
            )
            given = format_name(operand.format) if isinstance(operand, Type) else f"the number {operand}"
            raise TypeError(f"{op.name}: operand {position} must be {wanted}, not {given}")
    if not of_integers(op.name, operands):
        return
    for position in op.either:
        operand = operands[position]
        if isinstance(operand, Type) and not kinds[position]:
            raise TypeError(
                f"{op.name}: int32 and {format_name(operand.format)} do not mix; convert the integers first"
            )
        if isinstance(operand, Literal) and op.name not in COMPARISONS and not _is_int32(operand.value):
            raise TypeError(f"{op.name}: the number {operand} beside int32 numbers must be one too")


def _is_int32(number: float) -> bool:
    return number.is_integer() and -(2**31) <= number < 2**31


def of_integers(name: str, operands: tuple[Argument, ...]) -> bool:
    """Whether an operation of floats or int32 numbers has the latter."""
    kinds = (operands[position] for position in OPS[name].either)
    return any(isinstance(x, Type) and isinstance(x.format, str) for x in kinds)


def gives_integers(name: str, operands: tuple[Argument, ...]) -> bool:
    """Whether the result of an operation that does not only move elements is int32."""
    chosen = name not in COMPARISONS | {"convert"} and of_integers(name, operands)
    return OPS[name].kind == "order" or (chosen and name not in STRUCTURE)


def infer(name: str, operands: tuple[Argument, ...], params: Params, fmt: FloatFormat | None = None) -> Type:
    """The type of a result: its shape by the operation's rule, its format as asked for, else by `promote`."""
    shape = check(name, operands, params)
    if fmt is not None:
        return Type(shape, fmt)
    if gives_integers(name, operands):
        return Type(shape, INT32)
    if name in STRUCTURE:
        return Type(shape, next(x.format for x in operands if isinstance(x, Type)))
    return Type(shape, promote([x.format for x in operands if isinstance(x, Type)]))
