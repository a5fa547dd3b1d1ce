"""Figures that follow from other published ones: whether what is published agrees with itself."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

CSV = Path(__file__).parent / "mlperf_graphcore.csv"
"""Graphcore's closed-division MLPerf Training runs, from the public logs: medians over all runs."""
REPLICAS = {
    ("v1.0", 16): (4, 2), ("v1.0", 64): (8, 2), ("v1.1", 16): (4, 2), ("v1.1", 64): (8, 2), ("v1.1", 128): (16, 2),
    ("v2.0", 16): (2, 3), ("v2.0", 64): (8, 3), ("v2.0", 128): (16, 3),
}  # fmt: skip
"""Of BERT: replicas and rows of a micro-batch by round and chips; two sequences to a row."""


def derived(times: Sequence[float], over: Sequence[float] = ()) -> float:
    """The product of some published numbers over that of others, in units that make it the figure's."""
    return math.prod(times) / math.prod(over)


@lru_cache(64)
def runs() -> dict[tuple[str, int, str], dict[str, float]]:
    """The rows of the logs by round, chips and workload."""
    words = ("round", "workload", "division", "framework")
    with CSV.open(encoding="utf-8", newline="") as file:
        return {
            (row["round"], int(row["ipus"]), row["workload"]): {
                key: float(value) for key, value in row.items() if key not in words
            }
            for row in csv.DictReader(file)
        }


def logs(round: str, ipus: int, workload: str, figure: str) -> float:
    """A column of a run from its others.

    Args:
        round, ipus, workload: of the run.
        figure: "step_ms" and "per_second_per_ipu" from the throughput, "global_batch" from replicas, micro-batches and
            accumulation.
    """
    run = runs()[round, ipus, workload]
    if figure == "step_ms":
        return 1e3 * run["global_batch"] / run["per_second"]
    if figure == "per_second_per_ipu":
        return run["per_second"] / ipus
    if workload == "bert":
        replicas, rows = REPLICAS[round, ipus]
        return replicas * rows * 2 * run["accumulation"]
    return ipus * (22 if (round, ipus) == ("v2.0", 16) else 20) * run["accumulation"]


def line(round: str, workload: str, chips: Sequence[int], figure: str) -> float:
    """Milliseconds of a micro-batch ("slope") or of an update beside its micro-batches ("constant"), of two runs."""
    one, other = (runs()[round, each, workload] for each in chips)
    slope = (one["step_ms"] - other["step_ms"]) / (one["accumulation"] - other["accumulation"])
    return slope if figure == "slope" else one["step_ms"] - slope * one["accumulation"]


def joules(round: str, ipus: int, workload: str, watts: float) -> float:
    """Joules a sample of a run, at so many watts a chip."""
    return watts / runs()[round, ipus, workload]["per_second_per_ipu"]
