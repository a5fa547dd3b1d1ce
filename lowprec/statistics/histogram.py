"""The histogram of exponents: in which binades the values of an array lie."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lowprec._pieces import pieces
from lowprec.backends.owner import is_cupy, load
from lowprec.foreign import takes_foreign
from lowprec.processor import in_default_state
from lowprec.statistics.values import real_operands

_LEAST = -1074  # float64's smallest subnormal
_BINADES = 1074 + 1024


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


@takes_foreign
@in_default_state
def exponent_histogram(x: ArrayLike) -> ExponentHistogram:
    """Counts the values of x by their binade, floor(log2(|x|)); subnormal values count where their value lies.

    Raises:
        TypeError: complex, bool or extended precision x, masked elements.
        ValueError: integers beyond 2^53.
    """
    (x,) = real_operands(x)
    # A place for every binade of float64, so that pieces are added up whatever they hold.
    counts = np.zeros(_BINADES, np.int64)
    zeros = infinities = nans = 0
    if is_cupy(x):
        (zeros, infinities, nans), counts = np.split(load("cuda").counts("binade", x), [3])
    else:
        for _, (values,) in pieces(x, dtype=np.float64):
            zeros += int(np.count_nonzero(values == 0))
            infinities += int(np.count_nonzero(np.isinf(values)))
            nans += int(np.count_nonzero(np.isnan(values)))
            exponents = np.frexp(values[np.isfinite(values) & (values != 0)])[1] - 1
            counts += np.bincount(exponents - _LEAST, minlength=_BINADES)
    met = np.flatnonzero(counts)
    # Without the empty ends; empty binades in between stay, so that the exponents are consecutive.
    found = slice(met[0], met[-1] + 1) if met.size else slice(0, 0)
    return ExponentHistogram(
        np.arange(_LEAST, _LEAST + _BINADES)[found], counts[found], int(zeros), int(infinities), int(nans)
    )
