"""Rows added at indices in a stated order: the gradient of looking up rows of a table (`scatter_add`)."""

from __future__ import annotations

import math
from typing import Any, Protocol, Unpack

import numpy as np
import numpy.typing as npt

from lowprec import backends, threads
from lowprec._caching import cached
from lowprec.arrays import whole_array
from lowprec.backends.owner import is_cupy
from lowprec.foreign import takes_foreign
from lowprec.random import KeyLike
from lowprec.types import Array
from lowprec.values.accumulation import Accumulation
from lowprec.values.keys import ORIGIN, Coordinates, first_element
from lowprec.values.keywords import RoundingLike, RowKeywords, as_sum, refuse_unhashable
from lowprec.values.operands import operand_dtype
from lowprec.values.outputs import into
from lowprec.values.rounding import Rounding
from lowprec.values.sum_rules import sum_rules

MOST_ROWS = 1 << 48  # more than any memory holds, and few enough to be counted in bytes


class PreparedScatter(Protocol):
    """Checked sums of updates (v.., k, n) into rows."""

    def __call__(
        self,
        updates: Array,
        indices: npt.NDArray[np.int64],
        rows: int,
        key: KeyLike | None = None,
        place: Coordinates = ORIGIN,
        out: Array | None = None,
    ) -> Array: ...


@takes_foreign
def scatter_add(
    indices: npt.ArrayLike,
    updates: npt.ArrayLike,
    rows: int,
    *,
    accumulation: Accumulation | None = None,
    rounding: RoundingLike = "nearest_even",
    key: KeyLike | None = None,
    offset: tuple[int, int] = (0, 0),
    out: Array | None = None,
    **keywords: Unpack[RowKeywords],
) -> Array:
    """Row r of the result is the sum of the updates whose index is r, in the order in which they stand.

    It is `reduce_sum(updates[indices == r], axis=0, offset=(r, 0))` for every r: a float32 chain from +0, ascending,
    rounded to `accumulate` after every `group` additions to that row and at its end, with the random bits of that row.

    Args:
        indices: integers of any shape; negative ones count from the last row.
        updates: float32 or a narrower float array, the shape of the indices and then the rows' own axes.
        rows: rows of the result.
        accumulation: of one part, ascending, as a value; or the keywords accumulate, the format that a row's partial
            sums are rounded to ("float32"), group, additions to a row between two roundings (None: one rounding at the
            end), and out_format (None: `accumulate`).
        offset: row and column of the result's first element among the random bits.
        rounding, key, out: as `lowprec.matmul`, with the keywords random_bits, overflow and infinite_input.

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
    if is_cupy(numbers) != is_cupy(terms):
        raise TypeError("indices and updates lie on a GPU (CuPy arrays) and here: move them together")
    if numbers.dtype == np.uint64 and numbers.size and int(numbers.max()) >= rows:  # before int64 turns it negative
        raise IndexError(f"index {int(numbers.max())} is out of bounds for {rows} rows")
    own = terms.shape[numbers.ndim :]
    # Not broadcast: updates and indices in the wrong order would often fit that way.
    if terms.shape[: numbers.ndim] != numbers.shape:
        raise ValueError(f"updates of shape {terms.shape} do not begin with the indices' shape {numbers.shape}")
    try:
        call = _from_keywords(terms.dtype, accumulation, rounding, **keywords)
    except TypeError:
        refuse_unhashable(rounding=rounding, **keywords)
        raise
    width = math.prod(own)
    # Axes of a row are joined: its elements are columns, whose numbers are part of their random bits.
    lines, place = terms.reshape(numbers.size, width), Coordinates(row, column)
    flat = numbers.astype(np.int64).reshape(-1) if is_cupy(numbers) else row_numbers(numbers)
    result = call(lines, flat, rows, key, place)
    if is_cupy(result):
        return backends.load("cuda").shaped(result, (rows, *own), out)  # type: ignore[no-any-return]
    result = result.reshape(rows, *own)
    return result if out is None else into(out, result)


@cached
def _from_keywords(
    dtype: np.dtype[Any], accumulation: Accumulation | None, rounding: RoundingLike, **keywords: Any
) -> PreparedScatter:
    return prepare_scatter(dtype, *as_sum(RowKeywords, None, accumulation, rounding, **keywords))


@cached
def prepare_scatter(dtype: npt.DTypeLike, accumulation: Accumulation, rounding: Rounding) -> PreparedScatter:
    """The checked form of `scatter_add` for updates of a dtype.

    Returns:
        f(updates, indices, rows, key=None, place=ORIGIN, out=None): updates (v.., k, n), indices as `row_numbers` gives
        them, result (v.., rows, n).

    Raises:
        TypeError, ValueError: as `scatter_add`.
    """
    # How many updates a row gets is known from the indices alone: a cut into parts would depend on the data.
    if accumulation.splits != 1 or accumulation.adder != "sequential":
        raise ValueError(f"scatter_add makes sums of one part, ascending, not by {accumulation.words()}")
    rules = sum_rules(accumulation, rounding)
    chosen, thread_count = backends.prepared("scatter", operand_dtype(dtype), accumulation, rules), threads.current

    def call(
        updates: Array,
        indices: npt.NDArray[np.int64],
        rows: int,
        key: KeyLike | None = None,
        place: Coordinates = ORIGIN,
        out: Array | None = None,
    ) -> Array:
        given = updates, indices, rows, key, place.row, place.column, place.batch
        try:
            result: Array = chosen(updates)(*given, out, thread_count())
        except IndexError as error:  # the loops see the indices first
            raise IndexError(f"scatter_add: {error}") from None
        return result

    return call


def _row_count(rows: object) -> int:
    """The checked number of rows."""
    if not isinstance(rows, (int, np.integer)) or isinstance(rows, bool):
        raise TypeError(f"rows must be an integer in [0, 2^48), not {rows!r}")
    if not 0 <= rows < MOST_ROWS:
        raise ValueError(f"rows must be an integer in [0, 2^48), not {rows}")
    return int(rows)


def row_numbers(indices: Array) -> npt.NDArray[np.int64]:
    """Indices as the prepared call takes them: flat, aligned, int64, in C order."""
    flat = np.ascontiguousarray(indices, np.int64).reshape(-1)
    # The loops read whole int64s, which may not lie at any address.
    return flat if flat.flags.aligned else flat.copy()
