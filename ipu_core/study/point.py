"""One point of a study: one precision and one seed, trained from start to end, resumable from a checkpoint."""

from __future__ import annotations

import functools
import inspect
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from ipu_core.compile.planning import choose_accumulations
from ipu_core.compile.residency import check_room, scheduled
from ipu_core.errors import NotFinite
from ipu_core.ir.block import Array, Block
from ipu_core.ir.bodies import equations_of
from ipu_core.ir.precision import Precision
from ipu_core.ir.pytree import flatten, paths
from ipu_core.plan.orders import RULE, OrderRule
from ipu_core.study.run import Report
from ipu_core.study.scaling import unit_initial
from ipu_core.study.settings import Point
from ipu_core.study.summary import OWN
from ipu_core.target import Target
from ipu_core.train import checkpoint
from ipu_core.train.finite import in_words
from ipu_core.train.loop import TrainLoop
from ipu_core.train.optim import Optimiser
from ipu_core.train.step import step_block
from ipu_core.train.units import in_units
from ipu_core.train.watch import Watch
from lowprec import Accumulation, Key

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
    """

    loss: Callable[..., Any]
    params: Callable[[int], Any]
    batches: Callable[[int], Callable[[int], Any]]
    evaluate: Evaluate | None = None
    shapes: Any = None
    state: Callable[[int], Any] | None = None
    deviation: float = 1.0

    def under(self, precision: Precision) -> Problem:
        """The problem with the factors of unit scaling and the parameters of that, if the precision wants it so."""
        loss = in_units(self.loss, precision, self.deviation)
        if loss is self.loss:
            return self
        return replace(self, loss=loss, params=functools.partial(unit_initial, self.params))

    def initial_state(self, seed: int) -> Any:
        """What the model carries before the first step."""
        return None if self.state is None else self.state(seed)


@dataclass(frozen=True)
class Recipe:
    """How it is trained, the same for every point; the fields are arguments of `TrainLoop`."""

    optimizer: Optimiser
    steps: int
    engine: str = "tiles"
    target: Target = field(default_factory=Target)
    micro_batches: int = 1
    loss_scale: float | str | None = None
    streamed: tuple[str, ...] = ()
    overlap: bool = False
    random: str = "philox"
    on_nonfinite: str = "warn"
    recompute: bool | float = False


def make_loop(
    problem: Problem,
    recipe: Recipe,
    point: Point,
    accumulations: Mapping[int, Accumulation] | None = None,
    watch: Watch | None = None,
) -> TrainLoop:
    """The training loop of a point, at step 0."""
    precision = Precision.parse(point.precision)
    problem = problem.under(precision)
    return TrainLoop(
        problem.loss,
        problem.params(point.seed),
        problem.batches(point.seed)(0),
        optimizer=recipe.optimizer,
        precision=precision,
        engine=recipe.engine,
        target=recipe.target,
        key=Key(point.seed),
        accumulations=accumulations,
        micro_batches=recipe.micro_batches,
        loss_scale=recipe.loss_scale,
        streamed=recipe.streamed,
        overlap=recipe.overlap,
        random=recipe.random,
        recompute=recipe.recompute,
        model_state=problem.initial_state(point.seed),
        watch=watch,
        on_nonfinite="stop" if recipe.on_nonfinite == "stop" else "ignore",  # else it is said by the point
    )


def trained(loop: TrainLoop) -> Any:
    """What a problem's `evaluate` takes: the parameters, with the model's state where it has one."""
    state = loop.model_state
    return loop.params if state is None else (loop.params, state)


def check_size(problem: Problem, recipe: Recipe, precisions: Sequence[str]) -> None:
    """Refuses a model that cannot fit the target in one of the precisions, before any of its parameters is made.

    Raises:
        OutOfTileMemory: the values of one training step alone need more than a tile has.
    """
    if problem.shapes is None or recipe.engine != "tiles":
        return
    ideal = _ideal_step(problem, recipe)
    for name in precisions:
        check_room(scheduled(Precision.parse(name).apply(ideal), recipe.target), recipe.target)


def orders_of_sums(
    problem: Problem, recipe: Recipe, accumulations: Mapping[int, Accumulation] | None = None
) -> dict[str, str]:
    """The digest of the order of every product and sum of a step, by its name, before a precision is applied.

    Orders that nobody stated stand with the version of their rule, as "rule".
    """
    ideal = _ideal_step(problem, recipe)
    orders = choose_accumulations(ideal, OrderRule.of(recipe.target)) if accumulations is None else accumulations
    named = {
        f"{equation.number} {equation.role} {equation.op} {equation.parameter or ''}".rstrip(): order.digest()
        for equation in equations_of(ideal)
        if (order := orders.get(equation.number)) is not None
    }
    return {"rule": RULE, **named} if accumulations is None else named


def _ideal_step(problem: Problem, recipe: Recipe) -> Block:
    """The step before a precision is applied, traced without making the parameters if their shapes are known."""
    params = problem.params(0) if problem.shapes is None else problem.shapes
    state = problem.initial_state(0)
    return step_block(
        problem.loss, recipe.optimizer, params, problem.batches(0)(0), model_state=state,
        micro_batches=recipe.micro_batches, scaled=recipe.loss_scale is not None,
    )  # fmt: skip


def stand_in(*shape: int, zero: bool = False) -> Array:
    """An array of a parameter's shape in place of it, without memory of its own: 0 where that begins at 0, else 1."""
    return np.broadcast_to(np.float32(0 if zero else 1), shape)


