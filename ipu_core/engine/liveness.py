"""Liveness: which variables hold something that is still needed, at every point of a program."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from ipu_core.engine.account import StepAccount
from ipu_core.engine.tree import Branch, Leaf, Loop, Series, Tree, While
from ipu_core.graph.tensor import Variable


class ProgramPoint(NamedTuple):
    """A step at one point of the program with the variables that live there, as a bit mask of their numbers."""

    step: int
    live: int


def live_points(tree: Tree, steps: Sequence[StepAccount], at_end: int) -> tuple[list[ProgramPoint], int]:
    """Which variables hold something that is still needed, at every point of a program.

    A variable lives where an earlier step of this run may have written it and a later one needs it (a variable written
    piece by piece lives from its first piece on). Masks have bit `variable.number` set.

    Args:
        tree: the program.
        steps: accounts by step number.
        at_end: variables that must live on after the program.

    Returns:
        The points in program order, and the variables that are read before this program wrote them.
    """
    writes = [_mask(step.writes) for step in steps]
    forgets = [~_mask(step.defines - step.writes) for step in steps]
    uses = [_mask(step.reads) for step in steps]
    defines = [_mask(step.defines) for step in steps]
    needed: list[ProgramPoint] = []

    def needed_before(step: int, after: int, record: bool) -> int:
        before = (after & ~defines[step]) | uses[step]
        if record:
            needed.append(ProgramPoint(step, before | after))
        return before

    _backward(tree, at_end, True, needed_before)
    first: list[ProgramPoint] = []
    later: list[ProgramPoint] = []

    def written_after(step: int, written: int) -> int:
        return (written | writes[step]) & forgets[step]

    _forward(tree, 0, False, written_after, first)
    _forward(tree, 0, True, written_after, later)
    early = 0
    for point in first:
        early |= uses[point.step] & ~point.live
    points = [
        ProgramPoint(need.step, (need.live & held.live) | writes[need.step] | uses[need.step])
        for need, held in zip(reversed(needed), later, strict=True)
    ]
    return points, early


def _forward(
    tree: Tree, written: int, carry: bool, after: Callable[[int, int], int], points: list[ProgramPoint]
) -> int:
    """Records what may have been written before each step; with `carry`, also by earlier iterations of a loop."""
    match tree:
        case Leaf(step):
            points.append(ProgramPoint(step, written))
            return after(step, written)
        case Series(parts):
            for part in parts:
                written = _forward(part, written, carry, after, points)
            return written
        case Loop(_, body):
            if carry:
                written = _forward(body, written, carry, after, [])
            return _forward(body, written, carry, after, points)
        case While():
            if carry:
                written = _forward(tree.body, _forward(tree.condition, written, carry, after, []), carry, after, [])
            return _forward(tree.body, _forward(tree.condition, written, carry, after, points), carry, after, points)
        case Branch():
            result = written
            for option in reversed(tree.options):  # the order in which the backward pass lists them
                result |= _forward(option, written, carry, after, points)
            return result


def _backward(tree: Tree, out: int, record: bool, leaf: Callable[[int, int, bool], int]) -> int:
    match tree:
        case Leaf(step):
            return leaf(step, out, record)
        case Series(parts):
            for part in reversed(parts):
                out = _backward(part, out, record, leaf)
            return out
        case Loop(count, body):
            if count > 1:  # what the next iteration needs lives on from this one
                out |= _backward(body, out, False, leaf)
            return _backward(body, out, record, leaf)
        case While():
            bit = 1 << tree.predicate.number
            out |= _backward(tree.body, _backward(tree.condition, out | bit, False, leaf), False, leaf)
            start = _backward(tree.body, _backward(tree.condition, out | bit, False, leaf), record, leaf)
            return _backward(tree.condition, out | start | bit, record, leaf)
        case Branch():
            masks = [_backward(option, out, record, leaf) for option in tree.options]
            result = 1 << tree.predicate.number
            for mask in masks:
                result |= mask
            return result


def _mask(variables: frozenset[Variable]) -> int:
    mask = 0
    for variable in variables:
        mask |= 1 << variable.number
    return mask
