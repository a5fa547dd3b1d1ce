"""The ledger: which figures there are, and ours beside them."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from pathlib import Path

from ipu_core.figures.figure import Figure, read
from ipu_core.figures.models import MODELS
from ipu_core.figures.rows import Ledger, Row
from lowprec.checks import shown, truth

GROUPS = ("chips", "systems", "costs", "measured", "energy", "training", "effects", "talks")
"""The lists, each a file of figures."""
FIGURES: tuple[Figure, ...] = tuple(
    figure for group in GROUPS for figure in read(Path(__file__).parent / f"{group}.toml")
)


def ledger(name: str | None = None, *, models: bool = False, progress: Callable[[str], None] | None = None) -> Ledger:
    """Published figures beside ours, with errors and verdicts.

    Args:
        name: of one figure, whose row is made however long that takes; the beginning of some names, or a list of
            `GROUPS`, whose heavy rows wait for `models`; None: all.
        models: make the rows too that take minutes: whole models planned, published trainings made again.
        progress: is told of each such row before it is made.

    Raises:
        ValueError: there is no figure of the name.
    """
    chosen = select(name)
    run = truth("models", models) or (len(chosen) == 1 and chosen[0].name == name)
    heavy = [figure.name for figure in chosen if figure.heavy and figure.model is not None] if run else []
    rows = []
    for figure in chosen:
        if progress is not None and figure.name in heavy:
            progress(f"{figure.name}, which may take minutes ({heavy.index(figure.name) + 1} of {len(heavy)})")
        rows.append(row_of(figure, heavy=run))
    return Ledger(tuple(rows))


def select(name: str | None) -> tuple[Figure, ...]:
    """The figures of a name, a beginning of names or a list; None: all.

    Raises:
        ValueError: there is none.
    """
    if name is None:
        return FIGURES
    if isinstance(name, str) and name:
        exact = tuple(figure for figure in FIGURES if figure.name == name)
        listed = tuple(figure for figure in FIGURES if figure.group == name)
        begun = tuple(figure for figure in FIGURES if figure.name.startswith(name))
        if found := exact or listed or begun:
            return found
    names = [*GROUPS, *(figure.name for figure in FIGURES)]
    close = difflib.get_close_matches(name, names, 5, 0.5) if isinstance(name, str) else []
    like = f"is it {' or '.join(close)}?" if close else f"there are the lists {', '.join(GROUPS)}"
    raise ValueError(f"there is no figure {shown(name)}: {like}")


def row_of(figure: Figure, *, heavy: bool) -> Row:
    """The row of a figure; where its model is heavy only if that is asked for."""
    if figure.model is None:
        return Row(figure)
    if figure.heavy and not heavy:
        return Row(figure, waits="heavy; --models")
    return Row(figure, float(MODELS[figure.model](**dict(figure.arguments))))
