"""Block formats and tensor scales by the compiled loops: one pass over memory, nothing in between."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np

from lowprec import _kernels, threads
from lowprec.backends.cpu.rounding import native_conversion, native_format, native_rounding
from lowprec.types import Array
from lowprec.values.block_format import BlockFormat, BlockTask, carry_from
from lowprec.values.conversion import Conversion, conversion_of
from lowprec.values.float_format import FloatFormat
from lowprec.values.formats import float32, format_of_dtype
from lowprec.values.rounding import FEW_BIT_MODES, Rounding, rounding_rule

# The numbers of the enumerations in kernels/cpu/blocks/block_jobs.h.
POWERS, REALS, GIVEN = range(3)
BY_FACTOR, BY_DIVISOR, BY_WIDE_DIVISOR, BY_ODD_DIVISOR = range(4)

RUN = 2048  # values the loops handle together
OUTWARD = ("up", "down", "odd")  # modes in which the least value beside zero does not round to zero
FLOAT32_POWER, FLOAT64_POWER = 126, 1000  # the largest exponents of one factor

_REAL = {np.dtype(np.float32): 4, np.dtype(np.float64): 5}
_CODED = {1: 0, 2: 1, 4: 2}


def _conversion(rounding: Rounding, fmt: FloatFormat, wide: bool) -> Conversion:
    """The conversion of scaled values, float32 or (wide) float64, to codes of a format."""
    return conversion_of("code", np.dtype(np.float64 if wide else np.float32), fmt, rounding)


def _knows(rounding: Rounding) -> bool:
    """Whether the loops know a rounding: not the few-bit modes, nor random bits that depend on the values."""
    return rounding.mode not in FEW_BIT_MODES and rounding.random_bits != "exact"


def within(fmt: FloatFormat, exponent: int) -> bool:
    """Whether a format's finite values lie between 2^-exponent and 2^exponent."""
    # Formats in the middle of a type's range (64 of float32's, 512 of float64's): what scaling brings to the ends of
    # that range is far beyond the format.
    return fmt.emax < exponent and fmt.smallest_subnormal > 2.0**-exponent


@lru_cache(maxsize=4096)
def can_dequantize(fmt: BlockFormat, tensor: bool, dtype: np.dtype[Any]) -> bool:
    """Whether the loops round every value once: in (element * scale) * tensor the first product must be exact."""
    element, scale = fmt.element, fmt.scale
    if not (float32.contains(element) and float32.contains(scale)):
        return False
    return (
        not tensor
        or dtype == np.float64
        or (
            element.precision + scale.precision <= float32.precision
            and element.max * scale.max <= float32.max
            and element.smallest_subnormal * scale.smallest_subnormal >= float32.smallest_subnormal
        )
    )


def quantize(task: BlockTask, x: Array, elements: Array, scales: Array) -> bool:
    """Codes of the elements and of the scales of x into two arrays; False where the loops do not know how."""
    fmt = task.fmt
    if not (_knows(task.rounding) and within(fmt.element, 512) and within(fmt.scale, 512)):
        return False
    _kernels.quantize_blocks(
        _quantizer(fmt, x.dtype, task.rule, task.tensor != 1.0, task.rounding),
        x,
        elements,
        scales,
        _blocks_of(x.shape, task.axis, fmt.block),
        task.tensor,
        fmt.element.max * task.tensor,
        1.0,
        task.key,
        task.offset,
        threads.current(),
    )
    return True


def dequantize(fmt: BlockFormat, elements: Array, scales: Array, axis: int, tensor: float, out: Array) -> bool:
    """The values, element * scale * tensor scale, into out (float32 or float64); False where the loops do not know how.

    Raises:
        ValueError: a code wider than the element format.
    """
    if not can_dequantize(fmt, tensor != 1.0, out.dtype):
        return False
    shape = _blocks_of(elements.shape, axis, fmt.block)
    spreader = _spreader(fmt.element, fmt.scale, fmt.integers)
    if _kernels.dequantize_blocks(spreader, elements, scales, out, shape, tensor, 1.0, threads.current()):
        raise ValueError(f"codes of {fmt.element.name} must be in [0, {1 << fmt.element.bits})")
    return True


def largest_magnitude(x: Array) -> float:
    """The largest finite magnitude of an array; 0 where there is none."""
    source = format_of_dtype(x.dtype)
    assert source is not None
    return _kernels.largest_magnitude(x, _storage(x.dtype), native_format(source), threads.current())


def scale_and_round(
    x: Array, fmt: FloatFormat, power: int, rounding: Rounding, key: int, offset: int, codes: Array
) -> bool:
    """Codes of x / 2^power into an array; False where the loops do not know how.

    Raises:
        ValueError: a NaN in a format without NaN.
    """
    if not (_knows(rounding) and within(fmt, 512) and abs(power) <= FLOAT64_POWER):
        return False
    # A power of two that is subnormal or infinite in float32 is a plain factor in float64.
    wide = x.dtype == np.float64 or not within(fmt, 64) or abs(power) > FLOAT32_POWER
    # Scaling may leave the range of its type: upward a finite value must not become infinite, and in modes that round
    # outward none must become 0.
    guard = power < 0 or rounding.mode in OUTWARD
    quantizer = _tensor_quantizer(fmt, x.dtype, wide, guard, rounding)
    # One line with a factor for all: tensor scales are block formats whose blocks are runs of the loops.
    shape, factor = (1, x.size, 1, RUN), math.ldexp(1.0, -power)
    if _kernels.quantize_blocks(quantizer, x, codes, None, shape, 1.0, 1.0, factor, key, offset, threads.current()):
        raise ValueError(f"NaN cannot be represented in {fmt.name}, which has no NaN")
    return True


