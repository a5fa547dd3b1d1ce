"""Rounding in exact rational arithmetic: the definition the compiled loops are tested against."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from lowprec.backends.reference.random import rounding_bits
from lowprec.types import Array
from lowprec.values.conversion import Conversion
from lowprec.values.float_format import FloatFormat
from lowprec.values.rounding import FEW_BIT_MODES, RoundingRule

HALF = Fraction(1, 2)


def rounds_up(mode: str, fraction: Fraction, odd: bool, negative: bool, random: Fraction) -> bool:
    """Whether a magnitude goes up to the next grid point.

    Args:
        mode: one of MODES or FEW_BIT_MODES.
        fraction: how far it lies above the grid point below, in quanta, in [0, 1).
        odd: whether the grid point below has an odd code.
        negative: whether the number is negative ("up" and "down" go by the number, not by its magnitude).
        random: r / 2^n of the n random bits r.
    """
    match mode:
        case "nearest_even":
            # By the code, not by a bit of the significand: in e8m0, which has no mantissa, ties go to the even code
            # too.
            return fraction > HALF or (fraction == HALF and odd)
        case "nearest_away":
            return fraction >= HALF
        case "toward_zero":
            return False
        case "up":
            return fraction > 0 and not negative
        case "down":
            return fraction > 0 and negative
        case "odd":
            return fraction > 0 and not odd
        # Add and carry, as the hardware does: P(up) is the fraction truncated to n bits.
        case "stochastic" | "stochastic_half" | "stochastic_even":
            return fraction + random >= 1
        case _:
            raise ValueError(f"unknown rounding {mode!r}")


def kept_bits(fraction: Fraction, rule: RoundingRule) -> Fraction:
    """The fraction that random bits are added to: in a few-bit mode rounded to as many bits, in others as it is."""
    if rule.mode not in FEW_BIT_MODES:
        return fraction
    scaled = fraction * (1 << rule.random_bits)
    # In units of the last random bit.
    whole = math.floor(scaled)
    # stochastic_half sends every tie up, stochastic_even only those above an odd number, half of them.
    tie_up = rule.mode == "stochastic_half" or whole % 2 == 1
    up = rounds_up("nearest_away" if tie_up else "nearest_even", scaled - whole, False, False, Fraction(0))
    return Fraction(whole + up, 1 << rule.random_bits)


def exponent_of(magnitude: Fraction) -> int:
    """floor(log2(magnitude)), exact."""
    e = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    # The lengths of numerator and denominator leave two candidates: those of 7/4 and 4/7 are the same.
    return e if times_power(magnitude, -e)[0] else e - 1


def times_power(magnitude: Fraction, e: int) -> tuple[int, int, int]:
    """magnitude * 2^e as its whole part, and the numerator and the denominator of the fraction that is left."""
    # In whole numbers: arithmetic of Fractions looks for a common divisor at every step.
    numerator, denominator = magnitude.numerator << max(e, 0), magnitude.denominator << max(-e, 0)
    return *divmod(numerator, denominator), denominator


def round_magnitude(magnitude: Fraction, negative: bool, rule: RoundingRule, random: Fraction) -> int:
    """The code, without sign, that a finite magnitude is rounded to, as if the exponent range had no upper end."""
    fmt = rule.fmt
    if not fmt.zero:
        # Below the smallest power of two there is nothing to round to, in any mode.
        magnitude = max(magnitude, Fraction(2) ** fmt.emin)
    if not magnitude:
        return 0
    binade = exponent_of(magnitude)
    exponent = max(binade, fmt.emin)
    # Without subnormals there is one step below the smallest normal value, from 0 to 2^emin.
    wide = 0 if fmt.subnormals or binade >= fmt.emin else fmt.mantissa_bits
    step = 1 << wide
    below, rest, whole = times_power(magnitude, fmt.mantissa_bits - exponent - wide)  # in quanta
    # The hidden bit is part of `below` and adds one to the exponent field: subnormals, normals and the carry into the
    # next binade need no cases of their own.
    code = below * step + ((exponent - fmt.emin) << fmt.mantissa_bits)
    if not fmt.zero:
        code -= 1 << fmt.mantissa_bits
    # A value of the format never moves, whatever the random bits.
    if rest and rounds_up(rule.mode, kept_bits(Fraction(rest, whole), rule), code % 2 == 1, negative, random):
        code += step
    return code


def round_number(x: float | int, rule: RoundingRule, random: Fraction = Fraction(0)) -> int | None:
    """The code of one number; None for a NaN that the format cannot express."""
    fmt = rule.fmt
    negative = math.copysign(1.0, x) < 0
    if math.isnan(x):
        return fmt.nan_code
    if math.isinf(x):
        return rule.inf_neg if negative else rule.inf_pos
    if x == 0 and not fmt.zero:
        return rule.none
    # The fnuz formats and unsigned ones have no -0: it becomes +0.
    if x == 0 and not (fmt.negative_zero and negative):
        return 0
    return fmt.sign_bit if x == 0 else round_finite(Fraction(x), rule, random)


def round_finite(x: Fraction, rule: RoundingRule, random: Fraction = Fraction(0)) -> int:
    """The code of a number that is not zero."""
    fmt, negative = rule.fmt, x.numerator < 0
    code = round_magnitude(abs(x), negative, rule, random)
    # After rounding: what rounds up to the smallest normal value is not flushed.
    if rule.flush and code < fmt.min_normal_code:
        code = 0  # zero of the same sign, which an unsigned format has too
    if negative and not fmt.signed and (code != 0 or not fmt.zero):
        return rule.negative
    # Decided after rounding, as if there were a next binade: 65519.99 is still float16's largest, 65520 is beyond.
    if code > fmt.max_code:
        return rule.over_neg if negative else rule.over_pos
    if code == 0 and not fmt.negative_zero:
        return 0
    return code | fmt.sign_bit if negative else code


def convert(conversion: Conversion, x: Array, key: int, offset: int, out: Array) -> bool:
    """Rounds x into out (contiguous, same size); True where a NaN met a format that has none."""
    rule, fmt = conversion.rule, conversion.rule.fmt
    flat = x.ravel()
    target = out.reshape(-1)
    codes = target if conversion.kind == "value" else target.view(fmt.code_dtype)
    bad = False
    for i in range(flat.size):
        # Python's integers are exact: through a double those beyond 2^53 would be rounded twice.
        number = int(flat[i]) if conversion.source is None else float(flat[i])
        random = Fraction(0)
        if rule.random_bits:
            random = Fraction(rounding_bits(rule.random_bits, key, offset + i), 1 << rule.random_bits)
        code = round_number(number, rule, random)
        if code is None:
            bad = True
        else:
            # x's dtype holds every value of the grid (`conversion_of` checked it): storing one is no second rounding.
            codes[i] = fmt.value_of(code) if conversion.kind == "value" else code
    return bad


def decode(fmt: FloatFormat, codes: Array, out: Array) -> None:
    """The value of every code."""
    out.reshape(-1)[...] = np.array([fmt.value_of(int(code)) for code in codes.ravel()], np.float64)
