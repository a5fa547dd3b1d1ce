"""Rounding to a format: `round` (values), `astype` (storage dtype), `encode` (codes) and `decode`.

A finite |x| is rounded on the format's grid as if the next binade existed, then overflow is applied; subnormals are
spaced as below the smallest normal value. In stochastic mode q = |x| / quantum becomes floor(q + r / 2^n) with r
uniform in [0, 2^n): the probability of rounding up is the discarded fraction, truncated to n bits. The r of an element
depends on the key and on its index in C order plus `offset`, and on nothing else.

Truncating makes few random bits biased: by 2^-(n+1) quanta toward zero where all fractions are equally likely. Two more
modes of Fitzgibbon and Felix ("On stochastic rounding with few random bits", arXiv 2504.20634) are less so. P3109 has
them too, and gfloat under names of its own (the authors' experiments run SRFF, SRF and SRC by those):

    here             paper  P3109        gfloat             a fraction f of the quantum goes up where
    stochastic       SRFF   StochasticA  StochasticFastest  floor(f 2^n) + r >= 2^n, which is f + r / 2^n >= 1
    stochastic_half  SRF    StochasticB  StochasticFast     f + (r + 1/2) / 2^n >= 1
    stochastic_even  SRC    StochasticC  Stochastic         rne(f 2^n) + r >= 2^n; rne to the nearest integer or even

stochastic_half is unbiased over a continuum of fractions; but inputs of few bits leave ties f 2^n = i + 1/2, which all
count as i + 1. stochastic_even sends them up and down alike. (gfloat's StochasticOdd, ties to odd, is not offered.) In
all three a representable value never moves, and n that covers the discarded bits makes them the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt

from lowprec import backends, threads
from lowprec._caching import cached
from lowprec._exact_bits import exact_random_bits
from lowprec.arrays import finish, input_array, output_array
from lowprec.backends import cpu
from lowprec.backends.owner import is_cupy
from lowprec.foreign import library_of, through
from lowprec.types import Array
from lowprec.values.conversion import Conversion, Result, conversion_of
from lowprec.values.float_format import FloatFormat
from lowprec.values.formats import FormatLike, as_format, float32
from lowprec.values.keys import KeyLike, first_index, key_value
from lowprec.values.keywords import FewBitRoundingLike, RoundingKeywords, as_rounding, refuse_unhashable


def round(
    x: npt.ArrayLike,
    fmt: FormatLike,
    rounding: FewBitRoundingLike = "nearest_even",
    *,
    key: KeyLike | None = None,
    offset: int = 0,
    out: Array | None = None,
    **policies: Unpack[RoundingKeywords],
) -> Any:
    """Rounds x to the values of a format, keeping x's dtype.

    Args:
        x: float16, bfloat16, float32, float64 or any ml_dtypes float array (or a Python float, as float64). It is
            rounded once, from its exact value. Tensors of torch and arrays of JAX (on the CPU) give such ones back,
            and their dtypes name formats; CuPy arrays are rounded on their GPU (see lowprec.backends.cuda).
        fmt: a FloatFormat, a name, or a dtype.
        rounding: a `lowprec.Rounding`; or nearest_even, nearest_away, toward_zero, up, down, odd or stochastic; or
            stochastic_half or stochastic_even (SRF and SRC), for few random bits (at most 16; NumPy arrays only). With
            a mode the keywords
            random_bits: bits per element, 1 to 32. With the default 16 the mean error is at most 2^-17 quanta. "exact"
                draws as many as make the law exact and refuses inputs that need more than 32. Like key and offset it
                plays no part in the other modes.
            overflow: what a finite value beyond the largest becomes: infinity, nan or saturate; or a preset that sets
                infinite_input too: ieee (infinity, keep), satfinite (saturate, max), ipu (saturate; 8-bit formats turn
                infinities into NaN). Default: infinity where the format has it, else nan where it has it, else
                saturate. Modes that round a value inward (toward_zero, odd, down where it is positive, up where it is
                negative) never overflow from a finite one: they give the largest.
            infinite_input: keep, nan or max. Default: keep where the format has infinities; else an infinity counts as
                an overflow (max where that saturates, nan where it gives nan).
            flush: subnormal results become zero of the same sign (False).
        key: a Key, or an integer that stands for one; needed for the stochastic modes.
        offset: index of x's first element among the random bits; the last one's must be below 2^64.
        out: where to put the result: x's shape and dtype (of either byte order, if x has the other one); may be x
            itself.

    Returns:
        An array like x. A NaN of any payload becomes the one positive quiet NaN. Where the format contains x's dtype,
        every other element keeps its bits.

    Raises:
        TypeError: integers (use `astype` or `encode`), bool, complex, longdouble; or x's dtype cannot hold the grid,
            or not the format's largest value where infinities are to become that (bfloat16 to float32).
        ValueError: unknown names, stochastic without a key, a policy the format cannot express, or a NaN into a
            format without NaN.
    """
    return _convert("value", x, fmt, rounding, key, offset, out, policies)


def astype(
    x: npt.ArrayLike,
    fmt: FormatLike,
    rounding: FewBitRoundingLike = "nearest_even",
    *,
    key: KeyLike | None = None,
    offset: int = 0,
    out: Array | None = None,
    **policies: Unpack[RoundingKeywords],
) -> Any:
    """Rounds x and returns it in the format's storage dtype (see `round` for the arguments).

    Integers of up to 64 bits are accepted too: exact, then one rounding.

    Raises:
        TypeError: as `round`; or the format has no storage dtype (use `encode`).
        ValueError: as `round`.
    """
    return _convert("storage", x, fmt, rounding, key, offset, out, policies)


def encode(
    x: npt.ArrayLike,
    fmt: FormatLike,
    rounding: FewBitRoundingLike = "nearest_even",
    *,
    key: KeyLike | None = None,
    offset: int = 0,
    out: Array | None = None,
    **policies: Unpack[RoundingKeywords],
) -> Any:
    """Rounds x and returns the codes as unsigned integers (see `round` for the arguments).

    Returns:
        uint8 up to 8 bits, uint16 up to 16, uint32 up to 32, uint64 for float64. 4- and 6-bit codes are one per byte.

    Raises:
        TypeError, ValueError: as `round`.
    """
    return _convert("code", x, fmt, rounding, key, offset, out, policies)


def decode(codes: npt.ArrayLike, fmt: FormatLike, out: Array | None = None) -> Any:
    """The values of codes, exact; every code that is NaN gives the one positive quiet NaN.

    Args:
        codes: unsigned or signed integers, or an array of the format's storage dtype. Bits above the format's width
            are an error.
        fmt: the format.
        out: where to put the values.

    Returns:
        float32; float64 for float64 and for formats that reach beyond float32.

    Raises:
        TypeError: codes are no integers.
        ValueError: a code wider than the format.
    """
    fmt = as_format(fmt)
    if type(codes) is np.ndarray and (out is None or type(out) is np.ndarray) and backends.current() is cpu:
        call = _whole_decoding(codes.dtype, fmt)
        if call is not None and (whole := call(codes, out, threads.current())) is not None:
            return whole
    if (library := library_of(codes, out)) is not None:
        return through(library, decode, codes, fmt, out=out)
    array, scalar = input_array(codes)
    if not array.size and not hasattr(codes, "dtype"):  # an empty list is float64 to numpy
        array = array.astype(fmt.code_dtype)
    unsigned = _as_codes(array, fmt)
    _refuse_on_gpu(array, fmt)
    target = output_array(out, array, _value_dtype(fmt))
    backends.of(array).decode(fmt, unsigned, target)
    return finish(target, out, codes, scalar)


@cached
def _whole_decoding(dtype: np.dtype[Any], fmt: FloatFormat) -> Callable[..., Any] | None:
    """The one-step call that decodes arrays of a dtype whose every element is a code of the format; None for others."""
    # An array of the storage dtype: its bytes are codes of the format, without a check.
    own = fmt.dtype is not None and dtype == fmt.dtype
    every = dtype == fmt.code_dtype and fmt.bits == 8 * dtype.itemsize
    return cpu.whole_decoding(fmt, dtype, _value_dtype(fmt)) if own or every else None


def _refuse_on_gpu(array: Array, fmt: FloatFormat) -> None:
    if not fmt.within_kernels and is_cupy(array):
        raise ValueError(f"{fmt.name} reaches below float64's normal values and runs on NumPy arrays only")


@cached
def _value_dtype(fmt: FloatFormat) -> np.dtype[Any]:
    """float32 where it holds the format's values, else float64."""
    return np.dtype(np.float32 if float32.contains(fmt) else np.float64)


