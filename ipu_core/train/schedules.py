"""Learning rates as functions of the step's number, from 0: give one as an optimizer's `lr`. Any function will do.

The names and figures are optax's where it has the schedule. Rates are computed in float64 and fed in float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

Schedule = Callable[[int], float]


def _check_steps(name: str, steps: int) -> None:
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise ValueError(f"{name}: steps must be an integer of at least 1, not {steps!r}")


def _check_rates(name: str, *rates: float) -> None:
    for rate in rates:
        if not isinstance(rate, int | float) or not 0 <= rate < math.inf:
            raise ValueError(f"{name}: a learning rate must be a finite number of at least 0, not {rate!r}")


@dataclass(frozen=True)
class Constant:
    """One rate for all steps."""

    lr: float

    def __post_init__(self) -> None:
        _check_rates("Constant", self.lr)

    def __call__(self, step: int) -> float:
        """The rate of a step."""
        return self.lr


@dataclass(frozen=True)
class Polynomial:
    """From `start` to `end` within `steps`, the distance left to a power; then `end`. Power 1 is a straight line.

    Raises:
        ValueError: a rate or a number of steps out of range.
    """

    start: float
    end: float
    steps: int
    power: float = 1.0

    def __post_init__(self) -> None:
        _check_steps("Polynomial", self.steps)
        _check_rates("Polynomial", self.start, self.end)

    def __call__(self, step: int) -> float:
        """The rate of a step."""
        left = 1 - min(step, self.steps) / self.steps
        return self.end + (self.start - self.end) * math.pow(left, self.power)


@dataclass(frozen=True)
class Cosine:
    """Half a cosine from `start` to `end` within `steps` (Loshchilov and Hutter, arXiv 1608.03983); then `end`.

    Raises:
        ValueError: a rate or a number of steps out of range.
    """

    start: float
    steps: int
    end: float = 0.0

    def __post_init__(self) -> None:
        _check_steps("Cosine", self.steps)
        _check_rates("Cosine", self.start, self.end)

    def __call__(self, step: int) -> float:
        """The rate of a step."""
        turn = math.pi * min(step, self.steps) / self.steps
        return self.end + (self.start - self.end) * 0.5 * (1 + math.cos(turn))


@dataclass(frozen=True)
class Piecewise:
    """A rate that is multiplied by a factor from each of some steps on.

    Attributes:
        start: the rate before the first of them.
        factors: (step, factor) pairs: every step of at least that number has the factor.

    Raises:
        ValueError: a rate or a factor out of range.
    """

    start: float
    factors: tuple[tuple[int, float], ...] = field(default=())

    def __post_init__(self) -> None:
        _check_rates("Piecewise", self.start, *(factor for _, factor in self.factors))

    def __call__(self, step: int) -> float:
        """The rate of a step."""
        return self.start * math.prod(factor for first, factor in self.factors if step >= first)


@dataclass(frozen=True)
class WarmUp:
    """A straight line from `start` to where another schedule begins, within `steps`; then that schedule.

    Raises:
        ValueError: a rate or a number of steps out of range.
    """

    then: Schedule
    steps: int
    start: float = 0.0

    def __post_init__(self) -> None:
        _check_steps("WarmUp", self.steps)
        _check_rates("WarmUp", self.start)

    def __call__(self, step: int) -> float:
        """The rate of a step."""
        if step >= self.steps:
            return self.then(step - self.steps)
        return self.start + (self.then(0) - self.start) * step / self.steps
