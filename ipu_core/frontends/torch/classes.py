"""Classes of what a module takes and gives: from plain dicts and tuples back to dataclasses, outputs and batches."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

Remake = Callable[[Any], Any]
"""Makes of a plain nested value one with the classes of another; what is missing in it is as it was there."""


def remake_of(like: Any) -> Remake:
    """What makes of plain dicts, tuples and lists the classes of a value: mappings, dataclasses, tuples with names.

    Args:
        like: nested; of its arrays nothing is kept.
    """
    if isinstance(like, Mapping):
        return _of_mapping(like)
    if dataclasses.is_dataclass(like) and not isinstance(like, type):
        return _of_dataclass(like)
    if isinstance(like, tuple | list):
        return _of_sequence(like)
    known = None if hasattr(like, "shape") else like
    return lambda given: known if given is None else given


def arguments_of(like: Any) -> Remake:
    """The same for the arguments of a call: a mapping or dataclass stands for arguments by name and becomes a dict."""
    if dataclasses.is_dataclass(like) and not isinstance(like, type | Mapping):
        like = {field.name: getattr(like, field.name) for field in dataclasses.fields(like)}
    return remake_of(dict(like) if isinstance(like, Mapping) else like)


def _of_mapping(like: Mapping[Any, Any]) -> Remake:
    parts = {str(name): remake_of(part) for name, part in like.items()}
    kind: Any = type(like)
    # those of transformers are both, and take their fields by name
    by_name = dataclasses.is_dataclass(kind)

    def remake(given: Any) -> Any:
        # in the order of the first one: the last part may be the target
        made = {name: part(given.get(name)) for name, part in parts.items()}
        return kind(**made) if by_name else made if kind is dict else kind(made)

    return remake


def _of_dataclass(like: Any) -> Remake:
    names = [field.name for field in dataclasses.fields(like)]
    parts = {name: remake_of(getattr(like, name)) for name in names}
    empty = copy.copy(like)
    for name in names:
        object.__setattr__(empty, name, None)  # a frozen one, too; and no tensor is kept

    def remake(given: Any) -> Any:
        made = copy.copy(empty)
        for name, part in parts.items():
            object.__setattr__(made, name, part(given.get(name)))
        return made

    return remake


def _of_sequence(like: Any) -> Remake:
    parts, kind = [remake_of(part) for part in like], type(like)
    names: tuple[str, ...] | None = getattr(like, "_fields", None)

    def remake(given: Any) -> Any:
        # as an output one with names is a dict, as a part of a batch it is itself
        every = [given.get(name) for name in names or ()] if isinstance(given, Mapping) else given
        made = [part(own) for part, own in zip(parts, every, strict=True)]
        return kind(*made) if names is not None else kind(made)

    return remake
