"""Block formats and tensor scales in rational numbers, value by value: what `to_blocks` and `to_scaled` mean."""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction

import numpy as np

from lowprec.backends.reference.arithmetic import Exact, multiply, round_result
from lowprec.backends.reference.random import rounding_bits
from lowprec.backends.reference.rounding import exponent_of, round_finite, round_number
from lowprec.types import Array
from lowprec.values.block_format import BlockFormat, BlockTask
from lowprec.values.float_format import FloatFormat
from lowprec.values.formats import as_format
from lowprec.values.rounding import NEAREST_EVEN, Rounding, RoundingRule


def quantize(task: BlockTask, x: Array, elements: Array, scales: Array) -> bool:
    """Writes the codes of x's elements and of their scales into two arrays.

    Returns:
        False, with nothing written, for random_bits="exact": how many bits that is depends on the values.
    """
    if task.rounding.random_bits == "exact":
        return False
    fmt, values = task.fmt, _values(x)
    rule = task.rounding.rule(fmt.element)
    for block, scale_at in _blocks(x.shape, task.axis, fmt.block):
        # Infinities and NaN do not set the scale: one of them would make zeros of the whole block.
        finite = [abs(Fraction(values.flat[i])) for i in block if math.isfinite(values.flat[i])]
        scale_code = _scale_code(task, max(finite, default=Fraction(0)))
        divisor = Fraction(fmt.scale.value_of(scale_code)) * Fraction(task.tensor)
        for i in block:
            number = float(values.flat[i])
            # Only the scale can say NaN then; the finite elements keep their codes all the same.
            if not math.isfinite(number) and fmt.element.nan_code is None:
                scale_code, number = fmt.scale.nan_code or 0, 0.0
            # By the element's index in x: the axis of the blocks does not change which random bits it draws.
            code = _scaled_code(number, divisor, rule, task.key, task.offset + i)
            elements.flat[i] = _as_integer(code) if fmt.integers else code
        scales[scale_at] = scale_code
    return True


def dequantize(fmt: BlockFormat, elements: Array, scales: Array, axis: int, tensor: float, out: Array) -> bool:
    """The values, element * scale * tensor scale, rounded once, into out."""
    rule = NEAREST_EVEN.rule(as_format(out.dtype))
    _check_codes(elements, fmt.element, signed=fmt.integers)
    for block, scale_at in _blocks(elements.shape, axis, fmt.block):
        scale = fmt.scale.value_of(int(scales[scale_at])) * tensor  # exact: few bits times a float32
        for i in block:
            code = int(elements.flat[i])
            if fmt.integers:
                value = (code - 256 * (code > 127)) * fmt.element.smallest_subnormal
            else:
                value = fmt.element.value_of(code)
            out.flat[i] = _rounded(multiply(value, scale), rule)
    return True


def scale_and_round(
    x: Array, fmt: FloatFormat, power: int, rounding: Rounding, key: int, offset: int, codes: Array
) -> bool:
    """Codes of x / 2^power into an array; False as of `quantize`."""
    if rounding.random_bits == "exact":
        return False
    rule, divisor = rounding.rule(fmt), Fraction(2) ** power
    for i, number in enumerate(_values(x).flat):
        if math.isnan(number) and fmt.nan_code is None:
            raise ValueError(f"NaN cannot be represented in {fmt.name}, which has no NaN")
        codes.flat[i] = _scaled_code(float(number), divisor, rule, key, offset + i)
    return True


def spread_power(elements: Array, fmt: FloatFormat, power: int, out: Array) -> bool:
    """Element * 2^power, rounded once, into out."""
    rule, factor = NEAREST_EVEN.rule(as_format(out.dtype)), Fraction(2) ** power
    _check_codes(elements, fmt)
    for i, code in enumerate(elements.flat):
        value = fmt.value_of(int(code))
        # A Fraction has no -0, infinity or NaN; a power of two changes none of these.
        plain = value == 0 or not math.isfinite(value)
        out.flat[i] = _rounded(value if plain else Fraction(value) * factor, rule)
    return True


