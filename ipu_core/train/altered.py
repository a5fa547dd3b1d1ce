"""The same training with another rate or loss scale, or with gradients as they are instead of clipped."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ipu_core.ir.block import Block, Equation, Literal
from ipu_core.ir.bodies import equations_of, rewritten
from ipu_core.train.loop import TrainLoop
from ipu_core.train.loss_scale import LossScale, Scale
from ipu_core.train.optim.common import Rate, rate_of
from ipu_core.train.planned import planned_step
from ipu_core.train.state import identity_of
from ipu_core.train.stepper import Prepared, Stepper

FARTHEST = float(np.finfo(np.float32).max)


def altered(
    loop: TrainLoop, *, rate: float = 1.0, loss_scale: LossScale | None = None, clipped: bool = True
) -> TrainLoop:
    """A loop on the state of another, which it leaves as it is; a loss that is not finite is passed over in silence.

    Nothing is traced again: bounds of clipping are numbers in the equations, and become as large as float32 has.

    Args:
        loop: the training.
        rate: what every learning rate is multiplied by.
        loss_scale: another one, from its first scale on; None: the loop's own.
        clipped: whether gradients are clipped as the optimizer says.

    Raises:
        ValueError: another loss scale for a training without any, which was traced without.
    """
    own = loop._stepper
    prepared, state = replace(own.prepared, on_nonfinite="ignore"), own.state
    if loss_scale is not None:
        if state.steps.scale is None:
            raise ValueError("this training has no loss scale, so that another one has nothing to multiply")
        training = replace(prepared.planned.training, loss_scale=loss_scale)
        prepared = replace(prepared, planned=replace(prepared.planned, training=training))
        state = replace(state, steps=state.steps._replace(scale=Scale.of(loss_scale)))
    if not clipped:
        prepared = _unclipped(prepared)
    if rate != 1:
        prepared = replace(prepared, rate=_times(prepared.rate, rate))
    state = replace(state, identity=identity_of(prepared.planned, state.steps.key))
    return TrainLoop._of(Stepper(prepared, state, cause=own.cause), None, None)


def bounds_of(loop: TrainLoop) -> frozenset[int]:
    """The equations that clip gradients, by number; none where nothing is clipped."""
    return frozenset(e.number for e in equations_of(loop.ideal) if _clips(e, _bounds(loop.training.optimizer)))


def _times(rate: Rate, factor: float) -> Rate:
    if not callable(rate):
        return factor * rate
    return lambda step: factor * float(rate_of(rate, step))


def _bounds(optimizer: object) -> frozenset[tuple[str, float]]:
    """The operations and numbers by which an optimizer clips; see `optim.common.Common.clipped`."""
    value, norm = getattr(optimizer, "clip_value", None), getattr(optimizer, "clip_norm", None)
    by_value = set() if value is None else {("maximum", -float(value)), ("minimum", float(value))}
    return frozenset(by_value | (set() if norm is None else {("greater", float(norm)), ("divide", float(norm))}))


def _clips(equation: Equation, bounds: frozenset[tuple[str, float]]) -> bool:
    return equation.role == "optimizer" and any(
        (equation.op, x.value) in bounds for x in equation.inputs if isinstance(x, Literal)
    )


def _unclipped(prepared: Prepared) -> Prepared:
    planned = prepared.planned
    bounds = _bounds(planned.training.optimizer)

    def wide(equation: Equation) -> Equation:
        if not _clips(equation, bounds):
            return equation
        inputs = tuple(
            Literal(float(np.copysign(FARTHEST, x.value))) if isinstance(x, Literal) else x for x in equation.inputs
        )
        return replace(equation, inputs=inputs)

    ideal: Block = planned.ideal
    equations = rewritten(ideal.equations, lambda some: [wide(each) for each in some])
    changed = replace(ideal, equations=tuple(equations))
    execution = replace(planned.execution, engine="direct", reorder=False)
    return replace(prepared, planned=planned_step(changed, planned.training, execution))
