"""Constants of a Block on tiles: equal ones lie there once, and what is repeated along an axis unrepeated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from ipu_core.ir.block import Array, Block, Type, Var, per_block
from ipu_core.ir.bodies import equations_of
from ipu_core.ir.liveness.lifetimes import lifetimes
from ipu_core.ir.ops import ELEMENTWISE


class Held(NamedTuple):
    """How a constant lies on the tiles.

    Attributes:
        first: the constant in whose memory it lies: itself, or one that was before it and holds the same.
        array: what lies there, which broadcasts to the constant's shape.
    """

    first: Var
    array: Array

    @property
    def type(self) -> Type:
        """Of what lies there."""
        return Type(self.array.shape, self.first.type.format)


@per_block
def held_constants(block: Block) -> Mapping[Var, Held]:
    """Where each constant of a Block lies."""
    found, there = dict[Var, Held](), dict[tuple[object, ...], Held]()
    for var, value in block.constants.items():
        array = _unrepeated(value) if _elementwise(block, var) else value
        own = Held(var, array)
        key = var.type.format, array.dtype.str, array.shape, array.tobytes()
        found[var] = there.setdefault(key, own)
    return found


def _elementwise(block: Block, var: Var) -> bool:
    """Whether only operations element by element read it, which take what broadcasts; products plan for all of it."""
    equations = equations_of(block)
    readers = [equations[position] for position in lifetimes(block).readers[var]]
    return all(each.op in ELEMENTWISE and var in each.operands for each in readers)


def _unrepeated(array: Array) -> Array:
    """One element along every axis that a mask, say, is repeated along: NumPy broadcasts by a stride of 0."""
    sizes = zip(array.shape, array.strides, strict=True)
    cut = tuple(slice(0, 1) if n > 1 and stride == 0 else slice(None) for n, stride in sizes)
    return np.asarray(array[cut])
