"""Sums whose every addition is rounded once, as data.

An `OrderedPlan` is made once for a set of arguments and kept in a cache; an `OrderedSum` adds what one call has: key
and offset.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from lowprec._caching import cached
from lowprec.random import Key, KeyLike, as_key
from lowprec.values.column_sums import ColumnSum, carrier
from lowprec.values.conversion import CARRIED_BITS, Conversion, conversion_of, exact_conversion
from lowprec.values.formats import FormatLike, as_format, float64
from lowprec.values.keys import first_index
from lowprec.values.keywords import RoundingKeywords, RoundingLike, as_rounding, refuse_unhashable
from lowprec.values.rounding import NEAREST_EVEN, Rounding, RoundingRule

SumOrder = Literal["sequential", "blocked", "pairwise", "kahan"]
ORDERS: tuple[str, ...] = get_args(SumOrder)
LONGEST = 1 << 62  # terms of a run that never ends


@dataclass(frozen=True, eq=False)  # made once per set of arguments, by a cache
class OrderedPlan:
    """Everything about a sum but its terms and random bits.

    Attributes:
        order: one of ORDERS.
        rule: the rounding of every step.
        jobs: name -> sum of columns: those of the kinds over all terms, and "blocked".
        step: the rounding of a step as `lowprec.arithmetic` takes it: from an exact result to `dtype`.
        rounding: the rounding of a step as `lowprec.round` takes it.
        policies: whether rounding may change values of the format itself (flush, replace infinities).
        values: the dtype that sums are computed into.
        dtype: the result's dtype.
        store: the conversion from `values` to `dtype`; None where they are the same.
    """

    order: SumOrder
    rule: RoundingRule
    jobs: Mapping[str, ColumnSum]
    step: Conversion
    rounding: Rounding
    policies: bool
    values: np.dtype[Any]
    dtype: np.dtype[Any]
    store: Conversion | None


class OrderedSum(NamedTuple):
    """A checked sum: its plan, key and the index of its first element among the random bits."""

    plan: OrderedPlan
    key: Key | None
    offset: int

    def step_key(self, n: int) -> Key | None:
        """The key of later stage number n (level of pairs, sums of runs, last operation); None without a key."""
        return None if self.key is None else self.key.fold_in(n)

    def step_seed(self, n: int) -> int:
        """The 64 bits of `step_key`; 0 without a key."""
        return 0 if self.key is None else self.key.fold_in(n).value

    def first(self, size: int, inner: int, results: int) -> int:
        """The index, among the random bits of a later stage, of the first result of this call.

        A row has `size` terms in each of `inner` columns, and `results` results in each.

        Raises:
            ValueError: the offset is not one of whole rows.
        """
        if not self.offset or self.key is None:
            return 0
        # The offset counts terms; results of the rows before it are counted from it, which whole rows alone allow.
        rows, rest = divmod(self.offset, max(size * inner, 1))
        if rest:
            raise ValueError(
                f"offset must be a multiple of {size * inner}, the elements of a row, where results are rounded "
                f"again; {self.offset} is none"
            )
        return rows * results * inner


def checked_sum(
    fmt: FormatLike,
    rounding: RoundingLike,
    order: SumOrder,
    block: int,
    key: KeyLike | None,
    offset: int,
    size: int,
    policies: RoundingKeywords,
) -> OrderedSum:
    """The checked arguments of a sum of `size` elements."""
    try:
        plan = _from_keywords(fmt, order, block, rounding, **policies)
    except TypeError:
        refuse_unhashable(fmt=fmt, rounding=rounding, order=order, block=block, **policies)
        raise
    if key is not None:
        key = as_key(key)
    elif plan.rule.random_bits:  # none in the other modes
        raise ValueError("stochastic rounding needs key=, a lowprec.Key or an integer")
    if offset != 0:
        # The usual 0 is in range for every size.
        offset = first_index(offset, size)
        # Each term has four roundings, with four indices.
        if order == "kahan" and 4 * (offset + size) > 1 << 64:
            raise ValueError(f"offset + size must be at most 2^62 in Kahan's order, not {offset} + {size}")
    return OrderedSum(plan, key, offset)


@cached
def _from_keywords(
    fmt: FormatLike, order: SumOrder, block: int, rounding: RoundingLike, **policies: Any
) -> OrderedPlan:
    return _plan(fmt, order, block, as_rounding(rounding, **policies))


@cached
def _plan(fmt: FormatLike, order: SumOrder, block: int, rounding: Rounding) -> OrderedPlan:
    """The plan of checked arguments.

    Raises:
        TypeError, ValueError: as `sum`.
    """
    if order not in ORDERS:
        raise ValueError(f"unknown order {order!r}; allowed are {', '.join(ORDERS)}")
    if not isinstance(block, (int, np.integer)) or isinstance(block, bool) or block < 1:
        raise ValueError(f"block must be an integer of at least 1, not {block!r}")
    fmt = as_format(fmt)
    # Sums begin at +0, and Kahan's correction is negative as often as not.
    if not (fmt.signed and fmt.zero):
        raise ValueError(f"{fmt.name} cannot hold sums: it has no negative numbers or no zero")
    rounding.refuse("sums", exact=True)
    policies = bool(rounding.overflow or rounding.infinite_input or rounding.flush)
    rule = rounding.rule(fmt)
    # A step is a double rounded to odd, then to the format: into float64 itself only IEEE's own addition rounds once.
    if fmt == float64 and (rounding.mode != "nearest_even" or policies):
        raise ValueError("sums in float64 are IEEE's: rounding='nearest_even' and no other policy")
    # Every step is a double rounded to odd, then rounded to the format: more bits than it carries would be another law.
    most = CARRIED_BITS - fmt.mantissa_bits
    if fmt != float64 and rule.random_bits > most:
        raise ValueError(f"sums in {fmt.name} take at most {most} random bits, not {rule.random_bits}")
    jobs = {
        "sequential": ColumnSum(rule, "sequential", LONGEST),
        # The loops count terms in 64 bits; a longer block than any array is one run.
        "blocked": ColumnSum(rule, "sequential", min(int(block), LONGEST)),
        "running": ColumnSum(rule, "running", LONGEST),
        "kahan": ColumnSum(rule, "kahan", LONGEST),
        "pair": ColumnSum(rule, "pair", 2),
    }
    # The loops add in float32 or float64 lanes; narrow storage is a last, exact step.
    values, dtype = carrier(fmt), fmt.dtype if fmt.dtype is not None else carrier(fmt)
    return OrderedPlan(
        order=order,
        rule=rule,
        jobs=MappingProxyType(jobs),
        step=exact_conversion(fmt, rounding),
        rounding=rounding,
        policies=policies,
        values=values,
        dtype=dtype,
        # Exact: the values are on the format's grid already.
        store=None if dtype == values else conversion_of("storage", values, fmt, NEAREST_EVEN),
    )
