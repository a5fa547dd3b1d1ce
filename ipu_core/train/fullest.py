"""Whether what should save memory does: the fullest tile, vertices and code with it, with and without."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ipu_core.compile import bill as bills
from ipu_core.compile.bill import Bill
from ipu_core.errors import OutOfTileMemory
from ipu_core.ir.block import Block
from ipu_core.ir.passes.sharded import sharded as in_shards
from ipu_core.ir.passes.streaming import of_state
from ipu_core.train.execution import Execution
from ipu_core.train.planned import PlannedStep, planned_step
from ipu_core.train.training import Training

LEAST = 0.01  # of the fullest tile; what frees less is said


def unsaved(planned: PlannedStep, bill: Bill | None) -> Iterator[str]:
    """What of an Execution makes the fullest tile fuller, or frees less of it than is worth its time, in words.

    The step is compiled once more for each: it is looked at where the tiles have a bill. What gradients read nothing of
    is said in any case.
    """
    if planned.idle:
        yield f"no gradient reads anything that is made in {', '.join(planned.idle)}: recomputing it saves nothing"
    if bill is None or planned.execution.chips > 1:
        return  # of stages, which may be cut elsewhere without it
    execution, own = planned.execution, bill.done.memory.peak_bytes
    if execution.recompute is not False:
        without = fullest(planned, replace(execution, recompute=False))
        if without is not None and without < own:
            yield (
                f"recompute={execution.recompute!r} makes the fullest tile fuller: {own:,} bytes, "
                f"{without:,} without it"
            )
    if execution.sharded:
        without = fullest(planned, replace(execution, sharded=()))
        if without is not None and without < own:
            # weights in shards are gathered in each step, and whole then
            names = ", ".join(repr(name) for name in execution.sharded)
            yield (
                f"sharded={names} makes the fullest tile fuller: {own:,} bytes, {without:,} without it; what is "
                "gathered is whole where it is used"
            )
    if planned.block.offloaded:
        state = tuple(name for name in execution.streamed if of_state(planned.block, name))
        others = ", ".join(repr(name) for name in execution.streamed if name not in state)
        without = fullest(planned, replace(execution, streamed=state))
        if without is not None and without - own < LEAST * without:
            yield (
                f"streaming {others} frees less than {LEAST:.0%} of the fullest tile: it needs {own:,} bytes, "
                f"{without:,} without it"
            )


def fullest(planned: PlannedStep, execution: Execution) -> int | None:
    """The bytes of the fullest tile of a step that is executed in another way; None: it does not fit.

    Raises:
        ValueError, OutOfStreamingMemory: see `planned_step`.
    """
    try:
        return billed(planned.ideal, planned.training, execution).done.memory.peak_bytes
    except OutOfTileMemory:
        return None


def billed(ideal: Block, training: Training, execution: Execution, *, allow_out_of_memory: bool = False) -> Bill:
    """The tiles' account of a step, without what runs it.

    Raises:
        OutOfTileMemory: it does not fit, and that is not allowed.
    """
    made = planned_step(ideal, training, execution, allow_out_of_memory=allow_out_of_memory)
    return bills.bill(
        in_shards(made.block, execution.sharded), execution.target, made.accumulations, training.control,
        overlap=execution.overlap, share=execution.reorder, parallel=execution.parallel,
        steps_per_call=execution.steps_per_call, system=execution.system, allow_out_of_memory=allow_out_of_memory,
    )  # fmt: skip
