"""Rounding and decoding by the compiled loops."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import numpy as np

from lowprec import _kernels, threads
from lowprec._pieces import pieces
from lowprec.backends.owner import load
from lowprec.processor import in_default_state
from lowprec.types import Array
from lowprec.values.conversion import Conversion, conversion_of
from lowprec.values.float_format import FloatFormat
from lowprec.values.formats import float32, float64
from lowprec.values.rounding import FEW_BIT_MODES, MODES, Mode, Rounding, RoundingRule, rounding_rule

ODD = Rounding("odd")
COPIED = 1 << 18  # elements copied at a time, enough for a few threads

# The numbers of `enum Storage` in kernels/cpu/rounding/rounding_jobs.h.
_CODED = {1: 0, 2: 1, 4: 2, 8: 3}
_REAL = {np.dtype(np.float32): 4, np.dtype(np.float64): 5}
_REAL_64 = 5
_INTEGER = {np.dtype(name): 6 + i for i, name in enumerate(("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"))}


@lru_cache(maxsize=4096)
def native_format(fmt: FloatFormat) -> _kernels.Format:
    """The format's numbers as the kernels take them.

    Raises:
        ValueError: the format is one for the reference (see FloatFormat.within_kernels).
    """
    if not fmt.within_kernels:
        raise ValueError(
            f"{fmt.name} reaches below float64's normal values: round, astype, encode, decode and exact arithmetic "
            "take it, and nothing else does"
        )
    return _kernels.Format(
        fmt.exponent_bits,
        fmt.mantissa_bits,
        fmt.emin,
        fmt.subnormals,
        fmt.zero,
        fmt.negative_zero,
        fmt.sign_bit,
        fmt.max_code,
        fmt.inf_code or 0,
        # A number that no code equals.
        fmt.nan_code if fmt.nan_code is not None else 2**64 - 1,
    )


@lru_cache(maxsize=4096)  # so that each format is warned of once, whatever the caller's warning filters
def left_to_reference(fmt: FloatFormat) -> bool:
    """Whether only the reference computes with a format; it says so the first time, for it is slow.

    Warns:
        RuntimeWarning: once for each such format.
    """
    if fmt.within_kernels:
        return False
    what = f"{fmt.name} reaches below float64's normal values: the reference computes it, slowly, value by value"
    warnings.warn(what, RuntimeWarning, stacklevel=4)
    return True


FIRST_STEP: Mapping[str, Mode] = MappingProxyType(
    {"stochastic_half": "nearest_away", "stochastic_even": "nearest_even"}
)
"""How the first step of a few-bit mode rounds to its finer grid: the ties of that are where the two differ."""


@in_default_state
def few_bits(conversion: Conversion, x: Array) -> tuple[Array, Conversion]:
    """x with only as many fraction bits as there are random ones, and the stochastic rounding that remains to be done.

    Integers that float64 does not hold become doubles with an odd last bit, which this rounds as it would round them.
    """
    rule, fmt = conversion.rule, conversion.rule.fmt
    if conversion.source is None:
        # astype would round integers beyond 2^53 to nearest, and the second rounding could then not tell on which side
        # they lay.
        wide = np.empty(x.shape)
        _kernels.convert(native_conversion(conversion_of("storage", x.dtype, float64, ODD)), x, wide, 0, 0, 1)
    else:
        with np.errstate(invalid="ignore"):  # signalling NaN
            wide = x.astype(np.float64)
    if not fmt.zero:  # the finer grid has one: what would fall to it is all the smallest value
        wide = np.where(wide > 0, np.maximum(wide, 2.0**fmt.emin), wide)
    # On this grid the fraction of a quantum has as many bits as are drawn: adding the draw and cutting loses none of
    # them.
    mantissa_bits = fmt.mantissa_bits + rule.random_bits
    kept = np.empty(wide.shape)
    _kernels.convert(_finer_grid(fmt.emin if fmt.zero else -1022, mantissa_bits, rule.mode), wide, kept, 0, 0, 1)
    return kept, last_step(conversion)


@lru_cache(maxsize=4096)
def _finer_grid(emin: int, mantissa_bits: int, mode: str) -> _kernels.NativeConversion:
    """The rounding of float64 values, for the first step of a few-bit mode, to a grid with so many mantissa bits.

    The grid has subnormals below 2^emin and no upper end.
    """
    # A format made for this alone, of float64's exponents and without an end: overflow is the second step's to decide.
    sign = 1 << (11 + mantissa_bits)
    top = ((1024 - emin + 1) << mantissa_bits) - 1
    grid = _kernels.Format(11, mantissa_bits, emin, True, True, True, sign, top, top + 1, top + 2)
    way = MODES.index(FIRST_STEP[mode])
    rounding = _kernels.NativeRounding(grid, way, 0, False, top, top | sign, top + 1, (top + 1) | sign, 0, 0)
    plain = native_rounding(rounding_rule(float64))
    return _kernels.NativeConversion(rounding, native_format(float64), plain, _REAL_64, _REAL_64, True, True)


@lru_cache(maxsize=4096)
def last_step(conversion: Conversion) -> Conversion:
    """The stochastic rounding, from float64, of a conversion in a few-bit mode."""
    rule = replace(conversion.rule, mode="stochastic")
    if conversion.kind == "code":
        return Conversion(rule, float64, np.dtype(np.float64), conversion.out_dtype, "code")
    assert conversion.source is not None
    return Conversion(rule, conversion.source, np.dtype(np.float64), conversion.out_dtype, "value")


@lru_cache(maxsize=4096)
def native_rounding(rule: RoundingRule) -> _kernels.NativeRounding:
    """The rule as the kernels take it.

    Raises:
        ValueError: a few-bit mode, which the kernels do in two steps, and `round`, `astype` and `encode` only.
    """
    if rule.mode in FEW_BIT_MODES:
        raise ValueError(f"{rule.mode} is for round, astype and encode; allowed here are {', '.join(MODES)}")
    return _kernels.NativeRounding(
        native_format(rule.fmt),
        MODES.index(rule.mode),
        rule.random_bits,
        rule.flush,
        rule.over_pos,
        rule.over_neg,
        rule.inf_pos,
        rule.inf_neg,
        rule.negative,
        rule.none,
    )


def fits_narrow_lanes(rule: RoundingRule) -> bool:
    """Whether 32-bit lanes round float32 values by this rule; otherwise float64 lanes do."""
    # A lane has a significand's hidden bit at bit 30: below 13 kept bits there are 17 left, enough for 16 random ones.
    fmt = rule.fmt
    return (
        fmt.mantissa_bits <= 13
        and fmt.emin >= float32.emin
        and fmt.emax <= float32.emax
        and fmt.signed
        and fmt.subnormals
        and rule.random_bits <= 16
    )


def _fits_through_odd(conversion: Conversion) -> bool:
    """Whether float64 input may be rounded to odd to float32 first: the codes then come out the same.

    So it is where float32 has enough bits below those that decide.
    """
    rule = conversion.rule
    # As values the results are float64 numbers, some of which float32 lacks.
    if conversion.in_dtype != np.float64 or conversion.source is not float64 or conversion.kind != "code":
        return False
    # The random bits must end above the last bit, and values beyond float32's largest be beyond all that they can do.
    spare = rule.fmt.mantissa_bits + 16 < float32.mantissa_bits and rule.fmt.emax < float32.emax
    return fits_narrow_lanes(rule) and (rule.mode != "stochastic" or spare)


@lru_cache(maxsize=4096)
def without_draws(conversion: Conversion) -> Conversion:
    """The conversion of values that its format holds: stochastic rounding leaves them as any other does."""
    if conversion.rule.mode != "stochastic":
        return conversion
    # The same results, without the time that random words take.
    return replace(conversion, rule=replace(conversion.rule, mode="nearest_even", random_bits=0))


def _holds(conversion: Conversion) -> bool:
    """Whether the result's format holds every input."""
    source = conversion.source
    if source is None or conversion.in_dtype == np.float64:  # float64 stands for exact results as well
        return False
    return conversion.rule.fmt.contains(source)


