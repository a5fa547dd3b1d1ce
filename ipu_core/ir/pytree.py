"""Nested dicts, lists and tuples of arrays: flatten, name and rebuild them (a small pytree)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class PyTree:
    """The shape of a nested structure: the kind of each node, its keys and its children; a leaf has kind None."""

    kind: type | None
    keys: tuple[Any, ...] = ()
    children: tuple[PyTree, ...] = ()

    @property
    def leaves(self) -> int:
        """Number of leaves below this node."""
        return 1 if self.kind is None else sum(child.leaves for child in self.children)


LEAF = PyTree(None)


def flatten(value: Any) -> tuple[list[Any], PyTree]:
    """The leaves of a nested value in order (dict keys sorted) and the tree that rebuilds it. None has no leaves.

    Any other mapping, such as a tokenizer's batch, is read as a dict.

    Raises:
        TypeError: a dict whose keys have no order.
    """
    if not isinstance(value, dict) and isinstance(value, Mapping):
        value = dict(value)
    if isinstance(value, dict):
        try:
            keys: tuple[Any, ...] = tuple(sorted(value))
        except TypeError:
            raise TypeError(
                f"the keys of a dict must have an order, such as strings; given were {list(value)}"
            ) from None
        nested = [value[key] for key in keys]
    elif isinstance(value, (list, tuple)):
        keys, nested = tuple(range(len(value))), list(value)
    elif value is None:
        keys, nested = (), []
    else:
        return [value], LEAF
    pairs = [flatten(child) for child in nested]
    return [leaf for leaves, _ in pairs for leaf in leaves], PyTree(type(value), keys, tuple(tree for _, tree in pairs))


def unflatten(tree: PyTree, leaves: Iterator[Any] | list[Any]) -> Any:
    """The nested value with the given leaves; the inverse of `flatten`."""
    leaves = iter(leaves)
    if tree.kind is None:
        return next(leaves)
    children = [unflatten(child, leaves) for child in tree.children]
    if issubclass(tree.kind, dict):
        return dict(zip(tree.keys, children, strict=True))
    if issubclass(tree.kind, tuple):
        return tree.kind(*children) if hasattr(tree.kind, "_fields") else tuple(children)
    return children if tree.kind is list else None


def paths(tree: PyTree, prefix: str = "") -> list[str]:
    """A dotted name per leaf, such as "layers.0.weight"; the prefix itself for a bare leaf."""
    if tree.kind is None:
        return [prefix]
    names = zip(tree.keys, tree.children, strict=True)
    return [path for key, child in names for path in paths(child, f"{prefix}.{key}" if prefix else str(key))]


def named(value: Any) -> list[tuple[str, Any]]:
    """The leaves of a nested value, each behind its dotted name."""
    leaves, tree = flatten(value)
    return list(zip(paths(tree), leaves, strict=True))


def map_leaves(f: Callable[..., Any], value: Any, *others: Any) -> Any:
    """A nested value with f applied to corresponding leaves of values of one structure.

    Raises:
        ValueError: if the structures differ.
    """
    leaves, tree = flatten(value)
    rest = [flatten(other) for other in others]
    for other, (_, other_tree) in zip(others, rest, strict=True):
        if other_tree != tree:
            raise ValueError(f"the structures differ: {describe(value)} and {describe(other)}")
    return unflatten(tree, [f(*group) for group in zip(leaves, *(leaves_ for leaves_, _ in rest), strict=True)])


def describe(value: Any) -> str:
    """The names of the leaves in words, for error messages."""
    names = paths(flatten(value)[1])
    return "{" + ", ".join(names) + "}" if names != [""] else "a single value"
