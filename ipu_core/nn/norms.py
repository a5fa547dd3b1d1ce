"""Norms: mean and variance over some axes, in float32 whatever the precision."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from ipu_core.ir.ops import GROUP_SUM
from ipu_core.ir.trace.values import Traced, Value, apply, elementwise, mean, reshape, scope, shape_of
from ipu_core.nn.operations import narrow, rsqrt, square, widen
from lowprec import Collective
from lowprec.checks import entries, integer, number, truth


def layer_norm(x: Value, scale: Value | None = None, bias: Value | None = None, eps: float = 1e-5) -> Value:
    """Rows of mean 0 and variance 1 along the last axis, times scale plus bias; statistics are float32.

    Args:
        x: (..., n).
        scale: (n,), or None: not scaled.
        bias: (n,), or None: nothing added.
        eps: added to the variance.
    """
    with scope(x, family="norm"):
        wide = widen(x)
        centred = elementwise("subtract", wide, mean(wide, -1, keepdims=True))
        # of centred values: the mean of squares less the square of the mean cancels where the mean is large
        variance = mean(square(centred), -1, keepdims=True)
        normal = elementwise("multiply", centred, rsqrt(elementwise("add", variance, eps)))
    return _affine(narrow(normal, x), scale, bias)


def rms_norm(x: Value, scale: Value | None = None, eps: float = 1e-6) -> Value:
    """Rows of mean square 1 along the last axis, times scale; statistics are float32.

    Args:
        x: (..., n).
        scale: (n,), or None: not scaled.
        eps: added to the mean square.
    """
    with scope(x, family="norm"):
        wide = widen(x)
        root = rsqrt(elementwise("add", mean(square(wide), -1, keepdims=True), eps))
        normal = elementwise("multiply", wide, root)
    return _affine(narrow(normal, x), scale, None)


def group_norm(
    x: Value, scale: Value | None = None, bias: Value | None = None, groups: int = 1, eps: float = 1e-5
) -> Value:
    """Groups of channels of each row with mean 0 and variance 1, times scale plus bias; statistics are float32.

    Args:
        x: (rows, ..., channels).
        scale: (channels,), or None: not scaled.
        bias: (channels,), or None: nothing added.
        groups: contiguous runs of channels; with one group it is the layer norm of images, with as many as channels
            the instance norm.
        eps: added to the variance.

    Raises:
        ValueError: groups that do not divide the channels.
    """
    if len(shape_of(x)) < 2:
        raise ValueError(f"group_norm takes (rows, ..., channels), not the shape {shape_of(x)}")
    rows, *places, channels = shape_of(x)
    if integer("groups", groups, 1) > channels or channels % groups:
        raise ValueError(f"{groups} groups do not divide {channels} channels")
    with scope(x, family="norm"):
        parts = reshape(widen(x), (rows, math.prod(places), groups, channels // groups))
        # places and the channels of a group are summed together: axes 1 and 3 of (rows, places, groups, channels)
        normal = reshape(_normal(parts, *_statistics(parts, (1, 3)), eps), shape_of(x))
    return _affine(narrow(normal, x), scale, bias)


def batch_norm(
    x: Value,
    scale: Value,
    bias: Value,
    running: Mapping[str, Value],
    *,
    training: bool,
    momentum: float = 0.1,
    eps: float = 1e-5,
    replicas: int = 1,
) -> tuple[Value, dict[str, Value]]:
    """Channels of mean 0 and variance 1 over the batch, times scale plus bias, and the running statistics.

    Args:
        x: (rows, ..., channels).
        scale: (channels,).
        bias: (channels,).
        running: {"mean": (channels,), "variance": (channels,)}: the model's state, beside its parameters.
        training: whether the batch's own statistics count, else the running ones.
        momentum: share of the batch's statistics in the new running ones, whose variance is the unbiased one.
        eps: added to the variance.
        replicas: neighbours whose rows count together while training: of `replicas=` of the training, which it divides.
            Each sums its own rows, divides by their number and by that of the neighbours, and these numbers are added
            ascending in float32, first for the mean and then for the variance; both pass the links in every
            micro-batch, forward and for the gradient. The rows of 2 replicas of 20 are so a batch of 40.

    Returns:
        The result, and the new running statistics, which no gradient passes (the old ones where not training).

    Raises:
        ValueError: one element a channel while training; neighbours of an array, which is in no training.
    """
    entries("running", running, ("mean", "variance"))
    training = truth("training", training)
    number("momentum", momentum)
    replicas = integer("replicas", replicas, 1)
    if training and replicas > 1 and not isinstance(x, Traced):
        raise ValueError(f"batch_norm: arrays have no neighbours: replicas={replicas} is of a training with replicas=")
    # all but the channels: rows and places count alike
    axes = tuple(range(len(shape_of(x)) - 1))
    count = replicas * math.prod(shape_of(x)[:-1])
    # the unbiased variance divides by count - 1
    if training and count < 2:
        raise ValueError("batch norm needs at least two elements a channel to have a variance")
    with scope(x, family="norm"):
        wide = widen(x)
        middle, variance = running["mean"], running["variance"]
        if training:
            middle, variance = _statistics(wide, axes, replicas)
        normal = _normal(wide, middle, variance, eps)
        new = dict(running)
        if training:
            # running variances are unbiased, the batch's own is not, as in PyTorch
            fresh = {"mean": middle, "variance": elementwise("multiply", variance, count / (count - 1))}
            for name, value in fresh.items():
                # the new statistics are state for later steps, no way for the gradient of this one
                value = apply("stop_gradient", reshape(value, shape_of(running[name])))
                change = elementwise("subtract", value, running[name])
                new[name] = apply("scaled_add", running[name], change, momentum)
    return _affine(narrow(normal, x), scale, bias), new


def _affine(x: Value, scale: Value | None, bias: Value | None) -> Value:
    """x times scale plus bias, as far as there are such."""
    scaled = x if scale is None else elementwise("multiply", x, scale)
    return scaled if bias is None else elementwise("add", scaled, bias)


def _statistics(x: Value, axes: Sequence[int], replicas: int = 1) -> tuple[Value, Value]:
    """Mean and variance over some axes, which stay with length one, and the rows of neighbours."""

    def among(own: Value) -> Value:
        if replicas == 1:
            return own
        return apply(GROUP_SUM, elementwise("multiply", own, 1 / replicas), replicas=replicas, collective=Collective())

    middle = among(mean(x, axes, keepdims=True))
    return middle, among(mean(square(elementwise("subtract", x, middle)), axes, keepdims=True))


def _normal(x: Value, middle: Value, variance: Value, eps: float) -> Value:
    return elementwise("multiply", elementwise("subtract", x, middle), rsqrt(elementwise("add", variance, eps)))
