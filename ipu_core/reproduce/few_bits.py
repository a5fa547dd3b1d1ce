"""Stochastic rounding with few random bits (Fitzgibbon and Felix, arXiv 2504.20634, 2025).

Their setting, smaller: a character GPT whose matrices are rounded to 8 bits after every step of AdamW, saturating, with
three random bits. "stochastic" is their SRFF, "stochastic_half" SRF and "stochastic_even" SRC.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

import lowprec
from ipu_core.reproduce import byte_model
from ipu_core.reproduce.byte_model import SIZE, in_nats, of_rows
from ipu_core.reproduce.finding import Finding, Progress, Reproduction, spread
from ipu_core.reproduce.seeds import SAME, above, below, beside, every
from ipu_core.study.models.size import Size
from ipu_core.train.loop import TrainLoop
from ipu_core.train.optim import AdamW
from ipu_core.train.schedules import Cosine, WarmUp
from lowprec import Key

FORMAT, STEPS = lowprec.p3109(8, 4), 600
ROWS: dict[str, dict[str, Any] | None] = {
    "float32": None,
    "16 bits": {"rounding": "stochastic", "random_bits": 16},
    "SRF, 3 bits": {"rounding": "stochastic_half", "random_bits": 3},
    "SRC, 3 bits": {"rounding": "stochastic_even", "random_bits": 3},
    "SRFF, 3 bits": {"rounding": "stochastic", "random_bits": 3},
    "nearest": {"rounding": "nearest_even"},
}


def optimizer(steps: int) -> AdamW:
    """nanoGPT's: a warm-up of a sixth, then half a cosine from 1e-3 to 1e-4, beta2 0.99, decay 0.1, clipped to 1."""
    warm = max(1, steps // 6)
    schedule = WarmUp(Cosine(1e-3, max(1, steps - warm), 1e-4), warm)
    return AdamW(schedule, b2=0.99, weight_decay=0.1, clip_norm=1.0)


class LossCurves(NamedTuple):
    """The validation loss at the end and the training loss of every step, in nats a byte."""

    validation: float
    training: list[float]


def train(row: str, size: Size, steps: int, seed: int) -> LossCurves:
    """A model whose matrices are rounded after each step as a row says."""
    rule = ROWS[row]

    def after(loop: TrainLoop) -> None:
        if rule is not None:
            # from outside of the step: the optimizer computes in float32, and its result alone is rounded
            loop.restore(rounded(loop.arrays(), rule, Key(seed).fold_in(loop.step - 1)), loop.step)

    # all else in float32, so that the rounding of the weights is the only difference
    made = byte_model.train("fp32.32", size, seed, steps=steps, optimizer=optimizer(steps), after=after)
    return LossCurves(made.validation, made.training)


def rounded(arrays: dict[str, Any], rule: dict[str, Any], key: Key) -> dict[str, Any]:
    """A state whose parameters of two and more axes are on the 8-bit format's grid."""
    # biases and scales of norms stay in float32, as in the paper; sorted, so that keys follow from names
    names = [name for name, array in sorted(arrays.items()) if name.startswith("params.") and array.ndim > 1]
    new = dict(arrays)
    for number, name in enumerate(names):
        # no two matrices draw the same bits
        own: dict[str, Any] = {"key": key.fold_in(number)} if rule["rounding"].startswith("stochastic") else {}
        new[name] = np.asarray(lowprec.round(arrays[name], FORMAT, overflow="saturate", **rule, **own), np.float32)
    return new


def measure(seeds: Sequence[int], share: float, progress: Progress) -> dict[str, list[LossCurves]]:
    """What `train` gives for every row and seed."""
    steps = max(1, round(share * STEPS))

    def words(runs: list[LossCurves]) -> str:
        return in_nats([each.validation for each in runs])

    return of_rows(ROWS, lambda row, seed: train(row, SIZE, steps, seed), seeds, progress, words)


def validation(found: dict[str, list[LossCurves]]) -> dict[str, list[float]]:
    """The validation losses of every row and seed."""
    return {row: [each.validation for each in of_seeds] for row, of_seeds in found.items()}


def run(seeds: Sequence[int], share: float, progress: Progress) -> list[Finding]:
    """The findings; see `Reproduction`."""
    return judged(validation(measure(seeds, share, progress)))


def judged(losses: dict[str, list[float]]) -> list[Finding]:
    """The findings in the validation losses of every row."""
    seeds, shown = len(losses["float32"]), {row: spread(values) for row, values in losses.items()}
    unbiased = ("SRF, 3 bits", "SRC, 3 bits")
    return [
        Finding(
            f"with enough random bits 8-bit weights train as float32's do (within {100 * SAME:.1f} % of its loss)",
            f"{shown['16 bits']} against {shown['float32']}",
            below(beside(losses, "16 bits", "float32"), SAME * float(np.mean(losses["float32"]))),
            seeds,
        ),
        Finding(
            f"three bits without bias (SRF, SRC) train as enough of them do (within {100 * SAME:.1f} % of the loss)",
            f"SRF {shown['SRF, 3 bits']}, SRC {shown['SRC, 3 bits']} against {shown['16 bits']}",
            every(
                *(below(beside(losses, row, "16 bits"), SAME * float(np.mean(losses["16 bits"]))) for row in unbiased)
            ),
            seeds,
        ),
        Finding(
            "the plainest implementation (SRFF) is biased and trains worse than either",
            shown["SRFF, 3 bits"],
            every(*(above(beside(losses, "SRFF, 3 bits", row)) for row in unbiased)),
            seeds,
        ),
        Finding(
            "rounding to nearest is worst",
            shown["nearest"],
            above(beside(losses, "nearest", "SRFF, 3 bits")),
            seeds,
        ),
    ]


FEW_BITS = Reproduction(
    "few-bits", "8-bit weights with three random bits", "Fitzgibbon and Felix 2025, arXiv 2504.20634", run
)