def run_point(
    problem: Problem,
    recipe: Recipe,
    point: Point,
    report: Report,
    *,
    accumulations: Mapping[int, Accumulation] | None = None,
    saved: Path | None = None,
    parameters: Path | None = None,
    watch: Watch | None = None,
    state: Path | None = None,
) -> dict[str, Any]:
    """Trains one point and measures it.

    Args:
        problem, recipe, point: What, how, and in which precision and with which seed.
        report: Called after the first step and then a few times a second with {"step", "loss"}, and with {"warning"}
            if a file cannot be written (the point goes on without) and at the first loss that is not finite.
        accumulations: The order of every sum, by equation; None: the same choice for all precisions.
        saved: Where to keep a checkpoint while it runs; one found there is continued, bit for bit. The caller removes
            it once the result is kept.
        parameters: Where to write the trained parameters, as `checkpoint.save` does.
        watch: What is looked at while it trains; None: nothing.
        state: Where to keep the checkpoint at the end, from which a longer training goes on.

    Returns:
        The object that becomes a line of results.jsonl; beside its fields, where what was watched is in no file, that
        `Record` as RECORD.
    """
    loop = make_loop(problem, recipe, point, accumulations, watch)
    batches = problem.batches(point.seed)
    progress = _Progress(loop, saved)
    with loop.whole_steps():
        for step in range(loop.step, recipe.steps):
            batch = batches(step)
            if _sampled(step, recipe.steps):
                progress.count_updates(step, batch)
            try:
                progress.losses.append(loop.train(batch))
            except NotFinite as stop:
                report({"warning": f"{stop}; it ends here"})
                progress.losses += [math.nan] * (recipe.steps - step)
                break
            progress.tick(report)
    result = trained(loop)
    measures = measured(problem.evaluate, result, point.precision)
    if parameters is not None:
        leaves, tree = flatten(result)
        try:
            checkpoint.save(parameters, dict(zip(paths(tree), leaves, strict=True)), {"step": loop.step})
        except OSError as error:
            report({"warning": f"no parameters could be written to {parameters}: {error.strerror or error}"})
    if state is not None:
        progress.keep(state, report)
    seen = {} if watch is None or watch.path is not None else {RECORD: loop.watched}
    return {**_describe(point, loop), **measures, **progress.measures(), **seen}


def measured(evaluate: Evaluate | None, params: Any, precision: str) -> dict[str, float]:
    """What `evaluate` measures, as Python floats by name.

    Raises:
        TypeError: it takes or gives something else.
        ValueError: a measure takes the name of another figure of a result.
    """
    if evaluate is not None and not _takes(evaluate, 2):
        raise TypeError(
            "evaluate takes (params, precision), the trained parameters and a Precision: "
            "lambda params, precision: {'test_accuracy': ...}"
        )
    given = {} if evaluate is None else evaluate(params, Precision.parse(precision))
    try:
        found = {str(name): float(value) for name, value in given.items()}
    except (AttributeError, TypeError, ValueError):
        raise TypeError(f"evaluate must give named numbers such as {{'test_accuracy': 0.9}}, not {given!r}") from None
    if taken := sorted(found.keys() & OWN):
        raise ValueError(f"evaluate gives a measure named {taken[0]!r}, which every result has: give it another name")
    return found


def _takes(function: Any, count: int) -> bool:
    """Whether a function can be called with so many arguments, as far as it says."""
    try:
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
            self._warned = True

    def seconds(self) -> float:
        return self._before + time.monotonic() - self._start

    def measures(self) -> dict[str, Any]:
        _, wanted, lost, squared, arrived = np.asarray(self._samples, np.float64).T
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
    return step * count // steps != (step - 1) * count // steps


def _describe(point: Point, loop: TrainLoop) -> dict[str, Any]:
    profile = loop.profile
    machine = (
        {}
        if profile is None
        else {
            "cycles_per_step": profile.cycles,
            "microseconds_per_step": profile.microseconds,
            "tile_memory": profile.memory.peak_bytes,
        }
    )
    skipped = {} if loop.loss_scale is None else {"skipped_steps": [each.step for each in loop.skipped]}
    broken = {} if loop.not_finite is None else {"not_finite_step": loop.not_finite[0]}
    return {
        "precision": point.precision,
        "rounding": Precision.parse(point.precision).rounding_name,
        "seed": point.seed,
        **skipped,
        **broken,
        **machine,
        "accumulations": {name: order.digest() for name, (_, order) in loop.sums().items()},
    }
