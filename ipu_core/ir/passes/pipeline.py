"""The account's view of a step that is cut into stages: the Block of each chip of a pipeline.

The forward pass is cut where equations begin a stage, in the order in which they were traced; a gradient is on the chip
of the equation whose derivative it is, a parameter with its update on that of its first reader. What depends on no
parameter, such as a mask of the batch, or on parameters alone, such as a transpose, every chip that reads it makes
itself. A value that another chip makes or keeps arrives by links. No bit depends on any of it: the numbers are made of
the whole step, and these Blocks are only planned and accounted.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from ipu_core.ir.block import Block, Equation, Type, Var
from ipu_core.ir.bodies import (
    closed,
    flat,
    inner_regions,
    mapped,
    mapped_inside,
    reads_of,
    region_numbers,
    regions_of,
    with_body,
)
from ipu_core.ir.liveness.lifetimes import lifetimes
from ipu_core.ir.passes.guard import BACKWARD
from ipu_core.ir.pytree import flatten, paths
from ipu_core.ir.regions import Branch, Loop, Scan

PARAMS = "params"
UPDATING = ("optimizer", "update")
EVERYWHERE = -1
"""The stage of what every chip that reads it makes or keeps itself."""


@dataclass(frozen=True, eq=False)
class PipelineStage:
    """One chip's part of a step.

    Attributes:
        number: from 0.
        block: what it computes. In the carried state are the parameters that it keeps and the optimizer's state of
            them, what arrives from other chips, places of what leaves, and stashes.
        arrives: by value that arrives in each micro-batch, the stage that it comes from.
        once: the same of what arrives once in an update, such as a weight that two stages share.
        stashed: bytes of the stashes.
    """

    number: int
    block: Block
    arrives: Mapping[Var, int]
    once: Mapping[Var, int]
    stashed: int


def link_bytes(stages: Sequence[PipelineStage], *, once: bool = False) -> tuple[tuple[int, int], ...]:
    """Bytes that pass between each stage and the next one, (upwards, downwards), in a micro-batch or `once` an update.

    What stages that are no neighbours hand on passes all between them, once for all of these that read it.
    """
    passed: list[tuple[set[Var], set[Var]]] = [(set(), set()) for _ in range(len(stages) - 1)]
    for stage in stages:
        for var, source in (stage.once if once else stage.arrives).items():
            down = source > stage.number
            for boundary in range(min(source, stage.number), max(source, stage.number)):
                passed[boundary][down].add(var)
    return tuple((sum(var.type.nbytes for var in up), sum(var.type.nbytes for var in down)) for up, down in passed)


def forward_numbers(ideal: Block) -> tuple[int, ...]:
    """Numbers of the equations with which a stage of a step can begin, as traced: of those that gradients are of, each
    forward equation, and of a scan the first."""
    derived, passed = {e.of for e in flat(ideal.equations)}, passed_values(ideal)
    made = {e.number for e in flat(ideal.equations) if not passed.isdisjoint(e.outputs)}
    found = (made.intersection(run) for run in _straight(ideal.equations) if not derived.isdisjoint(run))
    return tuple(sorted(min(run) for run in found if run))


def _straight(equations: Iterable[Equation]) -> Iterator[list[int]]:
    """Numbers of forward equations by what is never cut, such as a scan."""
    for equation in equations:
        if isinstance(equation.region, Scan):
            if all(map(_is_forward, flat([equation]))):
                yield sorted(e.number for e in flat([equation]))
        elif equation.region is not None:
            yield from _straight(equation.region.body.equations)
        elif _is_forward(equation):
            yield [equation.number]


def _is_forward(equation: Equation) -> bool:
    return equation.role == "forward" and equation.of is None


def passed_values(ideal: Block) -> set[Var]:
    """Values that depend on a parameter and on the batch: what stages hand on."""
    given = {*ideal.inputs[ideal.carried :], *(part for loop, _ in regions_of(ideal, Loop) for _, part in loop.fed)}
    return _depending(ideal, _parameters(ideal)) & _depending(ideal, {var for var in given if var.type.shape})


def _parameters(ideal: Block) -> dict[Var, str]:
    names = zip(paths(ideal.arguments[0]), ideal.inputs, strict=False)
    return {var: own for name, var in names if (own := _parameter(name)) is not None}


def _parameter(name: str) -> str | None:
    """The parameter that a leaf of the state is; "" where one array is all of them; None: it is none."""
    first, _, own = name.partition(".")
    return own if first == PARAMS else None


def _depending(ideal: Block, on: Iterable[Var]) -> set[Var]:
    """Some values, and those that depend on one of them."""
    found = set(on)
    pairs = [pair for scan, _ in regions_of(ideal, Scan) for pair in zip(scan.carries, scan.starts, strict=True)]
    known = -1
    while known != (known := len(found)):  # carries bring what one place leaves to the next
        for equation in flat(ideal.equations):
            if not found.isdisjoint(equation.operands):
                found.update(equation.outputs)
        found.update(old for (old, new), start in pairs if new in found or start in found)
    return found


def _sources(ideal: Block) -> dict[Var, frozenset[str]]:
    """By parameter, and by what is made of parameters alone, their names."""
    found = {var: frozenset([name]) for var, name in _parameters(ideal).items()}
    for equation in flat(ideal.equations):
        names = [found.get(var) for var in equation.operands]
        if _is_forward(equation) and names and None not in names:
            every = frozenset[str]().union(*(each for each in names if each is not None))
            found |= dict.fromkeys(equation.outputs, every)
    return found


def pipeline_stages(
    block: Block, ideal: Block, begins: Sequence[int], stashes: Sequence[int]
) -> tuple[PipelineStage, ...]:
    """The chips of a pipeline.

    Args:
        block: a typed step.
        ideal: as it was traced.
        begins: numbers of its forward equations with which the second stage and those behind it begin, ascending.
        stashes: of how many micro-batches each stage keeps what its gradients read, beside the one in use.
    """
    cut = _Cut(block, ideal, begins)
    parts = [cut.part(stage) for stage in range(len(begins) + 1)]
    return tuple(_assembled(cut, stage, parts, kept) for stage, kept in enumerate(stashes))


class _Part(NamedTuple):
    """Equations of a stage, and the values that come from other chips."""

    equations: tuple[Equation, ...]
    arrives: Mapping[Var, int]
    own: tuple[int, ...]
    host: tuple[Var, ...]


class _Cut:
    """Which stage each equation, value and part of the state of a Block is of."""

    def __init__(self, block: Block, ideal: Block, begins: Sequence[int]) -> None:
        self.block = block
        self.names = paths(block.arguments[0])
        passed, sources = passed_values(ideal), _sources(ideal)
        self._forward: dict[int, int] = {}  # by number of a forward equation of the trace
        # By parameter; the first chip keeps what nothing reads.
        unread = {own: 0 for name in self.names if (own := _parameter(name)) is not None}
        self._homes: dict[str, int] = {}
        for equation in flat(ideal.equations):
            if _is_forward(equation):
                stage = EVERYWHERE
                if not passed.isdisjoint(equation.outputs):
                    stage = bisect_right(begins, equation.number)
                    for var in equation.operands:
                        for name in sources.get(var, ()):
                            self._homes.setdefault(name, stage)
                self._forward[equation.number] = stage
        self._homes = {**unread, **self._homes}
        self.stages: dict[int, int] = {}  # by number of an equation or region
        self.values: dict[Var, int] = {}
        self._gradients: set[Var] = set()
        made = {e.number: e.outputs[0] for e in flat(block.equations)}
        # By copy of a value that is made again, the value.
        self._first = {
            e.output: made[e.drawn] for e in flat(block.equations)
            if e.drawn is not None and e.role == "forward" and e.drawn in made
        }  # fmt: skip
        self._walk(block.equations)
        self.owners = [self._owner(position) for position in range(block.carried)]
        self.values |= dict(zip(block.inputs, self.owners, strict=False))

    def _walk(self, equations: Iterable[Equation]) -> None:
        for equation in equations:
            if equation.region is None:
                stage = self.stages[equation.number] = self._stage(equation)
                self.values |= dict.fromkeys(equation.outputs, stage)
                if equation.role in BACKWARD and stage != EVERYWHERE:
                    self._gradients.update(equation.outputs)
                continue
            self._walk(equation.region.body.equations)
            if isinstance(equation.region, Scan):
                self._whole(equation)
            elif isinstance(equation.region, Loop):
                self.values |= {old: self.values.get(new, EVERYWHERE) for old, new in equation.region.carries}
            elif isinstance(equation.region, Branch):
                self.values |= {result: self.values.get(new, EVERYWHERE) for result, new, _ in equation.region.chosen}

    def _stage(self, equation: Equation) -> int:
        """The stage of an equation that computes; the values that it reads are known."""
        for number in (equation.of, equation.keyed):
            if number is not None and self._forward.get(number, EVERYWHERE) != EVERYWHERE:
                return self._forward[number]
        # An update, or the gradient of what is made of a parameter alone.
        if equation.parameter in self._homes and (equation.role in UPDATING or equation.of in self._forward):
            return self._homes[equation.parameter]
        # What passes put in, and what is of several parameters, is where its operands are.
        found = {var: at for var in equation.operands if (at := self.values.get(var, EVERYWHERE)) != EVERYWHERE}
        if equation.role not in BACKWARD:
            return max(found.values(), default=EVERYWHERE)
        # Casts for gradients of what comes from the forward pass are made where they are read: it arrives there anyway.
        return min((at for var, at in found.items() if var in self._gradients), default=EVERYWHERE)

    def _whole(self, scan: Equation) -> None:
        """All of a scan is in one stage."""
        inner = [*flat([scan])]
        stage = min((at for e in inner if (at := self.stages[e.number]) != EVERYWHERE), default=EVERYWHERE)
        self.stages |= dict.fromkeys((*(e.number for e in inner), *region_numbers([scan])), stage)
        made = [var for e in inner for var in e.outputs]
        made += [var for region in inner_regions(scan) for var in (*region.own, *region.results)]
        self.values |= dict.fromkeys((*made, *scan.outputs), stage)

    def _owner(self, position: int) -> int:
        """The stage that keeps a part of the state: that of its first reader if it is a parameter, else that of what
        renews it."""
        old, new = self.block.inputs[position], self.block.outputs[position]
        parameter = _parameter(self.names[position])
        if parameter is not None:
            return self._homes[parameter]
        if new is not old:
            return self.values.get(new, EVERYWHERE)
        return EVERYWHERE

    def part(self, stage: int) -> _Part:
        """What a stage computes."""
        block = self.block
        own = tuple(i for i, owner in enumerate(self.owners) if owner in (stage, EVERYWHERE))
        host = tuple(var for var in block.outputs[block.carried :] if self.values.get(var, 0) == stage)
        needed = {*(block.outputs[i] for i in own), *host}
        equations = self._kept(block.equations, stage, needed)
        there = {*(block.inputs[i] for i in own), *block.inputs[block.carried :], *block.constants}
        there |= {var for e in flat(equations) for var in e.outputs}
        there |= {var for e in equations for region in inner_regions(e) for var in (*region.own, *region.results)}
        # In the order in which they are made: what is placed one after another lies the same in every run.
        arrives = {var: at for var, at in self.values.items() if var in needed and var not in there}
        return _Part(tuple(equations), arrives, own, host)

    def _kept(self, equations: Iterable[Equation], stage: int, needed: set[Var]) -> list[Equation]:
        """The equations of a stage, and of what is everywhere those that they need; adds what they read."""
        result = list[Equation]()
        for equation in reversed([*equations]):
            region = equation.region
            if isinstance(region, Branch):
                chosen = tuple(each for each in region.chosen if each[0] in needed)
                needed.update(var for _, new, old in chosen for var in (new, old))
                needed.update([region.flag] if chosen else [])
                equation = replace(equation, region=replace(region, chosen=chosen))
                body = self._kept(region.body.equations, stage, needed)
                result += [with_body(equation, body)] if body or chosen else []
            elif isinstance(region, Loop) and not isinstance(region, Scan):
                result += self._looped(equation, region, stage, needed)
            else:
                at = self.stages[equation.number]
                if at == stage or (at == EVERYWHERE and not needed.isdisjoint(equation.outputs)):
                    equation = self._from_first(equation, stage)
                    needed.update(reads_of(equation))
                    result.append(equation)
        return result[::-1]

    def _from_first(self, equation: Equation, stage: int) -> Equation:
        """An equation that reads what arrived, where others make that again: they do it later than it is needed."""
        new: dict[Var, Var] = {}
        for var in reads_of(equation):
            first = self._first.get(var)
            if first is not None and first.type == var.type and self.values.get(var) not in (stage, EVERYWHERE):
                new[var] = first
        return _reading(equation, new) if new else equation

    def _looped(self, equation: Equation, loop: Loop, stage: int, needed: set[Var]) -> list[Equation]:
        """A loop with a stage's carries and equations."""
        known, body = -1, list[Equation]()
        carries = tuple(pair for pair in loop.carries if self.values.get(pair[1]) == stage or pair[1] in needed)
        while known != (known := len(needed)):  # a carry that is everywhere is there where it is read
            carries = tuple(pair for pair in loop.carries if pair in carries or pair[0] in needed)
            needed.update(new for _, new in carries)
            body = self._kept(loop.body.equations, stage, needed)
        fed = tuple((whole, part) for whole, part in loop.fed if part in needed)
        needed.update(whole for whole, _ in fed)
        if not body:
            return []
        return [with_body(replace(equation, region=replace(loop, carries=carries, fed=fed)), body)]


