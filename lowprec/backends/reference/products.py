"""Products and sums element by element: the same calls as the compiled backend's, over the chains of `chains`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from lowprec.backends.reference.chains import ADD, Element, add_ascending, dot, group_adder, round_sum
from lowprec.backends.reference.elementwise import stored
from lowprec.backends.reference.rounding import round_number
from lowprec.types import Array
from lowprec.values.accumulation import Accumulation
from lowprec.values.formats import float32
from lowprec.values.keys import KeyLike, key_value
from lowprec.values.operands import operand_format
from lowprec.values.rounding import Rounding, rounding_rule
from lowprec.values.sum_rules import SumRules, sum_rules


def product(a: np.dtype[Any], b: np.dtype[Any], accumulation: Accumulation, rules: SumRules) -> Callable[..., Array]:
    """f(a, b, key, row, column, first_group, batch, out, threads, initial=None); batch None numbers the products.

    initial: what every element's chain starts from, of the result's shape and dtype or float32; one part only. The
    Accumulation says the order; types and roundings are the rules'.
    """
    add = group_adder(accumulation, rules, operand_format(a), operand_format(b))

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
        initial: Array | None = None,
    ) -> Array:
        del threads
        # A vector is a row or a column whose axis the result does not have, as in numpy.matmul.
        own_a, own_b = min(a.ndim, 2), min(b.ndim, 2)
        left = _values(a) if own_a == 2 else _values(a)[None, :]
        right = _values(b) if own_b == 2 else _values(b)[:, None]
        if left.shape[-1] != right.shape[-2]:
            raise ValueError(f"the inner lengths differ: {left.shape[-1]} and {right.shape[-2]}")
        vertices = np.broadcast_shapes(left.shape[:-2], right.shape[:-2])
        left = np.broadcast_to(left, vertices + left.shape[-2:])
        right = np.broadcast_to(right, vertices + right.shape[-2:])
        result = np.empty((*vertices, left.shape[-2], right.shape[-1]), np.float64)
        shape = vertices + result.shape[-2:][2 - own_a : 1] + (result.shape[-1:] if own_b == 2 else ())
        # With several parts nothing says which of them the given sums would begin.
        fits = accumulation.part_length(left.shape[-1]) >= left.shape[-1]
        start = _start(initial, rules.out_dtype, shape, len(vertices), fits).reshape(result.shape)
        places = _places(rules, key, vertices, row, column, first_group, batch)
        for index, place in places:
            for i in range(result.shape[-2]):
                terms = left[index][i].tolist()
                for j in range(result.shape[-1]):
                    here = replace(place, row=place.row + i, column=place.column + j)
                    column_terms, first = right[index][:, j].tolist(), float(start[(*index, i, j)])
                    result[(*index, i, j)] = dot(terms, column_terms, accumulation, rules, here, add, first)
        return stored_values(result.reshape(shape), rules, out)

    return call


def _start(initial: Array | None, dtype: np.dtype[Any], shape: tuple[int, ...], axes: int, fits: bool) -> Array:
    """What the chains start from, in the result's shape: zeros, or the checked `initial`.

    Args:
        initial: as the caller gave it.
        dtype: the result's.
        shape: the result's.
        axes: how many of its axes are vertex axes, of which `initial` may have fewer.
        fits: whether the product has one part.

    Raises:
        TypeError: no array of the dtype or of float32.
        ValueError: another shape, or a product of several parts.
    """
    if initial is None:
        return np.zeros(shape)
    if not isinstance(initial, np.ndarray) or initial.dtype not in (np.float32, dtype):
        given = getattr(initial, "dtype", type(initial).__name__)
        also = "" if dtype == np.float32 else " (or of float32)"
        raise TypeError(f"initial must be an array of {dtype}{also}, not {given}")
    own, have = shape[axes:], initial.shape[max(0, initial.ndim - len(shape) + axes) :]
    if not fits or initial.ndim > len(shape) or own != have or np.broadcast_shapes(initial.shape, shape) != shape:
        raise ValueError("initial needs the result's shape, and a product of one part")
    return np.broadcast_to(_values(initial), shape)


def reduce(x: np.dtype[Any], accumulation: Accumulation, rules: SumRules) -> Callable[..., Array]:
    """f(x, key, row, column, first_group, batch, out, threads): the sums over k of x (.., m, k, n)."""
    del x
    add = ADD[accumulation.adder]

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
        # A sum is the product with ones: x * 1 is exact, so that every fused step is one rounded addition.
        ones = [1.0] * k
        for index, place in _places(rules, key, vertices, row, column, first_group, batch):
            for i in range(m):
                for j in range(n):
                    here = replace(place, row=place.row + i, column=place.column + j)
                    terms = values[index][i, :, j].tolist()
                    result[(*index, i, j)] = dot(terms, ones, accumulation, rules, here, add)
        return stored_values(result, rules, out)

    return call


def scatter(x: np.dtype[Any], accumulation: Accumulation, rules: SumRules) -> Callable[..., Array]:
    """f(x, indices, rows, key, row, column, batch, out, threads): rows of x (.., k, n) added into (.., rows, n)."""
    del x
    add = ADD[accumulation.adder]

    def call(
        x: Array,
        indices: Array,
        rows: int,
        key: KeyLike | None,
        row: Any,
        column: Any,
        batch: Any,
        out: Array | None,
        threads: int,
    ) -> Array:
        del threads
        values = _values(x)
        vertices, n = values.shape[:-2], values.shape[-1]
        result = np.empty((*vertices, rows, n), np.float64)
        lines: list[list[int]] = [[] for _ in range(rows)]
        for line, number in enumerate(indices.tolist()):
            if not -rows <= number < rows:
                raise IndexError(f"index {number} is out of bounds for {rows} rows")
            # In the order in which they stand, which is the order of each row's sum; -1 is the last row, as in NumPy.
            lines[number].append(line)
        for index, place in _places(rules, key, vertices, row, column, 0, batch):
            for i, j in np.ndindex(rows, n):
                here = replace(place, row=place.row + i, column=place.column + j)
                terms = values[index][lines[i], j].tolist()
                result[(*index, i, j)] = dot(terms, [1.0] * len(terms), accumulation, rules, here, add)
        return stored_values(result, rules, out)

    return call


def sum_parts(x: np.dtype[Any], rules: SumRules, tag: str) -> Callable[..., Array]:
    """f(parts, key, index, row, column, batch, out, threads): the sum of parts (P, .., m, n) over P, rounded once."""
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
        for vertex, place in _places(rules, key, vertices, row, column, 0, batch):
            for i in range(m):
                for j in range(n):
                    here = replace(place, row=place.row + i, column=place.column + j)
                    terms = [float(part[(*vertex, i, j)]) for part in values]
                    total = add_ascending(terms) if terms else 0.0
                    rule = rules.final
                    result[(*vertex, i, j)] = round_sum(total, rule, tag, here, int(numbers[vertex]))
        return stored_values(result, rules, out)

    return call


def maximum(x: np.dtype[Any]) -> Callable[..., Array]:
    """f(x, out, threads): the largest over k of x (m, k, n), exact; NaN wins, and +0 is larger than -0."""
    unrounded = sum_rules(Accumulation(out=operand_format(x)), Rounding())

    def call(x: Array, out: Array | None, threads: int) -> Array:
        del threads
        values = _values(x)
        result = np.empty((values.shape[0], values.shape[2]), np.float64)
        for i in range(result.shape[0]):
            for j in range(result.shape[1]):
                terms = values[i, :, j].tolist()
                # +0 above -0: the order of the terms must not show in the result.
                best = max(terms, key=lambda v: (v, math.copysign(1.0, v)))
                result[i, j] = math.nan if any(math.isnan(v) for v in terms) else best
        return stored_values(result, unrounded, out)

    return call


def _values(x: Array) -> Array:
    """The elements as float64, exact (a signalling NaN is a NaN)."""
    with np.errstate(invalid="ignore"):
        return x.astype(np.float64)


def _places(
    rules: SumRules,
    key: KeyLike | None,
    vertices: tuple[int, ...],
    row: Any,
    column: Any,
    first_group: Any,
    batch: Any,
) -> Iterator[tuple[tuple[int, ...], Element]]:
    """Every vertex's index and the place of its first element."""
    if key is None and rules.stochastic:
        raise ValueError("stochastic rounding needs key=, a lowprec.Key or an integer")
    if batch is None:
        # Numbered over the broadcast axes: a matrix that is used in several products draws anew in each of them.
        batch = np.arange(math.prod(vertices)).reshape(vertices)
    bits = 0 if key is None else key_value(key)
    numbers = [np.broadcast_to(np.asarray(x), vertices) for x in (batch, row, column, first_group)]
    for index in np.ndindex(*vertices):
        yield index, Element(bits, *(int(number[index]) for number in numbers))


def stored_values(values: Array, rules: SumRules, out: Array | None) -> Array:
    """Values that are on the grid of the result's format, in its storage dtype.

    Raises:
        ValueError: a NaN, where the format has none.
    """
    fmt = rules.out
    if fmt.contains(float32):
        result = np.where(np.isnan(values), np.nan, values).astype(rules.out_dtype)  # one NaN, whatever made it
    else:
        rule = rounding_rule(fmt)
        # The values are on the grid already. This finds their codes, one for every NaN, and refuses NaN where there is
        # none.
        codes = [round_number(float(value), rule) for value in values.ravel()]
        if any(code is None for code in codes):
            raise ValueError("a NaN arose, and the result's format has none; give out_format='float32'")
        result = np.array(codes, fmt.code_dtype).view(rules.out_dtype).reshape(values.shape)
    return stored(result, out)
