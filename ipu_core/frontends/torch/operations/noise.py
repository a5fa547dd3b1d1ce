"""Random numbers of torch, uniform and normal: drawn from the step's key, not by torch's generators."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ipu_core.frontends.torch.operations.call import NodeCall, combined
from ipu_core.ir.trace.values import Value, apply, reduce_sum, reshape, scope, where
from ipu_core.nn import floor
from ipu_core.nn.operations import drawn_out

BITS = 24
"""Random bits of a uniform number: as many as float32 has."""


def uniform(call: NodeCall, *_: Any) -> Value:
    """Multiples of 2^-24 in [0, 1), each as likely as any other."""
    shape = call.shape or (1,)
    ones = call.full(1.0, (BITS, *shape))
    with scope(ones, family="norm"):
        bits = drawn_out(ones, 0.5)  # in predictions too
        weights = np.reshape(0.5 ** np.arange(1, BITS + 1, dtype=np.float32), (BITS, *(1,) * len(shape)))
        return reshape(reduce_sum(where(bits, weights, 0.0), 0), call.shape)


def normal(call: NodeCall, *_: Any) -> Value:
    """Numbers of mean 0 and deviation 1 (Box and Muller 1958), below 5.8 in magnitude."""
    size, angle = uniform(call), uniform(call)
    with scope([size, angle], family="norm"):
        # 1 - u is above 0, where the logarithm is finite
        square = combined("multiply", apply("log", combined("subtract", 1.0, size)), -2.0)
        # the root has no gradient to pass on: nothing random depends on parameters
        return combined("multiply", apply("sqrt", square), apply("cos", combined("multiply", angle, 2 * math.pi)))


def uniform_between(call: NodeCall, x: Value, low: float = 0.0, high: float = 1.0, *_: Any) -> Value:
    return combined("add", combined("multiply", uniform(call), high - low), low)


def normal_around(call: NodeCall, x: Value, middle: float = 0.0, deviation: float = 1.0, *_: Any) -> Value:
    if call.node.target._schema.name != "aten::normal_":
        raise NotImplementedError("means and deviations as tensors: mean + deviation * torch.randn_like(mean)")
    return combined("add", combined("multiply", normal(call), deviation), middle)


def exponential(call: NodeCall, x: Value, rate: float = 1.0, *_: Any) -> Value:
    return combined("multiply", apply("log", combined("subtract", 1.0, uniform(call))), -1 / rate)


def whole(call: NodeCall, *given: Any) -> Value:
    """Whole numbers from the lower bound (0) to below the upper one, each as likely as others to 2^-24 of their number.

    Raises:
        NotImplementedError: more than 2^24 of them, or none.
    """
    low, high = bounds(given)
    if not 0 < high - low <= 1 << BITS:
        raise NotImplementedError(f"whole numbers from {low} to below {high}: from 1 to 2^{BITS} of them are drawn")
    share = uniform(call)
    with scope(share, family="loss"):
        # a product may be rounded up to the bound, where a number is nearly 1
        number = combined("minimum", floor(combined("multiply", share, float(high - low))), float(high - low - 1))
        return combined("add", number, float(low))


def bounds(given: Any) -> tuple[int, int]:
    """The bounds of `randint` or `randint_like` from its arguments: 0 and one, or two, behind a tensor if there is."""
    first = given if isinstance(given[0], int) else given[1:]
    found = [*itertools.takewhile(lambda x: isinstance(x, int), first)]  # a dtype by its number may come later
    return (0, found[0]) if len(found) == 1 else (found[0], found[1])


TABLE: dict[str, Callable[..., Any]] = {
    "rand": uniform, "rand_like": uniform, "randn": normal, "randn_like": normal,
    "randint": whole, "randint_like": whole,
    "uniform": uniform_between, "normal": normal_around, "exponential": exponential,
}  # fmt: skip

MIDDLES: dict[str, tuple[float, float, float]] = {
    "rand": (0.5, 0.0, 0.0), "rand_like": (0.5, 0.0, 0.0), "randn": (0.0, 0.0, 0.0), "randn_like": (0.0, 0.0, 0.0),
    "randint": (0.0, 0.0, 0.0), "randint_like": (0.0, 0.0, 0.0),
    "uniform_": (0.0, 0.5, 0.5), "normal_": (0.0, 1.0, 0.0), "exponential_": (1.0, 0.0, 0.0),
}  # fmt: skip
"""What stands for a draw where a module is compared with torch: a number, and shares of the first two settings; of
whole numbers it is the middle of their bounds."""
USUAL = {"uniform_": (0.0, 1.0), "normal_": (0.0, 1.0)}
"""Settings of those that have any, if nothing is said."""


def middle(name: str, settings: tuple[Any, ...] | list[Any]) -> float:
    """The number that stands for a draw with such arguments, without the first tensor or shape; see `MIDDLES`."""
    if name in ("randint", "randint_like"):
        return sum(bounds(settings)) // 2
    number, *shares = MIDDLES[name]
    usual = USUAL.get(name, (0.0, 0.0))
    given = (*settings[:2], *usual[len(settings[:2]) :])
    return number + sum(share * float(one) for share, one in zip(shares, given, strict=True) if share)
