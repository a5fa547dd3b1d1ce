"""The one walk over a Block and the bodies in it, for passes that look and for passes that rewrite."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar

from ipu_core.ir.block import Block, Equation, Params, Region, Var, per_block
from ipu_core.ir.ops import COLLECTIVES, SET_ROW
from ipu_core.ir.regions import Branch, Loop, Scan

Kind = TypeVar("Kind", bound=Region)
Straight = Callable[[Sequence[Equation]], Sequence[Equation]]
"""What becomes of equations that stand together in one body, without a region between them; also of none."""

Close = Callable[[Equation, list[Equation]], Equation]
"""From a region's equation, and the new equations of its body, to the new region."""


class EquationSpan(NamedTuple):
    """Equations that stand together in one body, without a region between them: a range of `equations_of`; also none.

    Attributes:
        inside: the equations of the regions around them, the outermost first.
    """

    first: int
    last: int
    inside: tuple[Equation, ...]


class RegionSpan(NamedTuple):
    """A region in the order of a Block, with the positions in `equations_of` of all in its body."""

    equation: Equation
    first: int
    last: int
    steps: tuple[EquationSpan | RegionSpan, ...]


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
def steps_of(block: Block) -> tuple[EquationSpan | RegionSpan, ...]:
    """A Block as runs of equations with regions between them, each of these as steps again."""
    return _steps(block.equations, 0, ())


def _steps(
    equations: Sequence[Equation], position: int, inside: tuple[Equation, ...]
) -> tuple[EquationSpan | RegionSpan, ...]:
    steps, first = list[EquationSpan | RegionSpan](), position
    for equation in equations:
        if equation.region is None:
            position += 1
            continue
        body = _steps(equation.region.body.equations, position, (*inside, equation))
        steps += [EquationSpan(first, position, inside), RegionSpan(equation, position, _end(body), body)]
        first = position = _end(body)
    return (*steps, EquationSpan(first, position, inside))


def _end(steps: Sequence[EquationSpan | RegionSpan]) -> int:
    return steps[-1].last


@per_block
def runs_of(block: Block) -> tuple[EquationSpan, ...]:
    """The runs of a Block and the bodies in it, in order: no order of equations goes beyond one."""
    return tuple(step for step in _all(steps_of(block)) if isinstance(step, EquationSpan))


@per_block
def regions_of(block: Block, kind: type[Kind]) -> tuple[tuple[Kind, RegionSpan], ...]:
    """The regions of a kind in a Block and the bodies in it, the outer first."""
    found = [(step.equation.region, step) for step in _all(steps_of(block)) if isinstance(step, RegionSpan)]
    return tuple((region, step) for region, step in found if isinstance(region, kind))


def _all(steps: Iterable[EquationSpan | RegionSpan]) -> Iterator[EquationSpan | RegionSpan]:
    for step in steps:
        yield step
        if isinstance(step, RegionSpan):
            yield from _all(step.steps)


@per_block
def carries_of(block: Block) -> tuple[tuple[Var, Var], ...]:
    """What goes from round to round in all loops: (value before, value after)."""
    return tuple(pair for loop, _ in regions_of(block, Loop) for pair in loop.carries)


@per_block
def own_of(block: Block) -> tuple[Var, ...]:
    """What loops have of their own in memory: the carries before an iteration, and the numbers of places."""
    places = (scan.place for scan, _ in regions_of(block, Scan))
    return (*(before for before, _ in carries_of(block)), *places)


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


@per_block
def replicas_of(block: Block) -> int:
    """How many replicas a program is of; 1: it runs alone."""
    return max((int(e.params["replicas"]) for e in equations_of(block) if e.op in COLLECTIVES), default=1)


def parted(equations: Iterable[Equation], own: Iterable[Var]) -> tuple[list[Equation], list[Equation]]:
    """The equations of a body that depend on what it has of its own, or draw masks, and the others."""
    varying, inside, outside = set(own), list[Equation](), list[Equation]()
    for equation in equations:
        every = [equation] if equation.region is None else [*flat(equation.region.body.equations)]
        read = {var for each in every for var in each.operands}
        read |= set(equation.region.operands) if equation.region is not None else set()
        draws = any("operation" in each.params for each in every)
        if draws or read & varying:
            inside.append(equation)
            varying.update(var for each in every for var in each.outputs)
        else:
            outside.append(equation)
    return inside, outside


