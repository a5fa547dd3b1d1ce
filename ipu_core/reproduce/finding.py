"""A published claim beside what was measured here, and the verdict."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ipu_core.train.table import Table

Progress = Callable[[str], None]
VERDICTS = {True: "reproduced", False: "does not show", None: "no verdict"}


@dataclass(frozen=True)
class Finding:
    """One claim and what became of it.

    Attributes:
        claim: what the source says, and what would show it here.
        ours: what was measured.
        holds: whether it shows; None: there is no verdict, `ours` says why.
    """

    claim: str
    ours: str
    holds: bool | None


@dataclass(frozen=True)
class Reproduction:
    """A reproduction of a paper's measurement.

    Attributes:
        name: what the command line calls it.
        title: the effect.
        source: the paper.
        run: (seeds, share of the usual length, progress) -> findings.
    """

    name: str
    title: str
    source: str
    run: Callable[[Sequence[int], float, Progress], list[Finding]]


def table(findings: Sequence[Finding]) -> Table:
    """The findings in lines."""
    rows = tuple((each.claim, each.ours, VERDICTS[each.holds]) for each in findings)
    return Table("", ("published", "here", "verdict"), rows)


def spread(values: Sequence[float], digits: int = 3) -> str:
    """The mean of some seeds' figures and how far they lie apart."""
    if len(values) == 1:
        return f"{values[0]:.{digits}f}"
    # of a sample: seeds stand for all seeds
    return f"{np.mean(values):.{digits}f} ± {np.std(values, ddof=1):.{digits}f}"


def apart(one: Sequence[float], other: Sequence[float], errors: float = 2.0) -> bool | None:
    """Whether the mean of one is above the other's, seed by seed, by standard errors; None: one seed does not say."""
    each = [a - b for a, b in zip(one, other, strict=True)]
    if len(each) < 2:
        return None
    return float(np.mean(each)) > errors * float(np.std(each, ddof=1)) / math.sqrt(len(each))


def mean_of(results: dict[Any, list[float]]) -> dict[Any, float]:
    """The mean over seeds of each row."""
    return {name: float(np.mean(values)) for name, values in results.items()}
