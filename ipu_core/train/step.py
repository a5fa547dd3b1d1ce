"""A training step: the function of state, batch and learning rate, and its traced Block."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ipu_core.ir.block import Block
from ipu_core.ir.ops import EACH_REPLICA
from ipu_core.ir.passes.autodiff import value_and_grad
from ipu_core.ir.passes.guard import UNSCALE
from ipu_core.ir.passes.schedule import as_it_runs
from ipu_core.ir.passes.shards import by_shards
from ipu_core.ir.pytree import flatten, map_leaves, paths, unflatten
from ipu_core.ir.trace.tracing import accumulated_over, trace
from ipu_core.ir.trace.values import Traced, Value, apply, elementwise, scope, shape_of
from ipu_core.train.arguments import check_batch, check_loss, check_one_number, check_params
from ipu_core.train.optim import Optimizer
from ipu_core.train.optim.common import write
from ipu_core.train.parts import check_groups, part_of
from ipu_core.train.units import host_parts_of
from lowprec import Collective

Loss = Callable[..., Any]
"""(params, batch) -> one number; of a model with a state (params, state, batch) -> (one number, new state)."""

StepFunction = Callable[..., tuple[Any, Value]]


def initial_state(params: Any, optimizer: Optimizer, model_state: Any = None) -> dict[str, Any]:
    """The state before the first step: {"params": ..., "optimizer": ...} and a model's own as "model", float32."""
    state = {"params": params, "optimizer": optimizer.init(params)}
    return state if model_state is None else {**state, "model": model_state}


def training_step(
    loss: Loss,
    optimizer: Optimizer,
    *,
    micro_batches: int = 1,
    running_mean: bool = False,
    replicas: int = 1,
    collective: Collective | None = None,
) -> StepFunction:
    """The function (state, batch, lr[, loss scale]) -> (new state, loss) of one step, to be traced.

    With a loss scale the gradients are those of the loss times it, and are divided by it, in float32, before the
    optimizer has them (family "unscale"); the loss is itself.

    Args:
        loss: (params, batch) -> one number, the mean over the batch; where the state has a "model", (params, that,
            batch) -> (the number, the new one), with micro-batches the mean of what each makes of the old.
        optimizer: `Sgd`, `Adam`, `Lamb` or anything like them.
        micro_batches: parts of the batch, whose gradients are averaged before the update; the sum has family
            "gradient_sum". With more than one the function takes a part, and its Block has as many iterations.
        running_mean: average by a running mean, which needs no more range than one gradient, not by a sum.
        replicas: programs that each have a part of the batch. The gradient of each is divided by their number and all
            are added by an all-reduce; the loss is the float32 mean of theirs, a model's state the first one's. The
            parts of it that a loss names in `for_host` the host reads from every replica, also where a step is skipped.
        collective: the order of that sum; None: a ring from chip 0 in the format and rounding of gradient sums.
    """

    own_parts = host_parts_of(loss)

    def step(state: Any, batch: Any, lr: Value, loss_scale: Value | None = None) -> tuple[Any, Value]:
        params, model = state["params"], state.get("model")
        both = value_and_grad(functools.partial(_with_model, loss), loss_scale, has_aux=True)
        if micro_batches == 1:
            (value, model), gradients = both(params, model, batch)
        else:
            (value, model), gradients = _mean_of_micro_batches(both, params, model, batch, micro_batches, running_mean)
        if replicas > 1 or loss_scale is not None:
            model = _for_host(model, own_parts, replicas)
        if replicas > 1:
            value, model, gradients = _of_all_replicas(value, model, gradients, replicas, collective, own_parts)
        if loss_scale is not None:
            gradients = _unscaled(gradients, loss_scale)
        params, inner = updated(optimizer, params, gradients, state["optimizer"], lr)
        new = {"params": params, "optimizer": inner}
        return new if model is None else {**new, "model": model}, value

    return step


