"""What `python -m ipu_core profile` does of a model: the account of one training step, and two of them compared."""

from __future__ import annotations

import functools
import json
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from ipu_core.compile import bill as bills
from ipu_core.compile.bill import Bill
from ipu_core.engine.profile import Profile
from ipu_core.errors import NothingSaved, OutOfTileMemory
from ipu_core.ir.precision.precision import Precision
from ipu_core.report.beside import differing, ratio, read_data, settings_in_words, side_by_side, to_data
from ipu_core.report.html import comparison_to_html, to_html
from ipu_core.report.operations import Operation, by_layer, by_operation
from ipu_core.report.trace import to_chrome
from ipu_core.study.files import check_writable, write_texts
from ipu_core.study.models import catalogue as models
from ipu_core.study.models.named import is_own
from ipu_core.study.point import Problem, Recipe, check_size, ideal_step, make_loop
from ipu_core.study.settings import Point, Settings
from ipu_core.system import page as system_page
from ipu_core.system.account import SystemProfile
from ipu_core.train.execution import Execution
from ipu_core.train.loop import TrainLoop
from ipu_core.train.optimizer_memory import OptimizerNeed, by_optimizer
from ipu_core.train.planned import planned_step
from ipu_core.train.table import Table
from ipu_core.train.training import Training
from ipu_core.train.ways_out import Trace
from lowprec import as_format

Load = Callable[[Settings], models.Task]
PROFILE = ("profile.json", "profile.html", "trace.json")
SYSTEM = ("system.html", "system-trace.json")  # beside them, of several chips
COMPARISON = "comparison.html"
FAR = 4  # tiles' memory; what needs more is refused, since planning a step that is far too large takes long
LAYERS = 16  # rows that are printed


@dataclass(frozen=True)
class _Accounted:
    """A step's account.

    Attributes:
        plan: in words.
        profile: the account.
        refusal: what was said where it does not fit; None: it does.
        system: of the update on all chips; None: it does not fit.
        unsaved: what of its settings is worth no memory, in words.
    """

    plan: str
    profile: Profile
    refusal: OutOfTileMemory | None = None
    system: SystemProfile | None = None
    unsaved: tuple[str, ...] = ()


def profile(
    settings: Settings, precision: str, folder: Path | None, load: Load = models.load, *, as_json: bool = False
) -> None:
    """Prints the plan of one training step and its account on the modelled machine, also of one that does not fit.

    Args:
        settings: What is trained and where; the engine is always the tiles.
        precision: Its name.
        folder: Where to write profile.json, profile.html and trace.json (for Perfetto), and of several chips
            system.html and system-trace.json; None: nowhere.
        load: As of `study`.
        as_json: Print what profile.json holds instead.

    Raises:
        ValueError: the folder cannot be written.
        OutOfTileMemory: the values of one training step alone need several times what a tile has.
    """
    if folder is not None:
        check_writable(folder, (*PROFILE, *SYSTEM))
    if settings.stash is not None and as_format(settings.stash).dtype is None:
        raise ValueError(
            f"a profile is of the tiles, and {settings.target} has no unit for stashes in {settings.stash}: --stash "
            "float8_e4m3 is one in as many bits that it has"
        )
    task = load(settings)
    # The direct engine has no account to show.
    tiled = replace(settings, engine="tiles")
    problem = models.problem(tiled, task)
    how = Recipe(training=tiled.training(problem), execution=tiled.execution(), steps=tiled.steps)
    made = _accounted(problem, how, precision)
    title = f"{models.title(tiled, task, 'one step')}, {how.execution}, {precision}"
    training = replace(how.training, precision=Precision.parse(precision))
    said = settings_in_words({**tiled.record(task), **training.record(), **how.execution.record()})
    trace = functools.partial(ideal_step, problem)
    # A stage's memory is not the step's.
    needs = () if how.execution.chips > 1 else by_optimizer(trace, training, how.execution, made.profile.memory)
    # A model in a file says its batches itself.
    samples = None if is_own(settings.model) else settings.batch
    data = to_data(made.profile, settings=said, samples=samples)
    data["by_optimizer"] = [need._asdict() for need in needs]
    data["saves_nothing"] = list(made.unsaved)
    scaled = _scaled(problem, how, precision, made)
    data["loss_scale"] = None if scaled is None else scaled._asdict()
    data["system"] = None if made.system is None else made.system.to_json()
    many = made.system if made.system is not None and made.system.chips > 1 else None
    if many is not None:  # the rest is one chip's
        data |= {"seconds_per_update": many.seconds_per_update, "joules": list(many.joules_per_update)}
    print(json.dumps(data) if as_json else _words(title, made, needs, scaled))
    if folder is not None:
        page = to_html(made.profile, title, settings=said, samples=samples, data=data)
        texts = json.dumps(data), page, json.dumps(to_chrome(made.profile))
        write_texts(folder, dict(zip(PROFILE, texts, strict=True)))
        if many is not None:
            both = system_page.to_html(many, title), json.dumps(system_page.to_chrome(many))
            write_texts(folder, dict(zip(SYSTEM, both, strict=True)))


class ScaledStep(NamedTuple):
    """What a loss scale costs: scaling, the guard that looks at the gradients, and what they change of the schedule.

    Attributes:
        cycles: of the step.
        without: of the same step without a loss scale, planned again.
        share: of the cycles, what the scale takes.
    """

    cycles: int
    without: int
    share: float

    def words(self) -> str:
        """In a line."""
        more, share = self.cycles - self.without, 100 * self.share
        return f"Loss scale, with its guard: {more:,} cycles, {share:.1f} % of the step; without it {self.without:,}"


