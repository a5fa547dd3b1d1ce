"""bfloat16 weights and moments under AdamW (Zamirai et al., arXiv 2010.06192, 2020): which rounding loses updates."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ipu_core.study import lm
from ipu_core.study.point import Point, Recipe, run_point
from ipu_core.study.reproduce.finding import Finding, Progress, Reproduction, mean_of, spread
from ipu_core.study.size import Size
from ipu_core.train import text
from ipu_core.train.optim import AdamW
from ipu_core.train.schedules import Cosine

STEPS, BATCH, RATE = 600, 16, 1e-3
SIZE = Size(width=64, layers=2, heads=4, context=64)
ROWS = {
    "nothing": ("fp32.32", False),
    "weights, nearest": ("fp32.32/weights=bfloat16", False),
    "weights, stochastic": ("fp32.32/stochastic/weights=bfloat16", False),
    "weights, Kahan": ("fp32.32/weights=bfloat16", True),
    "moments, nearest": ("fp32.32/moments=bfloat16", False),
    "moments, stochastic": ("fp32.32/stochastic/moments=bfloat16", False),
}
"""What is kept in bfloat16: the precision, and whether Kahan's sum is used."""


def train(row: str, size: Size, steps: int, seed: int) -> tuple[float, float]:
    """The validation loss in nats a byte, and the share of updates lost in the second half."""
    precision, kahan = ROWS[row]
    problem = lm.problem(size, text.load(), BATCH)
    recipe = Recipe(AdamW(Cosine(RATE, steps, RATE / 10), kahan=kahan), steps, "direct")
    result = run_point(problem, recipe, Point(precision, seed), lambda _: None)
    late = [share for step, share in result["lost_updates_by_step"] if step >= steps // 2]
    return result["test_loss"], float(np.mean(late))


def run(seeds: Sequence[int], share: float, progress: Progress) -> list[Finding]:
    """The findings; see `Reproduction`."""
    steps = max(2, round(share * STEPS))
    losses: dict[str, list[float]] = {}
    lost: dict[str, list[float]] = {}
    for row in ROWS:
        for seed in seeds:
            loss, updates = train(row, SIZE, steps, seed)
            losses.setdefault(row, []).append(loss)
            lost.setdefault(row, []).append(updates)
        progress(f"{row}: {spread(losses[row])} nats a byte, {100 * np.mean(lost[row]):.0f} % of late updates lost")
    return judged(losses, lost)


def judged(losses: dict[str, list[float]], lost: dict[str, list[float]]) -> list[Finding]:
    """The findings in the validation losses and shares of lost updates of every row."""
    mean, gone = mean_of(losses), mean_of(lost)
    shown = {row: spread(values) for row, values in losses.items()}
    full, lost_late = mean["nothing"], 100 * gone["weights, nearest"]
    remedies = [mean[f"weights, {name}"] - full for name in ("stochastic", "Kahan")]
    moments = [mean[f"moments, {name}"] - full for name in ("nearest", "stochastic")]
    return [
        Finding(
            "nearest rounding of weight updates cancels small updates, which degrades the model (0.10 nats or more)",
            f"{shown['weights, nearest']} against {shown['nothing']}; {lost_late:.0f} % of late updates lost",
            mean["weights, nearest"] - full >= 0.10,
        ),
        Finding(
            "stochastic rounding and Kahan's sum match 32-bit training (within 0.01 nats)",
            f"stochastic {shown['weights, stochastic']}, Kahan {shown['weights, Kahan']}",
            max(map(abs, remedies)) <= 0.01,
        ),
        Finding(
            "bfloat16 moments (no claim of the paper's is tested; the change of the loss is measured)",
            f"nearest {moments[0]:+.4f}, stochastic {moments[1]:+.4f}",
            None,
        ),
    ]


WEIGHTS = Reproduction("weights", "bfloat16 weights under AdamW", "Zamirai et al. 2020, arXiv 2010.06192", run)
