"""Batches as loaders give them: mappings, dataclasses, tuples; and what in them is no tensor but a setting."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ipu_core.frontends.torch.classes import Remake, arguments_of
from ipu_core.ir.pytree import PyTree, flatten, paths, unflatten
from lowprec.checks import shown

PLAIN = (bool, int, float, str)
"""Settings that a batch may hold beside its tensors: they are bound when a module is captured."""


class BatchLayout(NamedTuple):
    """How a batch is nested, and the settings in it.

    Attributes:
        tree: the nesting of all leaves, settings included.
        settings: the values of settings by the number of their leaf.
        remake: makes of it, plain, what the module is called with.
    """

    tree: PyTree
    settings: Mapping[int, Any]
    remake: Remake

    def names(self) -> dict[str, Any]:
        """The settings by name."""
        every = paths(self.tree)
        return {every[number]: value for number, value in self.settings.items()}

    def filled(self, leaves: Sequence[Any]) -> Any:
        """A batch like the example, from its tensors in order and the settings: a dict is of arguments by name."""
        given = iter(leaves)
        every = [self.settings[i] if i in self.settings else next(given) for i in range(self.tree.leaves)]
        return self.remake(unflatten(self.tree, every))

    def without_settings(self, batch: Any) -> Any:
        """A batch as a loop takes it: plain, and without the settings, which must be those that are bound.

        Raises:
            ValueError: another setting.
        """
        batch = plain(batch)
        leaves, tree = flatten(batch)
        for name, leaf in zip(paths(tree), leaves, strict=True):
            # the graph holds the setting of the capture as a constant: another value would be ignored in silence
            if isinstance(leaf, PLAIN) and (name not in (bound := self.names()) or bound[name] != leaf):
                known = f"{bound[name]!r}" if name in bound else "nothing"
                raise ValueError(f"{name}={shown(leaf)} in a batch: {known} was bound when the module was captured")
        return _pruned(batch)


def bound(batch: Any, like: Any = None) -> tuple[Any, BatchLayout, list[Any]]:
    """Takes a batch apart: plain dicts, tuples and lists; the layout with the settings; the other leaves.

    Args:
        batch: tensors, nested.
        like: one nested alike, whose classes the module gets; None: the batch's own.
    """
    remake = arguments_of(batch if like is None else like)
    batch = plain(batch)
    leaves, tree = flatten(batch)
    settings = {number: leaf for number, leaf in enumerate(leaves) if isinstance(leaf, PLAIN)}
    others = [leaf for number, leaf in enumerate(leaves) if number not in settings]
    return batch, BatchLayout(tree, settings, remake), others


def plain(batch: Any) -> Any:
    """Mappings of any kind and dataclasses as dicts, by name, at any depth."""
    if isinstance(batch, Mapping):
        return {name: plain(part) for name, part in batch.items()}
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        return {field.name: plain(getattr(batch, field.name)) for field in dataclasses.fields(batch)}
    # named tuples take their parts one by one, not as one iterable
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*map(plain, batch))
    # subclasses of list and tuple are left alone: `flatten` refuses what it does not know
    return type(batch)(map(plain, batch)) if type(batch) in (list, tuple) else batch


def _pruned(batch: Any) -> Any:
    """A batch without its settings and without entries that are None."""
    if isinstance(batch, dict):
        kept = {name: _pruned(part) for name, part in batch.items()}
        return {name: part for name, part in kept.items() if part is not None}
    if isinstance(batch, list | tuple):
        kept_parts = [part for part in map(_pruned, batch) if part is not None]
        return tuple(kept_parts) if isinstance(batch, tuple) else kept_parts
    return None if isinstance(batch, PLAIN) else batch
