"""Arrays of a Block that `execute` runs: views cost nothing, results share buffers when their lifetimes do not meet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ipu_core.arrays import LINE, aligned
from ipu_core.ir.block import Array, Block, Var, dtype_of
from ipu_core.ir.exact import exact
from ipu_core.ir.lifetimes import lifetimes
from lowprec.integers import ceil_div


@dataclass(frozen=True)
class Buffers:
    """Arrays for the values of a Block.

    Attributes:
        arrays: an array for every value, the same in every run.
        bytes: bytes of the buffer that results share.
    """

    arrays: Mapping[Var, Array]
    bytes: int


def allocate(block: Block, over: Mapping[Var, Var]) -> Buffers:
    """Plans the arrays of a Block, given its order: the memory of a result is another's after its last use.

    Args:
        block: what is to be run.
        over: values that are written over an input, or over the total of the round before.
    """
    own = (*block.inputs, *(old for old, _ in block.totals))
    arrays = {
        var: aligned(var.type.size, dtype_of(var.type.format)).reshape(var.type.shape)
        for var in (*own, *block.constants)
    }
    for var, value in block.constants.items():
        arrays[var][...] = value
    views, last = lifetimes(block)
    own_memory = [
        (position, var)
        for position, var in enumerate(equation.output for equation in block.equations)
        if views[var].root is var and var not in over
    ]
    sizes = [var.type.size * dtype_of(var.type.format).itemsize for _, var in own_memory]
    spans = [(first, max(first, last.get(var, first))) for first, var in own_memory]
    offsets, total = pack(sizes, spans)
    buffer = aligned(total, np.dtype(np.uint8))
    for (_, var), offset, size in zip(own_memory, offsets, sizes, strict=True):
        arrays[var] = buffer[offset : offset + size].view(dtype_of(var.type.format)).reshape(var.type.shape)
    arrays |= {var: arrays[old] for var, old in over.items()}
    for equation in block.equations:
        if views[equation.output].root is not equation.output:
            arrays[equation.output] = exact(equation.op, [arrays[equation.operands[0]]], equation.params)
    return Buffers(arrays, total)


def pack(sizes: Sequence[int], spans: Sequence[tuple[int, int]]) -> tuple[list[int], int]:
    """Offsets of arrays in one buffer, and its bytes: no two overlap that live at a time.

    The largest first, each at the lowest offset that is free while it lives.

    Args:
        sizes: in bytes.
        spans: the first and the last equation of each life.
    """
    padded = ceil_div(np.array(sizes, np.int64), LINE) * LINE
    first, last = np.array(spans, np.int64).reshape(-1, 2).T
    offsets = np.zeros(len(sizes), np.int64)
    placed: list[int] = []
    for number in np.argsort(-padded, kind="stable").tolist():
        others = np.array(placed, np.int64)
        meet = others[(first[others] <= last[number]) & (first[number] <= last[others])]
        meet = meet[np.argsort(offsets[meet], kind="stable")]
        ends = np.maximum.accumulate(np.concatenate([[0], offsets[meet] + padded[meet]]))
        fits = np.flatnonzero(offsets[meet] - ends[:-1] >= padded[number])
        offsets[number] = ends[fits[0]] if fits.size else ends[-1]
        placed.append(number)
    return offsets.tolist(), int((offsets + padded).max(initial=0))
