"""Graphcore's closed-division runs of MLPerf Training v1.0 to v2.0, from the public logs: medians over all runs."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

CSV = Path(__file__).parent / "mlperf_graphcore.csv"
REPLICAS: Mapping[tuple[str, int], tuple[int, int]] = {
    ("v1.0", 16): (4, 2), ("v1.0", 64): (8, 2), ("v1.1", 16): (4, 2), ("v1.1", 64): (8, 2), ("v1.1", 128): (16, 2),
    ("v2.0", 16): (2, 3), ("v2.0", 64): (8, 3), ("v2.0", 128): (16, 3),
}  # fmt: skip
"""Of BERT: replicas and rows of a micro-batch by round and chips; two sequences to a row."""
CHIP_OF: Mapping[str, str] = {"v1.0": "gc200", "v1.1": "gc200", "v2.0": "bow"}
"""The chip of a round."""
TITLES: Mapping[str, str] = {"gc200": "GC200", "bow": "Bow"}


@dataclass(frozen=True)
class LoggedRun:
    """One run of the logs.

    Attributes:
        round: such as "v2.0".
        chips: how many.
        workload: "bert" or "resnet".
        micro_batches: of an update of one replica.
        global_batch: samples of an update; two sequences to a row of BERT's on average.
        step_ms: milliseconds of an update.
        per_second: samples.
        samples_to_target: of a whole training, the median.
        minutes: of it, the mean without the fastest and the slowest.
    """

    round: str
    chips: int
    workload: str
    micro_batches: int
    global_batch: int
    step_ms: float
    per_second: float
    samples_to_target: float
    minutes: float

    @property
    def target(self) -> str:
        """The chip's name."""
        return CHIP_OF[self.round]

    @property
    def replicas(self) -> int:
        """ResNet's are as many as chips."""
        return REPLICAS[self.round, self.chips][0] if self.workload == "bert" else self.chips

    def words(self) -> str:
        """What ran."""
        return f"MLPerf {self.round}, {self.chips} {TITLES[self.target]} chips"


def error_words(error: float, digits: int = 1) -> str:
    """A relative error in per cent with its sign; what rounds to nothing has none."""
    text = f"{100 * error:+.{digits}f}"
    return f"{text if float(text) else text[1:]} %"


@lru_cache(1)
def rows() -> dict[tuple[str, int, str], dict[str, float]]:
    """The rows of the logs by round, chips and workload, every column that is a number."""
    words = ("round", "workload", "division", "framework")
    with CSV.open(encoding="utf-8", newline="") as file:
        return {
            (row["round"], int(row["ipus"]), row["workload"]): {
                key: float(value) for key, value in row.items() if key not in words
            }
            for row in csv.DictReader(file)
        }


@lru_cache(1)
def logged_runs() -> tuple[LoggedRun, ...]:
    """All runs, in the order of the logs."""
    return tuple(
        LoggedRun(
            round, chips, workload, int(row["accumulation"]), int(row["global_batch"]), row["step_ms"],
            row["per_second"], row["samples_to_target_median"], row["time_to_train_min_olympic"],
        )
        for (round, chips, workload), row in rows().items()
    )  # fmt: skip
