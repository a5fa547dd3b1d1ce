"""Trains one loss function in several precisions and several seeds and sets the results side by side."""

import html
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ipu_core.errors import refusal_in_words
from ipu_core.ir.precision import Precision
from ipu_core.ir.pytree import flatten
from ipu_core.study import live
from ipu_core.study.files import point_file
from ipu_core.study.page import study_page
from ipu_core.study.plot import Picture, plot
from ipu_core.study.point import (
    RECORD,
    Evaluate,
    Problem,
    Recipe,
    check_size,
    make_loop,
    measured,
    orders_of_sums,
    run_point,
    trained,
)
from ipu_core.study.run import Event, Report, run_here, run_on
from ipu_core.study.settings import Point, check_count
from ipu_core.study.store import Store, agree, open_store
from ipu_core.study.summary import summarise, table
from ipu_core.target import Target
from ipu_core.train.arguments import check_loss_function, check_optimizer, check_orders
from ipu_core.train.checkpoint import replacing
from ipu_core.train.data import shuffled
from ipu_core.train.optim import Optimiser
from ipu_core.train.table import Table
from ipu_core.train.values import described, digest
from ipu_core.train.watch import Record, Watch
from lowprec import Accumulation

Accumulations = Mapping[int, Accumulation]
LONGEST = 600  # characters of a description that stands in a manifest as it is


@dataclass
class Study:
    """The finished points of a comparison. Shows its table when printed, in a terminal or a notebook.

    Attributes:
        title: Heads the table and the picture.
        precisions: In the order of the table's rows.
        settings: What all points share, as JSON values.
        plan: How each product is computed, in words.
        results: One object per finished point; see the page "A study that can be interrupted".
        failures: What went wrong, by point.
        accumulations: The digest of the order of every sum, by name; the same in every precision, but that products
            of 8 bits add twice as many in a group.
        records: What was seen of the points that were watched, by point.
        report: What is known of why a run went as it did, as text; the page shows it.
        unwritten: Names of files that could not be written, and why; no point is lost by that.
    """

    title: str
    precisions: tuple[str, ...]
    settings: Mapping[str, Any]
    plan: str = ""
    results: list[dict[str, Any]] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)
    accumulations: Mapping[str, str] = field(default_factory=dict)
    records: dict[str, Record] = field(default_factory=dict)
    report: str = ""
    unwritten: dict[str, str] = field(default_factory=dict)

    def table(self) -> Table:
        """Mean and spread over seeds, one row per precision."""
        return table(summarise(self.results, self.precisions), self.title)

    def plot(self) -> Picture:
        """The loss curves and measures as a picture (needs matplotlib)."""
        return plot(self.results, self.precisions, self.title)

    def page(self) -> str:
        """Curves, table, plan and what was watched as one page of HTML, which needs no other file."""
        return study_page(
            self.title, self.table(), self.results, self.precisions, self.settings, self.plan, self.records, self.report
        )

    def save(self, folder: str | Path, *, force: bool = False) -> Path:
        """Writes results.jsonl, manifest.json, table.txt, plan.txt, convergence.png and page.html; gives the folder.

        What was watched of a point is written as `Record.save` does, into a file named after it.

        Args:
            folder: Made if it is not there; one that holds this very study takes what it lacks.
            force: Where the folder holds another study, leave it and write to one beside it, NAME-2 and so on.

        Raises:
            ValueError: the folder cannot be written or holds another study: other settings, orders of sums or results,
                or another version of lowprec.
        """
        with open_store(folder, self.settings, self.accumulations, force=force) as store:
            held = {(result["precision"], result["seed"]): result for result in store.results()}
            made = {(result["precision"], result["seed"]): result for result in self.results}
            for point in sorted(made.keys() & held.keys()):
                if not agree(made[point], held[point]):
                    raise ValueError(
                        f"{store.folder} holds another result of {Point(*point)} (another loss or data): "
                        "choose another folder or remove that one"
                    )
            for name, record in self.records.items():
                file = point_file(store.folder, "watch", name)
                record.save(file)
                store.keep([file])
            for point, result in made.items():
                if point not in held:
                    store.append(result)
            if unwritten := self.write(store):
                raise ValueError(f"cannot write {', '.join(unwritten.values())}")
            return store.folder

    def write(self, store: Store) -> dict[str, str]:
        """Writes the table, the plan, the picture and the page beside the results.

        Returns:
            The names of those that could not be written, each with the reason.
        """
        texts = {"table.txt": f"{self.table()}\n", "plan.txt": self.plan, "page.html": self.page()}
        unwritten = store.write_all(texts)
        try:
            with replacing(store.folder / "convergence.png") as draft:
                self.plot().save(draft)
        except OSError as error:
            unwritten["convergence.png"] = refusal_in_words(error)
        return unwritten

    def listen(self, event: Event) -> None:
        """Takes up a finished or failed point."""
        if event.kind == "done":
            self.results.append(event.payload)
            if (record := event.payload.pop(RECORD, None)) is not None:
                self.records[str(event.item)] = record
        elif event.kind == "failed":
            self.failures[str(event.item)] = event.payload["error"]

    def __str__(self) -> str:
        failures = [f"{point} failed: {error}" for point, error in self.failures.items()]
        return "\n".join([str(self.table()), *failures])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        failures = "".join(f"<p>{html.escape(f'{point} failed: {e}')}</p>" for point, e in self.failures.items())
        return self.table()._repr_html_() + failures


