"""Trains one loss function in several precisions and several seeds and sets the results side by side."""

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from functools import partial
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from ipu_core.diagnose.watch import Watch
from ipu_core.ir.precision.precision import Precision
from ipu_core.ir.pytree import flatten, paths
from ipu_core.ir.trace.eager import as_array, format_of
from ipu_core.study.drive import Job, drive
from ipu_core.study.point import Evaluate, Problem, Recipe, run_point, takes_arguments
from ipu_core.study.results import Study
from ipu_core.study.run import Report
from ipu_core.study.settings import check_count
from ipu_core.study.summary import encodable
from ipu_core.study.tasks import Task
from ipu_core.train.arguments import check_loss_function
from ipu_core.train.data.dataset import shuffled
from ipu_core.train.digests import described, digest
from ipu_core.train.execution import Execution
from ipu_core.train.keywords import SharedOptions, takes
from ipu_core.train.options import options_of
from ipu_core.train.training import Training
from lowprec import Identified
from lowprec.checks import expect, expect_path, shown
from lowprec.threads import MOST

LONGEST = 600  # characters of a description that stands in a manifest as it is


@takes(SharedOptions, Training, Execution)
def compare(
    loss: Callable[[Any, Any], Any],
    params: Any,
    batches: Iterable[Any] | Callable[[int, int], Any],
    precisions: Sequence[str | Precision | Identified],
    *,
    steps: int,
    seeds: int = 3,
    evaluate: Evaluate | None = None,
    training: Training | None = None,
    execution: Execution | None = None,
    model_state: Any = None,
    folder: str | Path | None = None,
    watch: Watch | int | None = None,
    on_nonfinite: str = "warn",
    executor: Executor | None = None,
    threads: int = 1,
    title: str = "",
    **options: Unpack[SharedOptions],
) -> Study:
    """Trains a loss function of your own in each precision, with each seed, and shows the table while it runs.

    Args:
        loss: (params, batch) -> scalar, of NumPy-like operations and `ipu_core.nn`; it is traced once.
        params: Initial parameters, nested dicts, lists and tuples of float32 arrays; or a function seed -> such.
        batches: A finite list of batches of equal shapes, visited in an order drawn from the seed for each pass; or a
            function (seed, step) -> batch.
        precisions: Such as "fp32.32" or "fp16.16/stochastic", a `Precision` that a text says, or what
            `lowprec.identify` found; see `Precision.parse`.
        steps: Updates per point.
        seeds: How many: 0, 1, 2, ...
        evaluate: (trained parameters, precision) -> named numbers, all of which the table and the picture show. A unit
            stands in the name, in brackets: "distance [m]"; names that end in "accuracy" or "share" are shown in
            percent. Called once with the initial parameters, before anything is trained, so that a mistake in it
            costs nothing.
        training: What decides the bits, see `Training`; each point has it in its own precision. None: the options say
            it.
        execution: Where the points are trained, see `Execution`; None: the options say it.
        model_state: What the model carries from step to step beside its parameters (see `TrainLoop`), or a function
            seed -> such; `evaluate` then takes (trained parameters, state) as its first argument.
        folder: Where each point is kept as soon as it is finished, and unfinished ones every few seconds: the same call
            goes on from there, after Ctrl-C or a kill too, to the same bits. Another `execution` goes on as well; a
            folder of another study is refused. A table, page or picture that cannot be written costs no point.
            Functions count by their code and what they enclose, not by global values that they read. None: results are
            kept in memory alone, and Ctrl-C loses them.
        watch: Every how many steps the values of each point are looked at (see `Watch`); `Study.records` then holds
            what was seen, and a folder a file for each point. None: never.
        on_nonfinite: What is done in a point whose loss is infinite or NaN: "warn" says so at once and goes on, "stop"
            ends it there, with the equation in which it began; its losses from there on are NaN.
        executor: What trains the points, any of `concurrent.futures`' kind: a pool of processes, a Dask client's
            `get_executor()`, MPI's pool. It must be able to send your functions: Dask sends any, a pool of processes
            those of modules, no lambdas and nothing of a notebook. A point that fails there is among `failures`.
            None: one point after another in this process.
        threads: Threads of lowprec's loops.
        title: Heads the table, the picture and the page.
        **options: The fields of `Training` but the precision, and of `Execution`, where those are not given:
            `optimizer` at least. The order of every sum is the same for all precisions but for groups of products of
            8 bits.

    Raises:
        ValueError: an unknown precision, engine or target, an empty list, a count out of range, batches that are not
            alike, several steps in one call, what tracing refuses, or a folder that cannot be written.
        OtherStudy: the folder holds another study, with or without a finished point; a ValueError too.
        TypeError: an argument of another kind, an unknown option, or one beside the value that it is a field of; no
            optimizer. All of this is found before anything is trained, and leaves an empty folder without a study.
    """
    names = _names(precisions)
    check_loss_function(loss)
    # The title heads files that are written after the training: what is no text is refused before.
    expect(str, title=title)
    # Passed on, it would be taken for a number of processes, or for none.
    if not isinstance(executor, Executor | None):
        raise TypeError(f"executor must be one of concurrent.futures' kind, not {shown(executor)}")
    steps, seeds, threads = (
        check_count("steps", steps),
        check_count("seeds", seeds),
        check_count("threads", threads, MOST),
    )
    if "precision" in options:
        raise TypeError("compare takes precisions, a list of names, and no precision")
    training, execution = _values(training, execution, names[0], **options)
    if folder is not None:
        expect_path("folder", folder)
    looks = _looks(watch)
    given = batches if callable(batches) else listed(batches)
    problem = problem_of(loss, params, given, evaluate, model_state)
    recipe = Recipe(training=training, execution=execution, steps=steps, on_nonfinite=on_nonfinite)
    functions = {"loss": loss, "params": params, "batches": given, "evaluate": evaluate}
    functions |= {} if model_state is None else {"model_state": model_state}
    job = Job(
        title=title or getattr(loss, "__name__", "comparison"), problem=problem, recipe=recipe,
        what={name: _short(described(value)) for name, value in functions.items()},
        work=partial(_train, problem, recipe), precisions=names, seeds=tuple(range(seeds)), rehearsed=True,
    )  # fmt: skip
    place = None if folder is None else Path(folder)
    made, _ = drive(job, folder=place, crew=executor or 1, threads=threads, watch=looks, say=said)
    # Said, not raised: the points are trained, and this file is made again by the same call.
    for name, why in made.unwritten.items():
        said(f"{name} could not be written: {why}")
    return made