def _reading(equation: Equation, new: Mapping[Var, Var]) -> Equation:
    """An equation, or a scan, that reads other values in the place of some."""

    def one(each: Equation) -> Equation:
        return replace(each, inputs=tuple(new.get(x, x) if isinstance(x, Var) else x for x in each.inputs))

    if not isinstance(scan := equation.region, Scan):
        return one(equation)
    starts = tuple(new.get(x, x) if isinstance(x, Var) else x for x in scan.starts)
    return mapped_inside(replace(equation, region=replace(scan, starts=starts)), one)


State = list[tuple[str, Var, Var]]
"""Parts of a carried state: name, value before the step, value after it."""


def _assembled(cut: _Cut, stage: int, parts: Sequence[_Part], stashes: int) -> PipelineStage:
    """A stage with a state of its own."""
    block, part = cut.block, parts[stage]
    loops = over_micro_batches(block)
    inside = {var for loop in loops for e in flat(loop.body.equations) for var in e.outputs}
    each = {var: at for var, at in part.arrives.items() if var in inside or (not loops and var not in block.inputs)}
    once = {var: at for var, at in part.arrives.items() if var not in each}
    others = (var for number, other in enumerate(parts) if number != stage for var in other.arrives)
    leaves = [var for var in dict.fromkeys(others) if cut.values[var] == stage and var not in block.inputs]
    state = [(cut.names[i], block.inputs[i], block.outputs[i]) for i in part.own]
    for number, var in enumerate((*each, *once)):
        # A gradient leaves from where the activation was that arrived, a result from where its gradient arrives.
        pair = next((one for one in leaves if one.type == var.type), var) if var in each else var
        leaves = [one for one in leaves if one is not pair]
        state.append((f"arrives.{number:03}", var, pair))
    state += [(f"leaves.{number:03}", Var(f"{var.name}.place", var.type), var) for number, var in enumerate(leaves)]
    kept = _kept_for_gradients(_block_of(block, part, state), each, stage) if stashes else []
    places = [Var(f"{var.name}.stash", Type((stashes, *var.type.shape), var.type.format)) for var in kept]
    state += [(f"stashes.{number:03}", var, var) for number, var in enumerate(places)]
    made = _block_of(block, part, state)
    return PipelineStage(stage, made, each, once, sum(var.type.nbytes for var in places))


