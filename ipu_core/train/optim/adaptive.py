"""RMSprop, Adagrad and Adadelta: steps of one size for each element, by the squares of its past gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ipu_core.ir.pytree import flatten, named, unflatten
from ipu_core.ir.trace.values import Value, apply, elementwise, shape_of
from ipu_core.train.optim.common import Common, Exclude, Rate, check, moment, vectors
from lowprec.checks import truth


@dataclass(frozen=True)
class _BySquares(Common):
    """What RMSprop and Adagrad share: the gradient over the root of what is kept of its squares."""

    lr: Rate = 1e-2
    eps: float = 1e-8
    weight_decay: float = 0.0
    exclude: Exclude = vectors
    eps_in_root: bool = False
    initial: float = 0.0

    def __post_init__(self) -> None:
        own = type(self).__name__
        self.check_common(self.lr, self.exclude)
        for field in ("eps", "weight_decay", "initial"):
            check(f"{own}: {field}", getattr(self, field), 0, float("inf"))
        truth(f"{own}: eps_in_root", self.eps_in_root)

    def _squares(self, params: Any) -> Any:
        """What is kept before the first step."""
        own = [None if self.group(name).frozen else np.full(shape_of(p), self.initial, np.float32)
               for name, p in named(params)]  # fmt: skip
        return unflatten(flatten(params)[1], own)

    def _over_root(self, g: Value, v: Value) -> Value:
        if self.eps_in_root:
            return elementwise("multiply", g, apply("rsqrt", elementwise("add", v, self.eps)))
        return elementwise("divide", g, elementwise("add", apply("sqrt", v), self.eps))


@dataclass(frozen=True)
class RmsProp(_BySquares):
    """RMSprop (Tieleman and Hinton 2012): v = decay v + (1-decay) g^2 and w -= lr * g / (sqrt(v) + eps).

    With momentum mu: m = mu*m + g / (sqrt(v) + eps) and w -= lr*m, with nesterov the same once more ahead.

    Attributes:
        lr: learning rate, or a schedule: step -> learning rate.
        eps: added to the root.
        weight_decay: added to the gradient, times the weight.
        exclude: (name, shape) -> whether the parameter has no decay.
        eps_in_root: the root is sqrt(v + eps), as optax's is by default.
        initial: what v begins with, a number of float32.
        decay: of v, in [0, 1).
        momentum: mu in [0, 1).
        nesterov: look ahead along the momentum.
        centered: v less the square of the mean gradient is under the root, at least 0.

    See `Common` for groups and clipping.

    Raises:
        TypeError: a field that is no number.
        ValueError: a field out of range.
    """

    decay: float = 0.9
    momentum: float = 0.0
    nesterov: bool = False
    centered: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        for field in ("decay", "momentum"):
            check(f"RmsProp: {field}", getattr(self, field), 0, 1)
        truth("RmsProp: centered", self.centered)
        if truth("RmsProp: nesterov", self.nesterov) and not self.momentum:
            raise ValueError("RmsProp: nesterov needs a momentum")

    def init(self, params: Any) -> Any:
        """The state before the first step."""
        first = {"first_moment": self.zeros(params)} if self.momentum else {}
        mean = {"mean_gradient": self.zeros(params)} if self.centered else {}
        return self.begin(params, second_moment=self._squares(params), **first, **mean)

    def update(self, params: Any, gradients: Any, state: Any, lr: Value) -> tuple[Any, Any]:
        """The new parameters and the new state."""
        clip, decay = self.clipped(gradients), self.decay
        kept = ["second_moment", *(["first_moment"] if self.momentum else []),
                *(["mean_gradient"] if self.centered else [])]  # fmt: skip

        def one(name: str, w: Value, g: Value, rate: Value, v: Value, *others: Value) -> tuple[Value, ...]:
            g = self.decayed(name, w, clip(g))
            v = moment("second_moment", elementwise("multiply", v, decay), apply("square", g), 1 - decay)
            mean, spread = list[Value](), v
            if self.centered:
                mean = [moment("first_moment", elementwise("multiply", others[-1], decay), g, 1 - decay)]
                spread = elementwise("subtract", v, apply("square", mean[0]))
                # rounded moments may say of a variance that it is below 0
                spread = elementwise("maximum", spread, 0.0)
            x = self._over_root(g, spread)
            if not self.momentum:
                return x, rate, v, *mean
            m = moment("first_moment", x, others[0], self.momentum)
            return apply("scaled_add", x, m, self.momentum) if self.nesterov else m, rate, v, m, *mean

        return self.each(params, gradients, state, lr, one, *kept)


@dataclass(frozen=True)
class Adagrad(_BySquares):
    """Adagrad (Duchi and others 2011): v += g^2 and w -= lr * g / (sqrt(v) + eps).

    Attributes:
        eps: added to the root.
        eps_in_root: the root is sqrt(v + eps), as optax's is.
        initial: what v begins with.

    See `RmsProp` for the others.
    """

    eps: float = 1e-10

    def init(self, params: Any) -> Any:
        """The state before the first step."""
        return self.begin(params, second_moment=self._squares(params))

    def update(self, params: Any, gradients: Any, state: Any, lr: Value) -> tuple[Any, Any]:
        """The new parameters and the new state."""
        clip = self.clipped(gradients)

        def one(name: str, w: Value, g: Value, rate: Value, v: Value) -> tuple[Value, Value, Value]:
            g = self.decayed(name, w, clip(g))
            v = moment("second_moment", v, apply("square", g), 1.0)
            return self._over_root(g, v), rate, v

        return self.each(params, gradients, state, lr, one, "second_moment")


@dataclass(frozen=True)
class Adadelta(Common):
    """Adadelta (Zeiler, arXiv 1212.5701): w -= lr * sqrt(u + eps) / sqrt(v + eps) * g, steps as large as the past ones.

    v = decay v + (1-decay) g^2, and u the same of the squares of the steps, without lr, after each.

    Attributes:
        lr: learning rate, or a schedule: step -> learning rate.
        decay: of v and u, in [0, 1).
        eps: added under both roots; without it nothing ever moves.
        weight_decay: added to the gradient, times the weight.
        exclude: (name, shape) -> whether the parameter has no decay.

    See `Common` for groups and clipping. A precision stores u as it does v: as second moments.

    Raises:
        TypeError: a field that is no number.
        ValueError: a field out of range.
    """

    lr: Rate = 1.0
    decay: float = 0.9
    eps: float = 1e-6
    weight_decay: float = 0.0
    exclude: Exclude = vectors

    def __post_init__(self) -> None:
        self.check_common(self.lr, self.exclude)
        check("Adadelta: decay", self.decay, 0, 1)
        for field in ("eps", "weight_decay"):
            check(f"Adadelta: {field}", getattr(self, field), 0, float("inf"))

    def init(self, params: Any) -> Any:
        """The state before the first step."""
        return self.begin(params, second_moment=self.zeros(params), squared_steps=self.zeros(params))

    def update(self, params: Any, gradients: Any, state: Any, lr: Value) -> tuple[Any, Any]:
        """The new parameters and the new state."""
        clip = self.clipped(gradients)

        def one(name: str, w: Value, g: Value, rate: Value, v: Value, u: Value) -> tuple[Value, ...]:
            g = self.decayed(name, w, clip(g))
            v = self._averaged(v, g)
            root = apply("sqrt", elementwise("add", v, self.eps))
            x = elementwise("multiply", elementwise("divide", apply("sqrt", elementwise("add", u, self.eps)), root), g)
            return x, rate, v, self._averaged(u, x)

        return self.each(params, gradients, state, lr, one, "second_moment", "squared_steps")

    def _averaged(self, v: Value, x: Value) -> Value:
        return moment("second_moment", elementwise("multiply", v, self.decay), apply("square", x), 1 - self.decay)
