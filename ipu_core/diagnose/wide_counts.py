"""Counts of values that float32 lacks, in NumPy: the compiled passes read float32."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ipu_core.ir.block import Array, Equation, is_wide

_BIAS = 127  # of float32's exponents


def has_wide(equation: Equation) -> bool:
    """Whether an equation reads or makes values that float32 lacks."""
    return any(is_wide(var.type.format) for var in (*equation.operands, *equation.outputs))


def counted_wide(
    x: Array, count: int, step: int, exponents: npt.NDArray[np.int64]
) -> tuple[int, int, int, float, float]:
    """`lowprec.statistics.counts.counted` of a float64 array, without a factor.

    Exponents that float32 lacks are counted as those of its smallest and largest normal numbers.
    """
    flat = np.abs(x.reshape(-1))
    finite = flat[np.isfinite(flat)]
    sampled = flat[np.arange(count, dtype=np.int64) * step % max(1, flat.size)]
    biased = np.clip(np.frexp(sampled)[1] + _BIAS - 1, 1, exponents.size - 2)
    biased = np.where(np.isfinite(sampled), np.where(sampled == 0, 0, biased), exponents.size - 1)
    exponents += np.bincount(biased, minlength=exponents.size)
    nan = int(np.isnan(flat).sum())
    # one after another: `sum` adds in an order of its own
    squares = float(np.add.accumulate(np.square(finite))[-1]) if finite.size else 0.0
    zeros = int(flat.size - np.count_nonzero(flat))
    return zeros, flat.size - finite.size - nan, nan, squares, float(finite.max(initial=0.0))
