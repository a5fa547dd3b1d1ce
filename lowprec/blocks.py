"""Block formats: OCP Microscaling (MX) v1.0 and NVFP4, small floats that share one scale per block of values.

Scales. With amax the largest finite magnitude of a block, a power-of-two scale is 2^(floor(log2(amax)) - emax)
clamped to the scale format, emax being the exponent of the element format's largest value: the rule "floor" of OCP MX
v1.0, section 6.3, and the default. "ceil" uses ceil(log2(amax)); "even" rounds amax to the element's precision first;
"rceil" takes the smallest power of two for which nothing saturates (names as in torchao; computed exactly). Formats
with other scales (NVFP4) use amax / (element.max * tensor scale), rounded "nearest" (default) or "up", saturating. A
block without finite non-zero values has the smallest positive scale, and no scale rounds to zero.

Elements. x / (scale * tensor scale), exact, rounded once. Beyond the largest element they saturate, as MX demands. An
infinity stays one where the element format has it, else it is NaN. NaN stays where it is if the element format has
one; if not (6- and 4-bit elements) the scale of the block is NaN, and so is the block.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from numpy.lib.array_utils import normalize_axis_index
from numpy.typing import ArrayLike, DTypeLike, NDArray

from lowprec.formats import (
    FloatFormat,
    float4_e2m1fn,
    float6_e2m3fn,
    float6_e3m2fn,
    float8_e4m3fn,
    float8_e5m2,
    float8_e8m0fnu,
    float32,
)
from lowprec.rounding import decode, encode
from lowprec.scaled import as_carrier, checked_float, from_storage, in_storage, quotient, scale_by_power

ScaleRule = Literal["floor", "ceil", "even", "rceil", "nearest", "up"]


@dataclass(frozen=True)
class BlockFormat:
    """A block format as data: value = element * scale of its block (* one float32 for the whole tensor).

    Attributes:
        name: what it is called in messages and specs.
        element: format of the elements.
        scale: format of the scales; `float8_e8m0fnu` means powers of two, as in OCP MX.
        block: values that share a scale, consecutive along one axis.
    """

    name: str
    element: FloatFormat
    scale: FloatFormat
    block: int

    def __post_init__(self) -> None:
        if self.block < 1:
            raise ValueError(f"a block holds at least one value, got block={self.block}")
        if self.element.nan_code is None and self.scale.nan_code is None:
            raise ValueError(f"{self.name} could not say NaN: neither {self.element.name} nor {self.scale.name} can")

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
        return tuple(CARRIES) if self.power_of_two else ("nearest", "up")

    def __str__(self) -> str:
        return (
            f"{self.name}: {self.block} x {self.element.name} + one {self.scale.name} scale, "
            f"{self.bits_per_value:g} bits per value"
        )


mxfp8_e4m3 = BlockFormat("mxfp8_e4m3", float8_e4m3fn, float8_e8m0fnu, 32)
mxfp8_e5m2 = BlockFormat("mxfp8_e5m2", float8_e5m2, float8_e8m0fnu, 32)
mxfp6_e2m3 = BlockFormat("mxfp6_e2m3", float6_e2m3fn, float8_e8m0fnu, 32)
mxfp6_e3m2 = BlockFormat("mxfp6_e3m2", float6_e3m2fn, float8_e8m0fnu, 32)
mxfp4_e2m1 = BlockFormat("mxfp4_e2m1", float4_e2m1fn, float8_e8m0fnu, 32)
nvfp4 = BlockFormat("nvfp4", float4_e2m1fn, float8_e4m3fn, 16)

block_formats: Mapping[str, BlockFormat] = MappingProxyType(
    {f.name: f for f in (mxfp8_e4m3, mxfp8_e5m2, mxfp6_e2m3, mxfp6_e3m2, mxfp4_e2m1, nvfp4)}
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


# The shared exponent is floor(log2(amax)) - emax of the element format, plus one where the rule says so of amax's
# significand, a float64 in [1, 2).
CARRIES: Mapping[str, Callable[[NDArray[np.float64], FloatFormat], NDArray[np.bool_]]] = MappingProxyType(
    {
        "floor": lambda significand, element: np.zeros(significand.shape, bool),
        "ceil": lambda significand, element: significand > 1,
        "even": lambda significand, element: significand >= 2 - element.eps / 2,
        "rceil": lambda significand, element: significand > element.max / 2.0**element.emax,
    }
)


@dataclass(frozen=True, eq=False)
class BlockArray:
    """An array in a block format, made by `to_blocks`.

    Attributes:
        format: the block format.
        elements: storage dtype of `format.element` (its codes where it has none), shape of the original array.
        scales: storage dtype of `format.scale`; the original shape with the block axis divided, rounded up, by the
            block size. The last block along the axis may be short.
        axis: the axis blocks lie along, not negative.
        tensor_scale: factor of the whole tensor, a float32 value; 1.0 if there is none.
    """

    format: BlockFormat
    elements: NDArray[Any]
    scales: NDArray[Any]
    axis: int
    tensor_scale: float = 1.0

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array."""
        return self.elements.shape

    @property
    def size_in_bits(self) -> int:
        """Bits of elements and scales when packed tightly (without the tensor scale)."""
        return self.elements.size * self.format.element.bits + self.scales.size * self.format.scale.bits

    def dequantize(self, dtype: DTypeLike = np.float32) -> NDArray[Any]:
        """The values, element * scale * tensor scale, in float32 or float64.

        The product of element and scale is exact, and so is the whole in float64. In float32 a tensor scale costs one
        rounding to nearest, and values beyond float32's range are infinite (the "ceil" rule can reach 2^128).
        A NaN scale makes its whole block NaN.

        Raises:
            TypeError: another dtype.
        """
        dtype = checked_float(dtype)
        values = from_storage(self.elements, self.format.element).astype(dtype, copy=False)
        scales = from_storage(self.scales, self.format.scale).astype(dtype, copy=False)
        with np.errstate(over="ignore", invalid="ignore"):
            values *= _spread(scales, self.axis, self.format.block, self.shape[self.axis])
            if self.tensor_scale != 1.0:
                values *= dtype.type(self.tensor_scale)
        return values

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        if copy is False:
            raise ValueError("a BlockArray becomes an array only by dequantizing, which copies")
        wide = dtype is not None and np.dtype(dtype) == np.float64
        values = self.dequantize(np.float64 if wide else np.float32)
        return values if dtype is None else values.astype(dtype, copy=False)

    def __repr__(self) -> str:
        scaled = f", tensor_scale={self.tensor_scale!r}" if self.tensor_scale != 1.0 else ""
        return f"<BlockArray {self.format.name} {self.shape}, blocks along axis {self.axis}{scaled}>"


