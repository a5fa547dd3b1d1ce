"""What an order of a Block's equations has to keep, and what decides how much memory lives in it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ipu_core.ir.block import Block, Equation, Var
from ipu_core.ir.bodies import equations_of, outputs_of, refilled, regions_of, runs_of
from ipu_core.ir.liveness.lifetimes import START, in_place, lifetimes
from ipu_core.ir.liveness.stays import Stay, stays
from ipu_core.ir.regions import Loop
from lowprec.integers import ceil_div


class Dependences(NamedTuple):
    """The equations of a Block that compute, numbered as they stand, and all memory that lives for a time: values.

    Attributes:
        positions: of the equations in `equations_of` the Block.
        reads: by equation, the values that it reads, each once.
        makes: by equation, the value that it makes, in a tuple; none where it writes over what lives all the time.
        touches: by equation, the values that it reads or makes.
        before, after: by equation, those that have to come before it and those it has to come before.
        parts: those of each run of the Block, which stay together.
        values: as the Block stands.
        bytes: by value, how many. It lives from the first to the last equation that touches it.
        touched: by value, the equations that read or make it.
        kept: values that live to the end.
    """

    positions: Sequence[int]
    reads: Sequence[Sequence[int]]
    makes: Sequence[tuple[int, ...]]
    touches: Sequence[tuple[int, ...]]
    before: Sequence[set[int]]
    after: Sequence[Sequence[int]]
    parts: Sequence[range]
    values: Sequence[Stay]
    bytes: Sequence[int]
    touched: Sequence[set[int]]
    kept: set[int]

    def span(self, value: int, places: Iterable[int], count: int) -> tuple[int, int]:
        """The first and the last place, of so many, at which a value lives, given those at which it is touched."""
        touched = list(places)
        first = 0 if self.values[value].first == START else min(touched)
        return first, count - 1 if value in self.kept else max(touched)


def dependences(block: Block, grain: int) -> Dependences:
    """The dependences in a Block whose arrays take multiples of `grain` bytes: values are what stays for a time.

    State that is written over its old value still is: what reads the old one comes before that. What is streamed is
    read by one part of a step after another, as it was, so that it is not loaded more often.
    """
    known, every = lifetimes(block), equations_of(block)
    number = {position: node for node, position in enumerate(known.computing)}
    lives = [stay for stay in stays(block) if stay.loaded or stay.maker is not None]
    reads, makes = [list[int]() for _ in number], [tuple[int, ...]()] * len(number)
    before, last, touched = _before(block, number), dict[Var, list[int]](), list[set[int]]()
    for value, stay in enumerate(lives):
        readers = [number[position] for position in stay.readers]
        for node in readers:
            reads[node].append(value)
            before[node].update(last.get(stay.var, ()))
        last[stay.var] = readers
        touched.append({*readers})
        if stay.maker is not None:
            makes[number[stay.maker]] = (value,)
            touched[-1].add(number[stay.maker])
    after = [list[int]() for _ in number]
    for node, earlier in enumerate(before):
        for one in earlier:
            after[one].append(node)
    outputs = outputs_of(block)
    # New state that is streamed is stored when it is there, and need not stay until the end.
    ends = known.roots(*outputs) - known.roots(*(outputs[i] for i in block.streamed))
    for loop, step in regions_of(block, Loop):
        ends |= {new for _, new in loop.carries if known.last[new] < step.last}  # nothing reads them after it
    return Dependences(
        positions=known.computing,
        reads=reads,
        makes=makes,
        touches=[tuple({*read, *made}) for read, made in zip(reads, makes, strict=True)],
        before=before,
        after=after,
        parts=[range(*(bisect_left(known.computing, end) for end in (run.first, run.last))) for run in runs_of(block)],
        values=lives,
        bytes=[ceil_div(stay.var.type.nbytes, grain) * grain for stay in lives],
        touched=touched,
        kept={value for value, stay in enumerate(lives) if stay.maker is not None and every[stay.maker].output in ends},
    )


def _before(block: Block, number: Mapping[int, int]) -> list[set[int]]:
    """By equation that computes, those that make what it reads, or read what it writes over."""
    known, before = lifetimes(block), [set[int]() for _ in number]
    for root, positions in known.readers.items():
        for position in positions if root in known.made else ():
            before[number[position]].add(number[known.made[root]])
    for new, old in in_place(block).items():
        maker = number[known.made[new]]
        before[maker].update(number[position] for position in known.readers[old] if number[position] != maker)
    for position, equation in enumerate(equations_of(block)):
        if equation.waits is not None and position in number:  # what is made again comes no sooner than it is needed
            before[number[position]].add(number[known.made[known.views[equation.waits].root]])
    return before


def reordered(block: Block, known: Dependences, order: Sequence[int]) -> Block:
    """The Block in an order of the equations that compute; each view comes before what first reads it.

    Views that nothing in their part computes with come as soon as what they see is there.
    """
    views, every = lifetimes(block).views, equations_of(block)
    runs: list[list[Equation]] = []
    result: list[Equation] = []
    pending: dict[Var, Equation] = {}

    def show(*seen: Var) -> None:
        for var in seen:
            if (equation := pending.pop(var, None)) is not None:
                show(*equation.operands)
                result.append(equation)

    for part, run in zip(known.parts, runs_of(block), strict=True):
        runs.append(result := [])
        equations = every[run.first : run.last]
        pending |= {e.output: e for e in equations if views[e.output].root is not e.output}
        read = {var for e in equations if e.output not in pending for var in e.operands}
        for equation in reversed(equations):
            if equation.output in pending and equation.output in read:
                read.update(equation.operands)
        idle: dict[Var, list[Var]] = {}
        for var in pending:
            if var not in read:
                idle.setdefault(views[var].root, []).append(var)
        made = {e.output for e in equations}
        show(*(var for root, seen in idle.items() if root not in made for var in seen))
        for node in order[part.start : part.stop]:
            equation = every[known.positions[node]]
            show(*equation.operands)
            result.append(equation)
            show(*idle.get(equation.output, ()))
    return refilled(block, runs)
