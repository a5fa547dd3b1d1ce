"""A multi-layer perceptron on a classification task, as a study's problem."""

import functools
import itertools
import math
from typing import Any

import numpy as np

from ipu_core import nn
from ipu_core.study.models.classifier import classifier
from ipu_core.study.point import Problem, stand_in
from ipu_core.study.settings import Settings
from ipu_core.train.data.dataset import Dataset

Params = list[dict[str, Any]]


def problem(settings: Settings, task: Dataset) -> Problem:
    """The perceptron of these settings on this data.

    Raises:
        ValueError: the layers or the batch do not fit the data.
    """
    widths = settings.widths(task)
    return classifier(settings, task, loss, logits, functools.partial(initial, widths), shapes(widths))


def logits(params: Params, x: Any) -> Any:
    """Relu between the layers, none after the last: (rows, features) -> (rows, classes)."""
    for layer in params[:-1]:
        x = nn.relu(x @ layer["weight"] + layer["bias"])
    return x @ params[-1]["weight"] + params[-1]["bias"]


def loss(params: Params, batch: tuple[Any, Any]) -> Any:
    """Mean softmax cross-entropy of a batch (x, y)."""
    x, y = batch
    return nn.softmax_cross_entropy(logits(params, x), y)


def shapes(widths: tuple[int, ...]) -> Any:
    """Stand-ins of the parameters, nested as `initial` gives them."""
    return [
        {"weight": stand_in(rows, columns), "bias": stand_in(columns, zero=True)}
        for rows, columns in itertools.pairwise(widths)
    ]


def initial(widths: tuple[int, ...], seed: int) -> Params:
    """Weights uniform in +-sqrt(6/fan_in) (He et al., arXiv 1502.01852; the last layer +-sqrt(3/fan_in)), biases 0.

    Made of raw Philox words in exact arithmetic, so a seed gives the same bits on every machine.
    """
    params: Params = []
    for index, (rows, columns) in enumerate(itertools.pairwise(widths)):
        # No relu behind the last layer: half the variance keeps its outputs as large.
        bound = math.sqrt((3 if index == len(widths) - 2 else 6) / rows)
        words = np.random.Philox(key=np.array([seed, index + 1], np.uint64)).random_raw(rows * columns)
        # 32 bits of each word: float64 holds the result exactly, and one product and one cast round it.
        unit = (words >> np.uint64(32)).astype(np.float64) * 2.0**-31 - 1.0
        weight = (bound * unit).astype(np.float32).reshape(rows, columns)
        params.append({"weight": weight, "bias": np.zeros(columns, np.float32)})
    return params
