"""Layer and group norm on tiles, without a training layer: statistics in float32."""

import math
from collections.abc import Sequence
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


def _normal(steps: Steps, x: Tensor, axes: Sequence[int], eps: float) -> Tensor:
    """x less its mean over axes, over the root of its variance."""
    centred = steps.elementwise("subtract", x, steps.reduce_mean(x, axes))
    variance = steps.reduce_mean(steps.elementwise("square", centred), axes)
    return steps.elementwise("multiply", centred, steps.elementwise("rsqrt", steps.elementwise("add", variance, eps)))


def _affine(steps: Steps, normal: Tensor, x: Tensor, scale: Tensor | None, bias: Tensor | None) -> Tensor:
    fmt: Any = x.format
    if scale is None and bias is None:
        return steps.elementwise("identity", normal, fmt=fmt)
    scaled = normal if scale is None else steps.elementwise("multiply", normal, scale, fmt=fmt)
    return scaled if bias is None else steps.elementwise("add", scaled, bias, fmt=fmt)
