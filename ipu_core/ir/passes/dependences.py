"""What an order of a Block's equations has to keep, and what decides how much memory lives in it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from ipu_core.ir.block import Block, Equation, Type, Var, dtype_of
from ipu_core.ir.bodies import equations_of, outputs_of, refilled, regions_of, runs_of
from ipu_core.ir.lifetimes import in_place, lifetimes
from ipu_core.ir.passes.streaming import returns, spans
from ipu_core.ir.regions import Loop
from lowprec.integers import ceil_div


@dataclass
class Dependences:
    """The equations of a Block that compute, numbered as they stand, and all memory that lives for a time: values.

    Attributes:
        positions: of the equations in `equations_of` the Block.
        reads: by equation, the values that it reads, each once.
        makes: by equation, the value that it makes, in a tuple; none where it writes over what lives all the time.
        before, after: by equation, those that have to come before it and those it has to come before.
        parts: those of each run of the Block, which stay together.
        types: of the values.
        bytes: by value, how many. It lives from when it is first made or read until it is last read.
        readers: by value, the equations that read it.
        there: values that live from the start.
        kept: values that live to the end.
    """

    positions: list[int] = field(default_factory=list)
    reads: list[tuple[int, ...]] = field(default_factory=list)
    makes: list[tuple[int, ...]] = field(default_factory=list)
    before: list[set[int]] = field(default_factory=list)
    after: list[list[int]] = field(default_factory=list)
    parts: list[range] = field(default_factory=list)
    types: list[Type] = field(default_factory=list)
    bytes: list[int] = field(default_factory=list)
    readers: list[list[int]] = field(default_factory=list)
    there: set[int] = field(default_factory=set)
    kept: set[int] = field(default_factory=set)

    def value(self, kind: Type, grain: int) -> int:
        """Adds a value of a type; gives its number."""
        size = kind.size * dtype_of(kind.format).itemsize
        self.types.append(kind)
        self.bytes.append(ceil_div(size, grain) * grain)
        self.readers.append([])
        return len(self.bytes) - 1


def dependences(block: Block, grain: int) -> Dependences:
    """The dependences in a Block whose arrays take multiples of `grain` bytes.

    State that is written over its old value still is: what reads the old one comes before that. What is streamed is
    read by one part of a step after another, as it was, so that it is not loaded more often.
    """
    found = Dependences()
    views, over = lifetimes(block).views, in_place(block)
    every = equations_of(block)
    found.positions = [i for i, e in enumerate(every) if views[e.output].root is e.output]
    equations = [every[position] for position in found.positions]
    operands = [list(dict.fromkeys(views[var].root for var in equation.operands)) for equation in equations]
    maker = {equation.output: node for node, equation in enumerate(equations)}
    reading: dict[Var, list[int]] = {}
    for node, roots in enumerate(operands):
        for root in roots:
            reading.setdefault(root, []).append(node)
    found.before = [{maker[root] for root in roots if root in maker} for roots in operands]
    for new, old in over.items():
        found.before[maker[new]].update(node for node in reading.get(old, ()) if node != maker[new])
    for node, equation in enumerate(equations):
        if equation.waits is not None:
            found.before[node].add(maker[views[equation.waits].root])
    streamed = [block.inputs[i] for i in sorted(block.streamed)]
    loads = {old: spans(equations, reading.get(old, ())) for old in streamed}
    offloaded = {var: returns(equations, reading.get(var, ())) for var in block.offloaded}
    for parts in (*loads.values(), *([here, *later] for here, later in offloaded.values())):
        for first, second in pairwise(parts):
            for node in second:
                found.before[node].update(first)
    found.after = [[] for _ in equations]
    for node, earlier in enumerate(found.before):
        for one in earlier:
            found.after[one].append(node)
    _add_values(found, block, grain, loads, offloaded, reading, maker, over)
    found.parts = [
        range(*(bisect_left(found.positions, end) for end in (run.first, run.last))) for run in runs_of(block)
    ]
    return found


def _add_values(
    found: Dependences,
    block: Block,
    grain: int,
    loads: Mapping[Var, list[list[int]]],
    offloaded: Mapping[Var, tuple[list[int], list[list[int]]]],
    reading: Mapping[Var, list[int]],
    maker: Mapping[Var, int],
    over: Mapping[Var, Var],
) -> None:
    """Numbers the values, and says which equations make and read them."""
    views = lifetimes(block).views
    lies = dict[Var, int]()
    reads: list[list[int]] = [[] for _ in found.positions]

    def read(value: int, nodes: Iterable[int]) -> None:
        for node in nodes:
            if value not in reads[node]:
                reads[node].append(value)
                found.readers[value].append(node)

    for old, parts in loads.items():
        for nodes in parts:
            lies[old] = found.value(old.type, grain)  # the last of them is where the new one may be written
            read(lies[old], nodes)
    finished = set[Var]()  # totals that nothing reads after their loop
    for loop, step in regions_of(block, Loop):
        later = {views[var].root for equation in equations_of(block)[step.last :] for var in equation.operands}
        finished |= {new for _, new in loop.carries} - later
        for old, new in loop.carries:
            if over.get(new) is old:
                lies[old] = found.value(old.type, grain)
                found.there.add(lies[old])
                found.kept |= {lies[old]} if new in finished else set()
                read(lies[old], reading.get(old, ()))
    for root in maker:
        if root in over:
            place = lies.get(over[root])
            found.makes.append(() if place is None else (place,))
        else:
            place = found.value(root.type, grain)
            found.makes.append((place,))
        if place is not None:
            at_once, again = offloaded.get(root, (list(reading.get(root, ())), []))
            lies[root] = place
            read(place, at_once)
            for nodes in again:
                read(found.value(root.type, grain), nodes)
    found.reads = [tuple(values) for values in reads]
    outputs = outputs_of(block)
    far = {views[outputs[i]].root for i in block.streamed}
    ends = {views[var].root for var in outputs} - far | finished
    found.kept |= {lies[root] for root in ends if root in lies and root in maker}


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
