"""What an arithmetic may be, step by step: the formats, roundings, adders and parts that a search goes through."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from lowprec.identification.arithmetic import Arithmetic, Operands
from lowprec.integers import ceil_div
from lowprec.values.accumulation import MOST_ALIGNED_BITS, Accumulation, Adder
from lowprec.values.float_format import FloatFormat, NanStyle
from lowprec.values.formats import float32, formats
from lowprec.values.rounding import MODES, InfiniteInput, Mode, Overflow, Rounding

DIRECTIONS: tuple[Mode, ...] = tuple(mode for mode in MODES if mode != "stochastic")
CASTS: tuple[Mode, ...] = ("nearest_even", "toward_zero", "nearest_away")
"""Roundings of operands that are tried."""

OVERFLOW: tuple[Overflow | None, ...] = (None, "infinity", "saturate", "nan")
INFINITE: tuple[InfiniteInput | None, ...] = (None, "keep", "nan", "max")
ALL_OF_A_PART = 16
"""The group of a sum of four terms that stands for one of all terms of a part; 4 for one of four or more."""
MOST_SPLITS = 256


def one_product(accumulate: FloatFormat, out: FloatFormat, mode: Mode, aligned: int | None) -> Arithmetic:
    """One product, rounded to a format, or cut, and rounded to another."""
    adder: Adder = "sequential" if aligned is None else "aligned"
    return Arithmetic(Accumulation(4, 1, None, accumulate, out, adder, aligned), Rounding(mode))


def not_told(found: list[Arithmetic]) -> list[Arithmetic]:
    """Without the bits of aligned adders that are as good as all, which stand for them."""
    every = {
        (each.operands, each.rounding, each.accumulation.accumulate, each.accumulation.out)
        for each in found
        if each.accumulation.aligned_bits == MOST_ALIGNED_BITS
    }
    return [
        each
        for each in found
        if each.accumulation.aligned_bits in (None, MOST_ALIGNED_BITS)
        or (each.operands, each.rounding, each.accumulation.accumulate, each.accumulation.out) not in every
    ]


def of_bits(bits: int) -> FloatFormat:
    """The format of float32's exponents and so many mantissa bits."""
    made = FloatFormat(f"e8m{bits}", 8, bits)
    return next((fmt for fmt in formats.values() if replace(fmt, name=made.name) == made), made)


def simplicity(each: Arithmetic) -> tuple[int, ...]:
    """Formats with names before others, float32 before narrow ones, and roundings in their order."""
    order = each.accumulation
    both = (order.accumulate, order.out)
    return (
        sum(fmt.name not in formats for fmt in both),
        order.accumulate not in (float32, order.out),
        sum(fmt != float32 for fmt in both),
        -order.accumulate.mantissa_bits,
        MODES.index(each.rounding.mode),
    )


def distinct(given: Iterable[FloatFormat]) -> list[FloatFormat]:
    """Each format once, by its numbers, under the first of its names."""
    found: dict[FloatFormat, FloatFormat] = {}
    for fmt in given:
        found.setdefault(replace(fmt, name=""), fmt)
    return list(found.values())


def may_hold(fmt: FloatFormat, bits: int, exact: bool) -> bool:
    fits = fmt.mantissa_bits == bits if exact else fmt.mantissa_bits >= bits
    return fits and fmt.signed and fmt.zero and float32.contains(fmt)


def policies(accumulate: FloatFormat, out: FloatFormat) -> Iterator[Rounding]:
    """The rules for overflow and infinities that both formats can express and that differ in what they do."""
    seen = set()
    for policy in (Rounding(overflow=over, infinite_input=infinite) for over in OVERFLOW for infinite in INFINITE):
        if can(policy, accumulate) and can(policy, out):
            rules = policy.rule(accumulate), policy.rule(out)
            if rules not in seen:
                seen.add(rules)
                yield policy


def can(rounding: Rounding, fmt: FloatFormat) -> bool:
    try:
        rounding.rule(fmt)
    except ValueError:
        return False
    return True


def operand_ranges(operands: Operands, *, named: bool = False) -> Iterator[Operands]:
    """Casts to formats of as many mantissa bits and every exponent, with every rule for what lies beyond.

    Args:
        named: formats with names alone, by their own rule or saturating (terms of a sum, of which is not seen what is
            the operands' and what the results').
    """
    bits = operands.format.mantissa_bits
    known = [fmt for fmt in formats.values() if may_hold(fmt, bits, exact=True)]
    styles: tuple[tuple[str, bool, NanStyle], ...] = (("", True, "ieee"), ("finite", False, "top"))
    made = [
        FloatFormat(f"e{width}m{bits}{called}", width, bits, infinities=infinities, nan=nan)
        for width in range(8, 1, -1)
        for called, infinities, nan in styles
    ]
    for fmt in distinct([*known, *(fmt for fmt in made if float32.contains(fmt) and not named)]):
        for flush in (False, True):
            for policy in policies(fmt, fmt):
                if named and (policy.infinite_input is not None or policy.overflow not in (None, "saturate")):
                    continue
                yield Operands(fmt, replace(policy, mode=operands.rounding.mode, flush=flush))


def adders(order: Accumulation, seen: int) -> Iterator[Accumulation]:
    """Every adder of sums of four, in groups of 1, 2, 3 and all four; one that is aligned keeps its bits."""
    exact = order.accumulate == float32
    if order.adder == "aligned":
        unknown = order.aligned_bits == MOST_ALIGNED_BITS
        for bits in range(1, MOST_ALIGNED_BITS + 1) if unknown else (order.aligned_bits,):
            # A sum is cut once more in groups of zeros behind it: none, where a group is all of a part.
            for group in (4, ALL_OF_A_PART, 3, 2, 1):
                yield replace(order, group=group, aligned_bits=bits)
    # Bits that are lost show in the narrowest format, unless an adder cuts them.
    elif exact or order.accumulate.mantissa_bits <= seen - 1 or order.out != float32:
        others: tuple[Adder, ...] = ("sequential", "dot4", "pairwise")
        for adder in others:
            for group in (4,) if exact and adder == "sequential" else (4, 3, 2, 1):
                yield replace(order, group=group, adder=adder)


def promotion(terms: int, group: int, parts: int) -> int:
    """The shortest promotion, in whole groups, by which a sum is cut into so many parts."""
    return group * ceil_div(ceil_div(terms, group), parts)


def splits_of(order: Accumulation, part: int, terms: int) -> list[int]:
    """The numbers of splits with which a part has that many terms."""
    if part >= terms:
        return [1]
    return [
        splits
        for splits in range(2, min(terms, MOST_SPLITS) + 1)
        if replace(order, splits=splits).part_length(terms) == part
    ]
