"""Sums of rows by the number of a segment: messages of a graph's edges to its nodes, nodes to their graph."""

from __future__ import annotations

import numpy as np

from ipu_core.ir.block import format_name
from ipu_core.ir.ops import INT32
from ipu_core.ir.trace.values import Value, apply, elementwise, reshape, shape_of
from ipu_core.nn.operations import element_format, maximum
from lowprec.checks import integer


def segment_sum(x: Value, index: Value, count: int) -> Value:
    """Sums of the rows of x by segment; a segment without rows gives 0.

    The rows of a segment are added one after another, in their order, in float32, and the sum is rounded once. The
    gradient looks rows up.

    Args:
        x: (n, ...).
        index: int32 (n,): the segment of each row, in [0, count); negative ones count from the end, as in NumPy.
        count: how many segments there are.

    Returns:
        (count, ...), in the format of x.

    Raises:
        TypeError: an index of no integers, or a count that is none.
        ValueError: shapes that do not fit; of arrays, a segment outside [0, count).
    """
    _check_index(index)
    if len(shape_of(index)) != 1:
        raise ValueError(f"index has one axis, the rows of x, not {shape_of(index)}")
    return apply("scatter_add", index, x, rows=integer("count", count, 1))


def segment_mean(x: Value, index: Value, count: int) -> Value:
    """Means of the rows of x by segment, 0 of one without rows; arguments and errors as of `segment_sum`."""
    rows = segment_sum(np.ones(shape_of(index), np.float32), index, count)
    total = segment_sum(x, index, count)
    over = reshape(maximum(rows, 1.0), (shape_of(total)[0], *(1,) * (len(shape_of(total)) - 1)))
    return elementwise("divide", total, over)


def scatter_add(x: Value, index: Value, updates: Value) -> Value:
    """x with rows added at places: `x[index[i]] += updates[i]` for every i, places that come up again among them.

    The updates of a place are added first, as of `segment_sum`, and their sum to x.

    Args:
        x: (rows, ...).
        index: int32 in [0, rows), any shape.
        updates: (the shape of index, ...).

    Raises:
        TypeError: an index of no integers.
        ValueError: shapes that do not fit; of arrays, a place outside [0, rows).
    """
    _check_index(index)
    rows = shape_of(x)
    if 0 in rows[:1]:
        raise ValueError(f"x has no rows to add to: {rows}")
    if not rows or shape_of(updates) != (*shape_of(index), *rows[1:]):
        raise ValueError(
            f"updates {shape_of(updates)} must have the shape of index {shape_of(index)} and of a row of x {rows}"
        )
    return elementwise("add", x, apply("scatter_add", index, updates, rows=rows[0]))


def _check_index(index: Value) -> None:
    if (fmt := element_format(index)) != INT32:
        raise TypeError(f"index must be integers, the numbers of rows, not {format_name(fmt)}")
