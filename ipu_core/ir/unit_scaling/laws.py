"""How the elements of a value are distributed at first, as unit scaling supposes: numbers and their weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np

from ipu_core.ir.block import Array

REACH, POINTS = 8.0, 4000  # an even number, so that no point lies at 0, where relu bends
NEAR = 1e-5  # of the numbers beside a point, for derivatives
COARSE = 64  # numbers of a distribution where several meet


@dataclass(frozen=True, eq=False)
class Law:
    """A distribution of numbers that are a function of others, their root, which elements of other values share.

    Attributes:
        values: (3, n): the function a little below the root's points, at them, and a little above.
        weights: (n,), of sum 1.
    """

    values: Array
    weights: Array

    @cached_property
    def mean(self) -> float:
        """The mean."""
        return float(self.values[1] @ self.weights)

    @cached_property
    def rms(self) -> float:
        """The root of the mean square."""
        return math.sqrt(float(np.square(self.values[1]) @ self.weights))

    @cached_property
    def std(self) -> float:
        """The standard deviation."""
        return math.sqrt(float(np.square(self.values[1] - self.mean) @ self.weights))

    @cached_property
    def slope(self) -> float:
        """The root mean square of the derivative by the root."""
        slopes = (self.values[2] - self.values[0]) / (2 * NEAR)
        return math.sqrt(float(np.square(slopes) @ self.weights))

    def root(self) -> Law:
        """The same distribution as a root of its own."""
        return Law(self.values[1] + np.array([[-NEAR], [0.0], [NEAR]]), self.weights)

    def times(self, factor: float) -> Law:
        """The distribution of the numbers times a factor."""
        return Law(self.values * factor, self.weights)

    def largest(self, count: int) -> Law:
        """The distribution of the largest of so many independent numbers, as functions of the same root."""
        order = np.argsort(self.values[1], kind="stable")
        below = np.cumsum(self.weights[order])
        weights = np.diff(below**count, prepend=0.0)
        return Law(self.values[:, order], weights / weights.sum())

    @cached_property
    def line(self) -> float:
        """The mean of the derivative by the root: of the numbers as a straight line of it, times its deviation."""
        return float((self.values[2] - self.values[0]) @ self.weights) / (2 * NEAR)

    @cached_property
    def few(self) -> Array:
        """Equally likely numbers with the same mean and deviation."""
        order = np.argsort(self.values[1], kind="stable")
        middle = np.cumsum(self.weights[order]) - self.weights[order] / 2
        found = np.interp((np.arange(COARSE) + 0.5) / COARSE, middle, self.values[1][order])
        spread = found.std()
        return np.asarray(self.mean + (found - found.mean()) * (self.std / spread if spread > 0 else 0.0))


@lru_cache(64)
def normal(deviation: float = 1.0, mean: float = 0.0) -> Law:
    """A normal distribution."""
    points = np.linspace(-REACH, REACH, POINTS)
    weights = np.exp(-0.5 * points**2)
    values = mean + deviation * points
    return Law(np.stack([values, values, values]), weights / weights.sum()).root()


def of_array(array: Array) -> Law:
    """The distribution of an array's elements."""
    numbers = np.asarray(array, np.float64).ravel()
    numbers = numbers[:: max(1, numbers.size // POINTS)] if numbers.size else np.zeros(1)
    return Law(np.stack([numbers] * 3), np.full(numbers.size, 1 / numbers.size)).root()


def rounded(number: float) -> float:
    """A number to 20 bits, so that machines whose exponentials differ in the last bits agree on it."""
    mantissa, exponent = math.frexp(number)
    return math.ldexp(round(mantissa * 2**20), exponent - 20)


class Softmax(NamedTuple):
    """Of a softmax of independent normal numbers, over all of a row: sums of squares.

    Attributes:
        squares: of its elements.
        turned: of its gradient, for independent gradients of size 1 of its elements.
    """

    squares: float
    turned: float


@lru_cache(1024)
def softmax(deviation: float, keys: int) -> Softmax:
    """What becomes of so many numbers of a deviation, measured on numbers that are always the same."""
    rows = max(32, 4096 // keys)
    numbers = np.random.default_rng(keys).normal(size=(rows, keys)) * deviation
    powers = np.exp(numbers - numbers.max(1, keepdims=True))
    p = powers / powers.sum(1, keepdims=True)
    squares = np.square(p).sum(1)
    turned = (np.square(p) * (1 + squares[:, None] - 2 * p)).sum(1)
    return Softmax(float(squares.mean()), float(turned.mean()))


def of_one(function: Callable[..., Any], operands: Sequence[Law | float]) -> Law:
    """The law of a function of laws of one root, and of numbers. Where it is not finite it does not count."""
    law = next(x for x in operands if isinstance(x, Law))
    with np.errstate(all="ignore"):
        values = function(*(x.values if isinstance(x, Law) else x for x in operands))
    values = np.broadcast_to(values, law.values.shape)
    finite = np.isfinite(values).all(0)
    if finite.all() or not finite.any():
        return Law(values, law.weights)
    weights = np.where(finite, law.weights, 0.0)
    return Law(np.where(finite, values, 0.0), weights / max(weights.sum(), 1e-300))


def combined(function: Callable[..., Any], laws: Sequence[Law | float]) -> tuple[Law, list[float]]:
    """The law of a function of independent numbers, and the root mean square of its derivative by each."""
    own = [i for i, law in enumerate(laws) if isinstance(law, Law)]

    def value(moved: int | None = None, by: float = 0.0) -> Array:
        grids: list[Any] = []
        for i, law in enumerate(laws):
            if not isinstance(law, Law):
                grids.append(law)
                continue
            shape = [1] * len(own)
            shape[own.index(i)] = COARSE
            grids.append((law.few + (by if i == moved else 0.0)).reshape(shape))
        with np.errstate(all="ignore"):
            return np.broadcast_to(function(*grids), [COARSE] * len(own))

    result = value()
    slopes = [
        0.0 if i not in own else float(np.sqrt(np.mean(((value(i, NEAR) - value(i, -NEAR)) / (2 * NEAR)) ** 2)))
        for i in range(len(laws))
    ]
    return of_array(result), slopes
