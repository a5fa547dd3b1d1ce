"""Chosen inputs: numbers whose sums show order, cuts and roundings, and those at the ends of the formats."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from lowprec.types import Array


class Probe(NamedTuple):
    """Matrices (m, k) and (k, n), float32."""

    a: Array
    b: Array


def sums(generator: np.random.Generator, rows: int, terms: int, columns: int, ones: bool) -> Probe:
    """Random numbers over several binades, half of the rows with terms that cancel: M - M, and much smaller ones.

    Args:
        ones: all of b is 1, and has one column.
    """
    # From one binade, where roundings meet ties and carries, to twenty-one, where small terms are cut.
    spreads = np.array([0, 1, 3, 6, 10])[np.arange(rows) % 5][:, None]
    a = _significands(generator, (rows, terms)) * np.exp2(np.rint(generator.uniform(-spreads, spreads, (rows, terms))))
    columns = 1 if ones else columns
    b = np.ones((terms, columns))
    if not ones:
        wide = np.array([0, 2, 5])[np.arange(columns) % 3]
        b = _significands(generator, b.shape) * np.exp2(np.rint(generator.uniform(-wide, wide, b.shape)))
    if terms > 1:
        b[1], a[1::2, 1] = b[0], -a[1::2, 0]
    return Probe(a.astype(np.float32), b.astype(np.float32))


def edges(generator: np.random.Generator, terms: int, ones: bool, nan: bool = True) -> Probe:
    """One product per element at the ends of the formats: subnormal, huge, infinite, both zeros, and NaN if told so."""
    exponents = np.arange(-149, 128)
    values = np.concatenate([np.exp2(exponents), _significands(generator, len(exponents)) * np.exp2(exponents)])
    values = np.concatenate([values, -values, [0.0, -0.0, np.inf, -np.inf, np.nan if nan else 1.0]])
    values = np.concatenate([values, np.ones(-len(values) % 16)])
    a, b = np.zeros((len(values), terms)), np.zeros((terms, 1 if ones else 16))
    a[:, 0], b[0, :4] = values, (1.0, 1.75, -(2.0**9), 2.0**-9)[: b.shape[1]]
    return Probe(a.astype(np.float32), b.astype(np.float32))


def significands(generator: np.random.Generator, terms: int, count: int, ones: bool) -> Probe:
    """One product per element, of numbers of both signs of [1, 2); those of the first column are by 1.

    It is the last term: an aligned adder cuts a sum once more in groups of zeros behind it.
    """
    columns = 1 if ones else min(count, 256)
    a, b = np.zeros((count, terms)), np.zeros((terms, columns))
    a[:, -1], b[-1] = _significands(generator, count), _significands(generator, columns)
    b[-1, 0] = 1.0
    return _probe(a, b, ones)


def powers(generator: np.random.Generator, terms: int, ones: bool) -> Probe:
    """One product per element, of numbers of every size, infinities among them; in a column each are powers of 2^8."""
    exponents = np.arange(-149, 128)
    values = np.concatenate([np.exp2(exponents), _significands(generator, len(exponents)) * np.exp2(exponents)])
    near = np.concatenate([np.exp2(np.arange(-20, 20)) * step for step in (1 - 2.0**-12, 1 + 2.0**-12, 1.5)])
    values = np.concatenate([values, near, -values, [0.0, -0.0, np.inf, -np.inf]])
    # In an order that shows much in its first rows.
    values = generator.permutation(np.concatenate([values, np.ones(-len(values) % 16)]))
    columns = np.concatenate([np.exp2(np.arange(-120, 121, 8)), _significands(generator, 1)])
    a, b = np.zeros((len(values), terms)), np.zeros((terms, 1 if ones else len(columns)))
    a[:, -1], b[-1] = values, 1.0 if ones else columns
    return _probe(a, b, ones)


def four_terms(generator: np.random.Generator, terms: int, rows: int, reach: tuple[int, int], ones: bool) -> Probe:
    """Sums whose first four terms are not zero; in three of four rows two of them cancel, and much smaller ones stay.

    Args:
        reach: the exponents of operands.
    """
    columns, (low, high) = 1 if ones else 16, reach
    pairs = [(i, j) for i in range(4) for j in range(i + 1, 4)]
    a, b = np.zeros((rows, terms)), np.zeros((terms, columns))
    largest = generator.integers(low, high + 1, (rows, 1))
    exponents = np.minimum(largest, generator.integers(low, high + 1, (rows, 4)))
    ends = np.arange(rows) % 5 == 0
    largest[ends], exponents[ends] = high, low
    a[:, :4] = _significands(generator, (rows, 4)) * np.exp2(exponents)
    spread = min(high, -low) // 2 if low < 0 < high else 0
    b[:4] = _significands(generator, (4, columns)) * np.exp2(generator.integers(-spread, spread + 1, (4, columns)))
    for column in range(columns):
        i, j = pairs[column % 6]
        if column // 6 % 2 and not ones:
            # As far apart as operands go: what a sum of float32 loses and an exact one keeps lies 24 places below.
            b[:4, column] = _significands(generator, 4) * np.exp2(low)
            b[i, column] *= 2.0 ** (high - low)
        b[j, column] = b[i, column]
    for row in range(rows):
        i, j = pairs[row // 4 % 6]
        if row % 4:
            a[row, i] = np.ldexp(_significands(generator, 1)[0], int(largest[row, 0]))
            a[row, j] = -a[row, i]
    return _probe(a, b, ones)


def long_sums(
    generator: np.random.Generator, rows: int, terms: int, columns: int, reach: tuple[int, int], ones: bool
) -> Probe:
    """Sums of random numbers; in three of four rows two terms cancel that are larger than the others by up to reach.

    What is left where they are the first and the last of all shows the roundings on the way between them, in however
    few bits results have.

    Args:
        reach: the exponents of operands.
    """
    low, high = reach
    columns, places = 1 if ones else columns, (0, 1, terms // 2, terms - 1)
    middle = 0 if low <= 0 <= high else low
    most = max(min(high - middle, middle - low), 0)
    spreads = np.minimum(np.array([0, 1, 3, 6, 10])[np.arange(rows) % 5], most)[:, None]
    # Every fourth row has the largest and the smallest operands that there are.
    ends = np.arange(rows)[:, None] // 2 % 2 == 0
    smallest = np.where(ends, low, generator.integers(low, middle + 1, (rows, 1))) * (np.arange(rows) % 2)[:, None]
    exponents = np.rint(generator.uniform(-spreads, spreads, (rows, terms))) + middle * (smallest == 0) + smallest
    a = _significands(generator, (rows, terms)) * np.exp2(np.clip(exponents, low, high))
    wide = np.minimum(np.array([0, 2, 5])[np.arange(columns) % 3], most)
    b = _significands(generator, (terms, columns))
    b *= np.exp2(np.clip(np.rint(generator.uniform(-wide, wide, b.shape)) + middle, low, high))
    if terms > 3:
        # In every fourth column as far apart as operands go, so that float32 itself loses the smaller ones.
        apart = slice(3, None, 4)
        b[:, apart] = _significands(generator, b[:, apart].shape) * np.exp2(low)
        b[0, apart] *= 2.0 ** (high - low)
        b[list(places)] = b[0]
        pairs = [(0, 1), (0, terms - 1), (0, terms - 1), (0, terms - 1), (1, terms - 1), (terms // 2, terms - 1)]
        for row in range(rows):
            if row % 4:
                i, j = pairs[row % 8 - 1 if row % 8 < 4 else row % 8 - 2]
                exponent = high if ends[row, 0] else generator.integers(middle, high + 1)
                a[row, i] = np.ldexp(_significands(generator, 1)[0], int(exponent))
                a[row, j] = -a[row, i]
    return _probe(a, b, ones)


def _probe(a: Array, b: Array, ones: bool) -> Probe:
    return Probe(a.astype(np.float32), np.ones(b.shape, np.float32) if ones else b.astype(np.float32))


def _significands(generator: np.random.Generator, shape: int | tuple[int, ...]) -> Array:
    """Of both signs, magnitudes in [1, 2): half with 23 random bits behind the point, half with fewer, for ties."""
    bits = np.where(generator.random(shape) < 0.5, 23, generator.integers(0, 24, shape))
    values: Array = 1 + np.floor(generator.random(shape) * np.exp2(bits)) / np.exp2(bits)
    signed: Array = values * generator.choice([-1, 1], shape)
    return signed
