"""NAdam, RAdam and Adamax: Adam's moments with another numerator, another factor, or another root."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from ipu_core.ir.trace.values import Value, apply, elementwise, scope, where
from ipu_core.train.optim.adam import Adam
from ipu_core.train.optim.common import Rate, check, since

FADING = math.log(0.96)
"""Dozat's: the momentum of step t is b1 (1 - 0.96^(t momentum_decay) / 2)."""


@dataclass(frozen=True)
class _Corrected(Adam):
    """Adam's kinds whose directions are made of their corrections."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.bias_correction:
            raise ValueError(f"{type(self).__name__}: it is its bias correction; Adam(bias_correction=False) has none")


@dataclass(frozen=True)
class NAdam(_Corrected):
    """NAdam (Dozat 2016): Adam that looks ahead along its momentum, as `torch.optim.NAdam` and `optax.nadam`.

    With mu_t = b1 (1 - 0.96^(t momentum_decay) / 2) and p_t = mu_1 ... mu_t, m of Adam is replaced by
    (1 - mu_t) / (1 - p_t) g + mu_(t+1) / (1 - p_(t+1)) m.

    Attributes:
        momentum_decay: how fast mu rises to b1; None: it is b1 from the start, as in optax.

    See `Adam` for the others.
    """

    lr: Rate = 2e-3
    momentum_decay: float | None = 4e-3

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.momentum_decay is not None:
            check("NAdam: momentum_decay", self.momentum_decay, 0, float("inf"))

    @property
    def _start(self) -> tuple[float, ...]:
        # the number of steps is exact where 0.96^t, multiplied up, would not be
        return (0.0, 0.0) if self.momentum_decay is None else (0.0, 0.0, 0.0)

    def _correct(self, old: Sequence[Value], b1: float, b2: float) -> tuple[list[Value], Sequence[Value]]:
        second, steps = since(old[1], b2), [elementwise("add", n, 1.0) for n in old[2:]]
        mu, ahead = self._momentum(b1, *steps), self._momentum(b1, *(elementwise("add", n, 1.0) for n in steps))
        first = since(old[0], mu)
        fresh = elementwise("divide", elementwise("subtract", 1.0, mu), first)
        return [first, second, *steps], [fresh, elementwise("divide", ahead, since(first, ahead)), second]

    def _momentum(self, b1: float, *step: Value) -> Value:
        if self.momentum_decay is None:
            return b1
        fading = apply("exp", elementwise("multiply", *step, FADING * self.momentum_decay))
        return elementwise("subtract", b1, elementwise("multiply", fading, b1 / 2))

    def _direction(self, m: Value, g: Value, v: Value, factors: Sequence[Value]) -> Value:
        fresh, ahead, second = factors
        # m is stored times the precision's scale, which the gradient lacks
        g = elementwise("multiply", g, self.precision_scale) if self.precision_scale != 1 else g
        m = apply("scaled_add", elementwise("multiply", m, ahead), g, fresh)
        return elementwise("divide", m, self._root(v, second))


@dataclass(frozen=True)
class RAdam(_Corrected):
    """RAdam (Liu and others, arXiv 1908.03265): Adam times r, and the corrected moment alone while r is not sure.

    rho_t = rho - 2 t b2^t / (1 - b2^t) with rho = 2 / (1 - b2) - 1 is how many gradients v speaks for. Above the
    threshold the direction is Adam's times r = sqrt((rho_t - 4) (rho_t - 2) rho / ((rho - 4) (rho - 2) rho_t)).

    Attributes:
        threshold: of rho_t, at least 4.
        eps_corrected: whether eps is corrected with the root, sqrt(1 - b2^t) m / (sqrt(v) + eps), as in torch; False:
            it is added to the corrected root, as Adam and optax have it.

    See `Adam` for the others.
    """

    threshold: float = 5.0
    eps_corrected: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check("RAdam: threshold", self.threshold, 4, float("inf"))

    @property
    def _start(self) -> tuple[float, ...]:
        return 0.0, 0.0, 0.0

    def _correct(self, old: Sequence[Value], b1: float, b2: float) -> tuple[list[Value], Sequence[Value]]:
        first, second = since(old[0], b1), since(old[1], b2)
        # rho_t is 2 length / (1 - b2^t) - 1 with length = (1 - b2) sum of (i + 1) b2^i over i < t: no difference of
        # large numbers, as between the two halves of its definition
        length = apply("scaled_add", second, old[2], b2)
        known = elementwise("subtract", elementwise("divide", elementwise("multiply", length, 2.0), second), 1.0)
        sure = elementwise("greater", known, self.threshold)
        known, most = elementwise("maximum", known, self.threshold), 2 / (1 - b2) - 1
        usual = most / ((most - 4) * (most - 2)) if most > self.threshold else 1.0  # else it is never sure
        share = elementwise("multiply", elementwise("subtract", known, 4.0), elementwise("subtract", known, 2.0))
        rectified = apply("sqrt", elementwise("multiply", elementwise("divide", share, known), usual))
        return [first, second, length], [first, second, sure, rectified]

    def _direction(self, m: Value, g: Value, v: Value, factors: Sequence[Value]) -> Value:
        first, second, sure, rectified = factors
        if self.eps_corrected:
            root = elementwise("divide", self._root(v, None), apply("sqrt", second))
        else:
            root = self._root(v, second)
        # m is stored times the scales, which the root has too where it is taken
        scale = (self.scaled_state or 1.0) * self.precision_scale
        below = where(sure, elementwise("divide", root, rectified), scale)
        return elementwise("divide", elementwise("divide", m, first), below)


@dataclass(frozen=True)
class Adamax(Adam):
    """Adamax (Kingma and Ba, arXiv 1412.6980): v = max(b2 v, |g| + eps) and w -= lr * m / v, m corrected alone.

    `scaled_state` scales v as it does m. What is stored is a root already: it spans as few powers of two.

    See `Adam` for the attributes.
    """

    lr: Rate = 2e-3

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("amsgrad", "store_root"):
            if getattr(self, name):
                raise ValueError(f"Adamax: {name} is of second moments that are mean squares, as Adam's; its are not")

    def for_precision(self, scaled_state: float, *, store_root: bool = False) -> Self:
        """The optimizer whose moments are kept as a precision says, unless its own `scaled_state` does."""
        return super().for_precision(scaled_state)

    @property
    def _start(self) -> tuple[float, ...]:
        return (0.0,)

    def _correct(self, old: Sequence[Value], b1: float, b2: float) -> tuple[list[Value], Sequence[Value]]:
        return (kept := [since(old[0], b1)]), [*kept, 1.0]

    def _second(self, v: Value, g: Value, b2: float) -> Value:
        size = apply("absolute", g)
        if self.precision_scale != 1:
            size = elementwise("multiply", size, self.precision_scale)
        size, decayed = elementwise("add", size, self._scaled_eps), elementwise("multiply", v, b2)
        with scope(v, family="second_moment"):
            return elementwise("maximum", decayed, size)

    def _root(self, v: Value, correction: Value | None) -> Value:
        return v
