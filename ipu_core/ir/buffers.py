"""Arrays of a Block that `execute` runs: views cost nothing, results share buffers when their lifetimes do not meet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ipu_core.arrays import aligned
from ipu_core.ir.block import Array, Block, Var, dtype_of
from ipu_core.ir.exact import exact
from ipu_core.ir.lifetimes import lifetimes


@dataclass(frozen=True)
class Buffers:
    """Arrays for the values of a Block.

    Attributes:
        arrays: an array for every value, the same in every run.
        bytes: bytes of the buffers that results share.
    """

    arrays: Mapping[Var, Array]
    bytes: int


class Pool:
    """Byte buffers, handed out whole and taken back."""

    def __init__(self) -> None:
        self.free: list[Array] = []
        self.bytes = 0

    def take(self, size: int) -> Array:
        """The smallest free buffer that is large enough, else a new one."""
        fitting = [buffer for buffer in self.free if buffer.nbytes >= size]
        if not fitting:
            self.bytes += size
            return aligned(size, np.dtype(np.uint8))
        best = min(reversed(fitting), key=lambda buffer: buffer.nbytes)  # the last freed: it is still in the cache
        self.free = [buffer for buffer in self.free if buffer is not best]
        return best


def allocate(block: Block, over: Mapping[Var, Var]) -> Buffers:
    """Plans the arrays of a Block, given its order: a buffer is handed on after the last use of what lies in it.

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
    pool, held = Pool(), dict[Var, Array]()
    places = {var: arrays[old] for var, old in over.items()}
    for position, equation in enumerate(block.equations):
        var = equation.output
        if views[var].root is not var:
            arrays[var] = exact(equation.op, [arrays[equation.operands[0]]], equation.params)
        elif var in places:
            arrays[var] = places[var]
        else:
            dtype = dtype_of(var.type.format)
            size = var.type.size * dtype.itemsize
            held[var] = pool.take(size)
            arrays[var] = held[var][:size].view(dtype).reshape(var.type.shape)
        for dead in [root for root in held if last.get(root, -1) <= position]:
            pool.free.append(held.pop(dead))
    return Buffers(arrays, pool.bytes)