def _scaled(problem: Problem, how: Recipe, precision: str, made: _Accounted) -> ScaledStep | None:
    """What the loss scale costs of a step that fits; None: there is none."""
    if how.training.loss_scale is None or made.refusal is not None or how.execution.chips > 1:
        return None  # without it stages may be cut elsewhere
    plain = replace(how, training=replace(how.training, loss_scale=None))
    cycles, without = made.profile.cycles, _accounted(problem, plain, precision).profile.cycles
    return ScaledStep(cycles, without, (cycles - without) / cycles)


def _accounted(problem: Problem, how: Recipe, precision: str) -> _Accounted:
    """The account of a step, whether it fits or not."""
    try:
        # Before the loop is planned, which takes long where a model is far too large.
        check_size(problem, how, [precision])
        loop, unsaved = _made(problem, how, precision)
    except OutOfTileMemory as refusal:
        if refusal.needed > FAR * refusal.available or how.execution.chips > 1:
            raise
        training = replace(how.training, precision=Precision.parse(precision))
        made = unfitting(functools.partial(ideal_step, problem), training, how.execution)
        return _Accounted(f"  {training.precision.words()}\n{made.plan.words()}", made.profile(None), refusal)
    assert loop.profile is not None
    return _Accounted(loop.words(), loop.profile, system=loop.system_profile, unsaved=unsaved)


def _made(problem: Problem, how: Recipe, precision: str) -> tuple[TrainLoop, tuple[str, ...]]:
    """A loop, and what it says of settings that save nothing; other warnings are given as ever."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", NothingSaved)
        loop = make_loop(problem, how, Point(precision, 0))
    for each in said:
        if not issubclass(each.category, NothingSaved):
            warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)
    return loop, tuple(str(each.message) for each in said if issubclass(each.category, NothingSaved))


def unfitting(trace: Trace, training: Training, execution: Execution) -> Bill:
    """The account of a step that does not fit its tiles."""
    planned = planned_step(trace(training), training, execution, allow_out_of_memory=True)
    return bills.bill(
        planned.block, execution.target, planned.accumulations, training.control, overlap=execution.overlap,
        share=execution.reorder, allow_out_of_memory=True,
    )  # fmt: skip


def _words(title: str, made: _Accounted, needs: tuple[OptimizerNeed, ...], scaled: ScaledStep | None) -> str:
    memory = made.profile.memory
    parts = [title]
    if made.refusal is not None:
        parts.append(f"It does not fit, {memory.share:.0%} of a tile: {made.refusal}")
    parts += [f"Saves nothing: {words}" for words in made.unsaved]
    parts += [f"Plan\n{made.plan}", str(_operations(made.profile))]
    parts += [] if scaled is None else [scaled.words()]
    parts += [str(_layers(made.profile)), *([str(optimizer_table(needs))] if needs else []), str(made.profile)]
    parts += [str(made.system)] if made.system is not None and made.system.chips > 1 else []
    return "\n\n".join(parts)


def _operations(profile: Profile) -> Table:
    rows = [(each.role, each.operation, *_shares(each, profile)) for each in by_operation(profile)]
    return Table("By role and operation", ("role", "operation", "steps", "cycles", "share"), tuple(rows))


def _layers(profile: Profile) -> Table:
    found = by_layer(profile)
    rows = [(each.role, *_shares(each, profile)) for each in found[:LAYERS]]
    note = f"and {len(found) - LAYERS} more, in profile.html" if len(found) > LAYERS else ""
    return Table("By layer", ("layer", "steps", "cycles", "share"), tuple(rows), note)


def _shares(each: Operation, profile: Profile) -> tuple[str, str, str]:
    return f"{each.steps:,}", f"{each.cycles:,}", f"{100 * each.cycles / max(1, profile.cycles):.1f} %"


def optimizer_table(needs: tuple[OptimizerNeed, ...]) -> Table:
    """What the step needs of the fullest tile under each optimizer."""
    rows = [(need.optimizer, f"{need.values:,}", f"{need.whole:,}", f"{need.share:.0%}") for need in needs]
    note = "all but the first: the values by their shapes, what lives beside them taken to stay as it is"
    columns = ("optimizer, its moments", "values", "in all", "of a tile")
    return Table("Bytes of the fullest tile by optimizer", columns, tuple(rows), note)


def compare_profiles(paths: tuple[str, str], folder: Path | None) -> None:
    """Prints two profiles' figures side by side, with the ratio of the second to the first, and what was set otherwise.

    Args:
        paths: Folders or files that `profile` wrote.
        folder: Where to write comparison.html; None: nowhere.

    Raises:
        ValueError: a file that is no such profile, or a folder that cannot be written.
    """
    if folder is not None:
        check_writable(folder, [COMPARISON])
    both = [read_data(path) for path in paths]
    rows, others = side_by_side(*both), differing(*both)
    cells = tuple((row[0], f"{row[1]:,}", f"{row[2]:,}", ratio(row)) for row in rows)
    first, second = (path.name or str(path) for path in map(Path, paths))
    names = (first, second) if first != second else ("A", "B")
    if others:
        print(f"{Table('Settings that differ', ('setting', *names), tuple(others))}\n")
    else:
        print("no setting differs\n")
    print(Table("", ("", *names, "ratio"), cells))
    if folder is not None:
        write_texts(folder, {COMPARISON: comparison_to_html(rows, names, others, both)})
