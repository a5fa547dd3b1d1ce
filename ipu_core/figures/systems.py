"""Our figures of systems of several chips, and of workloads on them."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from ipu_core.chip.collectives import all_reduce
from ipu_core.chip.system import System
from ipu_core.system.account import SystemProfile
from ipu_core.workloads.catalogue import workload as published
from ipu_core.workloads.cuts import parameters_of
from ipu_core.workloads.stage_account import StageAccount, account
from ipu_core.workloads.system_run import profile_of

SYSTEM: dict[str, Callable[[System], float]] = {
    "peak": lambda made: made.peak_flops("float16", "float16") / 1e15,
    "memory": lambda made: made.memory / 1e9,
    "mebibytes": lambda made: made.memory / 2**20,
    "sram_bandwidth": lambda made: made.sram_bandwidth / 1e12,
    "streaming_memory": lambda made: made.streaming_memory / made.chips / 1e9,
    "host": lambda made: 8 * made.machine * made.target.host_share / 1e9,
    "gateway": lambda made: 8 * made.gateway_bandwidth / 2 / 1e9,
    "link_efficiency": lambda made: made.link_efficiency,
    "sync_hops": lambda made: made.sync_seconds() / (15e-9 * (1 + made.chips / 4)),
}
"""PFLOP/s, GB, MiB, TB/s; GB of streaming memory a chip; Gb/s of a machine's host port, of one of its two gateways."""

RUN: dict[str, Callable[[SystemProfile], float]] = {
    "per_chip": lambda made: made.samples_per_second / made.chips,
    "per_second": lambda made: made.samples_per_second,
    "step_ms": lambda made: 1e3 * made.seconds_per_update,
    "unexplained": lambda made: 100 * made.update_overhead / made.seconds_per_update,
}
"""Samples a second and chip, or in all; milliseconds of an update; per cent of it that is the fitted constant."""


def system(system: str, figure: str) -> float:
    """A figure of a system, one of SYSTEM."""
    return SYSTEM[figure](System(system))


def reduced(workload: str, system: str, replicas: int, stages: int) -> float:
    """Milliseconds of the all-reduce of FP16 gradients of a workload's slowest published stage."""
    work = published(workload, target=System(system).target.name)
    size = 2 * parameters_of([part for run in work.parts_of(work.stages[0]) for part in run])
    return 1e3 * all_reduce(System(system), size, replicas, stride=stages).seconds


def run(
    workload: str,
    system: str,
    figure: str,
    replicas: int,
    micro_batches: int,
    stages: int | None = None,
    micro_batch: int | None = None,
    as_measured: tuple[int, float] | None = None,
    samples: float = 0.0,
) -> float:
    """A figure of a workload on a system, one of RUN.

    Args:
        workload, stages, micro_batch: what is trained and how it is cut; None: as published on that chip.
        system, replicas, micro_batches: where, how often, and of an update.
        figure: one of RUN, or "minutes" that so many samples take.
        as_measured: so many replicas, and what was measured of them: ours is that, scaled by the model.
    """
    where = System(system)
    made = _planned(workload, where.target.name, stages, micro_batch)
    whole = profile_of(made, where, replicas, micro_batches=micro_batches)
    if figure == "minutes":
        return whole.seconds_to_train(samples) / 60
    ours = RUN[figure](whole)
    if as_measured is None:
        return ours
    few, measured = as_measured
    return measured * ours / RUN[figure](profile_of(made, where, few, micro_batches=micro_batches))


@lru_cache(1)
def _planned(name: str, target: str, stages: int | None, micro_batch: int | None) -> StageAccount:
    # How many micro-batches an update has changes no cycle of one: a stage is planned once for all rows.
    return account(published(name, target=target, stages=stages, micro_batch=micro_batch))
