"""Operations that move elements, and what a write through a view of them does to what it shows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ipu_core.frontends.torch.operations.call import NodeCall, axis, combined, is_integer, looked_up, numbers, ones_at
from ipu_core.ir.trace.values import (
    Traced,
    Value,
    apply,
    broadcast,
    concatenate,
    reduce_sum,
    reshape,
    shape_of,
    transpose,
)


def part(x: Value, dim: int, index: int | slice) -> Value:
    """Some places along one axis."""
    return x[(slice(None),) * axis(x, dim) + (index,)]


def with_part(x: Value, dim: int, start: int, stop: int, new: Value) -> Value:
    """x with the elements from start to stop along one axis replaced by new ones."""
    pieces = [part(x, dim, slice(0, start)), new, part(x, dim, slice(stop, None))]
    # values are never written to: a write is a new value, and empty pieces are left out
    return concatenate([as_one(p) for p in pieces if shape_of(p)[axis(x, dim)]], axis(x, dim))


def as_one(x: Value) -> Value:
    """An array of float32, or of the float64 that it has, where it is a constant."""
    if isinstance(x, Traced) or is_integer(x) or getattr(x, "dtype", None) == np.float64:
        return x
    return np.asarray(x, np.float32)


def permuted(call: NodeCall, x: Value, dims: Sequence[int]) -> Value:
    return transpose(x, [axis(x, dim) for dim in dims])


def swapped(call: NodeCall, x: Value, first: int = -1, second: int = -2) -> Value:
    order = list(range(len(shape_of(x))))
    if len(order) > 1:
        first, second = axis(x, first), axis(x, second)
        order[first], order[second] = second, first
    return transpose(x, order)


def shaped(call: NodeCall, x: Value, *_: Any) -> Value:
    """x in the shape that torch recorded for the result, whatever the arguments are."""
    return reshape(x, call.shape)


def expanded(call: NodeCall, x: Value, *_: Any) -> Value:
    return broadcast(x, call.shape)


def broadcast_together(call: NodeCall, values: Sequence[Value]) -> list[Value]:
    shape = np.broadcast_shapes(*map(shape_of, values))
    return [broadcast(x, shape) for x in values]


def bounds(x: Value, dim: int, start: int | None, stop: int | None, step: int = 1) -> slice:
    size = shape_of(x)[dim]
    return slice(*slice(start, None if stop is None or stop > size else stop, step).indices(size))


def sliced(call: NodeCall, x: Value, dim: int = 0, start: Any = None, stop: Any = None, step: int = 1) -> Value:
    return part(x, dim, bounds(x, dim, start, stop, step))


def put_slice(
    call: NodeCall, x: Value, new: Value, dim: int = 0, start: Any = None, stop: Any = None, step: int = 1
) -> Value:
    where = bounds(x, dim, start, stop, step)
    if step != 1:
        raise NotImplementedError("writes in place to every other place")
    return with_part(x, dim, where.start, where.stop, new)


def narrowed(call: NodeCall, x: Value, dim: int, start: int, length: int) -> Value:
    return sliced(call, x, dim, start, start + length)


def put_narrow(call: NodeCall, x: Value, new: Value, dim: int, start: int, length: int) -> Value:
    return put_slice(call, x, new, dim, start, start + length)


def selected(call: NodeCall, x: Value, dim: int, index: int) -> Value:
    return part(x, dim, index % shape_of(x)[dim])


def put_select(call: NodeCall, x: Value, new: Value, dim: int, index: int) -> Value:
    start, kept = index % shape_of(x)[dim], list(shape_of(x))
    kept[axis(x, dim)] = 1
    return with_part(x, dim, start, start + 1, reshape(new, kept))


def put_whole(call: NodeCall, x: Value, new: Value, *_: Any) -> Value:
    """A write through a view that shows every element in order."""
    return reshape(new, shape_of(x))


def put_permuted(call: NodeCall, x: Value, new: Value, dims: Sequence[int]) -> Value:
    return transpose(new, np.argsort([axis(x, dim) for dim in dims]).tolist())


def put_swapped(call: NodeCall, x: Value, new: Value, first: int = -1, second: int = -2) -> Value:
    return swapped(call, new, first, second)


def cut(x: Value, sizes: Sequence[int], dim: int) -> list[Value]:
    """Runs of the given sizes along an axis."""
    ends = np.cumsum(sizes).tolist()
    return [part(x, dim, slice(end - size, end)) for size, end in zip(sizes, ends, strict=True)]


def runs(call: NodeCall, x: Value, *arguments: Any) -> list[Value]:
    """x cut along an axis into pieces of the sizes that torch recorded for the results."""
    dim = arguments[-1] if len(arguments) > 1 and isinstance(arguments[-1], int) else 0
    return cut(x, [fake.shape[dim] for fake in call.node.meta["val"]], dim)


def unbound(call: NodeCall, x: Value, dim: int = 0) -> list[Value]:
    return [part(x, dim, i) for i in range(shape_of(x)[dim])]


def joined(call: NodeCall, values: Sequence[Value], dim: int = 0) -> Value:
    # torch lets an empty vector stand among arrays of any shape
    values = [x for x in values if shape_of(x) != (0,)]
    integers = all(is_integer(x) for x in values)
    given = [as_one(x if integers else numbers(x)) for x in values]
    return given[0] if len(given) == 1 else concatenate(given, axis(given[0], dim))


def stacked(call: NodeCall, values: Sequence[Value], dim: int = 0) -> Value:
    place = dim % (len(shape_of(values[0])) + 1)
    return joined(call, [reshape(as_one(x), (*shape_of(x)[:place], 1, *shape_of(x)[place:])) for x in values], place)


def repeated(call: NodeCall, x: Value, repeats: Sequence[int]) -> Value:
    """The whole array so many times along each axis."""
    repeats = (*(1,) * (len(shape_of(x)) - len(repeats)), *repeats)
    sizes = (1,) * (len(repeats) - len(shape_of(x))) + shape_of(x)
    apart = reshape(x, [n for size in sizes for n in (1, size)])
    return reshape(broadcast(apart, [n for pair in zip(repeats, sizes, strict=True) for n in pair]), call.shape)


def each_repeated(call: NodeCall, x: Value, repeats: int, dim: int | None = None, *_: Any) -> Value:
    """Each element so many times along an axis."""
    if not isinstance(repeats, int):
        raise NotImplementedError("different numbers of repetitions")
    if dim is None:
        x, dim = reshape(x, -1), 0
    return repeated_along(x, axis(x, dim), repeats)


def repeated_along(x: Value, place: int, times: int) -> Value:
    """Each element so many times along an axis, side by side."""
    shape = shape_of(x)
    apart = reshape(x, (*shape[: place + 1], 1, *shape[place + 1 :]))
    whole = broadcast(apart, (*shape[: place + 1], times, *shape[place + 1 :]))
    return reshape(whole, (*shape[:place], shape[place] * times, *shape[place + 1 :]))


def taken(x: Value, dim: int, index: Value) -> Value:
    """Rows of an axis by number: (..., axis, ...) -> (..., *shape of the index, ...)."""
    place, count = axis(x, dim), len(shape_of(index))
    ndim = len(shape_of(x))
    front = transpose(x, (place, *(i for i in range(ndim) if i != place)))
    rows = looked_up(as_one(front), index)
    after = range(count + place, ndim + count - 1)
    return transpose(rows, (*range(count, count + place), *range(count), *after))


def flipped(call: NodeCall, x: Value, dims: Sequence[int]) -> Value:
    for dim in dims:
        x = taken(x, dim, np.arange(shape_of(x)[dim], dtype=np.int32)[::-1].copy())
    return x


def rolled(call: NodeCall, x: Value, shifts: Any, dims: Any = ()) -> Value:
    shifts, dims = ([n] if isinstance(n, int) else n for n in (shifts, dims))
    if not dims:
        return reshape(rolled(call, reshape(x, -1), shifts, [0]), shape_of(x))
    for shift, dim in zip(shifts, dims, strict=True):
        size = shape_of(x)[dim]
        if shift % size:
            pieces = [part(x, dim, slice(-shift % size, None)), part(x, dim, slice(0, -shift % size))]
            x = concatenate(pieces, axis(x, dim))
    return x


def padded(call: NodeCall, x: Value, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Value:
    """x padded by zeros, a number, or elements from inside; negative amounts cut."""
    for number, (low, high) in enumerate(zip(pad[::2], pad[1::2], strict=True)):
        x = _padded(call, x, len(shape_of(x)) - 1 - number, low, high, mode, value or 0.0)
    return x


def _padded(call: NodeCall, x: Value, dim: int, low: int, high: int, mode: str, value: float) -> Value:
    size = shape_of(x)[dim]
    x = part(x, dim, slice(max(0, -low), size - max(0, -high))) if low < 0 or high < 0 else x
    low, high, size = max(0, low), max(0, high), shape_of(x)[dim]
    if not low and not high:
        return x
    if mode != "constant":
        kinds = {"reflect": "reflect", "replicate": "edge", "circular": "wrap"}
        # the modes of np.pad on row numbers, then a look-up: one way for all three
        rows: Any = np.pad(np.arange(size), (low, high), kinds[mode])  # type: ignore[call-overload]
        return taken(x, dim, rows.astype(np.int32))
    if value == 0 or not isinstance(x, Traced):
        sides = [(low, high) if i == dim else (0, 0) for i in range(len(shape_of(x)))]
        before, after = zip(*sides, strict=True)
        return apply("pad", x, low=before, high=after, interior=(0,) * len(sides))
    shape, dtype = list(shape_of(x)), np.int32 if is_integer(x) else call.width
    ends = []
    for count in (low, high):
        shape[dim] = count
        ends.append(np.full(shape, value, dtype))
    return concatenate([e for e in (ends[0], x, ends[1]) if shape_of(e)[dim]], dim)


def indexed(call: NodeCall, x: Value, indices: Sequence[Value | None]) -> Value:
    """x[indices] for arrays of numbers, one or several, or constant masks."""
    places = [i for i, index in enumerate(indices) if index is not None]
    given = [_rows(call, i, indices[i]) for i in places]
    if len(given) == 1 and not isinstance(given[0], tuple):
        return taken(x, places[0], given[0])
    flat = [part for one in given for part in (one if isinstance(one, tuple) else (one,))]
    first, count = places[0], len(flat)
    if places != list(range(first, first + len(places))):  # NumPy's rule: what they give comes first
        x, first = transpose(x, (*places, *(i for i in range(len(shape_of(x))) if i not in places))), 0
    if any(isinstance(index, Traced) for index in flat):
        return _picked(x, first, flat)
    sizes = shape_of(x)[first : first + count]
    rows = np.ravel_multi_index(np.broadcast_arrays(*(np.asarray(i) % n for i, n in zip(flat, sizes, strict=True))),
                                sizes).astype(np.int32)  # fmt: skip
    merged = reshape(x, (*shape_of(x)[:first], math.prod(sizes), *shape_of(x)[first + count :]))
    return taken(merged, first, rows)


def _rows(call: NodeCall, position: int, index: Value) -> Any:
    """An index as numbers of rows; a mask of several axes as one index for each."""
    node = call.node.args[1][position]
    if "bool" not in str(node.meta["val"].dtype):
        return index
    if isinstance(index, Traced):
        raise NotImplementedError(
            "the shape of its result depends on the data: torch.where keeps it, and so does a product with the mask"
        )
    found = tuple(i.astype(np.int32) for i in np.nonzero(index))
    return found[0] if len(found) == 1 else found


def _picked(x: Value, first: int, indices: Sequence[Value]) -> Value:
    """x[arange(n), rows] where the rows are of the batch: by one row of ones and zeros each."""
    rows, other = indices[0], indices[-1]
    n = shape_of(x)[first]
    # x[arange(n), labels], the common form; other pairs of indices could repeat rows
    whole = not isinstance(rows, Traced) and np.array_equal(np.asarray(rows), np.arange(n))
    if len(indices) != 2 or first != 0 or not whole or shape_of(other) != (n,):
        raise NotImplementedError("several indices of which one depends on the batch")
    return picked(x, other)


def picked(x: Value, index: Value) -> Value:
    """For each row of the first axes of x, which are those of the index, the element of the next axis it says."""
    count = len(shape_of(index))
    ones = ones_at(index, shape_of(x)[count])
    rest = shape_of(x)[count + 1 :]
    ones = reshape(ones, (*shape_of(ones), *(1,) * len(rest)))
    return reduce_sum(combined("select", ones, x, 0.0), count)


def gathered(call: NodeCall, x: Value, dim: int, index: Value, *_: Any) -> Value:
    """Elements of an axis by number: by ones and zeros, or where the numbers are constant by their places."""
    if not isinstance(index, Traced):
        index = np.asarray(index)
        grid = list(np.indices(index.shape))
        grid[axis(x, dim)] = index
        return apply("gather", reshape(x, -1), np.ravel_multi_index(grid, shape_of(x)).astype(np.int32))
    place, ndim = axis(x, dim), len(shape_of(x))
    if [n for i, n in enumerate(shape_of(x)) if i != place] != [n for i, n in enumerate(shape_of(index)) if i != place]:
        raise NotImplementedError("it takes a part of the rows")
    order = (*(i for i in range(ndim) if i != place), place)
    rows, lines = transpose(index, order), transpose(x, order)
    count = shape_of(rows)[-1]
    several = broadcast(reshape(lines, (*shape_of(lines)[:-1], 1, shape_of(lines)[-1])),
                        (*shape_of(lines)[:-1], count, shape_of(lines)[-1]))  # fmt: skip
    return transpose(picked(several, rows), np.argsort(order).tolist())


def triangle(keep: Callable[..., Any]) -> Callable[..., Value]:
    def kept(call: NodeCall, x: Value, diagonal: int = 0) -> Value:
        mask = keep(np.ones(shape_of(x)[-2:], np.float32), diagonal)
        return combined("select", mask, x, 0.0)

    return kept


def put_index(call: NodeCall, x: Value, indices: Sequence[Value | None], new: Value) -> Value:
    """x with new elements at constant places: those of a mask, or of one index each for the first axes."""
    if any(isinstance(i, Traced) for i in indices):
        mask = indices[0]
        if len(indices) == 1 and "bool" in str(call.node.args[1][0].meta["val"].dtype) and shape_of(new) in ((), (1,)):
            mask = reshape(mask, (*shape_of(mask), *(1,) * (len(shape_of(x)) - len(shape_of(mask)))))
            return combined("select", mask, new if shape_of(new) == () else reshape(new, ()), x)
        raise NotImplementedError("writes where the batch says")
    pairs = zip(indices, call.node.args[1], strict=True)
    keys = tuple(slice(None) if i is None else np.asarray(i).astype(
        bool if "bool" in str(node.meta["val"].dtype) else np.int64) for i, node in pairs)  # fmt: skip
    # NumPy itself says which element of `new` goes where: it is asked with their numbers
    numbers_of = np.full(shape_of(x), -1, np.int64)
    size = numbers_of[keys].size
    if not size:
        return x
    numbers_of[keys] = np.arange(size).reshape(numbers_of[keys].shape)
    flat = reshape(broadcast(as_one(new), np.empty(shape_of(x), np.uint8)[keys].shape), -1)
    spread = apply("gather", flat, np.maximum(numbers_of, 0).astype(np.int32))
    return combined("select", (numbers_of >= 0).astype(np.float32), spread, x)


def shuffled_pixels(call: NodeCall, x: Value, factor: int) -> Value:
    n, channels, high, wide = shape_of(x)
    apart = reshape(x, (n, channels // factor**2, factor, factor, high, wide))
    return reshape(transpose(apart, (0, 1, 4, 2, 5, 3)), call.shape)


def moved(call: NodeCall, x: Value, source: Any, destination: Any) -> Value:
    sources, places = ([axis(x, n)] if isinstance(n, int) else [axis(x, d) for d in n] for n in (source, destination))
    order = [i for i in range(len(shape_of(x))) if i not in sources]
    for place, given in sorted(zip(places, sources, strict=True)):
        order.insert(place, given)
    return transpose(x, order)


TABLE: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("view", "reshape", "flatten", "unflatten", "unsqueeze", "squeeze"), shaped),
    **dict.fromkeys(("view_as", "reshape_as", "ravel"), shaped),
    **dict.fromkeys(("expand", "expand_as", "broadcast_to"), expanded),
    "broadcast_tensors": broadcast_together,
    "permute": permuted, "transpose": swapped, "swapaxes": swapped, "swapdims": swapped, "movedim": moved,
    "t": swapped, "mT": swapped, "numpy_T": lambda call, x: transpose(x),
    "slice": sliced, "select": selected, "narrow": narrowed,
    "chunk": runs, "split": runs, "split_with_sizes": runs, "tensor_split": runs,
    "unbind": unbound,
    "cat": joined, "stack": stacked,
    "hstack": lambda call, values: joined(call, values, 0 if len(shape_of(values[0])) == 1 else 1),
    "repeat": repeated, "tile": repeated, "repeat_interleave.self_int": each_repeated,
    "flip": flipped, "roll": rolled,
    "pad": padded, "constant_pad_nd": lambda call, x, pad, value=0: padded(call, x, pad, "constant", value),
    "index": indexed,
    "index_select": lambda call, x, dim, index: taken(x, dim, index),
    "gather": gathered, "tril": triangle(np.tril), "triu": triangle(np.triu), "pixel_shuffle": shuffled_pixels,
}  # fmt: skip

PIECES = {"chunk", "split", "split_with_sizes", "tensor_split", "unbind"}
"""Operations with several results, which are views that nothing can be written through."""

VIEWS: dict[str, tuple[Callable[..., Value], Callable[..., Value] | None]] = {
    **{name: (shaped, put_whole) for name in ("view", "reshape", "flatten", "unflatten", "unsqueeze", "squeeze")},
    **{name: (shaped, put_whole) for name in ("view_as", "reshape_as", "ravel")},
    **{name: (expanded, None) for name in ("expand", "expand_as", "broadcast_to")},
    **{name: (swapped, put_swapped) for name in ("transpose", "t", "mT", "swapaxes", "swapdims")},
    "permute": (permuted, put_permuted), "movedim": (moved, None), "numpy_T": (lambda call, x: transpose(x), None),
    "slice": (sliced, put_slice), "select": (selected, put_select), "narrow": (narrowed, put_narrow),
    **{name: (lambda call, x, *_: x, put_whole) for name in ("alias", "detach", "contiguous")},
}  # fmt: skip
"""Operations whose result is a view: (base -> view, (base, new view) -> new base or None: no writes)."""
