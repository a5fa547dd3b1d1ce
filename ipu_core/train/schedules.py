"""Learning rates as functions of the step's number, from 0: give one as an optimizer's `lr`. Any function will do.

The names and figures are optax's where it has the schedule. Rates are computed in float64 and fed in float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from ipu_core.train.arguments import check_integer
from lowprec.checks import listed

Schedule = Callable[[int], float]


def _check_rates(name: str, *rates: float) -> None:
    for rate in rates:
        # So written NaN is refused too: every comparison with it is false.
        if not isinstance(rate, int | float) or not 0 <= rate < math.inf:
            raise ValueError(f"{name}: a rate, factor or power must be a finite number of at least 0, not {rate!r}")


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
    """end + (start - end) * (1 - step/steps)^power within `steps`, then `end`. Power 1 is a straight line.

    Raises:
        ValueError: a rate or a number of steps out of range.
    """

    start: float
    end: float
    steps: int
    power: float = 1.0

    def __post_init__(self) -> None:
        check_integer("Polynomial: steps", self.steps, 1)
        _check_rates("Polynomial", self.start, self.end, self.power)

    def __call__(self, step: int) -> float:
        """The rate of a step."""
        # min: the rate stays at `end` for every later step.
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
        check_integer("Cosine: steps", self.steps, 1)
        _check_rates("Cosine", self.start, self.end)

    def __call__(self, step: int) -> float:
        """The rate of a step."""
        turn = math.pi * min(step, self.steps) / self.steps
        return self.end + (self.start - self.end) * 0.5 * (1 + math.cos(turn))


@dataclass(frozen=True)
class Piecewise:
    """A rate that is multiplied by a factor at each of the given steps, from there on.

    Attributes:
        start: the rate before the first of them.
        factors: (step, factor) pairs: every step of at least that number has the factor.

    Raises:
        ValueError: a rate or a factor out of range.
    """

    start: float
    factors: tuple[tuple[int, float], ...] = field(default=())

    def __post_init__(self) -> None:
        for pair in listed("Piecewise: factors", self.factors):
            if not isinstance(pair, tuple | list) or len(pair) != 2:
                raise TypeError(f"Piecewise: factors must be (step, factor) pairs such as (100, 0.1), not {pair!r}")
            # NaN as a step is never reached: the first rate would stay for ever, in silence.
            check_integer("Piecewise: a step", pair[0])
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
        check_integer("WarmUp: steps", self.steps, 1)
        _check_rates("WarmUp", self.start)
        if not callable(self.then):
            raise TypeError(f"WarmUp: then must be a schedule such as Constant(0.1), not {self.then!r}")

    def __call__(self, step: int) -> float:
        """The rate of a step."""
        # The schedule behind the warm-up begins at its own step 0: it has not gone on meanwhile.
        if step >= self.steps:
            return self.then(step - self.steps)
        return self.start + (self.then(0) - self.start) * step / self.steps
