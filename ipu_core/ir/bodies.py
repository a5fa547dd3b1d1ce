"""The one walk over a Block and the bodies in it, for passes that look and for passes that rewrite."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar

from ipu_core.ir.block import Block, Equation, Params, Region, Var, per_block
from ipu_core.ir.regions import Branch, Loop

Kind = TypeVar("Kind", bound=Region)
Straight = Callable[[Sequence[Equation]], Sequence[Equation]]
"""What becomes of equations that stand together in one body, without a region between them; also of none."""

Close = Callable[[Equation, list[Equation]], Equation]
"""From a region's equation, and the new equations of its body, to the new region."""


class Run(NamedTuple):
    """Equations that stand together in one body, without a region between them: a range of `equations_of`; also none.

    Attributes:
        inside: the equations of the regions around them, the outermost first.
    """

    first: int
    last: int
    inside: tuple[Equation, ...]


class Step(NamedTuple):
    """A region in the order of a Block, with the positions in `equations_of` of all in its body."""

    equation: Equation
    first: int
    last: int
    steps: tuple[Run | Step, ...]


@per_block
def equations_of(block: Block) -> tuple[Equation, ...]:
    """Every equation that computes, those of a body in the place of its region: what passes mean by a position."""
    return tuple(flat(block.equations)) if _has_regions(block) else block.equations


def flat(equations: Iterable[Equation]) -> Iterator[Equation]:
    """Equations that compute, of some and of the bodies in them, in order."""
    for equation in equations:
        if equation.region is None:
            yield equation
        else:
            yield from flat(equation.region.body.equations)


def _has_regions(block: Block) -> bool:
    return any(equation.region is not None for equation in block.equations)


@per_block
def steps_of(block: Block) -> tuple[Run | Step, ...]:
    """A Block as runs of equations with regions between them, each of these as steps again."""
    return _steps(block.equations, 0, ())


def _steps(equations: Sequence[Equation], position: int, inside: tuple[Equation, ...]) -> tuple[Run | Step, ...]:
    steps, first = list[Run | Step](), position
    for equation in equations:
        if equation.region is None:
            position += 1
            continue
        body = _steps(equation.region.body.equations, position, (*inside, equation))
        steps += [Run(first, position, inside), Step(equation, position, _end(body), body)]
        first = position = _end(body)
    return (*steps, Run(first, position, inside))


def _end(steps: Sequence[Run | Step]) -> int:
    return steps[-1].last


@per_block
def runs_of(block: Block) -> tuple[Run, ...]:
    """The runs of a Block and the bodies in it, in order: no order of equations goes beyond one."""
    return tuple(step for step in _all(steps_of(block)) if isinstance(step, Run))


@per_block
def regions_of(block: Block, kind: type[Kind]) -> tuple[tuple[Kind, Step], ...]:
    """The regions of a kind in a Block and the bodies in it, the outer first."""
    found = [(step.equation.region, step) for step in _all(steps_of(block)) if isinstance(step, Step)]
    return tuple((region, step) for region, step in found if isinstance(region, kind))


def _all(steps: Iterable[Run | Step]) -> Iterator[Run | Step]:
    for step in steps:
        yield step
        if isinstance(step, Step):
            yield from _all(step.steps)


@per_block
def carries_of(block: Block) -> tuple[tuple[Var, Var], ...]:
    """What goes from round to round in all loops: (value before, value after)."""
    return tuple(pair for loop, _ in regions_of(block, Loop) for pair in loop.carries)


@per_block
def inputs_of(block: Block) -> tuple[Var, ...]:
    """What is in memory for each input: the input, or the part of it that an iteration has."""
    return _there(block, block.inputs)


@per_block
def outputs_of(block: Block) -> tuple[Var, ...]:
    """What is in memory for each output: the output, or the new value that a branch chooses or does not."""
    return _there(block, block.outputs)


def _there(block: Block, given: tuple[Var, ...]) -> tuple[Var, ...]:
    there = {var: own for region, _ in regions_of(block, Region) for var, own in region.stand_ins.items()}
    return tuple(there.get(var, var) for var in given)


def branch_of(block: Block) -> Branch | None:
    """The branch that chooses whether the carried state is the new one; None: it always is."""
    found = (branch for branch, _ in regions_of(block, Branch) if set(branch.results) & set(block.outputs))
    return next(found, None)


def fresh(equations: Iterable[Equation]) -> int:
    """The number of the next equation, after those of some and of the bodies in them."""
    return 1 + max((equation.number for equation in flat(equations)), default=-1)


def region(kind: Region, op: str, others: Sequence[Equation] = ()) -> Equation:
    """A region as an equation among others; `closed` says what it reads and gives."""
    number = min((equation.number for equation in others if equation.region is not None), default=0) - 1
    return Equation(number, op, (), (), Params({}), family="region", region=kind)


def with_body(equation: Equation, equations: Sequence[Equation]) -> Equation:
    """A region with other equations in its body; see `closed`."""
    assert equation.region is not None
    body = replace(equation.region.body, equations=tuple(equations))
    return replace(equation, region=replace(equation.region, body=body))


def rewritten(equations: Iterable[Equation], straight: Straight, close: Close = with_body) -> list[Equation]:
    """New equations for old ones, in their order, in all bodies; `closed` has to follow."""
    result, run = list[Equation](), list[Equation]()
    for equation in equations:
        if equation.region is None:
            run.append(equation)
            continue
        result += straight(run)
        run = []
        result.append(close(equation, rewritten(equation.region.body.equations, straight, close)))
    result += straight(run)
    return result


def mapped(block: Block, change: Callable[[Equation], Equation]) -> Block:
    """The Block with another equation in the place of each that computes, with the same operands and results."""
    return replace(block, equations=tuple(rewritten(block.equations, lambda run: [change(each) for each in run])))


def refilled(block: Block, runs: Iterable[Sequence[Equation]]) -> Block:
    """The Block with other equations in the place of each of its runs."""
    given = iter(runs)
    return closed(replace(block, equations=tuple(rewritten(block.equations, lambda _: next(given)))))


def closed(block: Block) -> Block:
    """The Block with what regions read and give made anew from their bodies, and from what is read after them."""
    if not _has_regions(block):
        return block
    return replace(block, equations=tuple(_closed(block.equations, set(block.outputs))))


def _closed(equations: Sequence[Equation], needed: set[Var]) -> list[Equation]:
    """Equations whose regions give what is needed; adds to that what they read."""
    result = []
    for equation in reversed(equations):
        if equation.region is not None:
            equation = _close(equation, equation.region, needed)
        needed.update(equation.operands)
        result.append(equation)
    return result[::-1]


def _close(equation: Equation, inner: Region, needed: set[Var]) -> Equation:
    results, own = inner.results, inner.own
    made = [var for each in inner.body.equations for var in each.outputs]
    further = [var for var in made if var in needed and var not in results]
    ends = dict.fromkeys((*inner.ends, *further))
    equations = _closed(inner.body.equations, set(ends))
    there = {*own, *(var for each in equations for var in each.outputs)}
    read = dict.fromkeys((*(var for each in equations for var in each.operands), *ends))
    outside = [var for var in read if var not in there]
    body = Block((*own, *outside), tuple(ends), tuple(equations))
    inputs = tuple(dict.fromkeys((*inner.operands, *outside)))
    return replace(equation, inputs=inputs, outputs=(*results, *further), region=replace(inner, body=body))
