"""Shares of an array that underflow, overflow or become subnormal in a format."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, NamedTuple, TypedDict, Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lowprec import backends
from lowprec._caching import cached
from lowprec._exact_bits import exact_random_bits
from lowprec._pieces import pieces
from lowprec.backends.owner import is_cupy, load
from lowprec.foreign import takes_foreign
from lowprec.processor import in_default_state
from lowprec.rounding import decode
from lowprec.statistics.underflow import underflowed
from lowprec.statistics.values import real_numbers
from lowprec.types import Array
from lowprec.values.conversion import Conversion, conversion_of
from lowprec.values.formats import FloatFormat, as_format
from lowprec.values.keys import key_value
from lowprec.values.keywords import FewBitRoundingLike, as_rounding, refuse_unknown
from lowprec.values.rounding import INWARD_NEGATIVE, INWARD_POSITIVE, Rounding


class BitKeywords(TypedDict, total=False):
    """Keywords of a rounding whose overflow and infinite_input play no part: random_bits (16)."""

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


@takes_foreign
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
    that do not round to zero count as overflow. An empty array gives NaN shares.

    Args:
        x: Real array of any shape; integers are exact.
        fmt: A format, name or dtype.
        rounding, key: As in `lowprec.round`, with the keyword random_bits. What a Rounding says of overflow and of
            infinite inputs plays no part.

    Raises:
        TypeError: complex, bool or extended-precision x, masked elements.
        ValueError: unknown format or rounding mode; stochastic rounding without a key.
    """
    fmt = as_format(fmt)
    refuse_unknown(policies, BitKeywords)
    how = as_rounding(rounding, **policies)
    x = real_numbers(x)
    if how.random_bits == "exact":
        # Of the whole array, before it is cut into pieces: each must draw as many.
        how = dataclasses.replace(how, random_bits=exact_random_bits(x, fmt) if how.stochastic else 16)
    conversion = _marking(x.dtype, fmt, how)
    if key is None and conversion.keyed:
        raise ValueError("stochastic rounding needs key=, a lowprec.Key or an integer")
    seed = 0 if key is None else key_value(key)
    counts = np.zeros(len(Shares._fields), np.int64)
    if is_cupy(x):
        counts = load("cuda").counts("share", x, codes=conversion, key=seed)
    else:
        for begin, (values,) in pieces(x):
            # With the piece's own offset: the shares are those of the very rounding that `round` makes.
            counts += _counts(values, conversion, seed, begin)
    return Shares(*(counts / x.size if x.size else np.full(counts.shape, np.nan)).tolist())


@cached
def _marking(dtype: np.dtype[Any], fmt: FloatFormat, how: Rounding) -> Conversion:
    """A conversion to codes from which overflow can be told in every format, whatever the format's own policy.

    Finite values beyond the largest become code 0, unless they are rounded inward: no other value of their size has
    that code. Negative values in an unsigned format become the largest code.
    """
    plain = dataclasses.replace(how, overflow="saturate", infinite_input=None)
    conversion = conversion_of("code", dtype, fmt, plain)
    rule = conversion.rule
    marked = dataclasses.replace(
        rule,
        over_pos=rule.over_pos if rule.mode in INWARD_POSITIVE else 0,
        over_neg=rule.over_neg if rule.mode in INWARD_NEGATIVE else 0,
        negative=fmt.max_code,
    )
    return dataclasses.replace(conversion, rule=marked)


def _counts(values: Array, conversion: Conversion, seed: int, offset: int) -> NDArray[np.int64]:
    """How many of the values are of each kind, in the order of `Shares`."""
    fmt = conversion.rule.fmt
    # Zeros: where a NaN meets a format without NaN a backend may leave the place as it was.
    codes = np.zeros(values.shape, conversion.out_dtype)
    unfit = backends.current().convert(conversion, values, seed, offset, codes)
    with np.errstate(invalid="ignore"):  # signalling NaN
        values = values.astype(np.float64)
    if unfit:  # NaN in a format without NaN
        # Only to be decoded below; NaNs are counted by the values.
        codes[np.isnan(values)] = 0
    zero = values == 0
    number = np.isfinite(values) & ~zero
    # The result of the rounding itself, and not a threshold: so every mode is counted right.
    grid = np.abs(np.asarray(decode(codes, fmt), np.float64))
    # Code 0 is a small value's too; the size tells them apart.
    beyond = (codes == 0) & (np.abs(values) >= fmt.max)
    over = number & (beyond if fmt.signed else beyond | ((values < 0) & (codes == fmt.max_code)))
    tiny = grid < fmt.smallest_normal
    kinds = {
        "normal": number & ~over & ~tiny,
        "subnormal": number & ~over & tiny & (grid != 0),
        "underflow": underflowed(values, grid) & ~over,
        "overflow": over,
        "zero": zero,
        "infinite": np.isinf(values),
        "nan": np.isnan(values),
    }
    return np.array([np.count_nonzero(kinds[name]) for name in Shares._fields])
