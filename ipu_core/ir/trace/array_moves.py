"""NumPy's functions that move elements, on traced values and arrays: exact, composed of a Block's moves and views."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ipu_core.ir.block import Array
from ipu_core.ir.trace.values import (
    Traced,
    Value,
    apply,
    axes_of,
    broadcast,
    concatenate,
    index_basic,
    reduce_sum,
    reshape,
    shape_of,
    transpose,
    where,
)

Axis = int | Sequence[int] | None


def moveaxis(a: Value, source: int | Sequence[int], destination: int | Sequence[int]) -> Value:
    """Axes moved to other places, the others in their order."""
    ndim = len(shape_of(a))
    origins, places = ([n % ndim for n in np.atleast_1d(one)] for one in (source, destination))
    order = [axis for axis in range(ndim) if axis not in origins]
    # From the first place on: each insertion leaves the places before it where they are.
    for place, origin in sorted(zip(places, origins, strict=True)):
        order.insert(place, origin)
    return transpose(a, order)


def swapaxes(a: Value, axis1: int, axis2: int) -> Value:
    """Two axes exchanged."""
    order = list(range(len(shape_of(a))))
    order[axis1], order[axis2] = order[axis2], order[axis1]
    return transpose(a, order)


def expand_dims(a: Value, axis: int | Sequence[int]) -> Value:
    """New axes of length one."""
    new = (axis,) if isinstance(axis, int) else tuple(axis)
    ndim = len(shape_of(a)) + len(new)
    places, sizes = {n % ndim for n in new}, iter(shape_of(a))
    return reshape(a, [1 if n in places else next(sizes) for n in range(ndim)])


def squeeze(a: Value, axis: Axis = None) -> Value:
    """Without axes of length one, all or those named."""
    shape = shape_of(a)
    gone = [n for n, size in enumerate(shape) if size == 1] if axis is None else axes_of(a, axis)
    if any(shape[n] != 1 for n in gone):
        raise ValueError(f"squeeze: axis {axis} of the shape {shape} has another length than 1")
    return reshape(a, [size for n, size in enumerate(shape) if n not in gone])


def ravel(a: Value) -> Value:
    """All elements in C order along one axis."""
    return reshape(a, (math.prod(shape_of(a)),))


def stack(arrays: Sequence[Value], axis: int = 0) -> Value:
    """Values of one shape along a new axis."""
    place = axis % (len(shape_of(arrays[0])) + 1)
    return concatenate([expand_dims(x, place) for x in arrays], place)


def vstack(tup: Sequence[Value]) -> Value:
    """Values along the first axis, of two at least."""
    return concatenate([reshape(x, (1, -1)) if len(shape_of(x)) < 2 else x for x in tup], 0)


def hstack(tup: Sequence[Value]) -> Value:
    """Values along the second axis, or the only one."""
    return concatenate(tup, 0 if len(shape_of(tup[0])) == 1 else 1)


def array_split(ary: Value, indices_or_sections: int | Sequence[int], axis: int = 0) -> list[Value]:
    """Runs along an axis: as many as a number says, or between indices."""
    (place,) = axes_of(ary, axis)
    size = shape_of(ary)[place]
    if isinstance(indices_or_sections, int):
        each, more = divmod(size, indices_or_sections)
        borders = np.cumsum([each + (n < more) for n in range(indices_or_sections)])[:-1]
    else:
        borders = np.asarray(indices_or_sections)
    ends = [0, *(int(n) for n in borders), size]
    before = (slice(None),) * place
    return [index_basic(ary, (*before, slice(a, b))) for a, b in itertools.pairwise(ends)]


def split(ary: Value, indices_or_sections: int | Sequence[int], axis: int = 0) -> list[Value]:
    """`array_split` into equal runs, or between indices."""
    size = shape_of(ary)[axes_of(ary, axis)[0]]
    if isinstance(indices_or_sections, int) and size % indices_or_sections:
        raise ValueError(f"split: {indices_or_sections} equal parts of {size} there are not; see np.array_split")
    return array_split(ary, indices_or_sections, axis)


def take(a: Value, indices: Any, axis: int | None = None) -> Value:
    """The slices of an axis with int32 numbers, given or traced."""
    if axis is None:
        a, axis = ravel(a), 0
    (place,) = axes_of(a, axis)
    if isinstance(indices, int):
        return index_basic(a, (*(slice(None),) * place, indices))
    rows = apply("gather", moveaxis(a, place, 0), indices if isinstance(indices, Traced) else np.asarray(indices))
    count = len(shape_of(indices))
    return moveaxis(rows, tuple(range(count)), tuple(range(place, place + count)))


def take_along_axis(arr: Value, indices: Value, axis: int = -1) -> Value:
    """The elements at int32 indices along an axis, of which every other place has its own."""
    (place,) = axes_of(arr, axis)
    shape, own = shape_of(arr), shape_of(indices)
    if len(own) == len(shape):
        others = np.broadcast_shapes(*((*one[:place], 1, *one[place + 1 :]) for one in (shape, own)))
        arr, indices = (
            broadcast(x, (*others[:place], shape_of(x)[place], *others[place + 1 :])) for x in (arr, indices)
        )
    return moveaxis(apply("take_along", moveaxis(arr, place, -1), moveaxis(indices, place, -1)), -1, place)


def flip(m: Value, axis: Axis = None) -> Value:
    """Axes read backwards."""
    for place in axes_of(m, axis):
        m = take(m, np.arange(shape_of(m)[place])[::-1].astype(np.int32), place)
    return m


def roll(a: Value, shift: int, axis: int | None = None) -> Value:
    """Elements moved along an axis, those that leave it coming in again; without one, of all in C order."""
    if axis is None:
        return reshape(roll(ravel(a), shift, 0), shape_of(a))
    (place,) = axes_of(a, axis)
    size = shape_of(a)[place]
    parts = array_split(a, [size - shift % size if size else 0], place)
    return concatenate(parts[::-1], place)


def repeat(a: Value, repeats: int, axis: int | None = None) -> Value:
    """Every element so many times in a row; without an axis, of all in C order."""
    if axis is None:
        a, axis = ravel(a), 0
    (place,) = axes_of(a, axis)
    shape = shape_of(a)
    wide = broadcast(expand_dims(a, place + 1), (*shape[: place + 1], int(repeats), *shape[place + 1 :]))
    return reshape(wide, (*shape[:place], shape[place] * int(repeats), *shape[place + 1 :]))


def tile(A: Value, reps: int | Sequence[int]) -> Value:
    """The whole array so many times along each axis."""
    times = (reps,) if isinstance(reps, int) else tuple(reps)
    ndim = max(len(times), len(shape_of(A)))
    shape = (1,) * (ndim - len(shape_of(A))) + shape_of(A)
    times = (1,) * (ndim - len(times)) + times
    # A new axis before each, which is broadcast: copies come before the elements within.
    pairs = [n for size in shape for n in (1, size)]
    wide = [n for time, size in zip(times, shape, strict=True) for n in (time, size)]
    return reshape(broadcast(reshape(A, pairs), wide), [t * n for t, n in zip(times, shape, strict=True)])


def pad(array: Value, pad_width: Any, mode: str = "constant", constant_values: float = 0.0) -> Value:
    """A border of one number."""
    if mode != "constant":
        raise ValueError(f"np.pad of a traced value has mode 'constant', not {mode!r}; concatenate slices instead")
    widths = np.broadcast_to(np.asarray(pad_width, int), (len(shape_of(array)), 2)).tolist()
    low, high = tuple(w[0] for w in widths), tuple(w[1] for w in widths)

    def padded(x: Value) -> Value:
        return apply("pad", x, low=low, high=high, interior=(0,) * len(low))

    if constant_values == 0:
        return padded(array)
    # The pad of ones is 1 where the array is: a pad alone makes zeros.
    inside = padded(np.ones(shape_of(array), np.float32))
    return where(inside, padded(array), float(constant_values))


def tril(m: Value, k: int = 0) -> Value:
    """What lies on and below a diagonal, else 0."""
    return where(_triangle(m, k), m, 0.0)


def triu(m: Value, k: int = 0) -> Value:
    """What lies on and above a diagonal, else 0."""
    return where(_triangle(m, k - 1), 0.0, m)


def trace(a: Value) -> Value:
    """The sum of the diagonal of the first two axes."""
    return reduce_sum(where(np.eye(*shape_of(a)[:2], dtype=np.float32), moveaxis(a, (0, 1), (-2, -1)), 0.0), (-2, -1))


def _triangle(m: Value, k: int) -> Array:
    rows, columns = shape_of(m)[-2:]
    return np.tri(rows, columns, k, dtype=np.float32)
