"""What a step that does not fit could be given, and what each would free, by the values of the step alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

from ipu_core.compile.schedule.residency import check_room, residency
from ipu_core.errors import OutOfStreamingMemory, OutOfTileMemory
from ipu_core.ir.block import Block
from ipu_core.ir.precision.precision import Precision
from ipu_core.train.execution import Execution
from ipu_core.train.planned import planned_step
from ipu_core.train.training import Training
from lowprec import float16 as FLOAT16

Trace = Callable[[Training], Block]
"""From a Training, which may have other micro-batches, to its step as traced, in float32."""

LEAST = 0.01  # of the values on the fullest tile; what frees less frees nothing
STREAMED = (("optimizer.*",), ("params.*",), ("optimizer.*", "params.*"))
MOMENTS = "first_moment=float16/second_moment=float16"
MICRO_BATCHES = (2, 3, 4, 5, 6, 7, 8)  # times as many are tried, until the batch can be cut so

REFUSED = (ValueError, OutOfStreamingMemory, ImportError)
"""What is no way out: a name that nothing has, streaming memory that is too small, an extra that is not installed."""

Way = tuple[str, int]
"""Arguments, and the bytes of the fullest tile that the values need with them."""


@contextmanager
def advised(trace: Trace, training: Training, execution: Execution) -> Iterator[None]:
    """Adds to a refusal for tile memory what would free some of it.

    Raises:
        OutOfTileMemory: the same, with `ways`.
    """
    try:
        yield
    except OutOfTileMemory as error:
        if execution.chips > 1:
            raise  # it is one stage's, which has said so
        lacking = error.needed - error.available
        raise error.with_ways(ways_out(trace, training, execution, lacking)) from error.__cause__


def ways_out(trace: Trace, training: Training, execution: Execution, lacking: int = 0) -> tuple[str, ...]:
    """What a `TrainLoop` could be given for less tile memory, in words, the most first.

    Each is found by making the step anew and adding up its values in the layout every array gets; what lives beside
    them, such as gathered operands and code, is left out.

    Args:
        trace: makes the step.
        training, execution: that were refused.
        lacking: bytes that the fullest tile lacked; what frees fewer is not said to be enough.
    """
    try:
        ideal = trace(training)
        own = values_needed(ideal, training, execution)
    except REFUSED:
        return ()  # its own refusal is what has to be read
    room = execution.target.tile_memory
    others = _otherwise(trace, ideal, training, execution)
    kinds = ("to the same bits", _elsewhere(ideal, training, execution)), ("to other bits", others)
    told, nothing, fits = list[str](), list[str](), False

    def enough(size: int) -> bool:
        return size <= room and own - size >= lacking

    for bits, needed in kinds:
        ways = sorted(needed, key=lambda way: way[1])
        words = [
            f"{name} frees {own - size:,} bytes{' (its values alone fit then)' if enough(size) else ''}"
            for name, size in ways
            if own - size >= LEAST * own
        ]
        told += [f"{bits}, {', '.join(words)}"] if words else []
        nothing += [name for name, size in ways if own - size < LEAST * own]
        fits |= any(enough(size) for _, size in ways)
    if told and not fits:
        told.append("none of these alone is enough: several together may be, or more tiles")
    return (*told, f"next to nothing is freed by {', '.join(nothing)}") if nothing else tuple(told)


def values_needed(ideal: Block, training: Training, execution: Execution) -> int:
    """Bytes of a step's values on the fullest tile, whether they fit or not.

    Raises:
        ValueError: see `planned_step`.
        OutOfStreamingMemory: what is streamed does not fit streaming memory.
    """
    planned = planned_step(ideal, training, execution, allow_out_of_memory=True)
    with suppress(OutOfTileMemory):  # streaming memory is looked at first
        check_room(planned.block, execution.target)
    return residency(planned.block, execution.target).peak.needed


def _elsewhere(ideal: Block, training: Training, execution: Execution) -> Iterator[Way]:
    """What another Execution needs."""
    changes: list[tuple[str, Execution]] = []
    for names in dict.fromkeys(tuple(sorted({*execution.streamed, *more})) for more in STREAMED):
        if names != execution.streamed:
            shown = repr(names[0]) if len(names) == 1 else repr(names)
            changes.append((f"streamed={shown}", replace(execution, streamed=names)))
    if execution.recompute is False:
        changes.append(("recompute=True", replace(execution, recompute=True)))
        changes.append(("recompute='layers'", replace(execution, recompute=("layers",))))
    for words, other in changes:
        # A step has no layers, an optimizer no state: such a name is refused, and is no way out.
        with suppress(*REFUSED):
            yield words, values_needed(ideal, training, other)


def _otherwise(trace: Trace, ideal: Block, training: Training, execution: Execution) -> Iterator[Way]:
    """What another Training needs."""
    precision = training.precision
    if max(precision.first_moment.bits, precision.second_moment.bits) > FLOAT16.bits:
        with suppress(*REFUSED):
            narrow = Precision.parse(f"{precision.name}/{MOMENTS}")
            words = f"precision='{precision.name}/{MOMENTS}'"
            yield words, values_needed(ideal, replace(training, precision=narrow), execution)
    for times in MICRO_BATCHES:
        count = times * training.micro_batches
        with suppress(*REFUSED):
            other = replace(training, micro_batches=count)
            yield f"micro_batches={count}", values_needed(trace(other), other, execution)
            return
