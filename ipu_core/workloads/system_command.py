"""What `python -m ipu_core profile WORKLOAD --system NAME` prints: an update on a system beside what was logged."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

from ipu_core.chip.system import read_system
from ipu_core.study import typed
from ipu_core.study.files import check_writable
from ipu_core.system.page import to_chrome
from ipu_core.system.words import bound, copies, pipeline, sent
from ipu_core.train.table import Table
from ipu_core.workloads.catalogue import workload
from ipu_core.workloads.choices import configurations
from ipu_core.workloads.logs import LoggedRun, error_words
from ipu_core.workloads.system_page import to_html
from ipu_core.workloads.system_run import SystemRun, on_system
from lowprec import Collective

FILES = ("system.json", "system.html", "trace.json")


def profile(
    name: str, system: str, *, stages: int | None = None, replicas: int | None = None, micro_batch: int | None = None,
    micro_batches: int | None = None, global_batch: int | None = None, schedule: str | None = None,
    collective: str | None = None, precision: str | None = None, recompute: str | None = None,
    update_overhead: float | None = None, host_samples_per_second: float | None = None, as_json: bool = False,
    folder: Path | None = None,
) -> None:  # fmt: skip
    """Prints the account of a workload's update on a system.

    Args:
        name: of the workload.
        system: its name.
        stages, replicas, micro_batches, global_batch, schedule, collective, precision, recompute, update_overhead: as
            of `on_system`.
        micro_batch: rows; None: as published on that chip.
        host_samples_per_second: what all hosts together can prepare; None: not known.
        as_json: as one JSON object with fixed names.
        folder: where to write FILES; None: nowhere.

    Raises:
        ValueError: as `on_system`, a system that there is not, or a folder that cannot be written.
    """
    if folder is not None:
        check_writable(folder, FILES)
    where = read_system(system)
    if host_samples_per_second is not None:
        where = replace(where, host_samples_per_second=host_samples_per_second)
    meant = workload(name, micro_batch=micro_batch, target=where.target.name, stages=stages)
    made = on_system(
        meant, where, replicas=replicas, micro_batches=micro_batches, global_batch=global_batch,
        schedule="grouped" if schedule is None else schedule, collective=_collective(collective), precision=precision,
        recompute=recompute, update_overhead=update_overhead,
    )  # fmt: skip
    print(json.dumps(made.to_json()) if as_json else words(made))
    if folder is not None:
        texts = (json.dumps(made.to_json()), to_html(made), json.dumps(to_chrome(made.profile)))
        for file, text in zip(FILES, texts, strict=True):
            (folder / file).write_text(text, encoding="utf-8")


def choose(
    name: str, system: str, global_batch: int | None, *, stages: int | None, micro_batch: int | None,
    schedule: str | None,
) -> None:  # fmt: skip
    """Prints what fits a system, the fastest first; what is planned next is told on standard error.

    Args:
        name: of the workload.
        system: its name.
        global_batch: samples of an update.
        stages, micro_batch: these alone; None: those that `configurations` tries.
        schedule: of the pipeline; None: grouped.

    Raises:
        ValueError: as `configurations`, and without a batch.
    """
    if global_batch is None:
        raise ValueError("--configurations are of a batch: --global-batch says how many samples")
    found = configurations(
        name, system, global_batch=global_batch, stages=None if stages is None else (stages,),
        micro_batch=None if micro_batch is None else (micro_batch,),
        schedule="grouped" if schedule is None else schedule,
        progress=lambda text: print(f"planning {text}", file=sys.stderr, flush=True),
    )  # fmt: skip
    print(found)


def _collective(spec: str | None) -> Collective | str | None:
    """An algorithm, or with options as `typed.collective` reads them, as in "ring/wire=float32"."""
    return typed.collective(spec) if spec is not None and "/" in spec else spec


def words(made: SystemRun) -> str:
    """The account in words and tables."""
    work, whole = made.workload, made.profile
    idle = whole.system.chips - whole.chips
    unused = f", {idle:,} more are idle" if idle else ""
    lines = [
        f"{work.title}, {work.size}: {copies(whole)} on {whole.system.name}, "
        f"{whole.chips:,} chips of {whole.system.target.words}{unused}",
        f"{work.precision}; {whole.schedule.name}, {whole.micro_batches} micro-batches an update, a batch of "
        f"{whole.samples_per_update:,.0f}, recomputation: {work.recompute}",
        *(f"  {source}" for source in work.sources),
        "",
        str(_times(made)),
        bound(whole),
        "",
        f"the slowest stage, as which all are taken: {made.stage.stage.name}",
        f"  {_stage(made)}",
        f"  {_memory(made)}",
        f"schedule: {pipeline(whole)}",
        f"{whole.collective.words()}",
        f"bytes a chip sends in an update: {sent(whole)}",
        _energy(made),
        "",
        str(_logged(made)) if made.logged else _none_logged(made),
        *(_trained(made, run) for run in made.logged),
        f"planned in {made.planned_in:.1f} s",
    ]
    return "\n".join(lines)


def _times(made: SystemRun) -> Table:
    whole = made.profile
    named = dict(whole.parts())
    rounds, fill = whole.micro_batches, whole.stages - 1
    labels = {
        "forward and backward": f"forward and backward, {rounds:,} rounds",
        "fill and flush": f"fill and flush, {fill} rounds" if whole.schedule.name == "grouped" else "fill and waiting",
        "overhead": f"overhead, {whole.update_overhead_from}",
    }
    rows = [
        (labels.get(name, name), f"{1e3 * seconds:,.3f}", f"{100 * seconds / whole.seconds_of_chips:.1f} %")
        for name, seconds in named.items()
    ]
    rows.append(("the chips", f"{1e3 * whole.seconds_of_chips:,.3f}", ""))
    rows.append(("the hosts, beside them", f"{1e3 * whole.input_seconds:,.3f}", ""))
    rows.append(("an update", f"{1e3 * whole.seconds_per_update:,.3f}", ""))
    title = f"{whole.samples_per_second:,.1f} samples a second, {whole.samples_per_second / whole.chips:,.1f} a chip"
    return Table(title, ("", "ms", "share"), tuple(rows))


def _stage(made: SystemRun) -> str:
    planned = f"planned {made.stage.cycles_per_micro_batch / 1e6:,.3f} M cycles a micro-batch"
    found = made.stage.measured
    if found is None or made.stage.ratio is None:
        return f"{planned}; no slope is measured of it"
    low, high = (cycles / 1e6 for cycles in found.cycles)
    slope = f"{low:,.2f}" if low == high else f"{low:,.2f} to {high:,.2f}"
    least, most = (error_words(ratio - 1, 0) for ratio in made.stage.ratio)
    error = least if least == most else f"{least.removesuffix(' %')} to {most}"
    return f"{planned}, measured slope {slope} M: {error}, in every round; the overhead is apart"


def _memory(made: SystemRun) -> str:
    memory = made.stage.profile.memory
    fits = "" if memory.peak_bytes <= memory.available else ": it does not fit"
    return f"fullest tile: {memory.peak_bytes:,} of {memory.available:,} bytes{fits}"


def _energy(made: SystemRun) -> str:
    least, most = made.profile.joules_per_sample
    joules = f"{least:.3g}" if least == most else f"{least:.3g} to {most:.3g}"
    return f"{joules} J a sample: modelled time times published power of {made.profile.chips:,} chips"


def _trained(made: SystemRun, run: LoggedRun) -> str:
    minutes = made.profile.seconds_to_train(run.samples_to_target) / 60
    return (
        f"to its target, {run.samples_to_target:,.0f} samples: {minutes:,.2f} min at this rate; {run.words()} took "
        f"{run.minutes:,.2f}, evaluation and start included"
    )


def _none_logged(made: SystemRun) -> str:
    """Why no run is beside the account."""
    runs = ", ".join(run.words() for run in made.logged_of_numbers)
    if not runs:
        return "nothing is logged with these settings"
    return f"not beside {runs}, of as many chips and micro-batches, which ran with {', '.join(made.unlike_logged)}"


def _logged(made: SystemRun) -> Table:
    here = 1e3 * made.profile.seconds_per_update
    rows = tuple(
        (
            run.words(),
            f"{run.step_ms:,.2f}",
            f"{here:,.2f}",
            error_words(here / run.step_ms - 1),
            f"{1e3 * made.fits(run):,.2f}",
        )
        for run in made.logged
    )
    return Table(
        "an update, ms, beside the run with these settings",
        ("run", "logged", "here", "error", "overhead that fits"),
        rows,
    )
