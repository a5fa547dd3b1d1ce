"""The definition of a sum of products: chains of fused multiply-adds, rounded after every group; parts in stages.

Numbers are Python floats, that is doubles; sums are float32 values held in them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial as bound

from lowprec.backends.reference.elementwise import float32
from lowprec.backends.reference.random import MASK, half_word, philox, whole_word
from lowprec.backends.reference.rounding import round_finite, round_number
from lowprec.values.accumulation import Accumulation
from lowprec.values.float_format import FloatFormat
from lowprec.values.formats import float32 as FLOAT32
from lowprec.values.keys import TAGS
from lowprec.values.rounding import RoundingRule, rounding_rule
from lowprec.values.sum_rules import SumRules

_NEAREST_FLOAT32 = rounding_rule(FLOAT32)

AddGroup = Callable[[float, Sequence[float], Sequence[float]], float]
"""(partial sum, factors of a group, the other factors) -> the new partial sum, a float32."""


@dataclass(frozen=True)
class Element:
    """What the random bits of an element's sum are made of: the key, and where the element lies in the whole result."""

    key: int
    batch: int
    row: int
    column: int
    first_group: int = 0


def sum_bits(tag: int, bits: int, place: Element, number: int) -> int:
    """The random bits of rounding number `number` (group, or index of an intermediate result) of one element.

    Philox's counter is (tag << 24 | batch, row, column // 16, 8 * (number // 4) + lane), of seven rounds for groups and
    ten for stages and results: sixteen columns and four numbers share the eight lanes of a block, and the position
    16 * (number % 4) + column % 16 picks lane, word and half (`half_word`); the bits are the highest of the half-word.
    More than 16 bits are the highest of a whole word (`whole_word`): then two numbers share a block, the counter ends
    in 8 * (number // 2) + lane, and the tag is the next one. Batches count modulo 2^24, rows and columns modulo 2^32.
    """
    # Seven rounds are Crush-resistant (Salmon et al.) and take seven tenths of the time; groups draw most of the bits.
    rounds = 7 if tag == TAGS["step"] else 10
    if bits <= 16:
        lane, word, half = half_word(16 * (number & 3) + (place.column & 15))
        # A block has 64 half-words: 16 columns times 4 numbers.
        high, head = number >> 2, tag
    else:
        lane, word = whole_word(16 * (number & 1) + (place.column & 15))
        half, high, head = 0, number >> 1, tag + 1
    counter = (
        head << 24 | place.batch & 0xFFFFFF,
        place.row & MASK,
        (place.column & MASK) >> 4,
        (high << 3 | lane) & MASK,
    )
    drawn = philox(counter, place.key, rounds)[word]
    return (drawn >> 16 * half & 0xFFFF) >> (16 - bits) if bits <= 16 else drawn >> (32 - bits)


def round_sum(x: float, rule: RoundingRule | None, tag: str, place: Element, number: int) -> float:
    """A float32 sum on the grid of the rule's format; unchanged where there is no rule."""
    if rule is None:
        return x
    random = Fraction(0)
    if rule.mode == "stochastic":
        random = Fraction(sum_bits(TAGS[tag], rule.random_bits, place, number), 1 << rule.random_bits)
    # x is a float32, exact: this is the one rounding of its group.
    code = round_number(x, rule, random)
    # An accumulator without NaN has no code for it: the NaN goes on, and is refused where the result is stored.
    return math.nan if code is None else rule.fmt.value_of(code)


def exact_to_float32(terms: Sequence[float]) -> float:
    """The exact sum of doubles rounded once to float32."""
    # Infinities and NaN as doubles add them: Fractions know neither. Products of two float32 cannot overflow a double.
    plain = sum(terms[1:], terms[0])
    if not math.isfinite(plain):
        return plain
    total = sum(Fraction(term) for term in terms)
    if total == 0:
        return plain if plain == 0.0 else 0.0  # the sign that adding in any order gives
    # Not through the nearest double, which would round twice.
    code = round_number(_to_odd(total), _NEAREST_FLOAT32)
    assert code is not None
    return FLOAT32.value_of(code)


def _to_odd(total: Fraction) -> float:
    """A double that rounds to float32 as `total` does: the neighbour with an odd last bit where it is inexact."""
    near = float(total)
    if Fraction(near) == total:
        return near
    other = math.nextafter(near, math.inf if total > near else -math.inf)
    # One of two neighbouring doubles is odd; its last bit keeps it off every tie of float32.
    return near if math.frexp(near)[0] * 2.0**53 % 2.0 == 1.0 else other


def multiply_add(a: float, b: float, c: float) -> float:
    """a * b + c of float32 values, rounded once to float32: the exact product in double, the sum rounded to odd."""
    product = a * b
    total = product + c
    if not math.isfinite(total):
        return float32(total)
    # Knuth's sum: `error` is exactly what the addition of doubles lost.
    part = total - product
    error = (product - (total - part)) + (c - part)
    # Made odd, the double rounds to float32 as the exact sum does; to nearest it would round twice.
    if error != 0.0 and math.frexp(total)[0] * 2.0**53 % 2.0 == 0.0:
        total = math.nextafter(total, math.copysign(math.inf, error))
    return float32(total)


def sequential(partial: float, a: Sequence[float], b: Sequence[float]) -> float:
    """One fused rounding per product, ascending."""
    for x, y in zip(a, b, strict=True):
        partial = multiply_add(x, y, partial)
    return partial


def dot4(partial: float, a: Sequence[float], b: Sequence[float]) -> float:
    """Four products and the partial sum added exactly, then rounded once."""
    for k in range(0, len(a), 4):
        # Exact in double, as significands have at most 11 bits here.
        products = [x * y for x, y in zip(a[k : k + 4], b[k : k + 4], strict=True)]
        partial = exact_to_float32([partial, *products])
    return partial


