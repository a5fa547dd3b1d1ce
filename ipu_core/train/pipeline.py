"""A training on the chips of a system: where its step is cut, the bill of every stage, and what an update takes."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

from ipu_core.chip.collectives import CollectiveCost, all_reduce
from ipu_core.chip.system import System
from ipu_core.compile.bill import Bill, bill
from ipu_core.compile.schedule.residency import check_room
from ipu_core.engine.profile import Profile, Step
from ipu_core.errors import OutOfTileMemory, UnsupportedByTarget
from ipu_core.ir.block import Block, Equation, Type, Var
from ipu_core.ir.bodies import equations_of, flat, regions_of
from ipu_core.ir.passes.checkpoint_names import beginning, near_words
from ipu_core.ir.passes.pipeline import PipelineStage, forward_numbers, link_bytes, pipeline_stages
from ipu_core.ir.precision.rules import names_of
from ipu_core.ir.regions import Loop, Scan
from ipu_core.system.account import SystemProfile
from ipu_core.system.schedule import Schedule
from ipu_core.train.options import Execution, Training
from ipu_core.train.step import PlannedStep


@dataclass(frozen=True, eq=False)
class PipelineBill(Bill):
    """The bill of the slowest chip of a pipeline, and those of all.

    Attributes:
        stages: what each chip does.
        bills: of each.
    """

    stages: tuple[PipelineStage, ...] = ()
    bills: tuple[Bill, ...] = ()


class _Times(NamedTuple):
    """Cycles of one chip: of a micro-batch forward and backward, of the update, the host, and replicas' meetings."""

    forward: int
    backward: int
    update: int
    host: int
    meetings: int


def pipeline_bill(block: Block, planned: PlannedStep, how: Mapping[str, Any]) -> PipelineBill:
    """The bills of a step that is cut as its Execution says.

    Args:
        block: typed, in shards if anything is.
        planned: the step.
        how: what `bill` takes beside Block, chip, orders and control.

    Raises:
        ValueError: names that nothing has, more stages than there are places to cut.
        OutOfTileMemory: a stage does not fit its chip, however the step is cut; it is named.
        UnsupportedByTarget: chips without links.
    """
    on = planned.execution
    if not on.target.link_bandwidth:
        raise UnsupportedByTarget(f"{on.target.name} has no links, over which stages hand on: another target=")
    if isinstance(on.stages, tuple):
        return _billed(block, planned, _named(planned.ideal, on.stages), how)
    return _balanced(block, planned, how, on.stages)


def _billed(block: Block, planned: PlannedStep, begins: Sequence[int], how: Mapping[str, Any]) -> PipelineBill:
    training, on = planned.training, planned.execution
    count = len(begins) + 1
    stages = pipeline_stages(block, planned.ideal, begins, _schedule(on, count, training.micro_batches).stashes)
    bills = list[Bill]()
    for stage in stages:
        numbers = {e.number for e in equations_of(stage.block)}
        orders = {number: order for number, order in planned.accumulations.items() if number in numbers}
        try:
            check_room(stage.block, on.target)
            bills.append(bill(stage.block, on.target, orders, training.control, **how))
        except OutOfTileMemory as error:
            ways = f"this is stage {stage.number + 1} of {count}: more stages=, or recompute='layers', need less of it"
            raise error.with_ways((ways,)) from error
    made = PipelineBill(bills[0].plan, bills[0].done, bills[0].skipped, stages, tuple(bills))
    _, number = max((cycles, number) for number, cycles in enumerate(_slowness(made, training.micro_batches)))
    slowest = bills[number]
    return PipelineBill(slowest.plan, slowest.done, slowest.skipped, stages, tuple(bills))


def _schedule(on: Execution, stages: int, micro_batches: int) -> Schedule:
    return Schedule(on.pipeline_schedule, (1.0,) * stages, (1.0,) * stages, micro_batches)


