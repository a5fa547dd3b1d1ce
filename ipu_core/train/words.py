"""A training loop in words: what is trained, how far, at what cost, and how each of its sums is made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ipu_core.ir.block import Block, Equation
from ipu_core.ir.bodies import equations_of, regions_of
from ipu_core.ir.ops import SUMS
from ipu_core.ir.pytree import flatten
from ipu_core.ir.regions import Loop
from ipu_core.ir.run.kernels import given_order, order_of
from ipu_core.train.options import foreign, named
from ipu_core.train.step import read_random
from lowprec import Accumulation

if TYPE_CHECKING:
    from ipu_core.train.loop import TrainLoop

Sums = dict[str, tuple[Equation, Accumulation]]


def summary(loop: TrainLoop) -> str:
    """The loop in a few lines."""
    training, execution = loop.training, loop.execution
    leaves = flatten(loop.params)[0]
    micro_batches = "".join(f", {inner.count} micro-batches a step" for inner, _ in regions_of(loop.block, Loop))
    lines = [
        f"TrainLoop: {loop.step} steps of {named(training.optimizer)} on {loop.target.name}, engine {execution.engine}",
        f"  {loop.precision.words()}",
        f"  {sum(leaf.size for leaf in leaves):,} parameters in {len(leaves)} arrays{micro_batches}",
    ]
    if loop.loss_scale is not None:
        lines.append(f"  loss scale {loop.loss_scale:g}, {len(loop.skipped)} steps skipped")
        lines += [f"    last: step {s.step}, {', '.join(s.names)}" for s in loop.skipped[-1:]]
    if training.draws_on_tiles:
        lines.append(f"  random bits of the tiles' workers, {read_random(training.random, loop.key)}")
    if told := foreign(training, execution):
        lines.append(f"  {told}")
    if loop.not_finite is not None:
        lines.append("  the loss of step {} is {}".format(*loop.not_finite))
    if (profile := loop.profile) is not None:
        memory = profile.memory
        lines.append(
            f"  {profile.cycles:,} cycles = {profile.microseconds:,.2f} us a step; fullest tile "
            f"{memory.peak_bytes:,} of {memory.available:,} bytes; {memory.remote:,} bytes in streaming memory"
        )
    return "\n".join(lines)


def sums(block: Block, accumulations: Mapping[int, Accumulation]) -> Sums:
    """Every product and sum of a step by name, with the order and types in which it is made."""
    found = {}
    for equation in equations_of(block):
        if equation.op in SUMS:
            found[equation.name] = equation, order_of(equation, given_order(equation, accumulations))
    return found


def described(found: Sums) -> list[str]:
    """A line for each of them."""
    return [f"{name}: {_shapes(equation)}; {order.words()}" for name, (equation, order) in found.items()]


def _shapes(equation: Equation) -> str:
    return f"{' @ '.join(str(x.type) for x in equation.operands)} -> {equation.output.type}"
