"""Underflow: finite numbers that rounding made zeros. The one place that says which they are; others ask here."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lowprec._pieces import pieces
from lowprec.backends.owner import is_cupy, load
from lowprec.foreign import takes_foreign
from lowprec.processor import in_default_state
from lowprec.statistics.values import real_operands


class Underflow(NamedTuple):
    """How many numbers became zero.

    Attributes:
        nonzero: Those that are not zero, and finite.
        zeroed: Those of them that became zero.
        share: zeroed / nonzero, from 0 to 1; NaN if there were none.
    """

    nonzero: int
    zeroed: int
    share: float


@takes_foreign
@in_default_state
def underflow(exact: ArrayLike, rounded: ArrayLike) -> Underflow:
    """Counts the finite numbers other than zero that rounding turned into a zero of either sign.

    Infinities and NaN are left out: where they become zero that is not because they were small. What is subnormal has
    not underflowed.

    Args:
        exact: What should have been, of any shape; taken as float64, below whose smallest number nothing is seen.
        rounded: What it became, broadcast with it.

    Raises:
        TypeError: complex, bool or extended precision, masked elements, arrays on a GPU and here.
        ValueError: integers beyond 2^53; shapes that do not go together.
    """
    exact, rounded = real_operands(exact, rounded)
    nonzero = zeroed = 0
    if is_cupy(exact) or is_cupy(rounded):
        kept, zeroed = load("cuda").counts("underflow", exact, rounded).tolist()
        nonzero = kept + zeroed
    else:
        for _, (x, y) in pieces(exact, rounded, dtype=np.float64):
            nonzero += int(np.count_nonzero(np.isfinite(x) & (x != 0)))
            zeroed += int(np.count_nonzero(underflowed(x, y)))
    return Underflow(nonzero, zeroed, zeroed / nonzero if nonzero else math.nan)


def underflowed(exact: NDArray[np.float64], rounded: NDArray[Any] | float) -> NDArray[np.bool_]:
    """Which numbers became zero, elementwise (see `underflow`)."""
    return np.isfinite(exact) & np.not_equal(exact, 0) & np.equal(rounded, 0)