def pairwise(partial: float, a: Sequence[float], b: Sequence[float]) -> float:
    """(p0 + p1) + (p2 + p3), each pair one product rounded and one fused, then added to the partial sum."""
    for k in range(0, len(a), 4):
        pairs = []
        for i in range(k, min(k + 4, len(a)), 2):
            # Rounded by itself: the first product of a pair has no addend to be fused with.
            pair = float32(a[i] * b[i])
            pairs.append(multiply_add(a[i + 1], b[i + 1], pair) if i + 1 < len(a) else pair)
        partial = float32(partial + float32(sum(pairs[1:], pairs[0])))
    return partial


def aligned(
    partial: float, a: Sequence[float], b: Sequence[float], *, bits: int, least: tuple[int, int], cut: RoundingRule
) -> float:
    """All terms cut toward zero `bits` places behind the largest exponent, then added exactly and cut to float32.

    least: exponents of the factors' smallest normal numbers, which their subnormal ones have too.
    """
    terms = [partial, *(x * y for x, y in zip(a, b, strict=True))]
    # Infinities and NaN give what float arithmetic gives: they have no exponent to be aligned to.
    plain = sum(terms)
    if not math.isfinite(plain):
        return plain
    pairs = zip(a, b, strict=True)
    exponents = [exponent(x, least[0]) + exponent(y, least[1]) for x, y in pairs if x != 0 and y != 0]
    # A zero has no exponent: a partial sum of 0 must not push small products out.
    if partial != 0:
        exponents.append(exponent(partial, FLOAT32.emin))
    if not exponents:
        return 0.0
    quantum = Fraction(2) ** (max(exponents) - bits)
    # int cuts toward zero, every term by itself, as tensor cores were measured to do.
    total = sum(int(Fraction(term) / quantum) for term in terms) * quantum
    if abs(total) >= 2**128:
        return math.inf if total > 0 else -math.inf
    code = round_number(0.0, cut) if total == 0 else round_finite(total, cut)
    assert code is not None
    return FLOAT32.value_of(code)


def exponent(x: float, least: int) -> int:
    """The exponent of a number's binade; of a subnormal one that of the smallest normal number."""
    return max(math.frexp(x)[1] - 1, least)


ADD: dict[str, AddGroup] = {"sequential": sequential, "dot4": dot4, "pairwise": pairwise}


def group_adder(order: Accumulation, rules: SumRules, a: FloatFormat, b: FloatFormat) -> AddGroup:
    """The function that adds a group of products, by the order's adder.

    a and b are the formats of the factors, whose smallest exponents the aligned adder needs.
    """
    if order.adder != "aligned":
        return ADD[order.adder]
    assert order.aligned_bits is not None
    # To odd before a narrower accumulator, whose own rounding then sees the exact sum and not one that was cut.
    cut = rounding_rule(FLOAT32, "toward_zero" if rules.step is None else "odd")
    return bound(aligned, bits=order.aligned_bits, least=(a.emin, b.emin), cut=cut)


def chain(
    a: Sequence[float],
    b: Sequence[float],
    rule: RoundingRule | None,
    group: int,
    add: AddGroup,
    place: Element,
    first: int,
    partial: float,
) -> float:
    """The sum of one part: it starts from `partial` and is rounded after every group.

    Args:
        a, b: the factors of the part's products.
        rule: the rounding after a group; None: none.
        group: products of a group; the last group may have fewer.
        add: how the products of a group are added.
        place: for the random bits.
        first: number of the part's first group in the whole sum.
        partial: what the chain starts from.
    """
    # A short last group is rounded too: once per group, whatever its length.
    for i, k in enumerate(range(0, len(a), group)):
        partial = add(partial, a[k : k + group], b[k : k + group])
        partial = round_sum(partial, rule, "step", place, first + i)
    return partial


def add_ascending(parts: Sequence[float]) -> float:
    """The float32 sum of parts, in order, from the first one."""
    # From the first part, not from 0: a single part of -0 stays -0.
    total = parts[0]
    for part in parts[1:]:
        total = float32(total + part)
    return total


def dot(
    a: Sequence[float],
    b: Sequence[float],
    order: Accumulation,
    rules: SumRules,
    place: Element,
    add: AddGroup,
    start: float = 0.0,
) -> float:
    """One element of a product: its parts, their stages and the last rounding; a float32 on the result's grid.

    Groups are added by `add`; the first part starts from `start`.
    """
    group = order.group_of(len(a))
    parts = []
    for begin, end in order.parts(len(a)):
        first = place.first_group + begin // group
        # `start` belongs to the first part alone; callers give one for a single part only.
        partial = 0.0 if begin else start
        parts.append(chain(a[begin:end], b[begin:end], rules.step, group, add, place, first, partial))
    # Without terms the result is what the chain would have started from.
    return sum_stages(parts or [start], order, rules, place)


def sum_stages(parts: list[float], order: Accumulation, rules: SumRules, place: Element) -> float:
    """Parts summed in stages, rounded between them and at the end; +0 for no parts."""
    *early, _ = order.stage_runs(len(parts))
    number = 0
    for runs in early:
        sums = [add_ascending(parts[start:end]) for start, end in runs]
        parts = [round_sum(x, rules.step, "stage", place, number + i) for i, x in enumerate(sums)]
        # Counted on through all stages: no two intermediate results of an element share random bits.
        number += len(parts)
    total = add_ascending(parts) if parts else 0.0
    return round_sum(total, rules.final, "output", place, 0)
