"""Arithmetic rounded once: the exact real result of an operation becomes a value of any format, in any mode.

The operands are float64 or narrower floats, whatever the format of the result: nothing is rounded on the way, neither
the operands nor (in `fma` and `scaled_add`) the product. Signed zeros, infinities and NaN are IEEE 754's: x - x is +0,
but -0 where rounding goes down; a quotient by zero is an infinity, which then counts as an infinite input.
A product through float32 would be another function: 1 + 2^-24 rounded up to float16 is 1 + 2^-10, not 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt

from lowprec import backends, threads
from lowprec._caching import cached
from lowprec.arrays import as_subclass, input_array
from lowprec.backends import cpu
from lowprec.backends.cpu import plain_dtypes, ready_output
from lowprec.backends.owner import is_cupy
from lowprec.foreign import library_of, through
from lowprec.types import Array
from lowprec.values.conversion import Conversion, exact_conversion
from lowprec.values.float_format import STORAGE
from lowprec.values.formats import FormatLike, format_of_dtype
from lowprec.values.keys import KeyLike, first_index, key_value
from lowprec.values.keywords import RoundingKeywords, RoundingLike, as_rounding, refuse_unhashable
from lowprec.values.outputs import check_out

Operand = Array | float
_STORED = frozenset(STORAGE.values())
_QUICK = frozenset({"key", "out"})  # options that the one-step call of `_of_plain` knows
_NUMBERS = frozenset({float, int, np.float64, np.float32, np.float16})


class OperationKeywords(RoundingKeywords, total=False):
    """Keywords of every function here, with the meanings and defaults of `lowprec.round`."""

    key: KeyLike | None
    offset: int
    out: Array | None


def add(
    a: npt.ArrayLike,
    b: npt.ArrayLike,
    fmt: FormatLike = "float32",
    rounding: RoundingLike = "nearest_even",
    **options: Unpack[OperationKeywords],
) -> Any:
    """a + b, exact, rounded once.

    Args:
        a, b: float64, float32, float16, bfloat16 or other ml_dtypes float arrays, broadcast together, or Python
            numbers that float64 holds. CuPy arrays are computed with on their GPU (see lowprec.backends.cuda).
        fmt: the format of the result.
        rounding: a `lowprec.Rounding`, or nearest_even, nearest_away, toward_zero, up, down, odd or stochastic.
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
    a: npt.ArrayLike,
    b: npt.ArrayLike,
    fmt: FormatLike = "float32",
    rounding: RoundingLike = "nearest_even",
    **options: Unpack[OperationKeywords],
) -> Any:
    """a - b, exact, rounded once (arguments as of `add`)."""
    return _rounded_once("subtract", (a, b), fmt, rounding, options)


def multiply(
    a: npt.ArrayLike,
    b: npt.ArrayLike,
    fmt: FormatLike = "float32",
    rounding: RoundingLike = "nearest_even",
    **options: Unpack[OperationKeywords],
) -> Any:
    """a * b, exact, rounded once (arguments as of `add`)."""
    return _rounded_once("multiply", (a, b), fmt, rounding, options)


def divide(
    a: npt.ArrayLike,
    b: npt.ArrayLike,
    fmt: FormatLike = "float32",
    rounding: RoundingLike = "nearest_even",
    **options: Unpack[OperationKeywords],
) -> Any:
    """a / b, exact, rounded once (arguments as of `add`). x / 0 is an infinity, 0 / 0 NaN."""
    return _rounded_once("divide", (a, b), fmt, rounding, options)


def sqrt(
    x: npt.ArrayLike,
    fmt: FormatLike = "float32",
    rounding: RoundingLike = "nearest_even",
    **options: Unpack[OperationKeywords],
) -> Any:
    """The square root of x, exact, rounded once (arguments as of `add`). NaN below zero; keeps -0."""
    return _rounded_once("sqrt", (x,), fmt, rounding, options)


def fma(
    a: npt.ArrayLike,
    b: npt.ArrayLike,
    c: npt.ArrayLike,
    fmt: FormatLike = "float32",
    rounding: RoundingLike = "nearest_even",
    **options: Unpack[OperationKeywords],
) -> Any:
    """a * b + c, exact, rounded once (arguments as of `add`)."""
    return _rounded_once("fma", (a, b, c), fmt, rounding, options)


def scaled_add(
    a: npt.ArrayLike,
    b: npt.ArrayLike,
    s: npt.ArrayLike,
    fmt: FormatLike = "float32",
    rounding: RoundingLike = "nearest_even",
    **options: Unpack[OperationKeywords],
) -> Any:
    """a + s * b, exact, rounded once (arguments as of `add`): an update of a by b scaled.

    `lowprec.float32_op("scaled_add", ...)` is the machine's, with the product and the sum rounded to float32.
    """
    return _rounded_once("fma", (s, b, a), fmt, rounding, options)


