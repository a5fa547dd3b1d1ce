"""Exact real results of arithmetic, rounded once, in rational numbers: what `lowprec.add` and its kin mean."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from types import MappingProxyType

import numpy as np

from lowprec.backends.reference.elementwise import divide as divide_doubles
from lowprec.backends.reference.random import rounding_bits
from lowprec.backends.reference.rounding import round_finite, round_number
from lowprec.types import Array
from lowprec.values.column_sums import ColumnSum
from lowprec.values.conversion import Conversion
from lowprec.values.rounding import RoundingRule

Exact = Fraction | float
"""An exact result: a Fraction where it is finite and not zero, else a float (a signed zero, an infinity, NaN)."""

SQRT_BITS = 1200  # more than twice the bits of any format here, beyond the smallest double's


def add(a: Exact, b: Exact, down: bool) -> Exact:
    """a + b. A sum of zero that is not one of two zeros of the same sign is +0, or -0 where rounding goes down."""
    # What is finite counts for nothing beside an infinity or NaN, and as a float it might overflow.
    if not is_finite(a) or not is_finite(b):
        return (a if not is_finite(a) else 0.0) + (b if not is_finite(b) else 0.0)
    total = Fraction(a) + Fraction(b)
    if total != 0:
        return total
    # IEEE 754, 6.3: zeros of one sign keep it, x - x is +0 except where rounding goes down.
    if is_negative(a) == is_negative(b):
        return -0.0 if is_negative(a) else 0.0
    return -0.0 if down else 0.0


def multiply(a: float, b: float) -> Exact:
    # IEEE's rules for zeros and infinities are the doubles' own; a Fraction has no signed zero.
    if a == 0 or b == 0 or not (math.isfinite(a) and math.isfinite(b)):
        return a * b
    return Fraction(a) * Fraction(b)


def divide(a: float, b: float) -> Exact:
    if a == 0 or b == 0 or not (math.isfinite(a) and math.isfinite(b)):
        return divide_doubles(a, b)
    return Fraction(a) / Fraction(b)


def sqrt(x: float) -> Exact:
    """A number that rounds to every format as the square root of x does.

    It is the root cut after SQRT_BITS binary places; where the root is inexact, half of the last place is added.
    """
    if x < 0:
        return math.nan
    if x == 0 or not math.isfinite(x):
        return x
    square = Fraction(x) * Fraction(4) ** SQRT_BITS  # an integer: the smallest double is 2**-1074
    root = math.isqrt(square.numerator)
    return (Fraction(root) + (Fraction(1, 2) if root * root != square else 0)) / Fraction(2) ** SQRT_BITS


def is_finite(x: Exact) -> bool:
    return isinstance(x, Fraction) or math.isfinite(x)


def is_negative(x: Exact) -> bool:
    return x < 0 if isinstance(x, Fraction) else math.copysign(1.0, x) < 0


OPERATIONS: MappingProxyType[str, Callable[..., Exact]] = MappingProxyType(
    {
        "add": lambda down, a, b: add(a, b, down),
        "subtract": lambda down, a, b: add(a, -b, down),
        "multiply": lambda down, a, b: multiply(a, b),
        "divide": lambda down, a, b: divide(a, b),
        "sqrt": lambda down, x: sqrt(x),
        # The product stays a Fraction: one rounding, at the end.
        "fma": lambda down, a, b, c: add(multiply(a, b), c, down),
    }
)


def round_result(x: Exact, rule: RoundingRule, random: Fraction = Fraction(0)) -> int | None:
    """The code of an exact result; None for a NaN that the format cannot express."""
    return round_finite(x, rule, random) if isinstance(x, Fraction) else round_number(x, rule, random)


def rounded_code(operation: str, operands: Sequence[float], rule: RoundingRule, key: int, index: int) -> int | None:
    """The code of one operation on doubles, rounded with the random bits of an index."""
    exact = OPERATIONS[operation](rule.mode == "down", *operands)
    return round_result(exact, rule, random_fraction(rule, key, index))


def random_fraction(rule: RoundingRule, key: int, index: int) -> Fraction:
    """r / 2^n of an index; 0 in other modes than stochastic."""
    if rule.mode != "stochastic":
        return Fraction(0)
    return Fraction(rounding_bits(rule.random_bits, key, index), 1 << rule.random_bits)


def arithmetic(
    operation: str,
    conversion: Conversion,
    operands: tuple[Array | float, ...],
    key: int,
    offset: int,
    out: Array | None,
) -> tuple[Array, bool, None]:
    """One operation on floats and arrays, broadcast together, into `out` (contiguous) or a new array.

    Returns:
        The result; whether a NaN met a format without NaN; and no marks of elements left undone.
    """
    # The reference leaves nothing undone: marks are for a backend that hands some elements on to it.
    result = np.empty(np.broadcast(*operands).shape, conversion.out_dtype) if out is None else out
    return result, fill(operation, conversion, operands, range(result.size), key, offset, result), None


def fill(
    operation: str,
    conversion: Conversion,
    operands: tuple[Array | float, ...],
    indices: Sequence[int],
    key: int,
    offset: int,
    out: Array,
) -> bool:
    """The elements of some indices; True where a NaN met a format without NaN."""
    given = [np.broadcast_to(x, out.shape) for x in operands]
    rule, fmt = conversion.rule, conversion.rule.fmt
    target = out.reshape(-1)
    # Codes are written as integers, so that no dtype's own conversion rounds once more.
    codes = target if conversion.kind == "value" else target.view(fmt.code_dtype)
    bad = False
    for i in indices:
        code = rounded_code(operation, [float(x.flat[i]) for x in given], rule, key, offset + i)
        if code is None:
            bad = True
        else:
            codes[i] = fmt.value_of(code) if conversion.kind == "value" else code
    return bad


def column_sums(job: ColumnSum, x: Array, y: Array | None, key: int, offset: int, out: Array) -> None:
    """Sums over the middle axis of x (outer, size, inner), as floats into `out`; y is multiplied to x exactly.

    offset: index of the first element among the random bits (of the first result, for pairs).
    """
    outer, size, inner = x.shape
    rule, target = job.rule, out
    with np.errstate(invalid="ignore"):  # signalling NaN
        x, y = x.astype(np.float64), None if y is None else y.astype(np.float64)
    for o, i in np.ndindex(outer, inner):
        column = x[o, :, i].tolist()
        terms: list[Exact] = (
            column if y is None else [multiply(*pair) for pair in zip(column, y[o, :, i].tolist(), strict=True)]
        )
        # Random bits by the element's own index, so that a part of the array, with its offset, draws as it does in the
        # whole.
        index = [offset + (o * size + k) * inner + i for k in range(size)]
        if job.kind == "kahan":
            target[o, 0, i] = kahan(column, rule, key, index)
            continue
        if job.kind == "pair":
            for k in range(size // 2):
                # A pair has the random bits of its index among the results.
                number = offset + (o * (size // 2) + k) * inner + i
                target[o, k, i] = plus(column[2 * k], column[2 * k + 1], rule, key, number)
            continue
        steps = running(terms, rule, key, index, job.block)
        ends = range(size) if job.kind == "running" else [*range(job.block - 1, size - 1, job.block), size - 1]
        target[o, :, i] = [steps[k] for k in ends] if size else 0.0


def plus(a: Exact, b: Exact, rule: RoundingRule, key: int, index: int) -> float:
    """a + b, exact, rounded once."""
    code = round_result(add(a, b, rule.mode == "down"), rule, random_fraction(rule, key, index))
    return math.nan if code is None else rule.fmt.value_of(code)


def running(terms: Sequence[Exact], rule: RoundingRule, key: int, index: Sequence[int], block: int) -> list[float]:
    """The sum after every term; it starts at +0, and again before every block."""
    sums: list[float] = []
    for k, term in enumerate(terms):
        # The first term is added to +0 as well: it may have to be rounded, and a single -0 becomes +0.
        before = sums[-1] if k % block else 0.0
        sums.append(plus(before, term, rule, key, index[k]))
    return sums


def kahan(terms: Sequence[float], rule: RoundingRule, key: int, index: Sequence[int]) -> float:
    """Kahan's compensated sum: the correction takes out of the next term what the last addition put in too much."""
    total, correction = 0.0, 0.0
    for k, x in zip(index, terms, strict=True):
        # Four roundings a term, and four indices: Kahan's order as published, none of its steps left out.
        term = plus(x, -correction, rule, key, 4 * k)
        new = plus(total, term, rule, key, 4 * k + 1)
        gained = plus(new, -total, rule, key, 4 * k + 2)
        correction = plus(gained, -term, rule, key, 4 * k + 3)
        total = new
    return total