def _as_codes(array: Array, fmt: FloatFormat) -> Array:
    """Codes in the unsigned dtype of the format's width."""
    if is_cupy(array):
        return backends.of(array).as_codes(array, fmt)  # type: ignore[no-any-return]
    if fmt.dtype is not None and array.dtype == fmt.dtype:  # numpy takes None for float64
        return array.view(fmt.code_dtype)
    if array.dtype.kind not in "iu":
        own = f" or an array of {fmt.dtype}" if fmt.dtype is not None else ""
        raise TypeError(f"decode needs integer codes{own}, not {array.dtype}")
    # In the format's own full width there is no code that is too wide.
    if array.dtype != fmt.code_dtype or fmt.bits < 8 * fmt.code_dtype.itemsize:
        limit = 1 << fmt.bits
        if array.size and (int(array.min()) < 0 or int(array.max()) >= limit):
            raise ValueError(f"codes of {fmt.name} must be in [0, {limit})")
    return array.astype(fmt.code_dtype, copy=False)


def _convert(
    result: Result,
    x: npt.ArrayLike,
    fmt: FormatLike,
    rounding: FewBitRoundingLike,
    key: KeyLike | None,
    offset: int,
    out: Array | None,
    policies: RoundingKeywords,
) -> Any:
    """The body of round, astype and encode: one compiled call where that does it, else step by step with all checks."""
    # Ordinary calls take 0.6 us for ten elements this way (measured); what follows is for all others.
    if type(x) is np.ndarray and type(offset) is int and offset == 0 and (out is None or type(out) is np.ndarray):
        quick = _whole(result, x, fmt, rounding, key, out, policies)
        if quick is not None:
            return quick
    if (library := library_of(x, out)) is not None:
        return through(library, _CONVERSIONS[result], x, fmt, rounding, key=key, offset=offset, out=out, **policies)
    array, scalar = input_array(x)
    fmt = as_format(fmt)
    try:
        conversion = _from_keywords(result, array.dtype, fmt, rounding, **policies)
    except TypeError:
        refuse_unhashable(rounding=rounding, **policies)
        raise
    if conversion is None:
        how = as_rounding(rounding, **policies)
        # Of no meaning in other modes, where "exact" is allowed and nothing is looked at.
        bits = exact_random_bits(array, fmt) if how.stochastic else 16
        conversion = conversion_of(result, array.dtype, fmt, replace(how, random_bits=bits))
    if key is not None:
        seed = key_value(key)
    elif conversion.keyed:
        raise ValueError("stochastic rounding needs key=, a lowprec.Key or an integer")
    else:
        seed = 0
    _refuse_on_gpu(array, fmt)
    target = output_array(out, array, conversion.out_dtype, x if result == "value" else None)
    start = first_index(offset, array.size)
    if backends.of(array).convert(conversion, array, seed, start, target):
        raise ValueError(f"NaN cannot be represented in {conversion.rule.fmt.name}, which has no NaN")
    return finish(target, out, x, scalar)


