"""Rows added at indices in a stated order: the gradient of looking up rows of a table."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from lowprec.arrays import into, whole_array
from lowprec.backends import cpu
from lowprec.caching import cached
from lowprec.formats import FormatLike
from lowprec.random import KeyLike
from lowprec.reduction import Prepared, operand_dtype, prepared
from lowprec.sums import accumulator, first_element, order

Array = npt.NDArray[Any]
MOST_ROWS = 1 << 48  # more than any memory holds, and few enough to be counted in bytes


def scatter_add(
    indices: npt.ArrayLike,
    updates: npt.ArrayLike,
    rows: int,
    *,
    accumulate: FormatLike = "float32",
    group: int | None = None,
    out_format: FormatLike | None = None,
    rounding: str = "nearest_even",
    key: KeyLike | None = None,
    random_bits: int = 16,
    overflow: str | None = None,
    infinite_input: str | None = None,
    offset: tuple[int, int] = (0, 0),
    out: Array | None = None,
) -> Array:
    """Row r of the result is the sum of the updates whose index is r, in the order in which they stand.

    It is `reduce_sum(updates[indices == r], axis=0, offset=(r, 0))` for every r: a float32 chain from +0, ascending,
    rounded to `accumulate` after every `group` additions to that row and at its end, with the random bits of that row.

    Args:
        indices: integers of any shape; negative ones count from the last row.
        updates: float32 or a narrower float array, the shape of the indices and then the rows' own axes.
        rows: rows of the result.
        accumulate: the format that a row's partial sums are rounded to.
        group: additions to a row between two roundings; None: one rounding at the end.
        out_format: the result's format; None: `accumulate`.
        offset: row and column of the result's first element among the random bits.
        rounding, key, random_bits, overflow, infinite_input, out: as `lowprec.matmul`.

    Returns:
        (rows, ..) in out_format's storage dtype; +0 where nothing is added.

    Raises:
        IndexError: an index outside the rows.
        TypeError: indices or rows that are no integers; updates or a result format as `matmul` refuses them.
        ValueError: shapes that do not match; rows outside [0, 2^48); other arguments as `matmul`.
    """
    numbers, terms, (row, column) = whole_array(indices), whole_array(updates), first_element(offset)
    rows = _row_count(rows)
    if numbers.dtype.kind not in "iu":
        raise TypeError(f"indices must be integers, not {numbers.dtype}")
    if numbers.dtype == np.uint64 and numbers.size and int(numbers.max()) >= rows:  # before int64 turns it negative
        raise IndexError(f"index {int(numbers.max())} is out of bounds for {rows} rows")
    own = terms.shape[numbers.ndim :]
    if terms.shape[: numbers.ndim] != numbers.shape:
        raise ValueError(f"updates of shape {terms.shape} do not begin with the indices' shape {numbers.shape}")
    call = prepare_scatter(
        *(terms.dtype, accumulate, group, out_format, rounding, random_bits, overflow, infinite_input)
    )
    width = math.prod(own)
    result = call(terms.reshape(numbers.size, width), row_numbers(numbers), rows, key, row, column).reshape(rows, *own)
    return result if out is None else into(out, result)


@cached
def prepare_scatter(
    dtype: npt.DTypeLike,
    accumulate: FormatLike = "float32",
    group: int | None = None,
    out_format: FormatLike | None = None,
    rounding: str = "nearest_even",
    random_bits: int = 16,
    overflow: str | None = None,
    infinite_input: str | None = None,
) -> Prepared:
    """The checked form of `scatter_add` for updates of a dtype.

    Returns:
        f(updates, indices, rows, key=None, row=0, column=0, batch=0, out=None): updates (v.., k, n), indices as
        `row_numbers` gives them, result (v.., rows, n). row, column and batch are the vertices' places, as of
        `lowprec.matmul_part`.

    Raises:
        TypeError, ValueError: as `scatter_add`.
    """
    sums = accumulator(accumulate, out_format, rounding, random_bits, overflow, infinite_input)
    specification = operand_dtype(dtype), sums, order(group, 1, 1, "sequential")
    return prepared("scatter", cpu.scatter, specification, (None, 0, 0, 0, None), required=3)


def _row_count(rows: object) -> int:
    """The checked number of rows."""
    if not isinstance(rows, (int, np.integer)) or isinstance(rows, bool):
        raise TypeError(f"rows must be an integer in [0, 2^48), not {rows!r}")
    if not 0 <= rows < MOST_ROWS:
        raise ValueError(f"rows must be an integer in [0, 2^48), not {rows}")
    return int(rows)


def row_numbers(indices: Array) -> npt.NDArray[np.int64]:
    """Indices as the prepared call takes them: flat int64 in C order."""
    return np.ascontiguousarray(indices, np.int64).reshape(-1)
