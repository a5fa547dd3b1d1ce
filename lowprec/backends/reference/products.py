"""Products and sums element by element: the same calls as the compiled backend's, over the chains of `chains`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from lowprec.backends.reference.chains import Place, add_ascending, dot, round_sum
from lowprec.backends.reference.elementwise import stored
from lowprec.backends.reference.rounding import round_number
from lowprec.formats import float32
from lowprec.keys import KeyLike, key_value
from lowprec.rule import rounding_rule
from lowprec.sums import Accumulator, Order, matrix_axes

Array = npt.NDArray[Any]


def product(a: np.dtype[Any], b: np.dtype[Any], accumulator: Accumulator, order: Order) -> Callable[..., Array]:
    """f(a, b, key, row, column, first_group, batch, out, threads); batch None numbers the products in C order."""
    del a, b

    def call(
        a: Array,
        b: Array,
        key: KeyLike | None,
        row: Any,
        column: Any,
        first_group: Any,
        batch: Any,
        out: Array | None,
        threads: int,
    ) -> Array:
        del threads
        own_a, own_b = matrix_axes(a), matrix_axes(b)
        left = _values(a) if own_a == 2 else _values(a)[None, :]
        right = _values(b) if own_b == 2 else _values(b)[:, None]
        if left.shape[-1] != right.shape[-2]:
            raise ValueError(f"the inner lengths differ: {left.shape[-1]} and {right.shape[-2]}")
        vertices = np.broadcast_shapes(left.shape[:-2], right.shape[:-2])
        left = np.broadcast_to(left, vertices + left.shape[-2:])
        right = np.broadcast_to(right, vertices + right.shape[-2:])
        result = np.empty((*vertices, left.shape[-2], right.shape[-1]), np.float64)
        places = _places(accumulator, key, vertices, row, column, first_group, batch)
        for index, place in places:
            for i in range(result.shape[-2]):
                terms = left[index][i].tolist()
                for j in range(result.shape[-1]):
                    here = replace(place, row=place.row + i, column=place.column + j)
                    result[(*index, i, j)] = dot(terms, right[index][:, j].tolist(), accumulator, order, here)
        shape = vertices + result.shape[-2:][2 - own_a : 1] + (result.shape[-1:] if own_b == 2 else ())
        return stored_values(result.reshape(shape), accumulator, out)

    return call


def reduce(x: np.dtype[Any], accumulator: Accumulator, order: Order) -> Callable[..., Array]:
    """f(x, key, row, column, first_group, batch, out, threads) for x (.., m, k, n)."""
    del x

    def call(
        x: Array,
        key: KeyLike | None,
        row: Any,
        column: Any,
        first_group: Any,
        batch: Any,
        out: Array | None,
        threads: int,
    ) -> Array:
        del threads
        values = _values(x)
        vertices, (m, k, n) = values.shape[:-3], values.shape[-3:]
        result = np.empty((*vertices, m, n), np.float64)
        ones = [1.0] * k
        for index, place in _places(accumulator, key, vertices, row, column, first_group, batch):
            for i in range(m):
                for j in range(n):
                    here = replace(place, row=place.row + i, column=place.column + j)
                    terms = values[index][i, :, j].tolist()
                    result[(*index, i, j)] = dot(terms, ones, accumulator, order, here)
        return stored_values(result, accumulator, out)

    return call


def sum_parts(x: np.dtype[Any], accumulator: Accumulator, tag: str) -> Callable[..., Array]:
    """f(parts, key, index, row, column, batch, out, threads) for parts (P, .., m, n)."""
    del x

    def call(
        parts: Array,
        key: KeyLike | None,
        index: Any,
        row: Any,
        column: Any,
        batch: Any,
        out: Array | None,
        threads: int,
    ) -> Array:
        del threads
        values = _values(parts)
        vertices, (m, n) = values.shape[1:-2], values.shape[-2:]
        result = np.zeros((*vertices, m, n), np.float64)
        numbers = np.broadcast_to(np.asarray(index), vertices)
        for vertex, place in _places(accumulator, key, vertices, row, column, 0, batch):
            for i in range(m):
                for j in range(n):
                    here = replace(place, row=place.row + i, column=place.column + j)
                    terms = [float(part[(*vertex, i, j)]) for part in values]
                    total = add_ascending(terms) if terms else 0.0
                    rule = accumulator.final
                    result[(*vertex, i, j)] = round_sum(total, rule, tag, here, int(numbers[vertex]))
        return stored_values(result, accumulator, out)

    return call


def maximum(x: np.dtype[Any], accumulator: Accumulator) -> Callable[..., Array]:
    """f(x, out, threads) for x (m, k, n)."""
    del x

    def call(x: Array, out: Array | None, threads: int) -> Array:
        del threads
        values = _values(x)
        result = np.empty((values.shape[0], values.shape[2]), np.float64)
        for i in range(result.shape[0]):
            for j in range(result.shape[1]):
                terms = values[i, :, j].tolist()
                best = max(terms, key=lambda v: (v, math.copysign(1.0, v)))
                result[i, j] = math.nan if any(math.isnan(v) for v in terms) else best
        return stored_values(result, accumulator, out)

    return call


def _values(x: Array) -> Array:
    """The elements as float64, exact (a signalling NaN is a NaN)."""
    with np.errstate(invalid="ignore"):
        return x.astype(np.float64)


def _places(
    accumulator: Accumulator,
    key: KeyLike | None,
    vertices: tuple[int, ...],
    row: Any,
    column: Any,
    first_group: Any,
    batch: Any,
) -> Iterator[tuple[tuple[int, ...], Place]]:
    """Every vertex's index and the Place of its first element."""
    rules = (accumulator.step, accumulator.final)
    if key is None and any(rule is not None and rule.mode == "stochastic" for rule in rules):
        raise ValueError("stochastic rounding needs key=, a lowprec.Key or an integer")
    if batch is None:
        batch = np.arange(math.prod(vertices)).reshape(vertices)
    bits = 0 if key is None else key_value(key)
    numbers = [np.broadcast_to(np.asarray(x), vertices) for x in (batch, row, column, first_group)]
    for index in np.ndindex(*vertices):
        yield index, Place(bits, *(int(number[index]) for number in numbers))


def stored_values(values: Array, accumulator: Accumulator, out: Array | None) -> Array:
    """Values on the result's grid as its storage dtype."""
    fmt = accumulator.out
    if fmt.contains(float32):
        result = values.astype(accumulator.out_dtype)
    else:
        rule = rounding_rule(fmt)
        codes = [round_number(float(value), rule) for value in values.ravel()]
        result = np.array(codes, fmt.code_dtype).view(accumulator.out_dtype).reshape(values.shape)
    return stored(result, out)
