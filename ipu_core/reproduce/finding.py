"""A published claim beside what was measured here, and the verdict."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ipu_core.train.table import Table

Progress = Callable[[str], None]
VERDICTS = {True: "reproduced", False: "does not show", None: "no verdict"}
WIDTHS = (54, 44)
"""Characters of a printed claim and of what was measured: with the verdict, 120 in a line."""


@dataclass(frozen=True)
class Finding:
    """One claim and what became of it.

    Attributes:
        claim: what the source says, and what would show it here.
        ours: what was measured.
        holds: whether it shows; None: there is no verdict, `ours` says why.
        seeds: where seeds decide it, how many there were (see `seeds.above`): a None is then theirs.
    """

    claim: str
    ours: str
    holds: bool | None
    seeds: int | None = None

    @property
    def verdict(self) -> str:
        """In words."""
        if self.holds is None and self.seeds is not None:
            return "one seed is not enough" if self.seeds == 1 else f"{self.seeds} seeds do not tell"
        return VERDICTS[self.holds]


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


class Findings(Table):
    """A table of findings whose long cells take several lines where it is printed."""

    def __str__(self) -> str:
        lines = list[tuple[str, ...]]()
        for claim, ours, verdict in self.rows:
            parts = [
                textwrap.wrap(text, width, subsequent_indent="  ")
                for text, width in zip((claim, ours), WIDTHS, strict=True)
            ]
            lines += itertools.zip_longest(*parts, [verdict], fillvalue="")
        # all columns to the left: a table folds those that are to the right
        return str(Table(self.title, self.columns, tuple(lines), self.note, len(self.columns)))

    __repr__ = __str__


def table(findings: Sequence[Finding]) -> Findings:
    """The findings in lines."""
    rows = tuple((each.claim, each.ours, each.verdict) for each in findings)
    return Findings("", ("published", "here", "verdict"), rows)


def spread(values: Sequence[float], digits: int = 3) -> str:
    """The mean of some seeds' figures and how far they lie apart."""
    if len(values) == 1:
        return f"{values[0]:.{digits}f}"
    # of a sample: seeds stand for all seeds
    return f"{np.mean(values):.{digits}f} ± {np.std(values, ddof=1):.{digits}f}"
