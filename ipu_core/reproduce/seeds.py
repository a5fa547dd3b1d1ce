"""What a few seeds can tell: differences of trainings beside a bound, by Student's t."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

STUDENT = (6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833)
"""Student's t of 1, 2, ... degrees of freedom, which chance exceeds in one of twenty cases."""

SAME = 0.002
"""How near to 32 bits is as good: Zamirai et al. (arXiv 2010.06192) call it so from 0.1 % below to 0.2 % above (of an
accuracy; here it is of a loss)."""


def room(values: Sequence[float]) -> float:
    """How far above, or below, the mean of these the mean over all seeds may lie; infinite for one seed.

    Chance goes beyond it in one case of twenty, to each side.
    """
    if len(values) < 2:
        return math.inf
    # the last one for more of them too: it errs to the careful side
    student = STUDENT[min(len(values) - 2, len(STUDENT) - 1)]
    return student * float(np.std(values, ddof=1)) / math.sqrt(len(values))


def above(values: Sequence[float], bound: float = 0.0) -> bool | None:
    """Whether the mean over all seeds is above a bound; None: these seeds do not tell."""
    mean, wide = float(np.mean(values)), room(values)
    if mean - wide > bound:
        return True
    return False if mean + wide <= bound else None


def below(values: Sequence[float], bound: float = 0.0) -> bool | None:
    """Whether the mean over all seeds is below a bound; None: these seeds do not tell."""
    return above([-value for value in values], -bound)


def every(*verdicts: bool | None) -> bool | None:
    """Whether all hold: one that does not decides, and then one that is not told."""
    if any(each is False for each in verdicts):
        return False
    return None if any(each is None for each in verdicts) else True


def beside(found: Mapping[str, Sequence[float]], row: str, other: str) -> list[float]:
    """By how much a row is above another, seed by seed: what a seed does to both is in neither."""
    return [one - two for one, two in zip(found[row], found[other], strict=True)]


def recovered(found: Mapping[str, Sequence[float]], row: str, hurt: str, whole: str, left: float) -> bool | None:
    """Whether a row is above the whole by no more than so large a share of what the hurt one is above it."""
    # one number a seed, so that what all three share in a seed counts once
    pairs = zip(beside(found, row, whole), beside(found, hurt, whole), strict=True)
    return below([one - left * lost for one, lost in pairs])
