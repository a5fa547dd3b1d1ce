"""Sums of columns by the compiled loops: the axis whose sums lie in lanes is chosen here."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from lowprec import _kernels, threads
from lowprec.backends.cpu.operands import operand_type
from lowprec.backends.cpu.random import random_words
from lowprec.backends.cpu.rounding import native_rounding
from lowprec.backends.owner import load
from lowprec.exact_sums import ColumnSum
from lowprec.formats import float32, float64
from lowprec.rule import RoundingRule, rounding_rule

Array = npt.NDArray[Any]
KINDS = ("sequential", "running", "kahan", "pair")
FULL_LANES = 32  # an axis of so many sums fills the lanes


def column_sums(job: ColumnSum, x: Array, y: Array | None, key: int, out: Array) -> None:
    """Sums over the middle axis of x (outer, size, inner), every step exact and rounded once, into `out`.

    `out` is contiguous: float32, or float64 for a format that float32 does not hold. A format beyond the kernels is
    summed by the reference.
    """
    if not job.rule.fmt.within_kernels:
        load("reference").column_sums(job, x, y, key, out)
        return
    if out.dtype == np.float64:
        x = x.astype(np.float64)
        y = None if y is None else y.astype(np.float64)
    outer, size, inner = x.shape
    call = _call(job.rule, job.kind, x.dtype, None if y is None else y.dtype)
    random, steps = None, 4 if job.kind == "kahan" else 1
    if job.rule.mode == "stochastic":
        bits, count = job.rule.random_bits, out.size if job.kind == "pair" else x.size
        random = np.empty(steps * count, np.uint16 if bits <= 16 else np.uint32)
        random_words(1 if bits <= 16 else 2, bits, key, 0, random)
    block = min(job.block, size) if job.kind in ("sequential", "pair") else size
    results = out.shape[1]
    index = (results * inner, inner, 0, 1) if job.kind == "pair" else (size * inner, block * inner, inner, 1)
    to, flat = (results * inner, inner, inner, 1), out.reshape(-1)
    whole = size // block if block else 0
    for start, blocks, length in ((0, whole, block), (whole * block, 1, size - whole * block)):
        if not (blocks and length):
            continue
        cut = slice(start, start + blocks * length)
        parts = [None if v is None else v[:, cut].reshape(outer, blocks, length, inner) for v in (x, y)]
        words = None if random is None else random[steps * start * inner :]
        _sum_blocks(call, parts, to, index, words, flat[start // block * inner :])


def _sum_blocks(
    call: _kernels.ColumnCall,
    parts: list[Array | None],
    to: tuple[int, ...],
    index: tuple[int, ...],
    random: Array | None,
    out: Array,
) -> None:
    """Sums over the third axis of (outer, blocks, terms, inner); `to` and `index` are steps along these axes."""
    assert parts[0] is not None
    shape = parts[0].shape
    lane = max((3, 1, 0), key=lambda axis: min(shape[axis], FULL_LANES))
    rest = [axis for axis in (0, 1, 3) if axis != lane]
    perm = (*rest, 2, lane)
    x, y = parts[0].transpose(perm), None if parts[1] is None else parts[1].transpose(perm)
    steps = [tuple(step[axis] for axis in perm) for step in (to, index)]
    call(x, y, steps[0], steps[1], random, out, threads.current())


@cache
def _call(rule: RoundingRule, kind: str, x: np.dtype[Any], y: np.dtype[Any] | None) -> _kernels.ColumnCall:
    wide = not float32.contains(rule.fmt)
    ieee = rule.fmt == float64 or rule == rounding_rule(float32)
    operands = [] if wide else [operand_type(dtype) for dtype in (x, y) if dtype is not None]
    return _kernels.ColumnCall(operands, native_rounding(rule), KINDS.index(kind), ieee, wide)
