"""A loss function of JAX as a loss function of this library, with its parameters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ipu_core.frontends.jax.interpret import JaxprInterpreter
from ipu_core.frontends.jax.operations.call import as_value, kind_of
from ipu_core.ir.pytree import flatten, map_leaves, unflatten
from ipu_core.ir.trace.tracing import trace
from ipu_core.ir.trace.values import Value, builder_of, shape_of
from lowprec.arrays import whole_array
from lowprec.checks import shown
from lowprec.extras import optional


def from_jax(loss: Callable[..., Any], params: Any, batch: Any, *, state: Any = None) -> JaxModel:
    """Captures a loss function of JAX, plain, of flax or of haiku, for `TrainLoop`, `compare` and `value_and_grad`.

    The function is made a jaxpr by `jax.make_jaxpr`, once, with the shapes of the batch; its derivatives are taken
    here, equation by equation, and no step of training calls JAX. What has no counterpart here is refused now.

        model = ipu_core.from_jax(loss, params, batch)  # loss(params, batch) -> one number
        loop = TrainLoop(model, model.params, batch, optimizer=Sgd(0.1), precision="fp16.16/stochastic")
        loop.run(batches, steps=100)
        loss(loop.params, batch)  # the trained parameters are nested as they were

    Exponentials, logarithms, quotients, roots and sums are in float32 in every precision, since a jaxpr does not say
    which of them are a softmax or a norm; casts between formats of floats are left out: the precision says the formats.
    Layers have the names of `jax.named_scope` and of the modules of flax and haiku. Indices from the batch lie inside.
    Random numbers drawn from a key that the function holds are constants, as they are for JAX.

    Args:
        loss: (params, batch) -> one number; with a state (params, state, batch) -> (the number, the new state).
        params: nested dicts, lists and tuples of arrays of floats.
        batch: likewise, of numbers.
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
    given = [_checked(jax, name, value) for name, value in parts.items()]
    closed, shapes = jax.make_jaxpr(loss, return_shape=True)(*given)
    result, new = (shapes, None) if state is None else shapes
    if tuple(getattr(result, "shape", (0,))) or kind_of(result.dtype) != "float":
        raise ValueError(f"the loss must be one number without axes, not {result}")
    if state is not None and flatten(new)[1] != flatten(state)[1]:
        raise ValueError("the new state must be nested as the state is")
    model = JaxModel(
        loss, closed, map_leaves(_floats, params), None if state is None else map_leaves(_floats, state),
        tuple(np.shape(x) for x in flatten(batch)[0]),
    )  # fmt: skip
    example = map_leaves(_array, batch)
    # what has no counterpart is refused here, not in the first step
    trace(model, model.params, *([] if state is None else [model.state]), example)
    return model


@dataclass(frozen=True, eq=False)
class JaxModel:
    """A loss function (params, batch) -> one number, or (params, state, batch) -> (the number, new state).

    Attributes:
        loss: what was captured.
        jaxpr: its closed jaxpr.
        params: the parameters when it was captured, in float32, nested as they were.
        state: what a step changes, likewise; None: there is none.
        shapes: of the arrays of a batch.
    """

    loss: Callable[..., Any]
    jaxpr: Any
    params: Any
    state: Any
    shapes: tuple[tuple[int, ...], ...]

    @property
    def __name__(self) -> str:
        """The function's."""
        return str(getattr(self.loss, "__name__", type(self.loss).__name__))

    def description(self) -> dict[str, Any]:
        """What tells it from others in a study: the name, the jaxpr and its constants."""
        constants = [np.asarray(x) for x in self.jaxpr.consts if kind_of(x.dtype) != "key"]
        return {"function": self.__name__, "jaxpr": str(self.jaxpr), "constants": constants}

    def __call__(self, params: Any, *rest: Any) -> Any:
        """The loss of a batch, and the new state where there is one. To be traced.

        Raises:
            ValueError: a batch of other shapes than the example.
        """
        leaves = [leaf for value in (params, *rest) for leaf in flatten(value)[0]]
        shapes = tuple(tuple(shape_of(x)) for x in flatten(rest[-1])[0])
        if shapes != self.shapes:
            raise ValueError(f"{self.__name__} was captured for arrays of {self.shapes}, not {shapes}")
        builder = builder_of(leaves)
        if builder is None:
            raise TypeError("a captured function is traced: use trace(model, ...) and execute, or TrainLoop")
        results: list[Value] = [
            as_value(x) for x in JaxprInterpreter(optional("jax", extra="jax"), builder).run(self.jaxpr, leaves)
        ]
        return results[0] if self.state is None else (results[0], unflatten(flatten(self.state)[1], results[1:]))


def _checked(jax: Any, name: str, value: Any) -> Any:
    """The value as JAX takes it; refuses what JAX takes apart in another way than this library, or has no words for."""
    ours = flatten(value)[0]  # before JAX, which has none for keys without an order
    theirs = jax.tree.leaves(value)
    if len(theirs) != len(ours) or any(a is not b for a, b in zip(theirs, ours, strict=True)):
        raise TypeError(f"{name} must be nested dicts, lists and tuples of arrays, not {type(value).__name__}")
    given = map_leaves(lambda x: x if isinstance(x, jax.Array | bool | int | float) else whole_array(x), value)
    for leaf in flatten(given)[0]:
        kind = kind_of(leaf.dtype if hasattr(leaf, "dtype") else type(leaf).__name__)
        wide = isinstance(leaf, np.ndarray) and leaf.dtype.itemsize > 8  # long doubles, which JAX has not
        if wide or kind == "key" or (name != "batch" and kind != "float"):
            what = "numbers" if name == "batch" else "floats"
            raise TypeError(f"{name} must be arrays of {what}, not {shown(leaf)}")
        if isinstance(leaf, int) and not -(2**31) <= leaf < 2**31:
            raise ValueError(f"{name} holds {leaf}, which is no 32-bit integer")
    return given


def _floats(x: Any) -> Any:
    return np.asarray(x, np.float32)


def _array(x: Any) -> Any:
    """An array of the batch as a step takes it."""
    array = np.asarray(x)
    return array.astype(np.int32 if array.dtype.kind in "iu" else np.float32)
