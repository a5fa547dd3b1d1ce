"""NumPy's functions that are formulas of others on traced values: hyperbolic ones, orders, products of many, vectors.

Each operation of a formula is in the precision's formats, so a result is as true as a few roundings leave it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ipu_core.ir.array_moves import Axis, moveaxis, ravel, squeeze, stack, take
from ipu_core.ir.values import (
    Value,
    apply,
    axes_of,
    broadcast,
    concatenate,
    elementwise,
    index_basic,
    matmul,
    reduce_sum,
    reshape,
    shape_of,
    topk,
    where,
)


def tan(x: Value) -> Value:
    """sin(x) / cos(x)."""
    return elementwise("divide", apply("sin", x), apply("cos", x))


def cosh(x: Value) -> Value:
    """(e^x + e^-x) / 2."""
    both = elementwise("add", apply("exp", x), apply("exp", elementwise("negative", x)))
    return elementwise("multiply", both, 0.5)


def hypot(x1: Value, x2: Value) -> Value:
    """The root of the sum of two squares, which may overflow or vanish on the way."""
    return apply("sqrt", elementwise("add", elementwise("square", x1), elementwise("square", x2)))


def sort(a: Value, axis: int | None = -1) -> Value:
    """Elements in ascending order along an axis, NaN first (NumPy has them last); the gradient goes with them."""
    if axis is None:
        return sort(ravel(a), 0)
    return moveaxis(topk(moveaxis(a, axis, -1), shape_of(a)[axis], largest=False)[0], -1, axis)


def argsort(a: Value, axis: int | None = -1, *, kind: str | None = None, stable: bool | None = None) -> Value:
    """The int32 indices of `sort`, equal elements in their order."""
    if axis is None:
        return argsort(ravel(a), 0)
    return moveaxis(topk(moveaxis(a, axis, -1), shape_of(a)[axis], largest=False)[1], -1, axis)


def prod(a: Value, axis: Axis = None, keepdims: bool = False) -> Value:
    """The product over axes: the first half of the factors times the second, and so on; each is rounded."""
    axes = axes_of(a, axis)
    for place in axes:
        while (count := shape_of(a)[place]) > 1:
            half, before = count // 2, (slice(None),) * place
            low, high = (index_basic(a, (*before, slice(i, i + half))) for i in (0, half))
            rest = [index_basic(a, (*before, slice(count - 1, count)))] if count % 2 else []
            a = concatenate([elementwise("multiply", low, high), *rest], place)
    return a if keepdims else squeeze(a, axes)


def vecdot(x1: Value, x2: Value, axis: int = -1) -> Value:
    """The sum of products along an axis of both."""
    return reduce_sum(elementwise("multiply", x1, x2), axis)


def cross(x1: Value, x2: Value, axis: int = -1) -> Value:
    """The vector product of vectors of three elements along an axis."""
    if shape_of(x1)[axis] != 3 or shape_of(x2)[axis] != 3:
        raise ValueError(f"a vector product needs 3 elements along axis {axis}, of {shape_of(x1)} and {shape_of(x2)}")
    a, b = ([take(x, i, axis) for i in range(3)] for x in (x1, x2))

    def part(i: int, k: int) -> Value:
        return elementwise("subtract", elementwise("multiply", a[i], b[k]), elementwise("multiply", a[k], b[i]))

    return stack([part(1, 2), part(2, 0), part(0, 1)], axis)


def diagonal(x: Value, offset: int = 0) -> Value:
    """The elements of the last two axes whose places differ by the offset."""
    *others, rows, columns = shape_of(x)
    flat = reshape(x, (*others, rows * columns))
    first = np.arange(rows)
    first = first[(first + offset >= 0) & (first + offset < columns)]
    return take(flat, (first * columns + first + offset).astype(np.int32), -1)


def matrix_power(a: Value, n: int) -> Value:
    """a @ a @ ... @ a, from left to right.

    Raises:
        ValueError: n below 1.
    """
    if n < 1:
        raise ValueError(f"a power of a traced matrix is at least 1, not {n}")
    result = a
    for _ in range(n - 1):
        result = matmul(result, a)
    return result


def broadcast_arrays(*args: Value) -> tuple[Value, ...]:
    """Each in the shape that they have together."""
    shape = np.broadcast_shapes(*map(shape_of, args))
    return tuple(broadcast(x, shape) for x in args)


def meshgrid(*xi: Value, indexing: str = "xy") -> tuple[Value, ...]:
    """Each vector along an axis of its own, in the shape of all; with "xy" the first two axes change places."""
    places = list(range(len(xi)))
    if indexing == "xy" and len(xi) > 1:
        places[:2] = 1, 0
    return broadcast_arrays(
        *(
            reshape(x, [-1 if axis == place else 1 for axis in range(len(xi))])
            for x, place in zip(xi, places, strict=True)
        )
    )


def unstack(x: Value, axis: int = 0) -> tuple[Value, ...]:
    """The parts along an axis, without it."""
    (place,) = axes_of(x, axis)
    return tuple(index_basic(x, (*(slice(None),) * place, i)) for i in range(shape_of(x)[place]))


def odd(f: Callable[[Value], Value], x: Value) -> Value:
    """f(x), of a function that is odd and needs to be true for positive numbers only."""
    positive = elementwise("greater", x, 0.0)
    made = f(where(positive, x, elementwise("negative", x)))
    return where(positive, made, elementwise("negative", made))
