"""More operations that move elements: diagonals, stacks, grids, channels, and rows of tables added up in bags."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ipu_core.frontends.torch.operations.call import NodeCall, axis, combined, looked_up
from ipu_core.frontends.torch.operations.shapes import flipped, gathered, joined, shaped, swapped, taken
from ipu_core.ir.trace.values import (
    Traced,
    Value,
    broadcast,
    matmul,
    reduce_max,
    reduce_sum,
    reshape,
    shape_of,
    transpose,
)

SUM, MEAN, MAX = 0, 1, 2  # torch's numbers of what becomes of a bag


def diagonal(call: NodeCall, x: Value, offset: int = 0, first: int = 0, second: int = 1) -> Value:
    """The diagonal of two axes, along a new last one."""
    one, two = axis(x, first), axis(x, second)
    order = (*(i for i in range(len(shape_of(x))) if i not in (one, two)), one, two)
    x = transpose(x, order)
    high, wide = shape_of(x)[-2:]
    rows = np.arange(max(0, -offset), max(0, -offset) + call.shape[-1])
    flat = reshape(x, (*shape_of(x)[:-2], high * wide))
    return taken(flat, -1, (rows * wide + rows + offset).astype(np.int32))


def trace(call: NodeCall, x: Value) -> Value:
    count = min(shape_of(x))
    return reduce_sum(taken(reshape(x, -1), 0, (np.arange(count) * (shape_of(x)[1] + 1)).astype(np.int32)))


def embedded(call: NodeCall, x: Value, offset: int = 0, first: int = -2, second: int = -1) -> Value:
    """A matrix with the elements of the last axis on its diagonal."""
    if offset or (first, second) != (-2, -1):
        raise NotImplementedError("another diagonal than that of the last two axes")
    n = shape_of(x)[-1]
    whole = broadcast(reshape(x, (*shape_of(x), 1)), (*shape_of(x), n))
    # a choice: infinities must not be multiplied by 0
    return combined("select", np.eye(n, dtype=np.float32), whole, 0.0)


def stacked_along(ndim: int, place: int) -> Callable[..., Value]:
    """Arrays of at least so many axes, one after another."""

    def stack(call: NodeCall, values: Sequence[Value]) -> Value:
        return joined(call, [with_axes(x, ndim) for x in values], place)

    return stack


def with_axes(x: Value, ndim: int) -> Value:
    """torch.atleast_2d and atleast_3d."""
    shape = shape_of(x)
    if len(shape) >= ndim:
        return x
    new = {0: (1,) * ndim, 1: (1, *shape, 1)[:ndim], 2: (*shape, 1)}[len(shape)]
    return reshape(x, new)


def as_columns(call: NodeCall, values: Sequence[Value]) -> Value:
    every = [reshape(x, (-1, 1)) if len(shape_of(x)) < 2 else x for x in values]
    return joined(call, every, 1)


def gathered_pixels(call: NodeCall, x: Value, factor: int) -> Value:
    *front, channels, high, wide = shape_of(x)
    apart = reshape(x, (*front, channels, high // factor, factor, wide // factor, factor))
    n = len(front)
    return reshape(transpose(apart, (*range(n), n, n + 2, n + 4, n + 1, n + 3)), call.shape)


def shuffled_channels(call: NodeCall, x: Value, groups: int) -> Value:
    n, channels, *rest = shape_of(x)
    apart = reshape(x, (n, groups, channels // groups, *rest))
    return reshape(transpose(apart, (0, 2, 1, *range(3, 3 + len(rest)))), call.shape)


def turned(call: NodeCall, x: Value, k: int = 1, dims: Sequence[int] = (0, 1)) -> Value:
    for _ in range(k % 4):
        x = flipped(call, swapped(call, x, *dims), [dims[0]])
    return x


def grid(call: NodeCall, values: Sequence[Value], indexing: str = "ij") -> list[Value]:
    shapes = [fake.shape for fake in call.node.meta["val"]]
    places = list(range(len(values)))
    if indexing == "xy" and len(values) > 1:
        places[0], places[1] = 1, 0
    apart = [reshape(x, tuple(-1 if i == place else 1 for i in range(len(values))))
             for x, place in zip(values, places, strict=True)]  # fmt: skip
    return [broadcast(x, tuple(shape)) for x, shape in zip(apart, shapes, strict=True)]


def along(call: NodeCall, x: Value, index: Value, dim: int | None = None) -> Value:
    if dim is None:
        return gathered(call, reshape(x, -1), 0, reshape(index, -1))
    place = axis(x, dim)
    # the other axes are broadcast, as NumPy has it
    sizes = np.broadcast_shapes(*(tuple(1 if i == place else n for i, n in enumerate(shape_of(y))) for y in (x, index)))
    whole = [(*sizes[:place], shape_of(y)[place], *sizes[place + 1 :]) for y in (x, index)]
    return gathered(call, broadcast(x, whole[0]), dim, broadcast(index, whole[1]))


def dotted(call: NodeCall, a: Value, b: Value, first: Sequence[int], second: Sequence[int]) -> Value:
    """A sum over axes of both, as one product of matrices."""
    ours, theirs = [axis(a, i) for i in first], [axis(b, i) for i in second]
    rest = [[i for i in range(len(shape_of(x))) if i not in own] for x, own in ((a, ours), (b, theirs))]
    size = int(np.prod([shape_of(a)[i] for i in ours]))
    left = reshape(transpose(a, (*rest[0], *ours)), (-1, size))
    right = reshape(transpose(b, (*theirs, *rest[1])), (size, -1))
    return reshape(matmul(left, right), call.shape)


def chained(call: NodeCall, values: Sequence[Value]) -> Value:
    """Matrices multiplied from the left on, whatever the cheapest order would be."""
    result = values[0]
    for x in values[1:]:
        result = matmul(result, x)
    return reshape(result, call.shape)


def added_products(call: NodeCall, x: Value, a: Value, b: Value, beta: float = 1, alpha: float = 1) -> Value:
    product = reduce_sum(matmul(a, b), 0)
    product = product if alpha == 1 else combined("multiply", product, alpha)
    return product if beta == 0 else combined("add", x if beta == 1 else combined("multiply", x, beta), product)


def bags(
    call: NodeCall, table: Value, rows: Value, offsets: Value, by_frequency: bool = False, mode: int = SUM,
    sparse: bool = False, weights: Value | None = None, last: bool = False, padding: int = -1,
) -> list[Value | None]:  # fmt: skip
    """Sums, means or maxima of rows of a table, in bags that begin at constant places."""
    if by_frequency or padding not in (-1, None):
        raise NotImplementedError("scale_grad_by_freq, padding_idx")
    if isinstance(offsets, Traced):
        raise NotImplementedError("bags that begin where the batch says; bags of equal sizes are rows of a matrix")
    starts, count = np.asarray(offsets).tolist(), shape_of(rows)[0]
    starts = starts[:-1] if last else starts
    ends = [*starts[1:], count]
    found = looked_up(table, rows)
    if weights is not None:
        found = combined("multiply", found, reshape(weights, (-1, 1)))
    if mode == MAX:
        parts = [reduce_max(found[start:end], 0, True) if end > start else np.zeros((1, shape_of(table)[1]), np.float32)
                 for start, end in zip(starts, ends, strict=True)]  # fmt: skip
        return [joined(call, parts, 0), None, None, None]
    shares = np.zeros((len(starts), count), call.width)
    for bag, (start, end) in enumerate(zip(starts, ends, strict=True)):
        shares[bag, start:end] = 1 / (end - start) if mode == MEAN and end > start else 1.0
    return [matmul(shares, found), None, None, None]


TABLE: dict[str, Callable[..., Any]] = {
    "diagonal": diagonal, "trace": trace, "diag_embed": embedded,
    "vstack": stacked_along(2, 0), "dstack": stacked_along(3, 2), "column_stack": as_columns,
    **dict.fromkeys(("atleast_1d", "atleast_2d", "atleast_3d"), shaped),
    "pixel_unshuffle": gathered_pixels, "channel_shuffle": shuffled_channels, "rot90": turned, "meshgrid": grid,
    "take_along_dim": along, "tensordot": dotted, "linalg_multi_dot": chained, "addbmm": added_products,
    "embedding_bag": bags,
}  # fmt: skip