def spread_power(elements: Array, fmt: FloatFormat, power: int, out: Array) -> bool:
    """Element * 2^power, rounded once, into out (float32 or float64); False where the loops do not know how.

    Raises:
        ValueError: a code wider than the format.
    """
    # A factor that is no normal float32 would round before the product does.
    if not (abs(power) <= FLOAT32_POWER and float32.contains(fmt)):
        return False
    shape, factor = (1, elements.size, 1, RUN), math.ldexp(1.0, power)
    spreader = _spreader(fmt, float32, False)
    if _kernels.dequantize_blocks(spreader, elements, None, out, shape, 1.0, factor, threads.current()):
        raise ValueError(f"codes of {fmt.name} must be in [0, {1 << fmt.bits})")
    return True


def _blocks_of(shape: tuple[int, ...], axis: int, block: int) -> tuple[int, int, int, int]:
    """(lines, length, columns, block): an array seen with the axis of its blocks in the middle of three."""
    return math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :]), block


def _storage(dtype: np.dtype[Any]) -> int:
    """The number of `enum Storage` in kernels/cpu/rounding/rounding_jobs.h."""
    return _REAL[dtype] if dtype in _REAL else _CODED[dtype.itemsize]


@lru_cache(maxsize=4096)
def _quantizer(
    fmt: BlockFormat, dtype: np.dtype[Any], rule: str, tensor: bool, rounding: Rounding
) -> _kernels.BlockQuantizer:
    element, scale = fmt.element, fmt.scale
    # A power of two only moves exponents, so that it may reach further (e8m0: 2^-127 to 2^127).
    wide_in = dtype == np.float64 or not within(element, 64) or not within(scale, 128 if fmt.power_of_two else 64)
    scaling, wide = _scaling(fmt, wide_in, tensor, rounding)
    # A scale beyond the largest saturates: by the format's own rule it would be NaN or infinite, and the block lost.
    scale_rule = rounding_rule(scale, "up" if rule == "up" else "nearest_even", overflow="saturate")
    guard = rounding.mode in OUTWARD or tensor or scale.emax < 1
    return _native(
        _conversion(rounding, element, wide),
        dtype,
        *(POWERS if fmt.power_of_two else REALS, scaling),
        (wide_in, wide, guard, element.nan_code is None, fmt.integers),
        (element.emax, scale.emin, scale.emax, int(scale.zero) - scale.emin),
        carry_from(rule, element),
        native_rounding(scale_rule),
        scale.smallest_subnormal,
        wide_in or element.precision + float32.precision + scale.precision > 51,
        scale.nan_code or 0,
    )


def _scaling(fmt: BlockFormat, wide_in: bool, tensor: bool, rounding: Rounding) -> tuple[int, bool]:
    """How values are scaled, and whether the results are doubles.

    The nearest quotient in float32 or float64 tells on which side of a boundary m of the rounding the exact one lies,
    if m * divisor has at most as many bits as the type: both it and x are then multiples of a unit so large that they
    cannot differ by less than the quotient's rounding error. See `lowprec.scaling.quotients.quotient`.
    """
    if fmt.power_of_two:
        return BY_FACTOR, wide_in
    if wide_in:
        return BY_ODD_DIVISOR, True
    deciding = int(rounding.random_bits) if rounding.mode == "stochastic" else 1  # bits below the last of a code
    boundary = fmt.element.precision + deciding
    if not tensor and boundary + fmt.scale.precision <= float32.precision:
        return BY_DIVISOR, False
    if boundary + fmt.scale.precision + float32.precision > 52:
        return BY_ODD_DIVISOR, True
    # A float rounded to odd rounds on as the quotient does if it has two bits more than the boundary.
    narrow = boundary + 2 <= float32.precision
    return (BY_WIDE_DIVISOR, False) if narrow else (BY_DIVISOR, True)


@lru_cache(maxsize=4096)
def _tensor_quantizer(
    fmt: FloatFormat, dtype: np.dtype[Any], wide: bool, guard: bool, rounding: Rounding
) -> _kernels.BlockQuantizer:
    conversion = _conversion(rounding, fmt, wide)
    # Nothing rounds a scale that is given; the loops' constructor wants a rounding all the same.
    unused = native_rounding(rounding_rule(float32))
    flags = wide, wide, guard, False, False
    return _native(conversion, dtype, GIVEN, BY_FACTOR, flags, (0, 0, 0, 0), 0, unused, 0.0, False, 0)


def _native(conversion: Conversion, dtype: np.dtype[Any], *numbers: Any) -> _kernels.BlockQuantizer:
    source = format_of_dtype(dtype)
    assert source is not None
    return _kernels.BlockQuantizer(native_conversion(conversion), native_format(source), _storage(dtype), *numbers)


@lru_cache(maxsize=4096)
def _spreader(element: FloatFormat, scale: FloatFormat, integers: bool) -> _kernels.BlockSpreader:
    return _kernels.BlockSpreader(
        native_format(element),
        _storage(element.code_dtype),
        native_format(scale),
        _storage(scale.code_dtype),
        integers,
        element.smallest_subnormal,
    )
