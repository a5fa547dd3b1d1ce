"""Exact arithmetic by the compiled loops: the result as a double rounded to odd, and that rounded to the format.

A double rounded to odd rounds on as the exact result would, to formats and random bits of up to CARRIED_BITS.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from lowprec import _kernels, threads
from lowprec.backends.cpu.operands import operand_type
from lowprec.backends.cpu.rounding import left_to_reference, native_conversion
from lowprec.types import Array
from lowprec.values.conversion import CARRIED_BITS, Conversion
from lowprec.values.formats import float64
from lowprec.values.rounding import MODES

OPERATIONS = {"add": 0, "subtract": 1, "multiply": 2, "divide": 3, "sqrt": 4, "fma": 5}
MOST_AXES = 8

Operand = Array | float
_FLOAT64 = np.dtype(np.float64)


@lru_cache(maxsize=4096)
def exact_call(operation: str, conversion: Conversion, dtypes: tuple[np.dtype[Any] | None, ...]) -> _kernels.ExactCall:
    """The compiled operation on arrays of some dtypes, None for a float.

    Where CARRIED_BITS suffice the operation gives a double rounded to odd, which is then rounded to the format; else it
    rounds by the format's own mode.
    """
    rule = conversion.rule
    # float64 itself has no bits to spare: there the operation rounds in the format's own mode.
    carried = rule.fmt.mantissa_bits + rule.random_bits <= CARRIED_BITS and rule.fmt != float64
    types = [None if dtype is None or dtype == _FLOAT64 else operand_type(dtype) for dtype in dtypes]
    mode = MODES.index("odd" if carried else rule.mode)
    native = native_conversion(conversion)
    # "down" besides, since the exact zero of a difference is -0 there, and a double rounded to odd no longer says so.
    return _kernels.ExactCall(OPERATIONS[operation], mode, rule.mode == "down", types, native, conversion.out_dtype)


def arithmetic(
    operation: str, conversion: Conversion, operands: tuple[Operand, ...], key: int, offset: int, out: Array | None
) -> tuple[Array, bool, npt.NDArray[np.uint8] | None]:
    """One operation on floats and arrays, broadcast together, into `out` (C-contiguous) or a new array.

    Returns:
        The result; whether a NaN met a format without NaN; and marks, 1 for every element (C order) that is left to
        the reference, or None: float64 operands near the ends of their range, formats that are not `within_kernels`,
        and inexact results whose law a double cannot carry (float64 and, beyond 28 random bits, float32 in stochastic
        mode).
    """
    dtypes: list[np.dtype[Any] | None] = []
    axes = 0
    for x in operands:
        dtypes.append(None if isinstance(x, float) else x.dtype)
        axes = axes if isinstance(x, float) else max(axes, x.ndim)
    if axes > MOST_AXES or left_to_reference(conversion.rule.fmt):
        return _otherwise(operation, conversion, operands, key, offset, out)
    call = exact_call(operation, conversion, tuple(dtypes))
    result, outcome, marks = call(operands, key, offset, out, threads.current())
    return result, bool(outcome & 1), marks


def _otherwise(
    operation: str, conversion: Conversion, operands: tuple[Operand, ...], key: int, offset: int, out: Array | None
) -> tuple[Array, bool, npt.NDArray[np.uint8] | None]:
    """As `arithmetic`, for formats beyond the loops (all elements are marked) and more axes than they take."""
    # Rare: views are made and flattened at the price of a copy, and the loops see one axis.
    arrays = np.broadcast_arrays(*operands)
    result = np.empty(arrays[0].shape, conversion.out_dtype) if out is None else out
    if left_to_reference(conversion.rule.fmt):
        # Every element is marked as left to the reference (`lowprec.arithmetic.apply` calls it).
        return result, False, np.ones(result.size, np.uint8)
    flat = tuple(x.reshape(-1) for x in arrays)
    _, bad, marks = arithmetic(operation, conversion, flat, key, offset, result.reshape(-1))
    return result, bad, marks
