"""Packed BERT (Krell, Kosec, Perez, Fitzgibbon, arXiv 2107.02027, 2021): several sequences a row, the same training.

Their claims: with a mask over sequences, positions that begin again and losses by sequence nothing of one sequence
reaches another; betas to the power of sequences a row let LAMB's moments last as long; on the IPU packs of two and
three ran 1.544 and 1.716 times as many sequences a second where they hold 1.612 and 1.790. Here BERT in small, of
bytes.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ipu_core.ir.passes.autodiff import value_and_grad
from ipu_core.ir.pytree import flatten
from ipu_core.ir.run.evaluate import evaluate_flat
from ipu_core.ir.trace.tracing import trace
from ipu_core.reproduce.byte_model import in_nats, of_rows
from ipu_core.reproduce.finding import Finding, Progress, Reproduction, spread
from ipu_core.reproduce.seeds import above
from ipu_core.study.models import bert, sentences
from ipu_core.study.models.size import Size
from ipu_core.study.models.start import initial
from ipu_core.study.point import Recipe, make_loop
from ipu_core.study.settings import Point
from ipu_core.train.data import text
from ipu_core.train.optim import Lamb

BATCH, STEPS, RATE, DEPTH = 16, 800, 0.002, 3
SIZE = Size(width=64, layers=2, heads=4, context=64)
ROWS: Mapping[str, tuple[int, bool]] = {
    "unpacked": (1, False),
    "packed, beta^p": (DEPTH, True),
    "packed, beta": (DEPTH, False),
}
"""Sequences of a row, at most, and whether betas are raised to how many there are."""
PUBLISHED = {(2, "lpfhp"): (1.612, 1.544), (3, "lpfhp"): (1.790, 1.716), (3, "nnlshp"): (1.996, 1.913)}
"""Sequences a row, and the speed-up in sequences a second that was measured, by depth and strategy; the first two by
SPFHP, here by LPFHP, which packs sequences of one length too."""
EXACT = 1e-12


@dataclass(frozen=True)
class Equality:
    """How far the packed loss and gradients are from the unpacked ones, as a share, and without what keeps them apart.

    Attributes:
        packed: as they should be.
        unmasked, in_row: of the loss without the mask over sequences, and with the places of the row as positions.
    """

    packed: float
    unmasked: float
    in_row: float


def equality(size: Size, depth: int = DEPTH) -> Equality:
    """Of one batch of rows with the sequences that lie in them, in float64."""
    train = text.load().train
    packed, apart = (sentences.made(train, size.context, each) for each in (depth, 1))
    batch = sentences.asked(packed, np.arange(BATCH), (0, 0))
    own = packed.rows.sources[:BATCH]
    row_of = np.empty(len(apart), np.int64)
    row_of[apart.rows.sources[:, 0]] = np.arange(len(apart))
    unpacked = sentences.asked(apart, row_of[own[own >= 0]], (0, 0))
    exact = _exact(size, unpacked)
    flat = {**batch, "segments": np.ones_like(batch["segments"])}
    places = {**batch, "positions": np.broadcast_to(np.arange(size.context, dtype=np.int32), batch["tokens"].shape)}
    off = [_off(_exact(size, each), exact) for each in (batch, flat, places)]
    return Equality(off[0][0], off[1][1], off[2][1])


def _exact(size: Size, batch: Any) -> list[Any]:
    params = initial(bert.layout(size), 0)
    block = value_and_grad(trace(functools.partial(bert.loss, bert.Shape(size.heads)), params, batch))
    return evaluate_flat(block, [np.asarray(leaf) for leaf in flatten((params, batch))[0]])


def _off(given: list[Any], exact: list[Any]) -> tuple[float, float]:
    """Of all results the most, beside the largest of each; and of the loss."""
    shares = [float(np.abs(a - b).max() / np.abs(b).max()) for a, b in zip(given, exact, strict=True)]
    return max(shares), shares[0]


def train(row: str, size: Size, steps: int, seed: int) -> float:
    """The test loss in nats a masked byte, after as many sequences as `steps` batches of unpacked rows have."""
    depth, powered = ROWS[row]
    problem = bert.problem(size, text.load(), BATCH, depth)
    factor = problem.sequences_of_a_row
    optimizer = Lamb(RATE, packing=factor if powered else 1.0)
    count = max(1, round(steps / factor))
    loop = make_loop(problem, Recipe.of(count, optimizer=optimizer, engine="direct"), Point("fp32.32", seed))
    loop.run(problem.batches(seed), count)
    assert problem.evaluate is not None
    return problem.evaluate(loop.params, loop.precision)["test_loss"]


def speeds(size: Size) -> dict[tuple[int, str], tuple[float, float]]:
    """By depth and strategy: sequences a row, and sequences a second on a chip's tiles, in units of unpacked rows."""
    found = {}
    for depth, strategy in ((1, "lpfhp"), *PUBLISHED):
        problem = bert.problem(size, text.load(), BATCH, depth, strategy=strategy)
        profile = make_loop(problem, Recipe.of(1, optimizer=Lamb(RATE)), Point("fp16.16/stochastic", 0)).profile
        assert profile is not None
        found[depth, strategy] = problem.sequences_of_a_row, problem.sequences_of_a_row / profile.cycles
    whole = found[1, "lpfhp"]
    return {plan: (found[plan][0] / whole[0], found[plan][1] / whole[1]) for plan in PUBLISHED}


def run(seeds: Sequence[int], share: float, progress: Progress) -> list[Finding]:
    """The findings; see `Reproduction`."""
    steps = max(1, round(share * STEPS))
    same = equality(SIZE)
    losses = of_rows(ROWS, lambda row, seed: train(row, SIZE, steps, seed), seeds, progress, in_nats)
    return judged(same, losses, speeds(SIZE))


def judged(same: Equality, losses: dict[str, list[float]], found: Mapping[Any, tuple[float, float]]) -> list[Finding]:
    """The findings in what was measured."""
    off = {
        row: [abs(one - other) for one, other in zip(losses[row], losses["unpacked"], strict=True)]
        for row in ("packed, beta^p", "packed, beta")
    }
    powered, plain = off.values()
    least = min(speed / held for held, speed in PUBLISHED.values())
    return [
        Finding(
            "packed rows have the loss and the gradients of their sequences one a row (float64, to 1e-12)",
            f"off by {same.packed:.1e}",
            same.packed <= EXACT,
        ),
        Finding(
            "without the mask over sequences, or with positions of the row, they have not",
            f"loss off by {same.unmasked:.1e}, {same.in_row:.1e}",
            min(same.unmasked, same.in_row) > 1e-6,
        ),
        Finding(
            "with betas to the power of sequences a row the packed training ends nearer to the unpacked one",
            f"{spread(powered)} off, with betas as they were {spread(plain)}; unpacked {spread(losses['unpacked'])}",
            above([other - one for one, other in zip(powered, plain, strict=True)]),
            len(powered),
        ),
        Finding(
            "packs of two, three, and NNLSHP's: 1.544, 1.716, 1.913 times as many sequences a second, 96 % of what "
            "they hold (no smaller share here, and no more than all)",
            "; ".join(f"{speed:.3f} of {held:.3f} held, {speed / held:.0%}" for held, speed in found.values()),
            all(least <= speed / held <= 1.0 for held, speed in found.values()),
        ),
    ]


PACKING = Reproduction(
    "packing",
    "several sequences in a row",
    "Krell, Kosec, Perez and Fitzgibbon 2021, arXiv 2107.02027",
    run,
)
