"""A training step made ready to be run: typed, guarded, in order, with the order of each of its sums."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import astuple
from typing import NamedTuple

from ipu_core.compile.planning import choose_accumulations
from ipu_core.compile.remaking import remade
from ipu_core.compile.residency import check_room, scheduled
from ipu_core.ir.block import Block
from ipu_core.ir.bodies import equations_of
from ipu_core.ir.guard import guarded
from ipu_core.ir.recompute import recompute as recomputed
from ipu_core.ir.retype import cast
from ipu_core.ir.streaming import streaming
from ipu_core.train.options import Execution, Training
from ipu_core.train.random import check_hardware_random
from lowprec import Accumulation, FloatFormat, formats


class PlannedStep(NamedTuple):
    """A step that is ready.

    Attributes:
        block: Typed and in order.
        accumulations: The order of each sum by equation number.
        digest: Of what decides the bits of a run: the equations as traced, where tiles draw their order too, sums, and
            all numbers of formats that have no name of lowprec's.
    """

    block: Block
    accumulations: Mapping[int, Accumulation]
    digest: str


def planned_step(ideal: Block, training: Training, execution: Execution) -> PlannedStep:
    """Makes an ideal step ready.

    Raises:
        ValueError, OutOfTileMemory, OutOfStreamingMemory: see `TrainLoop`.
    """
    target = execution.target
    typed = streaming(training.precision.apply(ideal), execution.streamed)
    traced = typed if training.loss_scale is None else guarded(typed)
    block = _ordered(traced, execution)
    if training.draws_on_tiles:
        check_hardware_random(block, execution.engine)
        if execution.recompute:
            raise ValueError("the tiles' generators never draw the same bits again: recompute needs random='philox'")
    for var, value in block.constants.items():
        cast(value, var.type.format)  # refuses what float32 lacks
    if execution.engine == "tiles":
        check_room(block, target)
    given = training.accumulations
    chosen = choose_accumulations(ideal, training.rule, typed) if given is None else given
    orders = sorted((number, order.digest()) for number, order in chosen.items())
    told = block if training.draws_on_tiles else traced  # tiles draw in the order of the equations
    own = sorted({str(astuple(fmt)) for fmt in _formats(traced) if formats.get(fmt.name) != fmt})
    words = f"{told}{orders}{own or ''}"  # a Block says of formats their names alone
    return PlannedStep(block, chosen, hashlib.sha256(words.encode()).hexdigest())


def _formats(block: Block) -> Iterator[FloatFormat]:
    """The float formats of values and of partial sums."""
    types = (var.type for var in (*block.inputs, *block.constants, *(e.output for e in equations_of(block))))
    yield from (kind.format for kind in types if isinstance(kind.format, FloatFormat))
    yield from (e.arithmetic.accumulate for e in equations_of(block) if e.arithmetic.accumulate is not None)


def _ordered(traced: Block, execution: Execution) -> Block:
    """The equations in the order in which they run, with what is made again for the gradients."""
    target, recompute = execution.target, execution.recompute

    def order(block: Block) -> Block:
        return scheduled(block, target) if execution.reorder else block

    if isinstance(recompute, bool):
        return order(recomputed(traced) if recompute else traced)
    return remade(traced, target, recompute, order)
