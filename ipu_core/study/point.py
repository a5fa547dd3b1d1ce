"""One point of a study: one precision and one seed, trained from start to end, resumable from a checkpoint."""

from __future__ import annotations

import functools
import inspect
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from ipu_core.compile.planning import choose_accumulations
from ipu_core.compile.schedule.residency import check_room, scheduled
from ipu_core.diagnose.finite import in_words
from ipu_core.diagnose.watch import Watch
from ipu_core.errors import NotFinite
from ipu_core.ir.block import Array, Block
from ipu_core.ir.bodies import equations_of
from ipu_core.ir.precision.precision import Precision
from ipu_core.ir.pytree import flatten, paths
from ipu_core.study.models.unit_scaled import unit_initial
from ipu_core.study.run import Report
from ipu_core.study.settings import Point
from ipu_core.study.summary import MACHINE, OWN, encodable
from ipu_core.study.tasks import Task
from ipu_core.study.typed import PRECISIONS
from ipu_core.train import checkpoint
from ipu_core.train.execution import Execution
from ipu_core.train.keywords import SharedOptions
from ipu_core.train.loop import TrainLoop
from ipu_core.train.options import options_of
from ipu_core.train.step import step_block
from ipu_core.train.training import Training
from ipu_core.train.units import in_units
from ipu_core.train.ways_out import advised
from lowprec import FloatFormat, Key
from lowprec import float32 as FLOAT32

SAMPLES = 40  # steps, spread evenly over a run, on which lost updates are counted
RECORD = "record"
REPORT_SECONDS = 0.25
CHECKPOINT_SECONDS = 5.0
Evaluate = Callable[[Any, Precision], Mapping[str, float]]


@dataclass(frozen=True)
class Problem:
    """What is trained, as functions.

    Attributes:
        loss: (params, batch) -> scalar, traceable; of a model with a state (params, state, batch) -> (scalar, new one).
        params: seed -> initial parameters, nested arrays in float32.
        batches: seed -> (step -> batch).
        evaluate: (trained parameters, precision) -> named measures, as `compare` says; of a model with a state
            ((trained parameters, state), precision) -> such. None: none.
        shapes: stand-ins of the parameters, nested as they are: arrays of their shapes that take no memory (see
            `stand_in`), so that a model far too large is refused before any parameter is made; None: it is refused when
            its first step is planned.
        state: seed -> what the model carries beside its parameters, such as running statistics; None: nothing.
        deviation: standard deviation of the data's floats, which unit scaling asks for.
        sequences_of_a_row: on average, where rows are packed.

    Raises:
        TypeError: evaluate takes other arguments.
    """

    loss: Callable[..., Any]
    params: Callable[[int], Any]
    batches: Callable[[int], Callable[[int], Any]]
    evaluate: Evaluate | None = None
    shapes: Any = None
    state: Callable[[int], Any] | None = None
    deviation: float = 1.0
    sequences_of_a_row: float = 1.0

    def __post_init__(self) -> None:
        if self.evaluate is not None and not takes_arguments(self.evaluate, 2):
            raise TypeError(
                "evaluate takes (params, precision), the trained parameters and a Precision: "
                "lambda params, precision: {'test_accuracy': ...}"
            )

    def under(self, precision: Precision) -> Problem:
        """The problem with unit scaling's factors and initial parameters, if the precision asks for them."""
        loss = in_units(self.loss, precision, self.deviation)
        if loss is self.loss:
            return self
        return replace(self, loss=loss, params=functools.partial(unit_initial, self.params))

    def initial_state(self, seed: int) -> Any:
        """What the model carries before the first step."""
        return None if self.state is None else self.state(seed)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How the points are trained.

    Attributes:
        training: What decides their bits, in any precision: each point has its own.
        execution: Where they are trained.
        steps: Updates of each.
        on_nonfinite: What is done about a loss that is infinite or NaN: "warn" or "stop".

    Raises:
        ValueError: several steps in one call, or something else to do about such a loss.
    """

    training: Training
    execution: Execution
    steps: int
    on_nonfinite: str = "warn"

    def __post_init__(self) -> None:
        if self.on_nonfinite not in ("warn", "stop"):
            raise ValueError(f"on_nonfinite must be 'warn' or 'stop', not {self.on_nonfinite!r}")
        if (calls := self.execution.steps_per_call) > 1:
            raise ValueError(f"a study trains step by step, and tells of each: steps_per_call must be 1, not {calls}")

    @classmethod
    def of(cls, steps: int, *, on_nonfinite: str = "warn", **options: Unpack[SharedOptions]) -> Recipe:
        """A recipe from the keywords of `Training` (but the precision) and `Execution`."""
        training, execution = options_of(precision=PRECISIONS[0], **options)
        return cls(training=training, execution=execution, steps=steps, on_nonfinite=on_nonfinite)

    def trainings(self, precisions: Sequence[str]) -> dict[str, str]:
        """The digest of the Training of each precision."""
        own = {name: replace(self.training, precision=Precision.parse(name)) for name in precisions}
        return {name: training.digest(self.execution) for name, training in own.items()}

    def record(self) -> dict[str, Any]:
        """What decides the bits of all points, as JSON values."""
        training = self.training.record()
        # Points of one study differ in it. Without any other field a folder could mix two trainings.
        del training["precision"]
        # Points that stop at NaN have other results than points that go on.
        stops = {} if self.on_nonfinite == "warn" else {"on_nonfinite": self.on_nonfinite}
        # Elsewhere the Execution decides no bit, and a study may go on on another engine or chip.
        tiles = {"execution": self.execution.record()} if self.training.draws_on_tiles else {}
        return {"steps": self.steps, **stops, "training": training, **tiles}


def make_loop(problem: Problem, recipe: Recipe, point: Point, watch: Watch | None = None) -> TrainLoop:
    """The training loop of a point, at step 0."""
    training = replace(recipe.training, precision=Precision.parse(point.precision))
    problem = problem.under(training.precision)
    return TrainLoop(
        problem.loss,
        problem.params(point.seed),
        problem.batches(point.seed)(0),
        training=training,
        execution=recipe.execution,
        key=Key(point.seed),
        model_state=problem.initial_state(point.seed),
        watch=watch,
        on_nonfinite="stop" if recipe.on_nonfinite == "stop" else "ignore",  # else it is said by the point
    )


def trained(loop: TrainLoop) -> Any:
    """The first argument of a problem's `evaluate`: the parameters, or (parameters, state) of a model with a state."""
    state = loop.model_state
    return loop.params if state is None else (loop.params, state)


