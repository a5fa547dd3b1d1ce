"""Sums of columns by the compiled loops."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from lowprec import _kernels, threads
from lowprec.backends.cpu.operands import operand_type
from lowprec.backends.cpu.rounding import left_to_reference, native_rounding
from lowprec.backends.owner import load
from lowprec.types import Array
from lowprec.values.column_sums import ColumnSum
from lowprec.values.formats import float32, float64
from lowprec.values.rounding import rounding_rule

KINDS = ("sequential", "running", "kahan", "pair")  # in the order of `enum SumKind` in kernels/cpu/sums/column_job.h


def column_sums(job: ColumnSum, x: Array, y: Array | None, key: int, offset: int, out: Array) -> None:
    """Sums over the middle axis of x (outer, size, inner), every step exact and rounded once, into `out`.

    `out` is contiguous: float32, or float64 for a format that float32 does not hold. A format beyond the kernels is
    summed by the reference.
    """
    call, wide = _call(job, x.dtype, None if y is None else y.dtype)
    if call is None:
        load("reference").column_sums(job, x, y, key, offset, out)
        return
    # Beyond float32 the loops have no lanes of floats: terms become doubles here, exactly.
    if wide:
        x = x.astype(np.float64)
        y = None if y is None else y.astype(np.float64)
    call(x, y, job.block, key, offset, out, threads.current())


@lru_cache(maxsize=4096)
def _call(
    job: ColumnSum, x: np.dtype[Any], y: np.dtype[Any] | None
) -> tuple[_kernels.ColumnCall, bool] | tuple[None, bool]:
    """The compiled sum of terms of some dtypes, and whether it takes and gives doubles; None: none is compiled."""
    rule = job.rule
    wide = not float32.contains(rule.fmt)
    if left_to_reference(rule.fmt):
        return None, wide
    # IEEE's own addition is one instruction there; all else takes a rounding of the exact sum.
    ieee = rule.fmt == float64 or rule == rounding_rule(float32)
    operands = [] if wide else [operand_type(dtype) for dtype in (x, y) if dtype is not None]
    return _kernels.ColumnCall(operands, native_rounding(rule), KINDS.index(job.kind), ieee, wide), wide
