"""What `python -m ipu_core profile` prints of a workload: modelled beside measured, then the account."""

from __future__ import annotations

import json
from pathlib import Path

from ipu_core.chip.energy import UNVALIDATED_POWER
from ipu_core.chip.system import System, read_chips
from ipu_core.engine.profile import Split
from ipu_core.report.beside import to_data
from ipu_core.report.html import to_html
from ipu_core.report.operations import by_layer
from ipu_core.report.roof_chart import share_words
from ipu_core.report.roofs import roofline
from ipu_core.report.trace import to_chrome
from ipu_core.study.files import check_writable
from ipu_core.study.profiles import optimizer_table
from ipu_core.train.table import Table
from ipu_core.workloads.catalogue import workload
from ipu_core.workloads.stage_account import StageAccount, account

LARGEST = 16  # rows of a table
FILES = ("profile.json", "profile.html", "trace.json")


def profile(
    name: str, stage: int | None = None, *, micro_batch: int | None = None, micro_batches: int | None = None,
    target: str | None = None, precision: str | None = None, recompute: str | None = None,
    update_overhead: float | None = None, as_json: bool = False, folder: Path | None = None,
) -> None:  # fmt: skip
    """Prints the account of a workload's stage beside what was measured.

    Args:
        name: of the workload.
        stage: its number, from 1; None: the slowest published.
        micro_batch: rows; None, here and below: as published.
        micro_batches: of an update.
        target: the chip, as of `read_chips`.
        precision: its name.
        recompute: "layers" or "none".
        update_overhead: seconds of an update beside the account.
        as_json: as one JSON object with fixed names.
        folder: where to write profile.json, profile.html and trace.json; None: nowhere.

    Raises:
        ValueError: a name, stage or setting that there is not, or a folder that cannot be written.
    """
    if folder is not None:
        check_writable(folder, FILES)
    chip = None if target is None else read_chips(target)
    if isinstance(chip, System):
        raise ValueError(f"--target is of one chip, and {target} is a system: --system {target}")
    meant = workload(name, micro_batch=micro_batch, target=None if chip is None else chip.name)
    made = account(
        meant, stage, target=chip, precision=precision, micro_batches=micro_batches, recompute=recompute,
        update_overhead=update_overhead,
    )  # fmt: skip
    print(json.dumps(made.to_json()) if as_json else words(made))
    if folder is not None:
        title = f"{made.workload.title}, {made.stage.name}, {made.target.name}"
        samples = made.workload.samples * made.workload.micro_batches
        data = to_data(made.profile, settings=made.settings, samples=samples)
        data["by_optimizer"] = [need._asdict() for need in made.by_optimizer]
        texts = (
            json.dumps(data),
            to_html(made.profile, title, settings=made.settings, samples=samples, data=data),
            json.dumps(to_chrome(made.profile)),
        )
        for file, text in zip(FILES, texts, strict=True):
            (folder / file).write_text(text, encoding="utf-8")


def words(made: StageAccount) -> str:
    """The account in words and tables."""
    work, stage = made.workload, made.stage
    number = work.stages.index(stage) + 1
    of = f", stage {number} of {len(work.stages)} that are known: {stage.name}" if work.pipeline > 1 else ""
    trained = f"{work.micro_batches} micro-batches an update, {work.pipeline} chips a replica, recomputation: "
    packed = f", {work.samples / work.rows:g} samples a row on average" if work.samples != work.rows else ""
    settings = "nothing is trained" if work.optimizer is None else f"{trained}{work.recompute}{packed}"
    lines = [
        f"{work.title}, {work.size}{of}",
        f"{made.target.words}, {work.precision}; {settings}",
        *(f"  {source}" for source in work.sources),
        "",
        _beside(made),
        "",
        str(_times(made)),
        _split(made),
        "",
        _memory(made),
        _energy(made),
        *(["", str(optimizer_table(made.by_optimizer))] if made.by_optimizer else []),
        "",
        str(_operations(made)),
        "",
        str(_layers(made)),
        f"planned in {made.planned_in:.1f} s",
    ]
    return "\n".join(lines)


