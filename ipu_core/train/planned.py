"""The planned step: a traced one in its formats, order and orders of sums, ready to run."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass

import numpy as np

from ipu_core.chip.hardware_random import HardwareRandom
from ipu_core.compile.planning import choose_accumulations
from ipu_core.compile.schedule.recompute_share import recomputed_share
from ipu_core.compile.schedule.residency import check_room, scheduled
from ipu_core.ir.block import Block, Equation, Literal, RecomputedPart, format_name, text
from ipu_core.ir.bodies import equations_of
from ipu_core.ir.ops import CONVOLUTIONS, SUMS
from ipu_core.ir.passes.checkpoint_names import checkpointed
from ipu_core.ir.passes.checkpoints import checkpoints_of, read_anew, with_checkpoints, with_stash
from ipu_core.ir.passes.guard import guarded
from ipu_core.ir.passes.recompute import recompute as recomputed
from ipu_core.ir.passes.sharded import sharded
from ipu_core.ir.passes.streaming import streaming
from ipu_core.ir.precision.retype import cast
from ipu_core.ir.run.kernels import given_order, order_of
from ipu_core.ir.spelling import older_lines
from ipu_core.train.execution import Execution
from ipu_core.train.training import Training
from lowprec import Accumulation, Collective, FloatFormat, Key, formats
from lowprec import float16 as FLOAT16
from lowprec import float32 as FLOAT32


@dataclass(frozen=True)
class PlannedStep:
    """A step ready to run: typed, guarded, its equations ordered, with the order of each of its sums.

    Attributes:
        ideal: As it was traced, in float32.
        training, execution: What it is planned for.
        block: Typed and in order.
        accumulations: The order of each sum by equation number, in the types in which it is made.
        digest: Of what decides the bits of a run: the equations as traced, where tiles draw their order too, sums, and
            all numbers of formats that have no name of lowprec's.
        older_digest: The same of the words that version 0.1.0 printed: its checkpoints are taken up too.
        constants: Of the numbers and arrays in the equations, which the digest has by 8 digits and by shape.
        idle: Names of parts that are to be made again, of which the gradients read nothing.
    """

    ideal: Block
    training: Training
    execution: Execution
    block: Block
    accumulations: Mapping[int, Accumulation]
    digest: str
    older_digest: str
    constants: str
    idle: tuple[str, ...] = ()


def planned_step(
    ideal: Block, training: Training, execution: Execution, *, allow_out_of_memory: bool = False
) -> PlannedStep:
    """Makes an ideal step ready; one that does not fit the tiles too where that is allowed.

    Raises:
        ValueError, OutOfTileMemory, OutOfStreamingMemory: see `TrainLoop`.
    """
    target = execution.target
    recompute = execution.recompute
    marked = ideal if training.stash is None else with_stash(ideal, training.stash)
    marked = checkpointed(marked, recompute if isinstance(recompute, tuple) else ())
    typed = with_checkpoints(training.precision.apply(marked), _has_stash)
    typed = streaming(typed, execution.streamed)
    traced = typed if training.loss_scale is None else guarded(typed)
    again = with_checkpoints(traced, _has_no_stash)
    parts, anew = checkpoints_of(marked), read_anew(again)
    _check_parts(parts, training)
    block = _ordered(again, execution)
    if training.draws_on_tiles:
        check_hardware_random(block)
    for var, value in block.constants.items():
        cast(value, var.type.format)  # refuses what float32 lacks
    sharded(block, execution.sharded)  # refuses names that nothing has, on the direct engine too
    if execution.engine == "tiles" and execution.chips == 1 and not allow_out_of_memory:
        check_room(block, target)
    # By the Training's rule, not the target's, so that another chip runs the same orders to the same bits.
    given = training.accumulations
    chosen = choose_accumulations(ideal, training.rule, typed) if given is None else given
    unread = {e.number for e in equations_of(traced)} - {e.number for e in equations_of(block)}
    # The digest leaves out where and in which order equations run, so that a checkpoint goes on elsewhere.
    orders = sorted((number, order.digest()) for number, order in chosen.items())
    told = block if training.draws_on_tiles else traced  # tiles draw in the order of the equations
    own = sorted({str(astuple(fmt)) for fmt in _formats(traced) if formats.get(fmt.name) != fmt})
    words = f"{text(told)}{orders}{own or ''}"  # a Block says of formats their names alone
    digest, older = (hashlib.sha256(each.encode()).hexdigest() for each in (words, older_lines(words)))
    chosen = {number: order for number, order in chosen.items() if number not in unread}
    idle = tuple(part.name for part in parts if part not in anew)
    held = _constants(traced)
    return PlannedStep(ideal, training, execution, block, _as_run(block, chosen), digest, older, held, idle)


def _as_run(block: Block, orders: Mapping[int, Accumulation]) -> dict[int, Accumulation]:
    """The order of each sum of a Block by equation number, in the types of that equation.

    Raises:
        ValueError: an order for what is no sum.
    """
    sums = {equation.number: equation for equation in equations_of(block) if equation.op in SUMS}
    if unknown := sorted(orders.keys() - sums.keys()):
        raise ValueError(f"accumulations: no sum of the step has the numbers {unknown}; there are {sorted(sums)}")
    return {number: order_of(equation, given_order(equation, orders)) for number, equation in sums.items()}


def _constants(block: Block) -> str:
    """A hash of the numbers and arrays in the equations."""
    # A Block's text has numbers by 8 digits and arrays by shape: two losses may differ in what that leaves out.
    numbers = [float(x.value) for e in equations_of(block) for x in e.inputs if isinstance(x, Literal)]
    total = hashlib.sha256(repr(numbers).encode())
    for array in block.constants.values():
        total.update(np.ascontiguousarray(array).tobytes())
    return total.hexdigest()


def _has_stash(part: RecomputedPart) -> bool:
    return part.stash is not None


def _has_no_stash(part: RecomputedPart) -> bool:
    return part.stash is None


def _check_parts(parts: Sequence[RecomputedPart], training: Training) -> None:
    """Refuses parts that are made again where random bits cannot be."""
    if parts and training.draws_on_tiles:
        raise ValueError("the tiles' generators never draw the same bits again: nn.checkpoint needs random='philox'")


def _formats(block: Block) -> Iterator[FloatFormat]:
    """The float formats of values and of partial sums."""
    types = (var.type for var in (*block.inputs, *block.constants, *(e.output for e in equations_of(block))))
    yield from (kind.format for kind in types if isinstance(kind.format, FloatFormat))
    yield from (e.arithmetic.accumulate for e in equations_of(block) if e.arithmetic.accumulate is not None)
    orders = (e.params.get("collective") for e in equations_of(block))
    yield from (fmt for order in orders if isinstance(order, Collective) for fmt in (order.wire, order.partial))


def _ordered(traced: Block, execution: Execution) -> Block:
    """The equations in the order in which they run, with forward values recomputed where the Execution asks for it."""
    target, recompute = execution.target, execution.recompute

    def order(block: Block) -> Block:
        return scheduled(block, target) if execution.reorder else block

    # Recomputation comes before the order, which so counts the memory of what is made again.
    if not isinstance(recompute, float):
        return order(recomputed(traced) if recompute is True else traced)
    return recomputed_share(traced, target, recompute, order)


def read_random(random: str | HardwareRandom, key: Key) -> HardwareRandom | None:
    """The start of the tiles' generators; None: random bits come from the key.

    Args:
        random: "philox" (the key's); "hardware": the tiles' own, seeded with the key's 64 bits; or how they start.
        key: of the run.
    """
    if isinstance(random, HardwareRandom):
        return random
    return HardwareRandom((key.value & 0xFFFFFFFF, key.value >> 32)) if random == "hardware" else None


def check_hardware_random(block: Block) -> None:
    """Refuses what the tiles' own generators cannot round.

    Raises:
        ValueError: stochastic rounding to other formats than half, or by another rule than the hardware's; a
            convolution that accumulates in half.
    """
    for equation in equations_of(block):
        if equation.arithmetic.stochastic and (why := _refusal(equation)):
            raise ValueError(f"random='hardware': {equation.name} {why}; take random='philox'")


def _refusal(equation: Equation) -> str:
    """Why the tiles' generators cannot round an equation's results; "" if they can."""
    # float32 is where results are before they are rounded, so it needs no random bits.
    formats = {equation.output.type.format, equation.arithmetic.accumulate or FLOAT32} - {FLOAT32}
    if formats - {FLOAT16}:
        return f"rounds to {', '.join(map(format_name, formats - {FLOAT16}))}, the hardware only to float16"
    if equation.arithmetic.rounding.mode != "stochastic":
        return f"rounds by {equation.arithmetic.rounding.mode}, which the hardware does not have"
    if equation.op in CONVOLUTIONS and equation.arithmetic.accumulate == FLOAT16:
        return "accumulates in float16, of which no order of draws is modelled"
    return ""
