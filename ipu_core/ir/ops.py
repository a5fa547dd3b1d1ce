"""The operations of a Block: one table from name to kind, family and type rule."""

from __future__ import annotations

import math
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ipu_core.ir import convolution
from ipu_core.ir.block import Format, Literal, Params, Type, format_name, is_wide
from ipu_core.ir.convolution import Shape
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

Argument = Type | Literal
ShapeRule = Callable[[tuple[Argument, ...], Params], Shape]
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


def words(operands: tuple[Argument, ...]) -> str:
    """The operands' shapes in words: "(64, 256) and (256,)"."""
    return " and ".join("a number" if isinstance(x, Literal) else str(x.shape) for x in operands)


def _array(operand: Argument) -> Type:
    if isinstance(operand, Literal):
        raise ValueError(f"needs an array, not the number {operand}")
    return operand


def _elementwise(operands: tuple[Argument, ...], params: Params) -> Shape:
    shapes = {x.shape for x in operands if isinstance(x, Type)} - {()}
    if len(shapes) > 1:
        raise ValueError(f"the shapes {words(operands)} differ; broadcast first")
    return shapes.pop() if shapes else ()


def _dot(operands: tuple[Argument, ...], params: Params) -> Shape:
    a, b = (_array(x).shape for x in operands)
    if len(a) < 2 or len(b) < 2:
        raise ValueError(f"{a} @ {b}: both need at least two axes")
    if a[-1] != b[-2]:
        raise ValueError(f"{a} @ {b}: inner sizes {a[-1]} and {b[-2]} differ")
    if a[:-2] != b[:-2]:
        raise ValueError(f"{a} @ {b}: leading sizes {a[:-2]} and {b[:-2]} differ")
    return (*a[:-1], b[-1])


def _scaled_dot(operands: tuple[Argument, ...], params: Params) -> Shape:
    if (scale := _array(operands[2]).shape) != ():
        raise ValueError(f"the scale must be one number, not an array of {scale}")
    return _dot(operands[:2], params)


def _convolution(op: str) -> ShapeRule:
    def rule(operands: tuple[Argument, ...], params: Params) -> Shape:
        first, second = (_array(x).shape for x in operands)
        return convolution.result_shape(op, first, second, params)

    return rule


def _reduce(operands: tuple[Argument, ...], params: Params) -> Shape:
    shape, axes = _array(operands[0]).shape, params["axis"]
    if list(axes) != sorted(set(axes)) or any(not 0 <= axis < len(shape) for axis in axes):
        raise ValueError(f"axis {axes} must be ascending axes of {shape}")
    kept = [1 if axis in axes else n for axis, n in enumerate(shape)]
    return tuple(kept) if params["keepdims"] else tuple(n for axis, n in enumerate(shape) if axis not in axes)


def _reduce_max(operands: tuple[Argument, ...], params: Params) -> Shape:
    shape = _array(operands[0]).shape
    if any(shape[axis] == 0 for axis in params["axis"]):
        raise ValueError(f"no maximum over an empty axis of {shape}")
    return _reduce(operands, params)


def _transpose(operands: tuple[Argument, ...], params: Params) -> Shape:
    shape, perm = _array(operands[0]).shape, params["perm"]
    if sorted(perm) != list(range(len(shape))):
        raise ValueError(f"perm {perm} is not a permutation of the axes of {shape}")
    return tuple(shape[axis] for axis in perm)


def _reshape(operands: tuple[Argument, ...], params: Params) -> Shape:
    shape, new = _array(operands[0]).shape, tuple(params["shape"])
    if math.prod(shape) != math.prod(new):
        raise ValueError(f"cannot make {new} of {shape}: {math.prod(new)} and {math.prod(shape)} elements")
    return new


def _broadcast(operands: tuple[Argument, ...], params: Params) -> Shape:
    shape, new = _array(operands[0]).shape, tuple(params["shape"])
    tail = new[len(new) - len(shape) :]
    if len(shape) > len(new) or any(m not in (1, n) for m, n in zip(shape, tail, strict=True)):
        raise ValueError(f"cannot broadcast {shape} to {new}")
    return new


