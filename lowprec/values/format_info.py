"""Machine limits of any format, with numpy's and ml_dtypes' attribute names."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from lowprec.processor import in_default_state
from lowprec.values.describe import format_html, format_text
from lowprec.values.float_format import FloatFormat
from lowprec.values.formats import FormatLike, as_format


@dataclass(frozen=True)
class FormatInfo:
    """Limits of a format (see `numpy.finfo`). Values are scalars of the storage dtype, or floats where there is none.

    Attributes:
        format: the format itself.
        dtype: its storage dtype, or None.
        bits: width of a code.
        nmant, nexp, iexp: bits of the mantissa, of the exponent field (twice).
        max, min: largest and smallest finite value.
        eps: distance from 1 to the next larger value, 2^-nmant; machep is its exponent.
        epsneg: distance from 1 to the next smaller value; negep is its exponent.
        smallest_normal, tiny: 2^minexp. smallest_subnormal: the smallest positive value.
        minexp, maxexp: exponent of the smallest normal value; the smallest exponent that overflows.
        precision, resolution: decimal digits that are always right, floor(-log10(eps)), and 10^-precision.
    """

    format: FloatFormat
    dtype: np.dtype[Any] | None
    bits: int
    nmant: int
    nexp: int
    iexp: int
    max: Any
    min: Any
    eps: Any
    machep: int
    epsneg: Any
    negep: int
    smallest_normal: Any
    tiny: Any
    smallest_subnormal: Any
    minexp: int
    maxexp: int
    precision: int
    resolution: float

    def __str__(self) -> str:
        return format_text(self.format)

    def _repr_html_(self) -> str:
        return format_html(self.format)


@lru_cache(maxsize=4096)
@in_default_state
def _info(fmt: FloatFormat) -> FormatInfo:
    # Scalars of the storage dtype, as numpy.finfo gives them: eps of float16 is a float16.
    make = float if fmt.dtype is None else fmt.dtype.type
    negep = -fmt.mantissa_bits - (fmt.emin < 0)  # where 1 is the smallest normal value, subnormals lie below it
    # numpy's definition, with its attribute's name.
    precision = math.floor(-math.log10(fmt.eps))
    return FormatInfo(
        format=fmt,
        dtype=fmt.dtype,
        bits=fmt.bits,
        nmant=fmt.mantissa_bits,
        nexp=fmt.exponent_bits,
        iexp=fmt.exponent_bits,
        max=make(fmt.max),
        min=make(fmt.min),
        eps=make(fmt.eps),
        machep=-fmt.mantissa_bits,
        epsneg=make(math.ldexp(1.0, negep)),
        negep=negep,
        smallest_normal=make(fmt.smallest_normal),
        tiny=make(fmt.smallest_normal),
        smallest_subnormal=make(fmt.smallest_subnormal),
        minexp=fmt.emin,
        maxexp=fmt.emax + 1,
        precision=precision,
        resolution=10.0**-precision,
    )


def finfo(spec: FormatLike) -> FormatInfo:
    """Limits of a format, name or dtype.

    Raises:
        ValueError, TypeError: as `as_format`.
    """
    return _info(as_format(spec))
