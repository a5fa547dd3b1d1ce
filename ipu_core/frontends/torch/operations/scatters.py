"""Operations that add where an index says: messages of a graph's edges to its nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ipu_core.frontends.torch.operations.call import NodeCall, axis, combined, is_integer, numbers
from ipu_core.frontends.torch.operations.shapes import as_one, joined, part, put_index
from ipu_core.ir.trace.array_moves import moveaxis
from ipu_core.ir.trace.values import Traced, Value, apply, concatenate, elementwise, reshape, shape_of, where
from ipu_core.nn.segments import scatter_add, segment_max


def _floats(x: Value) -> Value:
    return as_one(numbers(x))


def _index(index: Value) -> Value:
    """Numbers of rows, as int32."""
    if isinstance(index, Traced) and not is_integer(index):
        raise NotImplementedError("numbers that are computed say where it adds")
    return index if isinstance(index, Traced) else np.asarray(index, np.int32)


def index_added(call: NodeCall, x: Value, dim: int, index: Value, source: Value, alpha: float = 1) -> Value:
    """x with rows of a source added along an axis, one for each number of the index."""
    place = axis(x, dim)
    rows = moveaxis(_floats(source), place, 0)
    rows = rows if alpha == 1 else elementwise("multiply", rows, float(alpha))
    return moveaxis(scatter_add(moveaxis(_floats(x), place, 0), _index(index), rows), 0, place)


def scattered(call: NodeCall, x: Value, dim: int, index: Value, source: Value, *_: Any, **more: Any) -> Value:
    """x with each element of a source added at the number that stands at its place."""
    place = axis(x, dim)
    others = [shape_of(one)[:place] + shape_of(one)[place + 1 :] for one in (x, index)]
    if others[0] != others[1] or shape_of(index) != shape_of(source):
        raise NotImplementedError("an index of another shape than what it adds, or than what it adds to")
    lines, last = (moveaxis(one, place, -1) for one in (_index(index), _floats(source)))
    total = apply("put_along", lines, last, size=shape_of(x)[place])
    return elementwise("add", _floats(x), moveaxis(total, -1, place))


def reduced(
    call: NodeCall, x: Value, dim: int, index: Value, source: Value, reduce: str, include_self: bool = True
) -> Value:
    """Sums with what was there; the largest or smallest, with it or without.

    Raises:
        NotImplementedError: products and means; an index of another shape.
    """
    if reduce == "sum" and include_self:
        return scattered(call, x, dim, index, source)
    if reduce not in ("amax", "amin"):
        raise NotImplementedError(
            f"reduce={reduce!r}, include_self={include_self}: sums with what is there, and the largest or smallest"
        )
    place = axis(x, dim)
    rows = _along(call, index, place)
    lines, there = moveaxis(_floats(source), place, 0), moveaxis(_floats(x), place, 0)
    if shape_of(index) != shape_of(source) or shape_of(lines)[1:] != shape_of(there)[1:]:
        raise NotImplementedError("an index of another shape than what it reduces, or than what it reduces to")
    count = shape_of(there)[0]
    if include_self:
        rows, lines = joined(call, [np.arange(count, dtype=np.int32), rows]), concatenate([there, lines], 0)
    turned = reduce == "amin"
    found = segment_max(elementwise("negative", lines) if turned else lines, rows, count)
    found = elementwise("negative", found) if turned else found
    if not include_self:
        # a row that no number names stays as it is
        met = scatter_add(np.zeros(count, np.float32), rows, np.ones(shape_of(rows), np.float32))
        met = reshape(met, (count, *(1 for _ in shape_of(there)[1:])))
        found = combined("select", met, found, there)
    return moveaxis(found, 0, place)


def _along(call: NodeCall, index: Value, place: int) -> Value:
    """The numbers of an index along one axis.

    Raises:
        NotImplementedError: they are others at other places of the other axes.
    """
    # an expanded axis has no stride: which numbers stand there is not known of a batch's
    strides, shape = call.node.args[2].meta["val"].stride(), shape_of(index)
    others = [i for i in range(len(shape)) if i != place]
    if any(strides[i] and shape[i] > 1 for i in others):
        raise NotImplementedError("an index that is another along other axes: index.expand_as(source) is the same")
    numbers_of: Value = _index(index)
    for i in others:
        numbers_of = part(numbers_of, i, slice(0, 1))
    return reshape(numbers_of, -1)


def written(call: NodeCall, x: Value, dim: int, index: Value, source: Value, reduce: str | None = None) -> Value:
    """x with each element of a source, or one number, in place of what is at the number that stands at its place.

    Raises:
        NotImplementedError: several for one place, of which torch keeps any, or places of the batch that could be so.
    """
    if reduce is not None:
        raise NotImplementedError(f"reduce={reduce!r}: scatter_add adds")
    place, one = axis(x, dim), isinstance(source, int | float)
    if isinstance(index, Traced):
        if not one:
            raise NotImplementedError(
                "the batch may say one place twice, and torch keeps any: scatter_add into zeros, where it does not"
            )
        there = scattered(call, np.zeros(shape_of(x), np.float32), dim, index, np.ones(shape_of(index), np.float32))
        return where(there, float(source), _floats(x))
    index = np.asarray(index)
    grid = list(np.indices(index.shape))
    grid[place] = index
    to = np.ravel_multi_index(grid, shape_of(x)).ravel()
    if not one and np.unique(to).size < to.size:
        raise NotImplementedError("its index says one place twice, and torch keeps any")
    numbers_of = np.full(shape_of(x), -1, np.int32)
    if one:
        numbers_of.flat[to] = 0
        return where((numbers_of >= 0).astype(np.float32), float(source), _floats(x))
    numbers_of.flat[to] = np.ravel_multi_index(np.indices(index.shape), shape_of(source)).ravel()
    spread = apply("gather", reshape(_floats(source), -1), np.maximum(numbers_of, 0))
    return where((numbers_of >= 0).astype(np.float32), spread, _floats(x))


def put_or_added(
    call: NodeCall, x: Value, indices: Sequence[Value | None], new: Value, accumulate: bool = False
) -> Value:
    """New elements at places, or such that are added to rows by one index."""
    if not accumulate:
        return put_index(call, x, indices, new)
    index = indices[0]
    if len(indices) != 1 or index is None or "bool" in str(call.node.args[1][0].meta["val"].dtype):
        raise NotImplementedError("adds at places of several axes, or of a mask")
    if shape_of(new) != (*shape_of(index), *shape_of(x)[1:]):
        raise NotImplementedError("adds what is repeated")
    return scatter_add(_floats(x), _index(index), _floats(new))


TABLE: dict[str, Callable[..., Any]] = {
    "scatter": written,
    "index_add": index_added, "scatter_add": scattered, "scatter_reduce.two": reduced, "index_put": put_or_added,
}  # fmt: skip
