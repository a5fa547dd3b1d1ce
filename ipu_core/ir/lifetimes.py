"""Lifetimes of a Block's values: in whose memory each of them lies, and until where that memory is read."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import as_strided

from ipu_core.ir.block import Array, Block, Equation, Var, per_block
from ipu_core.ir.exact import exact
from ipu_core.ir.ops import ELEMENTWISE, VIEWS
from lowprec.spec.axes import restrided


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


class Lifetimes(NamedTuple):
    """Where the values of a Block lie, and how long.

    Attributes:
        views: of every value.
        last: of every root that is read: the position of the last equation that reads it, by whatever view; the number
            of equations where an output lies in it. What rounds read that they do not make, and the totals they make,
            are read until their last equation; the totals before a round where they are read.
    """

    views: Mapping[Var, StridedView]
    last: Mapping[Var, int]


@per_block
def lifetimes(block: Block) -> Lifetimes:
    """The lifetimes in a Block, in the order of its equations; made once for all who ask."""
    views: dict[Var, StridedView] = {}
    ghosts: dict[Var, Array] = {}  # over one byte that is never read: NumPy then does the view arithmetic
    for var in (*block.inputs, *block.constants, *(old for old, _ in block.totals)):
        ghosts[var], views[var] = _own(var)
    for equation in block.equations:
        var = equation.output
        seen = _seen(equation, ghosts[equation.operands[0]]) if equation.op in VIEWS else None
        if seen is None:
            ghosts[var], views[var] = _own(var)
        else:
            ghosts[var], views[var] = seen, _view(views[equation.operands[0]].root, ghosts, seen)
    last: dict[Var, int] = {}
    made: set[Var] = {*(old for old, _ in block.totals), *(block.rounds.fed if block.rounds else ())}
    for position, equation in enumerate(block.equations):
        made.add(equation.output)
        for var in equation.operands:
            root = views[var].root
            again = position < block.looped and root not in made
            last[root] = block.looped - 1 if again else position
    for _, new in block.totals:
        last[new] = max(last.get(new, -1), block.looped - 1)
    return Lifetimes(views, last | dict.fromkeys((views[var].root for var in block.outputs), len(block.equations)))


@per_block
def in_place(block: Block) -> dict[Var, Var]:
    """Values that may be written over the carried input, or the total of the round before, that they replace.

    That is safe where nothing reads the old state after the equation that makes the new one, and where that equation
    itself reads it element by element in place, or not at all.
    """
    views, last = lifetimes(block)
    made = {equation.output: (position, equation) for position, equation in enumerate(block.equations)}
    found: dict[Var, Var] = {}
    beside = {block.inputs[i] for i in block.streamed} if block.guard and block.guard.beside else set()
    for old, new in [*zip(block.inputs[: block.carried], block.outputs, strict=False), *block.totals]:
        if new not in made or views[new].root is not new or new in found or old.type != new.type:
            continue
        position, equation = made[new]
        if block.guard and position < block.unguarded and old in block.inputs and old not in beside:
            continue  # the old value is needed where the flag is 0
        here = [views[var] for var in equation.operands if views[var].root is old]
        still = not here or (equation.op in ELEMENTWISE and all(view.whole for view in here))
        if still and last.get(old, -1) <= position:
            found[new] = old
    return found


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
