"""Trains one loss over axes of formats, roundings, rates and groups: a grid, draws of it, or a bisection."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

from ipu_core.compile.planning import choose_accumulations
from ipu_core.ir.precision.precision import Precision
from ipu_core.study.axes import GROUP, RATE, Axis, Setting, axes_of, drawn, grid, label, one_by_one, setting
from ipu_core.study.compare import compare, listed, precision_text, problem_of, said
from ipu_core.study.live import as_a_part
from ipu_core.study.point import Evaluate, Problem, Recipe, ideal_step, rehearsed
from ipu_core.study.rows import MEASURED
from ipu_core.study.settings import check_count, usual_engine
from ipu_core.study.summary import MACHINE
from ipu_core.study.swept import Sweep
from ipu_core.study.typed import SEARCHES
from ipu_core.train.arguments import is_real
from ipu_core.train.execution import Execution
from ipu_core.train.keywords import SharedOptions, takes
from ipu_core.train.options import options_of
from ipu_core.train.training import Training
from lowprec import Identified
from lowprec.checks import shown

LONGEST = 100  # characters of the name of a folder


@takes(SharedOptions, Training, Execution)
def sweep(
    loss: Callable[[Any, Any], Any],
    params: Any,
    batches: Iterable[Any] | Callable[[int, int], Any],
    axes: Mapping[str, Any],
    *,
    steps: int,
    base: str | Precision | Identified = "fp32.32",
    seeds: int = 3,
    search: str = "grid",
    points: int | None = None,
    within: float = 0.02,
    by: str = "final_loss",
    evaluate: Evaluate | None = None,
    training: Training | None = None,
    execution: Execution | None = None,
    model_state: Any = None,
    folder: str | Path | None = None,
    on_nonfinite: str = "warn",
    executor: Executor | None = None,
    threads: int = 1,
    title: str = "",
    **options: Unpack[SharedOptions],
) -> Sweep:
    """Trains a loss function of your own at every point of some axes, and beside them in a base precision.

        sweep(loss, params, batches, {"weights": "e8m10 ... e8m1", "operands": ["e5m10 ... e5m2", "e4m3finite"]},
              search="each", optimizer=Adam(0.01), steps=500, folder="bits")

    Args:
        loss, params, batches, steps, evaluate, training, execution, model_state, on_nonfinite, executor, threads,
            title: As of `compare`.
        axes: What is varied -> its values. A field of `Precision` ("weights", "operands", "moments", "every", several
            joined by "+"), "rounding", a rule's left side ("layers.0:weights") or "precision" (whole ones): texts,
            among them ranges "e8m10 ... e8m1" of two texts that differ in one whole number. "lr": rates. "group":
            products that are added before a partial sum is rounded, of every sum. Or a field of `Training`
            ("loss_scale", "optimizer", "micro_batches"): its values.
        base: The precision that the values are set on top of; it is trained itself, as the line to compare with.
        seeds: How many: 0, 1, 2, ...
        search: "grid": every combination. "each": every value of one axis, the others as in the base, axis after axis.
            "random": so many `points` of the grid, drawn without repetition. "bisect": of each axis, the others as in
            the base, the last value (the first being the widest) that still trains within `within` of the base, by
            halving, which asks that what trains is not followed by what does not and then by what does.
        points: Of a random search.
        within: Of the base's mean, for a bisection: 0.02 is 2 %.
        by: What decides: "final_loss" or a measure of `evaluate`, of which those that end in "accuracy" or "share" are
            better where larger.
        folder: Where each point is kept as soon as it is finished, as of `compare`: after Ctrl-C or a kill the same
            call goes on, a call with more values or seeds trains those that are missing, and another loss, batches or
            optimizer is refused. sweep.csv and sweep.png are written there.
        **options: As of `compare`; without an engine the tiles are taken where they have units for every format, else
            the direct engine, which is said.

    Raises:
        ValueError: no such search, axis, value or measure; what `compare` refuses.
        TypeError: an argument of another kind.
        OtherStudy: the folder holds another study.
    """
    base = precision_text(base)
    if "precision" in options:
        raise TypeError("a sweep takes its precision as base=, on top of which the axes' values are set")
    # Several comparisons go over them: an iterator would be at its end after the first.
    batches = batches if callable(batches) else listed(batches)
    every, spaced = axes_of(axes), {"steps": steps, "seeds": seeds}
    for name, count in spaced.items():
        check_count(name, count)
    if search not in SEARCHES:
        raise ValueError(f"search is {', '.join(SEARCHES)}, not {shown(search)}")
    if (search == "random") != (points is not None):
        raise ValueError("points is how many of the grid are drawn: it stands beside search='random', and only there")
    if not is_real(within) or not 0 < within < math.inf:
        raise ValueError(f"within must be a positive share of the base's loss, not {shown(within)}")
    start = setting(base, (), {})
    first = {"grid": grid, "each": one_by_one, "bisect": one_by_one}.get(search)
    chosen = first(every) if first else drawn(every, check_count("points", points))  # type: ignore[arg-type]
    asked = [setting(base, every, values) for values in chosen]
    # The base under each training that is varied: what a setting is compared with.
    lines = [setting(base, every, dict(recipe)) for recipe in dict.fromkeys(each.recipe for each in asked)]
    settings = [*{tuple(each.values.items()): each for each in (start, *lines, *asked)}.values()]
    if execution is None and "engine" not in options:
        target = _values(training, None, base, options)[1].target
        engine, why = usual_engine(target, [each.precision for each in settings])
        options["engine"] = engine
        if why is not None:
            said(f"{why}; all of this sweep is, to the same bits, without cycles and memory\n")
    training, execution = _values(training, execution, base, options)
    # Every training and what decides are known to be right before the first point is trained.
    problem = problem_of(loss, params, batches, evaluate, model_state)
    trainings = {each.recipe: _with(training, each.recipe, problem) for each in settings}
    for each in trainings.values():
        ideal_step(problem, each)
    _check_measure(by, problem, Recipe(training=training, execution=execution, steps=steps), base)
    made = Sweep(title or getattr(loss, "__name__", "sweep"), every, start, settings, by, within, search)

    @as_a_part()
    def train(wanted: Sequence[Setting]) -> None:
        """Adds the studies of some settings to what is made."""
        recipes = dict.fromkeys(each.recipe for each in wanted)
        for recipe in recipes:
            own = dict.fromkeys(each.precision for each in wanted if each.recipe == recipe)
            study = compare(
                loss, params, batches, list(own), steps=steps, seeds=seeds, evaluate=evaluate,
                training=trainings[recipe], execution=execution,
                model_state=model_state, folder=None if folder is None else Path(folder) / _place(recipe),
                on_nonfinite=on_nonfinite, executor=executor, threads=threads,
                title=", ".join([made.title, *(f"{name} {label(value)}" for name, value in recipe)]),
            )  # fmt: skip
            made.take(recipe, study)

    if search == "bisect":
        made.settings = [start]
        train([start])
        for axis in every:
            _bisect(made, axis, base, train)
    else:
        train(settings)
    if folder is not None and made.rows():
        made.to_csv(Path(folder) / "sweep.csv")
        made.picture_to(Path(folder) / "sweep.png")
    return made


def _bisect(made: Sweep, axis: Axis, base: str, train: Callable[[Sequence[Setting]], None]) -> None:
    """Trains values of an axis until the last that trains is known; the widest and the narrowest come first."""
    settings = [setting(base, (axis,), {axis.name: value}) for value in axis.values]

    def works(number: int) -> bool:
        if settings[number] not in made.settings:
            made.settings.append(settings[number])
            train([settings[number]])
        return made.trains(settings[number])

    low, high = 0, len(settings) - 1
    if not works(low):
        made.fewest[axis.name] = None
        return
    if works(high):
        low = high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if works(middle) else (low, middle)
    made.fewest[axis.name] = axis.values[low]


def _values(
    training: Training | None, execution: Execution | None, base: str, options: SharedOptions
) -> tuple[Training, Execution]:
    if training is None:
        return options_of(execution=execution, precision=base, **options)
    return options_of(training, execution, **options)


def _check_measure(by: str, problem: Problem, how: Recipe, base: str) -> None:
    """Refuses what is measured of no point, or what a model without a machine does not have."""
    known = [name for name in MEASURED if how.execution.engine == "tiles" or name not in MACHINE]
    # `evaluate` is called only where it may have given the name.
    if by not in known and by not in (own := rehearsed(problem, how, base)):
        machine = f" (engine={how.execution.engine!r} models no machine)" if by in MACHINE else ""
        raise ValueError(f"by: there is no measure {by!r}{machine}; there are {', '.join([*known, *own])}")


def _with(training: Training, recipe: Sequence[tuple[str, Any]], problem: Problem) -> Training:
    """A training with the changes of a recipe."""
    # The rate is of the optimizer that is varied beside it, the order of sums of all else.
    for name, value in sorted(recipe, key=lambda change: change[0] in (RATE, GROUP)):
        if name == RATE:
            training = replace(training, optimizer=replace(training.optimizer, lr=value))  # type: ignore[type-var]
        elif name == GROUP:
            orders = choose_accumulations(ideal_step(problem, training), training.rule)
            own: Any = {number: replace(order, group=value) for number, order in orders.items()}
            training = replace(training, accumulations=own)
        else:
            training = replace(training, **{name: value})
    return training


def _place(recipe: Sequence[tuple[str, Any]]) -> str:
    """The folder of a recipe's study within the sweep's; "" where nothing of the training is varied."""
    place = ",".join(f"{name}={label(value)}" for name, value in recipe).replace("/", "_")
    # An optimizer's text may be longer than a file's name can be.
    return place if len(place) <= LONGEST else hashlib.sha256(place.encode()).hexdigest()[:16]
