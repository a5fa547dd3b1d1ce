"""Equations bound to their arrays: one table from operation to a prepared call of the machine's arithmetic."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ipu_core.chip import tile, tile_convolution, tile_integers, tile_replicas, tile_scatter
from ipu_core.chip.control import FloatingPointControl
from ipu_core.ir.block import Array, Equation
from ipu_core.ir.exact import inner
from ipu_core.ir.ops import COMPUTED_AS, CONVOLUTIONS, DOTS, ELEMENTWISE, GROUP_SUM
from ipu_core.ir.run.collectives import meeting
from ipu_core.ir.run.rounded import is_rounded_apart, then_rounded
from ipu_core.ir.run.wide import is_computed_wide, prepared
from lowprec import Accumulation, BlockArray, Key, hadamard, to_blocks
from lowprec.values.axes import fold

if TYPE_CHECKING:  # what a study shows its bars without
    from ipu_core.ir.run.scratch import Scratch

BoundCall = Callable[[Key | None], Any]
"""Computes an equation's result into its array, from the key of this equation in this step."""


def given_order(equation: Equation, orders: Mapping[int, Accumulation]) -> Accumulation | None:
    """The order that is given for a sum by its number; a copy has that of what it is a copy of. None: none is."""
    return orders.get(equation.number, orders.get(equation.keyed))


def order_of(equation: Equation, order: Accumulation | None) -> Accumulation:
    """The Accumulation of a product or sum, with the types and promotions of its equation."""
    accumulate, out = equation.arithmetic.accumulate, equation.output.type.format
    assert not isinstance(out, str)
    planned = equation.arithmetic.order or order or Accumulation()
    typed = planned.with_types(out if accumulate is None else accumulate, out)
    promote = equation.arithmetic.promote
    return typed if promote is None else typed.promoted(summed(equation), promote)


