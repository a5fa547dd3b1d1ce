"""Primitives that write where an index says: `x.at[index].add`, `.set`, `.multiply`, sums and maxima of segments."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ipu_core.frontends.jax.operations.call import EquationCall
from ipu_core.frontends.jax.operations.moves import by_numbers
from ipu_core.frontends.torch.operations.call import numbers
from ipu_core.frontends.torch.operations.shapes import as_one
from ipu_core.ir.trace.values import Traced, Value, apply, elementwise, reshape, scope, shape_of, transpose, where


class Rows(NamedTuple):
    """What is written along the first axis of an array whose axes are brought into another order.

    Attributes:
        order: of the axes.
        index: the number of the row of each update, (...).
        updates: (..., the shape of a row).
        rows: how many rows there are.
        spare: 1 if numbers below 0 and beyond the last row are dropped: these have the number of one row more.
    """

    order: tuple[int, ...]
    index: Value
    updates: Value
    rows: int
    spare: int

    def reduced(self, op: str, updates: Value) -> Value:
        """The sums or maxima of updates by row, in the array's order of axes; 0 of a row without any."""
        total = apply(op, self.index, updates, rows=self.rows + self.spare)
        kept = total[: self.rows] if self.spare else total
        return transpose(kept, np.argsort(self.order).tolist())


def _rows(call: EquationCall, x: Value, index: Value, updates: Value) -> Rows:
    """What a scatter writes, as rows.

    Raises:
        NotImplementedError: it writes to places of more than two axes, in parts of rows, or clips its numbers.
    """
    places = call.params["dimension_numbers"]
    along, window = tuple(places.scatter_dims_to_operand_dims), tuple(places.update_window_dims)
    columns = [reshape(one, shape_of(one)[:-1]) for one in call.columns or (index,)]
    mode = str(call.params["mode"]).rpartition(".")[2]
    if tuple(places.inserted_window_dims) != along or places.operand_batching_dims or len(columns) != len(along):
        raise NotImplementedError("places of several axes, or parts of rows")
    if mode == "CLIP":
        raise NotImplementedError("numbers that are clipped")
    ndim = len(shape_of(x))
    order = (*along, *(i for i in range(ndim) if i not in along))
    before = [i for i in range(len(shape_of(updates))) if i not in window]
    lines, rows = transpose(as_one(numbers(updates)), (*before, *window)), shape_of(x)[along[0]]
    if len(columns) == 1:
        index, spare = _dropped(columns[0], rows, mode == "FILL_OR_DROP", call.from_end)
        return Rows(order, index, lines, rows, spare)
    if len(columns) > 2 or window or not call.from_end:
        raise NotImplementedError("places of several axes, or parts of rows")
    # one element for each place: it goes to its column of a row of zeros
    first, second = columns
    wide = apply("put_along", _alone(second), _alone(lines), size=shape_of(x)[along[1]])
    return Rows(order, first, wide, rows, 0)


def _dropped(index: Value, rows: int, drops: bool, from_end: bool) -> tuple[Value, int]:
    """Numbers of rows, and how many rows more there are for numbers that are of none, which have that of the first."""
    if not isinstance(index, Traced):
        inside = (np.asarray(index) >= 0) & (np.asarray(index) < rows)
        return np.where(inside, index, rows).astype(np.int32), int(not inside.all())
    # those that count from the end lie inside: others are refused when they come
    if not drops or from_end:
        return index, 0
    return where(elementwise("greater", 0, index), rows, elementwise("minimum", index, rows)), 1


def _alone(x: Value) -> Value:
    """With a last axis of 1."""
    x = x if isinstance(x, Traced) else np.asarray(x)
    return reshape(x, (*shape_of(x), 1))


def added(call: EquationCall, x: Value, index: Value, updates: Value) -> Value:
    """Rows, or single elements, added at places: `jax.ops.segment_sum`, `x.at[index].add`.

    Those of a place are added first, in their order, and their sum to x.
    """
    rows = _rows(call, x, index, updates)
    return elementwise("add", as_one(numbers(x)), rows.reduced("scatter_add", rows.updates))


def _hit(rows: Rows, x: Value) -> Value:
    """1 where something is written, else 0."""
    if len(shape_of(rows.index)) + len(shape_of(x)) - 1 != len(shape_of(rows.updates)):
        raise NotImplementedError("places of several axes")
    with scope([x, rows.updates, rows.index], family="norm"):
        ones = np.ones(shape_of(rows.index), np.float32)
        count = apply("scatter_add", rows.index, ones, rows=rows.rows + rows.spare)
        hit = elementwise("greater", count[: rows.rows] if rows.spare else count, 0.0)
        shape = [n if i == rows.order[0] else 1 for i, n in enumerate(shape_of(x))]
        return reshape(hit, shape)


def put(call: EquationCall, x: Value, index: Value, updates: Value) -> Value:
    """Rows put at places, `x.at[index].set`: of several at one place the last, which JAX leaves open."""
    if not isinstance(index, Traced):
        return by_numbers(call, [x, index, updates], (0, 2))
    if len(call.columns) > 1:
        raise NotImplementedError("places of several axes; jnp.where(mask, new, x) puts at any")
    rows = _rows(call, x, index, updates)
    lines, hit = rows.updates, _hit(rows, x)
    if not call.params["unique_indices"]:
        lines = _last(rows, lines)
    return where(hit, rows.reduced("scatter_add", lines), as_one(numbers(x)))


def _last(rows: Rows, updates: Value) -> Value:
    """Updates with zeros for all but the last of each place."""
    shape = shape_of(rows.index)
    with scope([rows.index, updates], family="norm"):  # float32: halves cannot count them
        order = np.arange(1, math.prod(shape) + 1, dtype=np.float32).reshape(shape)
        largest = apply("scatter_max", rows.index, order, rows=rows.rows + rows.spare)
        last = elementwise("equal", apply("gather", largest, rows.index), order)
        last = reshape(last, (*shape, *(1,) * (len(shape_of(updates)) - len(shape))))
    return where(last, updates, 0.0)


def multiplied(call: EquationCall, x: Value, index: Value, updates: Value) -> Value:
    """Rows multiplied at places that differ: `x.at[index].multiply(y, unique_indices=True)`."""
    if not call.params["unique_indices"]:
        raise NotImplementedError("places may come twice: x.at[index].multiply(y, unique_indices=True)")
    rows = _rows(call, x, index, updates)
    factor = where(_hit(rows, x), rows.reduced("scatter_add", rows.updates), 1.0)
    return elementwise("multiply", as_one(numbers(x)), factor)


def extreme(sign: int) -> Callable[..., Value]:
    """The largest or smallest of the rows of each segment: `jax.ops.segment_max`, an infinity of one without rows."""

    def made(call: EquationCall, x: Value, index: Value, updates: Value) -> Value:
        if isinstance(x, Traced) or not (np.asarray(x, np.float32) == -sign * np.inf).all():
            raise NotImplementedError(
                "beside what is there: jnp.maximum or jnp.minimum of x and jax.ops.segment_max or segment_min is"
            )
        rows = _rows(call, x, index, updates)
        lines = rows.updates if sign > 0 else elementwise("negative", rows.updates)
        found = rows.reduced("scatter_max", lines)
        return where(_hit(rows, x), found if sign > 0 else elementwise("negative", found), -sign * math.inf)

    return made


TABLE: dict[str, Callable[..., Any]] = {
    "scatter": put, "scatter-add": added, "scatter-mul": multiplied, "scatter-max": extreme(1),
    "scatter-min": extreme(-1),
}  # fmt: skip
SCATTERS: Sequence[str] = tuple(TABLE)