def compare(
    loss: Callable[[Any, Any], Any],
    params: Any,
    batches: Iterable[Any] | Callable[[int, int], Any],
    precisions: Sequence[str],
    *,
    optimizer: Optimiser,
    steps: int,
    seeds: int = 3,
    evaluate: Evaluate | None = None,
    engine: str = "tiles",
    target: str | Target = "gc200",
    accumulations: Accumulations | None = None,
    threads: int = 1,
    title: str = "",
    model_state: Any = None,
    micro_batches: int = 1,
    loss_scale: float | str | None = None,
    streamed: Sequence[str] = (),
    overlap: bool = False,
    executor: Executor | None = None,
    random: str = "philox",
    recompute: bool | float = False,
    watch: int | None = None,
    on_nonfinite: str = "warn",
) -> Study:
    """Trains a loss function of your own in each precision, with each seed, and shows the table while it runs.

    Args:
        loss: (params, batch) -> scalar, of NumPy-like operations and `ipu_core.nn`; it is traced once.
        params: Initial parameters, nested dicts, lists and tuples of float32 arrays; or a function seed -> such.
        batches: A finite list of batches of equal shapes, visited in an order drawn from the seed for each pass; or a
            function (seed, step) -> batch.
        precisions: Such as "fp32.32" or "fp16.16/stochastic"; see `Precision.parse`.
        optimizer: Such as Sgd(0.1).
        steps: Updates per point.
        seeds: How many: 0, 1, 2, ...
        evaluate: (trained parameters, precision) -> named numbers, all of which the table and the picture show. A unit
            stands in the name, in brackets: "distance [m]"; names that end in "accuracy" or "share" are shown in
            percent. Called once with the initial parameters, before anything is trained, so that a mistake in it
            costs nothing.
        engine: "tiles" (cycles and memory of the modelled machine) or "direct" (the same bits without tiles).
        target: The modelled chip, by name or as a Target.
        accumulations: The order of each sum by equation number; None: as `choose_accumulations` says,
            the same for all precisions but for groups of products of 8 bits.
        threads: Threads of lowprec's loops.
        title: Heads the table.
        model_state: What the model carries from step to step beside its parameters (see `TrainLoop`), or a function
            seed -> such; `evaluate` then takes (trained parameters, state) as its first argument.
        micro_batches, loss_scale, streamed, overlap, random, recompute: As `TrainLoop` takes them.
        watch: Every how many steps the values of each point are looked at (see `Watch`); `Study.records` then holds
            what was seen. None: never.
        on_nonfinite: What is done in a point whose loss is infinite or NaN: "warn" says so at once and goes on, "stop"
            ends it there, with the equation in which it began; its losses from there on are NaN.
        executor: What trains the points, any of `concurrent.futures`' kind: a pool of processes, a Dask client's
            `get_executor()`, MPI's pool. It must be able to send your functions: Dask sends any, a pool of processes
            those of modules, no lambdas and nothing of a notebook. A point that fails there is among `failures`.
            None: one point after another in this process.

    Raises:
        ValueError: an unknown precision, engine or target, an empty list, a count below 1, or what tracing refuses.
    """
    names = _names(precisions)
    check_loss_function(loss)
    check_optimizer(optimizer)
    check_orders(accumulations)
    steps, seeds, threads = check_count("steps", steps), check_count("seeds", seeds), check_count("threads", threads)
    chip = target if isinstance(target, Target) else Target(target)
    make = params if callable(params) else partial(_same, params)
    given = batches if callable(batches) else _listed(batches)
    state = model_state if callable(model_state) or model_state is None else partial(_same, model_state)
    problem = Problem(loss, make, _by_seed(given), evaluate, state=state)
    recipe = Recipe(
        optimizer,
        steps,
        engine,
        chip,
        micro_batches,
        loss_scale,
        tuple(streamed),
        overlap,
        random,
        on_nonfinite,
        recompute,
    )
    functions = {"loss": loss, "params": params, "batches": given, "evaluate": evaluate, "optimizer": optimizer}
    if model_state is not None:
        functions["model_state"] = model_state
    settings = {name: _short(described(value)) for name, value in functions.items()}
    settings |= {"steps": steps, "engine": engine, "target": _chip(chip)}
    plain = Recipe(optimizer, steps)
    if on_nonfinite not in ("warn", "stop"):
        raise ValueError(f"on_nonfinite must be 'warn' or 'stop', not {on_nonfinite!r}")
    for name in (
        "micro_batches",
        "loss_scale",
        "streamed",
        "overlap",
        "random",
        "on_nonfinite",
        "recompute",
    ):  # where they are not as usual
        if (value := getattr(recipe, name)) != getattr(plain, name):
            settings[name] = list(value) if isinstance(value, tuple) else value
    check_size(problem, recipe, names)  # before its sums are planned, which takes long where it is large
    orders = orders_of_sums(problem, recipe, accumulations)
    study = Study(title or getattr(loss, "__name__", "comparison"), names, settings, accumulations=orders)
    points = [Point(name, seed) for seed in range(seeds) for name in names]
    work = partial(_train, problem, recipe, accumulations, None if watch is None else Watch.of(watch))
    with live.choose(study.table, len(names) * seeds, 0, steps, [str(point) for point in points]) as view:
        study.plan = _rehearse(problem, recipe, names, accumulations)

        def listen(event: Event) -> None:
            study.listen(event)
            view(event)

        if executor is None:
            run_here(work, points, listen, threads)
        else:
            run_on(executor, work, points, listen, threads)
    return study


