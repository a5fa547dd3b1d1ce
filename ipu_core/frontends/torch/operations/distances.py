"""Distances between vectors, and losses that are made of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from ipu_core.frontends.torch.operations.call import NodeCall, combined
from ipu_core.frontends.torch.operations.elementwise import clamped, greater
from ipu_core.frontends.torch.operations.losses import MEAN, reduced, widen_one
from ipu_core.frontends.torch.operations.reductions import norm_along
from ipu_core.ir.trace.values import Value, apply, reduce_sum, reshape, scope, shape_of, where

TINY = 1e-12
"""What torch adds to squared lengths of which a cosine is taken."""


def every_pair(call: NodeCall, a: Value, b: Value, order: float = 2, *_: Any) -> Value:
    """Distances of all rows of one matrix from all rows of another; of equal rows 0, without a gradient."""
    first = reshape(a, (*shape_of(a)[:-1], 1, shape_of(a)[-1]))
    second = reshape(b, (*shape_of(b)[:-2], 1, *shape_of(b)[-2:]))
    return norm_along(combined("subtract", first, second), order, (len(shape_of(first)) - 1,), keepdim=False)


def pair(
    call: NodeCall | None, a: Value, b: Value, order: float = 2, eps: float = 1e-6, keepdim: bool = False
) -> Value:
    """The distance of each row from the one beside it; torch adds eps to each difference."""
    away = combined("add", combined("subtract", a, b), eps)
    return norm_along(away, order, (len(shape_of(away)) - 1,), keepdim=keepdim)


def at_least_0(x: Value) -> Value:
    # torch's clamp_min: at the bound itself the gradient passes
    return where(greater(0.0, x), 0.0, x)


def triplet(
    call: NodeCall, anchor: Value, same: Value, other: Value, margin: float = 1.0, order: float = 2, eps: float = 1e-6,
    swap: bool = False, reduction: int = MEAN,
) -> Value:  # fmt: skip
    with scope([anchor, same, other], family="loss"):
        anchor, same, other = map(widen_one, (anchor, same, other))
        far = pair(None, anchor, other, order, eps)
        if swap:
            far = combined("minimum", far, pair(None, same, other, order, eps))
        near = combined("add", pair(None, anchor, same, order, eps), margin)
        return reduced(at_least_0(combined("subtract", near, far)), reduction)


def ranking(call: NodeCall, a: Value, b: Value, y: Value, margin: float = 0.0, reduction: int = MEAN) -> Value:
    with scope([a, b, y], family="loss"):
        less = combined("multiply", combined("subtract", widen_one(b), widen_one(a)), y)
        return reduced(at_least_0(combined("add", less, margin)), reduction)


def hinge(call: NodeCall, x: Value, y: Value, margin: float = 1.0, reduction: int = MEAN) -> Value:
    """x where y is 1, what it lacks to the margin where y is -1; torch adds both where it is neither."""
    with scope([x, y], family="loss"):
        x = widen_one(x)
        lacks = where(combined("equal", y, 1.0), 0.0, at_least_0(combined("subtract", margin, x)))
        return reduced(combined("add", lacks, where(combined("equal", y, -1.0), 0.0, x)), reduction)


def cosine_loss(call: NodeCall, a: Value, b: Value, y: Value, margin: float = 0.0, reduction: int = MEAN) -> Value:
    with scope([a, b, y], family="loss"):
        a, b = widen_one(a), widen_one(b)
        over = (len(shape_of(a)) - 1,)
        lengths = [combined("add", reduce_sum(apply("square", x), over), TINY) for x in (a, b)]
        cosine = combined(
            "divide", reduce_sum(combined("multiply", a, b), over), apply("sqrt", combined("multiply", *lengths))
        )
        same = where(combined("equal", y, 1.0), combined("subtract", 1.0, cosine), 0.0)
        other = where(combined("equal", y, -1.0), at_least_0(combined("subtract", cosine, margin)), 0.0)
        return reduced(combined("add", same, other), reduction)


def poisson(
    call: NodeCall, x: Value, y: Value, logarithm: bool = True, full: bool = False, eps: float = 1e-8,
    reduction: int = MEAN,
) -> Value:  # fmt: skip
    with scope([x, y], family="loss"):
        x = widen_one(x)
        logs = x if logarithm else apply("log", combined("add", x, eps))
        rows = combined("subtract", apply("exp", x) if logarithm else x, combined("multiply", y, logs))
        if full:
            large = greater(y, 1.0)
            safe = where(large, y, 1.0)  # keeps log(0) out
            own = combined("subtract", combined("multiply", safe, apply("log", safe)), safe)
            own = combined("add", own, combined("multiply", apply("log", combined("multiply", safe, 2 * math.pi)), 0.5))
            rows = combined("add", rows, where(large, own, 0.0))
        return reduced(rows, reduction)


def logit(call: NodeCall, x: Value, eps: float | None = None) -> Value:
    x = x if eps is None else clamped(call, x, eps, 1 - eps)
    return apply("log", combined("divide", x, combined("subtract", 1.0, x)))


TABLE: dict[str, Callable[..., Any]] = {
    "cdist": every_pair, "pairwise_distance": pair, "triplet_margin_loss": triplet, "margin_ranking_loss": ranking,
    "hinge_embedding_loss": hinge, "cosine_embedding_loss": cosine_loss, "poisson_nll_loss": poisson, "logit": logit,
}  # fmt: skip