def _with_model(loss: Loss, params: Any, model: Any, batch: Any) -> Any:
    """The loss, and the new state of the model or None."""
    given = (loss(params, batch), None) if model is None else loss(params, model, batch)
    check_one_number(given[0])
    return given


def updated(optimizer: Optimizer, params: Any, gradients: Any, state: Any, lr: Value) -> tuple[Any, Any]:
    """The parameters and state after an optimizer's update, in float32; weights are written by `write` in any case.

    Raises:
        ValueError: new parameters that are not nested as the old ones, or of other shapes.
    """
    with scope((lr, gradients), role="optimizer"):
        new, inner = optimizer.update(params, gradients, state, lr)
    old_leaves, tree = flatten(params)
    new_leaves, new_tree = flatten(new)
    own = f"{type(optimizer).__name__}.update"
    if new_tree != tree:
        names = ", ".join(paths(tree))
        raise ValueError(f"{own} must give (parameters, state), parameters nested as it got them: {names}")
    results = []
    # Shapes are compared by hand: broadcasting would accept a wrong one and change the parameter's.
    for name, w, x in zip(paths(tree), old_leaves, new_leaves, strict=True):
        if shape_of(x) != shape_of(w):
            raise ValueError(f"{own} gives {name} the shape {shape_of(x)}, it has {shape_of(w)}")
        with scope((w, x), role="optimizer", parameter=name):
            results.append(_written(w, x))
    return unflatten(tree, results), inner


def _written(w: Value, x: Value) -> Value:
    """The new weight `x` written by `write`: x itself if `write` made it, else w + (x - w)."""
    if isinstance(x, Traced) and x.builder.role_of(x.node) == "update":
        return x
    # Every weight is written by one such equation: there a precision rounds, and there lost updates are counted.
    return write(w, w, 0.0) if x is w else write(w, elementwise("subtract", x, w), 1.0)


def _unscaled(gradients: Any, loss_scale: Value) -> Any:
    with scope(loss_scale, role="optimizer"):
        # One division a step, not one an element; exact where the scale is a power of two, as automatic ones are.
        inverse = apply("reciprocal", loss_scale)
    # The guard finds what it has to check by this family.
    return each_gradient(lambda g: elementwise("multiply", g, inverse), gradients, role="optimizer", family=UNSCALE)


def _mean_of_micro_batches(
    both: Callable[..., Any], params: Any, model: Any, part: Any, count: int, running_mean: bool
) -> tuple[tuple[Value, Any], Any]:
    """The mean loss, state of the model and gradients of micro-batches, one after another."""

    def one(totals: dict[str, Any]) -> dict[str, Any]:
        (value, made), gradients = both(params, model, part)
        with scope(totals, family="loss"):
            new = {"loss": totals["loss"] + value}
        with scope(totals, family="norm"):
            new["model"] = map_leaves(lambda old, fresh: elementwise("add", old, fresh), totals["model"], made)
        share = None
        if running_mean:
            with scope(totals, role="optimizer"):
                # Counted in the loop itself: an iteration does not know its number.
                new["parts"] = totals["parts"] + 1.0
                share = apply("reciprocal", new["parts"])
        return new | {"gradients": accumulate(totals["gradients"], gradients, share)}

    number = np.float32(0)
    like = {"loss": number, "gradients": params, "model": model} | ({"parts": number} if running_mean else {})
    totals = accumulated_over(one, part, like, count)
    with scope(totals, family="loss"):
        value = elementwise("multiply", totals["loss"], 1 / count)
    with scope(totals, family="norm"):
        model = map_leaves(lambda total: elementwise("multiply", total, 1 / count), totals["model"])
    if running_mean:
        return (value, model), totals["gradients"]
    return (value, model), each_gradient(lambda g: elementwise("multiply", g, 1 / count), totals["gradients"])