@lru_cache(maxsize=4096)
def native_conversion(conversion: Conversion) -> _kernels.NativeConversion:
    if _holds(conversion):
        conversion = without_draws(conversion)
    source = conversion.source
    out = conversion.out_dtype
    # 32-bit lanes where they suffice: a vector holds twice as many.
    narrow = _fits_through_odd(conversion) or (
        source is not None
        and source.bits <= 32
        and source.emin >= float32.emin
        and conversion.in_dtype != np.float64  # the last step of a few-bit mode
        and fits_narrow_lanes(conversion.rule)
    )
    return _kernels.NativeConversion(
        native_rounding(conversion.rule),
        native_format(source or float32),
        native_rounding(rounding_rule(source or float32)),
        _storage(conversion.in_dtype, source),
        _storage(out, source) if conversion.kind == "value" else _CODED[out.itemsize],
        conversion.kind == "value",
        not narrow,
    )


def whole_conversion(conversion: Conversion) -> _kernels.WholeConversion | None:
    """The conversion of ordinary arrays in one call, f(x, out, key, threads); None where it is not the kernels' own."""
    rule = conversion.rule
    if rule.mode in FEW_BIT_MODES or not rule.fmt.within_kernels:
        return None
    native, keyed = native_conversion(conversion), rule.mode == "stochastic"
    return _kernels.WholeConversion(native, conversion.in_dtype, conversion.out_dtype, keyed)


