"""Views: in whose memory every value of a Block lies, and how."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import as_strided

from ipu_core.ir.block import Array, Block, Equation, Var, per_block
from ipu_core.ir.bodies import equations_of, inputs_of, own_of
from ipu_core.ir.exact import exact
from ipu_core.ir.ops import VIEWS
from lowprec.values.axes import restrided


class StridedView(NamedTuple):
    """How a value lies in memory: element (i, j, ..) is element offset + i*strides[0] + j*strides[1] + .. of its root.

    Attributes:
        root: the value whose memory it is; its own elements lie there in C order.
        offset, strides: in elements.
        whole: whether it is the root seen just as that lies.
    """

    root: Var
    offset: int
    strides: tuple[int, ...]
    whole: bool


@per_block
def views_of(block: Block) -> Mapping[Var, StridedView]:
    """The view that every value of a Block is; those that no equation computes are made of their operand's."""
    views: dict[Var, StridedView] = {}
    ghosts: dict[Var, Array] = {}  # over one byte that is never read: NumPy then does the view arithmetic
    for var in (*inputs_of(block), *block.constants, *own_of(block)):
        ghosts[var], views[var] = _own(var)
    for equation in equations_of(block):
        var = equation.output
        seen = _seen(equation, ghosts[equation.operands[0]]) if equation.op in VIEWS else None
        if seen is None:
            ghosts[var], views[var] = _own(var)
        else:
            ghosts[var], views[var] = seen, _view(views[equation.operands[0]].root, ghosts, seen)
    return views


def _own(var: Var) -> tuple[Array, StridedView]:
    ghost = _ghost(var.type.shape)
    return ghost, StridedView(var, 0, ghost.strides, True)


@lru_cache(maxsize=1024)
def _ghost(shape: tuple[int, ...]) -> Array:
    """Of an array in C order, with an element in each byte."""
    strides = [1]
    for length in shape[:0:-1]:
        strides.append(strides[-1] * max(1, length))
    return as_strided(np.empty(1, np.int8), shape, strides[::-1] if shape else ())


def _seen(equation: Equation, ghost: Array) -> Array | None:
    """The result as a view of its operand; None where strides cannot express it."""
    if equation.op != "reshape":
        result: Array = exact(equation.op, [ghost], equation.params)
        return result
    shape = tuple(equation.params["shape"])
    strides = restrided(ghost.shape, ghost.strides, shape)
    return None if strides is None else as_strided(ghost, shape, strides)


def _view(root: Var, ghosts: Mapping[Var, Array], seen: Array) -> StridedView:
    own = ghosts[root]
    offset = seen.__array_interface__["data"][0] - own.__array_interface__["data"][0]
    return StridedView(root, offset, seen.strides, (offset, seen.shape, seen.strides) == (0, own.shape, own.strides))
