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


def edges(generator: np.random.Generator, terms: int, ones: bool) -> Probe:
    """One product per element at the ends of the formats: subnormal, huge, infinite, NaN, both zeros."""
    exponents = np.arange(-149, 128)
    values = np.concatenate([np.exp2(exponents), _significands(generator, len(exponents)) * np.exp2(exponents)])
    values = np.concatenate([values, -values, [0.0, -0.0, np.inf, -np.inf, np.nan]])
    a, b = np.zeros((len(values), terms)), np.zeros((terms, 1 if ones else 4))
    a[:, 0], b[0] = values, (1.0, 1.75, -(2.0**9), 2.0**-9)[: b.shape[1]]
    return Probe(a.astype(np.float32), b.astype(np.float32))


def _significands(generator: np.random.Generator, shape: int | tuple[int, ...]) -> Array:
    """Of both signs, magnitudes in [1, 2) with 23 random bits behind the point."""
    values: Array = (1 + generator.integers(0, 2**23, shape) * 2.0**-23) * generator.choice([-1, 1], shape)
    return values
