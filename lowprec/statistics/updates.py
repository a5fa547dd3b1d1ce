"""Lost updates: changes too small for the spacing of the numbers they were added to."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from lowprec.statistics.measures import as_float64


class LostUpdates(NamedTuple):
    """What became of an update of many weights.

    Attributes:
        wanted: Weights whose update is finite and not zero.
        lost: Those of them that did not change.
        share: lost / wanted, from 0 to 1; NaN if no change was wanted.
        arrived: The part of the wanted change that happened, <after - before, update> / <update, update>: 1 for exact
            arithmetic, 0 if everything was lost, 1 on average for an unbiased rounding; NaN as above.
    """

    wanted: int
    lost: int
    share: float
    arrived: float


def lost_updates(before: ArrayLike, update: ArrayLike, after: ArrayLike) -> LostUpdates:
    """Compares weights before and after an update with the change that was wanted.

    Args:
        before: Weights before.
        update: The change wanted, same shape; zeros, infinities and NaNs in it are left out.
        after: Weights after; a NaN there counts as a change, and makes `arrived` NaN.
    """
    w, wanted, now = np.broadcast_arrays(*(as_float64(a) for a in (before, update, after)))
    asked = np.isfinite(wanted) & (wanted != 0)
    count = int(np.count_nonzero(asked))
    if not count:
        return LostUpdates(0, 0, float("nan"), float("nan"))
    w, wanted, now = w[asked], wanted[asked], now[asked]
    lost = int(np.count_nonzero(now == w))
    with np.errstate(invalid="ignore"):
        scale = np.abs(wanted).max()  # keeps the squares within range
        arrived = np.sum((now - w) / scale * (wanted / scale)) / np.sum((wanted / scale) ** 2)
    return LostUpdates(count, lost, lost / count, float(arrived))
