"""Our figures of chips, systems, codelets and schedules."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from ipu_core.chip import cost
from ipu_core.chip.collectives import all_reduce
from ipu_core.chip.system import System
from ipu_core.chip.target import Target
from ipu_core.placement.matmul import plan_sum, product_of
from ipu_core.system.schedule import Schedule
from ipu_core.workloads.catalogue import workload as published
from ipu_core.workloads.stage_account import StageAccount, account

CHIP: dict[str, Callable[[Target], float]] = {
    "tiles": lambda chip: chip.tiles,
    "workers": lambda chip: chip.workers,
    "tile_memory": lambda chip: chip.tile_memory,
    "memory": lambda chip: chip.memory / 2**20,
    "clock": lambda chip: chip.clock / 1e9,
    "sram_bandwidth": lambda chip: chip.sram_bandwidth / 1e12,
    "exchange_bandwidth": lambda chip: chip.exchange_bandwidth / 1e12,
    "exchange_bytes": lambda chip: chip.exchange_bytes_per_cycle,
    "exchange_bytes_shared": lambda chip: chip.exchange_bytes_per_cycle_shared,
    "load_store_bytes": lambda chip: chip.load_store_bytes_per_cycle,
    "exchange_fixed_cycles": lambda chip: chip.exchange_fixed_cycles,
    "sync_cycles": lambda chip: chip.sync_cycles,
    "links": lambda chip: 2 * chip.link_bandwidth / 1e9,  # per direction there, both ways in what is published
}
"""In MiB, GHz, TB/s and GB/s; bytes by cycle and tile."""


def chip(target: str, figure: str, operands: str = "", partials: str = "") -> float:
    """A figure of a chip: one of CHIP, "macs" a cycle and tile or "peak" in TFLOP/s for operands and partials."""
    given = Target(target)
    if figure == "macs":
        return given.macs_per_cycle(operands, partials)
    if figure == "peak":
        return given.peak_flops(operands, partials) / 1e12
    return CHIP[figure](given)


@lru_cache(8)
def product(target: str, size: int, operands: str, partials: str, compute_only: bool) -> float:
    """Per cent of the FP16.16 peak that a product of square matrices reaches, operands on tiles."""
    given = Target(target)
    plan = plan_sum(given, product_of(given, size, size, size, operands=operands), types=(partials, "float16"))
    return 100 * plan.efficiency(compute_only=compute_only)


def amp(positions: int, operands: str) -> float:
    """Cycles of an AMP worker for so many output positions of one pass."""
    return int(cost.amp_worker(positions, cost.amp_shape(Target("gc200"), operands, operands).position_cycles))


def supervisor(m: int, k: int, n: int) -> float:
    """Cycles of the vertex of an FP16.16 product of m x k by k x n on one tile of a GC200."""
    given = Target("gc200")
    return int(cost.matmul(given, m, k, n, shape=cost.amp_shape(given, "float16", "float16"), group=16))


def codelet(name: str, elements: int = 0) -> float:
    """Cycles of a vertex over halves on a tile of a GC200, or a constant of the account: "load", "retention"."""
    given = Target("gc200")
    known: dict[str, Callable[[], float]] = {
        "cast": lambda: int(cost.cast(given, elements, 2)),
        "dropout": lambda: int(cost.dropout(given, elements, 2)),
        "elementwise": lambda: int(cost.elementwise(given, "add", elements, 2)),
        "load": lambda: cost.amp_shape(given, "float16", "float16").load_cycles,
        "retention": lambda: cost.AMP_RETENTION,
        "convolution": lambda: cost.CONVOLUTION_SUPERVISOR,
        "reduce": lambda: cost.REDUCE_SUPERVISOR,
    }
    return known[name]()


def pipeline(chips: int, micro_batches: int, figure: str) -> float:
    """A pipeline whose forward and backward passes take the same on every chip, found by running its schedule.

    Args:
        chips: of a replica.
        micro_batches: of an update.
        figure: "cycles" of the pipeline (a slot in which each chip does one micro-batch's work), "time" in units of a
            forward and a backward pass of one chip, "efficiency", "stashes" of the first chip beside the one in use.
    """
    made = Schedule("grouped", (0.5,) * chips, (0.5,) * chips, micro_batches)
    known: dict[str, Callable[[], float]] = {
        "cycles": lambda: made.cycles,
        "time": lambda: made.seconds,
        "efficiency": lambda: made.efficiency,
        "stashes": lambda: made.stashes[0],
    }
    return known[figure]()


def ring(chips: int, figure: str) -> float:
    """Of a message-by-message ring: the bytes that a chip sends of each byte ("bytes"), or its "messages"."""
    made = all_reduce(System("bow-pod1024"), chips, chips, algorithm="ring")
    return made.link_bytes / chips if figure == "bytes" else made.messages


def workload(
    workload: str,
    stage: int,
    target: str,
    figure: str,
    micro_batch: int | None = None,
    micro_batches: int | None = None,
) -> float:
    """A figure of a workload's stage, as published but for what is said.

    It is "cycles_per_micro_batch", or "samples_per_second" of updates of so many micro-batches.
    """
    made = _accounted(workload, stage, target, micro_batch)
    if figure == "samples_per_second":
        return made.rate_of(made.workload.micro_batches if micro_batches is None else micro_batches)
    return float(made.cycles_per_micro_batch)


@lru_cache(1)
def _accounted(name: str, stage: int, target: str, micro_batch: int | None) -> StageAccount:
    # How many micro-batches an update has changes no cycle of one: the account is made once for all rows.
    return account(published(name, micro_batch=micro_batch, target=target), stage)
