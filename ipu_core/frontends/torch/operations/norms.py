"""Norms: statistics in float32 whatever the precision; what torch makes of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ipu_core.frontends.torch.operations.call import NodeCall, combined
from ipu_core.frontends.torch.operations.elementwise import root
from ipu_core.frontends.torch.operations.reductions import variance
from ipu_core.ir.trace.values import Value, apply, mean, reduce_sum, reshape, scope, shape_of
from ipu_core.nn.operations import narrow, widen


def standard(x: Value, middle: Value, spread: Value, eps: float) -> Value:
    return combined("multiply", combined("subtract", x, middle), apply("rsqrt", combined("add", spread, eps)))


def scaled(x: Value, weight: Value | None, bias: Value | None) -> Value:
    x = x if weight is None else combined("multiply", x, weight)
    return x if bias is None else combined("add", x, bias)


def channels(value: Value | None, x: Value) -> Value | None:
    """One number for each channel, to go with (n, channels, ...)."""
    return None if value is None else reshape(value, (shape_of(x)[1], *(1,) * (len(shape_of(x)) - 2)))


def layer_norm(
    call: NodeCall,
    x: Value,
    shape: Any,
    weight: Value | None = None,
    bias: Value | None = None,
    eps: float = 1e-5,
    *_: Any,
) -> Value:
    over = tuple(range(len(shape_of(x)) - len(shape), len(shape_of(x))))
    with scope(x, family="norm"):
        wide = widen(x)
        normal = standard(wide, mean(wide, over, True), variance(wide, over), eps)
    return scaled(narrow(normal, x), weight, bias)


def rms_norm(call: NodeCall, x: Value, shape: Any, weight: Value | None = None, eps: float | None = None) -> Value:
    over = tuple(range(len(shape_of(x)) - len(shape), len(shape_of(x))))
    with scope(x, family="norm"):
        wide = widen(x)
        size = mean(apply("square", wide), over, True)
        # torch's default is the epsilon of the format
        least = float(np.finfo(call.width).eps) if eps is None else eps
        normal = combined("multiply", wide, apply("rsqrt", combined("add", size, least)))
    return scaled(narrow(normal, x), weight, None)


def group_norm(
    call: NodeCall, x: Value, groups: int, weight: Value | None = None, bias: Value | None = None, eps: float = 1e-5,
    *_: Any,
) -> Value:  # fmt: skip
    with scope(x, family="norm"):
        parts = reshape(widen(x), (shape_of(x)[0], groups, -1))
        normal = standard(parts, mean(parts, 2, True), variance(parts, (2,)), eps)
        normal = reshape(normal, shape_of(x))
    return scaled(narrow(normal, x), channels(weight, x), channels(bias, x))


def batch_norm(
    call: NodeCall, x: Value, weight: Value | None, bias: Value | None, running_mean: Value | None,
    running_variance: Value | None, training: bool, momentum: float, eps: float, *_: Any,
) -> tuple[Value, ...]:  # fmt: skip
    """The result and the new running statistics, which no gradient passes; None where they stay."""
    over = (0, *range(2, len(shape_of(x))))
    count = math.prod(shape_of(x)[i] for i in over)
    with scope(x, family="norm"):
        wide = widen(x)
        if training:
            middle, spread = mean(wide, over, True), variance(wide, over)
        else:
            middle, spread = channels(running_mean, x), channels(running_variance, x)
        normal = standard(wide, middle, spread, eps)
        new: tuple[Value | None, ...] = (None, None)
        if training and running_mean is not None:
            # torch normalises by the biased variance and keeps the unbiased one
            unbiased = combined("multiply", spread, count / (count - 1))
            new = (moved(running_mean, middle, momentum), moved(running_variance, unbiased, momentum))
    return scaled(narrow(normal, x), channels(weight, x), channels(bias, x)), *new


def moved(running: Value, fresh: Value, momentum: float) -> Value:
    """A running mean with a share of a new value."""
    fresh = apply("stop_gradient", reshape(fresh, shape_of(running)))
    return apply("scaled_add", running, combined("subtract", fresh, running), momentum)


def instance_norm(
    call: NodeCall, x: Value, weight: Value | None, bias: Value | None, running_mean: Value | None,
    running_variance: Value | None, own: bool, momentum: float, eps: float, *_: Any,
) -> Value:  # fmt: skip
    if running_mean is not None:
        raise NotImplementedError("running statistics of an instance norm")
    # one channel to a group
    return group_norm(call, x, shape_of(x)[1], weight, bias, eps)


def weight_norm(call: NodeCall, v: Value, g: Value, dim: int = 0) -> Value:
    """v with the lengths g along one axis (dim), or as one vector (-1)."""
    over = tuple(i for i in range(len(shape_of(v))) if dim < 0 or i != dim)
    with scope(v, family="norm"):
        wide = widen(v)
        length = root(reduce_sum(apply("square", wide), over, True))
        result = combined("multiply", wide, combined("divide", g, length))
    return narrow(result, v)


TABLE: dict[str, Callable[..., Any]] = {
    "layer_norm": layer_norm, "rms_norm": rms_norm, "group_norm": group_norm, "batch_norm": batch_norm,
    "instance_norm": instance_norm, "_weight_norm": weight_norm,
}  # fmt: skip

WRITES = {"batch_norm": (3, 4)}
"""Operands that an operation replaces by its further results."""
