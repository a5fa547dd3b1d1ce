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
    by_name = {figure.name: figure for figure in chosen}
    heavy = [figure.name for figure in chosen if figure.heavy and figure.model is not None] if run else []
    # Those of one plan follow each other: of plans, gigabytes each, the last one alone is kept.
    heavy.sort(key=lambda name: _asked(by_name[name]))
    rows: dict[str, Row] = {}
    for number, one in enumerate(heavy, 1):
        if progress is not None:
            progress(f"{one}, which may take minutes ({number} of {len(heavy)})")
        rows[one] = row_of(by_name[one], heavy=True)
    return Ledger(tuple(rows.get(figure.name) or row_of(figure, heavy=run) for figure in chosen))


def _asked(figure: Figure) -> tuple[str, ...]:
    """What a figure's model is asked, in the order of its arguments: what it plans comes first there."""
    return str(figure.model), *map(str, dict(figure.arguments).values())


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
