"""The rules by which float32 sums are rounded, made of an Accumulation and a Rounding: of the chains and the result."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from lowprec._caching import cached
from lowprec.values.accumulation import Accumulation, check_float32_holds
from lowprec.values.float_format import FloatFormat
from lowprec.values.formats import float32
from lowprec.values.rounding import Rounding, RoundingRule


@dataclass(frozen=True, eq=False)  # compared by identity: made once per set of arguments, by a cache
class SumRules:
    """How float32 sums are rounded and stored.

    Attributes:
        step: the rounding after every group and between stages; None where float32 itself is the accumulator.
        final: the rounding of the result; None where its format holds every float32.
        out: the result's format.
        out_dtype: its storage dtype.
        one_format: whether `final` leaves every result of `step` as it is.
        settled: whether `step` leaves its own results as they are, as it meets them again in a stage of one part.
    """

    step: RoundingRule | None
    final: RoundingRule | None
    out: FloatFormat
    out_dtype: np.dtype[Any]
    one_format: bool
    settled: bool

    @cached_property
    def stochastic(self) -> bool:
        """Whether any rounding takes random bits."""
        return any(rule is not None and rule.mode == "stochastic" for rule in (self.step, self.final))


@cached
def sum_rules(accumulation: Accumulation, rounding: Rounding) -> SumRules:
    """The rules of whole sums.

    Raises:
        TypeError: the result's format has no storage dtype.
        ValueError: a Rounding that sums do not take, an accumulator that float32 does not hold, or a policy that a
            format cannot express.
    """
    rounding.refuse("sums", exact=True, flush=True)
    check_float32_holds(accumulation.accumulate)
    out = accumulation.out
    if out.dtype is None:
        raise TypeError(f"{out.name} has no storage dtype; give out_format, such as 'float32'")
    step = _rule(accumulation.accumulate, rounding)
    # Not so where overflow gives an infinity that infinite_input then replaces: the second rounding changes it.
    settled = step is None or step.settles
    return SumRules(
        step=step,
        final=_rule(out, rounding),
        out=out,
        out_dtype=out.dtype,
        one_format=out == accumulation.accumulate and settled,
        settled=settled,
    )


@cached
def part_rules(accumulation: Accumulation, rounding: Rounding) -> SumRules:
    """The rules of one chain on its own (an Accumulation's `one_part`), whose result the last group's rounding gives.

    A sum of no terms is rounded once, in which an infinity of the accumulator stays what it is.

    Raises:
        TypeError, ValueError: as `sum_rules`.
    """
    rules, fmt = sum_rules(accumulation, rounding), accumulation.accumulate
    # Chains go on from chains: an empty slice must hand on the infinity that the slice before it left.
    kept = replace(rounding, infinite_input="keep") if fmt.infinities else rounding
    # one_format: no rounding after the last group's, else slices one after the other would differ from the whole.
    return replace(rules, final=_rule(fmt, kept), one_format=True)


@cached
def rules_in_float32(rules: SumRules) -> SumRules:
    """The rules of sums that others go on from: results stay float32, without a final rounding."""
    return replace(rules, final=None, out=float32, out_dtype=np.dtype(np.float32), one_format=False)


def _rule(fmt: FloatFormat, rounding: Rounding) -> RoundingRule | None:
    """The rounding of float32 values to `fmt`; None where it leaves every float32 as it is."""
    rule = rounding.rule(fmt)
    # A policy that replaces infinities is a rounding even in float32.
    if fmt.contains(float32) and rule.inf_pos == fmt.inf_code:
        return None
    # Sums are made in float32, where such a result would be infinite.
    if any(float32.max < fmt.value_of(code) < math.inf for code in (rule.over_pos, rule.inf_pos)):
        raise ValueError(f"{fmt.name} cannot saturate here: its largest value is beyond float32")
    return rule
