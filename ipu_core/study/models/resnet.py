"""A small residual net with batch norm on a classification task of square grey images, as a study's problem.

He et al. (arXiv 1512.03385): a 3 x 3 convolution, stages of one basic block each (two 3 x 3 convolutions beside a short
cut; from the second stage on the first of them halves the image), the mean over all places, and a linear layer. The
running statistics of the norms are the model's state beside its parameters.
"""

import functools
import itertools
import math
from typing import Any

import numpy as np

from ipu_core import nn
from ipu_core.study.models.classifier import classifier
from ipu_core.study.models.start import ParameterStart, stand_ins
from ipu_core.study.models.start import initial as initial
from ipu_core.study.point import Problem
from ipu_core.study.settings import Settings
from ipu_core.train.data.dataset import Dataset

KERNEL = 3
Tree = Any


def problem(settings: Settings, task: Dataset) -> Problem:
    """The net of these settings on this data: widths are pixels, channels of the stages, classes.

    Raises:
        ValueError: the layers or the batch do not fit the data, or its rows are no square images.
    """
    widths = settings.widths(task)
    starts = layout(widths)
    begun = functools.partial(initial, starts)
    return classifier(settings, task, loss, tested, begun, stand_ins(starts), lambda seed: statistics(widths))


def layout(widths: tuple[int, ...]) -> Tree:
    """How every parameter begins, weights as He et al. begin them, nested as the parameters are.

    Raises:
        ValueError: the pixels are no square, an image is halved more often than it can be, or there is no stage.
    """
    side, stages = math.isqrt(widths[0]), len(widths) - 2
    if side * side != widths[0]:
        raise ValueError(f"a residual net needs square grey images; rows of {widths[0]} features are none")
    if stages < 1 or side >> (stages - 1) == 0:
        raise ValueError(f"images of {side} x {side} pixels cannot have {stages} stages, which halve them")
    channels = widths[1:-1]

    def normed(before: int, after: int, kernel: int = KERNEL) -> Tree:
        norm = {"scale": ParameterStart((after,), value=1.0), "bias": ParameterStart((after,))}
        inputs = kernel * kernel * before
        return {"weight": ParameterStart((kernel, kernel, before, after), math.sqrt(2 / inputs)), "norm": norm}

    def block(before: int, after: int) -> Tree:
        parts = {"first": normed(before, after), "second": normed(after, after)}
        # A convolution of 1 x 1 only where the short cut has other channels, as in the paper.
        return parts if before == after else {**parts, "short": normed(before, after, 1)}

    return {
        "stem": normed(1, channels[0]),
        "stages": [block(*pair) for pair in itertools.pairwise((channels[0], *channels))],
        "head": {
            "weight": ParameterStart((channels[-1], widths[-1]), math.sqrt(2 / channels[-1])),
            "bias": ParameterStart((widths[-1],)),
        },
    }


def statistics(widths: tuple[int, ...]) -> Tree:
    """The running statistics before the first step, nested as the layers with norms are."""

    def of(part: Tree) -> Tree:
        if "norm" in part:
            channels = part["norm"]["scale"].shape
            return {"mean": np.zeros(channels, np.float32), "variance": np.ones(channels, np.float32)}
        return {name: of(inner) for name, inner in part.items()}

    shapes = layout(widths)
    return {"stem": of(shapes["stem"]), "stages": [of(block) for block in shapes["stages"]]}


def logits(params: Tree, state: Tree, x: Any, training: bool) -> tuple[Any, Tree]:
    """(rows, pixels) -> (rows, classes), and the new running statistics."""
    rows, pixels = x.shape
    side = math.isqrt(pixels)
    x, stem = _normed(params["stem"], state["stem"], nn.reshape(x, (rows, side, side, 1)), training)
    x, stages = nn.relu(x), []
    for number, (block, running) in enumerate(zip(params["stages"], state["stages"], strict=True)):
        x, new = _block(block, running, x, 2 if number else 1, training)
        stages.append(new)
    scores = nn.linear(nn.mean(x, (1, 2)), **params["head"])
    return scores, {"stem": stem, "stages": stages}


def _block(params: Tree, state: Tree, x: Any, stride: int, training: bool) -> tuple[Any, Tree]:
    new = {}
    y, new["first"] = _normed(params["first"], state["first"], x, training, stride)
    y, new["second"] = _normed(params["second"], state["second"], nn.relu(y), training)
    if "short" in params:
        x, new["short"] = _normed(params["short"], state["short"], x, training, stride)
    # Channels may stay as many while the image is halved: the short cut then takes every second place.
    elif stride > 1:
        x = x[:, ::stride, ::stride]
    return nn.relu(x + y), new


def _normed(params: Tree, state: Tree, x: Any, training: bool, stride: int = 1) -> tuple[Any, Tree]:
    """A convolution and its batch norm."""
    y = nn.conv2d(x, params["weight"], stride=stride, padding="same")
    return nn.batch_norm(y, params["norm"]["scale"], params["norm"]["bias"], state, training=training)


def loss(params: Tree, state: Tree, batch: tuple[Any, Any]) -> tuple[Any, Tree]:
    """Mean softmax cross-entropy of a batch (x, y), and the new running statistics."""
    x, y = batch
    scores, new = logits(params, state, x, training=True)
    return nn.softmax_cross_entropy(scores, y), new


def tested(params: Tree, state: Tree, x: Any) -> Any:
    """(rows, pixels) -> (rows, classes), with the running statistics."""
    return logits(params, state, x, training=False)[0]
