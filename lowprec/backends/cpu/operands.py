"""Operands of the compiled float32 arithmetic: how elements of each dtype become float32."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from lowprec import _kernels
from lowprec.backends.cpu.rounding import fits_narrow_lanes, native_rounding
from lowprec.values.formats import bfloat16, float16, float32, format_of_dtype
from lowprec.values.rounding import RoundingRule

# The numbers of `enum class Element` in kernels/cpu/operands/operand.h.
# Wider formats than 8 bits have conversions of their own in the loops; the others go through a table of 256 values.
_ELEMENTS = {float32: 0, float16: 1, bfloat16: 2}
_TABLE = 3

plain_dtypes = _kernels.plain_dtypes
"""The dtypes of operands that are all plain arrays, which loops read where they lie; None for others."""
ready_output = _kernels.ready_output
"""Whether loops can write results to an array while they read these operands.

It must be plain and C-contiguous, and share no memory with an operand, or begin exactly where it begins.
"""


@lru_cache(maxsize=4096)
def operand_type(dtype: np.dtype[Any]) -> _kernels.OperandType:
    """How a prepared call reads operands of this dtype, which is one that `values.operands.operand_format` takes."""
    fmt = format_of_dtype(dtype)
    assert fmt is not None
    if fmt in _ELEMENTS:
        return _kernels.OperandType(dtype, _ELEMENTS[fmt], None)
    codes = range(1 << fmt.bits)
    values = np.array([fmt.value_of(code) for code in codes], np.float32)
    # 4- and 6-bit elements lie in bytes: the table is repeated, so that bits above the format's width change nothing.
    return _kernels.OperandType(dtype, _TABLE, np.resize(values, 256))


def native_step(rule: RoundingRule | None) -> tuple[_kernels.NativeRounding | None, bool]:
    """A rounding of float32 sums as the kernels take it, and whether it needs 64-bit lanes; None: nothing to do."""
    return (None, False) if rule is None else (native_rounding(rule), not fits_narrow_lanes(rule))
