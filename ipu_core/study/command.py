"""The convergence study of a model, as run from the command line: planned, resumable, in processes."""

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ipu_core.diagnose.blame import blame, sensitivity
from ipu_core.diagnose.watch import Watch
from ipu_core.study.axes import axes_of, one_by_one, setting
from ipu_core.study.compare import compare
from ipu_core.study.drive import REPORT, Job, drive
from ipu_core.study.files import check_writable, write_texts
from ipu_core.study.live import View
from ipu_core.study.models import catalogue as models
from ipu_core.study.models import mlp
from ipu_core.study.point import Problem, Recipe, make_loop, run_point
from ipu_core.study.results import Study
from ipu_core.study.run import Report
from ipu_core.study.settings import Point, Settings
from ipu_core.study.sweep import sweep
from ipu_core.study.swept import Sweep
from ipu_core.study.tasks import Task
from ipu_core.train.data import dataset
from ipu_core.train.optim import Sgd
from lowprec import explain as explained

Load = Callable[[Settings], models.Task]
WEIGHT, UPDATE = 0.5, 0.0001  # of the demonstration


def recipe(settings: Settings, problem: Problem | None = None) -> Recipe:
    """The recipe of these settings; under u-muP's rules the learning rates come from the problem."""
    return Recipe(training=settings.training(problem), execution=settings.execution(), steps=settings.steps)


def study(
    settings: Settings,
    precisions: tuple[str, ...],
    seeds: tuple[int, ...],
    folder: Path,
    workers: int | None = None,
    threads: int = 1,
    keep_parameters: bool = False,
    force: bool = False,
    executor: Executor | None = None,
    watch: int | None = None,
    view: View | None = None,
    load: Load = models.load,
) -> tuple[Study, Path]:
    """Runs what is missing of a study in `folder`, prints its plan and table there and here, and draws its picture.

    The files there show all points that the folder holds, what is printed here those asked for.

    Args:
        settings: What all points share.
        precisions, seeds: The points: every precision with every seed.
        folder: Results are kept here, each as soon as its point is finished.
        workers: Processes (1: this one); None: one per available core. Where an executor is given they are its own.
        threads: Threads of lowprec's loops in each.
        keep_parameters: Whether each point's trained parameters are written, as an .npz named after it; a point that
            is finished but lacks the file is trained again, to the same bits, and its result stays as it is. The state
            at its end is kept too: with more steps the training goes on from there.
        force: Where the folder holds another study, leave it and use one beside it, NAME-2 and so on.
        executor: What trains the points, such as a cluster's client; see `run_on`. Its workers need this version of
            lowprec and the same data, and go on from what is unfinished if they see the same folder.
        watch: Every how many steps the values of each point are looked at, into a file of the folder named after it; a
            point that is finished but lacks a whole file is trained again, as for its parameters. None: never.
        view: Shows what happens, where it has begun to; None: one that fits.
        load: Finds the data and the model that settings name.

    Returns:
        The study, and the folder it was kept in.

    Raises:
        ValueError: bad data, layers or folder; nothing has been trained then.
        OutOfTileMemory: a precision does not fit the target; nothing has been trained then.
    """
    task = load(settings)
    problem, what = models.problem(settings, task), settings.record(task)
    # Absolute paths in the work: a worker may have another working directory.
    job = Job(
        title=models.title(settings, task), problem=problem, recipe=recipe(settings, problem), what=what,
        work=functools.partial(run_task, settings.at_absolute_paths(), load=load), precisions=precisions, seeds=seeds,
        data=what["data_digest"],
    )  # fmt: skip
    looks, say = None if watch is None else Watch(watch), functools.partial(print, flush=True)
    made, kept = drive(
        job, folder=folder, force=force, keep_parameters=keep_parameters, crew=executor or workers or _cores(),
        threads=threads, watch=looks, view=view, say=say,
    )  # fmt: skip
    assert kept is not None
    if made.results:
        print(made.table())
        _print_worst(made, job.points)
    return made, kept


def _print_worst(made: Study, points: Sequence[Point]) -> None:
    """The worst values of each precision that was watched, of its first seed."""
    shown = set[str]()
    for point in points:
        record = made.records.get(str(point))
        if record is not None and point.precision not in shown:
            shown.add(point.precision)
            print(f"\n{record.table(title=f'worst values of {point}')}")


@dataclass(frozen=True)
class _Batches:
    """The batches of a problem as a sweep takes them, which count by the data that they are of."""

    by_seed: Callable[[int], Callable[[int], Any]]
    record: Mapping[str, Any]

    def __call__(self, seed: int, step: int) -> Any:
        return self.by_seed(seed)(step)

    def description(self) -> Mapping[str, Any]:
        """What tells them from others."""
        return self.record


