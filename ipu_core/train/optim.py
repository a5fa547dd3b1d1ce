"""Optimisers: Sgd, Adam and Lamb as traced functions from (parameters, gradients, state, lr) to the new ones.

The arithmetic is float32; weights and moments are stored in the formats the precision says. The one equation that
writes a weight is `scaled_add(weight, direction, scale)` with role "update".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ipu_core.ir.pytree import flatten, map_leaves, paths, unflatten
from ipu_core.ir.values import Value, apply, elementwise, reduce_sum, scope, shape_of, where

Exclude = Callable[[str, tuple[int, ...]], bool]


class Optimiser(Protocol):
    """What a training step needs of an optimiser."""

    @property
    def lr(self) -> float:
        """The learning rate a training loop feeds when it has no schedule."""

    def init(self, params: Any) -> Any:
        """The state before the first step, float32 arrays nested in a dict."""

    def update(self, params: Any, gradients: Any, state: Any, lr: Value) -> tuple[Any, Any]:
        """The new parameters and the new state."""


def vectors(name: str, shape: tuple[int, ...]) -> bool:
    """Biases and norms: everything with fewer than two axes. The default of what weight decay leaves out."""
    return len(shape) < 2


def nothing(name: str, shape: tuple[int, ...]) -> bool:
    """Leaves nothing out."""
    return False


def _check(name: str, value: float, low: float, high: float) -> None:
    if not isinstance(value, (int, float, np.number)):
        raise TypeError(f"{name} must be a number, not {value!r}")
    if not low <= value < high:
        raise ValueError(f"{name} must lie in [{low:g}, {high:g}), not {value!r}")


def _check_lr(name: str, lr: float) -> None:
    _check(f"{name}: lr", lr, 0, float(np.finfo(np.float32).max))


def _check_exclude(name: str, exclude: Exclude) -> None:
    if not callable(exclude):
        raise TypeError(f"{name}: exclude must be a function (name, shape) -> bool, not {exclude!r}")


def _zeros(params: Any) -> Any:
    return map_leaves(lambda p: np.zeros(shape_of(p), np.float32), params)


def _moment(family: str, decayed: Value, fresh: Value, scale: float) -> Value:
    """The equation that stores a moment."""
    with scope((decayed, fresh), family=family):
        return apply("scaled_add", decayed, fresh, scale)


def _write(weight: Value, direction: Value, scale: Value) -> Value:
    """weight + scale * direction: the equation in which updates are rounded, and lost."""
    with scope((weight, direction, scale), role="update"):
        return apply("scaled_add", weight, direction, scale)


def _each(params: Any, f: Callable[..., tuple[Value, ...]], *trees: Any) -> tuple[Any, ...]:
    """f(name, parameter, leaf of each tree, ...) for every parameter, its results gathered into one tree each."""
    leaves, tree = flatten(params)
    columns = [flatten(other)[0] for other in trees]
    results = []
    for name, *row in zip(paths(tree), leaves, *columns, strict=True):
        with scope(row, role="optimiser", parameter=name):
            results.append(f(name, *row))
    return tuple(unflatten(tree, list(column)) for column in zip(*results, strict=True))


def _minus(lr: Value) -> Value:
    with scope(lr, role="optimiser"):
        return elementwise("negative", lr)


@dataclass(frozen=True)
class Sgd:
    """Stochastic gradient descent: w -= lr * (g + weight_decay * w), by way of a momentum if asked.

    With momentum mu: m = mu*m + g and w -= lr*m; with nesterov w -= lr*(g + mu*m).

    Attributes:
        lr: learning rate fed by a training loop without a schedule.
        momentum: mu in [0, 1).
        nesterov: look ahead along the momentum.
        weight_decay: added to the gradient, times the weight.
        exclude: (name, shape) -> whether the parameter has no decay.

    Raises:
        TypeError: a field that is no number.
        ValueError: a field out of range.
    """

    lr: float = 0.1
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0
    exclude: Exclude = vectors

    def __post_init__(self) -> None:
        _check_lr("Sgd", self.lr)
        _check("Sgd: momentum", self.momentum, 0, 1)
        _check("Sgd: weight_decay", self.weight_decay, 0, float("inf"))
        _check_exclude("Sgd", self.exclude)
        if self.nesterov and not self.momentum:
            raise ValueError("Sgd: nesterov needs a momentum")

    def init(self, params: Any) -> Any:
        """The state before the first step."""
        return {"first_moment": _zeros(params)} if self.momentum else {}

    def update(self, params: Any, gradients: Any, state: Any, lr: Value) -> tuple[Any, Any]:
        """The new parameters and the new state."""
        minus = _minus(lr)
        if not self.momentum:
            (new,) = _each(params, lambda name, w, g: (_write(w, self._decayed(name, w, g), minus),), gradients)
            return new, {}

        def one(name: str, w: Value, g: Value, m: Value) -> tuple[Value, Value]:
            g = self._decayed(name, w, g)
            m = _moment("first_moment", g, m, self.momentum)
            direction = apply("scaled_add", g, m, self.momentum) if self.nesterov else m
            return _write(w, direction, minus), m

        new, moments = _each(params, one, gradients, state["first_moment"])
        return new, {"first_moment": moments}

    def _decayed(self, name: str, w: Value, g: Value) -> Value:
        if not self.weight_decay or self.exclude(name, shape_of(w)):
            return g
        return apply("scaled_add", g, w, self.weight_decay)


@dataclass(frozen=True)
class Adam:
    """Adam with decoupled weight decay: w -= lr * (m/(sqrt(v) + eps) + weight_decay * w).

    m = b1 m + (1-b1) g and v = b2 v + (1-b2) g^2, divided by 1 - b1^t and 1 - b2^t (t from 1) with bias correction.

    Attributes:
        lr: learning rate fed by a training loop without a schedule.
        b1, b2: decay of the moments, in [0, 1).
        eps: added to the root; scaled along with the state.
        weight_decay: decoupled decay.
        bias_correction: whether young moments are corrected.
        exclude: (name, shape) -> whether the parameter has no decay (default: fewer than two axes).
        loss_scale: what the loss was multiplied by; the gradients are divided by it.
        scaled_state: m and v are kept times s and s^2 and eps is taken times s: the same mathematics (bit for bit in
            float32 if s is a power of two and s^2 v stays in range) that uses float16's range well. 1: not scaled.
        packing: sequences per row, p: b1^p and b2^p are used (Krell et al., arXiv 2107.02027).

    Raises:
        TypeError: a field that is no number.
        ValueError: a field out of range.
    """

    lr: float = 1e-3
    b1: float = 0.9
    b2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0
    bias_correction: bool = True
    exclude: Exclude = vectors
    loss_scale: float = 1.0
    scaled_state: float = 1.0
    packing: float = 1.0

    def __post_init__(self) -> None:
        for field in ("b1", "b2"):
            _check(f"{type(self).__name__}: {field}", getattr(self, field), 0, 1)
        positive = ("loss_scale", "scaled_state", "packing")
        _check_lr(type(self).__name__, self.lr)
        for field in ("eps", "weight_decay", *positive):
            _check(f"{type(self).__name__}: {field}", getattr(self, field), 0, float("inf"))
        for field in positive:
            if not getattr(self, field):
                raise ValueError(f"{type(self).__name__}: {field} must be positive, not {getattr(self, field)!r}")
        _check_exclude(type(self).__name__, self.exclude)

    def init(self, params: Any) -> Any:
        """The state before the first step; the corrections hold 1 - b1^t and 1 - b2^t."""
        state = {"first_moment": _zeros(params), "second_moment": _zeros(params)}
        return {**state, "corrections": [np.float32(0), np.float32(0)]} if self.bias_correction else state

    def update(self, params: Any, gradients: Any, state: Any, lr: Value) -> tuple[Any, Any]:
        """The new parameters and the new state."""
        b1, b2 = self.b1**self.packing, self.b2**self.packing
        minus = _minus(lr)
        corrections = [self._correct(q, b) for q, b in zip(state.get("corrections", ()), (b1, b2), strict=False)]

        def one(name: str, w: Value, g: Value, m: Value, v: Value) -> tuple[Value, Value, Value]:
            if (factor := self.scaled_state / self.loss_scale) != 1:
                g = elementwise("multiply", g, factor)
            m = _moment("first_moment", elementwise("multiply", m, b1), g, 1 - b1)
            v = _moment("second_moment", elementwise("multiply", v, b2), apply("square", g), 1 - b2)
            x = self._direction(name, w, m, v, corrections)
            return _write(w, x, self._scale(w, x, minus)), m, v

        new, first, second = _each(params, one, gradients, state["first_moment"], state["second_moment"])
        moments = {"first_moment": first, "second_moment": second}
        return new, {**moments, "corrections": corrections} if self.bias_correction else moments

    def _correct(self, q: Value, b: float) -> Value:
        """1 - b^t from 1 - b^(t-1), without cancellation."""
        with scope(q, role="optimiser"):
            return apply("scaled_add", 1 - b, q, b)

    def _direction(self, name: str, w: Value, m: Value, v: Value, corrections: list[Value]) -> Value:
        if corrections:
            m, v = elementwise("divide", m, corrections[0]), elementwise("divide", v, corrections[1])
        root = elementwise("add", apply("sqrt", v), self.eps * self.scaled_state)
        x = elementwise("divide", m, root)
        if self.weight_decay and not self.exclude(name, shape_of(w)):
            x = apply("scaled_add", x, w, self.weight_decay)
        return x

    def _scale(self, w: Value, x: Value, minus: Value) -> Value:
        return minus


@dataclass(frozen=True)
class Lamb(Adam):
    """LAMB as PopART defines it: Adam's direction x times a trust ratio per tensor, w -= lr * ratio * x.

    ratio = min(|w|, max_weight_norm)/|x|, and 1 if either norm is 0 or max_weight_norm is 0. Norms are float32.

    Attributes:
        max_weight_norm: bound of the weight's norm; None: none (PopART's own default of 10 clips silently).

    See `Adam` for the others; the published MLPerf runs have bias_correction=False.
    """

    eps: float = 1e-6
    max_weight_norm: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_weight_norm is not None:
            _check("Lamb: max_weight_norm", self.max_weight_norm, 0, float("inf"))

    def _scale(self, w: Value, x: Value, minus: Value) -> Value:
        if self.max_weight_norm == 0:
            return minus
        size, length = _norm(w), _norm(x)
        bounded = size if self.max_weight_norm is None else elementwise("minimum", size, self.max_weight_norm)
        ratio = where(size, where(length, elementwise("divide", bounded, length), 1.0), 1.0)
        return elementwise("multiply", minus, ratio)


def _norm(x: Value) -> Value:
    """The root of the sum of squares over all elements."""
    return apply("sqrt", reduce_sum(apply("square", x)))
