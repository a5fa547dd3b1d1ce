"""Trains what is missing of a study, in a folder or in memory: what `compare` and the command line share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ipu_core.diagnose.watch import Watch
from ipu_core.errors import refusal_in_words
from ipu_core.study import live
from ipu_core.study.live import View
from ipu_core.study.manifest import MANIFEST
from ipu_core.study.point import Problem, Recipe, check_size, make_loop, orders_of_sums, rehearsed
from ipu_core.study.pool import Processes
from ipu_core.study.results import Study
from ipu_core.study.run import Event, Work, run_here, run_on
from ipu_core.study.settings import Point
from ipu_core.study.store import Store, open_store
from ipu_core.study.summary import encodable
from ipu_core.study.tasks import Task, begin, make_longer, missing, records, take_up
from ipu_core.study.typed import PRECISIONS

REPORT = "blame.txt"
"""The file in a study's folder with the words of `blame`, which the page shows."""
Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Job:
    """A study to be trained, from `compare` or from the command line.

    Attributes:
        title: Heads its table and picture.
        problem, recipe: What is trained, and how.
        what: What says what is trained, as JSON values: with the recipe's it must agree for a study to go on.
        work: What trains a point, given a `Task`; an executor must be able to send it.
        precisions, seeds: The points: every precision with every seed.
        data: The digest of the data that a worker must find; "": it is sent them.
        rehearsed: Whether the problem's `evaluate` is tried before anything is trained.
    """

    title: str
    problem: Problem
    recipe: Recipe
    what: Mapping[str, Any]
    work: Work
    precisions: tuple[str, ...]
    seeds: tuple[int, ...]
    data: str = ""
    rehearsed: bool = False

    @property
    def points(self) -> list[Point]:
        """All of them, seed by seed."""
        return [Point(name, seed) for seed in self.seeds for name in self.precisions]

    def rehearse(self, precisions: Sequence[str]) -> str:
        """Plans every precision and tries `evaluate`, so that what fails fails before the training; the plan in words.

        Raises:
            OutOfTileMemory: a precision does not fit the target.
        """
        # Every precision is planned, since one that does not fit would be found out hours later.
        loops = {name: make_loop(self.problem, self.recipe, Point(name, 0)) for name in precisions}
        words = "\n".join(f"{name}\n{loop.words()}\n" for name, loop in loops.items())
        if self.rehearsed:
            rehearsed(self.problem, self.recipe, precisions[0])
        return words


def drive(
    job: Job, *, folder: Path | None, say: Say, force: bool = False, keep_parameters: bool = False,
    crew: int | Executor = 1, threads: int = 1, watch: Watch | None = None, view: View | None = None,
) -> tuple[Study, Path | None]:  # fmt: skip
    """Trains what is missing of a study.

    Args:
        job: The study.
        folder: Where each point is kept as soon as it is finished; None: nowhere, and all points are trained.
        say: Takes a line for whoever waits.
        force, keep_parameters: As the command takes them.
        crew: What trains: so many processes (1: this one), or an executor.
        threads: Threads of lowprec's loops in each.
        watch: What is looked at; None: nothing.
        view: Shows what happens, where it has begun to; None: one that fits.

    Returns:
        The points asked for, and the folder that they are kept in.

    Raises:
        ValueError: the folder cannot be written or holds another study.
        OutOfTileMemory: a precision does not fit the target; nothing has been trained then.
    """
    recipe, view = job.recipe, view or live.begun(job.recipe.steps, list(map(str, job.points)))
    check_size(job.problem, recipe, job.precisions)  # before its sums are planned, which takes long where it is large
    made = Study(
        encodable(job.title), job.precisions, {**job.what, **recipe.record()}, executions=(str(recipe.execution),),
        accumulations=orders_of_sums(job.problem, recipe.training), trainings=recipe.trainings(job.precisions),
    )  # fmt: skip
    if folder is None:
        todo = [Task(point, watch=watch) for point in job.points]
        _train(job, made, None, todo, job.precisions, crew, threads, view)
        return made, None
    # Before the store is opened, which refuses a folder whose settings say fewer steps.
    before = make_longer(folder, made.settings, made.accumulations, say) if keep_parameters else 0
    with open_store(folder, made.settings, made.accumulations, made.trainings, force=force) as store:
        if keep_parameters:
            take_up(store, job.points)
        if before:
            say(f"{folder} holds {before} steps of this training: it goes on from there\n")
        if store.folder != folder:
            say(f"{folder} holds another study and stays as it is; this one is kept in {store.folder}\n")
        _in_folder(job, made, store, crew, threads, view, say, keep_parameters=keep_parameters, watch=watch)
        return made, store.folder