def sweep_of(
    settings: Settings, axes: Mapping[str, Sequence[Any]], folder: Path, load: Load = models.load, **search: Any
) -> Sweep:
    """Runs what is missing of a sweep in `folder`, and prints its table.

    Args:
        settings: What is trained; its engine is for every point.
        axes: Name -> values and ranges.
        folder: Results are kept here, each as soon as its point is finished, and sweep.csv and sweep.png.
        load: As of `study`.
        search: base, seeds, search, points, within, by, threads, as `sweep` takes them.

    Raises:
        ValueError: what `sweep` refuses.
    """
    task = load(settings)
    problem = models.problem(settings, task)
    how = recipe(settings, problem)
    batches = _Batches(functools.lru_cache(problem.batches), settings.record(task))
    check_writable(folder, ["sweep.csv", "sweep.png"])
    made = sweep(
        problem.loss, problem.params, batches, axes, steps=settings.steps, evaluate=problem.evaluate,
        training=how.training, execution=how.execution, model_state=problem.state, folder=folder,
        title=models.title(settings, task), **search,
    )  # fmt: skip
    print(made)
    return made


def swept(axes: Mapping[str, Sequence[Any]], base: str) -> list[str]:
    """The precisions of each value alone on top of a base, which is the first."""
    every = axes_of(axes)
    return [base, *(setting(base, every, values).precision for values in one_by_one(every))]


def run_task(settings: Settings, task: Task, report: Report, load: Load = models.load) -> dict[str, Any]:
    """Trains one point, in a worker process.

    Raises:
        ValueError: this process has another version of lowprec or other data than the study.
    """
    loaded = load(settings)
    task.check(loaded.digest())
    problem = models.problem(settings, loaded)
    return run_point(problem, recipe(settings, problem), task, report)


def explain(
    settings: Settings, precision: str, seed: int, by: str | None, folder: Path | None, load: Load = models.load,
    **limits: float,
) -> None:  # fmt: skip
    """Prints why a training in this precision learns less than in float32 (see `blame`), on the direct engine.

    Args:
        settings: What is trained, and how long.
        precision: Its name.
        seed: Of the run.
        by: "layer" or "cause": print what each costs (see `sensitivity`) instead; None: no.
        folder: Where to write it too, as blame.txt; None: nowhere. A study in that folder shows it on its page.
        load: As of `study`.
        limits: tolerance and budget, as `blame` takes them; `sensitivity` has none.

    Raises:
        ValueError: the folder cannot be written.
    """
    if folder is not None:
        check_writable(folder, [REPORT])
    # Every trial is in another precision, which tiles would plan anew, and their own random bits never come again.
    settings = replace(settings, engine="direct", random="philox")
    task = load(settings)
    problem = models.problem(settings, task)
    loop = make_loop(problem, recipe(settings, problem), Point(precision, seed))
    batches = problem.batches(seed)
    if by is None:
        words = str(blame(loop, batches, settings.steps, **limits))
    else:
        words = str(sensitivity(loop, batches, settings.steps, by))
    text = f"{models.title(settings, task)}, {settings.execution()}\n\n{words}"
    print(text)
    if folder is not None:
        write_texts(folder, {REPORT: f"{text}\n"})


def demo(steps: int = 4000) -> int:
    """Prints one number rounded in every mode, then three precisions trained side by side; writes no file.

    Args:
        steps: Updates per point.

    Returns:
        0, or 2 if a point failed.
    """
    print(f"A weight of {WEIGHT} in float16 receives an update of {UPDATE}:\n")
    print(explained(WEIGHT + UPDATE, "float16"))
    print("\nThe same on real images: a perceptron on scikit-learn's digits, small updates, three seeds.\n")
    settings = Settings(layers=(64, 96, 10), steps=steps, lr=0.003)
    task = dataset.digits()
    problem = mlp.problem(settings, task)
    drawn = functools.lru_cache(maxsize=2)(problem.batches)  # which keeps the permutation of the epoch
    made = compare(
        problem.loss, problem.params, lambda seed, step: drawn(seed)(step),
        ["fp32.32", "fp16.16/nearest", "fp16.16/stochastic"], optimizer=Sgd(settings.lr), steps=settings.steps, seeds=3,
        evaluate=problem.evaluate, engine="direct", title="digits, perceptron 64-96-10",
    )  # fmt: skip
    print(made)
    return 2 if made.failures else 0


def _cores() -> int:
    # cpu_count is the machine's: in a container or under taskset fewer may be used.
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
