"""Figures that follow from other published ones: whether what is published agrees with itself."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ipu_core.workloads.logs import REPLICAS, rows


def derived(times: Sequence[float], over: Sequence[float] = ()) -> float:
    """The product of some published numbers over that of others, in units that make it the figure's."""
    return math.prod(times) / math.prod(over)


def logs(round: str, ipus: int, workload: str, figure: str) -> float:
    """A column of a run from its others.

    Args:
        round, ipus, workload: of the run.
        figure: "step_ms" and "per_second_per_ipu" from the throughput, "global_batch" from replicas, micro-batches and
            accumulation.
    """
    run = rows()[round, ipus, workload]
    if figure == "step_ms":
        return 1e3 * run["global_batch"] / run["per_second"]
    if figure == "per_second_per_ipu":
        return run["per_second"] / ipus
    if workload == "bert":
        replicas, in_row = REPLICAS[round, ipus]
        return replicas * in_row * 2 * run["accumulation"]
    return ipus * (22 if (round, ipus) == ("v2.0", 16) else 20) * run["accumulation"]


def line(round: str, workload: str, chips: Sequence[int], figure: str) -> float:
    """Milliseconds of a micro-batch ("slope") or of an update beside its micro-batches ("constant"), of two runs."""
    one, other = (rows()[round, each, workload] for each in chips)
    slope = (one["step_ms"] - other["step_ms"]) / (one["accumulation"] - other["accumulation"])
    return slope if figure == "slope" else one["step_ms"] - slope * one["accumulation"]


def joules(round: str, ipus: int, workload: str, watts: float) -> float:
    """Joules a sample of a run, at so many watts a chip."""
    return watts / rows()[round, ipus, workload]["per_second_per_ipu"]
