"""Lion and Rprop: steps along the sign of a moment, or of the gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ipu_core.ir.pytree import flatten, named, unflatten
from ipu_core.ir.trace.array_functions import sign
from ipu_core.ir.trace.values import Value, apply, elementwise, scope, shape_of, where
from ipu_core.train.optim.common import Common, Exclude, Rate, check, moment, nothing, rate_of, vectors


@dataclass(frozen=True)
class Lion(Common):
    """Lion (Chen and others, arXiv 2302.06675): w -= lr * (sign(b1 m + (1-b1) g) + weight_decay * w).

    Then m = b2 m + (1-b2) g. The sign of 0 is 0.

    Attributes:
        lr: learning rate, or a schedule: step -> learning rate.
        b1: share of the moment in what the sign is taken of, in [0, 1).
        b2: decay of the moment, in [0, 1).
        weight_decay: decoupled decay.
        exclude: (name, shape) -> whether the parameter has no decay.

    See `Common` for groups and clipping.

    Raises:
        TypeError: a field that is no number.
        ValueError: a field out of range.
    """

    lr: Rate = 1e-4
    b1: float = 0.9
    b2: float = 0.99
    weight_decay: float = 0.0
    exclude: Exclude = vectors

    def __post_init__(self) -> None:
        self.check_common(self.lr, self.exclude)
        for field in ("b1", "b2"):
            check(f"Lion: {field}", getattr(self, field), 0, 1)
        check("Lion: weight_decay", self.weight_decay, 0, float("inf"))

    def init(self, params: Any) -> Any:
        """The state before the first step."""
        return self.begin(params, first_moment=self.zeros(params))

    def update(self, params: Any, gradients: Any, state: Any, lr: Value) -> tuple[Any, Any]:
        """The new parameters and the new state."""
        clip = self.clipped(gradients)

        def one(name: str, w: Value, g: Value, rate: Value, m: Value) -> tuple[Value, Value, Value]:
            g = clip(g)
            x = sign(apply("scaled_add", elementwise("multiply", m, self.b1), g, 1 - self.b1))
            m = moment("first_moment", elementwise("multiply", m, self.b2), g, 1 - self.b2)
            return self.decayed(name, w, x), rate, m

        return self.each(params, gradients, state, lr, one, "first_moment")


@dataclass(frozen=True)
class Rprop(Common):
    """Rprop (Riedmiller and Braun 1993): each element has a step of its own, w -= size * sign(g).

    Where g has the sign of the gradient before, its step grows, where it has the other, it shrinks and g counts as 0,
    here and as the next one's gradient before. A NaN has no sign and moves nothing. It is for whole data sets: the
    signs of small batches' gradients are noise. As `torch.optim.Rprop`; `optax.rprop` takes each step one late.

    Attributes:
        lr: the steps' size at the start, and nothing later: no schedule.
        shrink, grow: factors of the step, in (0, 1) and from 1.
        least, most: its bounds.

    See `Common` for groups and clipping; there is no weight decay. A precision stores the gradients as first moments
    and the steps as second moments.

    Raises:
        TypeError: a field that is no number.
        ValueError: a field out of range, a schedule or a decay, also of a group.
    """

    lr: Rate = 1e-2
    shrink: float = 0.5
    grow: float = 1.2
    least: float = 1e-6
    most: float = 50.0

    def __post_init__(self) -> None:
        self.check_common(self.lr, nothing)
        check("Rprop: shrink", self.shrink, 0, 1, "()")
        check("Rprop: grow", self.grow, 1, float("inf"))
        check("Rprop: most", self.most, 0, float("inf"))
        check("Rprop: least", self.least, 0, self.most, "[]")
        if callable(self.lr) or self.scheduled:
            raise ValueError(
                "Rprop: lr is where its steps begin and a schedule would change nothing: give its first rate"
            )
        if any(group.decay for group in self.groups):
            raise ValueError("Rprop: it has no weight decay, for which signs leave no place: take it out of the groups")

    def init(self, params: Any) -> Any:
        """The state before the first step."""
        rate = rate_of(self.lr, 0)
        sizes = [None if (group := self.group(name)).frozen else np.full(shape_of(p), rate * group.lr, np.float32)
                 for name, p in named(params)]  # fmt: skip
        return self.begin(params, last_gradient=self.zeros(params), step_size=unflatten(flatten(params)[1], sizes))

    def update(self, params: Any, gradients: Any, state: Any, lr: Value) -> tuple[Any, Any]:
        """The new parameters and the new state."""
        clip = self.clipped(gradients)

        def one(name: str, w: Value, g: Value, rate: Value, last: Value, size: Value) -> tuple[Value, ...]:
            g = clip(g)
            way = _way(g)
            agree = elementwise("multiply", way, _way(last))
            turned = elementwise("greater", 0.0, agree)
            size = elementwise("multiply", size, where(turned, self.shrink, where(agree, self.grow, 1.0)))
            size = elementwise("maximum", size, self.least)
            with scope(g, family="second_moment"):
                size = elementwise("minimum", size, self.most)
            with scope(g, family="first_moment"):
                last = where(turned, 0.0, g)
            return elementwise("multiply", where(turned, 0.0, way), size), -1.0, last, size

        return self.each(params, gradients, state, lr, one, "last_gradient", "step_size")


def _way(g: Value) -> Value:
    """1 above 0, -1 below, else 0: of NaN too."""
    return elementwise("subtract", elementwise("greater", g, 0.0), elementwise("greater", 0.0, g))
