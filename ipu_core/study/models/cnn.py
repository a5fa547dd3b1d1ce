"""A convolutional net on a classification task of square grey images, as a study's problem.

Every layer but the last is a 3 x 3 convolution with padding, relu and the largest of 2 x 2; the last one is linear.
"""

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
from lowprec import Key

Params = list[dict[str, Any]]
KERNEL = 3


def problem(settings: Settings, task: Dataset) -> Problem:
    """The net of these settings on this data: widths are pixels, channels of the convolutions, classes.

    Raises:
        ValueError: the layers or the batch do not fit the data, or its rows are no square images.
    """
    widths = settings.widths(task)
    weights = kernels(widths)
    shapes = [{"weight": stand_in(*shape), "bias": stand_in(shape[-1], zero=True)} for shape in weights]
    return classifier(settings, task, loss, logits, functools.partial(initial, weights), shapes)


def kernels(widths: tuple[int, ...]) -> list[tuple[int, ...]]:
    """The shapes of the weights.

    Raises:
        ValueError: the pixels are no square, or an image is halved more often than it can be.
    """
    side, layers = math.isqrt(widths[0]), len(widths) - 2
    if side * side != widths[0]:
        raise ValueError(f"a convolutional net needs square grey images; rows of {widths[0]} features are none")
    # Each convolution is followed by the largest of 2 x 2, which halves the side.
    left = side >> layers
    if left == 0:
        given, most = "-".join(map(str, widths)), side.bit_length() - 1
        raise ValueError(
            f"layers {given} have {layers} convolutions, each of which halves the image: {side} x {side} pixels can be "
            f"halved {most} times; give at most {most} channels between {widths[0]} and {widths[-1]}"
        )
    channels = (1, *widths[1:-1])
    shapes: list[tuple[int, ...]] = [(KERNEL, KERNEL, *pair) for pair in itertools.pairwise(channels)]
    return [*shapes, (left * left * channels[-1], widths[-1])]


def logits(params: Params, x: Any) -> Any:
    """(rows, pixels) -> (rows, classes)."""
    rows, pixels = x.shape
    side = math.isqrt(pixels)
    x = nn.reshape(x, (rows, side, side, 1))
    for layer in params[:-1]:
        x = nn.max_pool2d(nn.relu(nn.conv2d(x, layer["weight"], layer["bias"], padding="same")))
    return nn.linear(nn.flatten(x), params[-1]["weight"], params[-1]["bias"])


def loss(params: Params, batch: tuple[Any, Any]) -> Any:
    """Mean softmax cross-entropy of a batch (x, y)."""
    x, y = batch
    return nn.softmax_cross_entropy(logits(params, x), y)


def initial(weights: list[tuple[int, ...]], seed: int) -> Params:
    """He's uniform weights (the last layer's with half the variance), biases 0; a seed gives the same bits anywhere."""
    keys = Key(seed).split(len(weights))
    # No relu behind the last layer, so its weights need not make up for the half that relu drops.
    makers = [nn.he_uniform] * (len(weights) - 1) + [nn.lecun_uniform]
    made = [maker(key, shape) for maker, key, shape in zip(makers, keys, weights, strict=True)]
    return [{"weight": weight, "bias": np.zeros(weight.shape[-1], np.float32)} for weight in made]
