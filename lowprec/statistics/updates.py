"""Lost updates: changes that were wanted and, after rounding, left the number they were added to as it was.

This is the one place that says which they are; whatever counts them asks here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lowprec import backends
from lowprec._pieces import pieces
from lowprec.processor import in_default_state
from lowprec.statistics.values import held_by_float64
from lowprec.types import Array

Mask = NDArray[np.bool_]
SAFE = 2.0**960  # sums below it, and above its reciprocal, keep what counts within float64's range when they are added


class LostUpdates(NamedTuple):
    """What became of an update of many weights.

    Attributes:
        wanted: Weights whose update counts (see `lost_updates`).
        lost: Those of them that did not change.
        share: lost / wanted, from 0 to 1; NaN if no change was wanted.
        arrived: The part of the wanted change that happened, <after - before, update> / <update, update>: 1 for exact
            arithmetic, 0 if everything was lost, 1 on average for an unbiased rounding; NaN as above.
    """

    wanted: int
    lost: int
    share: float
    arrived: float


class UpdateCount(NamedTuple):
    """What became of updates, as sums over weights and steps: `LostUpdates` before the divisions.

    Attributes:
        wanted: Weights whose update counts (see `lost_updates`).
        lost: Those of them that did not change.
        squared: Sum of the squares of the wanted changes, in float64, times 4^-exponent.
        arrived: Sum of wanted change times change made, times 4^-exponent; equals `squared` on average where rounding
            is unbiased.
        exponent: 0 but where these sums of changes of its magnitude, of 1e200 for example, leave float64's range.
    """

    wanted: int = 0
    lost: int = 0
    squared: float = 0.0
    arrived: float = 0.0
    exponent: int = 0

    @staticmethod
    @in_default_state
    def of(before: ArrayLike, update: ArrayLike, after: ArrayLike) -> UpdateCount:
        """Counts one update; arguments, special values and errors as of `lost_updates`."""
        arrays = [held_by_float64(a) for a in (before, update, after)]
        plain = _counted(arrays, 1.0)
        within = 1 / SAFE < plain.squared < SAFE
        if not plain.wanted or (within and abs(plain.arrived) < SAFE):
            return plain
        exponent = math.frexp(_largest(arrays))[1] - 1
        found = _counted(arrays, 2.0**exponent)
        return plain if within and not math.isfinite(found.arrived) else found._replace(exponent=exponent)

    def plus(self, other: UpdateCount) -> UpdateCount:
        """The sum of two counts."""
        exponent = max((each.exponent for each in (self, other) if each.wanted), default=0)
        one, two = (2 * (each.exponent - exponent) for each in (self, other))
        return UpdateCount(
            self.wanted + other.wanted,
            self.lost + other.lost,
            math.ldexp(self.squared, one) + math.ldexp(other.squared, two),
            math.ldexp(self.arrived, one) + math.ldexp(other.arrived, two),
            exponent,
        )

    @property
    def share(self) -> float:
        """lost / wanted, from 0 to 1; NaN if no change was wanted."""
        return self.lost / self.wanted if self.wanted else math.nan

    @property
    def kept(self) -> float:
        """arrived / squared, how much of the wanted change happened (see `LostUpdates`); NaN if none was wanted."""
        return self.arrived / self.squared if self.squared else math.nan


@in_default_state
def lost_updates(before: ArrayLike, update: ArrayLike, after: ArrayLike) -> LostUpdates:
    """Compares weights before and after an update with the change that was wanted.

    An update counts where it is not zero and finite, and so is not the fault of what made it, and where the weight
    before is finite, since an infinity or NaN stays what it is in exact arithmetic too. It does so however small it is
    beside the weight or in the weight's format. It is lost where the weight after equals the one before; +0 and -0 are
    equal. A weight that became infinite or NaN has changed, and makes `arrived` infinite or NaN.

    Args:
        before: Weights before, of any shape; in any dtype of numbers that float64 holds.
        update: The change wanted, unrounded: what exact arithmetic would add. Broadcast with the weights.
        after: Weights after, broadcast too.

    Raises:
        TypeError: complex, bool or extended precision, masked elements, GPU arrays.
        ValueError: integers beyond 2^53; shapes that do not go together.
    """
    arrays = [held_by_float64(a) for a in (before, update, after)]
    # A pass of its own: the unit must be the same for all pieces that are added up.
    count = _counted(arrays, _largest(arrays) or 1.0)  # keeps the squares within range
    return LostUpdates(count.wanted, count.lost, count.share, count.kept)


def wanted_and_lost(before: NDArray[np.float64], update: NDArray[np.float64], after: Array) -> tuple[Mask, Mask]:
    """Which updates count, and which of them are lost, elementwise (see `lost_updates`)."""
    # Before it is seen whether anything arrived: what counts must not depend on the rounding.
    wanted = np.isfinite(update) & (update != 0) & np.isfinite(before)
    return wanted, wanted & (before == after)


def changes(
    base: Array | None, direction: Array, scale: float, before: Array, after: Array, count: int, step: int
) -> tuple[int, int]:
    """How many of the updates before -> base + scale * direction count, and how many are lost, in one compiled pass.

    The update is (base - before) + scale * direction, in float64. Which count and which are lost: see `lost_updates`.

    Args:
        base, direction, before, after: float32, float16 or bfloat16, of one size. base None: it is `before`.
        scale: of the direction.
        count, step: of so many elements, a step apart and going round at the end.

    Returns:
        (wanted, lost).
    """
    found: tuple[int, int] = backends.current().changes(base, direction, scale, before, after, count, step)
    return found


def _largest(arrays: Sequence[Array]) -> float:
    """The largest magnitude of a change that was wanted; 0: there is none."""
    return max((float(np.abs(change).max(initial=0.0)) for _, change, _ in _asked(arrays)), default=0.0)


def _counted(arrays: Sequence[Array], unit: float) -> UpdateCount:
    """The count of an update whose squares and products are taken in a unit."""
    total = UpdateCount()
    with np.errstate(invalid="ignore", over="ignore"):
        for w, change, now in _asked(arrays):
            part: Any = change / unit
            # Both in the same unit squared, which drops out of their quotient.
            squared, arrived = np.sum(part**2), np.sum((now - w) / unit * part)
            # +0 and -0 are equal: a sign alone has not arrived.
            lost = int(np.count_nonzero(now == w))
            total = total.plus(UpdateCount(change.size, lost, float(squared), float(arrived)))
    return total


def _asked(arrays: Sequence[Array]) -> Iterator[list[NDArray[np.float64]]]:
    """Weights, updates and new weights where a change was wanted, a piece at a time."""
    for _, (w, change, now) in pieces(*arrays, dtype=np.float64):
        asked, _ = wanted_and_lost(w, change, now)
        # Usually every weight has an update: three copies are saved.
        yield [w, change, now] if asked.all() else [w[asked], change[asked], now[asked]]
