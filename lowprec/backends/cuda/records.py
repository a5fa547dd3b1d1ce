"""The structs that kernels take by value (format.h, round.h, storage.cuh), as NumPy records of the same layout."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from lowprec.values.conversion import Conversion
from lowprec.values.float_format import FloatFormat
from lowprec.values.formats import float32
from lowprec.values.rounding import MODES, RoundingRule, rounding_rule

Record = npt.NDArray[np.void]

MOST_AXES = 64  # most_axes of storage.cuh, and the most that CuPy has
MOST_VERTEX_AXES = 8  # most_vertices of sums.cuh

_FORMAT_NUMBERS = ("exponent_bits", "mantissa_bits", "emin", "subnormals", "zero", "negative_zero")
_FORMAT_CODES = ("sign_bit", "max_code", "inf_code", "nan_code")
_RESULTS = ("over_pos", "over_neg", "inf_pos", "inf_neg", "negative", "none")


def _struct(*fields: tuple[Any, ...]) -> np.dtype[np.void]:
    # With the padding that the compiler gives the struct.
    return np.dtype(list(fields), align=True)


FORMAT = _struct(*((name, "i4") for name in _FORMAT_NUMBERS), *((name, "u8") for name in _FORMAT_CODES))
ROUNDING = _struct(
    ("format", FORMAT),
    *((name, "i4") for name in ("mode", "random_bits", "flush")),
    *((name, "u8") for name in _RESULTS),
)
CONVERSION = _struct(("rounding", ROUNDING), ("carrier", ROUNDING), ("source", FORMAT))
OPERANDS = _struct(
    ("size", "i8", (MOST_AXES,)),
    ("step", "i8", (4, MOST_AXES)),
    ("data", "u8", (3,)),
    ("number", "f8", (3,)),
    ("format", FORMAT, (3,)),
    ("axes", "i4"),
    ("down", "i4"),
)
NUMBERING = _struct(("base", "i8"), ("at", "u8"), ("step", "i8", (MOST_VERTEX_AXES,)))
_VERTEX_STEPS, _SUM_SIZES = ("shape", "x_step", "out_step"), ("m", "k", "n", "x_row", "x_k", "x_column")
_SUM_CUT, _SUM_PLACE = (
    ("group", "part", "parts", "run", "vertices", "through"),
    ("row", "column", "first_group", "batch", "number"),
)
SUM = _struct(
    ("step", ROUNDING),
    ("final", ROUNDING),
    ("source", FORMAT),
    *((name, "u8") for name in ("x", "order", "starts")),
    *((name, "i8", (MOST_VERTEX_AXES,)) for name in _VERTEX_STEPS),
    *((name, "i8") for name in (*_SUM_SIZES, "out_row", "out_column", *_SUM_CUT)),
    ("key", "u8"),
    *((name, NUMBERING) for name in _SUM_PLACE),
    *((name, "i4") for name in ("axes", "stages", "tag")),
)
_PLACES = ("row_step", "term_step", "b_step", "y_row", "y_term", "x_row", "x_term")
WINDOWS = _struct(
    *((name, "i8", (2,)) for name in ("row_size", "term_size")),
    *((name, "i8", (3,)) for name in _PLACES),
    *((name, "i8") for name in ("y", "x", "high", "wide", "there", "first")),
)
PRODUCT = _struct(
    ("sums", SUM),
    ("b_format", FORMAT),
    *((name, "u8") for name in ("b", "start")),
    *((name, "i8", (MOST_VERTEX_AXES,)) for name in ("b_step", "start_step")),
    *((name, "i8") for name in ("b_k", "b_column", "start_row", "start_column")),
    ("windows", WINDOWS),
)
COLUMN = _struct(
    ("rounding", ROUNDING),
    *((name, "i8") for name in ("outer", "size", "inner", "block", "results")),
    ("step", "i8", (2, 3)),
    ("key", "u8"),
    ("offset", "u8"),
    ("data", "u8", (2,)),
    ("number", "f8", (2,)),
    ("format", FORMAT, (2,)),
)
BLOCKS = _struct(
    *((name, ROUNDING) for name in ("rounding", "scale_rounding")),
    *((name, FORMAT) for name in ("source", "element", "scale")),
    *((name, "i8") for name in ("lines", "length", "columns", "block", "blocks")),
    *((name, "u8") for name in ("key", "offset")),
    *((name, "f8") for name in ("tensor", "limit", "least")),
    ("carry_from", "u8"),
    ("integer", "f8"),
    *((name, "i4") for name in ("emax", "scale_least", "scale_most", "void_blocks")),
)
PACK = _struct(*((name, "i8") for name in ("rows", "size", "bytes")), ("bits", "i4"))
ROTATE = _struct(
    *((name, "i8") for name in ("pairs", "length", "columns", "half")),
    ("factor", "f8"),
    *((name, "i4") for name in ("before", "after")),
)
MAGNITUDES = _struct(
    ("source", FORMAT), *((name, "i8") for name in ("size", "piece", "pieces", "count", "apart")), ("factor", "f4")
)
COUNTS = _struct(
    *((name, "u8") for name in ("zeros", "infinite", "nan")), ("exponents", "u8", (256,)), ("largest", "u4")
)
MEASURE = _struct(("format", FORMAT), ("size", "i8"), ("largest", "f8"), ("least", "f8"))
STRIDES = _struct(*((name, "i8", (MOST_AXES,)) for name in ("size", "from", "to")), ("axes", "i4"))


@lru_cache(maxsize=4096)
def format_record(fmt: FloatFormat) -> Record:
    """The format's numbers: no infinity is code 0, no NaN is all ones."""
    numbers = [int(getattr(fmt, name)) for name in _FORMAT_NUMBERS]
    nan = fmt.nan_code if fmt.nan_code is not None else 2**64 - 1
    return np.array((*numbers, fmt.sign_bit, fmt.max_code, fmt.inf_code or 0, nan), FORMAT)


@lru_cache(maxsize=4096)
def rounding_record(rule: RoundingRule) -> Record:
    results = [getattr(rule, name) for name in _RESULTS]
    numbers = (MODES.index(rule.mode), rule.random_bits, rule.flush)
    return np.array((format_record(rule.fmt)[()], *numbers, *results), ROUNDING)


@lru_cache(maxsize=4096)
def conversion_record(conversion: Conversion) -> Record:
    """The conversion as `struct Conversion` of storage.cuh: the rounding, the carrier's and the source's format."""
    source = conversion.source or float32  # integers need none
    rounding, carrier = rounding_record(conversion.rule), rounding_record(rounding_rule(source))
    return np.array((rounding[()], carrier[()], format_record(source)[()]), CONVERSION)