def hoisted(block: Block) -> Block:
    """The Block whose scans compute at each place what depends on it alone; the rest is computed once, before them.

    What rounds stochastically then draws once. The iterations of micro-batches keep all that is theirs.
    """
    return block if not regions_of(block, Scan) else closed(replace(block, equations=tuple(_hoisted(block.equations))))


def _hoisted(equations: Iterable[Equation]) -> list[Equation]:
    result = list[Equation]()
    for equation in equations:
        if (inner := equation.region) is not None:
            body, outside = _hoisted(inner.body.equations), list[Equation]()
            if isinstance(inner, Scan):
                body, outside = parted(body, inner.own)
                kept = {new for _, new in inner.carries}  # a carry needs memory of its own in the body
                body = [e for e in outside if not kept.isdisjoint(e.outputs)] + body
                outside = [e for e in outside if kept.isdisjoint(e.outputs)]
            result += outside
            equation = with_body(equation, body)
        result.append(equation)
    return result


def left_rows(scan: Scan) -> dict[Var, Equation]:
    """By carry before a place, the equation that leaves a row in it, where nothing else reads it."""
    read = Counter(var for equation in flat(scan.body.equations) for var in equation.operands)
    made = {e.output: e for e in scan.body.equations if e.region is None and e.op == SET_ROW}
    return {
        old: made[new] for old, new in scan.carries
        if new in made and made[new].operands[1:] == (scan.place, old) and read[old] == 1 and not read[new]
    }  # fmt: skip


def branch_of(block: Block) -> Branch | None:
    """The branch that chooses whether the carried state is the new one; None: it always is."""
    found = (branch for branch, _ in regions_of(block, Branch) if set(branch.results) & set(block.outputs))
    return next(found, None)


def fresh(equations: Iterable[Equation]) -> int:
    """The number of the next equation, after those of some and of the bodies in them."""
    return 1 + max((equation.number for equation in flat(equations)), default=-1)


def region(kind: Region, op: str, others: Sequence[Equation] = ()) -> Equation:
    """A region as an equation among others; `closed` says what it reads and gives."""
    number = min((*region_numbers(others), *region_numbers(kind.body.equations)), default=0) - 1
    return Equation(number, op, (), (), Params({}), family="region", region=kind)


def region_numbers(equations: Iterable[Equation]) -> Iterator[int]:
    """The numbers of regions among equations and in the bodies of these."""
    for equation in equations:
        if equation.region is not None:
            yield equation.number
            yield from region_numbers(equation.region.body.equations)


def own_values(equations: Iterable[Equation]) -> set[Var]:
    """What equations of one body make, and what regions among them give: also one that `closed` has yet to follow."""
    made = set[Var]()
    for equation in equations:
        made.update(equation.outputs if equation.region is None else equation.region.results)
    return made


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


def rewritten_regions(equations: Iterable[Equation], change: Callable[[Equation], Equation]) -> list[Equation]:
    """New equations for old ones, with another region in the place of each, the outer ones first; see `closed`."""
    result = list[Equation]()
    for equation in equations:
        if equation.region is not None:
            equation = change(equation)
            assert equation.region is not None
            equation = with_body(equation, rewritten_regions(equation.region.body.equations, change))
        result.append(equation)
    return result


def per_body(
    equations: Iterable[Equation], change: Callable[[Sequence[Equation]], Sequence[Equation]]
) -> list[Equation]:
    """New equations for those of each body, in which regions have new ones already; `closed` has to follow."""
    inner = [
        equation if equation.region is None else with_body(equation, per_body(equation.region.body.equations, change))
        for equation in equations
    ]
    return [*change(inner)]


def mapped_inside(equation: Equation, change: Callable[[Equation], Equation]) -> Equation:
    """A region with another equation in the place of each that computes, in the bodies in it too."""
    assert equation.region is not None
    return with_body(equation, rewritten(equation.region.body.equations, lambda run: [change(each) for each in run]))


def reads_of(equation: Equation) -> list[Var]:
    """What an equation reads of the body that it stands in, of a region all that its own reads of outside."""
    if equation.region is None:
        return [*equation.operands]
    every = [*flat(equation.region.body.equations)]
    made = {var for each in every for var in each.outputs}
    made |= {var for region in inner_regions(equation) for var in region.own}
    inside = [var for each in every for var in each.operands if var not in made]
    starts = [var for region in inner_regions(equation) for var in region.operands if var not in made]
    return [*dict.fromkeys((*starts, *inside))]


def inner_regions(equation: Equation) -> Iterator[Region]:
    """A region's, and those in its body."""
    if equation.region is not None:
        yield equation.region
        for each in equation.region.body.equations:
            yield from inner_regions(each)


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
