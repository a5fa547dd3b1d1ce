"""Connectionist temporal classification: minus the logarithm of the probability of all alignments of some labels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ipu_core.frontends.torch.operations.call import NodeCall, combined, numbers, ones_at
from ipu_core.frontends.torch.operations.elementwise import greater
from ipu_core.frontends.torch.operations.losses import MEAN, NONE
from ipu_core.ir.block import Array
from ipu_core.ir.trace.array_functions import not_equal
from ipu_core.ir.trace.scan import scanned
from ipu_core.ir.trace.values import (
    Value,
    apply,
    broadcast,
    concatenate,
    elementwise,
    matmul,
    mean,
    reduce_sum,
    reshape,
    scope,
    shape_of,
    transpose,
    where,
)
from ipu_core.nn import stop_gradient
from ipu_core.nn.operations import widen

NEVER = -1e30
"""The logarithm of the probability of what cannot be: finite, so that no difference of two is NaN."""


def ctc_loss(
    call: NodeCall, logs: Value, labels: Value, places: Value, lengths: Value, blank: int, reduction: int,
    zero_infinity: bool,
) -> Value:  # fmt: skip
    """The forward recursion of Graves and others (2006) over labels with blanks around them, in logarithms.

    Its derivative is minus the posterior of each symbol. Torch's has the symbol's probability added, which the
    log_softmax before it takes away again: here too, so that all gradients are torch's.
    """
    if len(shape_of(labels)) != 2:
        raise NotImplementedError("targets of all rows in one array: pad them to (rows, labels)")
    with scope([logs, labels], family="loss"):
        logs, labels = elementwise("maximum", widen(logs), NEVER), numbers(labels)
        count, rows, _ = shape_of(logs)
        most = shape_of(labels)[1]
        places, lengths = (reshape(broadcast(numbers(n), (rows,)), (rows, 1)) for n in (places, lengths))
        if isinstance(labels, np.ndarray) and isinstance(lengths, np.ndarray):
            _check_labels(labels[lengths > np.arange(most)], blank, shape_of(logs)[2])
        # padding may be anything: nothing reads it, but NaN of it would be seen by a watch and raise on tiles
        labels = where(greater(lengths, np.arange(most, dtype=np.float32)), labels, float(blank))
        alive = greater(reshape(places, (1, rows, 1)), np.arange(count, dtype=np.float32).reshape(-1, 1, 1))
        ones = ones_at(labels, shape_of(logs)[2])
        total = _log_probability(logs, labels, ones, alive, lengths, blank)
        possible = greater(total, NEVER / 2)
        # it is 0 and carries the gradient
        slope = combined("multiply", combined("subtract", logs, stop_gradient(logs)), stop_gradient(apply("exp", logs)))
        slope = reduce_sum(where(alive, slope, 0.0), (0, 2))
        # infinite, with the gradient NaN as torch's: 1 / 0 by 0
        lost = 0.0 if zero_infinity else -apply("log", where(possible, 1.0, slope * slope))
        found = where(possible, combined("subtract", slope, total), lost)
        # a label that is no symbol is seen: torch's loss is then what lies in memory there
        found = where(elementwise("equal", reduce_sum(ones, (1, 2)), float(most)), found, float("nan"))
        if reduction == NONE:
            return reshape(found, call.shape)
        if reduction == MEAN:
            # constant ones become factors, which float32 rounds
            lengths = lengths.astype(call.width) if isinstance(lengths, np.ndarray) else lengths
            found = combined("divide", found, elementwise("maximum", reshape(lengths, -1), 1.0))
            return mean(found)
        return reduce_sum(found)


def _check_labels(labels: Array, blank: int, symbols: int) -> None:
    """Refuses constant labels of which torch's loss means nothing."""
    if ((labels == blank) | (labels < 0) | (labels >= symbols)).any():
        raise ValueError(f"its targets have to be symbols from 0 to {symbols - 1} other than the blank, {blank}")


def _log_probability(logs: Value, labels: Value, ones: Value, alive: Value, lengths: Value, blank: int) -> Value:
    """Of the alignments of each row: (places, rows, symbols) logarithms, (rows, labels) numbers, (rows, 1) counts.

    The labels' symbols are ones, (rows, labels, symbols), the places of a row that count are alive, (places, rows, 1).
    """
    count, rows, _ = shape_of(logs)
    most = shape_of(labels)[1]
    width = 2 * most + 1
    never = np.full((rows, 2), NEVER, np.float32)
    # a blank before each label and one behind them all
    own = transpose(matmul(transpose(logs, (1, 0, 2)), transpose(ones, (0, 2, 1))), (1, 0, 2))
    blanks = logs[:, :, blank : blank + 1]
    pairs = [
        reshape(broadcast(blanks, (count, rows, most)), (count, rows, most, 1)),
        reshape(own, (count, rows, most, 1)),
    ]
    seen = concatenate([reshape(concatenate(pairs, 3), (count, rows, 2 * most)), blanks], 2)
    # between two labels the blank may be left out where they differ
    other = concatenate([np.zeros((rows, 1), np.float32), not_equal(labels[:, 1:], labels[:, :-1])], 1)
    other = elementwise("multiply", other, not_equal(labels, float(blank)))
    gaps = np.zeros((rows, most, 1), np.float32)
    skips = reshape(concatenate([gaps, reshape(other, (rows, most, 1))], 2), (rows, 2 * most))
    skips = concatenate([skips, np.zeros((rows, 1), np.float32)], 1)

    def step(before: Value, part: tuple[Value, Value]) -> tuple[Value, Value]:
        own, alive = part
        moved = concatenate([never, before], 1)
        ways = [before, moved[:, 1:-1], where(skips, moved[:, :-2], NEVER)]
        after = combined("add", _log_sum(ways), own)
        return where(alive, elementwise("maximum", after, NEVER), before), own[:1, :1]

    start = np.full((rows, width), NEVER, np.float32)
    start[:, 0] = 0
    last, _ = scanned(step, start, (seen, alive), reads=[skips])
    numbers_of = np.arange(width, dtype=np.float32)
    ends = [
        elementwise("equal", combined("subtract", combined("multiply", lengths, 2.0), n), numbers_of)
        for n in (0.0, 1.0)
    ]
    return _log_sum([combined("add", reduce_sum(where(end, last, 0.0), -1),
                              where(reduce_sum(end, -1), 0.0, NEVER)) for end in ends])  # fmt: skip


def _log_sum(ways: list[Value]) -> Value:
    """The logarithm of a sum of exponentials; NEVER where each is about that."""
    most = ways[0]
    for way in ways[1:]:
        most = elementwise("maximum", most, way)
    possible = greater(most, NEVER / 2)
    most = stop_gradient(where(possible, most, 0.0))
    total = apply("exp", combined("subtract", ways[0], most))
    for way in ways[1:]:
        total = combined("add", total, apply("exp", combined("subtract", way, most)))
    return where(possible, combined("add", apply("log", where(possible, total, 1.0)), most), NEVER)


TABLE: dict[str, Callable[..., Any]] = {"ctc_loss": ctc_loss}
