"""A published figure beside ours, the error and the verdict; all rows together are the ledger."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ipu_core.figures.figure import Figure, shown
from ipu_core.train.table import Table

HOLDS, OFF, PREDICTED, NOT_CHECKABLE, NOT_RUN = "holds", "off", "predicted", "not checkable", "not run"
VERDICTS = (HOLDS, OFF, PREDICTED, NOT_CHECKABLE, NOT_RUN)


@dataclass(frozen=True)
class Row:
    """One figure and what ours is.

    Attributes:
        figure: as published.
        ours: in the same unit; None: it was not computed.
        waits: why a model that is named did not run; "": it ran, or there is none.
    """

    figure: Figure
    ours: float | None = None
    waits: str = ""

    @property
    def error(self) -> float | None:
        """Ours over the published figure, less 1; 0 between two, beyond them from the nearer; None: nothing of ours."""
        published = self.figure.published
        if self.ours is None or isinstance(published, str):
            return None
        low, high = published if isinstance(published, tuple) else (published, published)
        low, high = {"": (low, high), "least": (low, math.inf), "most": (-math.inf, high)}[self.figure.bound]
        if low <= self.ours <= high:
            return 0.0
        nearest = low if self.ours < low else high
        # beside a published zero there is no ratio: any other number is all off
        return self.ours / nearest - 1 if nearest else math.copysign(math.inf, self.ours)

    @property
    def kind(self) -> str:
        """One of VERDICTS."""
        if self.figure.not_checkable:
            return NOT_CHECKABLE
        if self.ours is None:
            return NOT_RUN
        if self.error is None:
            return PREDICTED
        return HOLDS if abs(self.error) <= self.figure.tolerance else OFF

    @property
    def verdict(self) -> str:
        """In words: "holds", "off by +12 %", "predicted", "not checkable: why", "not run (heavy; --models)"."""
        if self.kind == NOT_CHECKABLE:
            return f"{NOT_CHECKABLE}: {self.figure.not_checkable}"
        if self.kind == NOT_RUN:
            return f"{NOT_RUN} ({self.waits})"
        return self.kind if self.kind != OFF else f"off by {self.error_words}"

    @property
    def error_words(self) -> str:
        """The error in per cent; "": there is none."""
        if not self.error:
            return "" if self.error is None else "0 %"
        return f"{100 * self.error:+.2g} %" if abs(self.error) < 0.1 else f"{100 * self.error:+.0f} %"

    def to_json(self) -> dict[str, Any]:
        """Under fixed names; infinite errors are null, as JSON has none."""
        figure = self.figure
        error = self.error if self.error is not None and math.isfinite(self.error) else None
        return {
            "name": figure.name, "group": figure.group, "what": figure.what,
            "published": list(figure.published) if isinstance(figure.published, tuple) else figure.published,
            "bound": figure.bound, "unit": figure.unit, "source": figure.source, "model": figure.model,
            "arguments": dict(figure.arguments), "precision": figure.precision, "weight": figure.weight,
            "of_published": figure.of_published, "tolerance": figure.tolerance, "why": figure.why, "ours": self.ours,
            "error": error, "kind": self.kind, "verdict": self.verdict,
        }  # fmt: skip

    def __str__(self) -> str:
        figure = self.figure
        arguments = ", ".join(f"{name}={value}" for name, value in figure.arguments)
        ours = "" if self.ours is None else f"{shown(self.ours)} {figure.unit}"
        lines = {
            "published": figure.published_words, "here": ours, "error": self.error_words, "verdict": self.verdict,
            "source": figure.source, "precision": figure.precision,
            "model": "" if figure.model is None else f"{figure.model}({arguments})",
            "holds within": "" if figure.model is None else f"{100 * figure.tolerance:g} %", "note": figure.why,
        }  # fmt: skip
        return "\n".join(
            [f"{figure.name}: {figure.what}", *(f"  {key:13}{text}" for key, text in lines.items() if text)]
        )


@dataclass(frozen=True)
class Ledger:
    """Rows that print as a table for each list of figures; one row alone prints in full.

    Attributes:
        rows: in the order of the lists.
    """

    rows: tuple[Row, ...]

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def counts(self) -> dict[str, int]:
        """Rows by kind of verdict."""
        found = Counter(row.kind for row in self.rows)
        return {kind: found[kind] for kind in VERDICTS}

    def off(self) -> tuple[Row, ...]:
        """Rows that do not hold, the largest error first."""
        found = [row for row in self.rows if row.kind == OFF]
        return tuple(sorted(found, key=lambda row: -abs(row.error or 0.0)))

    def to_json(self) -> dict[str, Any]:
        """All rows under fixed names, and how many there are of each verdict."""
        return {"counts": self.counts, "rows": [row.to_json() for row in self.rows]}

    def __str__(self) -> str:
        if len(self.rows) == 1:
            return str(self.rows[0])
        groups = list(dict.fromkeys(row.figure.group for row in self.rows))
        tables = [table for group in groups for table in _tables(group, self.rows)]
        counts = ", ".join(f"{kind} {count}" for kind, count in self.counts.items())
        agree = sum(row.figure.of_published for row in self.rows)
        end = f"{len(self.rows)} figures: {counts}; {agree} compare published figures with each other"
        return "\n\n".join([*tables, end])

    __repr__ = __str__


def _tables(group: str, rows: tuple[Row, ...]) -> list[str]:
    """What is compared of a list, and what cannot be."""
    own = [row for row in rows if row.figure.group == group]
    compared = [row for row in own if row.kind != NOT_CHECKABLE]
    others = [row for row in own if row.kind == NOT_CHECKABLE]
    tables = []
    if compared:
        head = ("figure", "published", "here", "error", "verdict", "model", "precision", "source")
        tables.append(Table(group, head, tuple(map(_compared, compared)), _marks(compared), left=len(head)))
    if others:
        names = ("figure", "published", "source", "why there is none of ours")
        lines = tuple(
            (row.figure.name, row.figure.published_words, row.figure.cited, row.figure.not_checkable) for row in others
        )
        tables.append(Table(f"{group}: not checkable", names, lines, _marks(others), left=len(names)))
    return [str(table) for table in tables]


def _compared(row: Row) -> tuple[str, ...]:
    figure = row.figure
    ours = "" if row.ours is None else shown(row.ours)
    # the error has a column of its own
    verdict = row.verdict if row.kind == NOT_RUN else row.kind
    return (
        figure.name, figure.published_words, ours, row.error_words, verdict, figure.model or "", figure.precision,
        figure.cited,
    )  # fmt: skip


def _marks(rows: list[Row]) -> str:
    """What the short names of sources stand for."""
    sources = dict.fromkeys((row.figure.cited, row.figure.source) for row in rows)
    return "\n".join(f"  {cited}: {source}" for cited, source in sources if cited != source)
