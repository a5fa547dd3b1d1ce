"""A training step as a function of state, batch and learning rate, and its Block."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ipu_core.ir.autodiff import value_and_grad
from ipu_core.ir.block import Block
from ipu_core.ir.pytree import flatten, map_leaves, paths, unflatten
from ipu_core.ir.tracing import trace
from ipu_core.ir.values import Value, apply, elementwise, scope
from ipu_core.train.optim import Optimiser

Loss = Callable[[Any, Any], Value]
StepFunction = Callable[[Any, Any, Value], tuple[Any, Value]]


def initial_state(params: Any, optimiser: Optimiser) -> dict[str, Any]:
    """The state before the first step: {"params": ..., "optimiser": ...}, float32."""
    return {"params": params, "optimiser": optimiser.init(params)}


def training_step(
    loss: Loss, optimiser: Optimiser, *, micro_batches: int = 1, running_mean: bool = False
) -> StepFunction:
    """The function (state, batch, lr) -> (new state, loss) of one step.

    Args:
        loss: (params, batch) -> one number, the mean over the batch.
        optimiser: `Sgd`, `Adam`, `Lamb` or anything like them.
        micro_batches: parts of the batch, equal runs of its first axis, whose gradients are averaged before the
            update; the sum has family "gradient_sum".
        running_mean: average by a running mean, which needs no more range than one gradient, not by a sum.

    Raises:
        ValueError: fewer than one micro-batch.
    """
    if micro_batches < 1:
        raise ValueError(f"micro_batches must be at least 1, not {micro_batches}")

    def step(state: Any, batch: Any, lr: Value) -> tuple[Any, Value]:
        parts = _parts(batch, micro_batches)
        value, gradients = value_and_grad(loss)(state["params"], parts[0])
        for count, part in enumerate(parts[1:], 2):
            more, new = value_and_grad(loss)(state["params"], part)
            value = _mean_so_far(value, more, count) if running_mean else value + more
            gradients = _accumulate(gradients, new, count if running_mean else 0)
        if micro_batches > 1 and not running_mean:
            value = value * (1 / micro_batches)
            gradients = map_leaves(lambda g: elementwise("multiply", g, 1 / micro_batches), gradients)
        params, inner = optimiser.update(state["params"], gradients, state["optimiser"], lr)
        return {"params": params, "optimiser": inner}, value

    return step


def _parts(batch: Any, count: int) -> list[Any]:
    """The batch cut along its first axis.

    Raises:
        ValueError: the axis is no multiple of the count, or there is none.
    """
    if count == 1:
        return [batch]
    for x in flatten(batch)[0]:
        if not x.shape:
            raise ValueError(f"a number without axes cannot be cut into {count} micro-batches")
        if x.shape[0] % count:
            raise ValueError(f"{x.shape[0]} rows cannot be cut into {count} equal micro-batches")

    def part(x: Value, position: int) -> Value:
        rows = x.shape[0] // count
        return x[position * rows : (position + 1) * rows]

    return [map_leaves(lambda x, i=i: part(x, i), batch) for i in range(count)]


def _mean_so_far(mean: Value, new: Value, count: int) -> Value:
    return apply("scaled_add", mean, elementwise("subtract", new, mean), 1 / count)


def _accumulate(total: Any, new: Any, count: int) -> Any:
    """The sum of gradients (count 0), or the running mean of `count` gradients, in the gradient sum's format."""
    leaves, tree = flatten(total)
    results = []
    for name, old, fresh in zip(paths(tree), leaves, flatten(new)[0], strict=True):
        with scope((old, fresh), role="grad_weight", family="gradient_sum", parameter=name):
            results.append(_mean_so_far(old, fresh, count) if count else elementwise("add", old, fresh))
    return unflatten(tree, results)


def step_block(
    loss: Loss, optimiser: Optimiser, params: Any, batch: Any, *, micro_batches: int = 1, running_mean: bool = False
) -> Block:
    """The Block of one training step, in ideal float32 until a `Precision` is applied.

    Inputs: the leaves of `initial_state`, of the batch, and lr. Outputs: the new state's leaves and the loss.

    Args:
        loss: (params, batch) -> one number.
        optimiser: the optimiser.
        params: nested float arrays.
        batch: nested arrays; only shapes and dtypes matter.
        micro_batches, running_mean: see `training_step`.
    """
    step = training_step(loss, optimiser, micro_batches=micro_batches, running_mean=running_mean)
    return trace(step, initial_state(params, optimiser), batch, np.float32(0), carry=True)
