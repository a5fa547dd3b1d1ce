"""One training step, 64-256-256-10 at batch 64 with SGD: tiles and direct engine against numpy float32, one thread.

Run by `make bench`. The three are timed in turn, round after round, in one process; ratios are medians over rounds.
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

import numpy as np  # noqa: E402

from ipu_core.ir.precision import Precision  # noqa: E402
from ipu_core.study import mlp  # noqa: E402
from ipu_core.train import data  # noqa: E402
from ipu_core.train.loop import TrainLoop  # noqa: E402
from ipu_core.train.optim import Sgd  # noqa: E402

WIDTHS, BATCH, LR = (64, 256, 256, 10), 64, 0.002
LIMITS = {"tiles": 10.0, "direct": 4.0}


class NumpyStep:
    """The same step written directly in numpy float32, updating in place."""

    def __init__(self, params: mlp.Params) -> None:
        self.layers = [(layer["weight"].copy(), layer["bias"].copy()) for layer in params]

    def train(self, batch: data.Batch) -> float:
        x, y = batch
        activations = [x]
        for weight, bias in self.layers:
            z = activations[-1] @ weight + bias
            activations.append(np.maximum(z, 0) if len(activations) < len(self.layers) else z)
        scores = activations.pop()
        scores = scores - scores.max(axis=1, keepdims=True)
        exponentials = np.exp(scores)
        sums = exponentials.sum(axis=1, keepdims=True)
        rows = np.arange(len(y))
        loss = float(np.mean(np.log(sums[:, 0]) - scores[rows, y]))
        gradient = exponentials / sums
        gradient[rows, y] -= 1
        gradient /= len(y)
        for index in reversed(range(len(self.layers))):
            weight, bias = self.layers[index]
            below = gradient @ weight.T * (activations[index] > 0) if index else gradient
            weight -= np.float32(LR) * (activations[index].T @ gradient)
            bias -= np.float32(LR) * gradient.sum(axis=0)
            gradient = below
        return loss


def steps(train: Callable[[Any], float], batch: Any, count: int) -> float:
    """Seconds per step."""
    start = time.perf_counter()
    for _ in range(count):
        train(batch)
    return (time.perf_counter() - start) / count


def main() -> None:
    """Prints one line per precision and engine."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--precisions", nargs="+", default=["fp16.16/stochastic", "fp16.16/nearest", "fp32.32"])
    given = parser.parse_args()
    task = data.digits()
    params, batch = mlp.initial(WIDTHS, 0), data.batches(task, BATCH, 0)(0)
    plain = NumpyStep(params)
    print(f"training step {'-'.join(map(str, WIDTHS))}, batch {BATCH}, SGD, one thread; numpy float32 = 1")
    for precision in given.precisions:
        loops = {
            engine: TrainLoop(
                mlp.loss,
                params,
                batch,
                optimizer=Sgd(LR),
                precision=Precision.parse(precision),
                engine=engine,
            )
            for engine in LIMITS
        }
        times: dict[str, list[float]] = {"numpy": [], **{engine: [] for engine in loops}}
        for train in (plain.train, *(loop.train for loop in loops.values())):
            steps(train, batch, 3)
        for _ in range(given.rounds):
            times["numpy"].append(steps(plain.train, batch, 5 * given.steps))
            for engine, loop in loops.items():
                times[engine].append(steps(loop.train, batch, given.steps))
        base = statistics.median(times["numpy"])
        for engine in loops:
            ratios = [a / b for a, b in zip(times[engine], times["numpy"], strict=True)]
            limit = f"  (limit {LIMITS[engine]:g})" if precision == "fp16.16/stochastic" else ""
            print(
                f"  {precision:20s} {engine:7s} {1e3 * statistics.median(times[engine]):7.2f} ms, "
                f"numpy {1e3 * base:5.2f} ms, ratio {statistics.median(ratios):5.2f}{limit}"
            )


if __name__ == "__main__":
    main()
