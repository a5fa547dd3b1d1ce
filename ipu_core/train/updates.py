"""Counting what becomes of a step's weight updates: how many are lost to rounding, and how much of them arrives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ipu_core.diagnose.measure import wide
from ipu_core.ir.block import Array, Equation
from lowprec.statistics import UpdateCount


class UpdateCounter:
    """An observer of the updates of a step (see `ipu_core.ir.run.execute.Observer`) that counts them.

    Attributes:
        total: Of those seen so far.
    """

    def __init__(self) -> None:
        self.total = UpdateCount()

    def __call__(self, equation: Equation, operands: Sequence[Any], updated: Array) -> None:
        """Counts an equation that writes a weight, which is weight + scale * direction."""
        weight, direction, scale = (wide(x, atom) for x, atom in zip(operands, equation.inputs, strict=True))
        with np.errstate(invalid="ignore", over="ignore"):  # a run that diverged has infinities
            update = scale * direction
        self.total = self.total.plus(UpdateCount.of(weight, update, wide(updated, equation.output)))