def _rounded_once(
    operation: str,
    operands: tuple[npt.ArrayLike, ...],
    fmt: FormatLike,
    rounding: RoundingLike,
    options: OperationKeywords,
) -> Any:
    """The body of the functions above: one compiled call where that does it, else step by step with all checks."""
    if options.keys() <= _QUICK and (quick := _of_plain(operation, operands, fmt, rounding, options)) is not None:
        return quick
    if (library := library_of(*operands, options.get("out"))) is not None:
        return through(library, _applied, operation, fmt, rounding, *operands, **options)
    key, offset, out = None, 0, None
    if options:
        key, offset, out = options.pop("key", None), options.pop("offset", 0), options.pop("out", None)
    try:
        conversion = _from_keywords(fmt, rounding, **options)
    except TypeError:
        refuse_unhashable(fmt=fmt, rounding=rounding, **options)
        raise
    if key is not None:
        seed = key_value(key)
    elif conversion.keyed:
        raise ValueError("stochastic rounding needs key=, a lowprec.Key or an integer")
    else:
        seed = 0
    values, plain, scalar = _operands(operands)
    if offset != 0:
        offset = first_index(offset, math.prod(np.broadcast_shapes(*map(np.shape, values))))
    if any(map(is_cupy, values)):
        return apply(operation, conversion, values, seed, offset, out)
    # After all other checks, before any work: a refused out costs nothing.
    into = None if out is None else _into(out, values, conversion.out_dtype)
    result = apply(operation, conversion, values, seed, offset, into)
    if out is not None:
        if result is not out:
            out[...] = result
        return out
    return result[()] if scalar else result if plain else as_subclass(result, operands)


def _applied(operation: str, fmt: FormatLike, rounding: RoundingLike, *operands: Any, **options: Any) -> Any:
    """`_rounded_once` with the operands as arguments of their own, which `through` converts."""
    return _rounded_once(operation, operands, fmt, rounding, options)  # type: ignore[arg-type]


def _of_plain(
    operation: str,
    operands: tuple[Any, ...],
    fmt: FormatLike,
    rounding: RoundingLike,
    options: OperationKeywords,
) -> Array | None:
    """The result in one compiled call, for plain arrays; None where there is more to do, or something to refuse.

    Refusals are left to the steps behind it, so that each is worded in one place.
    """
    dtypes = plain_dtypes(operands)
    if dtypes is None or backends.current() is not cpu:
        return None
    key, out = options.get("key"), options.get("out")
    if out is not None and not ready_output(out, operands, False):
        return None
    try:
        seed = 0 if key is None else key_value(key)
        call, keyed = _call_of_plain(operation, dtypes, fmt, rounding)
        if call is None or (keyed and key is None):
            return None
        result, outcome, _ = call(operands, seed, 0, out, threads.current())
    except (TypeError, ValueError):
        return None
    # Some elements are left to the reference, or a NaN met a format without one: the steps see to both, over the same
    # out.
    return None if outcome else result


@cached
def _call_of_plain(
    operation: str, dtypes: tuple[np.dtype[Any], ...], fmt: FormatLike, rounding: RoundingLike
) -> tuple[Callable[..., Any] | None, bool]:
    """The compiled call, and whether it needs a key."""
    conversion = _from_keywords(fmt, rounding)
    if not conversion.rule.fmt.within_kernels or not _STORED.issuperset(dtypes):
        return None, False
    return cpu.exact_call(operation, conversion, dtypes), conversion.keyed


@cached
def _from_keywords(fmt: FormatLike, rounding: RoundingLike, **policies: Any) -> Conversion:
    return exact_conversion(fmt, as_rounding(rounding, **policies))


def apply(
    operation: str,
    conversion: Conversion,
    operands: tuple[Operand, ...],
    seed: int = 0,
    offset: int = 0,
    out: Array | None = None,
) -> Array:
    """One prepared operation on plain arrays and floats, into `out` (C-contiguous, apart from them) or a new array.

    CuPy arrays are computed with on their device, into `out` of any strides.

    Raises:
        TypeError: CuPy arrays beside NumPy's.
        ValueError: shapes that do not broadcast, or a NaN into a format without NaN.
    """
    result, bad, marks = backends.of(*operands).arithmetic(operation, conversion, operands, seed, offset, out)
    if marks is not None:
        # Few, if any: numbers near the ends of float64's range.
        left = np.flatnonzero(marks).tolist()
        bad |= backends.load("reference").fill(operation, conversion, operands, left, seed, offset, result)
    if bad:
        raise ValueError(f"NaN cannot be represented in {conversion.rule.fmt.name}, which has no NaN")
    return result  # type: ignore[no-any-return]


def _operands(given: tuple[npt.ArrayLike, ...]) -> tuple[tuple[Operand, ...], bool, bool]:
    """The operands as float arrays or floats; whether none was of another kind of array, and whether all were scalars.

    A plain array without axes is no scalar, as it is none to `round`.
    """
    operands: list[Operand] = []
    plain = scalars = True
    for x in given:
        if type(x) is np.ndarray and x.dtype in _STORED:
            operands.append(x)
            scalars = False
        elif type(x) in _NUMBERS:
            operands.append(_number(x))
        else:
            array, scalar = input_array(x)
            if format_of_dtype(array.dtype) is None:
                what = f"operands must be floating-point arrays (ml_dtypes included) or numbers, not {array.dtype}"
                raise TypeError(what)
            operands.append(array)
            plain, scalars = False, scalars and scalar
    return tuple(operands), plain, scalars


def _number(x: Any) -> float:
    """A Python number or one of NumPy's floats as the float that it equals."""
    # Python's integers have any size; rounded to float64 here, they would be rounded twice.
    if type(x) is int and abs(x) > 1 << 53 and (abs(x) >= 1 << 1024 or int(float(x)) != x):
        raise ValueError(f"float64 does not hold {x}")
    return float(x)


def _into(out: Array, operands: tuple[Operand, ...], dtype: np.dtype[Any]) -> Array | None:
    """`out`, checked, where it can be computed into; None where something is still read from it, or it has gaps."""
    check_out(out, np.broadcast(*operands).shape, dtype)
    if not out.flags.carray or type(out) is not np.ndarray:
        return None
    return None if any(not isinstance(x, float) and np.may_share_memory(out, x) for x in operands) else out
