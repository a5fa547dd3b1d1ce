"""Exact arithmetic by the compiled loops: doubles that round further as the exact result, then rounding."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lowprec import _kernels, threads
from lowprec.backends.cpu.rounding import decode_stored, native_conversion
from lowprec.conversion import Conversion
from lowprec.formats import float64
from lowprec.rule import MODES

OPERATIONS = {"add": 0, "subtract": 1, "multiply": 2, "divide": 3, "sqrt": 4, "fma": 5}
PIECE = 1 << 15
CARRIED_BITS = 51  # a double rounded to odd keeps the law of formats whose mantissa and random bits are at most these

Array = npt.NDArray[Any]
_FLOAT64 = np.dtype(np.float64)


class Steps(NamedTuple):
    """How the kernels do an operation: as doubles first, then converted.

    Attributes:
        operation: its number.
        mode: number of the mode in which an exact result becomes a double: odd, to be rounded further, where possible.
        down: whether a difference of equals is -0.
        conversion: from double to the result.
    """

    operation: int
    mode: int
    down: bool
    conversion: _kernels.Conversion


@cache
def _steps(operation: str, conversion: Conversion) -> Steps:
    rule = conversion.rule
    carried = rule.fmt.mantissa_bits + rule.random_bits <= CARRIED_BITS and rule.fmt != float64
    mode = MODES.index("odd" if carried else rule.mode)
    return Steps(OPERATIONS[operation], mode, rule.mode == "down", native_conversion(conversion))


def arithmetic(
    operation: str, conversion: Conversion, operands: Sequence[Array], key: int, offset: int, out: Array
) -> tuple[bool, list[int]]:
    """One operation on arrays of out's shape, into `out` (contiguous).

    Returns:
        Whether a NaN met a format without NaN; and the elements that are left to the reference: float64 operands near
        the ends of their range, formats that are not `within_kernels`, and inexact results whose law a double cannot
        carry (float64 and, beyond 28 random bits, float32 in stochastic mode).
    """
    if not conversion.rule.fmt.within_kernels:
        return False, list(range(out.size))
    steps = _steps(operation, conversion)
    if out.size <= PIECE:
        return _piece(steps, operands, key, offset, out)
    flat = [x.reshape(-1) if x.flags.c_contiguous else x.flat for x in operands]
    to, bad, undone = out.reshape(-1), False, []
    for start in range(0, to.size, PIECE):
        some = slice(start, start + PIECE)
        wrong, left = _piece(steps, [x[some] for x in flat], key, offset + start, to[some])
        bad |= wrong
        undone += [start + i for i in left]
    return bad, undone


def _piece(steps: Steps, operands: Sequence[Array], key: int, offset: int, out: Array) -> tuple[bool, list[int]]:
    """`arithmetic` of at most PIECE elements."""
    thread_count, size = threads.current(), out.size
    inputs = []
    for x in operands:
        if x.dtype == _FLOAT64:
            inputs.append(np.ascontiguousarray(x))
        else:  # not astype, which warns of signalling NaNs
            wide = np.empty(size)
            decode_stored(x, wide, thread_count)
            inputs.append(wide)
    doubles, left = np.empty(size), np.empty(size, np.uint8)
    some_left = _kernels.exact(steps.operation, steps.mode, steps.down, inputs, doubles, left, thread_count)
    bad = _kernels.convert(steps.conversion, doubles, out, key, offset, thread_count)
    return bad, np.flatnonzero(left).tolist() if some_left else []
