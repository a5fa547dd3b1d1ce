"""Runs in further seeds, done once each: what a claim is held against."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ipu_core.diagnose.blame.gap import Gap, Losses, told_apart
from ipu_core.diagnose.blame.trials import SEEDS, Cost, Trial, Trials


class Seeds:
    """The losses of runs in every seed, the given one first.

    Args:
        trials: that do them.
    """

    def __init__(self, trials: Trials) -> None:
        self._trials = trials
        self._known: dict[tuple[int, int], tuple[Trial, list[Losses]]] = {}

    def cost(self, runs: Sequence[Trial], length: int) -> Cost:
        """What runs in the other seeds take that were not done yet."""
        fresh = {id(run) for run in runs if (id(run), length) not in self._known}
        return Cost((SEEDS - 1) * length * len(fresh))

    def losses(self, run: Trial, length: int) -> list[Losses]:
        """The losses of a run in every seed."""
        # The run is kept beside them: an id is that of another object once the first is gone.
        if (id(run), length) not in self._known:
            others = [self._trials.seeded(run, seed, length) for seed in range(1, SEEDS)]
            self._known[id(run), length] = run, [run.after(length), *others]
        return self._known[id(run), length][1]

    def shares(self, low: Trial, better: Trial, reference: Trial, length: int) -> tuple[list[float], float]:
        """By seed how far one run lies above another, as a share of what the reference learns; the noise of that."""
        runs = (self.losses(run, length) for run in (low, better, reference))
        rows = [
            (gap.level(worse, length) - gap.level(less, length), gap.level(wide, length), gap.unit(length))
            for worse, less, wide in zip(*runs, strict=True)
            for gap in [Gap(worse, wide)]
        ]
        differences, levels, units = np.array(rows).T
        # One unit for all: where a seed has learnt next to nothing yet, any difference is a huge share of that.
        unit = units.mean()
        return (differences / unit).tolist(), float(np.std(levels, ddof=1) / unit)

    def tell(self, low: Trial, better: Trial, reference: Trial, length: int, least: float) -> tuple[list[float], bool]:
        """By seed how far one run lies above another, and whether the seeds tell that from chance."""
        shares, noise = self.shares(low, better, reference, length)
        return shares, told_apart(shares, noise, least)