def to_blocks(
    x: ArrayLike,
    fmt: BlockFormat | str,
    axis: int = -1,
    *,
    scale_rule: ScaleRule | None = None,
    tensor_scale: float | Literal["auto"] | None = None,
    rounding: str = "nearest_even",
    key: Any = None,
    random_bits: int | str = 16,
    overflow: str = "saturate",
    offset: int = 0,
) -> BlockArray:
    """Quantises x to a block format: one scale per block, one rounding per element (rules: see the module).

    Args:
        x: Floating-point array of any shape but 0-d (or integers that float64 holds exactly).
        fmt: A block format or its name: mxfp8_e4m3, mxfp8_e5m2, mxfp6_e2m3, mxfp6_e3m2, mxfp4_e2m1, nvfp4.
        axis: The axis blocks lie along; the last block may be short.
        scale_rule: One of `fmt.scale_rules`; None means the first.
        tensor_scale: Only for formats whose scales are not powers of two: a positive float32 for the whole tensor, or
            "auto" for amax / (element.max * scale.max) as float32, which gives the largest block the largest scale.
        rounding: Mode for the elements, as in `lowprec.round`.
        key: Key for rounding="stochastic". The random index of an element is its C-order index in x, whatever `axis`.
        random_bits: Bits per element for rounding="stochastic".
        overflow: Policy for elements, as in `lowprec.round`.
        offset: Added to the random index, for chunks of a longer array.

    Raises:
        ValueError: unknown format, rule or mode; 0-d x; a bad tensor scale.
        TypeError: complex, bool or extended-precision x.
    """
    fmt = as_block_format(fmt)
    values = as_carrier(x, fmt.element)
    if values.ndim == 0:
        raise ValueError("a block format needs an axis, and x is 0-d")
    axis = normalize_axis_index(axis, values.ndim)
    deciding = fmt.element.precision + (random_bits if isinstance(random_bits, int) else 32)
    scales, tensor, scaled = _scaled(fmt, values, axis, scale_rule, tensor_scale, deciding)
    codes = encode(
        scaled,
        fmt.element,
        rounding,
        key=key,
        random_bits=random_bits,
        overflow=overflow,
        infinite_input="keep" if fmt.element.infinities else "nan" if fmt.element.nan_code is not None else "max",
        offset=offset,
    )
    return BlockArray(fmt, in_storage(codes, fmt.element), in_storage(scales, fmt.scale), axis, tensor)


