"""Sums and products as the docstrings of lowprec.matmul and lowprec.summation tell them, written as loops.

Nothing here comes from lowprec: numbers are fractions, Philox and both maps from an element to its bits are spelt out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np

ROUNDING, STEP, STAGE, OUTPUT = 1, 3, 5, 7
Term = tuple[Any, Any]
Place = tuple[int, int, int]


@cache
def philox(counter: tuple[int, int, int, int], key: int, rounds: int) -> list[int]:
    """Philox4x32 (Salmon, Moraes, Dror, Shaw 2011)."""
    c0, c1, c2, c3 = counter
    k0, k1 = key & 0xFFFFFFFF, key >> 32
    for _ in range(rounds):
        p0, p1 = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = p1 >> 32 ^ c1 ^ k0, p1 & 0xFFFFFFFF, p0 >> 32 ^ c3 ^ k1, p0 & 0xFFFFFFFF
        k0, k1 = k0 + 0x9E3779B9 & 0xFFFFFFFF, k1 + 0xBB67AE85 & 0xFFFFFFFF
    return [c0, c1, c2, c3]


def half_word(words: Sequence[int], position: int) -> int:
    """The 16 bits at a position of a block of 64, from the words of its counter (`lane`)."""
    return words[2 * (position // 32) + position % 2] >> 16 * (position // 16 % 2) & 0xFFFF


def lane(position: int) -> int:
    """Which of a block's eight counters a position takes its bits from."""
    return position // 2 % 8


