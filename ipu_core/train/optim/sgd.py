"""Stochastic gradient descent; LARS, with a learning rate of its own for each tensor; ASGD, which averages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ipu_core.ir.pytree import flatten, named, unflatten
from ipu_core.ir.trace.values import Value, apply, elementwise, scope, shape_of, where
from ipu_core.train.optim.common import Common, Exclude, Rate, begins_at_zero, check, moment, norm, vectors
from lowprec.checks import truth


@dataclass(frozen=True)
class Sgd(Common):
    """Stochastic gradient descent: w -= lr * (g + weight_decay * w), by way of a momentum if asked.

    With momentum mu: m = mu*m + g and w -= lr*m; with nesterov w -= lr*(g + mu*m).

    Attributes:
        lr: learning rate, or a schedule: step -> learning rate (see `ipu_core.train.schedules`).
        momentum: mu in [0, 1).
        nesterov: look ahead along the momentum.
        weight_decay: added to the gradient, times the weight.
        exclude: (name, shape) -> whether the parameter has no decay.

    See `Common` for groups and clipping.

    Raises:
        TypeError: a field that is no number.
        ValueError: a field out of range.
    """

    lr: Rate = 0.1
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0
    exclude: Exclude = vectors

    def __post_init__(self) -> None:
        own = type(self).__name__
        self.check_common(self.lr, self.exclude)
        check(f"{own}: momentum", self.momentum, 0, 1)
        check(f"{own}: weight_decay", self.weight_decay, 0, float("inf"))
        if truth(f"{own}: nesterov", self.nesterov) and not self.momentum:
            raise ValueError(f"{own}: nesterov needs a momentum")

    def init(self, params: Any) -> Any:
        """The state before the first step."""
        return self.begin(params, **({"first_moment": self.zeros(params)} if self.momentum else {}))

    def update(self, params: Any, gradients: Any, state: Any, lr: Value) -> tuple[Any, Any]:
        """The new parameters and the new state."""
        clip = self.clipped(gradients)
        if not self.momentum:
            return self.each(
                params, gradients, state, lr, lambda name, w, g, rate: (self.decayed(name, w, clip(g)), rate)
            )

        def one(name: str, w: Value, g: Value, rate: Value, m: Value) -> tuple[Value, Value, Value]:
            g = self.decayed(name, w, clip(g))
            m = moment("first_moment", g, m, self.momentum)
            return apply("scaled_add", g, m, self.momentum) if self.nesterov else m, rate, m

        return self.each(params, gradients, state, lr, one, "first_moment")


@dataclass(frozen=True)
class Lars(Sgd):
    """LARS (You, Gitman and Ginsburg, arXiv 1708.03888): descent with a learning rate of its own for each tensor.

    g = g + weight_decay*w; m = mu*m + lr*ratio*g; w -= m, with ratio = trust*|w|/(|g| + eps), and 1 if either norm is
    0, for parameters that `exclude` names and for those whose initial values are all zero: as `optax.lars`.

    Attributes:
        trust: trust coefficient.
        eps: added to the gradient's norm.
        exclude: (name, shape) -> whether the parameter has neither decay nor ratio.

    See `Sgd` for the others.
    """

    momentum: float = 0.9
    trust: float = 0.001
    eps: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check("Lars: trust", self.trust, 0, float("inf"))
        check("Lars: eps", self.eps, 0, float("inf"))

    def init(self, params: Any) -> Any:
        """The state before the first step; "ratio_one" says in its structure which tensors begin at zero."""
        return self.begin(params, first_moment=self.zeros(params), ratio_one=begins_at_zero(params))

    def update(self, params: Any, gradients: Any, state: Any, lr: Value) -> tuple[Any, Any]:
        """The new parameters and the new state."""
        clip = self.clipped(gradients)

        def one(name: str, w: Value, g: Value, rate: Value, m: Value) -> tuple[Value, float, Value]:
            g = self.decayed(name, w, clip(g))
            if name not in state["ratio_one"] and not self.exclude(name, shape_of(w)):
                size, length = norm(w), norm(g)
                share = elementwise(
                    "divide", elementwise("multiply", size, self.trust), elementwise("add", length, self.eps)
                )
                rate = elementwise("multiply", rate, where(size, where(length, share, 1.0), 1.0))
            scaled = elementwise("multiply", g, rate)
            m = moment("first_moment", scaled, m, self.momentum)
            # The rate is in the momentum already, as in the paper, so the factor of the update is 1.
            return apply("scaled_add", scaled, m, self.momentum) if self.nesterov else m, 1.0, m

        return self.each(params, gradients, state, lr, one, "first_moment")


@dataclass(frozen=True)
class Asgd(Common):
    """Averaged descent (Polyak and Juditsky 1992) as `torch.optim.ASGD` has it: w -= eta * (g + lambd * w).

    eta is lr in the first step and lr / (1 + lambd lr t)^alpha behind step t. The state has the mean of the weights
    behind all steps from t0 + 2 on, before that the weights themselves, as "average": `loop.arrays()` shows it, and
    nothing else reads it.

    Attributes:
        lr: learning rate, or a schedule: step -> learning rate; step t + 1 takes that of step t.
        lambd: how fast eta falls, and a decay of all weights.
        alpha: of eta, in [0, 1]; 0: it does not fall.
        t0: how many steps are not averaged, but for one; steps are counted in float32, to 2^24.
        weight_decay: added to the gradient, times the weight.
        exclude: (name, shape) -> whether the parameter has no such decay.

    See `Common` for groups and clipping. Averages are float32 in precisions that are not wider.

    Raises:
        TypeError: a field that is no number.
        ValueError: a field out of range.
    """

    lr: Rate = 1e-2
    lambd: float = 1e-4
    alpha: float = 0.75
    t0: float = 1e6
    weight_decay: float = 0.0
    exclude: Exclude = vectors

    def __post_init__(self) -> None:
        self.check_common(self.lr, self.exclude)
        for field in ("lambd", "weight_decay", "t0"):
            check(f"Asgd: {field}", getattr(self, field), 0, float("inf"))
        check("Asgd: alpha", self.alpha, 0, 1, "[]")

    def init(self, params: Any) -> Any:
        """The state before the first step; "rate" has the next eta of each parameter."""
        rates = [None if self.group(name).frozen else np.float32(0) for name, _ in named(params)]
        return self.begin(params, average=self.zeros(params), rate=unflatten(flatten(params)[1], rates),
                          steps=np.float32(0))  # fmt: skip

    def update(self, params: Any, gradients: Any, state: Any, lr: Value) -> tuple[Any, Any]:
        """The new parameters and the new state."""
        clip, done = self.clipped(gradients), state["steps"]
        with scope(done, role="optimizer"):
            steps = elementwise("add", done, 1.0)
            share = apply("reciprocal", elementwise("maximum", elementwise("subtract", done, self.t0), 1.0))

        def one(name: str, w: Value, g: Value, minus: Value, eta: Value) -> tuple[Value, ...]:
            g = self.decayed(name, w, clip(g))
            minus_eta = where(done, elementwise("negative", eta), minus)
            falls = apply("scaled_add", 1.0, elementwise("multiply", minus, steps), -self.lambd)
            falls = apply("exp", elementwise("multiply", apply("log", falls), -self.alpha))
            later = elementwise("negative", elementwise("multiply", minus, falls))
            return apply("scaled_add", g, w, self.lambd) if self.lambd else g, minus_eta, later

        new, kept = self.each(params, gradients, state, lr, one, "rate")
        averages, tree = list[Any](), flatten(params)[1]
        for (name, w), mean in zip(named(new), self._leaves(params, state["average"]), strict=True):
            if mean is None:
                averages.append(None)
                continue
            with scope((w, share), role="optimizer", parameter=name):
                rest = elementwise("multiply", mean, elementwise("subtract", 1.0, share))
                averages.append(apply("scaled_add", rest, w, share))
        return new, {**kept, "average": unflatten(tree, averages), "steps": steps}

    def _leaves(self, params: Any, averages: Any) -> list[Any]:
        """The average of each parameter, None for the frozen ones."""
        there = dict(named(averages))
        return [there.get(name) for name, _ in named(params)]
