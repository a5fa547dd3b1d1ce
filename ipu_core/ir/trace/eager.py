"""Operations on NumPy arrays at once: float64 arrays in ideal arithmetic, narrower ones as their format declares."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ipu_core.ir.block import Array, Equation, Format, Literal, Params, Type, Var, dtype_of
from ipu_core.ir.exact import as_exact, exact
from ipu_core.ir.ops import INT32, STRUCTURE, infer
from ipu_core.ir.run.declared import declared
from lowprec import FloatFormat, as_format, astype
from lowprec import float64 as FLOAT64
from lowprec import round as rounded_values
from lowprec.arrays import whole_array
from lowprec.checks import number
from lowprec.processor import in_default_state


def format_of(array: Array) -> Format:
    """The element format of an array: "int32" for integers, else the float format of its dtype.

    Raises:
        TypeError: neither integers nor floats.
    """
    if array.dtype.kind in "iu":
        return "int32"
    if array.dtype.kind in "bcOUSMm" or array.dtype.itemsize > 8:
        raise TypeError(f"an array of {array.dtype} is neither floats nor integers")
    return as_format(array.dtype)


def is_number(value: Any) -> bool:
    """Whether a value is a plain Python number (NumPy's scalars are arrays without axes)."""
    return isinstance(value, (int, float)) and not isinstance(value, np.generic)


def _within(value: Any) -> Any:
    """A Python number as NumPy computes with it: truth values and whole numbers beyond 64 bits are floats."""
    if isinstance(value, bool):
        return float(value)
    return value if isinstance(value, float) or -(2**63) <= value < 2**63 else number("an operand", value)


def as_array(value: Any) -> Array:
    """The value as an array; truth values become float32 0 and 1.

    Raises:
        TypeError: masked elements, which would count as if they were there.
    """
    array = np.asarray(whole_array(value))
    return array.astype(np.float32) if array.dtype.kind == "b" else array


def check_labels(labels: Any, classes: int) -> None:
    """Refuses labels that are no classes.

    Raises:
        TypeError: no numbers.
        ValueError: with the first such label and the number of classes.
    """
    given = as_array(labels)
    if given.dtype.kind not in "iuf":
        raise TypeError(f"labels must be integers, not {given.dtype}")
    wrong = given[(given < 0) | (given >= classes)]
    if wrong.size:
        raise ValueError(f"the label {wrong.flat[0]} is none of the {classes} classes 0 to {classes - 1}")


@in_default_state
def compute(op: str, operands: Sequence[Any], params: Params, fmt: FloatFormat | None = None) -> Any:
    """One operation on arrays and Python numbers.

    float64 arrays (and numbers alone) are computed with in float64. Narrower arrays are computed with as the machine
    does: in float32, rounded to nearest even once to the operands' format, or to float32 where they differ.

    Raises:
        ValueError, TypeError: the operands do not fit the operation, see `ops.check`.
    """
    arrays = [_within(x) if is_number(x) else as_array(x) for x in operands]
    types = [Literal(float(x)) if is_number(x) else Type(x.shape, format_of(x)) for x in arrays]
    result = infer(op, tuple(types), params, fmt)
    if op in STRUCTURE:
        return exact(op, arrays, params)
    if result.format == INT32:
        return exact(op, [x if is_number(x) or x.dtype.kind in "iu" else as_exact(x) for x in arrays], params).astype(
            np.int32
        )
    if result.format == FLOAT64 or all(isinstance(x, Literal) for x in types):
        return exact(op, [x if is_number(x) else as_exact(x) for x in arrays], params)
    if "rounding" in params:
        return np.asarray(rounded_values(arrays[0], result.format, params["rounding"]))
    # At once: by way of float32 it would be rounded twice.
    if op == "convert" and arrays[0].dtype == np.float64:
        wanted = as_format(result.format)
        if wanted.dtype is None:
            return np.asarray(rounded_values(arrays[0], wanted)).astype(dtype_of(wanted))
        return np.asarray(astype(arrays[0], wanted))
    equation = Equation(0, op, (), (Var("0", result),), params)
    return declared(equation, arrays, None)
