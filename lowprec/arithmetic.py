"""Arithmetic rounded once: the exact real result of an operation becomes a value of any format, in any mode.

The operands are float64 or narrower floats, whatever the format of the result: nothing is rounded on the way, neither
the operands nor (in `fma` and `scaled_add`) the product. Signed zeros, infinities and NaN are IEEE 754's: x - x is +0,
but -0 where rounding goes down; a quotient by zero is an infinity, which then counts as an infinite input.
A product through float32 would be another function: 1 + 2^-24 rounded up to float16 is 1 + 2^-10, not 1.
"""

from __future__ import annotations

import math
from typing import Any, TypedDict, Unpack

import numpy as np
import numpy.typing as npt

from lowprec import backends
from lowprec.arrays import as_subclass, finish, input_array
from lowprec.backends.owner import refuse_cupy
from lowprec.caching import cached, refuse_unhashable
from lowprec.conversion import Conversion
from lowprec.float_format import STORAGE
from lowprec.formats import FormatLike, as_format, float32, float64, format_of_dtype
from lowprec.keys import KeyLike, first_index, key_value
from lowprec.rule import rounding_rule

Array = npt.NDArray[Any]
_FLOAT64 = np.dtype(np.float64)
_SMALL = 1 << 12  # up to here a copy costs less than a view with strides of zero
_STORED = frozenset(STORAGE.values())


class Options(TypedDict, total=False):
    """Keyword arguments of every function here, with the meanings and defaults of `lowprec.round`."""

    key: KeyLike | None
    random_bits: int
    overflow: str | None
    infinite_input: str | None
    flush: bool
    offset: int
    out: Array | None


def add(
    a: npt.ArrayLike, b: npt.ArrayLike, fmt: FormatLike, rounding: str = "nearest_even", **options: Unpack[Options]
) -> Any:
    """a + b, exact, rounded once.

    Args:
        a, b: float64, float32, float16, bfloat16 or other ml_dtypes float arrays, broadcast together, or Python
            numbers that float64 holds.
        fmt: the format of the result.
        rounding: nearest_even, nearest_away, toward_zero, up, down, odd or stochastic.
        options: key, random_bits (1 to 32), overflow, infinite_input, flush, offset and out, as of `lowprec.round`.
            An infinite result is treated as an infinite input is there.

    Returns:
        An array of fmt's storage dtype; where it has none, float32 values on its grid (float64 where float32 does not
        hold them). A scalar where every operand is one.

    Raises:
        TypeError: integer arrays (convert them first), complex, longdouble, GPU arrays.
        ValueError: unknown names, shapes that do not broadcast, stochastic without a key, a policy that the format
            cannot express, or a NaN into a format without NaN.
    """
    return _rounded_once("add", (a, b), fmt, rounding, options)


def subtract(
    a: npt.ArrayLike, b: npt.ArrayLike, fmt: FormatLike, rounding: str = "nearest_even", **options: Unpack[Options]
) -> Any:
    """a - b, exact, rounded once (arguments as of `add`)."""
    return _rounded_once("subtract", (a, b), fmt, rounding, options)


def multiply(
    a: npt.ArrayLike, b: npt.ArrayLike, fmt: FormatLike, rounding: str = "nearest_even", **options: Unpack[Options]
) -> Any:
    """a * b, exact, rounded once (arguments as of `add`)."""
    return _rounded_once("multiply", (a, b), fmt, rounding, options)


def divide(
    a: npt.ArrayLike, b: npt.ArrayLike, fmt: FormatLike, rounding: str = "nearest_even", **options: Unpack[Options]
) -> Any:
    """a / b, exact, rounded once (arguments as of `add`). x / 0 is an infinity, 0 / 0 NaN."""
    return _rounded_once("divide", (a, b), fmt, rounding, options)


def sqrt(x: npt.ArrayLike, fmt: FormatLike, rounding: str = "nearest_even", **options: Unpack[Options]) -> Any:
    """The square root of x, exact, rounded once (arguments as of `add`). NaN below zero; keeps -0."""
    return _rounded_once("sqrt", (x,), fmt, rounding, options)


def fma(
    a: npt.ArrayLike,
    b: npt.ArrayLike,
    c: npt.ArrayLike,
    fmt: FormatLike,
    rounding: str = "nearest_even",
    **options: Unpack[Options],
) -> Any:
    """a * b + c, exact, rounded once (arguments as of `add`)."""
    return _rounded_once("fma", (a, b, c), fmt, rounding, options)


def scaled_add(
    a: npt.ArrayLike,
    b: npt.ArrayLike,
    s: npt.ArrayLike,
    fmt: FormatLike,
    rounding: str = "nearest_even",
    **options: Unpack[Options],
) -> Any:
    """a + s * b, exact, rounded once (arguments as of `add`): an update of a by b scaled.

    `lowprec.float32_op("scaled_add", ...)` is the machine's, with the product and the sum rounded to float32.
    """
    return _rounded_once("fma", (s, b, a), fmt, rounding, options)


