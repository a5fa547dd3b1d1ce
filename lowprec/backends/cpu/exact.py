"""Exact arithmetic by the compiled loops: doubles that round further as the exact result, then rounding."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from lowprec import _kernels, threads
from lowprec.backends.cpu.random import random_words
from lowprec.backends.cpu.rounding import native_conversion, native_rounding
from lowprec.conversion import Conversion
from lowprec.exact_sums import ColumnSum
from lowprec.formats import float64
from lowprec.rule import MODES, RoundingRule

KINDS = ("sequential", "running", "kahan")
OPERATIONS = {"add": 0, "subtract": 1, "multiply": 2, "divide": 3, "sqrt": 4, "fma": 5}
PIECE = 1 << 15
CARRIED_BITS = 51  # a double rounded to odd keeps the law of formats whose mantissa and random bits are at most these

Array = npt.NDArray[Any]


@cache
def first_mode(rule: RoundingRule) -> int:
    """The mode in which an exact result becomes a double: odd, to be rounded further, where that is possible."""
    carried = rule.fmt.mantissa_bits + rule.random_bits <= CARRIED_BITS and rule.fmt != float64
    return MODES.index("odd" if carried else rule.mode)


def arithmetic(
    operation: str, conversion: Conversion, operands: Sequence[Array], key: int, offset: int, out: Array
) -> tuple[bool, list[int]]:
    """One operation on arrays of out's shape, into `out` (contiguous).

    Returns:
        Whether a NaN met a format without NaN; and the elements that are left to the reference: float64 operands near
        the ends of their range, and inexact results whose law a double cannot carry (float64 and, beyond 28 random
        bits, float32 in stochastic mode).
    """
    rule = conversion.rule
    number, mode = OPERATIONS[operation], first_mode(rule)
    native, to = native_conversion(conversion), out.reshape(-1)
    carrier, left = np.empty(min(PIECE, to.size)), np.empty(min(PIECE, to.size), np.uint8)
    bad, undone, start, thread_count = False, [], 0, threads.current()
    for piece in _pieces(operands):
        size = piece[0].size
        some, marks = carrier[:size], left[:size]
        if _kernels.exact(number, mode, rule.mode == "down", piece, some, marks, thread_count):
            undone += (np.flatnonzero(marks) + start).tolist()
        bad |= _kernels.convert(native, some, to[start : start + size], key, offset + start, thread_count)
        start += size
    return bad, undone


def _pieces(operands: Sequence[Array]) -> Iterable[tuple[Array, ...]]:
    """Contiguous float64 pieces of the operands, in C order."""
    if operands[0].size <= PIECE:
        return [_doubles(operands)]
    flat = [x.reshape(-1) if x.flags.c_contiguous else x.flat for x in operands]
    return (_doubles([x[i : i + PIECE] for x in flat]) for i in range(0, operands[0].size, PIECE))


def _doubles(operands: Sequence[Array]) -> tuple[Array, ...]:
    with np.errstate(invalid="ignore"):  # signalling NaN
        return tuple(np.ascontiguousarray(x, np.float64).reshape(-1) for x in operands)


def column_sums(job: ColumnSum, x: Array, y: Array | None, key: int, out: Array) -> None:
    """Sums over the middle axis of x (outer, size, inner), every step exact and rounded once, as doubles into `out`."""
    rule = job.rule
    random = None
    if rule.mode == "stochastic":
        bits, each = rule.random_bits, 4 if job.kind == "kahan" else 1
        random = np.empty(each * x.size, np.uint16 if bits <= 16 else np.uint32)
        random_words(1 if bits <= 16 else 2, bits, key, 0, random)
    outer, size, inner = x.shape
    kind, block = KINDS.index(job.kind), min(job.block, max(size, 1))
    native, ieee_double, thread_count = native_rounding(rule), rule.fmt == float64, threads.current()
    _kernels.sum_columns(native, kind, ieee_double, outer, size, inner, block, x, y, random, out, thread_count)
