"""Lifetimes of a Block's values: what makes and reads each of them, and until where its memory is read."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ipu_core.ir.block import Block, Var, per_block
from ipu_core.ir.bodies import RegionSpan, carries_of, equations_of, outputs_of, regions_of, runs_of
from ipu_core.ir.liveness.views import StridedView, views_of
from ipu_core.ir.ops import ELEMENTWISE, SET_ROW
from ipu_core.ir.regions import Branch, Loop, Scan

START = -1
"""Before the first equation."""


class Lifetimes(NamedTuple):
    """Where the values of a Block lie, and how long, by positions of equations.

    Attributes:
        views: of every value.
        made: of every value that an equation makes, computed or seen: the equation.
        computing: the equations that compute: what they make has memory of its own.
        readers: of every root, those of them that read it, by whatever view, each once.
        last: of every root that is read: the last equation that reads it, by whatever view; the number of equations
            where an output lies in it, or a flag that says in the end which state counts. What a loop reads that it
            does not make, and the totals it makes, are read until its last equation; the totals before an iteration
            where they are read.
    """

    views: Mapping[Var, StridedView]
    made: Mapping[Var, int]
    computing: Sequence[int]
    readers: Mapping[Var, Sequence[int]]
    last: Mapping[Var, int]

    def roots(self, *some: Var) -> set[Var]:
        """The values in whose memory some lie."""
        return {self.views[var].root for var in some}

    def between(self, first: int, end: int) -> Sequence[int]:
        """The equations that compute, from one position to before another."""
        return self.computing[bisect_left(self.computing, first) : bisect_left(self.computing, end)]

    def span(self, var: Var) -> tuple[int, int]:
        """The equation that makes a value, and the last one that needs its memory."""
        return self.made[var], max(self.made[var], self.last.get(var, 0))


@per_block
def lifetimes(block: Block) -> Lifetimes:
    """The lifetimes in a Block, in the order of its equations; made once for all who ask."""
    views, equations = views_of(block), equations_of(block)
    made = {equation.output: position for position, equation in enumerate(equations)}
    computing = [position for var, position in made.items() if views[var].root is var]
    readers: dict[Var, list[int]] = {var: [] for var, view in views.items() if view.root is var}
    for position in computing:
        for root in dict.fromkeys(views[var].root for var in equations[position].operands):
            readers[root].append(position)
    return Lifetimes(views, made, computing, readers, _last(block, views, made))


def _last(block: Block, views: Mapping[Var, StridedView], made: Mapping[Var, int]) -> dict[Var, int]:
    """See `Lifetimes`."""
    last, equations = dict[Var, int](), equations_of(block)
    loops = [(loop, step, (step.first, depth)) for depth, (loop, step) in enumerate(regions_of(block, Loop))]
    # What a loop has of its own is there before its first equation, which may be that of an inner loop too.
    begin = {var: (position, len(loops)) for var, position in made.items()}
    begin |= {var: place for loop, _, place in loops for var in loop.own}

    def read(var: Var, position: int, around: Sequence[tuple[RegionSpan, tuple[int, int]]]) -> None:
        root = views[var].root
        again = (step.last - 1 for step, place in around if begin.get(root, (START, 0)) < place)
        last[root] = max(last.get(root, START), next(again, position))

    for run in runs_of(block):
        around = [(step, place) for _, step, place in loops if step.equation in run.inside]
        for position in range(run.first, run.last):
            for var in equations[position].operands:
                read(var, position, around)
    for number, (loop, step, _) in enumerate(loops):
        around = [(one, place) for _, one, place in loops[:number] if one.first <= step.first and step.last <= one.last]
        for start in loop.operands if isinstance(loop, Scan) else ():
            read(start, step.first, around)
        for _, new in loop.carries:
            read(new, step.last - 1, around)
    ends = [*outputs_of(block), *(branch.flag for branch, _ in regions_of(block, Branch) if branch.beside)]
    return last | dict.fromkeys((views[var].root for var in ends), len(equations))  # a flag is read again at last


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
    known, equations = lifetimes(block), equations_of(block)
    views, last = known.views, known.last
    found: dict[Var, Var] = {}
    needed = until_chosen(block)
    for old, new in [*zip(block.inputs[: block.carried], outputs_of(block), strict=False), *carries_of(block)]:
        if new not in known.made or views[new].root is not new or new in found or old.type != new.type:
            continue
        equation = equations[position := known.made[new]]
        if position < needed.get(old, 0):
            continue
        here = [views[var] for var in equation.operands if views[var].root is old]
        still = not here or (equation.op in ELEMENTWISE and all(view.whole for view in here))
        if equation.op == SET_ROW:  # a row is set where the table lies, if it is no part of that
            still = still or (len(here) == 1 and here[0].whole and views[equation.operands[2]] is here[0])
        if still and last.get(old, -1) <= position:
            found[new] = old
    return found
