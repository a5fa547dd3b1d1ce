"""Sums whose every addition is rounded once, as data: the plan of a set of arguments, made once, and one call's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple, TypedDict

import numpy as np

from lowprec import arithmetic
from lowprec.caching import cached, refuse_unhashable
from lowprec.conversion import Conversion
from lowprec.exact_sums import ColumnSum, carrier
from lowprec.formats import FormatLike, as_format, float32, float64
from lowprec.keys import first_index
from lowprec.random import Key, KeyLike, as_key
from lowprec.rounding import prepare
from lowprec.spec.rounding import RoundingRule, rounding_rule
from lowprec.sums import LONGEST

ORDERS = ("sequential", "blocked", "pairwise", "kahan")
MOST_BITS = 28  # random bits that a double carries beside a float32


class Options(TypedDict, total=False):
    """Keyword arguments of every rounding, with the meanings and defaults of `lowprec.round`."""

    random_bits: int
    overflow: str | None
    infinite_input: str | None
    flush: bool


@dataclass(frozen=True, eq=False)  # made once per set of arguments, by a cache
class Plan:
    """Everything about a sum but its terms and random bits.

    Attributes:
        order: one of ORDERS.
        rule: the rounding of every step.
        jobs: the sums of columns by name: a `Kind` over all terms, or "blocked".
        step: a step as an operation of `lowprec.arithmetic`, from exact result to `dtype`.
        options: a step as arguments of `lowprec.round`.
        policies: whether values of the format itself may change when they are rounded.
        values: the dtype that sums are computed into.
        dtype: the result's dtype.
        store: from values to dtype; None where they are the same.
    """

    order: str
    rule: RoundingRule
    jobs: Mapping[str, ColumnSum]
    step: Conversion
    options: Mapping[str, Any]
    policies: bool
    values: np.dtype[Any]
    dtype: np.dtype[Any]
    store: Conversion | None


class Sum(NamedTuple):
    """A checked sum: its plan, key and the index of its first element among the random bits."""

    plan: Plan
    key: Key | None
    offset: int

    def step_key(self, n: int) -> Key | None:
        """The key of a later stage."""
        return None if self.key is None else self.key.fold_in(n)

    def step_seed(self, n: int) -> int:
        """The same as a number."""
        return 0 if self.key is None else self.key.fold_in(n).value

    def first(self, size: int, inner: int, results: int) -> int:
        """The index of the first result where a row of `size` terms in `inner` columns has so many in each.

        Raises:
            ValueError: the offset is not one of whole rows.
        """
        if not self.offset or self.key is None:
            return 0
        rows, rest = divmod(self.offset, max(size * inner, 1))
        if rest:
            raise ValueError(
                f"offset must be a multiple of {size * inner}, the elements of a row, where results are rounded "
                f"again; {self.offset} is none"
            )
        return rows * results * inner


def checked_sum(
    fmt: FormatLike,
    rounding: str,
    order: str,
    block: int,
    key: KeyLike | None,
    offset: int,
    size: int,
    options: Options,
) -> Sum:
    """The checked arguments of a sum of `size` elements."""
    if not options:  # most calls, quickly
        policies: tuple[Any, ...] = ()
    else:
        if unknown := options.keys() - Options.__annotations__.keys():
            raise TypeError(f"unknown options {sorted(unknown)}; allowed are {', '.join(Options.__annotations__)}")
        policies = tuple(options.get(name, default) for name, default in _DEFAULTS)
    try:
        plan = _plan(fmt, rounding, order, block, *policies)
    except TypeError:
        names = dict(zip(Options.__annotations__, policies, strict=False))
        refuse_unhashable(fmt=fmt, rounding=rounding, order=order, block=block, **names)
        raise
    if key is not None:
        key = as_key(key)
    elif rounding == "stochastic":
        raise ValueError("stochastic rounding needs key=, a lowprec.Key or an integer")
    if offset != 0:
        offset = first_index(offset, size)
        if order == "kahan" and 4 * (offset + size) > 1 << 64:
            raise ValueError(f"offset + size must be at most 2^62 in Kahan's order, not {offset} + {size}")
    return Sum(plan, key, offset)


_DEFAULTS = (("random_bits", 16), ("overflow", None), ("infinite_input", None), ("flush", False))


@cached
def _plan(
    fmt: FormatLike,
    rounding: str,
    order: str,
    block: int,
    random_bits: int = 16,
    overflow: str | None = None,
    infinite_input: str | None = None,
    flush: bool = False,
) -> Plan:
    """The checked plan.

    Raises:
        TypeError, ValueError: as `sum`.
    """
    if order not in ORDERS:
        raise ValueError(f"unknown order {order!r}; allowed are {', '.join(ORDERS)}")
    if not isinstance(block, (int, np.integer)) or isinstance(block, bool) or block < 1:
        raise ValueError(f"block must be an integer of at least 1, not {block!r}")
    fmt = as_format(fmt)
    if not (fmt.signed and fmt.zero):
        raise ValueError(f"{fmt.name} cannot hold sums: it has no negative numbers or no zero")
    policies = {"overflow": overflow, "infinite_input": infinite_input, "flush": flush}
    rule = rounding_rule(fmt, rounding, random_bits, overflow, infinite_input, flush)
    if fmt == float64 and (rounding != "nearest_even" or any(policies.values())):
        raise ValueError("sums in float64 are IEEE's: rounding='nearest_even' and no other policy")
    if fmt == float32 and rule.random_bits > MOST_BITS:
        raise ValueError(f"sums in float32 take at most {MOST_BITS} random bits, not {rule.random_bits}")
    jobs = {
        "sequential": ColumnSum(rule, "sequential", LONGEST),
        "blocked": ColumnSum(rule, "sequential", min(int(block), LONGEST)),
        "running": ColumnSum(rule, "running", LONGEST),
        "kahan": ColumnSum(rule, "kahan", LONGEST),
        "pair": ColumnSum(rule, "pair", 2),
    }
    values, dtype = carrier(fmt), fmt.dtype if fmt.dtype is not None else carrier(fmt)
    return Plan(
        order=order,
        rule=rule,
        jobs=MappingProxyType(jobs),
        step=arithmetic.prepare(fmt, rounding, random_bits, overflow, infinite_input, flush),
        options=MappingProxyType({"fmt": fmt, "rounding": rounding, "random_bits": random_bits, **policies}),
        policies=any(policies.values()),
        values=values,
        dtype=dtype,
        store=None if dtype == values else prepare("storage", values, fmt),
    )
