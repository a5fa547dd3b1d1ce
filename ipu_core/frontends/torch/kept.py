"""A module's state before a call, to restore it: attributes, modes, tensors, gradients, random generators."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from ipu_core.frontends.torch.outside import same_state, sources

PLAIN = (int, float, bool, str, type(None))


class ModuleSnapshot:
    """A module and torch's generator as they are now.

    Args:
        torch: the module torch.
        module: a `torch.nn.Module`.
        numbers: whether the numbers in its tensors are copied, too.
    """

    def __init__(self, torch: Any, module: Any, *, numbers: bool) -> None:
        self._torch, self._module = torch, module
        self._attributes = [(name, part, dict(vars(part))) for name, part in module.named_modules()]
        self._tables = [
            (table, dict(table)) for part in module.modules() for table in (part._parameters, part._buffers)
        ]
        tensors = [x for _, table in self._tables for x in table.values() if x is not None]
        self._grads = [(x, x.grad) for x in tensors if x.requires_grad]
        self._numbers = [(x, x.detach().clone()) for x in tensors] if numbers else []
        # torch captures its own draws as operations; of other generators' it sees the numbers alone
        self._states = [(source, source.read()) for source in sources(module)]
        self._drawn = torch.get_rng_state()

    @property
    def drawn(self) -> str:
        """Whose random numbers were drawn since, of those that torch does not know; "" if none were."""
        return next((source.name for source, state in self._states if not same_state(state, source.read())), "")

    @property
    def counters(self) -> dict[str, Any]:
        """Plain attributes that are another than they were, by dotted name, as they are now."""
        found = {}
        for name, part, before in self._attributes:
            for key, value in vars(part).items():
                old = before.get(key)
                if isinstance(value, PLAIN) and isinstance(old, PLAIN) and not same_number(old, value):
                    found[".".join(filter(None, (name, key)))] = value
        return found

    @property
    def written(self) -> list[str]:
        """Parameters whose numbers are others than they were."""
        changed = {id(x) for x, before in self._numbers if not same_bits(self._torch, x, before)}
        return [name for name, x in self._module.named_parameters() if id(x) in changed]

    def restore(self) -> None:
        """Restores everything; a tensor that was not written to is not written to."""
        for _, part, before in self._attributes:
            for key in vars(part).keys() - before.keys():
                del vars(part)[key]
            vars(part).update(before)
        self.rewind()

    def rewind(self) -> None:
        """Restores everything but the layers' attributes."""
        for table, before in self._tables:
            # a buffer that was replaced is the old tensor again, not its copy
            table.clear()
            table.update(before)
        for x, grad in self._grads:
            x.grad = grad
        for x, before in self._numbers:
            if not same_bits(self._torch, x, before):
                x.data.copy_(before)
        for source, state in self._states:
            source.write(state)
        self._torch.set_rng_state(self._drawn)


def same_number(one: Any, other: Any) -> bool:
    """Whether two plain values are the same; NaN is NaN."""
    return bool(one == other or (one != one and other != other))


def same_bits(torch: Any, one: Any, other: Any) -> bool:
    """Whether two tensors hold the same numbers, NaN in the same places."""
    return bool(torch.equal(one, other) or (torch.isclose(one, other, 0.0, 0.0, equal_nan=True).all()))


@contextlib.contextmanager
def undisturbed(torch: Any, module: Any, *, numbers: bool) -> Iterator[ModuleSnapshot]:
    """A context after which a module is as it was before, see `ModuleSnapshot`."""
    kept = ModuleSnapshot(torch, module, numbers=numbers)
    try:
        yield kept
    finally:
        kept.restore()


@contextlib.contextmanager
def in_mode(modules: list[Any], training: bool) -> Iterator[None]:
    """Modules in training or eval mode: layers as they are where their module is in it already, else all of them."""
    flags = [(part, part.training) for module in modules for part in module.modules()]
    for module in modules:
        # train() would put layers into training that the user froze in eval mode
        if module.training != training:
            module.train(training)
    try:
        yield
    finally:
        for part, mode in flags:
            part.training = mode
