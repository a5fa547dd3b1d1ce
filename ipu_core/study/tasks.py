"""The tasks left in a study's folder: points without a result, files that are wanted, steps beyond the last."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import lowprec
from ipu_core.diagnose.watch import Record, Watch
from ipu_core.errors import OtherStudy
from ipu_core.study.files import SHOWN, check_writable, point_file
from ipu_core.study.manifest import MANIFEST, in_names_of, read_manifest
from ipu_core.study.settings import Point
from ipu_core.study.store import RESULTS, Store, read_results
from ipu_core.train.digests import canonical

LACKS = {
    "parameters": "its parameters are", "state": "the state at its end is", "watch": "what is to be watched is",
}  # fmt: skip


@dataclass(frozen=True)
class Task:
    """What a worker process is sent.

    Attributes:
        point: What to train.
        saved: Where its unfinished state is kept; one found there is continued, bit for bit. None: nowhere.
        data: The digest of the data that it must find; "": it is sent them.
        version: Of lowprec, which must be the worker's.
        parameters: Where to write what was trained, as `checkpoint.save` does; None: nowhere.
        state: Where to keep the state at its end, from which a longer training goes on; None: nowhere.
        again: The point's result is there from before; only its parameters, or what is watched, are wanted.
        watch: What is looked at, and where that is kept; None: nothing.
    """

    point: Point
    saved: Path | None = None
    data: str = ""
    version: str = lowprec.__version__
    parameters: Path | None = None
    state: Path | None = None
    again: bool = False
    watch: Watch | None = None

    def __str__(self) -> str:
        return str(self.point)

    def check(self, data: str = "") -> None:
        """Refuses to be done by a process with another lowprec, or other data.

        Raises:
            ValueError: in words.
        """
        # A cluster's workers have installations of their own: other bits would stand in the study unseen.
        for what, there, here in (("lowprec", self.version, lowprec.__version__), ("data", self.data, data)):
            if there != here:
                raise ValueError(f"its worker has other {what} than the study: {here[:16]}, not {there[:16]}")

    @property
    def files(self) -> list[Path]:
        """What it writes, beside its result."""
        watched = None if self.watch is None else self.watch.path
        return [Path(path) for path in (self.parameters, self.state, watched) if path is not None]

    def lacks(self, store: Store, steps: int | None) -> list[Path]:
        """Its files that are missing, damaged or have too few looks for `steps`; None: the run may end at any step."""
        # A whole file may still lack looks: a disk that was full ended them and not the run.
        return [path for path in self.files if not store.whole(path) or not self._complete(path, steps)]

    def _complete(self, path: Path, steps: int | None) -> bool:
        """Whether a whole file, of what is watched, holds all the looks at a run of so many steps."""
        if self.watch is None or path != self.watch.path or steps is None:
            return True
        return list(Record.read(path).steps) == list(range(0, steps, self.watch.every))


def missing(
    store: Store, finished: Collection[Point], points: Iterable[Point], data: str, steps: int | None, *,
    keep_parameters: bool, watch: Watch | None,
) -> list[Task]:  # fmt: skip
    """The tasks of points without a result, and of those without parameters, state or looks where these are wanted.

    Raises:
        ValueError: a file of theirs, or one that shows the study, cannot be written.
    """
    tasks = []
    for point in points:
        place = {kind: point_file(store.folder, kind, point).absolute() for kind in ("parameters", "state", "watch")}
        task = Task(
            point,
            store.checkpoint(str(point)).absolute(),
            data,
            parameters=place["parameters"] if keep_parameters else None,
            state=place["state"] if keep_parameters else None,
            again=point in finished,
            watch=None if watch is None else replace(watch, path=place["watch"]),
        )
        if not task.again or task.lacks(store, steps):
            tasks.append(task)
    # Before the training, with what is written last.
    check_writable(store.folder, [*SHOWN, *(path.name for task in tasks for path in task.files)])
    return tasks


def begin(store: Store, tasks: Sequence[Task], done: int, total: int, steps: int | None) -> list[str]:
    """Renames damaged files that the tasks write again, and forgets the checksums of all that they write.

    Args:
        store: Of the study, inspected.
        tasks: What is to be done.
        done, total: How many points were finished before, and how many there are.
        steps: Of each point; None: it may end at any.

    Returns:
        What there is to say of it, and of every damaged file, in lines.
    """
    said = list[str]()
    again = {path.name for task in tasks if task.again for path in task.files}
    for name in sorted(store.damaged):
        words = f"{store.folder / name} is damaged (its checksum has changed): "
        if name in again:
            store.set_aside(store.folder / name)
            said.append(f"{words}it is made again, and what was there is now {name}.damaged")
        else:
            way = "not shown; --watch N" if name.startswith("watch") else "left as it is; `train`"
            said.append(f"{words}it is {way} with the same settings makes it again")
    said += [f"{done} of {total} points were finished before; {total - done} to go"] if done else []
    for task in tasks:
        if task.again:
            lacking = [path.name.partition("-")[0] for path in task.lacks(store, steps)]
            said.append(f"{task} is trained again: its result is here, {LACKS[lacking[0]]} not")
    # A kill while they are written would leave files that differ from their checksums, and look damaged.
    store.forget(path for task in tasks for path in task.files)
    return said


def records(store: Store) -> dict[str, Record]:
    """The records of a folder's finished points, without damaged and empty ones (a full disk leaves these)."""
    points = map(Point.of, store.results())
    paths = {str(point): point_file(store.folder, "watch", point) for point in points}
    found = {name: Record.read(path) for name, path in paths.items() if store.whole(path)}
    return {name: record for name, record in found.items() if len(record.steps)}


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
    try:
        held = read_manifest(folder).basis
    except OtherStudy:  # which the store refuses, or leaves alone
        return 0
    before, wanted = held["settings"].get("steps"), settings["steps"]
    here = {"lowprec": lowprec.__version__, "settings": {**settings, "steps": before}, "accumulations": accumulations}
    # A schedule that depends on the number of steps is in the settings, so it differs here by itself.
    if canonical(in_names_of(held, here)) != canonical(here) or not before < wanted:
        return 0
    with Store(folder, held["settings"], held["accumulations"]) as store:  # whose lock says that nobody else is at it
        states = [point_file(folder, "state", Point.of(result)) for result in read_results(folder)]
        store.inspect()
        if damaged := [state for state in states if state.name in store.damaged]:
            raise ValueError(
                f"{damaged[0]} is damaged (its checksum has changed), and the training cannot go on from it: "
                f"the same command with --steps {before} makes it again"
            )
        aside = {name: folder / name.replace(".", f"-{before}.") for name in (RESULTS, MANIFEST)}
        if not all(map(store.whole, states)) or not (states or aside[RESULTS].exists()):
            return 0
        if states:  # where there are none, a kill came between the two
            os.replace(folder / RESULTS, aside[RESULTS])
        # Last: a kill before it leaves a folder that the same command sets aside once more.
        os.replace(folder / MANIFEST, aside[MANIFEST])
    return int(before)


def take_up(store: Store, points: list[Point]) -> None:
    """Copies the end states of a shorter training to the checkpoints from which its points go on."""
    done = {str(Point.of(result)) for result in store.results()}
    for point in points:
        end, unfinished = point_file(store.folder, "state", point), store.checkpoint(str(point))
        if end.is_file() and not unfinished.exists() and str(point) not in done:
            shutil.copyfile(end, unfinished)