def _values(
    training: Training | None, execution: Execution | None, precision: str, **options: Unpack[SharedOptions]
) -> tuple[Training, Execution]:
    """What is given as values or as keywords, as values."""
    # The options ask for a precision, and every point replaces it by its own.
    if training is None:
        return options_of(execution=execution, precision=precision, **options)
    return options_of(training, execution, **options)


def _looks(watch: Watch | int | None) -> Watch | None:
    """How the values of each point are looked at.

    Raises:
        ValueError: in one file.
    """
    looks = None if watch is None else Watch.of(watch)
    # Points would write over one another's looks.
    if looks is not None and looks.path is not None:
        raise ValueError("watch: several points cannot be kept in one file: compare(folder=...) gives each its own")
    return looks


def said(line: str) -> None:
    """Prints a line for whoever waits."""
    # Results go to standard output; a path may hold bytes that are no UTF-8.
    print(encodable(line), file=sys.stderr, flush=True)


def _train(problem: Problem, recipe: Recipe, task: Task, report: Report) -> dict[str, Any]:
    task.check()
    return run_point(problem, recipe, task, report)


def _names(precisions: Sequence[str | Precision | Identified]) -> tuple[str, ...]:
    """The precisions' names, each once and checked."""
    listed = isinstance(precisions, Iterable) and not isinstance(precisions, str)
    given = tuple(precisions) if listed else ()
    if not given or not all(isinstance(each, str | Precision | Identified) for each in given):
        meant = precisions.split(",") if isinstance(precisions, str) and "," in precisions else ["fp32.32"]
        raise ValueError(f"precisions must be a list of names such as {meant}, not {precisions!r}")
    # Once each: a second point of a name would be the same result.
    return tuple(dict.fromkeys(map(precision_text, given)))


