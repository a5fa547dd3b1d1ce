"""Lifetimes of a Block's values: in whose memory each of them lies, and until where that memory is read."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import as_strided

from ipu_core.ir.block import Array, Block, Equation, Var, per_block
from ipu_core.ir.bodies import carries_of, equations_of, inputs_of, outputs_of, regions_of, runs_of
from ipu_core.ir.exact import exact
from ipu_core.ir.ops import ELEMENTWISE, VIEWS
from ipu_core.ir.regions import Branch, Loop
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


class Lifetimes(NamedTuple):
    """Where the values of a Block lie, and how long.

    Attributes:
        views: of every value.
        last: of every root that is read: the position of the last equation that reads it, by whatever view; the number
            of equations where an output lies in it, or a flag that says in the end which state counts. What a loop
            reads that it does not make, and the totals it makes, are read until its last equation; the totals before a
            round where they are read.
    """

    views: Mapping[Var, StridedView]
    last: Mapping[Var, int]


@per_block
def lifetimes(block: Block) -> Lifetimes:
    """The lifetimes in a Block, in the order of its equations; made once for all who ask."""
    views: dict[Var, StridedView] = {}
    ghosts: dict[Var, Array] = {}  # over one byte that is never read: NumPy then does the view arithmetic
    for var in (*inputs_of(block), *block.constants, *(old for old, _ in carries_of(block))):
        ghosts[var], views[var] = _own(var)
    equations = equations_of(block)
    for equation in equations:
        var = equation.output
        seen = _seen(equation, ghosts[equation.operands[0]]) if equation.op in VIEWS else None
        if seen is None:
            ghosts[var], views[var] = _own(var)
        else:
            ghosts[var], views[var] = seen, _view(views[equation.operands[0]].root, ghosts, seen)
    last: dict[Var, int] = {}
    made = {equation.output: position for position, equation in enumerate(equations)}
    made |= {var: step.first for loop, step in regions_of(block, Loop) for var in loop.own}
    for run in runs_of(block):
        around = [step for _, step in regions_of(block, Loop) if step.equation in run.inside]
        for position in range(run.first, run.last):
            for var in equations[position].operands:
                root = views[var].root
                again = (step.last - 1 for step in around if made.get(root, -1) < step.first)
                last[root] = next(again, position)
    for loop, step in regions_of(block, Loop):
        for _, new in loop.carries:
            last[new] = max(last.get(new, -1), step.last - 1)
    ends = [views[var].root for var in outputs_of(block)]
    ends += [views[branch.flag].root for branch, _ in regions_of(block, Branch) if branch.beside]  # read again at last
    return Lifetimes(views, last | dict.fromkeys(ends, len(equations)))


def until_chosen(block: Block) -> dict[Var, int]:
    """By carried input, the position of the first equation of the branch that may leave it as it is.

    What is streamed and stored beside the new value is not needed until then.
    """
    beside = {block.inputs[i] for i in block.streamed}
    return {old: step.first for branch, step in regions_of(block, Branch) for _, _, old in branch.chosen
            if not (branch.beside and old in beside)}  # fmt: skip


@per_block
def in_place(block: Block) -> dict[Var, Var]:
    """Values that may be written over the carried input, or the total of the iteration before, that they replace.

    That is safe where nothing reads the old state after the equation that makes the new one, and where that equation
    itself reads it element by element in place, or not at all.
    """
    views, last = lifetimes(block)
    made = {equation.output: (position, equation) for position, equation in enumerate(equations_of(block))}
    found: dict[Var, Var] = {}
    needed = until_chosen(block)
    for old, new in [*zip(block.inputs[: block.carried], outputs_of(block), strict=False), *carries_of(block)]:
        if new not in made or views[new].root is not new or new in found or old.type != new.type:
            continue
        position, equation = made[new]
        if position < needed.get(old, 0):
            continue
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