def check_size(problem: Problem, recipe: Recipe, precisions: Sequence[str]) -> None:
    """Refuses a model that cannot fit the target in one of the precisions, before any of its parameters is made.

    Raises:
        OutOfTileMemory: the values of one training step alone need more than a tile has; it says what would free some.
    """
    # The direct engine models no memory that could be too small.
    if problem.shapes is None or recipe.execution.engine != "tiles" or recipe.execution.chips > 1:
        return  # of stages each is looked at when it is cut off
    ideal, target = ideal_step(problem, recipe.training), recipe.execution.target
    for name in precisions:
        training = replace(recipe.training, precision=Precision.parse(name))
        with advised(functools.partial(ideal_step, problem), training, recipe.execution):
            check_room(scheduled(training.precision.apply(ideal), target), target)


def orders_of_sums(problem: Problem, training: Training) -> dict[str, str]:
    """The digest of the order of every product and sum of a step, by its name, before a precision is applied.

    Orders that nobody stated stand with the version of their rule, as "rule".
    """
    ideal, stated = ideal_step(problem, training), training.accumulations
    # Before a precision: the order of a sum depends on its size, and all points share it.
    orders = choose_accumulations(ideal, training.rule) if stated is None else stated
    named = {
        equation.name: order.digest()
        for equation in equations_of(ideal)
        if (order := orders.get(equation.number)) is not None
    }
    return {"rule": training.order, **named} if stated is None else named


def ideal_step(problem: Problem, training: Training) -> Block:
    """The step before a precision is applied, traced without making the parameters if their shapes are known."""
    params = problem.params(0) if problem.shapes is None else problem.shapes
    return step_block(
        problem.loss, training.optimizer, params, problem.batches(0)(0), model_state=problem.initial_state(0),
        micro_batches=training.micro_batches, scaled=training.loss_scale is not None, replicas=training.replicas,
        collective=training.collective,
    )  # fmt: skip


