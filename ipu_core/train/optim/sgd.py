"""Stochastic gradient descent, and LARS: the same with a learning rate of its own for each tensor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ipu_core.ir.trace.values import Value, apply, elementwise, shape_of, where
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

    def decayed(self, name: str, w: Value, g: Value) -> Value:
        """The gradient with the decay of its parameter."""
        decay = self.decay_of(name, w)
        return apply("scaled_add", g, w, decay) if decay else g


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