def precision_text(given: str | Precision | Identified) -> str:
    """The text that says a precision: a checked text itself.

    Raises:
        ValueError: no text says it (it has a rounding of one's own, say).
    """
    precision = Precision.parse(given)
    if isinstance(given, str):
        return given
    text = str(precision)
    try:
        same = Precision.parse(text).changed() == precision.changed()
    except ValueError:
        same = False
    if not same:
        raise ValueError(f"points are known by the text of their precision, and none says this one: {precision!r}")
    return text


def _short(description: Any) -> Any:
    """Long descriptions, such as those of data, by their digest."""
    return description if len(json.dumps(description)) <= LONGEST else {"sha256": digest(description)}


def listed(batches: Iterable[Any]) -> list[Any]:
    """Batches in order, as a list.

    Raises:
        ValueError: they are none.
    """
    if not isinstance(batches, Iterable) or isinstance(batches, str | bytes | Mapping):
        raise ValueError(
            f"batches must be a list of batches, or a function (seed, step) -> batch, "
            f"or Samples of a data set, not {shown(batches)}"
        )
    return list(batches)


def problem_of(loss: Any, params: Any, batches: Any, evaluate: Evaluate | None, model_state: Any) -> Problem:
    """What is trained; arguments as of `compare`, an iterable of batches listed."""
    make, state = (value if callable(value) else partial(same, value) for value in (params, model_state))
    return Problem(loss, make, by_seed(batches), evaluate, state=None if model_state is None else state)


def by_seed(batches: list[Any] | Callable[[int, int], Any]) -> Callable[[int], Callable[[int], Any]]:
    """Batches as a `Problem` has them: of a list in an order drawn from the seed for each pass.

    Raises:
        TypeError: a function of other arguments than (seed, step).
        ValueError: no batches, or such as are not alike.
    """
    if callable(batches):
        if not takes_arguments(batches, 2):
            raise TypeError("batches is a function (seed, step) -> batch, of two arguments, or a list of batches")
        return partial(partial, batches)
    _check_alike(batches)
    return partial(_in_drawn_order, batches)


def _check_alike(rows: list[Any]) -> None:
    """Refuses batches that are not all of one kind: the step is traced with the first."""
    if not rows:
        raise ValueError("batches must hold at least one batch")
    first = list[tuple[int, ...]]()
    for number, (leaves, tree) in enumerate(map(flatten, rows)):
        names, shapes = paths(tree), list(map(np.shape, leaves))
        for name, leaf in zip(names, leaves, strict=True):
            try:
                format_of(as_array(leaf))
            except (TypeError, ValueError) as error:
                raise type(error)(f"batch {number}, array {name or '0'}: {error}") from None
        # All batches are looked at before anything is trained: the step is traced with the first alone.
        if number == 0:
            first, called = shapes, names
        # With other names the point would fail in the middle of its training.
        elif names != called and len(names) == len(called):
            raise ValueError(f"batches must hold the same arrays: batch 0 has {called}, batch {number} {names}")
        elif shapes != first:
            one = "; one batch of arrays is [(x, y)]" if all(isinstance(row, np.ndarray) for row in rows) else ""
            raise ValueError(f"batches must have equal shapes; batch 0 has {first}, batch {number} {shapes}{one}")


def _in_drawn_order(rows: list[Any], seed: int) -> Callable[[int], Any]:
    # The order that a data set's rows have: each pass its own, drawn from the seed.
    order = shuffled(len(rows), 1, seed)
    return lambda step: rows[int(order(step)[0])]


def same(value: Any, seed: int) -> Any:
    """The value, whatever the seed."""
    return value
