"""Block formats as data: OCP Microscaling (MX) v1.0 and NVFP4, small numbers that share one scale per block of values.

The five concrete MX formats are those of section 5.2 of "OCP Microscaling Formats (MX) Specification", version 1.0:
MXFP8 (E4M3 and E5M2), MXFP6 (E2M3 and E3M2), MXFP4 and MXINT8, 32 elements to an E8M0 scale (section 5.4.1). NVFP4 is
NVIDIA's: 16 E2M1 elements to an E4M3 scale, and one float32 scale for the whole tensor.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, NamedTuple

from lowprec.values.formats import (
    FloatFormat,
    float4_e2m1fn,
    float6_e2m3fn,
    float6_e3m2fn,
    float8_e4m3fn,
    float8_e5m2,
    float8_e8m0fnu,
)
from lowprec.values.rounding import Rounding

ScaleRule = Literal["floor", "ceil", "even", "rceil", "nearest", "up"]

# The first is a format's default: "floor" is the rule of section 6.3 of the MX specification.
POWER_RULES = ("floor", "ceil", "even", "rceil")
REAL_RULES = ("nearest", "up")

# Amax is compared by the fraction bits of its float64, as the compiled loops do; no fraction reaches NEVER.
SIGNIFICAND_BITS = 52
NEVER = 1 << SIGNIFICAND_BITS


@dataclass(frozen=True)
class BlockFormat:
    """A block format as data: value = element * scale of its block (* one float32 for the whole tensor).

    Attributes:
        name: what it is called in messages and specs.
        element: format of the elements.
        scale: format of the scales; `float8_e8m0fnu` means powers of two, as in OCP MX.
        block: values that share a scale, consecutive along one axis.
        integers: elements are stored in two's complement, as int8, not as sign and magnitude. `element` then gives
            their grid: 8 bits, one of them exponent, so that all finite values are equally spaced.
    """

    name: str
    element: FloatFormat
    scale: FloatFormat
    block: int
    integers: bool = False

    def __post_init__(self) -> None:
        if self.block < 1:
            raise ValueError(f"a block holds at least one value, got block={self.block}")
        # Where elements have no NaN, the scale of their block is NaN (section 5.4.1): one of the two must have one.
        if self.element.nan_code is None and self.scale.nan_code is None:
            raise ValueError(f"{self.name} could not say NaN: neither {self.element.name} nor {self.scale.name} can")
        element = self.element
        # The loops turn sign and magnitude into int8 and back; no other width is stored so.
        if self.integers and (element.bits, element.exponent_bits, element.max_code) != (8, 1, 127):
            raise ValueError(f"{self.name}: int8 elements need 8 bits, 1 of them exponent, and no special values")

    @property
    def bits_per_value(self) -> float:
        """Storage per value of a full block, its share of the scale included."""
        return self.element.bits + self.scale.bits / self.block

    @property
    def power_of_two(self) -> bool:
        """Whether every scale is a power of two."""
        return self.scale.mantissa_bits == 0

    @property
    def scale_rules(self) -> tuple[str, ...]:
        """The scale rules this format knows; the first is its default."""
        return POWER_RULES if self.power_of_two else REAL_RULES

    def __str__(self) -> str:
        return (
            f"{self.name}: {self.block} x {self.element.name} + one {self.scale.name} scale, "
            f"{self.bits_per_value:g} bits per value"
        )


class BlockTask(NamedTuple):
    """One quantisation of an array to blocks, as every backend takes it.

    Attributes:
        fmt: the block format.
        axis: the axis blocks lie along.
        rule: one of its scale rules.
        tensor: the scale of the whole tensor (1.0: none).
        rounding: how elements are rounded; scales follow `rule`.
        key, offset: seed of the elements' random bits, and index of the first element among them.
    """

    fmt: BlockFormat
    axis: int
    rule: str
    tensor: float
    rounding: Rounding
    key: int
    offset: int


# One exponent bit: the normal binade has the spacing of the subnormal one, so that all values are equally spaced.
int8_grid = FloatFormat("int8", 1, 6, 1, infinities=False, nan="none")
"""MX v1.0's INT8 (section 5.3.4) as a grid: multiples of 2^-6 up to 127/64, symmetric: -2 is left unused."""

mxfp8_e4m3 = BlockFormat("mxfp8_e4m3", float8_e4m3fn, float8_e8m0fnu, 32)
mxfp8_e5m2 = BlockFormat("mxfp8_e5m2", float8_e5m2, float8_e8m0fnu, 32)
mxfp6_e2m3 = BlockFormat("mxfp6_e2m3", float6_e2m3fn, float8_e8m0fnu, 32)
mxfp6_e3m2 = BlockFormat("mxfp6_e3m2", float6_e3m2fn, float8_e8m0fnu, 32)
mxfp4_e2m1 = BlockFormat("mxfp4_e2m1", float4_e2m1fn, float8_e8m0fnu, 32)
mxint8 = BlockFormat("mxint8", int8_grid, float8_e8m0fnu, 32, integers=True)
nvfp4 = BlockFormat("nvfp4", float4_e2m1fn, float8_e4m3fn, 16)

block_formats: Mapping[str, BlockFormat] = MappingProxyType(
    {f.name: f for f in (mxfp8_e4m3, mxfp8_e5m2, mxfp6_e2m3, mxfp6_e3m2, mxfp4_e2m1, mxint8, nvfp4)}
)


def as_block_format(spec: BlockFormat | str) -> BlockFormat:
    """The block format a name means; a `BlockFormat` is returned as it is.

    Raises:
        ValueError: no such name.
        TypeError: neither a name nor a `BlockFormat`.
    """
    if isinstance(spec, BlockFormat):
        return spec
    if not isinstance(spec, str):
        raise TypeError(f"expected a BlockFormat or its name, got {type(spec).__name__}")
    if spec not in block_formats:
        raise ValueError(f"unknown block format {spec!r}; known: {', '.join(block_formats)}")
    return block_formats[spec]


def checked_rule(fmt: BlockFormat, rule: str | None) -> str:
    """The rule, or the format's default for None.

    Raises:
        ValueError: a rule that the format does not know.
    """
    if rule is not None and rule not in fmt.scale_rules:
        raise ValueError(f"scale_rule {rule!r} is none of {', '.join(fmt.scale_rules)}, those of {fmt.name}")
    return rule or fmt.scale_rules[0]


def carry_from(rule: str, element: FloatFormat) -> int:
    """The smallest fraction of amax's significand, in units of 2^-52, for which a rule adds one to the shared exponent.

    The shared exponent is floor(log2(amax)) - emax of the element format, plus one where amax's significand in [1, 2)
    demands it: "ceil" if it is more than 1, "even" if it rounds to 2 in the element's precision, "rceil" if the
    largest element would be too small for it, "floor" never.
    """
    match rule:
        case "ceil":
            return 1
        case "even":
            # From half a step below 2 on: the tie rounds up, since the code below 2 is odd.
            return NEVER - int(math.ldexp(element.eps, SIGNIFICAND_BITS - 1))
        case "rceil":
            # One above the largest element itself, which still fits.
            return int(math.ldexp(element.max / 2.0**element.emax - 1, SIGNIFICAND_BITS)) + 1
        case _:
            return NEVER
