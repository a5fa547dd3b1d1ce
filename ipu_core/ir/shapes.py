"""The shape of each operation's result from its operands' types, or ValueError in words."""

from __future__ import annotations

import math
from collections.abc import Callable

from ipu_core.ir import convolution as windows
from ipu_core.ir.block import Literal, Params, Type
from ipu_core.ir.convolution import Shape

Argument = Type | Literal
ShapeRule = Callable[[tuple[Argument, ...], Params], Shape]


def words(operands: tuple[Argument, ...]) -> str:
    """The operands' shapes in words: "(64, 256) and (256,)"."""
    return " and ".join("a number" if isinstance(x, Literal) else str(x.shape) for x in operands)


def _array(operand: Argument) -> Type:
    if isinstance(operand, Literal):
        raise ValueError(f"needs an array, not the number {operand}")
    return operand


def elementwise(operands: tuple[Argument, ...], params: Params) -> Shape:
    shapes = {x.shape for x in operands if isinstance(x, Type)} - {()}
    if len(shapes) > 1:
        raise ValueError(f"the shapes {words(operands)} differ; broadcast first")
    return shapes.pop() if shapes else ()


def dot(operands: tuple[Argument, ...], params: Params) -> Shape:
    a, b = (_array(x).shape for x in operands)
    if len(a) < 2 or len(b) < 2:
        raise ValueError(f"{a} @ {b}: both need at least two axes")
    if a[-1] != b[-2]:
        raise ValueError(f"{a} @ {b}: inner sizes {a[-1]} and {b[-2]} differ")
    if a[:-2] != b[:-2]:
        raise ValueError(f"{a} @ {b}: leading sizes {a[:-2]} and {b[:-2]} differ")
    return (*a[:-1], b[-1])


def scaled_dot(operands: tuple[Argument, ...], params: Params) -> Shape:
    if (scale := _array(operands[2]).shape) != ():
        raise ValueError(f"the scale must be one number, not an array of {scale}")
    return dot(operands[:2], params)


def convolution(op: str) -> ShapeRule:
    def rule(operands: tuple[Argument, ...], params: Params) -> Shape:
        first, second = (_array(x).shape for x in operands)
        return windows.result_shape(op, first, second, params)

    return rule


def reduce(operands: tuple[Argument, ...], params: Params) -> Shape:
    shape, axes = _array(operands[0]).shape, params["axis"]
    if list(axes) != sorted(set(axes)) or any(not 0 <= axis < len(shape) for axis in axes):
        raise ValueError(f"axis {axes} must be ascending axes of {shape}")
    kept = [1 if axis in axes else n for axis, n in enumerate(shape)]
    return tuple(kept) if params["keepdims"] else tuple(n for axis, n in enumerate(shape) if axis not in axes)


def reduce_max(operands: tuple[Argument, ...], params: Params) -> Shape:
    shape = _array(operands[0]).shape
    if any(shape[axis] == 0 for axis in params["axis"]):
        raise ValueError(f"no maximum over an empty axis of {shape}")
    return reduce(operands, params)


def transpose(operands: tuple[Argument, ...], params: Params) -> Shape:
    shape, perm = _array(operands[0]).shape, params["perm"]
    if sorted(perm) != list(range(len(shape))):
        raise ValueError(f"perm {perm} is not a permutation of the axes of {shape}")
    return tuple(shape[axis] for axis in perm)


def reshape(operands: tuple[Argument, ...], params: Params) -> Shape:
    shape, new = _array(operands[0]).shape, tuple(params["shape"])
    if math.prod(shape) != math.prod(new):
        raise ValueError(f"cannot make {new} of {shape}: {math.prod(new)} and {math.prod(shape)} elements")
    return new


def broadcast(operands: tuple[Argument, ...], params: Params) -> Shape:
    shape, new = _array(operands[0]).shape, tuple(params["shape"])
    tail = new[len(new) - len(shape) :]
    if len(shape) > len(new) or any(m not in (1, n) for m, n in zip(shape, tail, strict=True)):
        raise ValueError(f"cannot broadcast {shape} to {new}")
    return new


