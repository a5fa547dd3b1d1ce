"""What the formats of one equation alone do to a step: its updates, all else in float64, beside the ideal ones."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from ipu_core.diagnose.blame.lockstep import updated
from ipu_core.ir.block import Array, Equation, Literal
from ipu_core.ir.exact import as_exact
from ipu_core.ir.precision.retype import cast
from ipu_core.ir.regions import path_key
from ipu_core.ir.run.declared import declared
from ipu_core.ir.run.evaluate import exact_result, run
from ipu_core.ir.run.kernels import given_order
from ipu_core.train.loop import TrainLoop
from lowprec import Key


def influences(loop: TrainLoop, inputs: list[Any], key: Key, numbers: Iterable[int]) -> dict[int, float]:
    """By number of an equation, how far it alone throws the updates of all weights off, as a share of their norm.

    Its own error says little of that: what becomes zero may have been nothing beside what it is added to. At most 1,
    since an update that is wholly wrong cannot be more so.

    Args:
        loop: whose block, orders of sums and control are taken.
        inputs, key: of one step.
        numbers: of the equations.
    """
    ideal = _outputs(loop, inputs, key, None)
    return {number: _off(loop, inputs, ideal, _outputs(loop, inputs, key, number)) for number in numbers}


def _outputs(loop: TrainLoop, inputs: list[Any], key: Key, number: int | None) -> list[Array]:
    """The outputs of the step in float64, with one equation as its formats declare it."""

    def rule(equation: Equation, operands: list[Any], path: tuple[int, ...]) -> Array:
        if equation.number != number:
            return exact_result(equation, operands, path_key(key, path))
        own = None if equation.draws is None else path_key(key, path).fold_in(equation.draws)
        given = [
            x if isinstance(var, Literal) else cast(x, var.type.format)
            for x, var in zip(operands, equation.inputs, strict=True)
        ]
        made = declared(equation, given, own, given_order(equation, loop.accumulations), loop.control)
        return as_exact(made)

    with np.errstate(all="ignore"):
        return run(loop.block, inputs, lambda x, _: as_exact(x), rule)


def _off(loop: TrainLoop, inputs: list[Any], ideal: list[Array], made: list[Array]) -> float:
    wrong = whole = 0.0
    for position in updated(loop.block).values():
        old, high, low = (np.asarray(x[position], np.float64) for x in (inputs, ideal, made))
        with np.errstate(all="ignore"):
            wrong, whole = wrong + float(np.square(low - high).sum()), whole + float(np.square(high - old).sum())
    if not np.isfinite(wrong):
        return 1.0
    return min(1.0, float(np.sqrt(wrong / whole))) if whole else float(wrong > 0)
