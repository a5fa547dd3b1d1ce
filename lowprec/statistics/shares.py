"""Shares of an array that underflow, overflow or become subnormal in a format."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, NamedTuple, TypedDict, Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lowprec._pieces import pieces
from lowprec.arrays import input_array
from lowprec.processor import in_default_state
from lowprec.rounding import round
from lowprec.spec.formats import FloatFormat, as_format
from lowprec.spec.keywords import FewBitRoundingLike, as_rounding, refuse_unknown
from lowprec.spec.rounding import Overflow, Rounding


class BitKeywords(TypedDict, total=False):
    """Of a rounding whose policies play no part."""

    random_bits: int | Literal["exact"]


class Shares(NamedTuple):
    """Shares of the values of an array, each from 0 to 1; every value belongs to exactly one, so they sum to 1.

    Attributes:
        normal: Finite values that round to a normal value of the format.
        subnormal: Values that round to a subnormal value.
        underflow: Non-zero values that round to zero.
        overflow: Finite values that round beyond the largest finite value.
        zero: Zeros.
        infinite: Infinities.
        nan: NaNs.
    """

    normal: float
    subnormal: float
    underflow: float
    overflow: float
    zero: float
    infinite: float
    nan: float


@in_default_state
def shares(
    x: ArrayLike,
    fmt: Any,
    rounding: FewBitRoundingLike = "nearest_even",
    *,
    key: Any = None,
    **policies: Unpack[BitKeywords],
) -> Shares:
    """Says what rounding x to a format does to its values, as shares of x.size.

    A value overflows where its rounding passes the largest finite value, whatever policy would then replace it; modes
    that round such values inward ("toward_zero", for instance) never overflow. In an unsigned format negative values
    count as overflow. An empty array gives NaN shares.

    Args:
        x: Real array of any shape.
        fmt: A format, name or dtype.
        rounding, key: As in `lowprec.round`, with the keyword random_bits.

    Raises:
        ValueError: unknown format or rounding mode; stochastic rounding without a key.
    """
    fmt = as_format(fmt)
    refuse_unknown(policies, BitKeywords)
    how = as_rounding(rounding, **policies)
    x = input_array(x)[0]
    counts = np.zeros(len(Shares._fields), np.int64)
    for begin, (values,) in pieces(x, dtype=np.float64):
        counts += _counts(values, fmt, how, key, begin)
    return Shares(*(counts / x.size if x.size else np.full(counts.shape, np.nan)).tolist())


def _counts(
    values: NDArray[np.float64], fmt: FloatFormat, rounding: Rounding, key: Any, offset: int
) -> NDArray[np.int64]:
    """How many of the values are of each kind, in the order of `Shares`."""
    finite, zero = np.isfinite(values), values == 0
    number = finite & ~zero
    grid, over = _rounded(np.where(number, values, fmt.smallest_normal), fmt, rounding, key, offset)
    tiny = grid < fmt.smallest_normal
    kinds = {
        "normal": number & ~over & ~tiny,
        "subnormal": number & tiny & (grid != 0),
        "underflow": number & (grid == 0),
        "overflow": number & over,
        "zero": zero,
        "infinite": np.isinf(values),
        "nan": np.isnan(values),
    }
    return np.array([np.count_nonzero(kinds[name]) for name in Shares._fields])


def _rounded(
    values: NDArray[np.float64], fmt: FloatFormat, rounding: Rounding, key: Any, offset: int
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Rounded magnitudes, and where they are beyond the largest finite one."""
    if fmt.infinities or fmt.nan_code is not None:
        policy: Overflow = "infinity" if fmt.infinities else "nan"
        target = fmt
    else:
        # Nothing in the format says overflow, so a format with one more exponent bit and the same grid does.
        beyond, exponent_bits = f"{fmt.name} and beyond", fmt.exponent_bits + 1
        policy = "infinity"
        target = dataclasses.replace(fmt, name=beyond, exponent_bits=exponent_bits, infinities=True, nan="ieee")
    grid = np.abs(round(values, target, dataclasses.replace(rounding, overflow=policy), key=key, offset=offset))
    return grid, ~(grid <= fmt.max)
