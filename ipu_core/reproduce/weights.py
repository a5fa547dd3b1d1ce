"""bfloat16 weights and moments under AdamW (Zamirai et al., arXiv 2010.06192, 2020): which rounding loses updates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ipu_core.reproduce.byte_model import BATCH, SIZE, in_nats, of_rows
from ipu_core.reproduce.finding import Finding, Progress, Reproduction, spread
from ipu_core.reproduce.seeds import SAME, above, below, beside, every
from ipu_core.study.models import lm
from ipu_core.study.models.size import Size
from ipu_core.study.point import Recipe, run_point
from ipu_core.study.settings import Point
from ipu_core.study.tasks import Task
from ipu_core.train.data import text
from ipu_core.train.optim import AdamW
from ipu_core.train.schedules import Cosine

STEPS, RATE = 600, 1e-3
ROWS = {
    "nothing": ("fp32.32", False),
    "weights, nearest": ("fp32.32/weights=bfloat16", False),
    "weights, stochastic": ("fp32.32/stochastic/weights=bfloat16", False),
    "weights, Kahan": ("fp32.32/weights=bfloat16", True),
    "moments, nearest": ("fp32.32/moments=bfloat16", False),
    "moments, stochastic": ("fp32.32/stochastic/moments=bfloat16", False),
}
"""What is kept in bfloat16: the precision, and whether Kahan's sum is used."""


class WeightsResult(NamedTuple):
    """A finished run.

    Attributes:
        loss: on the validation part, in nats a byte.
        lost: (step, share of its weight updates that were lost), of steps evenly spread.
    """

    loss: float
    lost: list[tuple[int, float]]

    def late(self) -> float:
        """The mean share in the second half of the steps looked at."""
        # late, when updates are small beside the weights
        return float(np.mean([share for _, share in self.lost[len(self.lost) // 2 :]]))


def train(row: str, size: Size, steps: int, seed: int) -> WeightsResult:
    """A model of which a row says what is kept in bfloat16."""
    precision, kahan = ROWS[row]
    problem = lm.problem(size, text.load(), BATCH)
    # the rate falls to a tenth: at a constant one, in half the steps, nearest cost only 0.077 nats
    optimizer = AdamW(Cosine(RATE, steps, RATE / 10), kahan=kahan)
    recipe = Recipe.of(steps, optimizer=optimizer, engine="direct")
    # a study's point, since it counts lost updates along the way
    result = run_point(problem, recipe, Task(Point(precision, seed)), lambda _: None)
    return WeightsResult(result["test_loss"], [(step, share) for step, share in result["lost_updates_by_step"]])


def measure(seeds: Sequence[int], share: float, progress: Progress) -> dict[str, list[WeightsResult]]:
    """What `train` gives for every row and seed."""
    steps = max(2, round(share * STEPS))

    def words(runs: list[WeightsResult]) -> str:
        late = 100 * np.mean([each.late() for each in runs])
        return f"{in_nats([each.loss for each in runs])}, {late:.0f} % of late updates lost"

    return of_rows(ROWS, lambda row, seed: train(row, SIZE, steps, seed), seeds, progress, words)


def run(seeds: Sequence[int], share: float, progress: Progress) -> list[Finding]:
    """The findings; see `Reproduction`."""
    return judged(measure(seeds, share, progress))


def judged(found: dict[str, list[WeightsResult]]) -> list[Finding]:
    """The findings in what became of every row."""
    losses = {row: [each.loss for each in of_seeds] for row, of_seeds in found.items()}
    lost_late = 100 * float(np.mean([each.late() for each in found["weights, nearest"]]))
    seeds, shown = len(losses["nothing"]), {row: spread(values) for row, values in losses.items()}
    bound = SAME * float(np.mean(losses["nothing"]))
    remedies = ("weights, stochastic", "weights, Kahan")
    moments = [float(np.mean(beside(losses, f"moments, {name}", "nothing"))) for name in ("nearest", "stochastic")]
    return [
        Finding(
            "nearest rounding of weight updates cancels small updates, which degrades the model (by more than "
            f"{100 * SAME:.1f} % of 32-bit's loss)",
            f"{shown['weights, nearest']} against {shown['nothing']}; {lost_late:.0f} % of late updates lost",
            above(beside(losses, "weights, nearest", "nothing"), bound),
            seeds,
        ),
        Finding(
            f"stochastic rounding and Kahan's sum match 32-bit training (within {100 * SAME:.1f} %, as published)",
            f"stochastic {shown['weights, stochastic']}, Kahan {shown['weights, Kahan']}",
            every(*(below(beside(losses, row, "nothing"), bound) for row in remedies)),
            seeds,
        ),
        Finding(
            "bfloat16 moments (no claim of the paper's is tested; the change of the loss is measured)",
            f"nearest {moments[0]:+.4f}, stochastic {moments[1]:+.4f}",
            None,
        ),
    ]


WEIGHTS = Reproduction("weights", "bfloat16 weights under AdamW", "Zamirai et al. 2020, arXiv 2010.06192", run)
