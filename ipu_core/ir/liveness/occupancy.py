"""Occupancy: how many bytes live at a time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt


def occupancy(spans: Iterable[tuple[int, int]], sizes: Sequence[int], count: int) -> npt.NDArray[np.int64]:
    """The bytes at each of `count` places, where arrays of these sizes live each from its first to its last place."""
    first, last = np.array(list(spans), np.int64).reshape(-1, 2).T
    change = np.zeros(count + 2, np.int64)
    np.add.at(change, first, sizes)
    np.subtract.at(change, last + 1, sizes)
    return change.cumsum()[:count]
