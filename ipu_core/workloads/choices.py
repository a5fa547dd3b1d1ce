"""Which cuts, replicas and micro-batches of a workload fit a system, the fastest first."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from ipu_core.chip.system import System, read_system
from ipu_core.ir.block import Type
from ipu_core.ir.precision.precision import Precision
from ipu_core.system.account import SystemProfile
from ipu_core.train.table import Table
from ipu_core.workloads.catalogue import workload as published
from ipu_core.workloads.cuts import cut, parameters_of
from ipu_core.workloads.published import Workload
from ipu_core.workloads.stage_account import account
from ipu_core.workloads.system_run import as_scheduled, profile_of
from lowprec.checks import expect, integer, iterable

ROWS = (1, 2, 3, 4, 8, 16, 20)
"""Micro-batches that are tried where none are given, up to twice the published one."""


@dataclass(frozen=True)
class Configuration:
    """One way to train on a system.

    Attributes:
        micro_batch: rows.
        profile: of an update.
        bytes_of_fullest_tile, bytes_of_a_tile: what the planned stage needs, and what there is.
    """

    micro_batch: int
    profile: SystemProfile
    bytes_of_fullest_tile: int
    bytes_of_a_tile: int

    @property
    def fits(self) -> bool:
        """Whether the planned stage does."""
        return self.bytes_of_fullest_tile <= self.bytes_of_a_tile


@dataclass(frozen=True)
class Configurations:
    """Those that were planned: what fits first, and of these the fastest first.

    Attributes:
        planned: in that order.
        left_out: (stages, micro-batch, why) of those that were not planned.
    """

    planned: tuple[Configuration, ...]
    left_out: tuple[tuple[int, int, str], ...]

    def __iter__(self) -> Iterator[Configuration]:
        return iter(self.planned)

    def __len__(self) -> int:
        return len(self.planned)

    def __str__(self) -> str:
        rows = tuple(
            (
                str(one.profile.replicas), str(one.profile.stages), str(one.micro_batch),
                str(one.profile.micro_batches), f"{1e3 * one.profile.seconds_per_update:,.2f}",
                f"{one.profile.samples_per_second:,.0f}",
                f"{one.bytes_of_fullest_tile / one.bytes_of_a_tile:.0%}" + ("" if one.fits else ", does not fit"),
            )
            for one in self.planned
        )  # fmt: skip
        head = ("replicas", "stages", "micro-batch", "an update", "ms", "samples/s", "fullest tile")
        table = str(Table("an update, the fastest that fits first", head, rows))
        out = [f"not planned: {stages} stages, micro-batch {rows_}: {why}" for stages, rows_, why in self.left_out]
        return "\n".join([table, *out])

    __repr__ = __str__


def configurations(
    workload: Workload | str,
    system: System | str,
    *,
    global_batch: int,
    stages: Iterable[int] | None = None,
    micro_batch: Iterable[int] | None = None,
    schedule: str = "grouped",
    most: int = 6,
    progress: Callable[[str], None] | None = None,
) -> Configurations:
    """Replicas, stages and micro-batches of a workload that take a batch on all chips of a system.

    For each cut and micro-batch the slowest stage is planned, 10 to 40 seconds. What cannot fit is not planned: where
    weights and summed gradients of a stage are more than a chip's memory.

    Args:
        workload: its name, or a Workload, whose micro-batch stays as it is.
        system: a System, or its name and figures as of `read_system`.
        global_batch: samples of an update.
        stages: chips of a replica that are tried; None: powers of two that divide the system.
        micro_batch: rows that are tried; None: those of ROWS.
        schedule: of the pipeline.
        most: how many are planned, those nearest to the published cut and micro-batch first.
        progress: is told what is planned next.

    Raises:
        ValueError: there is none, or another micro-batch than that of a Workload.
    """
    where = system if isinstance(system, System) else read_system(system)
    integer("global_batch", global_batch, 1), integer("most", most, 1)
    cuts = [1 << n for n in range(where.chips.bit_length())] if stages is None else iterable("stages", stages)
    usual = published(workload, target=where.target.name) if isinstance(workload, str) else workload
    expect(Workload, workload=usual)
    tried = None if micro_batch is None else list(iterable("micro_batch", micro_batch))
    if isinstance(workload, str):
        rows = [one for one in ROWS if one <= 2 * usual.rows] if tried is None else tried
    elif tried in (None, [usual.rows]):
        rows = [usual.rows]
    else:
        raise ValueError(f"a Workload has its micro-batch, {usual.rows}: micro_batch= is for a name, as {usual.name!r}")
    ways = _nearest_first(usual, list(cuts), rows)
    found: list[Configuration] = []
    out: list[tuple[int, int, str]] = []
    for count, each in ways:
        work = _work(workload, where, count, each, global_batch)
        if not isinstance(work, str) and len(found) == most:
            work = f"{most} are planned (most=)"
        if isinstance(work, str):
            out.append((count, each, work))
            continue
        if progress is not None:
            progress(f"{where.chips // count} replicas of {count} stages, micro-batch {each}")
        found.append(_planned(*work, where, schedule))
    if not found:
        raise ValueError(
            f"there is no way to train {usual.name} on {where.name} with a batch of {global_batch:,}: "
            + "; ".join(f"{count} stages, micro-batch {each}: {why}" for count, each, why in out[:4])
        )
    found.sort(key=lambda one: (not one.fits, one.profile.seconds_per_update))
    return Configurations(tuple(found), tuple(out))


def _nearest_first(work: Workload, stages: Sequence[int], rows: Sequence[int]) -> list[tuple[int, int]]:
    """Pairs of stages and micro-batches by how many times as many as published they are, or the other way round."""

    def apart(way: tuple[int, int]) -> float:
        return sum(abs(math.log2(one / of)) for one, of in zip(way, (work.pipeline, work.rows), strict=True))

    checked = [[integer(name, one, 1) for one in each] for name, each in (("stages", stages), ("micro_batch", rows))]
    return sorted(product(checked[0], checked[1]), key=apart)


def _work(
    meant: Workload | str, system: System, stages: int, rows: int, global_batch: int
) -> tuple[Workload, int] | str:
    """The workload so cut and its micro-batches of an update, or why there is none."""
    replicas, idle = divmod(system.chips, integer("stages", stages, 1))
    if idle or not replicas:
        return f"{system.chips} chips are no whole number of replicas"
    try:
        if isinstance(meant, str):
            meant = published(meant, micro_batch=rows, target=system.target.name)
        work = cut(meant, stages)
    except ValueError as refused:
        return str(refused)
    count, left = divmod(global_batch, work.samples * replicas)
    if left or not count:
        return f"{replicas} replicas take {work.samples * replicas:,} samples a micro-batch"
    if (need := _least_memory(work)) > system.target.memory:
        return f"at least {need / 1e6:,.0f} MB of memory, and a chip has {system.target.memory / 1e6:,.0f}"
    return work, count


def _least_memory(work: Workload) -> int:
    """Bytes of weights and summed gradients of the stage with the most parameters."""
    precision = Precision.parse(work.precision)
    most = max(parameters_of([part for run in work.parts_of(stage) for part in run]) for stage in work.stages)
    return sum(Type((most,), fmt).nbytes for fmt in (precision.weights, precision.gradient_sum))


def _planned(work: Workload, micro_batches: int, system: System, schedule: str) -> Configuration:
    """Of a stage's account, hundreds of megabytes, only this is kept."""
    made = account(as_scheduled(work, schedule), target=system.target)
    profile = profile_of(made, system, system.chips // work.pipeline, schedule, micro_batches=micro_batches)
    memory = made.profile.memory
    return Configuration(work.rows, profile, memory.peak_bytes, memory.available)