def summed(equation: Equation) -> int:
    """Number of products that become one element of the result."""
    first, second = (var.type.shape for var in equation.operands[:2])
    if equation.op in DOTS:
        return first[-1]
    if equation.op == "conv2d":
        return math.prod(second[:3])
    if equation.op == "conv2d_input_gradient":
        return math.prod(second[:2]) * (second[3] // int(equation.params["groups"]))
    return math.prod(second[:3])


def bind(
    equation: Equation, operands: list[Any], out: Array, order: Accumulation | None, control: FloatingPointControl,
    scratch: Scratch,
) -> BoundCall:  # fmt: skip
    """An equation as a call that computes its result from its key in this step.

    Args:
        equation: what to compute.
        operands: its arrays and numbers, the same in every call.
        out: where the result goes.
        order: order of a product or sum; None: the default.
        control: the machine's floating-point control.
        scratch: memory of the calls that it runs in turn with.
    """
    if is_computed_wide(equation):
        call = prepared(equation, order, control)
        return lambda key: call(operands, key, out)
    if is_rounded_apart(equation):
        return then_rounded(equation, out, lambda plain, wide: bind(plain, operands, wide, order, control, scratch))
    if equation.op in ELEMENTWISE:
        return _elementwise(equation, operands, out, control)
    return BINDINGS[equation.op](equation, operands, out, order, control, scratch)


def _elementwise(equation: Equation, operands: list[Any], out: Array, control: FloatingPointControl) -> BoundCall:
    op = COMPUTED_AS[equation.op]
    formats = [x.dtype if isinstance(x, np.ndarray) else None for x in operands]
    kernel = tile.elementwise(op, formats, out.dtype, equation.arithmetic.rounding, control)
    values = tuple(operands)
    return lambda key: kernel(values, key, 0, out)


def _dot(
    equation: Equation, operands: list[Any], out: Array, order: Accumulation | None, control: FloatingPointControl,
    *_: Any,
) -> BoundCall:  # fmt: skip
    a, b = operands
    kernel = tile.matmul(order_of(equation, order), equation.arithmetic.rounding, control, (a.dtype, b.dtype))
    return lambda key: kernel(a, b, key, out)


def _scaled_dot(
    equation: Equation, operands: list[Any], out: Array, order: Accumulation | None, control: FloatingPointControl,
    scratch: Scratch,
) -> BoundCall:  # fmt: skip
    a, b, scale = operands
    kernel = tile.matmul(
        order_of(equation, order), equation.arithmetic.rounding, control, (np.dtype(np.float32), b.dtype)
    )
    wide, scaled = scratch.array(a.shape, np.float32), tile.scaled(a.dtype, scale.dtype, control)
    return lambda key: kernel(scaled(a, scale, wide()), b, key, out)


def _convolution(
    equation: Equation, operands: list[Any], out: Array, order: Accumulation | None, control: FloatingPointControl,
    *_: Any,
) -> BoundCall:  # fmt: skip
    a, b = operands
    kernel = tile_convolution.convolution(
        equation.op,
        equation.params,
        order_of(equation, order),
        equation.arithmetic.rounding,
        control,
        (a.dtype, b.dtype),
    )
    return lambda key: kernel(a, b, key, out)


def _folded(equation: Equation, x: Array, out: Array, scratch: Scratch) -> tuple[Callable[[], Array], Array]:
    """What gives the operand of a reduction as (outer, terms, inner), a view or a copy made then, and its result."""
    how = fold(x.shape, equation.params["axis"])
    result = out.reshape(how.shape[0], how.shape[2])
    if how.is_view(x):
        view = how.view(x)
        return lambda: view, result
    source = _words(x).transpose(*how.before, *how.terms, *how.after)
    place = scratch.array(how.shape, x.dtype)

    def copied() -> Array:
        view = place()
        np.copyto(_words(view).reshape(source.shape), source)
        return view

    return copied, result


def _reduce_sum(
    equation: Equation, operands: list[Any], out: Array, order: Accumulation | None, control: FloatingPointControl,
    scratch: Scratch,
) -> BoundCall:  # fmt: skip
    x, result = _folded(equation, operands[0], out, scratch)
    kernel = tile.reduce_sum(order_of(equation, order), equation.arithmetic.rounding, control)
    return lambda key: kernel(x(), key, result)


def _reduce_max(
    equation: Equation, operands: list[Any], out: Array, order: Accumulation | None, control: FloatingPointControl,
    scratch: Scratch,
) -> BoundCall:  # fmt: skip
    x, result = _folded(equation, operands[0], out, scratch)
    return lambda key: tile.reduce_max(x(), result)(key)


def _scatter_add(
    equation: Equation, operands: list[Any], out: Array, order: Accumulation | None, control: FloatingPointControl,
    scratch: Scratch,
) -> BoundCall:  # fmt: skip
    """Added in float32 in the order of the indices, then rounded once."""
    indices, updates = operands
    order = equation.params.get("accumulation")
    place, width = scratch.array(out.shape, np.float32), math.prod(out.shape[1:])
    kernel = tile.elementwise("identity", [np.dtype(np.float32)], out.dtype, equation.arithmetic.rounding, control)

    def call(key: Key | None) -> None:
        wide = place()
        total = wide.reshape(out.shape[0], width)
        tile_scatter.scatter_add(indices, updates.reshape(indices.size, width), total, accumulation=order)
        if control.traps:
            tile.check_sum("scatter_add", control, (updates,), total)
        kernel((wide,), key, 0, out)

    return call


def _scatter_max(
    equation: Equation, operands: list[Any], out: Array, order: Accumulation | None, control: FloatingPointControl,
    *_: Any,
) -> BoundCall:  # fmt: skip
    """One of the updates, as it is."""
    indices, updates = operands
    width = math.prod(out.shape[1:])

    def call(key: Key | None) -> None:
        tile_scatter.scatter_max(indices, updates.reshape(indices.size, width), out.reshape(out.shape[0], width))

    return call


def _put_along(
    equation: Equation, operands: list[Any], out: Array, order: Accumulation | None, control: FloatingPointControl,
    scratch: Scratch,
) -> BoundCall:  # fmt: skip
    """Added in float32 in the order of the indices, then rounded once."""
    indices, updates = operands
    place = scratch.array(out.shape, np.float32)
    kernel = tile.elementwise("identity", [np.dtype(np.float32)], out.dtype, equation.arithmetic.rounding, control)

    def call(key: Key | None) -> None:
        wide = place()
        tile_scatter.put_along(indices, updates, wide)
        if control.traps:
            tile.check_sum("put_along", control, (updates,), wide)
        kernel((wide,), key, 0, out)

    return call


def _take_along(equation: Equation, operands: list[Any], out: Array, *_: Any) -> BoundCall:
    x, indices = operands
    return lambda key: tile_integers.take_along(x, indices, out)


def _top_indices(equation: Equation, operands: list[Any], out: Array, *_: Any) -> BoundCall:
    (x,), k = operands, equation.params["k"]
    return lambda key: tile_integers.top_indices(x, k, out)


def check_classes(equation: Equation, labels: Array) -> None:
    """Refuses labels of a loss that are no classes: one of them would count as a row that is all zero.

    Raises:
        ValueError: with the labels and the classes there are.
    """
    classes = int(equation.params["classes"])
    if equation.family == "loss" and labels.size and _unsigned(labels).max() >= classes:
        raise ValueError(f"labels from {labels.min()} to {labels.max()}; the loss has the classes 0 to {classes - 1}")


def _unsigned(labels: Array) -> Array:
    """Whole numbers of which negative ones are the largest."""
    return labels.view(f"u{labels.itemsize}")


def _one_hot(
    equation: Equation, operands: list[Any], out: Array, order: Accumulation | None, control: FloatingPointControl,
    scratch: Scratch,
) -> BoundCall:  # fmt: skip
    labels, classes = operands[0][..., None], np.arange(equation.params["classes"], dtype=np.int32)
    place, given = scratch.array(out.shape, np.bool_), _unsigned(operands[0])

    def call(key: Key | None) -> None:
        if given.max(initial=0) >= classes.size:
            check_classes(equation, operands[0])
        np.copyto(out, np.equal(labels, classes, out=place()))

    return call


def _dropout_mask(equation: Equation, operands: list[Any], out: Array, *_: Any) -> BoundCall:
    mask = tile.dropout_mask(equation.params["rate"])
    return lambda key: mask(key, 0, out)


def _to_blocks(equation: Equation, operands: list[Any], out: Array, *_: Any) -> BoundCall:
    """The values that the blocks stand for."""
    (x,), params, rounding = operands, equation.params, equation.arithmetic.rounding
    blocks: list[BlockArray] = []  # of the call before, whose arrays are used again

    def call(key: Key | None) -> None:
        last = blocks.pop() if blocks else None
        made = to_blocks(
            x, params["format"], params["axis"], scale_rule=params["rule"], rounding=rounding, key=key, out=last
        )
        blocks.append(made)
        made.dequantize(out=out)

    return call


def _hadamard(equation: Equation, operands: list[Any], out: Array, *_: Any) -> BoundCall:
    (x,), axis, block = operands, equation.params["axis"], equation.params["block"]
    return lambda key: np.copyto(out, hadamard(x, axis, block=block))


def _words(array: Array) -> Array:
    """The same memory as unsigned integers, which NumPy moves fastest and for every format."""
    return array.view(f"u{array.itemsize}")


def _reshape(equation: Equation, operands: list[Any], out: Array, *_: Any) -> BoundCall:
    """One that strides cannot express."""
    source = _words(operands[0])
    place = _words(out).reshape(source.shape)
    return lambda key: np.copyto(place, source)


def _concatenate(equation: Equation, operands: list[Any], out: Array, *_: Any) -> BoundCall:
    axis, parts, place = equation.params["axis"], [_words(x) for x in operands], _words(out)
    return lambda key: np.concatenate(parts, axis, out=place)


def _pad(equation: Equation, operands: list[Any], out: Array, *_: Any) -> BoundCall:
    source, whole = _words(operands[0]), _words(out)
    place = whole[inner(source.shape, equation.params)]

    def call(key: Key | None) -> None:
        whole.fill(0)
        np.copyto(place, source)

    return call


def _gather(equation: Equation, operands: list[Any], out: Array, *_: Any) -> BoundCall:
    """Negative indices count from the last row."""
    table, indices, place = _words(operands[0]), operands[1], _words(out)
    rows = len(table)

    def call(key: Key | None) -> None:
        if indices.size and not -rows <= indices.min() <= indices.max() < rows:
            raise IndexError(f"indices from {indices.min()} to {indices.max()} are out of bounds for {rows} rows")
        table.take(indices, 0, place, "wrap")  # "raise" would make the result elsewhere first

    return call


def _set_row(equation: Equation, operands: list[Any], out: Array, *_: Any) -> BoundCall:
    """Where the result lies in the table's own memory one row is written, else the whole table."""
    row, place, table, result = _words(operands[0]), operands[1], _words(operands[2]), _words(out)
    same = result.__array_interface__ == table.__array_interface__

    def call(key: Key | None) -> None:
        if not same:
            np.copyto(result, table)
        result[place[0]] = row[0]

    return call


def _all_reduce(equation: Equation, operands: list[Any], out: Array, *given: Any) -> BoundCall:
    """Of a program that runs alone: as if every replica had what it has."""
    (x,), (_, control, _) = operands, given
    call = meeting(equation, control)
    every = np.broadcast_to(x, (int(equation.params["replicas"]), *x.shape))
    if equation.op == "reduce_scatter":
        return lambda key: tile_replicas.first_shard(call, every, key, out)
    return lambda key: call(every, key, out)


BINDINGS: dict[str, Callable[..., BoundCall]] = {
    "dot": _dot,
    "scaled_dot": _scaled_dot,
    **dict.fromkeys(CONVOLUTIONS, _convolution),
    "reduce_sum": _reduce_sum,
    "reduce_max": _reduce_max,
    "all_reduce": _all_reduce,
    GROUP_SUM: _all_reduce,
    "reduce_scatter": _all_reduce,
    "all_gather": lambda equation, operands, out, *_: lambda key: tile_replicas.gathered(operands[0], out),
    "all_reduce_max": _reshape,
    "first_replica": _reshape,
    "each_replica": _reshape,
    "scatter_add": _scatter_add,
    "scatter_max": _scatter_max,
    "put_along": _put_along,
    "take_along": _take_along,
    "top_indices": _top_indices,
    "one_hot": _one_hot,
    "dropout_mask": _dropout_mask,
    "to_blocks": _to_blocks,
    "hadamard": _hadamard,
    "reshape": _reshape,
    "concatenate": _concatenate,
    "pad": _pad,
    "gather": _gather,
    "set_row": _set_row,
}
