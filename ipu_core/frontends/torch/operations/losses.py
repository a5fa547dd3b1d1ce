"""Losses, in float32 whatever the precision, and rows looked up by number."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ipu_core.frontends.torch.operations.call import NodeCall, combined, is_integer, looked_up, ones_at
from ipu_core.frontends.torch.operations.elementwise import clamped, greater, log_of_1_and_exp
from ipu_core.ir.trace.array_functions import log1p
from ipu_core.ir.trace.values import (
    Value,
    apply,
    broadcast,
    mean,
    reduce_sum,
    reshape,
    scope,
    shape_of,
    transpose,
    where,
)
from ipu_core.nn import log_softmax, stop_gradient
from ipu_core.nn.operations import widen

NONE, MEAN, SUM = 0, 1, 2  # torch's numbers of reductions


def reduced(rows: Value, reduction: int) -> Value:
    return rows if reduction == NONE else mean(rows) if reduction == MEAN else reduce_sum(rows)


def loss_of(rows: Callable[..., Value]) -> Callable[..., Value]:
    """A loss whose arguments end with its reduction and settings, from a function of (prediction, target, ...)."""

    def loss(call: NodeCall, x: Value, y: Value, reduction: int = MEAN, *settings: Any) -> Value:
        with scope([x, y], family="loss"):
            return reduced(rows(widen_one(x), widen_one(y), *settings), reduction)

    return loss


def widen_one(x: Value) -> Value:
    return x if isinstance(x, int | float) or is_integer(x) else widen(x)


def difference(x: Value, y: Value) -> Value:
    return combined("subtract", x, y)


def smooth(x: Value, y: Value, beta: float = 1.0) -> Value:
    away = apply("absolute", difference(x, y))
    if beta == 0:
        return away
    near = combined("multiply", apply("square", away), 0.5 / beta)
    return where(greater(beta, away), near, combined("subtract", away, 0.5 * beta))


def huber(x: Value, y: Value, delta: float = 1.0) -> Value:
    return combined("multiply", smooth(x, y, delta), delta)


def divergence(x: Value, y: Value, log_target: bool = False) -> Value:
    if log_target:
        return combined("multiply", apply("exp", y), combined("subtract", y, x))
    # y log y is 0 at 0: the inner choice keeps log(0) out, the outer one 0 * -inf
    own = where(greater(y, 0.0), combined("multiply", y, apply("log", where(greater(y, 0.0), y, 1.0))), 0.0)
    return combined("subtract", own, combined("multiply", y, x))


def cross_entropy_binary(
    call: NodeCall, x: Value, y: Value, weight: Value | None = None, reduction: int = MEAN
) -> Value:
    """Logarithms are at least -100, and the gradient is torch's: (x - y) / (x (1 - x)), of at least 1e-12 below."""
    with scope([x, y], family="loss"):
        x = widen(x)
        # value and slope apart: the derivative of clamped logarithms is 0 where torch's backward still has its formula
        fixed = stop_gradient(x)
        other = combined("subtract", 1.0, fixed)
        own, its = (clamped(call, log, -100.0) for log in (apply("log", fixed), log1p(combined("negative", fixed))))
        value = combined("add", combined("multiply", y, own), combined("multiply", combined("subtract", 1.0, y), its))
        spread = clamped(call, combined("multiply", fixed, other), 1e-12)
        slope = combined("divide", combined("subtract", fixed, stop_gradient(y)), spread)
        # (x - fixed) is 0 and carries the gradient
        rows = combined("subtract", combined("multiply", combined("subtract", x, fixed), slope), value)
        return reduced(rows if weight is None else combined("multiply", rows, weight), reduction)


def with_logits(
    call: NodeCall,
    x: Value,
    y: Value,
    weight: Value | None = None,
    positive: Value | None = None,
    reduction: int = MEAN,
) -> Value:
    """(1 - y) log(1 + e^x) + y log(1 + e^-x): nothing cancels, so that both tails stay."""
    with scope([x, y], family="loss"):
        x = widen(x)
        above, minus = greater(x, 0.0), combined("negative", x)
        small = log1p(apply("exp", where(above, minus, x)))
        ones, zeros = y if positive is None else combined("multiply", y, positive), combined("subtract", 1.0, y)
        own = combined("multiply", ones, combined("add", where(above, 0.0, minus), small))
        rows = combined("add", combined("multiply", zeros, combined("add", where(above, x, 0.0), small)), own)
        return reduced(rows if weight is None else combined("multiply", rows, weight), reduction)


def classes_last(x: Value) -> Value:
    """(n, classes, ...) -> (n, ..., classes)."""
    ndim = len(shape_of(x))
    return x if ndim < 3 else transpose(x, (0, *range(2, ndim), 1))