def _scaled(
    fmt: BlockFormat,
    values: NDArray[Any],
    axis: int,
    scale_rule: str | None,
    tensor_scale: float | Literal["auto"] | None,
    deciding_bits: int,
) -> tuple[NDArray[Any], float, NDArray[Any]]:
    """Codes of the scales, the tensor scale, and the values divided by both."""
    rule = _checked_rule(fmt, scale_rule)
    amax = _block_amax(values, axis, fmt.block)
    tensor = _tensor_scale(fmt, tensor_scale, amax)
    if fmt.power_of_two:
        exponents = _shared_exponents(fmt, rule, amax)
        scales = np.asarray(encode(np.ldexp(1.0, exponents), fmt.scale))
        scaled = scale_by_power(values, _spread(-exponents, axis, fmt.block, values.shape[axis]))
    else:
        scales = _real_scales(fmt, rule, amax, tensor)
        divisors = decode(scales, fmt.scale).astype(np.float64) * tensor
        bits = deciding_bits + fmt.scale.precision + float32.precision
        scaled = quotient(values, _spread(divisors, axis, fmt.block, values.shape[axis]), bits)
    if fmt.element.nan_code is None:
        scales, scaled = _void_blocks(fmt, axis, scales, scaled)
    return scales, tensor, scaled


def _checked_rule(fmt: BlockFormat, rule: str | None) -> str:
    if rule is not None and rule not in fmt.scale_rules:
        raise ValueError(f"scale_rule {rule!r} is none of {', '.join(fmt.scale_rules)}, those of {fmt.name}")
    return rule or fmt.scale_rules[0]


def _block_reduce(ufunc: np.ufunc, values: NDArray[Any], axis: int, block: int) -> NDArray[Any]:
    """Reduces every block along an axis to one value; the last block may be short."""
    length = values.shape[axis]
    if axis == values.ndim - 1 or length % block:
        return np.asarray(ufunc.reduceat(values, np.arange(0, length, block), axis=axis))
    # Away from the last axis reduceat is eight times slower than this.
    split = (*values.shape[:axis], length // block, block, *values.shape[axis + 1 :])
    return np.asarray(ufunc.reduce(values.reshape(split), axis=axis + 1))


def _block_amax(values: NDArray[Any], axis: int, block: int) -> NDArray[np.float64]:
    """Largest finite magnitude of every block; 0 where there is none."""
    magnitudes = np.abs(values)
    amax = _block_reduce(np.maximum, magnitudes, axis, block)
    if not np.isfinite(amax).all():
        magnitudes[~np.isfinite(magnitudes)] = 0
        amax = _block_reduce(np.maximum, magnitudes, axis, block)
    return amax.astype(np.float64)


def _spread(per_block: NDArray[Any], axis: int, block: int, length: int) -> NDArray[Any]:
    """Repeats what belongs to a block for each of its values."""
    spread = np.repeat(per_block, block, axis)
    return spread[(slice(None),) * axis + (slice(length),)]


def _shared_exponents(fmt: BlockFormat, rule: str, amax: NDArray[np.float64]) -> NDArray[np.int32]:
    fraction, exponent = np.frexp(amax)
    carries = CARRIES[rule](2 * fraction, fmt.element)
    wanted = exponent - 1 - fmt.element.emax + carries
    least = math.frexp(fmt.scale.smallest_subnormal)[1] - 1
    return np.where(amax > 0, np.clip(wanted, least, fmt.scale.emax), least).astype(np.int32)


def _real_scales(fmt: BlockFormat, rule: str, amax: NDArray[np.float64], tensor: float) -> NDArray[Any]:
    wanted = quotient(amax, np.asarray(fmt.element.max * tensor))
    wanted = np.maximum(wanted, fmt.scale.smallest_subnormal)
    mode = "up" if rule == "up" else "nearest_even"
    return np.asarray(encode(wanted, fmt.scale, mode, overflow="saturate"))


def _tensor_scale(fmt: BlockFormat, scale: float | Literal["auto"] | None, amax: NDArray[np.float64]) -> float:
    if scale is None:
        return 1.0
    if fmt.power_of_two:
        raise ValueError(f"{fmt.name} has no tensor scale: its block scales cover float32's range")
    tiny, largest = float32.smallest_normal, float32.max
    if scale == "auto":
        wanted = float(amax.max(initial=0.0)) / (fmt.element.max * fmt.scale.max)
        return float(np.float32(min(max(wanted, tiny), largest))) if wanted else 1.0
    if not tiny <= scale <= largest or float(np.float32(scale)) != scale:
        raise ValueError(f"tensor_scale must be 'auto' or a positive normal float32 value, got {scale!r}")
    return float(scale)


def _void_blocks(
    fmt: BlockFormat, axis: int, scales: NDArray[Any], scaled: NDArray[Any]
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Says NaN the only way a format without an element NaN can: in the scale of the block."""
    bad = ~np.isfinite(scaled)
    if bad.any():
        void = _block_reduce(np.logical_or, bad, axis, fmt.block)
        scales = np.where(void, np.array(fmt.scale.nan_code, scales.dtype), scales)
        scaled = np.where(bad, np.zeros((), scaled.dtype), scaled)
    return scales, scaled
