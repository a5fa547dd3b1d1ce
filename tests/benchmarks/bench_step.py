"""One training step of the study, 64-256-256-10 at batch 64 with SGD, one thread: before and after, in one run.

Before: the step as users of NumPy write it, float32 products of chunks of K with the partial sums rounded in between
(`plain_step`). After: the tiles and the direct engine. Beside them the step in NumPy's float32. Run by `make bench`.
All are timed in turn, round after round, in one process; ratios are medians over rounds.
"""

import os

for name in [name for name in os.environ if name.startswith("OPENBLAS_")]:
    del os.environ[name]
os.environ |= {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "LOWPREC_NUM_THREADS": "1"}

import argparse  # noqa: E402
import statistics  # noqa: E402
import time  # noqa: E402
from collections.abc import Callable  # noqa: E402
from typing import Any  # noqa: E402

from ipu_core.ir.precision.precision import Precision  # noqa: E402
from ipu_core.study.models import mlp  # noqa: E402
from ipu_core.train.data import dataset as data  # noqa: E402
from ipu_core.train.loop import TrainLoop  # noqa: E402
from ipu_core.train.optim import Sgd  # noqa: E402
from tests.benchmarks.plain_step import PLAIN, Float32Step  # noqa: E402
from tests.benchmarks.ratios import record  # noqa: E402

WIDTHS, BATCH, LR = (64, 256, 256, 10), 64, 0.002
LIMITS = {"tiles": 10.0, "direct": 4.0}
STEPS_SHOWN = 20


def steps(train: Callable[[Any], float], batch: Any, count: int) -> float:
    """Seconds per step."""
    start = time.perf_counter()
    for _ in range(count):
        train(batch)
    return (time.perf_counter() - start) / count


def main() -> None:
    """Prints one line per precision and engine."""
    parser = argparse.ArgumentParser(allow_abbrev=False, description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--precisions", nargs="+", default=["fp16.16/stochastic", "fp16.16/nearest", "fp32.32"])
    given = parser.parse_args()
    task = data.digits()
    params, batch = mlp.initial(WIDTHS, 0), data.batches(task, BATCH, 0)(0)
    print(f"training step {'-'.join(map(str, WIDTHS))}, batch {BATCH}, SGD, one thread")
    print(f"{'':20s} {'':20s} {'ms':>8s} {'/ numpy float32':>16s} {'before / it':>12s}  loss after {STEPS_SHOWN} steps")
    for precision in given.precisions:
        compare(precision, params, batch, given.rounds, given.steps)


def compare(precision: str, params: mlp.Params, batch: data.Batch, rounds: int, count: int) -> None:
    """Times one precision and prints a line for each way of doing it."""
    ways: dict[str, Any] = {"numpy float32": Float32Step(params, LR)}
    if precision in PLAIN and precision != "fp32.32":
        ways["before: numpy loops"] = PLAIN[precision](params, LR)
    for engine in LIMITS:
        ways[engine] = TrainLoop(
            mlp.loss, params, batch, optimizer=Sgd(LR), precision=Precision.parse(precision), engine=engine
        )
    losses = {name: [way.train(batch) for _ in range(STEPS_SHOWN)][-1] for name, way in ways.items()}
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            times[name].append(steps(way.train, batch, 5 * count if name == "numpy float32" else count))
    before = times.get("before: numpy loops")
    for name, mine in times.items():
        limit = f"  (limit {LIMITS[name]:g})" if precision == "fp16.16/stochastic" and name in LIMITS else ""
        if name != "numpy float32":
            record(f"step {precision}, {name}, of numpy", ratio(mine, times["numpy float32"]))
        faster = f"{ratio(before, mine):12.2f}" if before and name in LIMITS else f"{'':12s}"
        print(
            f"{precision:20s} {name:20s} {1e3 * statistics.median(mine):8.3f} "
            f"{ratio(mine, times['numpy float32']):16.2f} {faster}  {losses[name]:.4f}{limit}"
        )


def ratio(times: list[float], others: list[float]) -> float:
    """Median over rounds."""
    return statistics.median(a / b for a, b in zip(times, others, strict=True))


if __name__ == "__main__":
    main()