@cached
def prepare(
    fmt: FormatLike,
    rounding: str = "nearest_even",
    random_bits: int | str = 16,
    overflow: str | None = None,
    infinite_input: str | None = None,
    flush: bool = False,
) -> Conversion:
    """The checked rounding of exact results.

    Raises:
        ValueError: as `add`.
    """
    fmt = as_format(fmt)
    if rounding == "stochastic" and random_bits == "exact":
        raise ValueError("an exact result may have any number of bits: random_bits must be 1 to 32")
    rule = rounding_rule(fmt, rounding, random_bits, overflow, infinite_input, flush)
    if fmt.dtype is not None:
        return Conversion(rule, float64, _FLOAT64, fmt.dtype, "code")
    values = np.dtype(np.float32) if float32.contains(fmt) else _FLOAT64
    return Conversion(rule, float64, _FLOAT64, values, "value")


def _rounded_once(
    operation: str, operands: tuple[npt.ArrayLike, ...], fmt: FormatLike, rounding: str, options: Options
) -> Any:
    """The one body of the functions above."""
    if not options:  # most calls, quickly
        conversion, offset = prepare(as_format(fmt), rounding), 0
    else:
        if not options.keys() <= _ALLOWED:
            unknown = sorted(options.keys() - _ALLOWED)
            raise TypeError(f"unknown options {unknown}; allowed are {', '.join(Options.__annotations__)}")
        policies = (
            options.get("random_bits", 16),
            options.get("overflow"),
            options.get("infinite_input"),
            options.get("flush", False),
        )
        try:
            conversion = prepare(as_format(fmt), rounding, *policies)
        except TypeError:
            refuse_unhashable(
                **dict(zip(("random_bits", "overflow", "infinite_input", "flush"), policies, strict=True))
            )
            raise
        offset = options.get("offset", 0)
    key, out = options.get("key"), options.get("out")
    if rounding == "stochastic" and key is None:
        raise ValueError("stochastic rounding needs key=, a lowprec.Key or an integer")
    seed = 0 if key is None else key_value(key)
    arrays, plain, scalar = _operands(operands)
    target = _target(out, arrays, conversion.out_dtype)
    if options:
        offset = first_index(offset, target.size)
    bad, undone = backends.current().arithmetic(operation, conversion, arrays, seed, offset, target)
    if undone:
        bad |= backends.load("reference").fill(operation, conversion, arrays, undone, seed, offset, target)
    if bad:
        raise ValueError(f"NaN cannot be represented in {conversion.rule.fmt.name}, which has no NaN")
    if out is None and not scalar:
        return target if plain else as_subclass(target, operands)
    return finish(target, out, operands[0], scalar)


_ALLOWED = frozenset(Options.__annotations__)


def _operands(given: tuple[npt.ArrayLike, ...]) -> tuple[list[Array], bool, bool]:
    """The operands as float arrays of one shape; whether all were plain arrays, and whether all were scalars."""
    arrays: list[Array] = []
    plain = scalars = True
    for x in given:
        if type(x) is np.ndarray and x.dtype in _STORED:
            arrays.append(x)
            scalars = False
        else:
            array, scalar = _operand(x)
            arrays.append(array)
            plain, scalars = False, scalars and scalar
    shape = arrays[0].shape
    for array in arrays:
        if array.shape != shape:
            return _broadcast(arrays), plain, scalars
    return arrays, plain, scalars


def _broadcast(arrays: list[Array]) -> list[Array]:
    """The arrays in their common shape."""
    shapes = {array.shape for array in arrays if array.shape}
    shape = shapes.pop()
    if shapes or math.prod(shape) > _SMALL:
        return list(np.broadcast_arrays(*arrays))
    same = []
    for array in arrays:
        same.append(array if array.shape else np.empty(shape, array.dtype))
        if not array.shape:
            same[-1][...] = array
    return same


def _operand(x: object) -> tuple[Array, bool]:
    """An operand as an array of floats, and whether it was a scalar."""
    refuse_cupy(x)
    if type(x) is float:
        return np.array(x), True
    if type(x) is int:
        if abs(x) > 1 << 53 and int(float(x)) != x:
            raise ValueError(f"float64 does not hold {x}")
        return np.array(float(x)), True
    array, scalar = input_array(x)
    if format_of_dtype(array.dtype) is None:
        raise TypeError(f"operands must be floating-point arrays (ml_dtypes included) or numbers, not {array.dtype}")
    return array, scalar


def _target(out: Array | None, operands: list[Array], dtype: np.dtype[Any]) -> Array:
    """A C-contiguous array to compute into: `out` itself where nothing is read from it."""
    shape = operands[0].shape
    if out is None:
        return np.empty(shape, dtype)
    given = getattr(out, "dtype", type(out).__name__)
    if given != dtype:
        raise TypeError(f"out must be an array of {dtype}, not {given}")
    if out.shape != shape:
        raise ValueError(f"out has shape {out.shape}, the result {shape}")
    if not out.flags.writeable:
        raise ValueError("out is read-only")
    free = not any(np.may_share_memory(out, operand) for operand in operands)
    return out if out.flags.carray and free else np.empty(shape, dtype)