def _named(ideal: Block, names: Sequence[str]) -> tuple[int, ...]:
    """Where stages begin that are called by their first layers.

    Raises:
        ValueError: a name that nothing has, or one that begins no later than the one before it.
    """
    possible = set(forward_numbers(ideal))
    forward = sorted((e for e in equations_of(ideal) if e.number in possible), key=lambda e: e.number)
    begins = list[int]()
    for name in names:
        first = next((e.number for e in forward if any(beginning(own, name) for own in names_of(e))), None)
        if first is None:
            known = dict.fromkeys(own for e in forward for own in names_of(e))
            raise ValueError(f"stages: {name!r} is the name of nothing in this model; {near_words(name, known)}")
        if begins and first <= begins[-1]:
            raise ValueError(f"stages: {name!r} begins no later than the stage before it: names in the model's order")
        begins.append(first)
    return tuple(begins[1:])


def _balanced(block: Block, planned: PlannedStep, how: Mapping[str, Any], stages: int) -> PipelineBill:
    """Cut by the cycles of the whole step's plan on one chip, and again by those of the stages that this made.

    What shares a compute set on one chip may be alone on another, so a stage's own plan says more than the whole's.
    Where no such cut fits its chips it is cut by bytes.

    Raises:
        ValueError: more stages than places.
        OutOfTileMemory: nothing fits.
    """
    on, ideal = planned.execution, planned.ideal
    numbers = forward_numbers(ideal)
    if stages > len(numbers):
        raise ValueError(f"stages={stages}: this model can be cut into {len(numbers)} at most")
    whole = bill(
        block, on.target, planned.accumulations, planned.training.control,
        **{**how, "share": False, "parallel": False, "allow_out_of_memory": True},
    )  # fmt: skip
    links = _crossing(ideal, numbers)
    passing = [2 * on.target.transfer_cycles(size, on.target.link_bandwidth) for size in links]
    weights: list[float] = [*_cycles(whole.done, block, numbers)]
    found: dict[tuple[int, ...], PipelineBill] = {}
    for _ in range(CUTS):
        begins = _cut(numbers, weights, passing, stages)
        if begins in found:
            break
        try:
            found[begins] = _billed(block, planned, begins, how)
        except OutOfTileMemory:
            break
        weights = _corrected(weights, numbers, begins, found[begins], planned.training.micro_batches)
    if not found:
        return _billed(block, planned, _cut(numbers, _bytes(block, numbers), links, stages), how)
    return min(found.values(), key=lambda made: max(_slowness(made, planned.training.micro_batches)))


def _corrected(
    weights: Sequence[float], numbers: Sequence[int], begins: Sequence[int], made: PipelineBill, micro_batches: int
) -> list[float]:
    """Weights that add up to what each stage takes by its own plan."""
    bounds = [0, *(bisect_left(numbers, begin) for begin in begins), len(numbers)]
    result = list[float]()
    for (first, end), cycles in zip(pairwise(bounds), _slowness(made, micro_batches), strict=True):
        total = sum(weights[first:end])
        result += [weight * cycles / total if total else 0.0 for weight in weights[first:end]]
    return result


def _slowness(made: PipelineBill, micro_batches: int) -> list[int]:
    """Cycles of each stage with a micro-batch."""
    times = (_times(one.done, stage.block, micro_batches) for one, stage in zip(made.bills, made.stages, strict=True))
    return [each.forward + each.backward for each in times]


def _cycles(profile: Profile, block: Block, numbers: Sequence[int]) -> list[int]:
    """Cycles of a micro-batch by forward equation, with its gradients and what is between it and the next."""
    homes: dict[str | None, int] = {}
    for equation in equations_of(block):
        if equation.role == "forward" and equation.parameter is not None and equation.number in numbers:
            homes.setdefault(equation.parameter, equation.number)
    own: dict[str, int] = {}
    for equation in _of_micro_batch(block):
        traced = equation.keyed if equation.of is None else equation.of
        if equation.of is None and equation.role != "forward":
            traced = homes.get(equation.parameter, -1)  # a sum of gradients
        own[equation.name] = bisect_right(numbers, traced) - 1
    found = [0] * len(numbers)
    for step in profile.steps:
        if (place := own.get(_label(step.name), -1)) >= 0:
            found[place] += step.account.cycles
    return found


