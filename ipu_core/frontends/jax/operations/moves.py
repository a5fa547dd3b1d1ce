"""Primitives that move elements. Where constants say which, JAX itself moves the elements' numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ipu_core.frontends.jax.operations.call import EquationCall
from ipu_core.frontends.torch.operations.call import combined, is_integer, numbers
from ipu_core.frontends.torch.operations.shapes import as_one, cut, picked, taken
from ipu_core.ir.trace.array_moves import take_along_axis, tile
from ipu_core.ir.trace.values import (
    Traced,
    Value,
    apply,
    broadcast,
    concatenate,
    elementwise,
    reshape,
    shape_of,
    transpose,
)


def shaped(call: EquationCall, x: Value) -> Value:
    return reshape(x, call.shape)


def spread(call: EquationCall, x: Value) -> Value:
    """x with its axes at the given places of the result, repeated along the others."""
    shape = call.shape
    kept = [1] * len(shape)
    for place, size in zip(call.params["broadcast_dimensions"], shape_of(x), strict=True):
        kept[place] = size
    return broadcast(reshape(x, kept) if shape_of(x) else x, shape)


def sliced(call: EquationCall, x: Value) -> Value:
    start, stop = call.params["start_indices"], call.params["limit_indices"]
    step = call.params["strides"] or (1,) * len(start)
    return x[tuple(slice(*map(int, one)) for one in zip(start, stop, step, strict=True))]


def turned(call: EquationCall, x: Value) -> Value:
    for place in call.params["dimensions"]:
        x = taken(x, place, np.arange(shape_of(x)[place], dtype=np.int32)[::-1].copy())
    return x


def joined(call: EquationCall, *values: Value) -> Value:
    """Arrays concatenated along an axis; integers among floats become floats."""
    alike = all(is_integer(x) for x in values)
    pieces = [as_one(x if alike else numbers(x)) for x in values if math.prod(shape_of(x))]
    return pieces[0] if len(pieces) == 1 else concatenate(pieces, int(call.params["dimension"]))


def stacked(call: EquationCall, *values: Value) -> Value:
    place = int(call.params["axis"])
    shape = (*call.shape[:place], 1, *call.shape[place + 1 :])
    return concatenate([as_one(numbers(reshape(as_one(x), shape))) for x in values], place)


def padded(call: EquationCall, x: Value, number: Value) -> Value:
    """x padded by a constant, around and between its elements; negative amounts cut."""
    sides = [tuple(map(int, side)) for side in call.params["padding_config"]]
    if isinstance(number, Traced):
        raise NotImplementedError("the number around it is computed")
    # negative amounts cut after the gaps are made, and a slice before them is another thing
    if any(between and min(low, high) < 0 for low, high, between in sides):
        raise NotImplementedError("it cuts what lies between elements")
    cuts = [slice(max(0, -low), n - max(0, -high)) for (low, high, _), n in zip(sides, shape_of(x), strict=True)]
    low, high, between = (tuple(max(0, n) for n in group) for group in zip(*sides, strict=True))
    return surrounded(as_one(x)[tuple(cuts)], low, high, between, float(number))


def surrounded(x: Value, low: Sequence[int], high: Sequence[int], between: Sequence[int], number: float) -> Value:
    """With so many elements of a number before, behind and between those of each axis."""
    sides: dict[str, Any] = {"low": tuple(low), "high": tuple(high), "interior": tuple(between)}
    wide = apply("pad", numbers(x), **sides)
    if number == 0:
        return wide
    # pad writes zeros: a second one, of ones, says where the array is
    return combined("select", apply("pad", np.ones(shape_of(x), np.float32), **sides), wide, number)


def parts(call: EquationCall, x: Value) -> list[Value]:
    return cut(x, [int(n) for n in call.params["sizes"]], int(call.params["axis"]))


def repeated(call: EquationCall, x: Value) -> Value:
    return tile(x, [int(n) for n in call.params["reps"]])


def by_numbers(call: EquationCall, operands: Sequence[Value], moved: Sequence[int] = (0,), **changed: Any) -> Value:
    """The elements of some operands, moved as the primitive moves their numbers, given the other operands.

    Raises:
        NotImplementedError: another operand is computed.
    """
    if any(isinstance(x, Traced) for i, x in enumerate(operands) if i not in moved):
        raise NotImplementedError("the places are computed")
    arrays, given, start = [operands[i] for i in moved], list(operands), 0
    for i in moved:
        size = math.prod(shape_of(operands[i]))
        # JAX moves the numbers of the elements, and one look-up does to the elements what it did to them
        given[i] = np.arange(start, start + size, dtype=np.int32).reshape(shape_of(operands[i]))
        start += size
    places = np.asarray(call.bind(*given, **changed), np.int32)
    # -1 fills what JAX would take from beyond the array
    if places.size and places.min() < 0:
        raise NotImplementedError("places beyond the array")
    alike = all(is_integer(x) for x in arrays)
    flat = [reshape(as_one(x if alike else numbers(x)), -1) for x in arrays]
    return apply("gather", flat[0] if len(flat) == 1 else concatenate(flat, 0), places)


def gathered(call: EquationCall, x: Value, index: Value) -> Value:
    """Elements by number: rows of one axis, one element for each row, or at constant places.

    Numbers of the batch lie inside, below 0 they count from the end; others are refused when they come, or clipped
    where that is said.
    """
    if not isinstance(index, Traced):
        return by_numbers(call, [x, index], fill_value=-1)
    places, sizes = call.params["dimension_numbers"], call.params["slice_sizes"]
    columns = [reshape(one, shape_of(one)[:-1]) for one in call.columns or (index,)]
    collapsed, along = tuple(places.collapsed_slice_dims), tuple(places.start_index_map)
    if str(call.params["mode"]).endswith("CLIP") and len(columns) == len(along):
        sides = [shape_of(x)[place] - 1 for place in along]
        columns = [_clipped(one, last, call.from_end) for one, last in zip(columns, sides, strict=True)]
    whole = all(size == n for i, (size, n) in enumerate(zip(sizes, shape_of(x), strict=True)) if i in collapsed)
    rest = [i for i in range(len(sizes)) if i not in collapsed and i not in places.operand_batching_dims]
    if collapsed != along or any(sizes[i] != shape_of(x)[i] for i in rest) or (whole and not collapsed):
        raise NotImplementedError("parts at places that are computed")
    if len(columns) == 1 and places.operand_batching_dims:
        if rest:
            raise NotImplementedError("rows at places that are computed, for each row of others")
        return take_along_axis(x, columns[0], along[0])
    if len(columns) == 1:
        return _as_said(taken(transpose(x, (*along, *rest)), 0, columns[0]), places.offset_dims)
    if along != tuple(range(len(columns))):
        raise NotImplementedError("several indices of other axes than the first")
    *before, last = columns
    grid = np.indices(shape_of(last))
    if any(isinstance(one, Traced) or not np.array_equal(one, here) for one, here in zip(before, grid, strict=False)):
        # rows by the first index, of each the element by the next
        x, before = apply("gather", x, before[0]), before[1:]
        for one in before:
            x = picked(x, one)
    return _as_said(picked(x, last), places.offset_dims)


def _clipped(index: Value, last: int, from_end: bool) -> Value:
    """Numbers that lie inside, those beyond at the ends; below 0 they may count from the end."""
    index = index if isinstance(index, Traced) else np.asarray(index, np.int32)
    return elementwise("minimum", index if from_end else elementwise("maximum", index, 0), last)


def _as_said(rows: Value, offset: Sequence[int]) -> Value:
    """Rows (*index, *rest) with the axes of the rest at the places of the result that are said."""
    ndim = len(shape_of(rows))
    after, before = iter(range(ndim - len(offset), ndim)), iter(range(ndim))
    return transpose(rows, [next(after) if i in offset else next(before) for i in range(ndim)])


TABLE: dict[str, Callable[..., Any]] = {
    "reshape": shaped, "squeeze": shaped, "expand_dims": shaped, "broadcast_in_dim": spread, "slice": sliced,
    "transpose": lambda call, x: transpose(x, [int(i) for i in call.params["permutation"]]),
    "rev": turned, "concatenate": joined, "stack": stacked, "pad": padded, "split": parts, "tile": repeated,
    "gather": gathered, "dynamic_slice": lambda call, *given: by_numbers(call, given),
    "dynamic_update_slice": lambda call, *given: by_numbers(call, given, (0, 1)),
}  # fmt: skip