def _slice(operands: tuple[Argument, ...], params: Params) -> Shape:
    shape = _array(operands[0]).shape
    start, stop, step = params["start"], params["stop"], params["step"]
    if not len(start) == len(stop) == len(step) == len(shape):
        raise ValueError(f"start {start}, stop {stop}, step {step} must have one entry per axis of {shape}")
    if any(not (0 <= a <= b <= n and s >= 1) for a, b, s, n in zip(start, stop, step, shape, strict=True)):
        raise ValueError(f"start {start}, stop {stop}, step {step} leave {shape}")
    return tuple(-(-(b - a) // s) for a, b, s in zip(start, stop, step, strict=True))


def _concatenate(operands: tuple[Argument, ...], params: Params) -> Shape:
    shapes, axis = [_array(x).shape for x in operands], params["axis"]
    if not shapes or not 0 <= axis < len(shapes[0]):
        raise ValueError(f"axis {axis} is no axis of {words(operands)}")
    if len({(*s[:axis], *s[axis + 1 :]) for s in shapes}) > 1 or len({len(s) for s in shapes}) > 1:
        raise ValueError(f"the shapes {words(operands)} differ in another axis than {axis}")
    return (*shapes[0][:axis], sum(s[axis] for s in shapes), *shapes[0][axis + 1 :])


def _pad(operands: tuple[Argument, ...], params: Params) -> Shape:
    shape = _array(operands[0]).shape
    low, high, interior = params["low"], params["high"], params["interior"]
    if not len(low) == len(high) == len(interior) == len(shape) or min((*low, *high, *interior), default=0) < 0:
        raise ValueError(f"low {low}, high {high}, interior {interior} must be >= 0 for every axis of {shape}")
    sizes = zip(shape, low, high, interior, strict=True)
    return tuple(a + n + max(0, n - 1) * i + b for n, a, b, i in sizes)


def _gather(operands: tuple[Argument, ...], params: Params) -> Shape:
    table, indices = (_array(x).shape for x in operands)
    if not table:
        raise ValueError("the table needs at least one axis")
    return (*indices, *table[1:])


def _set_row(operands: tuple[Argument, ...], params: Params) -> Shape:
    row, place, table = (_array(x).shape for x in operands)
    if place != (1,) or not table or row != (1, *table[1:]):
        raise ValueError(f"the row {row} of the table {table} at one place, not {place}, must be (1, {table[1:]})")
    return table


def _scatter(operands: tuple[Argument, ...], params: Params) -> Shape:
    indices, updates = (_array(x).shape for x in operands)
    if updates[: len(indices)] != indices:
        raise ValueError(f"the updates {updates} must begin with the shape of the indices {indices}")
    return (params["rows"], *updates[len(indices) :])


def _top_indices(operands: tuple[Argument, ...], params: Params) -> Shape:
    shape, k = _array(operands[0]).shape, params["k"]
    if not shape or not 1 <= k <= shape[-1]:
        raise ValueError(f"there are no {k} largest along the last axis of {shape}")
    return (*shape[:-1], k)


def _take_along(operands: tuple[Argument, ...], params: Params) -> Shape:
    x, indices = (_array(one).shape for one in operands)
    if not x or not indices or x[:-1] != indices[:-1]:
        raise ValueError(f"the indices {indices} must have the leading axes of {x}")
    return indices


def _put_along(operands: tuple[Argument, ...], params: Params) -> Shape:
    indices, updates = (_array(one).shape for one in operands)
    if not indices or indices != updates:
        raise ValueError(f"the updates {updates} must have the shape of the indices {indices}")
    return (*indices[:-1], params["size"])


def _one_hot(operands: tuple[Argument, ...], params: Params) -> Shape:
    return (*_array(operands[0]).shape, params["classes"])


def _to_blocks(operands: tuple[Argument, ...], params: Params) -> Shape:
    shape, axis = _array(operands[0]).shape, params["axis"]
    if not 0 <= axis < len(shape):
        raise ValueError(f"axis {axis} is no axis of {shape}")
    return shape


def _hadamard(operands: tuple[Argument, ...], params: Params) -> Shape:
    shape, axis, block = _array(operands[0]).shape, params["axis"], params["block"]
    if not 0 <= axis < len(shape) or shape[axis] % block:
        raise ValueError(f"{shape} has no axis {axis} that blocks of {block} divide")
    return shape


def _same(operands: tuple[Argument, ...], params: Params) -> Shape:
    return _array(operands[0]).shape


def _shard(operands: tuple[Argument, ...], params: Params) -> Shape:
    return (-(-_array(operands[0]).size // params["replicas"]),)


def _gathered(operands: tuple[Argument, ...], params: Params) -> Shape:
    shard, shape = _array(operands[0]).shape, tuple(params["shape"])
    if shard != (-(-math.prod(shape) // params["replicas"]),):
        raise ValueError(f"shards {shard} of {params['replicas']} replicas do not make {shape}")
    return shape


def _elementwise_op(name: str, arity: int = 1, family: str = "elementwise", **facts: Any) -> Op:
    return Op(name, "elementwise", family, arity, _elementwise, **facts)


def _structural(name: str, kind: Kind, shape: ShapeRule, *params: str, arity: int | None = 1, **facts: Any) -> Op:
    return Op(name, kind, "structure", arity, shape, exact=True, params=params, **facts)


def _convolution_op(name: str, *params: str) -> Op:
    return Op(name, "convolution", "conv", 2, _convolution(name), params=(*convolution.PARAMS, *params))


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
    Op("convert", "elementwise", "cast", 1, _same, exact=True, either=(0,), options=("rounding", "operation")),
    Op("dot", "product", "matmul", 2, _dot),
    Op("scaled_dot", "product", "matmul", 3, _scaled_dot),
    _convolution_op("conv2d"),
    _convolution_op("conv2d_input_gradient", "size"),
    _convolution_op("conv2d_weight_gradient", "kernel"),
    Op("reduce_sum", "reduction", "reduction", 1, _reduce, params=("axis", "keepdims"), options=("shards",)),
    Op("reduce_max", "reduction", "reduction", 1, _reduce_max, exact=True, params=("axis", "keepdims")),
    Op(
        "scatter_add", "scatter", "reduction", 2, _scatter, integers=(0,), params=("rows",), options=("accumulation",)
    ),
    Op("scatter_max", "scatter", "reduction", 2, _scatter, exact=True, integers=(0,), params=("rows",)),
    Op("put_along", "scatter", "reduction", 2, _put_along, integers=(0,), params=("size",)),
    _structural("transpose", "view", _transpose, "perm"),
    _structural("reshape", "view", _reshape, "shape"),
    _structural("broadcast", "view", _broadcast, "shape"),
    _structural("slice", "view", _slice, "start", "stop", "step", part=True),
    _structural("stop_gradient", "view", _same),
    _structural("scale_gradient", "view", _same, "factor"),
    _structural(CUSTOM, "view", _same, "rule", "result", arity=None),
    _structural("concatenate", "move", _concatenate, "axis", arity=None),
    _structural("pad", "move", _pad, "low", "high", "interior"),
    _structural("gather", "move", _gather, arity=2, integers=(1,), either=(0,)),
    _structural("take_along", "move", _take_along, arity=2, integers=(1,), either=(0,)),
    _structural(SET_ROW, "move", _set_row, arity=3, integers=(1,), either=(0, 2)),
    Op("top_indices", "order", "elementwise", 1, _top_indices, exact=True, params=("k",)),
    Op("to_blocks", "blocks", "cast", 1, _to_blocks, params=("format", "axis", "rule")),
    Op("hadamard", "blocks", "cast", 1, _hadamard, params=("axis", "block")),
    Op("all_reduce", "collective", "gradient_sum", 1, _same, params=("replicas", "collective")),
    Op(GROUP_SUM, "group", "reduction", 1, _same, params=("replicas", "collective")),
    Op("reduce_scatter", "collective", "gradient_sum", 1, _shard, params=("replicas", "collective")),
    Op("all_gather", "collective", "structure", 1, _gathered, exact=True, params=("replicas", "shape")),
    Op("all_reduce_max", "collective", "reduction", 1, _same, exact=True, params=("replicas",)),
    Op("first_replica", "collective", "structure", 1, _same, exact=True, params=("replicas",)),
    Op(EACH_REPLICA, "collective", "structure", 1, _same, exact=True, params=("replicas",)),
    Op("dropout_mask", "mask", "elementwise", 1, _same, exact=True, params=("rate", "operation")),
    Op("one_hot", "mask", "elementwise", 1, _one_hot, exact=True, integers=(0,), params=("classes",)),
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