def _block_of(block: Block, part: _Part, state: State) -> Block:
    """The Block of a stage's equations with a carried state."""
    state = sorted(state, key=lambda each: each[0])
    read = {var for e in part.equations for var in reads_of(e)}
    own = {block.inputs[i] for i in block.streamed}
    made = Block(
        (*(old for _, old, _ in state), *(var for var in block.inputs[block.carried :] if var in read)),
        (*(new for _, _, new in state), *part.host),
        part.equations,
        {var: array for var, array in block.constants.items() if var in read},
        len(state),
        (flatten({name: 0 for name, _, _ in state})[1],),
        streamed=frozenset(i for i, (_, old, _) in enumerate(state) if old in own),
    )
    there = {var for e in flat(made.equations) for var in e.outputs}
    # What a copy waits for is made here, or has arrived.
    made = closed(mapped(made, lambda e: e if e.waits is None or e.waits in there else replace(e, waits=None)))
    return replace(made, offloaded=frozenset(block.offloaded & there))


def _kept_for_gradients(block: Block, arrives: Mapping[Var, int], stage: int) -> list[Var]:
    """What is made in a stage's forward pass, or arrives for it, and is read by its gradients: the memory of each."""
    views = lifetimes(block).views
    loops = over_micro_batches(block)
    equations = [*flat(loops[0].body.equations)] if loops else [*flat(block.equations)]
    first = {*(var for e in equations if is_first(e) for var in e.outputs)}
    first |= {var for var, source in arrives.items() if source < stage}
    first |= {each for loop in loops for _, each in loop.fed}
    read = (views[var].root for e in equations if not is_first(e) for var in e.operands if var in views)
    return [var for var in dict.fromkeys(read) if var in first]


def over_micro_batches(block: Block) -> list[Loop]:
    """The loop over micro-batches of a step, if it has several."""
    return [loop for loop, _ in regions_of(block, Loop) if not isinstance(loop, Scan)]


def is_first(equation: Equation) -> bool:
    """Whether it is of the forward pass, and not made again for gradients."""
    return equation.role == "forward" and equation.of is None and equation.drawn is None
