"""The histogram of exponents: in which binades the values of an array lie."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lowprec.statistics.measures import as_float64


class ExponentHistogram(NamedTuple):
    """How many values lie in each binade.

    Attributes:
        exponents: int64, consecutive, ascending: floor(log2(|x|)); empty if there is no finite non-zero value.
        counts: int64, values with that exponent.
        zeros, infinities, nans: Values that have no exponent.
    """

    exponents: NDArray[np.int64]
    counts: NDArray[np.int64]
    zeros: int
    infinities: int
    nans: int

    @property
    def size(self) -> int:
        """Number of values counted, all kinds together."""
        return int(self.counts.sum()) + self.zeros + self.infinities + self.nans


def exponent_histogram(x: ArrayLike) -> ExponentHistogram:
    """Counts the values of x by their binade, floor(log2(|x|)); subnormal values count where their value lies."""
    values = as_float64(x).ravel()
    zeros, infinities, nans = (int(np.count_nonzero(m)) for m in (values == 0, np.isinf(values), np.isnan(values)))
    exponents = np.frexp(values[np.isfinite(values) & (values != 0)])[1].astype(np.int64) - 1
    if not exponents.size:
        empty = np.zeros(0, np.int64)
        return ExponentHistogram(empty, empty, zeros, infinities, nans)
    least, most = int(exponents.min()), int(exponents.max())
    counts = np.bincount(exponents - least).astype(np.int64)
    return ExponentHistogram(np.arange(least, most + 1), counts, zeros, infinities, nans)
