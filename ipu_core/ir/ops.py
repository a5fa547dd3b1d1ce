"""The operations of a Block: one table from name to kind, family and type rule."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from ipu_core.ir import convolution
from ipu_core.ir.block import Format, Literal, Params, Type, format_name
from lowprec import FloatFormat
from lowprec import float32 as FLOAT32
from lowprec import float64 as FLOAT64

Operand = Type | Literal
Shape = tuple[int, ...]
Rule = Callable[[tuple[Operand, ...], Params], Shape]


@dataclass(frozen=True, slots=True)
class Op:
    """One operation.

    Attributes:
        name: as printed.
        family: the default family, which the precision table reads.
        arity: number of inputs; None for any number.
        shape: the shape of the result from the operands' types, or ValueError in words.
        exact: the result is one of the operand's values or 0 or 1, so it never rounds in the operand's format.
        structural: moves elements without looking at them; the result has the operand's format.
        integers: positions of the operands that are int32.
        params: names of its parameters, all needed.
    """

    name: str
    family: str
    arity: int | None
    shape: Rule
    exact: bool = False
    structural: bool = False
    integers: tuple[int, ...] = ()
    params: tuple[str, ...] = ()


def words(operands: tuple[Operand, ...]) -> str:
    """The operands' shapes in words: "(64, 256) and (256,)"."""
    return " and ".join("a number" if isinstance(x, Literal) else str(x.shape) for x in operands)


def _array(operand: Operand) -> Type:
    if isinstance(operand, Literal):
        raise ValueError(f"needs an array, not the number {operand}")
    return operand


def _elementwise(operands: tuple[Operand, ...], params: Params) -> Shape:
    shapes = {x.shape for x in operands if isinstance(x, Type)} - {()}
    if len(shapes) > 1:
        raise ValueError(f"the shapes {words(operands)} differ; broadcast first")
    return shapes.pop() if shapes else ()


def _dot(operands: tuple[Operand, ...], params: Params) -> Shape:
    a, b = (_array(x).shape for x in operands)
    if len(a) < 2 or len(b) < 2:
        raise ValueError(f"{a} @ {b}: both need at least two axes")
    if a[-1] != b[-2]:
        raise ValueError(f"{a} @ {b}: inner sizes {a[-1]} and {b[-2]} differ")
    if a[:-2] != b[:-2]:
        raise ValueError(f"{a} @ {b}: leading sizes {a[:-2]} and {b[:-2]} differ")
    return (*a[:-1], b[-1])


def _convolution(op: str) -> Rule:
    def rule(operands: tuple[Operand, ...], params: Params) -> Shape:
        first, second = (_array(x).shape for x in operands)
        return convolution.result_shape(op, first, second, params)

    return rule


def _reduce(operands: tuple[Operand, ...], params: Params) -> Shape:
    shape, axes = _array(operands[0]).shape, params["axis"]
    if list(axes) != sorted(set(axes)) or any(not 0 <= axis < len(shape) for axis in axes):
        raise ValueError(f"axis {axes} must be ascending axes of {shape}")
    kept = [1 if axis in axes else n for axis, n in enumerate(shape)]
    return tuple(kept) if params["keepdims"] else tuple(n for axis, n in enumerate(shape) if axis not in axes)


def _reduce_max(operands: tuple[Operand, ...], params: Params) -> Shape:
    shape = _array(operands[0]).shape
    if any(shape[axis] == 0 for axis in params["axis"]):
        raise ValueError(f"no maximum over an empty axis of {shape}")
    return _reduce(operands, params)


def _transpose(operands: tuple[Operand, ...], params: Params) -> Shape:
    shape, perm = _array(operands[0]).shape, params["perm"]
    if sorted(perm) != list(range(len(shape))):
        raise ValueError(f"perm {perm} is not a permutation of the axes of {shape}")
    return tuple(shape[axis] for axis in perm)


