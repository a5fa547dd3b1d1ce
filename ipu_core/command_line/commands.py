"""What each command does with its options; each returns the exit code."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ipu_core import figures, own, packing, reproduce, study, workloads
from ipu_core.command_line.given import settings_of, trained_with
from ipu_core.command_line.words import OF_CHIPS, OF_SYSTEMS, option
from ipu_core.study import live
from ipu_core.study.executors import connected
from ipu_core.study.settings import Point, Settings
from ipu_core.study.typed import parse_one_precision, parse_precisions

if TYPE_CHECKING:
    from ipu_core.study.results import Study


def run_study(given: argparse.Namespace) -> int:
    precisions = parse_precisions(given.precisions)
    settings = trained_with(given, precisions)
    if given.executor is not None and given.workers is not None:
        raise ValueError("--workers are processes of this machine, an --executor has workers of its own: give one")
    with connected(given.executor) as executor:
        return _kept(given, settings, precisions, range(given.seeds), workers=given.workers, executor=executor)


def run_sweep(given: argparse.Namespace) -> int:
    axes: dict[str, list[Any]] = {}
    for name, *values in given.axis:
        axes.setdefault(name, []).extend(values)
    if not axes or not all(axes.values()):
        raise ValueError("a sweep is over axes: --axis weights 'e8m10 ... e8m1' --axis lr 0.1 0.01")
    settings = trained_with(given, study.command.swept(axes, given.base))
    try:
        made = study.command.sweep_of(
            settings, axes, given.out, own.models.load, base=given.base, search=given.search, points=given.points,
            by=given.by, within=given.within, seeds=given.seeds, threads=given.threads,
        )  # fmt: skip
    except TypeError as wrong:  # a value of another kind than its axis: what was typed, and no mistake of ours
        raise ValueError(str(wrong)) from wrong
    for point, error in made.failures.items():
        print(f"{point} failed: {error}", file=sys.stderr)
    print(f"written to {given.out}")
    return 2 if made.failures else 0


def run_train(given: argparse.Namespace) -> int:
    precision = parse_one_precision(given.precision)
    return _kept(given, trained_with(given, [precision]), (precision,), [given.seed], workers=1, keep_parameters=True)


def _kept(
    given: argparse.Namespace, settings: Settings, precisions: tuple[str, ...], seeds: Sequence[int], **more: Any
) -> int:
    """A study in its folder; its bars are shown before what trains its points is loaded."""
    points = [str(Point(name, seed)) for seed in seeds for name in precisions]
    with live.begun(settings.steps, points) as view:
        made, folder = study.command.study(
            settings, precisions, tuple(seeds), given.out, threads=given.threads, force=given.force, watch=given.watch,
            view=view, load=own.models.load, **more,
        )  # fmt: skip
    return _finish(made, folder)


def _finish(made: "Study", folder: Path) -> int:
    for point, error in made.failures.items():
        print(f"{point} failed: {error}", file=sys.stderr)
    for name, error in made.unwritten.items():
        print(f"{name} could not be written: {error}", file=sys.stderr)
    # a folder may hold files of others, which this run did not write
    names = sorted(path.name for path in folder.iterdir() if study.files.is_own(path.name))
    print(f"written to {folder}: {', '.join(names)}")
    return 2 if made.failures or made.unwritten else 0


def run_profile(given: argparse.Namespace) -> int:
    if given.compare is not None:
        study.profiles.compare_profiles(tuple(given.compare), given.out)
        return 0
    if given.name in workloads.NAMES:
        again = given.recompute
        if again not in (None, False, ("layers",)):
            raise ValueError("--recompute of a workload is none or layers")
        if given.system is not None:
            return _on_system(given)
        if said := [name for name in (*OF_SYSTEMS, *OF_CHIPS) if getattr(given, name) is not None]:
            raise ValueError(f"{option(said[0])} is of many chips: --system says which")
        workloads.command.profile(
            given.name, given.stage, micro_batch=given.micro_batch, micro_batches=given.micro_batches,
            target=given.target, precision=given.precision, recompute=_recomputed(again),
            update_overhead=given.update_overhead, as_json=given.json, folder=given.out,
        )  # fmt: skip
        return 0
    precision = parse_one_precision(given.precision)
    study.profiles.profile(settings_of(given, [precision]), precision, given.out, own.models.load, as_json=given.json)
    return 0


def _on_system(given: argparse.Namespace) -> int:
    for name, why in {"target": "which --system says", "stage": "and --system takes the slowest"}.items():
        if getattr(given, name) is not None:
            raise ValueError(f"--{name} is of one chip, {why}")
    if not isinstance(given.stages, int | None):
        raise ValueError("--stages of a workload is how many, as in --stages 4")
    if given.configurations:
        others = (
            "replicas", "micro_batches", "collective", "precision", "recompute", "update_overhead", "out",
            "host_samples_per_second",
        )  # fmt: skip
        if said := [name for name in others if getattr(given, name) is not None] + ["json"] * given.json:
            raise ValueError(f"{option(said[0])} is not for --configurations, which finds them")
        workloads.system_command.choose(
            given.name, given.system, given.global_batch, stages=given.stages, micro_batch=given.micro_batch,
            schedule=given.pipeline_schedule,
        )  # fmt: skip
        return 0
    workloads.system_command.profile(
        given.name, given.system, stages=given.stages, replicas=given.replicas, micro_batch=given.micro_batch,
        micro_batches=given.micro_batches, global_batch=given.global_batch, schedule=given.pipeline_schedule,
        collective=given.collective, precision=given.precision, recompute=_recomputed(given.recompute),
        update_overhead=given.update_overhead, host_samples_per_second=given.host_samples_per_second,
        as_json=given.json, folder=given.out,
    )  # fmt: skip
    return 0


def _recomputed(again: object) -> str | None:
    return None if again is None else "layers" if again else "none"


def run_blame(given: argparse.Namespace) -> int:
    precision = parse_one_precision(given.precision)
    limits = {name: value for name in ("tolerance", "budget") if (value := getattr(given, name)) is not None}
    if given.by is not None and limits:
        raise ValueError(f"--{next(iter(limits))} is not for --by {given.by}, which does two runs for each {given.by}")
    study.command.explain(
        trained_with(given, [precision]), precision, given.seed, given.by, given.out, own.models.load, **limits
    )
    return 0


def run_packing(given: argparse.Namespace) -> int:
    packing.command.show(given.name, given.length, given.depth, given.strategy, given.out)
    return 0


def run_figures(given: argparse.Namespace) -> int:
    figures.command.show(given.name, as_json=given.json, models=given.models)
    return 0


def run_reproduce(given: argparse.Namespace) -> int:
    return reproduce.reproduce(given.name, tuple(range(given.seeds)), given.share)


def run_demo(_: argparse.Namespace) -> int:
    return study.command.demo()
