"""What a number becomes in a format: bits, neighbours, the result of every mode, the probability of rounding up."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import SupportsFloat

import numpy as np

from lowprec.backends.reference.rounding import round_magnitude, round_number
from lowprec.processor import in_default_state
from lowprec.values.describe import escape
from lowprec.values.float_format import FloatFormat
from lowprec.values.formats import FormatLike, as_format
from lowprec.values.rounding import MODES, rounding_rule


@dataclass(frozen=True)
class Neighbour:
    """A value of the format beside x.

    Attributes:
        code: its code.
        value: its value.
        layout: the code in binary, "sign exponent mantissa".
        distance: how far from x, in units of the spacing there (0 to 1).
    """

    code: int
    value: float
    layout: str
    distance: float


@dataclass(frozen=True)
class Explanation:
    """The result of `explain`; prints as a table.

    Attributes:
        x: the number.
        format: the format.
        below, above: the neighbours with the next smaller and the next larger magnitude; the same one if x is a value
            of the format; None for NaN and infinities and beyond the largest value.
        results: mode -> value (every mode but stochastic).
        probability_up: the chance that stochastic rounding takes `above`, with enough random bits.
    """

    x: float
    format: FloatFormat
    below: Neighbour | None
    above: Neighbour | None
    results: dict[str, float]
    probability_up: Fraction | None

    def rows(self) -> list[tuple[str, str]]:
        """The lines of the table, each a label and what it says."""
        # Without "<FloatFormat " and ">".
        rows = [("x", f"{self.x!r} = {self.x.hex()}"), ("format", repr(self.format)[13:-1])]
        if self.below is not None and self.below == self.above:
            rows.append(("exact", _shown(self.below, self.format)))
        else:
            rows += [
                (label, _shown(n, self.format)) for label, n in (("below", self.below), ("above", self.above)) if n
            ]
        rows += [(mode, repr(value)) for mode, value in self.results.items()]
        if self.probability_up is not None and self.below != self.above:
            share = self.probability_up
            rows.append(("stochastic", f"away from zero with P = {_ratio(share)} = {float(share):.6g}"))
        return rows

    def __str__(self) -> str:
        rows = self.rows()
        width = max(len(label) for label, _ in rows)
        return "\n".join(f"{label:<{width}}  {said}" for label, said in rows)

    def _repr_html_(self) -> str:
        body = "".join(f"<tr><th>{escape(a)}</th><td>{escape(b)}</td></tr>" for a, b in self.rows())
        return f"<table>{body}</table>"


@in_default_state
def explain(x: SupportsFloat, fmt: FormatLike) -> Explanation:
    """Explains what a number becomes in a format, with the format's default overflow.

    Args:
        x: a number; taken as float64.
        fmt: a format, a name or a dtype.

    Raises:
        TypeError: something that is no number.
        ValueError: an unknown format, or a NaN for a format that has none.
    """
    if isinstance(x, np.ndarray) and x.ndim:
        raise TypeError(
            f"explain takes one number, such as x.flat[0], not an array of shape {x.shape}; "
            "lowprec.statistics.shares(x, fmt) counts what becomes of all of them"
        )
    fmt, x = as_format(fmt), float(x)
    if math.isnan(x) and fmt.nan_code is None:
        raise ValueError(f"NaN cannot be represented in {fmt.name}, which has no NaN")
    results: dict[str, float] = {}
    for mode in MODES:
        # Its result is no one number: probability_up says it.
        if mode != "stochastic":
            code = round_number(x, rounding_rule(fmt, mode))
            assert code is not None
            results[mode] = fmt.value_of(code)
    below, above, up = _neighbours(x, fmt)
    return Explanation(x, fmt, below, above, results, up)


def _neighbours(x: float, fmt: FloatFormat) -> tuple[Neighbour | None, Neighbour | None, Fraction | None]:
    """The format's neighbours of x toward and away from zero, and how far x lies between them, from 0 to 1."""
    if not math.isfinite(x) or (x == 0 and not fmt.zero) or (x < 0 and not fmt.signed):
        return None, None, None
    magnitude, sign = abs(Fraction(x)), fmt.sign_bit if math.copysign(1.0, x) < 0 else 0
    # By the definition of rounding itself, so that what is explained is what is computed.
    inner = round_magnitude(magnitude, False, rounding_rule(fmt, "toward_zero"), Fraction(0))
    outer = round_magnitude(magnitude, False, rounding_rule(fmt, "up"), Fraction(0))
    if inner > fmt.max_code:
        return None, None, None
    # As Fractions: `high` may lie in the binade beyond the largest value, and beyond float64.
    low, high = _grid_value(inner, fmt), _grid_value(outer, fmt)
    fraction = Fraction(0) if inner == outer else (magnitude - low) / (high - low)
    below = _neighbour(inner, sign, fmt, float(fraction))
    above = _neighbour(outer, sign, fmt, 1 - float(fraction)) if outer <= fmt.max_code else None
    return below, below if inner == outer else above, fraction


def _grid_value(code: int, fmt: FloatFormat) -> Fraction:
    """The value of a magnitude code as if the exponent range had no upper end."""
    if code < fmt.min_normal_code:
        return Fraction(fmt.value_of(code))
    field, mantissa = divmod(code - fmt.min_normal_code, 1 << fmt.mantissa_bits)
    return Fraction(2) ** (fmt.emin + field) * (1 + Fraction(mantissa, 1 << fmt.mantissa_bits))


def _neighbour(magnitude: int, sign: int, fmt: FloatFormat, distance: float) -> Neighbour:
    code = magnitude | (sign if magnitude or fmt.negative_zero else 0)
    digits = f"{code:0{fmt.bits}b}"
    parts = [digits[: int(fmt.signed)], digits[int(fmt.signed) : fmt.bits - fmt.mantissa_bits]]
    parts.append(digits[fmt.bits - fmt.mantissa_bits :])
    return Neighbour(code, fmt.value_of(code), " ".join(p for p in parts if p), distance)


def _shown(n: Neighbour, fmt: FloatFormat) -> str:
    where = "" if n.distance == 0 else f", {n.distance:.6g} of the spacing away"
    return f"{n.value!r} = {n.code:#0{(fmt.bits + 3) // 4 + 2}x} ({n.layout}){where}"


def _ratio(f: Fraction) -> str:
    """The fraction where it is short, else its power-of-two denominator."""
    power = f.denominator.bit_length() - 1
    return str(f) if power <= 10 else f"{f.numerator}/2^{power}"