def _bytes(block: Block, numbers: Sequence[int]) -> list[int]:
    """Bytes by forward equation: of what it makes, and of the state of a parameter that it is the first to read."""
    found = dict.fromkeys(numbers, 0)
    held = sum(var.type.nbytes for var in block.inputs[: block.carried])
    weights = {e.parameter: e.outputs[0].type.nbytes for e in equations_of(block) if e.role == "update"}
    times = held / max(1, sum(weights.values()))  # moments and all else that is kept of a weight
    for equation in equations_of(block):
        if equation.number in found:
            state = weights.pop(equation.parameter, 0) if equation.parameter else 0
            found[equation.number] += equation.outputs[0].type.nbytes + int(times * state)
    return list(found.values())


def _crossing(ideal: Block, numbers: Sequence[int]) -> list[int]:
    """Bytes that pass a cut before each forward equation, in float32: what is made before it and read behind it."""
    made: dict[Var, int] = {}
    last: dict[Var, int] = {}
    for equation in _of_micro_batch(ideal):
        if equation.role == "forward":
            at = max(0, bisect_right(numbers, equation.number) - 1)
            made |= dict.fromkeys(equation.outputs, at)
            last |= dict.fromkeys(equation.operands, at)
    total = [0] * len(numbers)
    for var, at in made.items():
        for behind in range(at + 1, last.get(var, at) + 1):
            total[behind] += var.type.nbytes
    return total


def _cut(numbers: Sequence[int], weights: Sequence[float], links: Sequence[int], stages: int) -> tuple[int, ...]:
    """Places at which the heaviest of so many stages, with what it hands on, is as light as can be."""
    low, high = 0, math.ceil(sum(weights)) + max(links, default=0)
    best = tuple(numbers[1:stages])
    while low <= high:
        bound = (low + high) // 2
        found = _within(weights, links, stages, bound)
        if found is None:
            low = bound + 1
        else:
            best, high = tuple(numbers[at] for at in found), bound - 1
    return best


def _within(weights: Sequence[float], links: Sequence[int], stages: int, bound: int) -> list[int] | None:
    """Cuts into exactly so many stages, none heavier than a bound; None: there are none."""
    cuts, first, total = list[int](), 0, len(weights)
    for stage in range(stages):
        left = stages - 1 - stage
        if not left:
            return cuts if sum(weights[first:]) <= bound else None
        own, furthest = 0.0, None
        for end in range(first + 1, total - left + 1):
            own += weights[end - 1]
            if own > bound:
                break
            if own + links[end] <= bound:
                furthest = end
        if furthest is None:
            return None
        cuts.append(furthest)
        first = furthest
    return cuts


CUTS = 4  # that are planned at most
UPDATING = ("optimizer", "update")


def _label(name: str) -> str:
    return name.partition(":")[0]


def _of_micro_batch(block: Block) -> list[Equation]:
    """The equations that run with each micro-batch; of a step without such all but the update's."""
    loops = [loop for loop, _ in regions_of(block, Loop) if not isinstance(loop, Scan)]
    if loops:
        return [*flat(loops[0].body.equations)]
    return [e for e in equations_of(block) if e.role not in UPDATING]


