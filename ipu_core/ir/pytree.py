"""Nested dicts, lists and tuples of arrays: flatten, name and rebuild them (a small pytree).

Classes that JAX has registered are nodes too, wherever JAX is loaded: modules of equinox, states of flax, dataclasses.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np


class Maker(Protocol):
    """What makes a node of its children: JAX's PyTreeDef of a registered class, or `Held`."""

    def unflatten(self, children: list[Any], /) -> Any:
        """The node."""


@dataclass(frozen=True)
class Held:
    """What a registered class holds that is no array, such as an activation function: it stays as it is.

    Attributes:
        value: what is held.
    """

    value: Any

    def unflatten(self, children: list[Any], /) -> Any:
        """The value."""
        return self.value


@dataclass(frozen=True)
class PyTree:
    """The shape of a nested structure: the kind of each node, its keys and its children; a leaf has kind None.

    Attributes:
        kind: the class of the node.
        keys: by which its children are named; None: as the node itself.
        children: the nodes below.
        made: what rebuilds a node of a class that JAX has registered, or what such a node holds; None: kinds of Python.
    """

    kind: type | None
    keys: tuple[Any, ...] = ()
    children: tuple[PyTree, ...] = ()
    made: Maker | None = None

    @property
    def leaves(self) -> int:
        """Number of leaves below this node."""
        return 1 if self.kind is None else sum(child.leaves for child in self.children)


LEAF = PyTree(None)


def flatten(value: Any) -> tuple[list[Any], PyTree]:
    """The leaves of a nested value in order (dict keys sorted) and the tree that rebuilds it. None has no leaves.

    Any other mapping, such as a tokenizer's batch, is read as a dict. Of a class that JAX has registered the arrays are
    leaves, in JAX's order; everything else that it holds is part of the tree.

    Raises:
        TypeError: a dict whose keys have no order.
    """
    if not isinstance(value, dict | list | tuple | None):
        if (node := _registered(value)) is not None:
            return node
        if isinstance(value, Mapping):
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


def _registered(value: Any) -> tuple[list[Any], PyTree] | None:
    """The leaves and the tree of an instance of a class that JAX has registered; None if it is none."""
    util = sys.modules.get("jax.tree_util")  # without it there is no such class
    if util is None or util.all_leaves((value,)):
        return None
    pairs, maker = util.tree_flatten_with_path(value, is_leaf=lambda each: each is not value)
    keys = tuple(_name(path[0]) for path, _ in pairs)
    if keys == ("value",):  # as the variables of flax.nnx: they have their own names
        keys = (None,)
    flat = [flatten(child) for _, child in pairs]
    held = [tree.kind is None and not is_array(child) for (_, child), (_, tree) in zip(pairs, flat, strict=True)]
    leaves = [leaf for (own, _), stays in zip(flat, held, strict=True) if not stays for leaf in own]
    children = tuple(
        PyTree(type(child), made=Held(child)) if stays else tree
        for (_, child), (_, tree), stays in zip(pairs, flat, held, strict=True)
    )
    return leaves, PyTree(type(value), keys, children, maker)


def is_array(leaf: Any) -> bool:
    """Whether a leaf is an array, a traced value or the type of one: what has a shape, and is no dtype."""
    return hasattr(leaf, "shape") and not isinstance(leaf, type | np.dtype)


def _name(key: Any) -> Any:
    """A key of a path of JAX: the attribute, the key of a dict, or the number."""
    for field in ("name", "key", "idx"):
        if hasattr(key, field):
            return getattr(key, field)
    return str(key)


def unflatten(tree: PyTree, leaves: Iterator[Any] | list[Any]) -> Any:
    """The nested value with the given leaves; the inverse of `flatten`."""
    leaves = iter(leaves)
    if tree.kind is None:
        return next(leaves)
    children = [unflatten(child, leaves) for child in tree.children]
    if tree.made is not None:
        return tree.made.unflatten(children)
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
    return [path for key, child in names for path in paths(child, _below(prefix, key))]


def _below(prefix: str, key: Any) -> str:
    return prefix if key is None else f"{prefix}.{key}" if prefix else str(key)


def makers(tree: PyTree) -> list[Maker]:
    """What rebuilds each node of a registered class, and what these hold, from above."""
    own = [] if tree.made is None else [tree.made]
    return own + [maker for child in tree.children for maker in makers(child)]


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


def plain(leaf: Any) -> Any:
    """A leaf as NumPy takes it: of JAX's keys the numbers that they are made of."""
    keys = str(getattr(leaf, "dtype", "")).startswith("key<")
    return sys.modules["jax.random"].key_data(leaf) if keys else leaf