def _of_all_replicas(
    value: Value, model: Any, gradients: Any, replicas: int, collective: Collective | None, own_parts: Sequence[str]
) -> tuple[Value, Any, Any]:
    """The mean loss of all replicas, the first one's state of the model, and the mean of their gradients."""

    def first(part: Any) -> Any:
        return map_leaves(lambda own: apply("first_replica", own, replicas=replicas), part)

    def mean(gradient: Value) -> Value:
        # Before they are added: the sum of many would need more range than one.
        part = elementwise("multiply", gradient, 1 / replicas)
        return apply("all_reduce", part, replicas=replicas, collective=collective)

    with scope(value, family="loss"):
        total = apply("all_reduce", value, replicas=replicas, collective=Collective())
        value = elementwise("multiply", total, 1 / replicas)
    with scope(value, family="norm"):
        if own_parts:
            model = {name: part if name in own_parts else first(part) for name, part in model.items()}
        else:
            model = first(model)
    return value, model, each_gradient(mean, gradients)


def _for_host(model: Any, own_parts: Sequence[str], replicas: int) -> Any:
    """A model's state whose parts of these names the host reads from every replica."""

    def own(part: Any) -> Any:
        return map_leaves(lambda x: apply(EACH_REPLICA, x, replicas=replicas), part)

    if not own_parts:
        return model
    with scope(model, family="norm"):
        return {name: own(part) if name in own_parts else part for name, part in model.items()}


def accumulate(total: Any, new: Any, share: Value | None) -> Any:
    """The sum of gradients; or, with a share, their running mean: old + share * (new - old)."""

    def one(old: Value, fresh: Value) -> Value:
        if share is None:
            return elementwise("add", old, fresh)
        return apply("scaled_add", old, elementwise("subtract", fresh, old), share)

    return each_gradient(one, total, new)


def each_gradient(f: Callable[..., Value], *trees: Any, role: str = "grad_weight", family: str = "gradient_sum") -> Any:
    """f(leaf of each tree, ...) for every parameter, by default in the gradient sum's format."""
    tree = flatten(trees[0])[1]
    results = []
    for name, *leaves in zip(paths(tree), *(flatten(other)[0] for other in trees), strict=True):
        with scope(leaves, role=role, family=family, parameter=name):
            results.append(f(*leaves))
    return unflatten(tree, results)


def step_block(
    loss: Loss,
    optimizer: Optimizer,
    params: Any,
    batch: Any,
    *,
    micro_batches: int = 1,
    running_mean: bool = False,
    scaled: bool = False,
    model_state: Any = None,
    replicas: int = 1,
    collective: Collective | None = None,
) -> Block:
    """The Block of one training step, in ideal float32 until a `Precision` is applied.

    Inputs: the leaves of `initial_state`, of the batch (or of a part of it in each of its iterations, which are the
    micro-batches), lr, and the loss scale if there is one. Outputs: the new state's leaves and the loss.

    Args:
        loss: (params, batch) -> one number.
        optimizer: the optimizer.
        params: nested float arrays.
        batch: nested arrays; only shapes and dtypes matter.
        micro_batches: equal runs of the first axis of the batch's arrays; see `training_step`.
        running_mean: see `training_step`.
        scaled: whether there is a loss scale.
        model_state: what the model carries from step to step, nested float arrays; None: nothing.
        replicas, collective: see `training_step`. The Block is one replica's, whose part of the batch it takes.

    Raises:
        ValueError: fewer than one micro-batch or replica, or a batch that cannot be cut so, or has no rows.
        TypeError: parameters that are no floats, or lists of numbers.
    """
    check_loss(loss)
    check_params(params)
    check_batch(batch)
    step = training_step(
        loss, optimizer, micro_batches=micro_batches, running_mean=running_mean, replicas=replicas,
        collective=collective,
    )  # fmt: skip
    numbers = (np.float32(0),) * (2 if scaled else 1)
    state, part = initial_state(params, optimizer, model_state), part_of(batch, micro_batches, replicas)
    made = as_it_runs(trace(step, state, part, *numbers, carry=True))
    check_groups(made, replicas)
    return by_shards(made, replicas)