def _times(profile: Profile, block: Block, micro_batches: int) -> _Times:
    """What the cycles of a chip's step are spent on."""
    inside = _of_micro_batch(block)
    first = {e.name for e in inside if e.role == "forward" and e.of is None and e.drawn is None}
    update = {e.name for e in equations_of(block)} - {e.name for e in inside}
    total = dict.fromkeys(_Times._fields, 0)
    for step in profile.steps:
        total[_spent_on(step, first, update, micro_batches)] += step.cycles
    each = {name: total[name] // micro_batches for name in ("forward", "backward")}
    rest = sum(total[name] - micro_batches * each[name] for name in each)
    return _Times(each["forward"], each["backward"], total["update"] + rest, total["host"], total["meetings"])


def _spent_on(step: Step, first: set[str], update: set[str], micro_batches: int) -> str:
    if step.kind == "stream":
        return "host"
    if step.kind == "links":
        return "meetings"
    names = {_label(name) for name in step.operations}
    if names <= first:
        return "forward"
    # Copies have names of their own: what is done once is no micro-batch's.
    if names <= update or (not names & first and step.count % micro_batches):
        return "update"
    return "backward"


def system_profile(planned: PlannedStep, made: Bill) -> SystemProfile:
    """What an update takes on the system that it runs on; a chip alone is a system of one.

    Args:
        planned: the step.
        made: the tiles' account of it.
    """
    training, on = planned.training, planned.execution
    bills = made.bills if isinstance(made, PipelineBill) else (made,)
    blocks = [each.block for each in made.stages] if isinstance(made, PipelineBill) else [planned.block]
    chips, count = training.replicas * len(bills), training.micro_batches
    system = on.system or System(on.target, chips=chips)
    times = [_times(one.done, block, count) for one, block in zip(bills, blocks, strict=True)]
    passed = link_bytes(made.stages) if isinstance(made, PipelineBill) else ()
    once = link_bytes(made.stages, once=True) if isinstance(made, PipelineBill) else ()
    ups, downs = _passing(on, passed, 0), _passing(on, passed, 1)
    seconds = on.target.seconds
    collective = _all_reduce(system, training, max(map(_reduced_bytes, blocks)), len(bills))
    update = max(
        seconds(each.update) + max(0.0, seconds(each.meetings) - _met(system, training, block))
        for each, block in zip(times, blocks, strict=True)
    )
    moved = seconds(max(*_passing(on, once, 0), *_passing(on, once, 1)))
    host = max(sum(each.bytes * each.runs for each in one.done.host) for one in bills)
    return SystemProfile(
        system=system, replicas=training.replicas,
        schedule=Schedule(
            on.pipeline_schedule, tuple(seconds(each.forward + up) for each, up in zip(times, ups, strict=True)),
            tuple(seconds(each.backward + down) for each, down in zip(times, downs, strict=True)), count,
        ),
        samples=_rows(planned), collective=collective, update_seconds=update + moved,
        link_bytes=max((max(both) for both in passed), default=0), host_bytes=host,
        host_seconds=max(seconds(each.host) for each in times),
        update_overhead=on.update_overhead or 0.0,
        host_waits=True, update_overhead_from="given" if on.update_overhead else "none",
        profiles=tuple(one.done for one in bills),
    )  # fmt: skip


def _passing(on: Execution, passed: Sequence[tuple[int, int]], way: int) -> list[int]:
    """Cycles in which each stage receives and sends, one way, of two boundaries the busier."""
    sizes = [0, *(both[way] for both in passed), 0]
    if not passed:
        return [0]
    return [on.target.transfer_cycles(max(pair), on.target.link_bandwidth) for pair in pairwise(sizes)]


def _reduced_bytes(block: Block) -> int:
    """Bytes of a chip's gradients on the wire."""
    total = 0
    for equation in equations_of(block):
        if equation.op in ("all_reduce", "reduce_scatter") and equation.parameter is not None:
            how, kind = equation.params.get("collective"), equation.operands[0].type
            total += kind.nbytes if how is None else Type(kind.shape, how.wire).nbytes
    return total


def _met(system: System, training: Training, block: Block) -> float:
    """Seconds of the links in a chip's bill, where replicas are neighbours."""
    return _all_reduce(system, training, _reduced_bytes(block), 1).seconds


def _all_reduce(system: System, training: Training, size: int, stride: int) -> CollectiveCost:
    how = training.collective
    return all_reduce(
        system, size, training.replicas, stride=stride, algorithm=None if how is None else how.algorithm,
        members=None if how is None else how.group,
    )  # fmt: skip


def _rows(planned: PlannedStep) -> int:
    """Rows of a micro-batch of one replica."""
    ideal = planned.ideal
    arrays = [var.type.shape for var in ideal.inputs[ideal.carried :] if var.type.shape]
    return arrays[0][0] // planned.training.micro_batches if arrays else 1
