"""Layer, root-mean-square, group and batch norm on tiles, without a training layer: statistics in float32."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ipu_core.graph.graph import Graph
from ipu_core.graph.program import Program
from ipu_core.graph.tensor import Tensor
from ipu_core.library.sides import copied
from ipu_core.library.steps import Steps


def layer_norm(
    graph: Graph,
    x: Tensor,
    programs: list[Program],
    *,
    scale: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    stochastic: bool = False,
    operation: int = 0,
    name: str = "layer_norm",
) -> Tensor:
    """Adds rows of mean 0 and variance 1 along the last axis, times scale plus bias, in the format of x.

    Args:
        graph: where.
        x: mapped (.., n).
        programs: what is to be run is appended to it.
        scale, bias: mapped (n,); None: none.
        eps: added to the variance.
        stochastic: round results narrower than float32 stochastically.
        operation: number folded into the engine's key for the first of them; the second takes the next.
        name: for profiles.

    Returns:
        A new array of x's shape.
    """
    steps = Steps(graph, programs, name, stochastic, operation)
    return _affine(steps, _normal(steps, x, (-1,), eps), x, scale, bias)


def rms_norm(
    graph: Graph,
    x: Tensor,
    programs: list[Program],
    *,
    scale: Tensor | None = None,
    eps: float = 1e-6,
    stochastic: bool = False,
    operation: int = 0,
    name: str = "rms_norm",
) -> Tensor:
    """Adds rows of mean square 1 along the last axis, times scale, in the format of x.

    Args:
        graph, x, programs, scale, stochastic, name: as `layer_norm`.
        eps: added to the mean square.
        operation: number folded into the engine's key.
    """
    steps = Steps(graph, programs, name, stochastic, operation)
    power = steps.reduce_mean(steps.elementwise("square", x), -1)
    return _affine(steps, _over_root(steps, x, power, eps), x, scale, None)


def group_norm(
    graph: Graph,
    x: Tensor,
    groups: int,
    programs: list[Program],
    *,
    scale: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    stochastic: bool = False,
    operation: int = 0,
    name: str = "group_norm",
) -> Tensor:
    """Adds groups of channels of each row with mean 0 and variance 1, times scale plus bias, in the format of x.

    Args:
        graph: where.
        x: mapped (rows, .., channels).
        groups: contiguous runs of channels.
        programs, eps, stochastic, operation, name: as `layer_norm`.
        scale, bias: mapped (channels,); None: none.

    Raises:
        ValueError: groups that do not divide the channels.
    """
    rows, *places, channels = x.shape
    if groups < 1 or channels % groups:
        raise ValueError(f"{groups} groups do not divide {channels} channels")
    steps = Steps(graph, programs, name, stochastic, operation)
    shape = (rows, math.prod(places), groups, channels // groups)
    try:
        parts = x.reshape(shape)
    except ValueError:
        parts = copied(graph, programs, x, f"{name}: operand").reshape(shape)
    return _affine(steps, _normal(steps, parts, (1, 3), eps).reshape(x.shape), x, scale, bias)


def batch_norm(
    graph: Graph,
    x: Tensor,
    running: Mapping[str, Tensor],
    programs: list[Program],
    *,
    training: bool,
    scale: Tensor | None = None,
    bias: Tensor | None = None,
    momentum: float = 0.1,
    eps: float = 1e-5,
    stochastic: bool = False,
    operation: int = 0,
    name: str = "batch_norm",
) -> tuple[Tensor, dict[str, Tensor]]:
    """Adds channels of mean 0 and variance 1 over the batch, times scale plus bias, and the running statistics.

    Args:
        graph: where.
        x: mapped (rows, .., channels).
        running: {"mean": (channels,), "variance": (channels,)}, mapped, in float32.
        programs: what is to be run is appended to it; in a `Repeat`, with copies of the new statistics to the old.
        training: whether the batch's own statistics count, else the running ones.
        scale, bias: mapped (channels,); None: none.
        momentum: share of the batch's statistics in the new running ones, whose variance is the unbiased one.
        eps: added to the variance.
        stochastic: round results narrower than float32 stochastically.
        operation: number folded into the engine's key for the first of them; the second takes the next.
        name: for profiles.

    Returns:
        A new array of x's shape in the format of x, and the new running statistics in float32 (the given tensors where
        not training).

    Raises:
        ValueError: running statistics of another shape than the channels, or one element a channel while training.
    """
    channels, axes, count = x.shape[-1:], tuple(range(x.ndim - 1)), math.prod(x.shape[:-1])
    if (given := {key: running[key].shape for key in ("mean", "variance")}) != dict.fromkeys(given, channels):
        raise ValueError(f"running statistics must have the shape {channels} of the channels, not {given}")
    if training and count < 2:
        raise ValueError("batch norm needs at least two elements a channel to have a variance")
    steps = Steps(graph, programs, name, stochastic, operation)
    if not training:
        centred = steps.elementwise("subtract", x, running["mean"])
        return _affine(steps, _over_root(steps, centred, running["variance"], eps), x, scale, bias), dict(running)
    middle = steps.reduce_mean(x, axes)
    centred, variance = _spread(steps, x, middle, axes)
    unbiased = steps.elementwise("multiply", variance, count / (count - 1))
    new = {}
    for key, fresh in (("mean", middle), ("variance", unbiased)):
        change = steps.elementwise("subtract", fresh.reshape(channels), running[key])
        new[key] = steps.elementwise("scaled_add", running[key], change, momentum)
    return _affine(steps, _over_root(steps, centred, variance, eps), x, scale, bias), new


def _normal(steps: Steps, x: Tensor, axes: Sequence[int], eps: float) -> Tensor:
    """x less its mean over axes, over the root of its variance."""
    return _over_root(steps, *_spread(steps, x, steps.reduce_mean(x, axes), axes), eps)


def _spread(steps: Steps, x: Tensor, middle: Tensor, axes: Sequence[int]) -> tuple[Tensor, Tensor]:
    """x less its mean over axes, and its variance there."""
    centred = steps.elementwise("subtract", x, middle)
    return centred, steps.reduce_mean(steps.elementwise("square", centred), axes)


def _over_root(steps: Steps, x: Tensor, power: Tensor, eps: float) -> Tensor:
    """x over the root of a mean square."""
    return steps.elementwise("multiply", x, steps.elementwise("rsqrt", steps.elementwise("add", power, eps)))


def _affine(steps: Steps, normal: Tensor, x: Tensor, scale: Tensor | None, bias: Tensor | None) -> Tensor:
    fmt: Any = x.format
    if scale is None and bias is None:
        return steps.elementwise("identity", normal, fmt=fmt)
    scaled = normal if scale is None else steps.elementwise("multiply", normal, scale, fmt=fmt)
    return scaled if bias is None else steps.elementwise("add", scaled, bias, fmt=fmt)
