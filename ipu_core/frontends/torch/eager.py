"""One call of a module itself with its gradients by torch's autograd, after which the module is as it was."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ipu_core.frontends.torch.export import Exported, modules_of, with_loss
from ipu_core.frontends.torch.kept import in_mode, same_number, undisturbed
from ipu_core.frontends.torch.operations.noise import MIDDLES, middle
from ipu_core.frontends.torch.outside import PREFIX
from ipu_core.frontends.torch.weights import as_array, as_floats
from ipu_core.ir.block import Array


class Eager(NamedTuple):
    """What the module itself gave.

    Attributes:
        outputs: the loss, and behind it what is kept, or all outputs of an inference.
        gradients: of the parameters that have one, by name, as torch has them.
        buffers: of floats, as the call left them.
        written: parameters whose numbers the call itself changed.
        counting: plain attributes of layers that every call changes.
        drifting: whether a second call, after which they are others, gave something else.
    """

    outputs: list[Array]
    gradients: dict[str, Array]
    buffers: dict[str, Array]
    written: list[str]
    counting: list[str]
    drifting: bool


def eager(
    torch: Any, module: Any, exported: Exported, leaves: Sequence[Any], tensors: Mapping[str, Any], *, inference: bool
) -> Eager:
    """Calls a module as it was captured, dropout left out, and takes its gradients.

    Args:
        torch: the module torch.
        module: what was captured.
        exported: its graph.
        leaves: of a batch, as tensors.
        tensors: numbers for parameters and buffers by name, in place of the module's.
        inference: whether it gives its outputs, without gradients.
    """
    results: list[Any] | None = [] if inference or exported.kept else None
    wrapper = with_loss(torch, module, exported.batch, exported.loss, results, kept=exported.kept)
    modes = in_mode(modules_of(torch, module, exported.loss), exported.training)
    with modes, undisturbed(torch, wrapper, numbers=bool(tensors)), _without_drawing(torch):
        own = _named(wrapper.named_parameters(remove_duplicate=False)) | _named(wrapper.named_buffers())
        for name, tensor in tensors.items():
            own[name].data.copy_(tensor)
        with undisturbed(torch, wrapper, numbers=True) as kept:
            outputs, gradients = _called(torch, wrapper, leaves, inference, wide=exported.wide)
            written, counting, other = kept.written, kept.counters, False
            left = _named(wrapper.named_buffers())
            buffers = {name: as_array(x, wide=exported.wide) for name, x in left.items() if x.is_floating_point()}
            if counting:
                kept.rewind()
                # a counter that decides nothing is harmless: only a second call tells
                again, _ = _called(torch, wrapper, leaves, inference, wide=exported.wide)
                counting = {name: x for name, x in kept.counters.items() if not same_number(counting.get(name), x)}
                other = any(not np.array_equal(*pair, equal_nan=True) for pair in zip(outputs, again, strict=True))
    changed, counts = ([name.removeprefix(PREFIX) for name in found] for found in (written, counting))
    return Eager(outputs, gradients, buffers, changed, counts, bool(counting) and other)


def _named(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Tensors by the names that a captured graph has for them."""
    return {name.removeprefix(PREFIX): x for name, x in pairs}


def _called(
    torch: Any, wrapper: Any, leaves: Sequence[Any], inference: bool, *, wide: bool
) -> tuple[list[Array], dict[str, Array]]:
    """The outputs of a call, and the gradients."""
    parameters = _named(wrapper.named_parameters(remove_duplicate=False))
    for x in parameters.values():
        # gradients of before would be added to
        x.grad = None
    with torch.set_grad_enabled(not inference):
        # clones: a forward may write to its inputs
        made = wrapper(*(x.clone() for x in leaves))
    every = made if isinstance(made, tuple) else (made,)
    outputs = [as_array(x, wide=wide) for x in every]
    if not inference and every[0].requires_grad:
        every[0].backward()
    return outputs, {name: as_floats(x.grad, wide=wide) for name, x in parameters.items() if x.grad is not None}


@contextlib.contextmanager
def _without_drawing(torch: Any) -> Iterator[None]:
    """A context in which dropout keeps all elements and Transformer layers run operation by operation."""

    class Whole(torch.utils._python_dispatch.TorchDispatchMode):  # type: ignore[misc]  # torch is not there when types are checked
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            # as `without_drawing` makes of the graph: every draw gives its probability
            if function is torch.ops.aten.bernoulli_.float:
                return args[0].fill_(args[1] if len(args) > 1 else (kwargs or {}).get("p", 0.5))
            if (name := function._schema.name.removeprefix("aten::")) in MIDDLES:
                made = function(*args, **(kwargs or {}))
                return made.fill_(middle(name, args if name == "randint" else args[1:]))
            return function(*args, **(kwargs or {}))

    layers = torch.backends.mha
    fast = layers.get_fastpath_enabled()
    layers.set_fastpath_enabled(False)
    try:
        with warnings.catch_warnings(), Whole():
            warnings.simplefilter("ignore")
            yield
    finally:
        layers.set_fastpath_enabled(fast)