def slice(operands: tuple[Argument, ...], params: Params) -> Shape:
    shape = _array(operands[0]).shape
    start, stop, step = params["start"], params["stop"], params["step"]
    if not len(start) == len(stop) == len(step) == len(shape):
        raise ValueError(f"start {start}, stop {stop}, step {step} must have one entry per axis of {shape}")
    if any(not (0 <= a <= b <= n and s >= 1) for a, b, s, n in zip(start, stop, step, shape, strict=True)):
        raise ValueError(f"start {start}, stop {stop}, step {step} leave {shape}")
    return tuple(-(-(b - a) // s) for a, b, s in zip(start, stop, step, strict=True))


def concatenate(operands: tuple[Argument, ...], params: Params) -> Shape:
    shapes, axis = [_array(x).shape for x in operands], params["axis"]
    if not shapes or not 0 <= axis < len(shapes[0]):
        raise ValueError(f"axis {axis} is no axis of {words(operands)}")
    if len({(*s[:axis], *s[axis + 1 :]) for s in shapes}) > 1 or len({len(s) for s in shapes}) > 1:
        raise ValueError(f"the shapes {words(operands)} differ in another axis than {axis}")
    return (*shapes[0][:axis], sum(s[axis] for s in shapes), *shapes[0][axis + 1 :])


def pad(operands: tuple[Argument, ...], params: Params) -> Shape:
    shape = _array(operands[0]).shape
    low, high, interior = params["low"], params["high"], params["interior"]
    if not len(low) == len(high) == len(interior) == len(shape) or min((*low, *high, *interior), default=0) < 0:
        raise ValueError(f"low {low}, high {high}, interior {interior} must be >= 0 for every axis of {shape}")
    sizes = zip(shape, low, high, interior, strict=True)
    return tuple(a + n + max(0, n - 1) * i + b for n, a, b, i in sizes)


def gather(operands: tuple[Argument, ...], params: Params) -> Shape:
    table, indices = (_array(x).shape for x in operands)
    if not table:
        raise ValueError("the table needs at least one axis")
    return (*indices, *table[1:])


def set_row(operands: tuple[Argument, ...], params: Params) -> Shape:
    row, place, table = (_array(x).shape for x in operands)
    if place != (1,) or not table or row != (1, *table[1:]):
        raise ValueError(f"the row {row} of the table {table} at one place, not {place}, must be (1, {table[1:]})")
    return table


def scatter(operands: tuple[Argument, ...], params: Params) -> Shape:
    indices, updates = (_array(x).shape for x in operands)
    if updates[: len(indices)] != indices:
        raise ValueError(f"the updates {updates} must begin with the shape of the indices {indices}")
    return (params["rows"], *updates[len(indices) :])


def top_indices(operands: tuple[Argument, ...], params: Params) -> Shape:
    shape, k = _array(operands[0]).shape, params["k"]
    if not shape or not 1 <= k <= shape[-1]:
        raise ValueError(f"there are no {k} largest along the last axis of {shape}")
    return (*shape[:-1], k)


def take_along(operands: tuple[Argument, ...], params: Params) -> Shape:
    x, indices = (_array(one).shape for one in operands)
    if not x or not indices or x[:-1] != indices[:-1]:
        raise ValueError(f"the indices {indices} must have the leading axes of {x}")
    return indices


def put_along(operands: tuple[Argument, ...], params: Params) -> Shape:
    indices, updates = (_array(one).shape for one in operands)
    if not indices or indices != updates:
        raise ValueError(f"the updates {updates} must have the shape of the indices {indices}")
    return (*indices[:-1], params["size"])


def one_hot(operands: tuple[Argument, ...], params: Params) -> Shape:
    return (*_array(operands[0]).shape, params["classes"])


def to_blocks(operands: tuple[Argument, ...], params: Params) -> Shape:
    shape, axis = _array(operands[0]).shape, params["axis"]
    if not 0 <= axis < len(shape):
        raise ValueError(f"axis {axis} is no axis of {shape}")
    return shape


def hadamard(operands: tuple[Argument, ...], params: Params) -> Shape:
    shape, axis, block = _array(operands[0]).shape, params["axis"], params["block"]
    if not 0 <= axis < len(shape) or shape[axis] % block:
        raise ValueError(f"{shape} has no axis {axis} that blocks of {block} divide")
    return shape


def same(operands: tuple[Argument, ...], params: Params) -> Shape:
    return _array(operands[0]).shape


def shard(operands: tuple[Argument, ...], params: Params) -> Shape:
    return (-(-_array(operands[0]).size // params["replicas"]),)


def gathered(operands: tuple[Argument, ...], params: Params) -> Shape:
    shard, shape = _array(operands[0]).shape, tuple(params["shape"])
    if shard != (-(-math.prod(shape) // params["replicas"]),):
        raise ValueError(f"shards {shard} of {params['replicas']} replicas do not make {shape}")
    return shape