def random16(key: int, tag: int, batch: int, row: int, column: int, number: int) -> int:
    """The 16 random bits of one rounding inside a product."""
    position = 16 * (number % 4) + column % 16
    counter = (tag << 24 | batch, row, column // 16, 8 * (number // 4) + lane(position))
    return half_word(philox(counter, key, 7 if tag == STEP else 10), position)


def random32(key: int, tag: int, batch: int, row: int, column: int, number: int) -> int:
    """The 32 random bits of one rounding inside a product that asks for more than 16."""
    position = 16 * (number % 2) + column % 16
    counter = (tag + 1 << 24 | batch, row, column // 16, 8 * (number // 2) + lane(position))
    return philox(counter, key, 7 if tag == STEP else 10)[2 * (position // 16) + position % 2]


def element16(key: int, index: int) -> int:
    """The 16 random bits that round element `index` of an array."""
    counter = 8 * (index // 64) + lane(index % 64)
    return half_word(philox((ROUNDING << 24, counter, 0, 0), key, 10), index % 64)


def fold_in(key: int, n: int) -> int:
    """The key of a later stage."""
    low, high, *_ = philox((11 << 24, n & 0xFFFFFFFF, n >> 32, 0), key, 10)
    return high << 32 | low


@dataclass(frozen=True)
class Grid:
    """A format without its largest value: all that sums of small numbers meet."""

    mantissa: int
    least: int

    def rounded(self, x: Fraction, up: Fraction | None = None) -> Fraction:
        """To nearest, ties to even; or, with a fraction drawn from [0, 1), up where it carries into the next step."""
        above, below = abs(x.numerator), x.denominator
        size = above.bit_length() - below.bit_length()
        size -= above << max(-size, 0) < below << max(size, 0)
        places = self.mantissa - max(size, self.least)
        steps, rest = divmod(above << max(places, 0), whole := below << max(-places, 0))
        if rest == 0:
            return x
        if up is None:
            steps += 2 * rest + steps % 2 > whole
        else:
            steps += rest * up.denominator + up.numerator * whole >= whole * up.denominator
        return Fraction((steps if x.numerator > 0 else -steps) << max(-places, 0), 1 << max(places, 0))


SINGLE, HALF, BRAIN, FP22 = Grid(23, -126), Grid(10, -14), Grid(7, -126), Grid(13, -126)


def exponent(x: Any) -> int:
    """The exponent of a normal number's binade."""
    return math.frexp(float(x))[1] - 1


def aligned(partial: Fraction, terms: Sequence[Term], places: int) -> Fraction:
    """The exact sum of what is left of normal terms so many places behind the largest exponent."""
    exponents = [exponent(a) + exponent(b) for a, b in terms if a != 0 and b != 0]
    top = max(exponents + [exponent(partial)] * (partial != 0), default=0)
    quantum = Fraction(2) ** (top - places)
    values = [partial, *(Fraction(float(a)) * Fraction(float(b)) for a, b in terms)]
    return sum(math.trunc(value / quantum) for value in values) * quantum


def cut(x: Fraction) -> Fraction:
    """Toward zero to 24 bits."""
    if x == 0:
        return x
    quantum = Fraction(2) ** (exponent(x) - 23)
    return math.trunc(x / quantum) * quantum


def added(partial: Fraction, terms: Sequence[Term], adder: str) -> Fraction:
    """The terms of one group onto the partial sum."""
    products = [Fraction(float(a)) * Fraction(float(b)) for a, b in terms]
    if adder == "sequential":
        for product in products:
            partial = SINGLE.rounded(partial + product)
        return partial
    for i in range(0, len(products), 4):
        four = products[i : i + 4]
        if adder == "dot4":
            partial = SINGLE.rounded(partial + sum(four))
            continue
        pairs = [SINGLE.rounded(SINGLE.rounded(four[j]) + sum(four[j + 1 : j + 2])) for j in range(0, len(four), 2)]
        partial = SINGLE.rounded(partial + SINGLE.rounded(sum(pairs, Fraction(0))))
    return partial


@dataclass(frozen=True)
class Sum:
    """A sum of products: `group` None is all of a part, `stages` None is by the number of parts."""

    accumulate: Grid = SINGLE
    out: Grid = SINGLE
    group: int | None = 16
    splits: int = 1
    stages: int | None = None
    adder: str = "sequential"
    key: int | None = None
    bits: int = 16
    places: int = 0

    def rounded(self, x: Fraction, grid: Grid, tag: int, place: Place, number: int) -> Fraction:
        if grid == SINGLE:
            return x
        if self.key is None:
            return grid.rounded(x)
        drawn, have = (random16, 16) if self.bits <= 16 else (random32, 32)
        return grid.rounded(x, Fraction(drawn(self.key, tag, *place, number) >> have - self.bits, 1 << self.bits))

    def chain(self, terms: Sequence[Term], group: int, place: Place, first: int, partial: Fraction) -> Fraction:
        """One part; `first` is the number of its first group."""
        return self.chain_of(groups_of(terms, group), place, first, partial)

    def chain_of(self, groups: Sequence[Sequence[Term]], place: Place, first: int, partial: Fraction) -> Fraction:
        """One part whose groups may have any lengths."""
        for number, terms in enumerate(groups, first):
            if self.adder == "aligned":
                exact = aligned(partial, terms, self.places)
                partial = cut(exact) if self.accumulate == SINGLE else exact
            else:
                partial = added(partial, terms, self.adder)
            partial = self.rounded(partial, self.accumulate, STEP, place, number)
        return partial

    def of(self, terms: Sequence[Term], batch: int, row: int, column: int) -> float:
        group = self.group or max(1, math.ceil(len(terms) / self.splits))
        return self.of_groups(groups_of(terms, group), batch, row, column)

    def of_groups(self, groups: Sequence[Sequence[Term]], batch: int, row: int, column: int) -> float:
        place, length = (batch, row, column), max(1, math.ceil(len(groups) / self.splits))
        starts = range(0, max(1, len(groups)), length)
        parts = [self.chain_of(groups[i : i + length], place, i, Fraction(0)) for i in starts]
        stages = self.stages or (1 if len(parts) <= 15 else 2 if len(parts) <= 124 else 3)
        run = next(r for r in range(1, len(parts) + 1) if r**stages >= len(parts))
        number = 0
        for _ in range(stages - 1):
            sums = []
            for i in range(0, len(parts), run):
                sums.append(self.rounded(ascending(parts[i : i + run]), self.accumulate, STAGE, place, number))
                number += 1
            parts = sums
        return float(self.rounded(ascending(parts), self.out, OUTPUT, place, 0))


def groups_of(terms: Sequence[Term], group: int) -> list[Sequence[Term]]:
    return [terms[k : k + group] for k in range(0, len(terms), group)]


def ascending(parts: Sequence[Fraction]) -> Fraction:
    """In float32, from the first."""
    total = parts[0]
    for part in parts[1:]:
        total = SINGLE.rounded(total + part)
    return total


def matmul(a: Any, b: Any, how: Sum, offset: tuple[int, int] = (0, 0)) -> Any:
    """a (.., m, k) times b (.., k, n), leading axes broadcast, element by element."""
    leading = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a, b = np.broadcast_to(a, (*leading, *a.shape[-2:])), np.broadcast_to(b, (*leading, *b.shape[-2:]))
    result = np.empty((*leading, a.shape[-2], b.shape[-1]))
    for batch, index in enumerate(np.ndindex(*leading)):
        for i, j in np.ndindex(*result.shape[-2:]):
            terms = list(zip(a[index][i], b[index][:, j], strict=True))
            result[(*index, i, j)] = how.of(terms, batch, offset[0] + i, offset[1] + j)
    return result
