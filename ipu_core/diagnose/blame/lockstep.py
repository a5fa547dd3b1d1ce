"""Steps in their declared arithmetic beside float64: errors of every equation and of every weight update."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ipu_core.diagnose.blame.errors import Errors, sampled
from ipu_core.ir.block import Array, Block, Equation, Literal, Var
from ipu_core.ir.bodies import equations_of, outputs_of
from ipu_core.ir.exact import as_exact, exact
from ipu_core.ir.ops import ELEMENTWISE, STRUCTURE, SUMS
from ipu_core.ir.precision.retype import cast
from ipu_core.ir.regions import path_key
from ipu_core.ir.run.declared import declared
from ipu_core.ir.run.evaluate import evaluate_flat, run
from ipu_core.ir.run.kernels import given_order
from ipu_core.train.altered import bounds_of
from ipu_core.train.loop import TrainLoop
from lowprec import FloatFormat, Key
from lowprec import float32 as FLOAT32
from lowprec.statistics import UpdateCount

UNROUNDED = frozenset({"dropout_mask", "one_hot", "top_indices"})


@dataclass
class Lockstep:
    """Errors and updates in the steps that were looked at.

    Attributes:
        errors: by equation number.
        updates: by parameter, beside float64's updates of the same weights, moments and batch; sums over steps.
        losses: (step, the loss of the step, float64's of the same step).
        moves: of each step, the norm of float64's update of all weights, as a share of theirs.
        clips: of each step, what is left of the norm of what is clipped; 1: all of it.
        given: (step, inputs of the block, key) of the first step and of the last.
    """

    errors: dict[int, Errors] = field(default_factory=dict)
    updates: dict[str, UpdateCount] = field(default_factory=dict)
    losses: list[tuple[int, float, float]] = field(default_factory=list)
    moves: list[float] = field(default_factory=list)
    clips: list[float] = field(default_factory=list)
    given: list[tuple[int, list[Any], Key]] = field(default_factory=list)

    def look(self, loop: TrainLoop, batch: Any) -> None:
        """Looks at the next step of a loop, without doing it."""
        block, (inputs, key) = loop.block, loop.next_step(batch)
        kept, bounds, clip = _kept(block, inputs), bounds_of(loop), Clip()
        self.given = [*self.given[:1], (loop.step, inputs, key)]

        def rule(equation: Equation, operands: list[Any], path: tuple[int, ...]) -> Array:
            own = None if equation.draws is None else path_key(key, path).fold_in(equation.draws)
            made = declared(equation, operands, own, given_order(equation, loop.accumulations), loop.control)
            if equation.number in bounds:
                clip.add(equation, operands, made)
            if is_rounded(equation):
                fmt, accumulate = equation.output.type.format, equation.arithmetic.accumulate
                assert isinstance(fmt, FloatFormat)
                # Of what is kept the increment counts: beside the value itself every loss would look small.
                before = operands[0] if _is_total(equation) else kept.get(equation.output)
                new = Errors(stochastic=equation.arithmetic.stochastic, kept=before is not None)
                narrow = accumulate is not None and accumulate != FLOAT32
                self.errors.setdefault(equation.number, new).add(
                    loop.step, sampled(made), _ideal(equation, operands), fmt,
                    None if before is None else sampled(before), narrow,
                )  # fmt: skip
            return made

        outputs = run(block, inputs, cast, rule)
        # With the same key: another dropout mask would show as a lost update.
        ideal = evaluate_flat(block, inputs, "exact", key=key)
        self.losses.append((loop.step, float(outputs[block.carried]), float(ideal[block.carried])))
        self.clips.append(clip.left)
        self._update(block, inputs, outputs, ideal)

    def _update(self, block: Block, inputs: list[Any], outputs: list[Array], ideal: list[Array]) -> None:
        """Takes up what became of the updates of weights."""
        moved = weight = 0.0
        for name, position in updated(block).items():
            old, low, high = (np.asarray(x[position], np.float64) for x in (inputs, outputs, ideal))
            with np.errstate(invalid="ignore", over="ignore"):
                count = UpdateCount.of(old, high - old, low)
                moved, weight = moved + float(np.square(high - old).sum()), weight + float(np.square(old).sum())
            # One infinite update would make every later sum over steps infinite.
            if np.isfinite(count.arrived):
                self.updates[name] = self.updates.get(name, UpdateCount()).plus(count)
        self.moves.append(float(np.sqrt(moved / weight)) if weight else float(moved > 0))


@dataclass
class Clip:
    """What clipping leaves of the gradients of a step.

    Attributes:
        before, after: sums of squares of what is clipped by value.
        factor: of clipping by norm.
    """

    before: float = 0.0
    after: float = 0.0
    factor: float = 1.0

    def add(self, equation: Equation, operands: list[Any], made: Array) -> None:
        """Takes up an equation that clips, see `bounds_of`."""
        with np.errstate(all="ignore"):
            match equation.op:
                case "maximum":
                    self.before += float(np.square(np.asarray(operands[0], np.float64)).sum())
                case "minimum":
                    self.after += float(np.square(np.asarray(made, np.float64)).sum())
                case "greater":
                    self.factor = min(1.0, float(operands[1]) / float(operands[0])) if float(operands[0]) else 1.0

    @property
    def left(self) -> float:
        """What is left of the norm."""
        return self.factor * float(np.sqrt(self.after / self.before)) if self.before else self.factor


def is_rounded(equation: Equation) -> bool:
    """Whether an equation has results or partial sums narrower than float32, or results that stand for blocks."""
    fmt, accumulate = equation.output.type.format, equation.arithmetic.accumulate
    if not isinstance(fmt, FloatFormat) or equation.op in STRUCTURE | UNROUNDED:
        return False
    return fmt != FLOAT32 or equation.op == "to_blocks" or (equation.op in SUMS and accumulate not in (None, FLOAT32))


def updated(block: Block) -> dict[str, int]:
    """Where in the carried state each parameter is."""
    made = {e.output: e.parameter for e in equations_of(block) if e.role == "update" and e.parameter}
    return {made[var]: i for i, var in enumerate(outputs_of(block)[: block.carried]) if var in made}


def _ideal(equation: Equation, operands: list[Any]) -> Array:
    """The float64 result of the same operands, at the elements that `sampled` takes."""
    # Sampled before, not after: an elementwise result needs the operands at the same places alone.
    if equation.op in ELEMENTWISE and not equation.params:
        shape = equation.output.type.shape
        there = [x if isinstance(x, float) else sampled(np.broadcast_to(x, shape)) for x in operands]
        return np.asarray(exact(equation.op, there, equation.params))
    whole = [x if isinstance(x, float) else as_exact(x) for x in operands]
    return sampled(np.asarray(exact(equation.op, whole, equation.params)))


def _is_total(equation: Equation) -> bool:
    """Whether it adds to a sum of gradients, its first operand."""
    return equation.family == "gradient_sum" and equation.op in ("add", "scaled_add")


def _kept(block: Block, inputs: list[Any]) -> dict[Var, Array]:
    """By the variable of each new state: the old value that it replaces."""
    definitions = {equation.output: equation for equation in equations_of(block)}
    found = {}
    for var, old in zip(outputs_of(block)[: block.carried], inputs, strict=False):
        # Behind a reshape or another move the state has the same elements: the equation that computed them is the one.
        while (equation := definitions.get(var)) is not None and equation.op in STRUCTURE:
            if isinstance(equation.inputs[0], Literal):
                break
            var = equation.inputs[0]
        if np.shape(old) == var.type.shape:
            found[var] = old
    return found
