"""A prepared conversion: everything about a rounding call but the array, the key and the offset."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from lowprec._caching import cached
from lowprec.values.float_format import FloatFormat
from lowprec.values.formats import FormatLike, as_format, float32, float64, format_of_dtype
from lowprec.values.rounding import Rounding, RoundingRule

Kind = Literal["value", "code"]
Result = Literal["value", "storage", "code"]
_FLOAT64 = np.dtype(np.float64)
# Boldo and Melquiond (IEEE Trans. Computers 57, 2008): a double rounded to odd, of 53 bits, rounds on to at most 51 as
# the exact number does.
CARRIED_BITS = 51
"""Mantissa and random bits together up to which rounding a double that was rounded to odd equals rounding once."""


@dataclass(frozen=True, eq=False)  # compared by identity: made once per set of arguments, by a cache
class Conversion:
    """A checked rounding of arrays of one dtype to one format, as every backend takes it.

    Attributes:
        rule: how a value becomes a code.
        source: the format of the input's dtype; None for integers.
        in_dtype: the input's dtype.
        out_dtype: the result's dtype.
        kind: "value": the result holds values (its dtype is the input's); "code": it holds codes.
        keyed: calls need a key. (float64 to float64 takes no bits, but is asked for stochastically like others.)
    """

    rule: RoundingRule
    source: FloatFormat | None
    in_dtype: np.dtype[Any]
    out_dtype: np.dtype[Any]
    kind: Kind
    keyed: bool = False


@cached
def conversion_of(result: Result, dtype: np.dtype[Any], fmt: FormatLike, rounding: Rounding) -> Conversion:
    """The checked conversion of `round` (result "value"), `astype` ("storage") or `encode` ("code") from a dtype.

    Raises:
        TypeError, ValueError: as `round`.
    """
    fmt = as_format(fmt)
    source = format_of_dtype(dtype)
    if source is None and (dtype.kind not in "iu" or dtype.itemsize > 8):
        what = "objects (integers beyond 64 bits, None, or a mixture)" if dtype.kind == "O" else str(dtype)
        raise TypeError(f"cannot round {what}; allowed are floating-point (ml_dtypes included) and integer arrays")
    rule = rounding.rule(fmt)
    kind: Kind = "code"
    if result == "value":
        if source is None:
            raise TypeError(f"round keeps x's dtype and {dtype} cannot hold {fmt.name}; use astype or encode")
        # A format that holds the whole dtype is taken too: every result is then one of x's own values.
        if not (source.contains(fmt) or fmt.contains(source)):
            raise TypeError(f"round keeps x's dtype and {dtype} cannot hold {fmt.name}'s values; use astype or encode")
        # One result can lie beyond the dtype here: the largest value of the format, which infinities are to become.
        if not source.contains(fmt) and rule.inf_pos == fmt.max_code and source.infinities:
            raise TypeError(
                f"round keeps x's dtype and {dtype} cannot hold {fmt.name}'s largest value, which infinite inputs "
                "are to become; use astype or encode"
            )
        kind, out_dtype = "value", dtype
    elif result == "storage":
        if fmt.dtype is None:
            raise TypeError(f"{fmt.name} has no storage dtype; use encode (codes) or round (values)")
        out_dtype = fmt.dtype
    else:
        out_dtype = fmt.code_dtype
    # Every float64 stays as it is, and the loops have no room for random bits below float64's last.
    if fmt == float64 and source == float64 and rounding.mode == "stochastic":
        rule = replace(rounding, mode="nearest_even").rule(fmt)
    return Conversion(rule, source, dtype, out_dtype, kind, rounding.stochastic)


@cached
def exact_conversion(fmt: FormatLike, rounding: Rounding) -> Conversion:
    """The checked rounding of an exact result, in the format's storage dtype or in a float dtype that holds it.

    Raises:
        ValueError: a Rounding that exact operations do not take, or a policy the format cannot express.
    """
    fmt = as_format(fmt)
    rounding.refuse("exact operations", exact=True)
    rule = rounding.rule(fmt)
    # An exact result is handed on as a double, so that its conversion is one from float64 whatever the operands were.
    if fmt.dtype is not None:
        return Conversion(rule, float64, _FLOAT64, fmt.dtype, "code", rounding.stochastic)
    values = np.dtype(np.float32) if float32.contains(fmt) else _FLOAT64
    return Conversion(rule, float64, _FLOAT64, values, "value", rounding.stochastic)
