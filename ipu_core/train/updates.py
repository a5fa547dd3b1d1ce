"""What becomes of weight updates: how many are lost to rounding, and how much of them arrives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ipu_core.ir.block import Array, Equation


class UpdateCount(NamedTuple):
    """What became of the weight updates of one step, over all parameters.

    Attributes:
        wanted: Elements whose update was not zero.
        lost: Of those, the elements that kept their value.
        squared: Sum of the squares of the wanted updates.
        arrived: Sum of wanted update times change made; equals `squared` on average where rounding is unbiased.
    """

    wanted: int
    lost: int
    squared: float
    arrived: float

    @staticmethod
    def of(weight: Array, direction: Array, scale: float, updated: Array) -> UpdateCount:
        """Counts one update, updated = round(weight + scale * direction), in float64."""
        with np.errstate(invalid="ignore"):  # a run that diverged has infinities
            wanted = np.float64(scale) * direction.astype(np.float64)
            change = updated.astype(np.float64) - weight.astype(np.float64)
        asked = wanted != 0
        lost = int(np.count_nonzero(asked & (change == 0)))
        return UpdateCount(
            int(np.count_nonzero(asked)), lost, float(np.vdot(wanted, wanted)), float(np.vdot(wanted, change))
        )

    def plus(self, other: UpdateCount) -> UpdateCount:
        """The sum of two counts."""
        return UpdateCount(
            self.wanted + other.wanted,
            self.lost + other.lost,
            self.squared + other.squared,
            self.arrived + other.arrived,
        )


class UpdateCounter:
    """An observer of the updates of a step (see `ipu_core.ir.execute.Observer`) that counts them.

    Attributes:
        total: Of those seen so far.
    """

    def __init__(self) -> None:
        self.total = UpdateCount(0, 0, 0.0, 0.0)

    def __call__(self, equation: Equation, operands: Sequence[Any], updated: Array) -> None:
        """Counts an equation that writes a weight."""
        weight, direction, scale = operands
        self.total = self.total.plus(UpdateCount.of(weight, direction, float(scale), updated))
