"""Arrays of a Block that `execute` runs: views cost nothing, results share buffers when their lifetimes do not meet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ipu_core.ir.block import Array, Block, Equation, Format, Var
from ipu_core.ir.exact import exact
from ipu_core.ir.ops import VIEWS
from ipu_core.ir.schedule import last_uses


@dataclass(frozen=True)
class Layout:
    """Arrays for the values of a Block.

    Attributes:
        arrays: an array for every value, the same in every run.
        roots: for every value the one in whose memory it lies: itself, unless it is a view.
        bytes: bytes of the buffers that results share.
    """

    arrays: Mapping[Var, Array]
    roots: Mapping[Var, Var]
    bytes: int


def dtype_of(fmt: Format) -> np.dtype[Any]:
    """The dtype an element format is stored in.

    Raises:
        ValueError: a format without one.
    """
    if isinstance(fmt, str):
        return np.dtype(np.int32)
    if fmt.dtype is None:
        raise ValueError(f"{fmt.name} has no storage dtype, so no value of a program can have it")
    return fmt.dtype


def look(equation: Equation, operand: Array) -> Array:
    """The result of a move as NumPy makes it: a view, or a copy where strides cannot express it."""
    result: Array = exact(equation.op, [operand], equation.params)
    return result


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
            return np.empty(size, np.uint8)
        best = min(fitting, key=lambda buffer: buffer.nbytes)
        self.free = [buffer for buffer in self.free if buffer is not best]
        return best


def stand_ins(block: Block) -> tuple[dict[Var, Array], dict[Var, Var]]:
    """Arrays of the right strides, not shared and not filled, and in whose memory each value lies."""
    arrays = {var: np.empty(var.type.shape, dtype_of(var.type.format)) for var in block.inputs}
    arrays |= {var: np.array(x, dtype_of(var.type.format), order="C") for var, x in block.constants.items()}
    roots = {var: var for var in arrays}
    for equation in block.equations:
        var = equation.output
        if equation.op in VIEWS:
            source = equation.operands[0]
            arrays[var] = look(equation, arrays[source])
            if np.may_share_memory(arrays[var], arrays[source]) or var.type.size == 0:
                roots[var] = roots[source]
                continue
        arrays[var] = np.empty(var.type.shape, dtype_of(var.type.format))
        roots[var] = var
    return arrays, roots


def allocate(block: Block) -> Layout:
    """Plans the arrays of a Block, given its order: a buffer is handed on after the last use of what lies in it."""
    arrays, roots = stand_ins(block)
    last: dict[Var, int] = {}
    for var, position in last_uses(block).items():
        last[roots[var]] = max(position, last.get(roots[var], -1))
    pool, held = Pool(), dict[Var, Array]()
    for position, equation in enumerate(block.equations):
        var = equation.output
        if roots[var] is not var:
            arrays[var] = look(equation, arrays[equation.operands[0]])
        else:
            held[var] = pool.take(arrays[var].nbytes)
            arrays[var] = held[var][: arrays[var].nbytes].view(arrays[var].dtype).reshape(var.type.shape)
        for dead in [root for root in held if last.get(root, -1) <= position]:
            pool.free.append(held.pop(dead))
    return Layout(arrays, roots, pool.bytes)
