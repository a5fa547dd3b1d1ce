"""A training that goes on: a folder that holds its first steps, with the state at their end, takes more steps."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import lowprec
from ipu_core.study.files import point_file
from ipu_core.study.manifest import MANIFEST, read_manifest
from ipu_core.study.settings import Point
from ipu_core.study.store import RESULTS, Store, read_results
from ipu_core.train.digests import canonical


def make_longer(
    folder: Path, settings: Mapping[str, Any], accumulations: Mapping[str, str], say: Callable[[str], None]
) -> int:
    """Sets the results of fewer steps aside, as results-STEPS.jsonl, so that a training of more goes on from their end.

    That is done where nothing but the number of steps differs, on which no schedule depends then, and every end was
    kept.

    Returns:
        The steps of those results; 0 where there are none, and everything stays as it is.

    Raises:
        ValueError: the state at an end is damaged.
    """
    if not (folder / MANIFEST).is_file():
        return 0
    held = read_manifest(folder).basis
    before, wanted = held["settings"].get("steps"), settings["steps"]
    here = {"lowprec": lowprec.__version__, "settings": {**settings, "steps": before}, "accumulations": accumulations}
    if canonical(held) != canonical(here) or not before < wanted:
        return 0
    with Store(folder, held["settings"], held["accumulations"]) as store:  # whose lock says that nobody else is at it
        states = [point_file(folder, "state", Point.of(result)) for result in read_results(folder)]
        if store.unknown:
            say(store.unknown_in_words())
        store.inspect()
        if damaged := [state for state in states if state.name in store.damaged]:
            raise ValueError(
                f"{damaged[0]} is damaged (its checksum has changed), and the training cannot go on from it: "
                f"the same command with --steps {before} makes it again"
            )
        if not all(map(store.whole, states)):
            return 0
        for name in (RESULTS, MANIFEST):
            stem, dot, end = name.partition(".")
            os.replace(folder / name, folder / f"{stem}-{before}{dot}{end}")
    return int(before)


def take_up(store: Store, points: list[Point]) -> None:
    """Puts the states of a shorter training where its points go on from."""
    done = {str(Point.of(result)) for result in store.results()}
    for point in points:
        end, unfinished = point_file(store.folder, "state", point), store.checkpoint(str(point))
        if end.is_file() and not unfinished.exists() and str(point) not in done:
            shutil.copyfile(end, unfinished)
