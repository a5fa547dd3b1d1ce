"""A tile's arithmetic on rows and elements at indices: those of one index are added in their order, or the largest.

Sums are float32, from +0; whoever calls inspects them for exceptions (see `chip.tile.check_sum`).
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ipu_core.chip.tile_integers import flat_indices
from lowprec import Accumulation, Rounding
from lowprec.sums.scatter import prepare_scatter, row_numbers

Array = NDArray[Any]
_ASCENDING = Accumulation(group=None)


def scatter_add(
    indices: Array, updates: Array, out: Array, first: int = 0, rows: int | None = None,
    accumulation: Accumulation | None = None,
) -> None:  # fmt: skip
    """Adds rows at indices in float32, in the order in which they stand, from +0.

    Args:
        indices: integers of any shape; negative ones count from the last row.
        updates, out: (vertex axes.., indices, n) and (.., rows, n); `out` is float32.
        first, rows: `out` holds the rows of a result from the first one on, of so many; None: all of them.
        accumulation: Where partial sums are rounded, to nearest, and to what; None: nowhere.

    Raises:
        IndexError: an index outside the rows.
    """
    numbers, held = row_numbers(indices), out.shape[-2]
    # a run of rows: indices elsewhere are other tiles' and are left out
    if rows is not None and held < rows:
        places, here = in_run(numbers, first, held, rows)
        numbers, updates = places[here], updates[..., here, :]
    order = _ASCENDING if accumulation is None else accumulation.with_types(accumulation.accumulate, "float32")
    call = prepare_scatter(updates.dtype, order, Rounding())
    call(updates, numbers, held, out=out)


def scatter_max(indices: Array, updates: Array, out: Array, first: int = 0, rows: int | None = None) -> None:
    """The largest of the rows at each index, element by element, NaN if one is; 0 where there is none.

    Args:
        indices, first, rows: as of `scatter_add`.
        updates, out: (vertex axes.., indices, n) and (.., rows, n), of one dtype.

    Raises:
        IndexError: an index outside the rows.
    """
    held = out.shape[-2]
    places, here = in_run(row_numbers(indices), first, held, held if rows is None else rows)
    places, updates = places[here], updates[..., here, :]
    # Sorted, rows of an index lie side by side, and each run is one call.
    order = np.argsort(places, kind="stable")
    places, begins = np.unique(places[order], return_index=True)
    out[...] = 0
    if places.size:
        largest = np.maximum.reduceat(updates[..., order, :], begins, axis=-2)
        # Which of two zeros, and which NaN, differs between processors.
        largest[largest == 0] = 0
        largest[np.isnan(largest)] = np.nan
        out[..., places, :] = largest


def in_run(indices: Array, first: int, held: int, rows: int) -> tuple[Array, Array]:
    """Places in a run of rows, of which a tile holds so many from the first one on, and which of them are in it.

    Raises:
        IndexError: an index outside all rows; negative ones count from the last.
    """
    if indices.size and not -rows <= indices.min() <= indices.max() < rows:
        raise IndexError(f"indices from {indices.min()} to {indices.max()} are out of bounds for {rows} rows")
    places = indices % rows - first
    return places, (places >= 0) & (places < held)


def put_along(indices: Array, updates: Array, out: Array) -> None:
    """Adds elements at the indices of every row in float32, in the order in which they stand, from +0.

    Args:
        indices, updates: integers and floats (.., k).
        out: (.., n) float32.

    Raises:
        IndexError: an index outside [0, n).
    """
    places = flat_indices(indices, out.shape[-1]).reshape(-1)
    # all rows as one table of single elements: `scatter_add` has the stated order already
    total = np.empty((out.size, 1), np.float32)
    scatter_add(places, updates.reshape(-1, 1), total)
    out[...] = total.reshape(out.shape)
