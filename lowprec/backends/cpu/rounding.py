"""Rounding and decoding by the compiled loops."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from lowprec import _kernels, threads
from lowprec.conversion import Conversion
from lowprec.float_format import FloatFormat
from lowprec.formats import float32
from lowprec.rule import MODES, RoundingRule, rounding_rule

# The numbers of `enum Storage` in kernels/cpu/table.h.
_CODED = {1: 0, 2: 1, 4: 2, 8: 3}
_REAL = {np.dtype(np.float32): 4, np.dtype(np.float64): 5}
_INTEGER = {np.dtype(name): 6 + i for i, name in enumerate(("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"))}


@cache
def native_format(fmt: FloatFormat) -> _kernels.Format:
    """The format's numbers as the kernels take them."""
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
        fmt.nan_code if fmt.nan_code is not None else 2**64 - 1,
    )


@cache
def native_rounding(rule: RoundingRule) -> _kernels.Rounding:
    """The rule as the kernels take it."""
    return _kernels.Rounding(
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
    fmt = rule.fmt
    return (
        fmt.mantissa_bits <= 13
        and fmt.emin >= float32.emin
        and fmt.emax <= float32.emax
        and fmt.signed
        and fmt.subnormals
        and rule.random_bits <= 16
    )


@cache
def native_conversion(conversion: Conversion) -> _kernels.Conversion:
    source = conversion.source
    out = conversion.out_dtype
    narrow = (
        source is not None and source.bits <= 32 and source.emin >= float32.emin and fits_narrow_lanes(conversion.rule)
    )
    return _kernels.Conversion(
        native_rounding(conversion.rule),
        native_format(source or float32),
        native_rounding(rounding_rule(source or float32)),
        _storage(conversion.in_dtype, source),
        _storage(out, source) if conversion.kind == "value" else _CODED[out.itemsize],
        conversion.kind == "value",
        not narrow,
    )


def _storage(dtype: np.dtype[Any], fmt: FloatFormat | None) -> int:
    if dtype in _REAL:
        return _REAL[dtype]
    return _INTEGER[dtype] if fmt is None else _CODED[dtype.itemsize]


def convert(conversion: Conversion, x: npt.NDArray[Any], key: int, offset: int, out: npt.NDArray[Any]) -> bool:
    """Rounds x into out (contiguous, same size); True where a NaN met a format that has none."""
    return _kernels.convert(native_conversion(conversion), x, out, key, offset, threads.current())


def decode(fmt: FloatFormat, codes: npt.NDArray[Any], out: npt.NDArray[Any]) -> None:
    """Decodes unsigned integer codes into out (contiguous float32 or float64, same size)."""
    itemsize = codes.dtype.itemsize
    _kernels.decode(native_format(fmt), codes, out, _CODED[itemsize], _REAL[out.dtype], threads.current())
