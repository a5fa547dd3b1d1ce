"""Sums, means, maxima and what is made of them, over any axes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ipu_core.frontends.torch.operations.call import NodeCall, axes, axis, combined, numbers
from ipu_core.frontends.torch.operations.elementwise import root
from ipu_core.ir.trace.array_formulas import argsort
from ipu_core.ir.trace.array_functions import argmax
from ipu_core.ir.trace.array_moves import moveaxis
from ipu_core.ir.trace.values import (
    Value,
    apply,
    broadcast,
    matmul,
    mean,
    reduce_max,
    reduce_sum,
    reshape,
    shape_of,
    transpose,
)
from ipu_core.nn import log_softmax, log_sum_exp, softmax, stop_gradient


def summed(call: NodeCall, x: Value, dim: Any = None, keepdim: bool = False, *_: Any) -> Value:
    return reduce_sum(numbers(x), axes(x, dim), keepdim)


def averaged(call: NodeCall, x: Value, dim: Any = None, keepdim: bool = False, *_: Any) -> Value:
    return mean(numbers(x), axes(x, dim), keepdim)


def largest(call: NodeCall, x: Value, dim: Any = None, keepdim: bool = False) -> Value:
    return reduce_max(numbers(x), axes(x, dim), keepdim)


def smallest(call: NodeCall, x: Value, dim: Any = None, keepdim: bool = False) -> Value:
    return combined("negative", reduce_max(combined("negative", x), axes(x, dim), keepdim))


def with_places(function: Callable[..., Value], places: Callable[..., Value]) -> Callable[..., Any]:
    """A maximum or minimum along one axis, and the places if something takes them."""

    def both(call: NodeCall, x: Value, dim: int, keepdim: bool = False) -> list[Any]:
        # places that nothing takes cost a search along the axis
        taken = any(user.users and user.args[1] == 1 for user in call.node.users)
        return [function(call, x, dim, keepdim), places(call, x, dim, keepdim) if taken else None]

    return both


def largest_place(call: NodeCall, x: Value, dim: int | None = None, keepdim: bool = False) -> Value:
    """The first place of the largest, of a NaN if there is one; no gradient passes."""
    x = numbers(x)
    if not shape_of(x):
        raise NotImplementedError("a number without axes")
    found = argmax(x, dim if dim is None else axis(x, dim), keepdim)
    return reshape(found, call.shape) if dim is None else found


def smallest_place(call: NodeCall, x: Value, dim: int | None = None, keepdim: bool = False) -> Value:
    return largest_place(call, combined("negative", x), dim, keepdim)


def ordered(call: NodeCall, x: Value, dim: int = -1, descending: bool = False, k: int | None = None) -> list[Value]:
    """Elements along an axis in order, and their places; the gradient goes with the elements.

    NaN is larger than all numbers. Equal ones keep their order (torch promises that of `stable=True` alone).

    Args:
        call: of the operation.
        x: floats, truth values, or integers, which are compared in float32.
        dim: the axis.
        descending: the largest first.
        k: so many of them; None: all.
    """
    if not shape_of(x):
        raise NotImplementedError("a number without axes")
    place = axis(x, dim)
    lines = moveaxis(x, place, -1)
    count = shape_of(lines)[-1]
    compared = numbers(lines)
    # descending by the operation that top-k has, whose equal ones keep their order too
    found = apply("top_indices", compared, k=count if k is None else k) if descending else argsort(compared)[..., :k]
    return [moveaxis(one, -1, place) for one in (apply("take_along", lines, found), found)]


def variance(x: Value, over: tuple[int, ...], less: float = 0, keepdim: bool = True) -> Value:
    """The mean square distance from the mean, of so many elements less."""
    count = math.prod(shape_of(x)[i] for i in over)
    # of centred values: the mean of squares less the squared mean cancels
    centred = combined("subtract", x, mean(x, over, True))
    return combined(
        "multiply",
        reduce_sum(apply("square", centred), over, keepdim),
        1 / max(count - less, 0) if count > less else math.nan,
    )


def corrected(call: NodeCall, x: Value, *arguments: Any) -> Value:
    """The variance as its overloads ask for it: (unbiased), (dim, unbiased, keepdim), (dim, correction, keepdim)."""
    unbiased_only = len(arguments) == 1
    dim, less, keepdim = (None, arguments[0], False) if unbiased_only else arguments
    return variance(x, axes(x, dim), 1 if less is None else float(less), keepdim)


def normed(call: NodeCall, x: Value, *arguments: Any) -> Value:
    """The norm of a vector: of order 1, 2 or infinity. The gradient of a vector of zeros is 0."""
    order, dim, keepdim = (*arguments, None, None, False)[:3] if arguments else (2, None, False)
    order, over, keepdim = 2 if order is None else order, axes(x, dim), bool(keepdim)
    if order == 2:
        return root(reduce_sum(apply("square", x), over, keepdim))
    if order == 1:
        return reduce_sum(apply("absolute", x), over, keepdim)
    if order == math.inf:
        return reduce_max(apply("absolute", x), over, keepdim)
    raise NotImplementedError(f"a norm of order {order}")


def log_sums(call: NodeCall, x: Value, dim: Any, keepdim: bool = False) -> Value:
    over = axes(x, dim)
    if len(over) != 1:
        raise NotImplementedError("more than one axis")
    return log_sum_exp(x, over[0], keepdim)


def running_sum(call: NodeCall, x: Value, dim: int, *_: Any) -> Value:
    """The cumulative sum along an axis, as a product with a triangle of ones."""
    x = numbers(x)
    place, ndim = axis(x, dim), len(shape_of(x))
    order = (*(i for i in range(ndim) if i != place), place)
    # as a product its partial sums have the order and formats that the precision states
    sums = matmul(transpose(x, order), np.triu(np.ones((shape_of(x)[place],) * 2, np.float32)))
    return transpose(sums, np.argsort(order).tolist())


def multiplied(call: NodeCall, x: Value, dim: int | None = None, keepdim: bool = False, *_: Any) -> Value:
    if dim is None:
        x, dim = reshape(x, -1), 0
    place = axis(x, dim)
    result = None
    for i in range(shape_of(x)[place]):
        one = x[(slice(None),) * place + (slice(i, i + 1),)]
        result = one if result is None else combined("multiply", result, one)
    return reshape(result, call.shape)


def all_of(call: NodeCall, x: Value, dim: Any = None, keepdim: bool = False) -> Value:
    return combined("negative", reduce_max(combined("negative", truth(x)), axes(x, dim), keepdim))


def any_of(call: NodeCall, x: Value, dim: Any = None, keepdim: bool = False) -> Value:
    return reduce_max(truth(x), axes(x, dim), keepdim)


def truth(x: Value) -> Value:
    return combined("subtract", 1.0, combined("equal", x, 0.0))


def cosine(call: NodeCall, a: Value, b: Value, dim: int = 1, eps: float = 1e-8) -> Value:
    """Cosine similarity along an axis; lengths below eps count as eps, with the gradient of a length."""
    over = axes(a, dim)
    shape = np.broadcast_shapes(shape_of(a), shape_of(b))
    units = []
    for x in (broadcast(a, shape), broadcast(b, shape)):
        length = root(reduce_sum(apply("square", x), over, True))
        # torch clamps the length's value and leaves its gradient as it is
        short = stop_gradient(combined("subtract", combined("maximum", length, eps), length))
        units.append(combined("divide", x, combined("add", length, short)))
    return reduce_sum(combined("multiply", *units), over)


def soft(function: Callable[..., Value]) -> Callable[..., Value]:
    return lambda call, x, dim, *_: function(x, axis(x, dim))


TABLE: dict[str, Callable[..., Any]] = {
    "sum": summed, "mean": averaged, "amax": largest, "amin": smallest, "max": largest, "min": smallest,
    "max.dim": with_places(largest, largest_place), "min.dim": with_places(smallest, smallest_place),
    "argmax": largest_place, "argmin": smallest_place,
    "sort": ordered, "sort.stable": lambda call, x, stable, dim=-1, descending=False: ordered(call, x, dim, descending),
    "msort": lambda call, x: ordered(call, x, 0)[0],
    "argsort": lambda call, x, *how: ordered(call, x, *how)[1],
    "argsort.stable": lambda call, x, stable, dim=-1, descending=False: ordered(call, x, dim, descending)[1],
    "topk": lambda call, x, k, dim=-1, largest=True, *_: ordered(call, x, dim, largest, k),
    "var": corrected, "std": lambda call, *x: root(corrected(call, *x)),
    "linalg_vector_norm": normed,
    "logsumexp": log_sums, "softmax": soft(softmax), "log_softmax": soft(log_softmax),
    "cumsum": running_sum, "prod": multiplied, "all": all_of, "any": any_of, "cosine_similarity": cosine,
}  # fmt: skip
