"""Small batches (Masters and Luschi, arXiv 1804.07612, 2018; Graphcore's talk of 2017): updates to a loss by batch.

They let the rate grow with the batch, so that a sample moves the weights as far whatever the batch is. Then larger
batches train at fewer of these rates, and the best results came from batches of 2 to 32. Here a perceptron on digits,
every batch size at every rate for as many samples.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ipu_core.reproduce.finding import Finding, Progress, Reproduction, spread
from ipu_core.reproduce.seeds import above, below
from ipu_core.study.models import mlp
from ipu_core.study.point import Recipe, make_loop
from ipu_core.study.settings import Point, Settings
from ipu_core.train.data import dataset
from ipu_core.train.optim import Sgd

BATCHES = (2, 4, 8, 16, 32, 64, 128, 256, 512)
RATES = tuple(2.0**-k for k in range(1, 14))
"""Of a sample: a batch of m has m times that."""
EPOCHS, LAYERS = 20, (64, 64, 10)
LEVEL = 0.1
"""The training loss to come to, in nats."""
NEAR = 0.02
"""Of the best accuracy, within which a rate counts as one that trains."""
MOST = 32
"""The largest batch of the published best results."""
PRECISIONS = ("fp32.32", "fp16.16/stochastic")


class Trained(NamedTuple):
    """A training of one batch size and rate.

    Attributes:
        accuracy: on the test rows, at the end.
        updates: until the mean loss of an epoch's worth of samples was LEVEL; infinite: never.
    """

    accuracy: float
    updates: float


def train(batch: int, rate: float, precision: str, epochs: int, seed: int) -> Trained:
    """A training of so many epochs."""
    data = dataset.load("digits")
    problem = mlp.problem(Settings(layers=LAYERS, batch=batch), data)
    each = len(data.x_train) // batch
    steps = epochs * each
    loop = make_loop(problem, Recipe.of(steps, optimizer=Sgd(rate * batch), engine="direct"), Point(precision, seed))
    with np.errstate(all="ignore"):  # large rates diverge, and that is the result
        losses = np.asarray(loop.run(problem.batches(seed), steps), np.float64)
    # Over the samples of an eighth of an epoch: a loss of two rows says little.
    window = max(1, each // 8)
    means = np.convolve(losses, np.full(window, 1 / window), "valid")
    there = np.flatnonzero(means <= LEVEL)
    assert problem.evaluate is not None
    accuracy = problem.evaluate(loop.params, loop.precision)["test_accuracy"]
    return Trained(accuracy, float(there[0] + window) if len(there) else math.inf)


Found = Mapping[int, Mapping[float, list[Trained]]]
"""By batch size and rate, over seeds."""


def measure(seeds: Sequence[int], share: float, progress: Progress) -> tuple[Found, dict[str, dict[int, list[float]]]]:
    """In FP32.32 every batch at every rate; and updates to the loss by precision and batch, at its best rate."""
    epochs = max(1, round(share * EPOCHS))
    found: dict[int, dict[float, list[Trained]]] = {}
    for batch in BATCHES:
        found[batch] = {rate: [train(batch, rate, "fp32.32", epochs, seed) for seed in seeds] for rate in RATES}
        rate, right = best(found[batch])
        progress(f"batch {batch}: {right:.1%} right at {rate:g} a sample")
    updates: dict[str, dict[int, list[float]]] = {}
    for precision in PRECISIONS:
        updates[precision] = {}
        for batch in BATCHES:
            rate = quickest(found[batch])
            made = [train(batch, rate, precision, epochs, seed).updates for seed in seeds]
            updates[precision][batch] = made
    return found, updates


def best(rates: Mapping[float, Sequence[Trained]]) -> tuple[float, float]:
    """The rate of the best accuracy, and that."""
    means = {rate: float(np.mean([each.accuracy for each in made])) for rate, made in rates.items()}
    rate = max(means, key=lambda each: means[each])
    return rate, means[rate]


def quickest(rates: Mapping[float, Sequence[Trained]]) -> float:
    """The rate that comes to the loss in the fewest updates."""
    means = {rate: float(np.mean([each.updates for each in made])) for rate, made in rates.items()}
    return min(means, key=lambda each: means[each])


def _right(found: Found, batch: int) -> list[float]:
    """The accuracy of a batch size at its best rate, of every seed."""
    return [each.accuracy for each in found[batch][best(found[batch])[0]]]


def _width(found: Found, batch: int) -> int:
    """How many of the rates train a batch size to within NEAR of the best of all."""
    most = max(best(rates)[1] for rates in found.values())
    return sum(float(np.mean([e.accuracy for e in made])) > most - NEAR for made in found[batch].values())


def run(seeds: Sequence[int], share: float, progress: Progress) -> list[Finding]:
    """The findings; see `Reproduction`."""
    return judged(*measure(seeds, share, progress))


def judged(found: Found, updates: Mapping[str, Mapping[int, Sequence[float]]]) -> list[Finding]:
    """The findings in what was measured."""
    widths = {batch: _width(found, batch) for batch in found}
    accuracies = {batch: best(rates)[1] for batch, rates in found.items()}
    small, large = (
        _right(found, max((m for m in found if (m <= MOST) is each), key=lambda batch: accuracies[batch]))
        for each in (True, False)
    )
    base = {batch: float(np.mean(made)) for batch, made in updates["fp32.32"].items()}
    few, many = BATCHES[0], max((m for m, value in base.items() if math.isfinite(value)), default=BATCHES[0])
    saved = [one / other for one, other in zip(updates["fp32.32"][few], updates["fp32.32"][many], strict=True)]
    return [
        Finding(
            f"the larger the batch, the fewer rates (of a sample) train (to within {100 * NEAR:.0f} points of the "
            "best, and never two more than a smaller batch's)",
            "; ".join(f"{batch}: {width}" for batch, width in widths.items()),
            widths[few] > widths[BATCHES[-1]] and _falls(list(widths.values())),
        ),
        Finding(
            f"the best accuracy comes of batches of 2 to {MOST}",
            "; ".join(f"{batch}: {value:.1%}" for batch, value in accuracies.items()),
            above([one - other for one, other in zip(small, large, strict=True)]),
            len(small),
        ),
        Finding(
            f"updates to a loss of {LEVEL} fall more slowly than batches grow: samples are paid for parallelism",
            "; ".join(f"{m}: {_count([value])}" for m, value in base.items())
            + (f"; {np.mean(saved):.1f} of {many // few} times" if many > few else ""),
            below(saved, many / few) if many > few else False,
            len(saved),
        ),
        Finding(
            "no claim: the same in FP16.16, rounded stochastically",
            "; ".join(f"{batch}: {_count(made)}" for batch, made in updates[PRECISIONS[1]].items()),
            None,
        ),
    ]


def _falls(values: Sequence[Any]) -> bool:
    """Whether no value is above the one before by more than one, as rates on a grid may be."""
    return all(b <= a + 1 for a, b in itertools.pairwise(values))


def _count(values: Sequence[float]) -> str:
    return "never" if not np.isfinite(values).all() else spread(values, 0)


SMALL_BATCHES = Reproduction(
    "small-batches", "updates to a loss, by batch size", "Masters and Luschi 2018, arXiv 1804.07612", run
)
