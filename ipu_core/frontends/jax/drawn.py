"""What follows from the keys of a batch alone: JAX computes it for every batch, and it is fed beside the batch.

So a captured function draws what it draws in JAX, bit for bit. Masks and noise are inputs of the step: they are not
drawn on the tiles, and the account has them as what the host feeds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from ipu_core.frontends.jax.operations.call import kind_of
from ipu_core.ir.block import Array, Var
from ipu_core.ir.ops import INT32
from ipu_core.ir.pytree import PyTree, flatten, paths, unflatten
from ipu_core.ir.trace.builder import Builder
from ipu_core.ir.trace.traced import TracedArray
from ipu_core.ir.trace.values import Value, reshape
from lowprec import float32 as FLOAT32


def is_key(dtype: Any) -> bool:
    """Whether such elements are keys, or the numbers that older ones are made of."""
    return kind_of(dtype) == "key" or str(dtype) == "uint32"


def holds_keys(leaf: Any) -> bool:
    """Whether an array of a batch is one of keys: as `jax.random.key` makes them, or as `PRNGKey` does, (..., 2)."""
    dtype = getattr(leaf, "dtype", None)
    return dtype is not None and is_key(dtype) and (kind_of(dtype) == "key" or tuple(leaf.shape[-1:]) == (2,))


@dataclass(frozen=True, eq=False)
class DrawnEquation:
    """An equation of keys and constants.

    Attributes:
        operands: `Drawn` and constants.
        compute: from their values to the results.
    """

    operands: tuple[Any, ...]
    compute: Callable[[Sequence[Any]], Sequence[Any]]


@dataclass(frozen=True, eq=False)
class Drawn:
    """A value that follows from keys of the batch.

    Attributes:
        aval: its shape and dtype, as JAX has them.
        number: which result of the equation it is, or which key of the batch.
        equation: what makes it; None: it is a key of the batch.
    """

    aval: Any
    number: int
    equation: DrawnEquation | None = None

    def of(self, keys: Sequence[Any], known: dict[int, Sequence[Any]]) -> Any:
        """Its value for some keys; `known` has the results of equations by their identity."""
        if self.equation is None:
            return keys[self.number]
        if id(self.equation) not in known:
            operands = [x.of(keys, known) if isinstance(x, Drawn) else x for x in self.equation.operands]
            known[id(self.equation)] = self.equation.compute(operands)
        return known[id(self.equation)][self.number]

    def row(self, place: int) -> Drawn:
        """One row of it."""
        return Drawn(self.aval.update(shape=self.aval.shape[1:]), 0, DrawnEquation((self,), lambda x: [x[0][place]]))


class Settled:
    """The values of a trace that stand for what is drawn, in the order in which a function reads it.

    Args:
        fed: what stands for it; None: it is not known yet what is read, and zeros stand for it.

    Attributes:
        found: what was read so far.
    """

    def __init__(self, fed: Sequence[Value] | None = None) -> None:
        self.found: list[Drawn] = []
        self._fed = fed
        self._values: dict[int, Value] = {}

    def value(self, drawn: Drawn, builder: Builder) -> Value:
        """The value of the trace.

        Raises:
            TypeError: it is a key.
        """
        if kind_of(drawn.aval.dtype) == "key":
            raise TypeError(
                "a key meets what the step computes: what is folded into it must be known beside the batch, as "
                "jax.random.fold_in(key, step) in the batch itself"
            )
        if id(drawn) not in self._values:
            whole = kind_of(drawn.aval.dtype) == "int"
            if self._fed is not None:
                made = self._fed[len(self.found)]
            else:
                shape = tuple(drawn.aval.shape)
                zeros = np.zeros(shape or (1,), np.int32 if whole else np.float32)
                atom = builder.constant(zeros, INT32 if whole else FLOAT32)
                assert isinstance(atom, Var)  # an array with axes
                made = reshape(TracedArray(builder, atom), shape)
            self.found.append(drawn)
            self._values[id(drawn)] = made
        return self._values[id(drawn)]


@dataclass(frozen=True, eq=False)
class Feeder:
    """Makes what a step is fed of a batch with keys: {"batch": the rest of it, "draws": arrays}.

    Attributes:
        jax: the module.
        tree: how a batch is nested.
        shapes: of its leaves, when the function was captured; a training may cut a batch into several such parts.
        places: which leaves are keys.
        typed: which of these are of `jax.random.key`; the others are of `PRNGKey`.
        found: what is drawn from them.
    """

    jax: Any
    tree: PyTree
    shapes: tuple[tuple[int, ...], ...]
    places: tuple[int, ...]
    typed: tuple[bool, ...]
    found: tuple[Drawn, ...] = field(repr=False)

    @cached_property
    def rows(self) -> int | None:
        """How many rows all arrays of the batch but its keys have; None: they have no such number."""
        counts = {shape[:1] for number, shape in enumerate(self.shapes) if number not in self.places and shape}
        return counts.pop()[0] or None if len(counts) == 1 else None

    @cached_property
    def _draw(self) -> Callable[[Sequence[Any]], Sequence[Any]]:
        def draw(keys: Sequence[Any]) -> list[Any]:
            known: dict[int, Sequence[Any]] = {}
            return [self._lines(drawn.of(keys, known), drawn) for drawn in self.found]

        made: Callable[[Sequence[Any]], Sequence[Any]] = self.jax.jit(draw)
        return made

    def _lines(self, x: Any, drawn: Drawn) -> Any:
        """What is drawn in as many rows as the batch has, so that both are cut alike; zeros fill the last."""
        if self.rows is None:
            return x
        fills = -drawn.aval.size % self.rows
        return self.jax.numpy.pad(x.reshape(-1), (0, fills)).reshape(self.rows, -1)

    def __call__(self, batch: Any) -> Mapping[str, Any]:
        """The arrays of a batch.

        Raises:
            ValueError: one that is nested otherwise, or whose keys do not fit.
        """
        leaves, tree = flatten(batch)
        if paths(tree) != paths(self.tree):
            raise ValueError(f"the batch holds {', '.join(paths(tree))}; it was captured with {self.names}")
        parts = self._parts(leaves)
        keys = [self._keys(leaves[place], place, parts) for place in self.places]
        drawn = [[_plain(x) for x in self._draw([each[part] for each in keys])] for part in range(parts)]
        rest = unflatten(tree, [None if n in self.places else leaf for n, leaf in enumerate(leaves)])
        return {
            "batch": rest,
            "draws": [np.concatenate(each) if parts > 1 else each[0] for each in zip(*drawn, strict=True)],
        }

    def __deepcopy__(self, memo: Any) -> Feeder:
        return self  # nothing of it changes

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError(
            "a training that reads keys of its batch cannot be pickled, since JAX draws from them: TrainLoop.save "
            "writes a checkpoint, and another loop loads it"
        )

    @property
    def names(self) -> str:
        """Of the leaves of a batch."""
        return ", ".join(paths(self.tree))

    def _parts(self, leaves: Sequence[Any]) -> int:
        """How many parts of the captured size a batch holds."""
        for number, (leaf, shape) in enumerate(zip(leaves, self.shapes, strict=True)):
            if number not in self.places and shape and shape[0] and np.shape(leaf)[:1]:
                return max(1, int(np.shape(leaf)[0]) // shape[0])
        return 1

    def _keys(self, key: Any, place: int, parts: int) -> Sequence[Any]:
        """The key of each part: its rows of keys, or the number of the part folded into the one there is."""
        shape, name = self.shapes[place], paths(self.tree)[place] or "0"
        if not holds_keys(key):
            raise ValueError(f"{name} of the batch was captured as a key of jax.random, and is {type(key).__name__}")
        if (typed := kind_of(key.dtype) == "key") != self.typed[self.places.index(place)]:
            kinds = ("PRNGKey", "key") if typed else ("key", "PRNGKey")
            cure = "key_data" if typed else "wrap_key_data"
            raise ValueError(
                f"{name} of the batch was captured as a jax.random.{kinds[0]} and is a jax.random.{kinds[1]}: "
                f"jax.random.{cure} makes that of it"
            )
        if tuple(key.shape) == shape:
            if parts == 1:
                return [key]
            if len(shape) == (0 if typed else 1):
                return [self.jax.random.fold_in(key, part) for part in range(parts)]
        elif self.rows and tuple(key.shape) == (parts * self.rows, *shape[1:]) and shape[:1] == (self.rows,):
            return [key[part * shape[0] : (part + 1) * shape[0]] for part in range(parts)]
        raise ValueError(f"{name} of the batch: keys of shape {key.shape} for {parts} parts that each read {shape}")

    def settled(self, draws: Sequence[Value]) -> Settled:
        """What stands in a trace for what is drawn, of the rows that a part was fed."""
        made = []
        for fed, drawn in zip(draws, self.found, strict=True):
            shape = tuple(drawn.aval.shape)
            flat = fed if self.rows is None else reshape(fed, (-1,))
            made.append(reshape(flat if self.rows is None else flat[: math.prod(shape)], shape))
        return Settled(made)


def _plain(x: Any) -> Array:
    array = np.asarray(x)
    return array if array.dtype.kind in "iu" else array.astype(np.float32)
