"""NumPy's functions that are formulas of others on traced values: angles, hyperbolic ones, orders, products, vectors.

Each operation of a formula is in the precision's formats, so a result is as true as a few roundings leave it.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from ipu_core.ir.trace.array_moves import Axis, moveaxis, ravel, squeeze, stack, take, take_along_axis
from ipu_core.ir.trace.values import (
    Value,
    apply,
    axes_of,
    broadcast,
    concatenate,
    elementwise,
    index_basic,
    logical_and,
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


TERMS = 10
"""Of the series of arctan: for |t| < 0.2, which `arctan` brings its argument to, the next is below 2^-53 of the sum."""


def arctan(x: Value) -> Value:
    """The series of 4 arctan(t), t two half-angles from |x| or 1 / |x|, with the sign of x."""

    def positive(x: Value) -> Value:
        large = elementwise("greater", x, 1.0)
        # The inner choice too: the derivative of 1 / x at 0 is infinite, and times the 0 of what is not chosen NaN.
        t = where(large, elementwise("divide", 1.0, where(large, x, 1.0)), x)
        for _ in range(2):
            root = apply("sqrt", elementwise("add", elementwise("square", t), 1.0))
            t = elementwise("divide", t, elementwise("add", root, 1.0))
        square, series = elementwise("square", t), 0.0
        for n in reversed(range(TERMS)):
            series = elementwise("add", elementwise("multiply", square, series), (-1) ** n / (2 * n + 1))
        angle = elementwise("multiply", elementwise("multiply", series, t), 4.0)
        return where(large, elementwise("subtract", math.pi / 2, angle), angle)

    return odd(positive, x)


def arcsin(x: Value) -> Value:
    """arctan(x / sqrt((1 - x) (1 + x)))."""
    return arctan(elementwise("divide", x, apply("sqrt", elementwise("multiply", 1.0 - x, 1.0 + x))))


def arccos(x: Value) -> Value:
    """2 arctan(sqrt((1 - x) / (1 + x)))."""
    return elementwise("multiply", arctan(apply("sqrt", elementwise("divide", 1.0 - x, 1.0 + x))), 2.0)


def arctan2(x1: Value, x2: Value) -> Value:
    """The angle of the point (x2, x1); 0 of the origin, whatever the signs of its zeros, and of two infinities NaN."""
    zero = logical_and(elementwise("equal", x1, 0.0), elementwise("equal", x2, 0.0))
    # At the origin 0 / 0 would be NaN.
    angle = arctan(elementwise("divide", x1, where(zero, 1.0, x2)))
    turn = where(elementwise("greater", 0.0, x1), -math.pi, math.pi)
    return elementwise("add", angle, where(elementwise("greater", 0.0, x2), turn, 0.0))


def cosh(x: Value) -> Value:
    """(e^x + e^-x) / 2."""
    both = elementwise("add", apply("exp", x), apply("exp", elementwise("negative", x)))
    return elementwise("multiply", both, 0.5)


def hypot(x1: Value, x2: Value) -> Value:
    """The root of the sum of two squares, which may overflow or vanish on the way."""
    return apply("sqrt", elementwise("add", elementwise("square", x1), elementwise("square", x2)))


def sort(a: Value, axis: int | None = -1) -> Value:
    """Elements in ascending order along an axis, NaN last; the gradient goes with them."""
    if axis is None:
        return sort(ravel(a), 0)
    return take_along_axis(a, argsort(a, axis), axis)


def argsort(a: Value, axis: int | None = -1, *, kind: str | None = None, stable: bool | None = None) -> Value:
    """The int32 indices of `sort`, equal elements in their order: those of the largest first, read backwards twice."""
    if axis is None:
        return argsort(ravel(a), 0)
    count = shape_of(a)[axis]
    backwards = np.arange(count)[::-1].astype(np.int32)
    descending = topk(take(moveaxis(a, axis, -1), backwards, -1), count)[1]
    return moveaxis(take(take(backwards, descending), backwards, -1), -1, axis)


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


def cumprod(a: Value, axis: int | None = None) -> Value:
    """The products of the elements up to each, along an axis: those of 2, then of 4, and so on; each is rounded."""
    if axis is None:
        a, axis = ravel(a), 0
    (place,) = axes_of(a, axis)
    before, count, shift = (slice(None),) * place, shape_of(a)[place], 1
    while shift < count:
        later, earlier = (index_basic(a, (*before, part)) for part in (slice(shift, None), slice(0, count - shift)))
        a = concatenate([index_basic(a, (*before, slice(0, shift))), elementwise("multiply", later, earlier)], place)
        shift *= 2
    return a


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
