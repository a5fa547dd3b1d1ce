"""Random numbers of torch, uniform and normal: drawn from the step's key, not by torch's generators."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ipu_core.frontends.torch.operations.call import NodeCall, combined
from ipu_core.ir.trace.values import Value, apply, reduce_sum, reshape, scope, where
from ipu_core.nn import dropout

BITS = 24
"""Random bits of a uniform number: as many as float32 has."""


def uniform(call: NodeCall, *_: Any) -> Value:
    """Multiples of 2^-24 in [0, 1), each as likely as any other."""
    shape = call.shape or (1,)
    ones = call.full(1.0, (BITS, *shape))
    with scope(ones, family="norm"):
        bits = dropout(ones, 0.5)
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


TABLE: dict[str, Callable[..., Any]] = {
    "rand": uniform, "rand_like": uniform, "randn": normal, "randn_like": normal,
    "uniform": uniform_between, "normal": normal_around, "exponential": exponential,
}  # fmt: skip

MIDDLES: dict[str, tuple[float, float, float]] = {
    "rand": (0.5, 0.0, 0.0), "rand_like": (0.5, 0.0, 0.0), "randn": (0.0, 0.0, 0.0), "randn_like": (0.0, 0.0, 0.0),
    "uniform_": (0.0, 0.5, 0.5), "normal_": (0.0, 1.0, 0.0), "exponential_": (1.0, 0.0, 0.0),
}  # fmt: skip
"""What stands for a draw where a module is compared with torch: a number, and shares of the first two settings."""
USUAL = {"uniform_": (0.0, 1.0), "normal_": (0.0, 1.0)}
"""Settings of those that have any, if nothing is said."""


def middle(name: str, settings: tuple[Any, ...] | list[Any]) -> float:
    """The number that stands for a draw, see `MIDDLES`."""
    number, *shares = MIDDLES[name]
    usual = USUAL.get(name, (0.0, 0.0))
    given = (*settings[:2], *usual[len(settings[:2]) :])
    return number + sum(share * float(one) for share, one in zip(shares, given, strict=True) if share)