def _reshape(operands: tuple[Operand, ...], params: Params) -> Shape:
    shape, new = _array(operands[0]).shape, tuple(params["shape"])
    if math.prod(shape) != math.prod(new):
        raise ValueError(f"cannot make {new} of {shape}: {math.prod(new)} and {math.prod(shape)} elements")
    return new


def _broadcast(operands: tuple[Operand, ...], params: Params) -> Shape:
    shape, new = _array(operands[0]).shape, tuple(params["shape"])
    tail = new[len(new) - len(shape) :]
    if len(shape) > len(new) or any(m not in (1, n) for m, n in zip(shape, tail, strict=True)):
        raise ValueError(f"cannot broadcast {shape} to {new}")
    return new


def _slice(operands: tuple[Operand, ...], params: Params) -> Shape:
    shape = _array(operands[0]).shape
    start, stop, step = params["start"], params["stop"], params["step"]
    if not len(start) == len(stop) == len(step) == len(shape):
        raise ValueError(f"start {start}, stop {stop}, step {step} must have one entry per axis of {shape}")
    if any(not (0 <= a <= b <= n and s >= 1) for a, b, s, n in zip(start, stop, step, shape, strict=True)):
        raise ValueError(f"start {start}, stop {stop}, step {step} leave {shape}")
    return tuple(-(-(b - a) // s) for a, b, s in zip(start, stop, step, strict=True))


def _concatenate(operands: tuple[Operand, ...], params: Params) -> Shape:
    shapes, axis = [_array(x).shape for x in operands], params["axis"]
    if not shapes or not 0 <= axis < len(shapes[0]):
        raise ValueError(f"axis {axis} is no axis of {words(operands)}")
    if len({(*s[:axis], *s[axis + 1 :]) for s in shapes}) > 1 or len({len(s) for s in shapes}) > 1:
        raise ValueError(f"the shapes {words(operands)} differ in another axis than {axis}")
    return (*shapes[0][:axis], sum(s[axis] for s in shapes), *shapes[0][axis + 1 :])


def _pad(operands: tuple[Operand, ...], params: Params) -> Shape:
    shape = _array(operands[0]).shape
    low, high, interior = params["low"], params["high"], params["interior"]
    if not len(low) == len(high) == len(interior) == len(shape) or min((*low, *high, *interior), default=0) < 0:
        raise ValueError(f"low {low}, high {high}, interior {interior} must be >= 0 for every axis of {shape}")
    sizes = zip(shape, low, high, interior, strict=True)
    return tuple(a + n + max(0, n - 1) * i + b for n, a, b, i in sizes)


def _gather(operands: tuple[Operand, ...], params: Params) -> Shape:
    table, indices = (_array(x).shape for x in operands)
    if not table:
        raise ValueError("the table needs at least one axis")
    return (*indices, *table[1:])


def _scatter_add(operands: tuple[Operand, ...], params: Params) -> Shape:
    indices, updates = (_array(x).shape for x in operands)
    if updates[: len(indices)] != indices:
        raise ValueError(f"the updates {updates} must begin with the shape of the indices {indices}")
    return (params["rows"], *updates[len(indices) :])


def _one_hot(operands: tuple[Operand, ...], params: Params) -> Shape:
    return (*_array(operands[0]).shape, params["classes"])


def _same(operands: tuple[Operand, ...], params: Params) -> Shape:
    return _array(operands[0]).shape


def _table() -> dict[str, Op]:
    return {op.name: op for op in (
        *(Op(name, "elementwise", 1, _elementwise) for name in ("square",)),
        *(Op(name, "elementwise", 1, _elementwise, exact=True) for name in ("negative", "absolute", "relu", "step")),
        *(Op(name, "elementwise", 2, _elementwise) for name in ("add", "subtract", "multiply")),
        *(Op(name, "elementwise", 2, _elementwise, exact=True) for name in ("maximum", "minimum", "greater", "equal")),
        Op("select", "elementwise", 3, _elementwise, exact=True),
        *(Op(name, "nonlinearity", 1, _elementwise) for name in (
            "reciprocal", "sqrt", "rsqrt", "exp", "log", "tanh", "erf", "sigmoid", "sin", "cos", "gelu",
            "gelu_gradient",
        )),
        Op("divide", "nonlinearity", 2, _elementwise),
        Op("scaled_add", "scaled_add", 3, _elementwise),
        Op("convert", "cast", 1, _same),
        Op("reduce_sum", "reduction", 1, _reduce, params=("axis", "keepdims")),
        Op("reduce_max", "reduction", 1, _reduce_max, exact=True, params=("axis", "keepdims")),
        Op("dot", "matmul", 2, _dot),
        *(Op(name, "conv", 2, _convolution(name), params=(*convolution.PARAMS, *extra)) for name, extra in zip(
            convolution.CONVOLUTIONS, ((), ("size",), ("kernel",)), strict=True)),
        Op("transpose", "structure", 1, _transpose, structural=True, params=("perm",)),
        Op("reshape", "structure", 1, _reshape, structural=True, params=("shape",)),
        Op("broadcast", "structure", 1, _broadcast, structural=True, params=("shape",)),
        Op("slice", "structure", 1, _slice, structural=True, params=("start", "stop", "step")),
        Op("concatenate", "structure", None, _concatenate, structural=True, params=("axis",)),
        Op("pad", "structure", 1, _pad, structural=True, params=("low", "high", "interior")),
        Op("stop_gradient", "structure", 1, _same, structural=True),
        Op("gather", "structure", 2, _gather, structural=True, integers=(1,)),
        Op("scatter_add", "reduction", 2, _scatter_add, integers=(0,), params=("rows",)),
        Op("dropout_mask", "elementwise", 1, _same, exact=True, params=("rate", "operation")),
        Op("one_hot", "elementwise", 1, _one_hot, exact=True, integers=(0,), params=("classes",)),
    )}  # fmt: skip


OPS = _table()
"""Every operation by name."""


def promote(formats: list[Format]) -> FloatFormat:
    """The format of a result nobody asked for: the operands' own if they agree, else float32, or float64 if one is."""
    floats = {f for f in formats if isinstance(f, FloatFormat)}
    if len(floats) == 1:
        return floats.pop()
    return FLOAT64 if FLOAT64 in floats else FLOAT32


def check(name: str, operands: tuple[Operand, ...], params: Params) -> tuple[Op, Shape]:
    """The operation of that name and the shape of its result on such operands.

    Raises:
        ValueError: unknown operation, wrong number of operands, other parameters, shapes that do not fit.
        TypeError: an integer where a float is needed, or the other way round.
    """
    if name not in OPS:
        raise ValueError(f"unknown operation {name!r}; there are {', '.join(sorted(OPS))}")
    op = OPS[name]
    if op.arity is not None and len(operands) != op.arity:
        raise ValueError(f"{name}: {op.arity} operands, not {len(operands)}")
    if set(params) != set(op.params):
        takes = ", ".join(op.params) or "none"
        raise ValueError(f"{name}: its parameters are {takes}; given were {', '.join(params) or 'none'}")
    for position, operand in enumerate(operands):
        integer = isinstance(operand, Type) and operand.format == "int32"
        if integer != (position in op.integers) and not (op.structural and not op.integers):
            wanted = "int32 numbers" if position in op.integers else "floats (int32 numbers only index and label)"
            given = format_name(operand.format) if isinstance(operand, Type) else f"the number {operand}"
            raise TypeError(f"{name}: operand {position} must be {wanted}, not {given}")
    try:
        return op, op.shape(operands, params)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def infer(name: str, operands: tuple[Operand, ...], params: Params, fmt: FloatFormat | None = None) -> Type:
    """The type of a result: its shape by the operation's rule, its format as asked for, else by `promote`."""
    op, shape = check(name, operands, params)
    if fmt is not None:
        return Type(shape, fmt)
    if op.structural:
        return Type(shape, next(x.format for x in operands if isinstance(x, Type)))
    return Type(shape, promote([x.format for x in operands if isinstance(x, Type)]))
