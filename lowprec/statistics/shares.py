"""Shares of an array that underflow, overflow or become subnormal in a format."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, NamedTuple, TypedDict, Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lowprec.rounding import round
from lowprec.spec.formats import FloatFormat, as_format
from lowprec.spec.keywords import FewBitRoundingLike, as_rounding, refuse_unknown
from lowprec.spec.rounding import Overflow, Rounding
from lowprec.statistics.measures import as_float64


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
    values = as_float64(x)
    finite, zero = np.isfinite(values), values == 0
    refuse_unknown(policies, BitKeywords)
    how = as_rounding(rounding, **policies)
    grid, over = _rounded(np.where(finite & ~zero, values, fmt.smallest_normal), fmt, how, key)
    tiny = grid < fmt.smallest_normal
    number = finite & ~zero
    masks = {
        "normal": number & ~over & ~tiny,
        "subnormal": number & tiny & (grid != 0),
        "underflow": number & (grid == 0),
        "overflow": number & over,
        "zero": zero,
        "infinite": np.isinf(values),
        "nan": np.isnan(values),
    }
    return Shares(**{name: _share(mask) for name, mask in masks.items()})


def _rounded(
    values: NDArray[np.float64], fmt: FloatFormat, rounding: Rounding, key: Any
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
    grid = np.abs(round(values, target, dataclasses.replace(rounding, overflow=policy), key=key))
    return grid, ~(grid <= fmt.max)


def _share(mask: NDArray[np.bool_]) -> float:
    return float(np.count_nonzero(mask)) / mask.size if mask.size else float("nan")
