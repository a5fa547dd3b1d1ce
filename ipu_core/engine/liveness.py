"""Which variables of a program live at each of its points."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from ipu_core.engine.steps import StepAccount
from ipu_core.engine.tree import Choice, Leaf, Repeated, Series, Tree, While
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
    writes = [mask_of(step.writes) for step in steps]
    # What is defined and not written is a WriteUndef's: behind it there is nothing to keep, and before it nothing is
    # needed.
    forgets = [~mask_of(step.defines - step.writes) for step in steps]
    uses = [mask_of(step.reads) for step in steps]
    defines = [mask_of(step.defines) for step in steps]
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

    # Without what a round leaves to the next: the first round of a loop reads what lay there before the program.
    _forward(tree, 0, False, written_after, first)
    _forward(tree, 0, True, written_after, later)
    early = 0
    for point in first:
        early |= uses[point.step] & ~point.live
    points = [
        # A step's own variables take their room while it runs, though nobody needs what it wrote.
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
        case Repeated(_, body):
            if carry:
                written = _forward(body, written, carry, after, [])
            return _forward(body, written, carry, after, points)
        case While():
            if carry:
                written = _forward(tree.body, _forward(tree.condition, written, carry, after, []), carry, after, [])
            return _forward(tree.body, _forward(tree.condition, written, carry, after, points), carry, after, points)
        case Choice():
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
        case Repeated(count, body):
            if count > 1:  # what the next iteration needs lives on from this one
                out |= _backward(body, out, False, leaf)
            return _backward(body, out, record, leaf)
        case While():
            # How many rounds there are depends on data: whatever a next one reads has to outlive each.
            bit = 1 << tree.predicate.number
            out |= _backward(tree.body, _backward(tree.condition, out | bit, False, leaf), False, leaf)
            start = _backward(tree.body, _backward(tree.condition, out | bit, False, leaf), record, leaf)
            return _backward(tree.condition, out | start | bit, record, leaf)
        case Choice():
            result = 1 << tree.predicate.number
            for option in tree.options:
                result |= _backward(option, out, record, leaf)
            return result


def mask_of(variables: Iterable[Variable]) -> int:
    """Variables as one number, with bit `variable.number` set for each."""
    # A mask is one number of Python's: the union over thousands of variables is one operation. None comes twice, so the
    # sum is their union.
    return sum(1 << variable.number for variable in variables)
