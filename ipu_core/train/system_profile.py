"""What an update of a training takes on the system that it runs on; a chip alone is a system of one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from ipu_core.chip.collectives import CollectiveCost, all_reduce
from ipu_core.chip.system import System
from ipu_core.compile.bill import Bill
from ipu_core.ir.block import Block
from ipu_core.ir.bodies import equations_of
from ipu_core.ir.passes.pipeline import link_bytes
from ipu_core.ir.run.collectives import collective_of
from ipu_core.system.account import SystemProfile
from ipu_core.system.schedule import Schedule
from ipu_core.train.execution import Execution
from ipu_core.train.pipeline import PipelineBill
from ipu_core.train.planned import PlannedStep
from ipu_core.train.stage_times import times
from lowprec import Collective


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
    spent = [times(one.done, block, count) for one, block in zip(bills, blocks, strict=True)]
    passed = link_bytes(made.stages) if isinstance(made, PipelineBill) else ()
    once = link_bytes(made.stages, once=True) if isinstance(made, PipelineBill) else ()
    ups, downs = _passing(on, passed, 0), _passing(on, passed, 1)
    seconds = on.target.seconds
    reduced = [_all_reduce(system, training.replicas, block, len(bills)) for block in blocks]
    collective = max(reduced, key=lambda each: each.seconds)
    near = [_all_reduce(system, training.replicas, block, 1).seconds for block in blocks]
    # Beside the links' time, replicas that meet add numbers up and sync.
    update = max(
        seconds(each.update) + max(0.0, seconds(each.meetings) - links) for each, links in zip(spent, near, strict=True)
    )
    moved = seconds(max(*_passing(on, once, 0), *_passing(on, once, 1)))
    host = max(sum(each.bytes * each.runs for each in one.done.host) for one in bills)
    return SystemProfile(
        system=system, replicas=training.replicas,
        schedule=Schedule(
            on.pipeline_schedule, tuple(seconds(each.forward + up) for each, up in zip(spent, ups, strict=True)),
            tuple(seconds(each.backward + down) for each, down in zip(spent, downs, strict=True)), count,
        ),
        samples=_rows(planned), collective=collective, update_seconds=update + moved,
        link_bytes=max(_sent(passed)), host_bytes=host,
        host_seconds=max(seconds(each.host) for each in spent),
        update_overhead=on.update_overhead or 0.0,
        host_waits=True, update_overhead_from="given" if on.update_overhead else "none",
        profiles=tuple(one.done for one in bills),
    )  # fmt: skip


def _sent(passed: Sequence[tuple[int, int]]) -> list[int]:
    """Bytes that each stage sends in a micro-batch, up and down."""
    ups, downs = [*(up for up, _ in passed), 0], [0, *(down for _, down in passed)]
    return [up + down for up, down in zip(ups, downs, strict=True)]


def _passing(on: Execution, passed: Sequence[tuple[int, int]], way: int) -> list[int]:
    """Cycles in which each stage receives and sends, one way, of two boundaries the busier."""
    sizes = [0, *(both[way] for both in passed), 0]
    if not passed:
        return [0]
    return [on.target.transfer_cycles(max(pair), on.target.link_bandwidth) for pair in pairwise(sizes)]


def _all_reduce(system: System, replicas: int, block: Block, stride: int) -> CollectiveCost:
    """What it costs that replicas so far from each other add a chip's gradients up."""
    size, how = 0.0, Collective()
    for equation in equations_of(block):
        if equation.op in ("all_reduce", "reduce_scatter") and equation.parameter is not None:
            how = collective_of(equation)
            size += equation.operands[0].type.size * how.wire.bits / 8
    return all_reduce(system, math.ceil(size), replicas, stride=stride, algorithm=how.algorithm, members=how.group)


def _rows(planned: PlannedStep) -> int:
    """Rows of a micro-batch of one replica."""
    ideal = planned.ideal
    arrays = [var.type.shape for var in ideal.inputs[ideal.carried :] if var.type.shape]
    return arrays[0][0] // planned.training.micro_batches if arrays else 1
