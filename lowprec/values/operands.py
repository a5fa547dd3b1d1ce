"""Operands of products and sums: which dtypes they may have and what is known of their products."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from lowprec._caching import cached
from lowprec.values.float_format import FloatFormat
from lowprec.values.formats import float32, float64, format_of_dtype

# Four products of 11-bit significands and a float32 are added exactly; float32 operands would need a longer adder.
DOT4_PRECISION = 11


@cached
def operand_format(dtype: np.dtype[Any]) -> FloatFormat:
    """The format of an operand's dtype.

    Raises:
        TypeError: no floating-point dtype, or one that float32 does not hold.
    """
    fmt = format_of_dtype(dtype)
    if fmt is None or not float32.contains(fmt):
        raise TypeError(
            f"operands must be float32, float16, bfloat16 or an 8-, 6- or 4-bit float dtype, not {dtype}; "
            "convert with lowprec.astype"
        )
    return fmt


def operand_dtype(dtype: npt.DTypeLike) -> np.dtype[Any]:
    """The dtype of an operand, checked (as `operand_format`)."""
    kind = np.dtype(dtype)
    operand_format(kind)
    return kind


def factor_dtypes(a: npt.DTypeLike, b: npt.DTypeLike, adder: str) -> tuple[np.dtype[Any], np.dtype[Any]]:
    """The dtypes of a product's operands, checked.

    Raises:
        TypeError: as `operand_format`.
        ValueError: significands too long for the adder.
    """
    dtypes = np.dtype(a), np.dtype(b)
    # The wider operand decides, so that the refusal names the one to convert.
    widest: FloatFormat = max((operand_format(dtype) for dtype in dtypes), key=lambda fmt: fmt.precision)
    if adder == "dot4" and widest.precision > DOT4_PRECISION:
        raise ValueError(
            f"adder='dot4' takes significands of at most {DOT4_PRECISION} bits, not {widest.name}'s {widest.precision}"
        )
    return dtypes


@cached
def is_narrow(dtype: np.dtype[Any]) -> bool:
    """Whether float64 holds an array's values: float64 itself and what float32 holds."""
    fmt = format_of_dtype(dtype)
    return fmt is not None and (fmt == float64 or float32.contains(fmt))


@cached
def exact_products(a: FloatFormat, b: FloatFormat) -> bool:
    """Whether every product of values of two formats is a float32: then a fused and a plain multiply-add agree."""
    # Enough bits, and no product below float32's smallest or beyond its largest.
    return (
        a.precision + b.precision <= float32.precision
        and a.smallest_subnormal * b.smallest_subnormal >= float32.smallest_subnormal
        and a.max * b.max <= float32.max
    )
