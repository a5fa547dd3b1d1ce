"""Primitives that put elements in order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ipu_core.frontends.jax.operations.call import EquationCall
from ipu_core.frontends.torch.operations.call import numbers
from ipu_core.ir.trace.array_formulas import argsort, cumprod
from ipu_core.ir.trace.array_functions import argmax, argmin
from ipu_core.ir.trace.array_moves import flip, moveaxis, take_along_axis
from ipu_core.ir.trace.values import Traced, Value, topk


def largest(call: EquationCall, x: Value) -> list[Value]:
    """The k largest along an axis and their places, the first of equal ones first."""
    place = int(call.params.get("axis", -1))
    found = topk(moveaxis(numbers(x), place, -1), int(call.params["k"]))
    return [moveaxis(each, -1, place) for each in found]


def ordered(call: EquationCall, *values: Value) -> list[Value]:
    """Arrays in the order of the first, ascending, equal ones in theirs."""
    if call.params["num_keys"] != 1:
        raise NotImplementedError("an order by several arrays")
    place = int(call.params["dimension"])
    order = argsort(numbers(values[0]), place)
    return [take_along_axis(x if isinstance(x, Traced) else np.asarray(x), order, place) for x in values]


def extreme_place(function: Callable[..., Value]) -> Callable[..., Value]:
    """The place of the largest or smallest along an axis, of the first of equal ones."""
    return lambda call, x: function(numbers(x), int(call.params["axes"][0]))


def products(call: EquationCall, x: Value) -> Value:
    """The cumulative product along an axis."""
    place = int(call.params["axis"])
    if call.params["reverse"]:
        return flip(cumprod(flip(numbers(x), place), place), place)
    return cumprod(numbers(x), place)


TABLE: dict[str, Callable[..., Any]] = {
    "top_k": largest, "sort": ordered, "argmax": extreme_place(argmax), "argmin": extreme_place(argmin),
    "cumprod": products,
}  # fmt: skip
