"""BERT under unit scaling (Blake, Orr and Luschi, arXiv 2303.11257, 2023), as Graphcore's software talk has it.

The claim: under unit scaling BERT trains in FP16 and FP8 as in float32, without a loss scale. Here packed BERT in
small; FP8 products into float32, and in the order of a C600, whose unit adds FP8 products up in halves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ipu_core.reproduce.byte_model import in_nats, of_rows
from ipu_core.reproduce.finding import Finding, Progress, Reproduction, spread
from ipu_core.reproduce.seeds import below, beside
from ipu_core.study.models import bert
from ipu_core.study.models.size import Size
from ipu_core.study.point import Recipe, make_loop
from ipu_core.study.settings import Point
from ipu_core.train.data import text
from ipu_core.train.optim import Lamb

BATCH, STEPS, RATE, DEPTH = 16, 800, 0.004, 3
"""The rate is the best of powers of two times 0.001 for LAMB, with unit scaling and without."""
SIZE = Size(width=64, layers=2, heads=4, context=64)
NEAR = 0.025
"""Of the loss: half of what FP16 without any scale lost in Blake et al. (1.661 bits a character, float32 1.582)."""


class Row(NamedTuple):
    """A precision, and the chip whose order of sums it has."""

    precision: str
    target: str = "gc200"


ROWS: Mapping[str, Row] = {
    "float32": Row("fp32.32"),
    "FP16, no loss scale": Row("fp16.16/stochastic"),
    "FP8, no loss scale": Row("fp8/unscaled"),
    "unit float32": Row("fp32.32/unit_scaled=true"),
    "unit-fp16": Row("unit-fp16"),
    "unit-fp8": Row("unit-fp8"),
    "unit FP8 on a C600": Row("fp8.16/unit_scaled=true", "c600"),
}


def train(row: str, size: Size, steps: int, seed: int) -> float:
    """The test loss at the end, in nats a masked byte."""
    how = ROWS[row]
    problem = bert.problem(size, text.load(), BATCH, DEPTH)
    optimizer = Lamb(RATE, packing=problem.sequences_of_a_row)
    recipe = Recipe.of(steps, optimizer=optimizer, engine="direct", target=how.target)
    loop = make_loop(problem, recipe, Point(how.precision, seed))
    loop.run(problem.batches(seed), steps)
    assert problem.evaluate is not None
    return float(problem.evaluate(loop.params, loop.precision)["test_loss"])


def run(seeds: Sequence[int], share: float, progress: Progress) -> list[Finding]:
    """The findings; see `Reproduction`."""
    steps = max(1, round(share * STEPS))
    return judged(of_rows(ROWS, lambda row, seed: train(row, SIZE, steps, seed), seeds, progress, in_nats))


def judged(losses: Mapping[str, list[float]]) -> list[Finding]:
    """The findings in what was measured."""
    under, without = "unit float32", "float32"
    base, bound = losses[under], NEAR * float(np.mean(losses[without]))
    return [
        *(
            Finding(
                f"{row} trains as float32 does under it, without a loss scale (within {100 * NEAR:.1f} % above it)",
                f"{spread(losses[row])}; float32 {spread(base)}",
                below(beside(losses, row, under), bound),
                len(base),
            )
            for row in ("unit-fp16", "unit-fp8", "unit FP8 on a C600")
        ),
        Finding(
            f"and no worse than float32 without unit scaling (within {100 * NEAR:.1f} %)",
            f"{spread(base)}; without {spread(losses[without])}",
            below(beside(losses, under, without), bound),
            len(base),
        ),
        Finding(
            "no claim: without either scale",
            "; ".join(f"{row} {spread(losses[row])}" for row in ("FP16, no loss scale", "FP8, no loss scale")),
            None,
        ),
    ]


UNIT_BERT = Reproduction("unit-bert", "BERT without loss scales", "Blake, Orr and Luschi 2023, arXiv 2303.11257", run)