def _beside(made: StageAccount) -> str:
    modelled = f"modelled {made.cycles_per_micro_batch / 1e6:,.3f} M cycles a micro-batch, without the host"
    if made.measured is None or made.ratio is None:
        return f"{modelled}; nothing is measured of this stage, chip and micro-batch"
    low, high = made.measured.cycles
    measured = f"{low / 1e6:,.2f}" if low == high else f"{low / 1e6:,.2f} to {high / 1e6:,.2f}"
    least, most = made.ratio
    ratio = f"{least:.2f}" if least == most else f"{least:.2f} to {most:.2f}"
    return f"{modelled}, measured {measured} M, ratio {ratio}\n  measured: {made.measured.source}"


def _times(made: StageAccount) -> Table:
    work, target = made.workload, made.target
    rounds = work.micro_batches + work.pipeline - 1
    rows = [("micro-batch, on the tiles", made.cycles_per_micro_batch - made.cycles_of_links)]
    rows += [("micro-batch, links", made.cycles_of_links)] if made.cycles_of_links else []
    rows += [("update", made.cycles_of_update)] if work.optimizer is not None else []
    rows += [("host, of an update", made.cycles_of_host)]
    cells = [(name, f"{cycles:,}", f"{1e3 * target.seconds(cycles):,.3f}") for name, cycles in rows]
    if made.update_overhead:
        cells.append((f"{made.overhead_words}, an update", "", f"{1e3 * made.update_overhead:,.3f}"))
    whole = f"an update: {rounds:,} micro-batches' time and the rest" if work.pipeline > 1 else "an update"
    cells.append((whole, "", f"{1e3 * made.seconds_per_update:,.3f}"))
    title = f"{made.samples_per_second:,.1f} samples a second of one replica"
    return Table(title, ("", "cycles", "ms"), tuple(cells))


def _split(made: StageAccount) -> str:
    profile = made.profile
    slowest = Split(profile.compute_cycles, profile.exchange_cycles, profile.sync_cycles)
    return f"the mean tile: {profile.mean_tile.words()}; the slowest of every step: {slowest.words()}"


def _memory(made: StageAccount) -> str:
    memory = made.profile.memory
    share = memory.peak_bytes / memory.available
    fits = "" if share <= 1 else ": it does not fit"
    parts = sorted(((size, name) for name, size in memory.categories.items() if size), reverse=True)
    filled = ", ".join(f"{name} {size:,}" for size, name in parts)
    largest = ", ".join(f"{name} {size:,}" for name, size in memory.largest)
    return (
        f"fullest tile: {memory.peak_bytes:,} of {memory.available:,} bytes, {share:.0%}{fits}; mean "
        f"{memory.peak.mean():,.0f}\n  by: {filled}\n  largest variables: {largest}"
    )


def _energy(made: StageAccount) -> str:
    chips = "" if made.workload.pipeline == 1 else f" of {made.workload.pipeline} chips, each"
    found = made.modelled_energy.words(f"a sample{chips}", made.workload.pipeline / made.workload.samples)
    why = UNVALIDATED_POWER.get(made.target.name)
    return found if why is None else f"{found}\n  {why}"


def _operations(made: StageAccount) -> Table:
    whole = made.profile.cycles
    rows = [
        (one.role, one.operation, f"{100 * one.cycles / whole:.1f} %", share_words(one), one.bound)
        for one in roofline(made.profile)[:LARGEST]
    ]
    columns = ("role", "operation", "of the time", "of peak", "lowest roof")
    return Table("Of an update, the largest", columns, tuple(rows))


def _layers(made: StageAccount) -> Table:
    whole = made.profile.cycles
    found = by_layer(made.profile)[:LARGEST]
    rows = [(one.role, f"{one.steps:,}", f"{100 * one.cycles / whole:.1f} %") for one in found]
    return Table("By layer, the largest", ("layer", "steps", "share"), tuple(rows))
