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
    concatenate,
    matmul,
    mean,
    reduce_max,
    reduce_sum,
    reshape,
    shape_of,
    transpose,
    where,
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
    """The norm of a vector. The gradient of a vector of zeros is 0."""
    order, dim, keepdim = (*arguments, None, None, False)[:3] if arguments else (2, None, False)
    return norm_along(x, 2 if order is None else order, axes(x, dim), keepdim=bool(keepdim))


def norm_along(x: Value, order: float, over: tuple[int, ...], *, keepdim: bool) -> Value:
    """The norm along some axes: of order 0, 1, 2, infinity or another above 1."""
    if order == 2:
        return root(reduce_sum(apply("square", x), over, keepdim))
    if order == 0:
        return reduce_sum(truth(x), over, keepdim)
    size = apply("absolute", x)
    if order == 1:
        return reduce_sum(size, over, keepdim)
    if order == math.inf:
        return reduce_max(size, over, keepdim)
    if not 1 < order < math.inf:
        raise NotImplementedError(f"a norm of order {order}")
    # powers by logarithms, which 0 has none of; a vector of zeros has the gradient 0
    zero = combined("equal", size, 0.0)
    powers = where(zero, 0.0, apply("exp", combined("multiply", apply("log", where(zero, 1.0, size)), order)))
    total = reduce_sum(powers, over, keepdim)
    none = combined("equal", total, 0.0)
    return where(none, 0.0, apply("exp", combined("multiply", apply("log", where(none, 1.0, total)), 1 / order)))


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


def running_product(call: NodeCall, x: Value, dim: int, *_: Any) -> Value:
    """The cumulative product along an axis, one element after another."""
    place = axis(x, dim)
    if not shape_of(x):
        return x
    found: list[Value] = []
    for i in range(shape_of(x)[place]):
        one = x[(slice(None),) * place + (slice(i, i + 1),)]
        found.append(combined("multiply", found[-1], one) if found else one)
    return found[0] if len(found) == 1 else concatenate(found, place)


def with_mean(function: Callable[..., Value]) -> Callable[..., list[Value]]:
    """A variance or deviation, and the mean beside it."""

    def both(call: NodeCall, x: Value, *arguments: Any) -> list[Value]:
        dim, keepdim = (None, False) if len(arguments) == 1 else (arguments[0], bool(arguments[2]))
        return [function(call, x, *arguments), mean(x, axes(x, dim), keepdim)]

    return both


def counted(call: NodeCall, x: Value, dim: Any = None) -> Value:
    return reduce_sum(truth(x), axes(x, dim))


def with_nan(x: Value, place: int, found: Value) -> Value:
    """What was found along an axis; NaN where that holds one."""
    any_nan = reduce_max(combined("subtract", 1.0, combined("equal", x, x)), (place,), True)
    return where(any_nan, math.nan, found)


def ranked(call: NodeCall, x: Value, rank: int, dim: int, keepdim: bool, *, nan: bool) -> list[Value]:
    """The element of a rank along an axis, the smallest first, and its place."""
    values, places = ordered(call, x, dim)
    place = axis(x, dim)
    key = (slice(None),) * place + (slice(rank, rank + 1),)
    found, where_it_is = values[key], places[key]
    found = with_nan(numbers(x), place, found) if nan else found
    shape = shape_of(found) if keepdim else [n for i, n in enumerate(shape_of(found)) if i != place]
    return [reshape(one, shape) for one in (found, where_it_is)]


def median(call: NodeCall, x: Value, dim: int | None = None, keepdim: bool = False) -> Any:
    """The lower of the middle elements; along an axis with its place. NaN where there is one."""
    if dim is None:
        flat = reshape(x, -1)
        return reshape(ranked(call, flat, (shape_of(flat)[0] - 1) // 2, 0, False, nan=True)[0], ())
    return ranked(call, x, (shape_of(x)[axis(x, dim)] - 1) // 2, dim, keepdim, nan=True)


def rank_of(call: NodeCall, x: Value, k: int, dim: int = -1, keepdim: bool = False) -> list[Value]:
    return ranked(call, x, k - 1, dim, keepdim, nan=False)


def quantile(
    call: NodeCall, x: Value, share: Any, dim: int | None = None, keepdim: bool = False, between: str = "linear"
) -> Value:
    """The element at a share of the way along the order; between two of them by a straight line."""
    if between != "linear" or not isinstance(share, float | int | np.ndarray) or np.ndim(share):
        raise NotImplementedError("interpolation=, or several shares")
    x, dim = (reshape(x, -1), 0) if dim is None else (x, dim)
    place, at = axis(x, dim), float(share) * (shape_of(x)[axis(x, dim)] - 1)
    low = math.floor(at)
    values = ordered(call, x, place)[0]
    one, two = (values[(slice(None),) * place + (slice(i, i + 1),)] for i in (low, math.ceil(at)))
    found = combined("add", one, combined("multiply", combined("subtract", two, one), at - low)) if at != low else one
    return reshape(with_nan(x, place, found), call.shape)


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
    "var_mean": with_mean(corrected), "std_mean": with_mean(lambda call, *x: root(corrected(call, *x))),
    "aminmax": lambda call, x, dim=None, keepdim=False: [f(call, x, dim, keepdim) for f in (smallest, largest)],
    "count_nonzero": counted, "median": median, "kthvalue": rank_of, "quantile": quantile, "cumprod": running_product,
    "cumsum": running_sum, "prod": multiplied, "all": all_of, "any": any_of, "cosine_similarity": cosine,
}  # fmt: skip