def _train(
    problem: Problem,
    recipe: Recipe,
    accumulations: Accumulations | None,
    watch: Watch | None,
    point: Point,
    report: Report,
) -> dict[str, Any]:
    return run_point(problem, recipe, point, report, accumulations=accumulations, watch=watch)


def _rehearse(problem: Problem, recipe: Recipe, precisions: Sequence[str], accumulations: Accumulations | None) -> str:
    """Everything that can go wrong at the first step, before there is anything to lose; gives `plan_in_words`."""
    words = plan_in_words(problem, recipe, precisions, accumulations)
    if problem.evaluate is not None:
        first = make_loop(
            problem, replace(recipe, engine="direct", random="philox"), Point(precisions[0], 0), accumulations
        )
        measured(problem.evaluate, trained(first), precisions[0])
    return words


def plan_in_words(
    problem: Problem, recipe: Recipe, precisions: Sequence[str], accumulations: Accumulations | None = None
) -> str:
    """Plans the step in every precision, before anything is trained, and says how each product is computed.

    Raises:
        OutOfTileMemory: a precision does not fit the target.
    """
    check_size(problem, recipe, precisions)
    loops = {name: make_loop(problem, recipe, Point(name, 0), accumulations) for name in precisions}
    return "\n".join(f"{name}\n{loop.words()}\n" for name, loop in loops.items())


def _names(precisions: Sequence[str]) -> tuple[str, ...]:
    """The precisions' names, each once and checked."""
    listed = isinstance(precisions, Iterable) and not isinstance(precisions, str)
    names = tuple(precisions) if listed else ()
    if not names or not all(isinstance(name, str) for name in names):
        meant = precisions.split(",") if isinstance(precisions, str) and "," in precisions else ["fp32.32"]
        raise ValueError(f"precisions must be a list of names such as {meant}, not {precisions!r}")
    for name in names:
        Precision.parse(name)
    return tuple(dict.fromkeys(names))


def _short(description: Any) -> Any:
    """Long descriptions, such as those of data, by their digest."""
    return description if len(json.dumps(description)) <= LONGEST else {"sha256": digest(description)}


def _chip(target: Target) -> Any:
    """A target by its name, and the figures in which it differs from the one of this name."""
    here, usual = asdict(target), asdict(Target(target.name))
    changed = {name: figure for name, figure in here.items() if figure != usual[name]}
    return {"name": target.name, **changed} if changed else target.name


def _listed(batches: Iterable[Any]) -> list[Any]:
    if not isinstance(batches, Iterable):
        raise ValueError(
            f"batches must be a list of batches, or a function (seed, step) -> batch, "
            f"or Samples of a data set, not {batches!r}"
        )
    return list(batches)


def _by_seed(batches: list[Any] | Callable[[int, int], Any]) -> Callable[[int], Callable[[int], Any]]:
    if callable(batches):
        return partial(partial, batches)
    rows = batches
    if not rows:
        raise ValueError("batches must hold at least one batch")
    shapes = [[np.shape(leaf) for leaf in flatten(row)[0]] for row in rows]
    if different := [i for i, row in enumerate(shapes) if row != shapes[0]]:
        i = different[0]
        one = "; one batch of arrays is [(x, y)]" if all(isinstance(row, np.ndarray) for row in rows) else ""
        raise ValueError(f"batches must have equal shapes; batch 0 has {shapes[0]}, batch {i} {shapes[i]}{one}")
    return partial(_in_drawn_order, rows)


def _in_drawn_order(rows: list[Any], seed: int) -> Callable[[int], Any]:
    order = shuffled(len(rows), 1, seed)
    return lambda step: rows[int(order(step)[0])]


def _same(value: Any, seed: int) -> Any:
    return value
