"""Exact real results of arithmetic, rounded once, in rational numbers: what `lowprec.add` and its kin mean."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from lowprec.backends.reference.elementwise import divide as divide_doubles
from lowprec.backends.reference.random import rounding_bits
from lowprec.backends.reference.rounding import round_finite, round_number
from lowprec.conversion import Conversion
from lowprec.rule import RoundingRule

Exact = Fraction | float
"""An exact result: a Fraction where it is finite and not zero, else a float (a signed zero, an infinity, NaN)."""

SQRT_BITS = 1200  # more than twice the bits of any format here, beyond the smallest double's


def add(a: Exact, b: Exact, down: bool) -> Exact:
    """a + b. A sum of zero that is not one of two zeros of the same sign is +0, or -0 where rounding goes down."""
    if not is_finite(a) or not is_finite(b):
        return (a if not is_finite(a) else 0.0) + (b if not is_finite(b) else 0.0)
    total = Fraction(a) + Fraction(b)
    if total != 0:
        return total
    if is_negative(a) == is_negative(b):
        return -0.0 if is_negative(a) else 0.0
    return -0.0 if down else 0.0


def multiply(a: float, b: float) -> Exact:
    if a == 0 or b == 0 or not (math.isfinite(a) and math.isfinite(b)):
        return a * b
    return Fraction(a) * Fraction(b)


def divide(a: float, b: float) -> Exact:
    if a == 0 or b == 0 or not (math.isfinite(a) and math.isfinite(b)):
        return divide_doubles(a, b)
    return Fraction(a) / Fraction(b)


def sqrt(x: float) -> Exact:
    """The root cut after SQRT_BITS binary places; where it goes on, a last bit below them says so."""
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
        "fma": lambda down, a, b, c: add(multiply(a, b), c, down),
    }
)


def round_result(x: Exact, rule: RoundingRule, random: Fraction = Fraction(0)) -> int | None:
    """The code of an exact result; None for a NaN that the format cannot express."""
    return round_finite(x, rule, random) if isinstance(x, Fraction) else round_number(x, rule, random)


def rounded_code(operation: str, operands: Sequence[float], rule: RoundingRule, key: int, index: int) -> int | None:
    """The code of one operation on doubles, rounded with the random bits of an index."""
    random = Fraction(0)
    if rule.mode == "stochastic":
        random = Fraction(rounding_bits(rule.random_bits, key, index), 1 << rule.random_bits)
    return round_result(OPERATIONS[operation](rule.mode == "down", *operands), rule, random)


def arithmetic(
    operation: str,
    conversion: Conversion,
    operands: Sequence[npt.NDArray[Any]],
    key: int,
    offset: int,
    out: npt.NDArray[Any],
) -> bool:
    """One operation on arrays of out's shape, into `out` (contiguous); True where a NaN met a format without NaN."""
    flat = [operand.astype(np.float64).ravel() for operand in operands]
    return fill(operation, conversion, flat, range(out.size), key, offset, out)


def fill(
    operation: str,
    conversion: Conversion,
    operands: Sequence[npt.NDArray[Any]],
    indices: Sequence[int],
    key: int,
    offset: int,
    out: npt.NDArray[Any],
) -> bool:
    """The elements of some indices."""
    rule, fmt = conversion.rule, conversion.rule.fmt
    target = out.reshape(-1)
    codes = target if conversion.kind == "value" else target.view(fmt.code_dtype)
    bad = False
    for i in indices:
        code = rounded_code(operation, [float(x[i]) for x in operands], rule, key, offset + i)
        if code is None:
            bad = True
        else:
            codes[i] = fmt.value_of(code) if conversion.kind == "value" else code
    return bad
