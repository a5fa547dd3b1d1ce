"""What a captured module is compared with: torch itself, in float32 and in float64."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ipu_core import Precision, execute, trace, value_and_grad
from ipu_core.capture import TorchModel
from ipu_core.ir.evaluate import evaluate
from ipu_core.ir.pytree import map_leaves

Loss = Callable[..., Any]


class Step(NamedTuple):
    """A loss and its gradients by the parameters' names."""

    loss: float
    gradients: dict[str, Any]


def loss_of(module: Any, batch: Any, loss: Loss | None) -> Any:
    """The loss of a module, as `from_torch` understands its arguments."""
    if isinstance(batch, dict):
        output = module(**batch)
        return output.loss
    output = module(*batch) if loss is None else module(*batch[:-1])
    return output if loss is None else loss(output, batch[-1])


def by_torch(module: Any, batch: Any, loss: Loss | None = None, *, double: bool = False) -> Step:
    """Torch's own loss and gradients, on a copy."""
    twin = copy.deepcopy(module)
    if double:
        twin = twin.double()
        batch = map_leaves(lambda x: x.double() if x.is_floating_point() else x, batch)
    value = loss_of(twin, batch, loss)
    value.backward()
    found = {name: p.grad.double().numpy() for name, p in twin.named_parameters() if p.grad is not None}
    return Step(float(value), found)


def as_arrays(batch: Any) -> Any:
    """The batch as `execute` takes it."""
    return map_leaves(lambda x: np.asarray(x.int() if x.dtype.is_signed and not x.is_floating_point() else x), batch)


def ours(model: TorchModel, batch: Any, *, exact: bool = False) -> Step:
    """The captured module's loss and gradients: in float32, or in ideal arithmetic."""
    state = () if model.state is None else (model.state,)
    step = value_and_grad(model, has_aux=bool(state))
    arrays = map_leaves(lambda x: x.astype(np.float32) if x.dtype.kind == "b" else x, as_arrays(batch))
    block = Precision.parse("fp32.32").apply(trace(step, model.params, *state, arrays))
    if exact:
        value, gradients = evaluate(trace(step, model.params, *state, arrays), model.params, *state, arrays)
    else:
        value, gradients = execute(block, model.params, *state, arrays, key=0)
    return Step(float(value[0] if state else value), gradients)