def stand_in(*shape: int, zero: bool = False) -> Array:
    """An array of a parameter's shape that takes no memory; all 0 if the parameter begins at 0, else all 1."""
    # Strides of 0. Zeros are told apart since some optimizers treat what begins at zero in another way.
    return np.broadcast_to(np.float32(0 if zero else 1), shape)


def run_point(problem: Problem, recipe: Recipe, task: Task, report: Report) -> dict[str, Any]:
    """Trains one point and measures it.

    Args:
        problem, recipe: What is trained, and how.
        task: In which precision, with which seed, and where to keep what; the caller removes its checkpoint once the
            result is kept.
        report: Called after the first step and then a few times a second with {"step", "loss"}, and with {"warning"}
            if a file cannot be written (the point goes on without) and at the first loss that is not finite.

    Returns:
        The object that becomes a line of results.jsonl; beside its fields, where what was watched is in no file, that
        `Record` as RECORD.
    """
    point, watch = task.point, task.watch
    loop = make_loop(problem, recipe, point, watch)
    batches = problem.batches(point.seed)
    progress = _Progress(loop, task.saved)
    with loop.whole_steps():
        for step in range(loop.step, recipe.steps):
            batch = batches(step)
            if _sampled(step, recipe.steps):
                progress.count_updates(step, batch)
            try:
                progress.losses.append(loop.train(batch))
            # NaN for the steps that are left: all points of a study have as many losses, for the mean and the band.
            except NotFinite as stop:
                report({"warning": f"{stop}; it ends here"})
                progress.losses += [math.nan] * (recipe.steps - step)
                break
            progress.tick(report)
    result = trained(loop)
    measures = measured(problem.evaluate, result, point.precision)
    # A full disk costs the file, not the point, which may be hours of training.
    if task.parameters is not None:
        leaves, tree = flatten(result)
        try:
            checkpoint.save(task.parameters, dict(zip(paths(tree), leaves, strict=True)), {"step": loop.step})
        except OSError as error:
            report({"warning": f"no parameters could be written to {task.parameters}: {error.strerror or error}"})
    if task.state is not None:
        progress.keep(task.state, report)
    seen = {} if watch is None or watch.path is not None else {RECORD: loop.watched}
    return {**_describe(point, loop), **measures, **progress.measures(), **seen}


def measured(evaluate: Evaluate | None, params: Any, precision: str) -> dict[str, float]:
    """What `evaluate` measures, as Python floats by name.

    Raises:
        TypeError: it takes or gives something else.
        ValueError: a measure takes the name of another figure of a result.
    """
    given = {} if evaluate is None else evaluate(params, Precision.parse(precision))
    try:
        found = {encodable(str(name)): float(value) for name, value in given.items()}
    except (AttributeError, TypeError, ValueError):
        raise TypeError(f"evaluate must give named numbers such as {{'test_accuracy': 0.9}}, not {given!r}") from None
    # The fields lie side by side in a line of results.jsonl, so a measure would replace one.
    if taken := sorted(found.keys() & OWN):
        raise ValueError(f"evaluate gives a measure named {taken[0]!r}, which every result has: give it another name")
    return found


def rehearsed(problem: Problem, recipe: Recipe, precision: str) -> dict[str, float]:
    """What `evaluate` measures of the initial parameters, so that a mistake in it costs no training.

    Raises:
        TypeError: it gives something else than named numbers.
        ValueError: a measure takes the name of another figure of a result.
    """
    if problem.evaluate is None:
        return {}
    # It needs parameters of the right formats only: no tiles are planned for it.
    bits, place = replace(recipe.training, random="philox"), replace(recipe.execution, engine="direct")
    first = make_loop(problem, replace(recipe, training=bits, execution=place), Point(precision, 0))
    return measured(problem.evaluate, trained(first), precision)


def takes_arguments(function: Any, count: int) -> bool:
    """Whether a function's signature, if it has one, allows `count` positional arguments."""
    try:
        # bind calls nothing: an error inside `evaluate` must not be taken for a wrong signature.
        inspect.signature(function).bind(*range(count))
    except TypeError:
        return False
    except ValueError:  # which some compiled functions raise
        return True
    return True