def counted(labels: Value, classes: int, ignored: int) -> Value:
    """1 for labels that are classes, 0 for the one that is ignored, NaN for others or IndexError beyond them."""
    # ignored may be negative: it is looked up from the end, behind a stretch of NaN for labels that are none
    table = np.full(classes + abs(ignored) + 1, np.nan, np.float32)
    table[:classes] = 1
    table[ignored] = 0
    return looked_up(table, labels)


def likelihood(
    call: NodeCall, x: Value, y: Value, weight: Value | None = None, reduction: int = MEAN, ignored: int = -100,
    smoothing: float = 0.0,
) -> Value:  # fmt: skip
    """Minus the logarithms of the labels' probabilities, of which x are the logarithms."""
    x = classes_last(x)
    classes = shape_of(x)[-1]
    ones = ones_at(y, classes)
    with scope([x, y], family="loss"):
        counts = counted(y, classes, ignored)
        if weight is not None:
            # torch's mean divides by the weights of the labels, not by their number
            counts = combined("multiply", counts, reduce_sum(combined("multiply", ones, weight), -1))
        rows = combined("multiply", combined("negative", reduce_sum(where(ones, x, 0.0), -1)), counts)
        valid = where(counted(y, classes, ignored), 1.0, 0.0)
        if smoothing:
            spread = combined("negative", reduce_sum(x if weight is None else combined("multiply", x, weight), -1))
            spread = combined("multiply", spread, combined("multiply", valid, smoothing / classes))
            rows = combined("add", combined("multiply", rows, 1 - smoothing), spread)
        # a choice: a row that is ignored may hold infinities
        rows = where(valid, rows, 0.0)
        if reduction == NONE:
            return rows
        return combined("divide", reduce_sum(rows), reduce_sum(counts)) if reduction == MEAN else reduce_sum(rows)


def cross_entropy(
    call: NodeCall, x: Value, y: Value, weight: Value | None = None, reduction: int = MEAN, ignored: int = -100,
    smoothing: float = 0.0,
) -> Value:  # fmt: skip
    """Cross-entropy of logits with labels that are class numbers or probabilities of the classes."""
    place = 1 if len(shape_of(x)) > 1 else 0
    with scope([x, y], family="loss"):
        logs = log_softmax(widen(x), place)
        if call.kind(1) == "float":
            classes = shape_of(x)[place]
            y = combined("add", combined("multiply", y, 1 - smoothing), smoothing / classes) if smoothing else y
            logs = combined("multiply", logs, y)
            if weight is not None:
                logs = combined("multiply", logs, reshape(weight, (-1, *(1,) * (len(shape_of(x)) - 1 - place))))
            rows = combined("negative", reduce_sum(logs, place))
            if reduction != MEAN:
                return reduced(rows, reduction)
            # with probabilities as targets torch divides by rows, whatever the weights
            return combined("multiply", reduce_sum(rows), 1 / math.prod(shape_of(rows)))
    return likelihood(call, logs, y, weight, reduction, ignored, smoothing)


def embedding(
    call: NodeCall, table: Value, rows: Value, padding: int = -1, by_frequency: bool = False, *_: Any
) -> Value:
    """Rows of a table by number; the row `padding` gets no gradient."""
    if by_frequency:
        raise NotImplementedError("gradients scaled by frequency")
    found = looked_up(table, rows)
    if padding < 0:
        return found
    is_padding = np.zeros(shape_of(table)[0], np.float32)
    is_padding[padding] = 1
    mask = looked_up(is_padding, rows)
    # the same value both ways: only the gradient differs
    return where(_as_rows(mask, found), stop_gradient(found), found)


def _as_rows(mask: Value, like: Value) -> Value:
    """One number for each row, as many as the rows have elements."""
    return broadcast(reshape(mask, (*shape_of(mask), 1)), shape_of(like))


def one_hot(call: NodeCall, rows: Value, classes: int = -1) -> Value:
    return ones_at(rows, call.shape[-1])


TABLE: dict[str, Callable[..., Any]] = {
    "cross_entropy_loss": cross_entropy, "nll_loss_nd": likelihood,
    "mse_loss": loss_of(lambda x, y: apply("square", difference(x, y))),
    "l1_loss": loss_of(lambda x, y: apply("absolute", difference(x, y))),
    "smooth_l1_loss": loss_of(smooth), "huber_loss": loss_of(huber), "kl_div": loss_of(divergence),
    "soft_margin_loss": loss_of(lambda x, y: log_of_1_and_exp(combined("negative", combined("multiply", x, y)))),
    "binary_cross_entropy": cross_entropy_binary, "binary_cross_entropy_with_logits": with_logits,
    "embedding": embedding, "one_hot": one_hot,
}  # fmt: skip