def largest_magnitude(x: Array) -> float:
    """The largest finite magnitude of an array; 0 where there is none."""
    return max((abs(float(v)) for v in _values(x).flat if math.isfinite(v)), default=0.0)


def shared_exponent(rule: str, amax: Fraction, element: FloatFormat) -> int:
    """The exponent of a power-of-two scale for a block whose largest finite magnitude is amax, not zero."""
    exponent = exponent_of(amax)
    match rule:
        case "ceil":
            return exponent + (amax > Fraction(2) ** exponent) - element.emax
        case "even":
            quantum = Fraction(2) ** (exponent - element.mantissa_bits)
            # Python rounds a Fraction to the nearest integer, ties to even, exactly.
            return exponent_of(round(amax / quantum) * quantum) - element.emax
        case "rceil":
            least = exponent - element.emax
            return least + (amax > Fraction(element.max) * Fraction(2) ** least)
        case _:
            return exponent - element.emax


def _scale_code(task: BlockTask, amax: Fraction) -> int:
    """The code of the scale of a block whose largest finite magnitude is amax (0 where it has none)."""
    fmt = task.fmt
    smallest = Fraction(fmt.scale.smallest_subnormal)
    if not fmt.power_of_two:
        # Not below the smallest scale: a scale of 0 would lose the block.
        wanted = max(amax / (Fraction(fmt.element.max) * Fraction(task.tensor)), smallest)
        mode = Rounding("up" if task.rule == "up" else "nearest_even", overflow="saturate")
        return round_finite(wanted, mode.rule(fmt.scale))
    least = exponent_of(smallest)
    # Zeros alone have no exponent.
    exponent = shared_exponent(task.rule, amax, fmt.element) if amax else least
    clamped = min(max(exponent, least), fmt.scale.emax)
    return round_finite(Fraction(2) ** clamped, NEAREST_EVEN.rule(fmt.scale))


def _scaled_code(number: float, divisor: Fraction, rule: RoundingRule, key: int, index: int) -> int:
    """The code of number / divisor, rounded with the random bits of an index."""
    random = Fraction(0)
    if rule.random_bits:
        random = Fraction(rounding_bits(rule.random_bits, key, index), 1 << rule.random_bits)
    if number == 0 or not math.isfinite(number):
        code = round_number(number, rule, random)
        assert code is not None  # a NaN in a format without NaN was dealt with
        return code
    return round_finite(Fraction(number) / divisor, rule, random)


def _rounded(x: Exact, rule: RoundingRule) -> float:
    code = round_result(x, rule)
    assert code is not None
    return rule.fmt.value_of(code)


def _as_integer(code: int) -> int:
    """A code of sign and magnitude in two's complement."""
    # 0x80, the code of -0, becomes 0: two's complement has no -0, and its own 0x80, -2, is left unused.
    return 256 - (code & 0x7F) if code > 0x80 else code & 0x7F


def _check_codes(codes: Array, fmt: FloatFormat, *, signed: bool = False) -> None:
    """Raises ValueError for a code wider than the format; integers in two's complement (`signed`) fill their byte."""
    if not signed and codes.size and int(codes.max()) >= 1 << fmt.bits:
        raise ValueError(f"codes of {fmt.name} must be in [0, {1 << fmt.bits})")


def _values(x: Array) -> Array:
    """The elements as float64, exact (a signalling NaN is a NaN)."""
    with np.errstate(invalid="ignore"):
        return x.astype(np.float64)


def _blocks(shape: tuple[int, ...], axis: int, block: int) -> Iterator[tuple[list[int], tuple[int, ...]]]:
    """The indices (C order) of every block's values, and the index of its scale."""
    numbers = np.moveaxis(np.arange(math.prod(shape)).reshape(shape), axis, -1)
    for outer in np.ndindex(*numbers.shape[:-1]):
        for n, start in enumerate(range(0, shape[axis], block)):
            yield numbers[outer][start : start + block].tolist(), (*outer[:axis], n, *outer[axis:])
