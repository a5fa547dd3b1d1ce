"""Sums of rows by the number of a segment: messages of a graph's edges to its nodes, nodes to their graph."""

from __future__ import annotations

from typing import Any

import numpy as np

from ipu_core.ir.block import format_name
from ipu_core.ir.ops import INT32
from ipu_core.ir.trace.eager import as_array
from ipu_core.ir.trace.values import Traced, Value, apply, elementwise, reshape, scope, shape_of
from ipu_core.nn.operations import element_format, maximum
from lowprec import Accumulation, Rounding
from lowprec.checks import expect, integer
from lowprec.sums.scatter import prepare_scatter


def segment_sum(x: Value, index: Value, count: int, *, accumulation: Accumulation | None = None) -> Value:
    """Sums of the rows of x by segment; a segment without rows gives 0.

    The rows of a segment are added one after another, in their order, in float32 (float64 arrays in that), and the sum
    is rounded once. The gradient looks rows up.

    Args:
        x: (n, ...).
        index: int32 (n,): the segment of each row, in [0, count).
        count: how many segments there are.
        accumulation: another order, of float32 and narrower rows: ``Accumulation(1, accumulate="float16")`` rounds, to
            nearest, after every addition to a segment, ``Accumulation(8, accumulate="float16")`` after every eighth.
            The result has the format of x all the same. None: in float32.

    Returns:
        (count, ...), in the format of x.

    Raises:
        TypeError: an index of no integers, or a count that is none; an accumulation of float64 arrays.
        IndexError: of arrays, a segment outside [0, count).
        ValueError: shapes that do not fit; an accumulation of several parts, or with a format of its result.
    """
    _check_rows(index)
    if accumulation is None:
        return apply("scatter_add", index, x, rows=integer("count", count, 1))
    expect(Accumulation, accumulation=accumulation)
    if not isinstance(x, Traced) and as_array(x).dtype == np.float64:
        raise TypeError("accumulation is of float32 and narrower rows: x.astype(np.float32)")
    prepare_scatter("float32", accumulation, Rounding())  # refuses an order that such sums have not
    if accumulation.out != accumulation.accumulate or accumulation.stages is not None:
        raise ValueError(
            "a segment's sum has the format of x, and no stages: leave out= and stages= of its Accumulation out"
        )
    return apply("scatter_add", index, x, rows=integer("count", count, 1), accumulation=accumulation)


def segment_max(x: Value, index: Value, count: int) -> Value:
    """The largest of the rows of x by segment, element by element, NaN if one is; a segment without rows gives 0.

    The gradient goes to the rows that have the maximum, in equal parts. Arguments and errors as of `segment_sum`.
    """
    _check_rows(index)
    return apply("scatter_max", index, x, rows=integer("count", count, 1))


def segment_mean(x: Value, index: Value, count: int) -> Value:
    """Means of the rows of x by segment, 0 of one without rows; arguments and errors as of `segment_sum`.

    Sums and means are float32's, whatever the precision, as norms are: a sum of halves would end at 65,504.
    """
    if isinstance(fmt := element_format(x), str):
        raise TypeError(f"segment_mean takes floats, whose means it gives, not {fmt}")
    if not isinstance(x, Traced):
        array = as_array(x)
        wide = array if array.dtype == np.float64 else array.astype(np.float32)
        return _mean(wide, index, count).astype(array.dtype)
    with scope(x, family="norm"):
        return _mean(x, index, count)


def _mean(x: Any, index: Value, count: int) -> Any:
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


def _check_rows(index: Value) -> None:
    _check_index(index)
    if len(shape_of(index)) != 1:
        raise ValueError(f"index has one axis, the rows of x, not {shape_of(index)}")


def _check_index(index: Value) -> None:
    if (fmt := element_format(index)) != INT32:
        raise TypeError(f"index must be integers, the numbers of rows, not {format_name(fmt)}")