_CONVERSIONS: Mapping[Result, Callable[..., Any]] = {"value": round, "storage": astype, "code": encode}


@cached
def _from_keywords(
    result: Result, dtype: np.dtype[Any], fmt: FloatFormat, rounding: FewBitRoundingLike, **policies: Any
) -> Conversion | None:
    """The conversion; None where only the values say how many random bits it takes."""
    how = as_rounding(rounding, **policies)
    return None if how.random_bits == "exact" else conversion_of(result, dtype, fmt, how)


def _whole(
    result: Result,
    x: Array,
    fmt: FormatLike,
    rounding: FewBitRoundingLike,
    key: KeyLike | None,
    out: Array | None,
    policies: RoundingKeywords,
) -> Array | None:
    """The result of an ordinary call in one step; None where it takes more, or where there is something to refuse."""
    if backends.current() is not cpu or not x.dtype.isnative:
        return None
    try:
        # Refusals are the general way's: here they only mean that this is no ordinary call.
        call, keyed = _whole_from_keywords(result, x.dtype, fmt, rounding, **policies)
        seed = 0 if key is None else key_value(key)
    except (TypeError, ValueError):
        return None
    if call is None or (keyed and key is None):
        return None
    whole: Array | None = call(x, out, seed, threads.current())
    return whole


@cached
def _whole_from_keywords(
    result: Result, dtype: np.dtype[Any], fmt: FormatLike, rounding: FewBitRoundingLike, **policies: Any
) -> tuple[Callable[..., Any] | None, bool]:
    """The one-step call (None: there is none), and whether it needs a key."""
    conversion = _from_keywords(result, dtype, as_format(fmt), rounding, **policies)
    return (None, False) if conversion is None else (cpu.whole_conversion(conversion), conversion.keyed)
