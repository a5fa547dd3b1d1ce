"""Lost updates: changes too small for the spacing of the numbers they were added to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lowprec._pieces import pieces
from lowprec.processor import in_default_state
from lowprec.statistics.values import held_by_float64
from lowprec.types import Array


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


@in_default_state
def lost_updates(before: ArrayLike, update: ArrayLike, after: ArrayLike) -> LostUpdates:
    """Compares weights before and after an update with the change that was wanted.

    Args:
        before: Weights before.
        update: The change wanted, same shape; zeros, infinities and NaNs in it are left out.
        after: Weights after; a NaN there counts as a change, and makes `arrived` NaN.
    """
    arrays = [held_by_float64(a) for a in (before, update, after)]
    count = lost = 0
    scale = product = square = 0.0
    for w, wanted, now in _asked(arrays):
        count += wanted.size
        lost += int(np.count_nonzero(now == w))
        scale = max(scale, float(np.abs(wanted).max(initial=0.0)))  # keeps the squares within range
    if not count:
        return LostUpdates(0, 0, float("nan"), float("nan"))
    with np.errstate(invalid="ignore"):
        for w, wanted, now in _asked(arrays):
            product += float(np.sum((now - w) / scale * (wanted / scale)))
            square += float(np.sum((wanted / scale) ** 2))
    return LostUpdates(count, lost, lost / count, product / square)


def _asked(arrays: Sequence[Array]) -> Iterator[list[NDArray[np.float64]]]:
    """Weights, updates and new weights where a change was wanted, a piece at a time."""
    for _, (w, wanted, now) in pieces(*arrays, dtype=np.float64):
        asked = np.isfinite(wanted) & (wanted != 0)
        yield [w[asked], wanted[asked], now[asked]]
