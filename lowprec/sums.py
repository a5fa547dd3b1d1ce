"""Products and sums as data: operand and result types, roundings and the order of additions, checked once."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lowprec.caching import cached
from lowprec.float_format import FloatFormat
from lowprec.formats import FormatLike, as_format, float32, format_of_dtype
from lowprec.spec.accumulation import ADDERS, run_length, stage_count
from lowprec.spec.rounding import RoundingRule, rounding_rule


@dataclass(frozen=True)
class Order:
    """In which order a sum is made (see `lowprec.matmul`).

    Attributes:
        group: terms between two roundings; 0 means all of a part.
        splits: parts wanted.
        stages: stages in which parts are summed; 0 means by the number of parts.
        adder: one of ADDERS.
    """

    group: int
    splits: int
    stages: int
    adder: str


@dataclass(frozen=True)
class Accumulator:
    """How float32 sums are rounded and stored.

    Attributes:
        step: the rounding after every group and between stages; None where float32 itself is the accumulator.
        final: the rounding of the result; None where its format holds every float32.
        out: the result's format.
        out_dtype: its storage dtype.
        one_format: `final` changes nothing that `step` made.
    """

    step: RoundingRule | None
    final: RoundingRule | None
    out: FloatFormat
    out_dtype: np.dtype[Any]
    one_format: bool

    @property
    def stochastic(self) -> bool:
        """Whether any rounding takes random bits."""
        return any(rule is not None and rule.mode == "stochastic" for rule in (self.step, self.final))


@cached
def operand_format(dtype: np.dtype[Any]) -> FloatFormat:
    """The format of an operand's dtype.

    Raises:
        TypeError: no floating-point dtype, or one that float32 does not hold.
    """
    fmt = format_of_dtype(dtype)
    if fmt is None or not float32.contains(fmt):
        raise TypeError(
            f"operands must be float32, float16, bfloat16 or an 8-, 6- or 4-bit float dtype, not {dtype}; "
            "convert with lowprec.astype"
        )
    return fmt


def float32_step(
    fmt: FormatLike, rounding: str, random_bits: int, overflow: str | None, infinite_input: str | None
) -> RoundingRule | None:
    """The rounding of float32 values to `fmt`; None where it leaves every float32 as it is.

    Raises:
        ValueError: unknown names, or a policy the format cannot express.
    """
    fmt = as_format(fmt)
    rule = rounding_rule(fmt, rounding, random_bits, overflow, infinite_input)
    if fmt.contains(float32) and rule.inf_pos == fmt.inf_code:
        return None
    if any(float32.max < fmt.value_of(code) < math.inf for code in (rule.over_pos, rule.inf_pos)):
        raise ValueError(f"{fmt.name} cannot saturate here: its largest value is beyond float32")
    return rule


def _makes_and_replaces_infinities(rule: RoundingRule) -> bool:
    """Whether overflow gives an infinity that the same rule, met again, makes something else."""
    infinity = rule.fmt.inf_code
    return infinity is not None and rule.over_pos == infinity and rule.inf_pos != infinity


@cached
def accumulator(
    accumulate: FormatLike,
    out_format: FormatLike | None,
    rounding: str,
    random_bits: int | str,
    overflow: str | None,
    infinite_input: str | None,
) -> Accumulator:
    """The checked Accumulator.

    Raises:
        TypeError: the result's format has no storage dtype.
        ValueError: unknown names, a policy that a format cannot express, an accumulator without sign or zero.
    """
    accumulate = as_format(accumulate)
    out = accumulate if out_format is None else as_format(out_format)
    if not (accumulate.signed and accumulate.zero):
        raise ValueError(f"{accumulate.name} cannot accumulate: it has no negative numbers or no zero")
    if isinstance(random_bits, str):  # "exact" looks at the values of one rounding
        raise ValueError(f"random_bits of sums must be 1 to 32, not {random_bits!r}")
    if out.dtype is None:
        raise TypeError(f"{out.name} has no storage dtype; give out_format, such as 'float32'")
    step = float32_step(accumulate, rounding, random_bits, overflow, infinite_input)
    return Accumulator(
        step=step,
        final=float32_step(out, rounding, random_bits, overflow, infinite_input),
        out=out,
        out_dtype=out.dtype,
        one_format=out == accumulate and (step is None or not _makes_and_replaces_infinities(step)),
    )


LONGEST = 1 << 62


@cached
def order(group: int | None, splits: int, stages: int | None, adder: str) -> Order:
    """The checked Order; group None means all of a part.

    Raises:
        ValueError: a number out of range or an unknown adder.
    """
    if group is not None and (not isinstance(group, (int, np.integer)) or group < 1):
        raise ValueError(f"group must be an integer of at least 1, not {group!r}")
    if not isinstance(splits, (int, np.integer)) or splits < 1:
        raise ValueError(f"splits must be an integer of at least 1, not {splits!r}")
    if stages is not None and (not isinstance(stages, (int, np.integer)) or stages not in (1, 2, 3)):
        raise ValueError(f"stages must be 1, 2 or 3, or None for the number of parts to decide, not {stages!r}")
    if adder not in ADDERS:
        raise ValueError(f"unknown adder {adder!r}; allowed are {', '.join(ADDERS)}")
    # Beyond any array's length more is the same; the kernels add lengths to these in 64 bits.
    return Order(int(min(group or 0, LONGEST)), int(min(splits, LONGEST)), int(stages or 0), adder)


def first_element(offset: tuple[int, int]) -> tuple[int, int]:
    """The checked row and column of a result's first element among the random bits.

    Raises:
        TypeError: no pair of integers.
        ValueError: a number outside [0, 2^32).
    """
    if (
        not isinstance(offset, (tuple, list))
        or len(offset) != 2
        or not all(isinstance(x, (int, np.integer)) for x in offset)
    ):
        raise TypeError(f"offset must be two integers, row and column, not {offset!r}")
    if not all(0 <= x < 1 << 32 for x in offset):
        raise ValueError(f"offset must lie in [0, 2^32) in both numbers, not {offset!r}")
    return int(offset[0]), int(offset[1])


def part_length(order: Order, size: int) -> int:
    """Terms of a part (the last may have fewer): group * ceil(ceil(size / group) / splits)."""
    group = order.group or max(1, math.ceil(size / order.splits))
    return group * max(1, math.ceil(math.ceil(size / group) / order.splits))


def stage_runs(order: Order, parts: int) -> tuple[int, int]:
    """(stages, length of the contiguous runs that all stages but the last sum)."""
    stages = order.stages or stage_count(parts)
    return stages, run_length(parts, stages)


@cached
def exact_products(a: FloatFormat, b: FloatFormat) -> bool:
    """Whether every product of two such values is a float32."""
    return (
        a.precision + b.precision <= float32.precision
        and a.smallest_subnormal * b.smallest_subnormal >= float32.smallest_subnormal
        and a.max * b.max <= float32.max
    )


def matrix_axes(x: npt.NDArray[Any]) -> int:
    """How many of an operand's axes are its own (the last two, or the only one)."""
    return min(x.ndim, 2)
