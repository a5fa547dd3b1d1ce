"""Softmax and cross-entropy on tiles, without a training layer: exponentials and sums in float32."""

import math
from typing import Any, NamedTuple

from ipu_core.graph.graph import Graph
from ipu_core.graph.program import Program
from ipu_core.graph.tensor import Tensor
from ipu_core.library.elementwise import add_array
from ipu_core.library.moves import one_hot
from ipu_core.library.steps import Steps

LOWEST = -3e38  # of a masked element: its exponential is 0 beside any other's


def softmax(
    graph: Graph,
    x: Tensor,
    programs: list[Program],
    *,
    axis: int = -1,
    mask: Tensor | None = None,
    out_format: Any = None,
    stochastic: bool = False,
    operation: int = 0,
    name: str = "softmax",
) -> Tensor:
    """Adds e^x over its sum along an axis, shifted by the maximum.

    Args:
        graph: where.
        x: mapped, any shape.
        programs: what is to be run is appended to it.
        axis: of the sums.
        mask: mapped, fits x: 0 where an element does not count (its result is 0), else 1; None: all count. Where none
            counts, all results are equal.
        out_format: of the result; None: that of x.
        stochastic: round a result narrower than float32 stochastically.
        operation: number folded into the engine's key for that.
        name: for profiles.

    Returns:
        A new array of x's shape.
    """
    steps = Steps(graph, programs, name, stochastic, operation)
    wide = x if mask is None else steps.elementwise("select", mask, x, LOWEST)
    powers, total = _powers(steps, wide, axis)[1:]
    return steps.elementwise("divide", powers, total, fmt=x.format if out_format is None else out_format)


def log_softmax(
    graph: Graph,
    x: Tensor,
    programs: list[Program],
    *,
    axis: int = -1,
    out_format: Any = None,
    stochastic: bool = False,
    operation: int = 0,
    name: str = "log_softmax",
) -> Tensor:
    """Adds the logarithm of softmax; arguments as `softmax`, without a mask."""
    steps = Steps(graph, programs, name, stochastic, operation)
    shifted, _, total = _powers(steps, x, axis)
    logarithm = steps.elementwise("log", total)
    return steps.elementwise("subtract", shifted, logarithm, fmt=x.format if out_format is None else out_format)


def log_sum_exp(
    graph: Graph, x: Tensor, programs: list[Program], *, axis: int = -1, name: str = "log_sum_exp"
) -> Tensor:
    """Adds the logarithm of the sum of e^x along an axis, shifted by the maximum.

    Args:
        graph: where.
        x: mapped, any shape.
        programs: what is to be run is appended to it.
        axis: of the sum.
        name: for profiles.

    Returns:
        A new float32 array of x's shape without the axis.
    """
    steps, axis = Steps(graph, programs, name), axis % x.ndim
    top = steps.reduce_max(x, axis)
    total = steps.reduce_sum(steps.elementwise("exp", steps.elementwise("subtract", x, top)), axis)
    result = steps.elementwise("add", top, steps.elementwise("log", total))
    return result.reshape(x.shape[:axis] + x.shape[axis + 1 :])


class Loss(NamedTuple):
    """A loss and its derivative.

    Attributes:
        loss: one float32 number.
        gradient: of the loss times its scale, for the logits.
    """

    loss: Tensor
    gradient: Tensor


def cross_entropy(
    graph: Graph,
    logits: Tensor,
    labels: Tensor,
    programs: list[Program],
    *,
    scale: float = 1.0,
    gradient_format: Any = None,
    stochastic: bool = False,
    operation: int = 0,
    name: str = "cross_entropy",
) -> Loss:
    """Adds the mean over all rows of minus the logarithm of the label's probability, and its gradient.

    Args:
        graph: where.
        logits: mapped (.., classes).
        labels: mapped int32 (..); a label that is no class has the probability 1 and a gradient of softmax alone.
        programs: what is to be run is appended to it.
        scale: of the gradient, not of the loss.
        gradient_format: None: that of the logits.
        stochastic: round a gradient narrower than float32 stochastically.
        operation: number folded into the engine's key for that.
        name: for profiles.

    Raises:
        ValueError: labels of another shape than the rows, or no rows.
    """
    rows = math.prod(labels.shape)
    if labels.shape != logits.shape[:-1] or not rows:
        raise ValueError(
            f"labels must have the shape {logits.shape[:-1]} of the rows, one at least, not {labels.shape}"
        )
    steps = Steps(graph, programs, name, stochastic, operation)
    shifted, powers, total = _powers(steps, logits, -1)
    chosen = add_array(graph, "float32", logits.shape, f"{name}: one_hot")
    programs += one_hot(graph, labels, chosen, name=f"{name}: one_hot")
    picked = steps.reduce_sum(steps.elementwise("select", chosen, shifted, 0.0), -1)
    each = steps.elementwise("subtract", steps.elementwise("log", total), picked)
    loss = steps.reduce_mean(each, tuple(range(each.ndim))).reshape(())
    wrong = steps.elementwise("subtract", steps.elementwise("divide", powers, total), chosen)
    fmt = logits.format if gradient_format is None else gradient_format
    return Loss(loss, steps.elementwise("multiply", wrong, scale / rows, fmt=fmt))


def _powers(steps: Steps, x: Tensor, axis: int) -> tuple[Tensor, Tensor, Tensor]:
    """x less its maximum along an axis, its exponentials, and their sums."""
    shifted = steps.elementwise("subtract", x, steps.reduce_max(x, axis))
    powers = steps.elementwise("exp", shifted)
    return shifted, powers, steps.reduce_sum(powers, axis)
