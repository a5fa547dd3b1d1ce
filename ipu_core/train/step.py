"""A training step as a function of state, batch and learning rate, and its Block."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ipu_core.ir.autodiff import value_and_grad
from ipu_core.ir.block import Block
from ipu_core.ir.tracing import trace
from ipu_core.ir.values import Value
from ipu_core.train.optim import Optimiser

Loss = Callable[[Any, Any], Value]
Step = Callable[[Any, Any, Value], tuple[Any, Value]]


def initial_state(params: Any, optimiser: Optimiser) -> dict[str, Any]:
    """The state before the first step: {"params": ..., "optimiser": ...}, float32."""
    return {"params": params, "optimiser": optimiser.init(params)}


def training_step(loss: Loss, optimiser: Optimiser) -> Step:
    """The function (state, batch, lr) -> (new state, loss) of one step.

    Args:
        loss: (params, batch) -> one number.
        optimiser: `Sgd`, `Adam`, `Lamb` or anything like them.
    """

    def step(state: Any, batch: Any, lr: Value) -> tuple[Any, Value]:
        value, gradients = value_and_grad(loss)(state["params"], batch)
        params, inner = optimiser.update(state["params"], gradients, state["optimiser"], lr)
        return {"params": params, "optimiser": inner}, value

    return step


def step_block(loss: Loss, optimiser: Optimiser, params: Any, batch: Any) -> Block:
    """The Block of one training step, in ideal float32 until a `Precision` is applied.

    Inputs: the leaves of `initial_state`, of the batch, and lr. Outputs: the new state's leaves and the loss.

    Args:
        loss: (params, batch) -> one number.
        optimiser: the optimiser.
        params: nested float arrays.
        batch: nested arrays; only shapes and dtypes matter.
    """
    return trace(training_step(loss, optimiser), initial_state(params, optimiser), batch, np.float32(0), carry=True)
