"""A loss function of JAX as a loss function of this library, with its parameters."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np

from ipu_core.frontends.jax.drawn import Drawn, Feeder, Settled, holds_keys
from ipu_core.frontends.jax.interpret import JaxprInterpreter
from ipu_core.frontends.jax.operations.call import as_value, kind_of
from ipu_core.ir.pytree import Held, PyTree, flatten, map_leaves, named, unflatten
from ipu_core.ir.trace.tracing import trace
from ipu_core.ir.trace.values import Value, builder_of, shape_of
from lowprec.arrays import whole_array
from lowprec.checks import shown
from lowprec.extras import optional

APART = (
    "what is no parameter belongs beside them: params, static = equinox.partition(model, equinox.is_inexact_array), "
    "graph, params, rest = nnx.split(model, nnx.Param, ...)"
)


def from_jax(loss: Callable[..., Any], params: Any, batch: Any, *, state: Any = None) -> JaxModel:
    """Captures a loss function of JAX, plain, of equinox, flax or haiku, for `TrainLoop`, `compare`, `value_and_grad`.

    The function is made a jaxpr by `jax.make_jaxpr`, once, with the shapes of the batch; its derivatives are taken
    here, equation by equation. What has no counterpart here is refused now.

        model = ipu_core.from_jax(loss, params, batch)  # loss(params, batch) -> one number
        loop = TrainLoop(model, model.params, batch, optimizer=Sgd(0.1), precision="fp16.16/stochastic")
        loop.run(batches, steps=100)
        loss(loop.params, batch)  # the trained parameters are nested as they were

    Exponentials, logarithms, quotients, roots and sums are in float32 in every precision, since a jaxpr does not say
    which of them are a softmax or a norm; casts between formats of floats are left out: the precision says the formats.
    Layers have the names of `jax.named_scope` and of the modules of flax and haiku, parameters those of attributes,
    keys and numbers on the way to them. Indices from the batch lie inside.

    Random numbers drawn from a key that the function holds are constants, as they are for JAX. Those from a key in the
    batch, `(x, y, jax.random.key(0))`, are other ones in every step: the same bits as in JAX, which computes them for
    each batch, the one thing that a step of training calls JAX for. They are fed with the batch; where a training cuts
    that into parts, part i has jax.random.fold_in(key, i).

    Args:
        loss: (params, batch) -> one number; with a state (params, state, batch) -> (the number, the new state).
        params: arrays of floats, nested in dicts, lists, tuples and classes that JAX has registered (modules of
            equinox, states of flax.nnx, dataclasses). What such a class holds that is no array stays as it is.
        batch: likewise, of numbers and keys.
        state: likewise: what a step changes, such as running statistics; None: there is none.

    Raises:
        ImportError: JAX is not installed.
        TypeError: parameters or a batch that are nested otherwise, or are no floats.
        ValueError: a loss that is not one number, or a new state nested otherwise than the state.
        NotCovered: a primitive has no counterpart; the message names it, the layer and the line.
    """
    jax = optional("jax", extra="jax")
    if not callable(loss):
        raise TypeError(f"loss must be a function (params, batch) -> one number, not {shown(loss)}")
    parts = {"params": params, "batch": batch} if state is None else {"params": params, "state": state, "batch": batch}
    given = [leaf for name, value in parts.items() for leaf in _checked(jax, name, value)]
    closed = jax.make_jaxpr(_flat(loss, [flatten(value)[1] for value in parts.values()]))(*given)
    result = closed.out_avals[0] if closed.out_avals else None
    if result is None or tuple(result.shape) or kind_of(result.dtype) != "float":
        raise ValueError(f"the loss must be one number without axes, not {result}")
    leaves, tree = flatten(batch)
    places = tuple(place for place, leaf in enumerate(leaves) if holds_keys(leaf))
    shapes = tuple(tuple(np.shape(x)) for x in leaves)
    width = np.float64 if jax.config.jax_enable_x64 else np.float32
    kept = [map_leaves(partial(np.asarray, dtype=width), value) for name, value in parts.items() if name != "batch"]
    feeder = None
    if places:
        rest = [_array(leaf) for place, leaf in enumerate(leaves) if place not in places]
        typed = tuple(kind_of(leaves[place].dtype) == "key" for place in places)
        feeder = Feeder(jax, tree, shapes, places, typed, _drawn(jax, closed, flatten(kept)[0], rest, places))
    model = JaxModel(loss, closed, kept[0], None if state is None else kept[1], shapes, feeder)
    # what has no counterpart is refused here, not in the first step
    trace(model, *kept, map_leaves(_array, batch if feeder is None else feeder(batch)))
    return model


def _drawn(jax: Any, closed: Any, kept: Sequence[Any], rest: Sequence[Any], places: Sequence[int]) -> tuple[Drawn, ...]:
    """What a function draws from keys, in the order in which it reads it."""
    draws = Settled()

    def run(*leaves: Any) -> list[Value]:
        return _results(jax, closed, with_keys(closed, leaves, len(kept), places), draws)

    trace(run, *kept, *rest)
    return tuple(draws.found)


def with_keys(closed: Any, leaves: Sequence[Any], first: int, places: Sequence[int]) -> list[Any]:
    """The operands of a jaxpr: leaves, with what stands for keys at its places behind the first ones."""
    given = iter(leaves)
    avals = closed.in_avals
    number = {first + place: order for order, place in enumerate(places)}
    return [Drawn(aval, number[n]) if n in number else next(given) for n, aval in enumerate(avals)]


def _results(jax: Any, closed: Any, operands: Sequence[Any], draws: Settled) -> list[Value]:
    """The results of a jaxpr for values of a trace."""
    builder = builder_of([x for x in operands if not isinstance(x, Drawn)])
    if builder is None:
        raise TypeError("a captured function is traced: use trace(model, ...) and execute, or TrainLoop")
    wide = any(str(aval.dtype) == "float64" for aval in closed.in_avals)
    with jax.enable_x64(wide or jax.config.jax_enable_x64):  # as it was captured: constants stay whole
        made = JaxprInterpreter(jax, builder, draws=draws).run(closed, operands)
    return [as_value(draws.value(x, builder) if isinstance(x, Drawn) else x) for x in made]


def _flat(loss: Callable[..., Any], trees: Sequence[PyTree]) -> Callable[..., Any]:
    """The loss as a function of leaves, which gives leaves."""

    def flat(*leaves: Any) -> list[Any]:
        own = iter(leaves)
        made = loss(*(unflatten(tree, own) for tree in trees))
        if len(trees) == 2:
            return [_one(made)]
        value, new = made
        if flatten(new)[1] != trees[1]:
            raise ValueError("the new state must be nested as the state is")
        return [_one(value), *flatten(new)[0]]

    return flat


def _one(value: Any) -> Any:
    if flatten(value)[1].kind is not None:
        raise ValueError(f"the loss must be one number without axes, not {shown(value)}")
    return value


@dataclass(frozen=True, eq=False)
class JaxModel:
    """A loss function (params, batch) -> one number, or (params, state, batch) -> (the number, new state).

    Attributes:
        loss: what was captured.
        jaxpr: its closed jaxpr.
        params: the parameters when it was captured, in float32 (float64 under jax_enable_x64), nested as they were.
        state: what a step changes, likewise; None: there is none.
        shapes: of the arrays of a batch.
        feeder: makes what a step is fed of a batch that holds keys, which a `TrainLoop` calls; None: there are none.
    """

    loss: Callable[..., Any]
    jaxpr: Any
    params: Any
    state: Any
    shapes: tuple[tuple[int, ...], ...]
    feeder: Feeder | None = None

    @property
    def __name__(self) -> str:
        """The function's."""
        return str(getattr(self.loss, "__name__", type(self.loss).__name__))

    @cached_property
    def captured_narrow(self) -> str:
        """What is to be said of it in float64; "": it was captured in float64 whole."""
        if not re.search(r"\bb?f(16|32)\[", str(self.jaxpr)):
            return ""
        return (
            f"{self.__name__} was captured in float32, its numbers such as 0.1 too, and a finer precision has not "
            "those of the function: write the loss with NumPy and nn, or capture it under jax_enable_x64 with "
            "parameters and a batch in float64"
        )

    def description(self) -> dict[str, Any]:
        """What tells it from others in a study: the name, the jaxpr and its constants."""
        constants = [np.asarray(x) for x in self.jaxpr.consts if kind_of(x.dtype) != "key"]
        return {"function": self.__name__, "jaxpr": str(self.jaxpr), "constants": constants}

    def __call__(self, params: Any, *rest: Any) -> Any:
        """The loss of a batch, and the new state where there is one. To be traced; with keys, of what `feeder` makes.

        Raises:
            TypeError: a batch with keys.
            ValueError: a batch of other shapes than the example.
        """
        kept = flatten((params, *rest[:-1]))[0]
        given, fed, places = rest[-1], (), tuple[int, ...]()
        if self.feeder is not None:
            if not isinstance(given, Mapping) or set(given) != {"batch", "draws"}:
                raise TypeError(f"{self.__name__} reads keys of its batch: give it model.feeder(batch)")
            given, fed, places = given["batch"], given["draws"], self.feeder.places
        leaves = flatten(given)[0]
        shapes = tuple(tuple(shape_of(x)) for x in leaves)
        if shapes != (own := tuple(shape for place, shape in enumerate(self.shapes) if place not in places)):
            raise ValueError(
                f"{self.__name__} was captured for arrays of {own}, not {shapes}: capture it with as many rows as it "
                "reads at once, of a batch that micro_batches or replicas cut those of one part"
            )
        draws = Settled() if self.feeder is None else self.feeder.settled(fed)
        operands = with_keys(self.jaxpr, [*kept, *leaves], len(kept), places)
        results = _results(optional("jax", extra="jax"), self.jaxpr, operands, draws)
        return results[0] if self.state is None else (results[0], unflatten(flatten(self.state)[1], results[1:]))