def whole_decoding(fmt: FloatFormat, codes: np.dtype[Any], out: np.dtype[Any]) -> _kernels.WholeDecoding | None:
    """Decoding of ordinary arrays in one call, f(codes, out, threads); None where it is not the kernels' own."""
    if not fmt.within_kernels:
        return None
    return _kernels.WholeDecoding(native_format(fmt), _CODED[codes.itemsize], _REAL[out], codes, out)


def _storage(dtype: np.dtype[Any], fmt: FloatFormat | None) -> int:
    if dtype in _REAL:
        return _REAL[dtype]
    return _INTEGER[dtype] if fmt is None else _CODED[dtype.itemsize]


def convert(conversion: Conversion, x: Array, key: int, offset: int, out: Array) -> bool:
    """Rounds x into out (contiguous, same size); True where a NaN met a format that has none."""
    if left_to_reference(conversion.rule.fmt):
        return bool(load("reference").convert(conversion, x, key, offset, out))
    few = conversion.rule.mode in FEW_BIT_MODES
    if x.size <= COPIED or (x.flags.c_contiguous and x.flags.aligned and not few):
        return _convert(conversion, x, key, offset, out)
    # What has to be copied, to lie in a row or as float64, is copied a piece at a time.
    flat, bad = out.reshape(-1), False
    for begin, (run,) in pieces(x, size=COPIED):
        bad |= _convert(conversion, run, key, offset + begin, flat[begin : begin + run.size])
    return bad


def _convert(conversion: Conversion, x: Array, key: int, offset: int, out: Array) -> bool:
    if conversion.rule.mode in FEW_BIT_MODES:
        x, conversion = few_bits(conversion, x)
    # The first step draws nothing; the random bits are the second one's.
    return _kernels.convert(native_conversion(conversion), x, out, key, offset, threads.current())


def decode(fmt: FloatFormat, codes: Array, out: Array) -> None:
    """Decodes unsigned integer codes into out (contiguous float32 or float64, same size)."""
    if left_to_reference(fmt):
        # The loops make no float64 below the normal ones.
        load("reference").decode(fmt, codes, out)
        return
    itemsize = codes.dtype.itemsize
    _kernels.decode(native_format(fmt), codes, out, _CODED[itemsize], _REAL[out.dtype], threads.current())
