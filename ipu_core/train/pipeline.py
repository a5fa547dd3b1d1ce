"""The bills of a step that is cut into stages, as it is told or balanced by its stages' own plans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ipu_core.compile.bill import Bill, bill
from ipu_core.compile.schedule.residency import check_room
from ipu_core.errors import OutOfTileMemory, UnsupportedByTarget
from ipu_core.ir.block import Block
from ipu_core.ir.bodies import equations_of
from ipu_core.ir.passes.pipeline import PipelineStage, forward_numbers, pipeline_stages
from ipu_core.system.schedule import Schedule
from ipu_core.train.cuts import bytes_of, corrected, crossing, cycles_of, lightest_cut, named_cut
from ipu_core.train.execution import Execution
from ipu_core.train.planned import PlannedStep
from ipu_core.train.stage_times import times

CUTS = 4  # that are planned at most


@dataclass(frozen=True, eq=False)
class PipelineBill(Bill):
    """The bill of the slowest chip of a pipeline, and those of all.

    Attributes:
        stages: what each chip does.
        bills: of each.
    """

    stages: tuple[PipelineStage, ...] = ()
    bills: tuple[Bill, ...] = ()


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
        return _billed(block, planned, named_cut(planned.ideal, on.stages), how)
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
    links = crossing(ideal, numbers)
    passing = [2 * on.target.transfer_cycles(size, on.target.link_bandwidth) for size in links]
    weights: list[float] = [*cycles_of(whole.done, block, numbers)]
    found: dict[tuple[int, ...], PipelineBill] = {}
    for _ in range(CUTS):
        begins = lightest_cut(numbers, weights, passing, stages)
        if begins in found:
            break
        try:
            found[begins] = _billed(block, planned, begins, how)
        except OutOfTileMemory:
            break
        weights = corrected(weights, numbers, begins, _slowness(found[begins], planned.training.micro_batches))
    if not found:
        return _billed(block, planned, lightest_cut(numbers, bytes_of(block, numbers), links, stages), how)
    return min(found.values(), key=lambda made: max(_slowness(made, planned.training.micro_batches)))


def _slowness(made: PipelineBill, micro_batches: int) -> list[int]:
    """Cycles of each stage with a micro-batch."""
    each = (times(one.done, stage.block, micro_batches) for one, stage in zip(made.bills, made.stages, strict=True))
    return [one.forward + one.backward for one in each]