def _checked(jax: Any, name: str, value: Any) -> list[Any]:
    """The leaves of an argument as JAX takes them; refuses what this library has no words for."""
    _check_held(name, flatten(value)[1])
    given = []
    for path, leaf in named(value):
        place = ".".join(filter(None, (name, path)))
        if not isinstance(leaf, jax.Array | bool | int | float):
            if not hasattr(leaf, "__array__") and not hasattr(leaf, "__dlpack__"):
                raise TypeError(f"{name} must be nested arrays, and {place} is {shown(leaf)}: {APART}")
            leaf = whole_array(leaf)
        kind = kind_of(leaf.dtype if hasattr(leaf, "dtype") else type(leaf).__name__)
        wide = isinstance(leaf, np.ndarray) and leaf.dtype.itemsize > 8  # long doubles, which JAX has not
        if name != "batch" and kind != "float":
            raise TypeError(f"{name} must be arrays of floats, and {place} is {shown(leaf)}: {APART}")
        if wide or (kind == "key" and not holds_keys(leaf)):
            raise TypeError(f"{name} must be arrays of numbers, and {place} is {shown(leaf)}")
        if isinstance(leaf, int) and not -(2**31) <= leaf < 2**31:
            raise ValueError(f"{place} is {leaf}, which is no 32-bit integer")
        given.append(leaf)
    return given


def _check_held(name: str, tree: PyTree) -> None:
    """Refuses a Python number in a registered class, which JAX would differentiate; equinox leaves it alone."""
    of_equinox = tree.kind is not None and any(each.__module__.startswith("equinox") for each in tree.kind.__mro__)
    for key, child in zip(tree.keys, tree.children, strict=True):
        own = f"{name}.{key}"
        if (
            isinstance(child.made, Held)
            and isinstance(child.made.value, float)
            and not name.startswith("batch")
            and not of_equinox
        ):
            raise TypeError(
                f"{own} is the number {child.made.value!r}, which JAX trains: np.float32({child.made.value!r}), or a "
                "static field of its class where it stays as it is"
            )
        _check_held(own, child)


def _array(x: Any) -> Any:
    """An array of the batch as a step takes it."""
    array = np.asarray(x)
    return array.astype(np.int32 if array.dtype.kind in "iu" else np.float32)