def _in_folder(
    job: Job, made: Study, store: Store, crew: int | Executor, threads: int, view: View, say: Say, *,
    keep_parameters: bool, watch: Watch | None,
) -> None:  # fmt: skip
    """Trains what a folder lacks, and writes its table, plan, picture and page, of all points that it holds."""
    # Before anything is counted as finished: a damaged file makes its point a task again.
    store.inspect()
    points, held = job.points, store.results()
    # A point that stopped at NaN has fewer looks than steps, and is whole.
    steps = None if job.recipe.on_nonfinite == "stop" else job.recipe.steps
    made.results += [result for result in held if Point.of(result) in points]
    finished = set(map(Point.of, made.results))
    todo = missing(store, finished, points, job.data, steps, keep_parameters=keep_parameters, watch=watch)
    # A kill between a result and the removal of its checkpoint leaves both.
    store.sweep(map(str, map(Point.of, held)), {store.checkpoint(str(task)) for task in todo})
    plan_file = store.folder / "plan.txt"
    say(f"{made.title}, {job.recipe.execution}\n(how every product and sum is made, in every precision: {plan_file})\n")
    for line in begin(store, todo, len(made.results), len(points), steps):
        say(line)
    everything = _with_held(job.precisions, held)
    _train(job, made, store, todo, everything, crew, threads, view)
    seen, wanted = records(store), set(map(str, points))
    made.records |= {name: record for name, record in seen.items() if name in wanted}
    if made.results:
        whole = replace(made, precisions=everything, results=store.results(), records=seen, report=_report(store))
        made.unwritten |= whole.write(store)
    # Last: a watch file may have ended early on a full disk, though its point is finished.
    for each in todo:
        for path in each.lacks(store, steps) if str(each) not in made.failures else ():
            made.unwritten.setdefault(path.name, "the same command makes it again")


def _train(
    job: Job, made: Study, store: Store | None, todo: list[Task], precisions: Sequence[str], crew: int | Executor,
    threads: int, view: View,
) -> None:  # fmt: skip
    """Plans, then trains, while the view shows its bars."""
    # Tasks that are done again are finished points too, but have a bar to fill.
    done = len(made.results) - sum(task.again for task in todo)

    def listen(event: Event) -> None:
        # Kept before it is shown: what a view says is finished is on the disk.
        if event.kind == "done":
            _take_up(event, made, store)
        else:
            made.listen(event)
        view(event)

    with view:
        view.know(made.table, done + len(todo), done, [str(task) for task in todo])
        made.plan = job.rehearse(precisions)
        if store is not None:
            # Only where something is trained: a call that shows what is there has run on no machine.
            if todo:
                store.trained_by(*made.executions)
            made.executions = store.executions or made.executions
            made.unwritten |= store.write_all({"plan.txt": made.plan})
        if isinstance(crew, Executor):
            run_on(crew, job.work, todo, listen, threads)
        # No more processes than tasks, and none for one: starting one imports everything anew.
        elif min(crew, len(todo)) > 1:
            with Processes(min(crew, len(todo))) as pool:
                pool.start()
                run_on(pool, job.work, todo, listen, threads)
        else:
            run_here(job.work, todo, listen, threads)


def _take_up(event: Event, made: Study, store: Store | None) -> None:
    """Keeps a finished point: first its files' checksums, then its result; then its checkpoint is removed."""
    task = event.item
    if store is not None:
        try:
            # Checksums first: a result whose files have none would count as finished without them.
            store.keep(task.files)
        except OSError as error:  # which costs no point
            made.unwritten[MANIFEST] = refusal_in_words(error)
        if not task.again:
            store.append(event.payload)
    if not task.again:
        made.listen(event)
    if task.saved is not None:
        task.saved.unlink(missing_ok=True)  # not before: what a kill loses until here goes on from it


def _with_held(precisions: tuple[str, ...], held: list[dict[str, Any]]) -> tuple[str, ...]:
    """The precisions asked for; if the folder holds others, all of them, with the usual ones first."""
    others = [result["precision"] for result in held]
    if set(others) <= set(precisions):
        return precisions
    names = dict.fromkeys([*others, *precisions])
    # sorted keeps the order of the others, which stand behind.
    return tuple(sorted(names, key=lambda name: PRECISIONS.index(name) if name in PRECISIONS else len(PRECISIONS)))


def _report(store: Store) -> str:
    """The text of REPORT in the folder; "" where there is none."""
    path = store.folder / REPORT
    # Anybody may have written it: a byte that is no UTF-8 must not cost the page.
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