class _Progress:
    """Losses, counted updates and time of a run, kept in its checkpoint."""

    def __init__(self, loop: TrainLoop, saved: Path | None) -> None:
        self.losses: list[float] = []
        self._loop, self._saved = loop, saved
        self._samples: list[list[float]] = []  # step, wanted, lost, wanted change along itself, change that arrived
        self._before = 0.0
        self._warned = False
        self._said = False
        self._reported = -math.inf
        self._start = self._kept = time.monotonic()
        if saved is not None and saved.exists():
            arrays, meta = checkpoint.load(saved)
            # restore, not load: the file's name has the study's digest, so its identity is known.
            loop.restore(arrays, meta["step"], meta.get("history"))
            self.losses, self._samples, self._before = meta["losses"], meta["samples"], meta["seconds"]

    def count_updates(self, step: int, batch: Any) -> None:
        counts = self._loop.count_updates(batch)
        self._samples.append([step, counts.wanted, counts.lost, counts.squared, counts.arrived])

    def tick(self, report: Report) -> None:
        now = time.monotonic()
        if now - self._reported >= REPORT_SECONDS:
            self._reported = now
            report({"step": self._loop.step, "loss": self.losses[-1]})
        if self._loop.not_finite is not None and not self._said:
            self._said = True
            step, loss = self._loop.not_finite
            skipped = step in [each.step for each in self._loop.skipped]
            report({"warning": in_words(step, loss, skipped)})
        if self._saved is not None and now - self._kept >= CHECKPOINT_SECONDS:
            self._kept = now
            self.keep(self._saved, report)

    def keep(self, saved: Path, report: Report) -> None:
        meta = {"losses": self.losses, "samples": self._samples, "seconds": self.seconds()}
        meta |= {"step": self._loop.step, "history": self._loop.history()}
        try:
            checkpoint.save(saved, self._loop.arrays(), meta)
        except OSError as error:
            if not self._warned:
                report({"warning": f"no checkpoint could be written to {saved}: {error.strerror or error}"})
            # Once: a disk that is full stays so, and every few seconds would repeat it.
            self._warned = True

    def seconds(self) -> float:
        return self._before + time.monotonic() - self._start

    def measures(self) -> dict[str, Any]:
        _, wanted, lost, squared, arrived = np.asarray(self._samples, np.float64).T
        # A step may want no update at all, such as one whose gradients are all zero.
        shares = [[int(row[0]), row[2] / row[1]] for row in self._samples if row[1]]
        return {
            "lost_updates": float(lost.sum() / wanted.sum()) if wanted.any() else None,
            "update_kept": float(arrived.sum() / squared.sum()) if squared.any() else None,
            "lost_updates_by_step": shares,
            "seconds": round(self.seconds(), 3),
            "losses": self.losses,
        }


def _sampled(step: int, steps: int) -> bool:
    """Whether the step is one of SAMPLES spread evenly over the run (all of them in a shorter one)."""
    count = min(SAMPLES, steps)
    # In integers: no rounding decides which steps are counted.
    return step * count // steps != (step - 1) * count // steps


def _saturated(loop: TrainLoop) -> float:
    """Share of the weights that are the largest number of their format, which is narrower than float32."""
    most = count = 0
    for (name, values), var in zip(loop.arrays().items(), loop.block.inputs, strict=False):
        fmt = var.type.format
        if name.startswith("params") and isinstance(fmt, FloatFormat):
            count += values.size
            most += 0 if fmt.contains(FLOAT32) else int((np.abs(values.astype(np.float64)) >= fmt.max).sum())
    return most / count if count else 0.0


def _describe(point: Point, loop: TrainLoop) -> dict[str, Any]:
    profile = loop.profile
    figures = () if profile is None else (profile.cycles, profile.microseconds, profile.memory.peak_bytes)
    if profile is not None and loop.execution.chips > 1:
        assert loop.system_profile is not None
        took = loop.system_profile.seconds_per_update  # of all stages, where the profile is one chip's work
        figures = (round(took * loop.target.clock), 1e6 * took, profile.memory.peak_bytes)
    skipped = {} if loop.loss_scale is None else {"skipped_steps": [each.step for each in loop.skipped]}
    broken = {} if loop.not_finite is None else {"not_finite_step": loop.not_finite[0]}
    return {
        "precision": point.precision,
        "rounding": Precision.parse(point.precision).rounding_name,
        "seed": point.seed,
        **skipped,
        **broken,
        **dict(zip(MACHINE, figures, strict=False)),  # of no machine none
        "saturated_weights": _saturated(loop),
        "accumulations": {name: order.digest() for name, (_, order) in loop.sums().items()},
    }
