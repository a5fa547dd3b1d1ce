"""One training step of whole models on both engines, one thread, beside torch's float32 (NumPy's for the perceptron).

Run by `make bench`. All ways are timed in turn, in CPU time, round after round in one process; ratios are medians over
rounds. torch is timed where it is installed. "/ direct" is the time of the tiles over that of the direct engine.
"""

import os

for name in [name for name in os.environ if name.startswith("OPENBLAS_")]:
    del os.environ[name]
os.environ |= {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "LOWPREC_NUM_THREADS": "1"}

import argparse  # noqa: E402
import importlib.util  # noqa: E402
import statistics  # noqa: E402
import time  # noqa: E402
from collections.abc import Callable  # noqa: E402

from ipu_core.train import ENGINES  # noqa: E402
from ipu_core.train.loop import TrainLoop  # noqa: E402
from tests.benchmarks import torch_models  # noqa: E402
from tests.benchmarks.models import LARGE, MODELS, Model  # noqa: E402
from tests.benchmarks.plain_step import Float32Step  # noqa: E402
from tests.benchmarks.ratios import record  # noqa: E402

PRECISIONS = ("fp32.32", "fp16.16/stochastic", "fp8", "mxfp8", "nvfp4")
"""Those without a limit, whose operands are scaled, have no tiles: they are timed on the direct engine."""
LIMITS = {"fp32.32": (1.2, 1.2), "fp16.16/stochastic": (1.8, 1.5)}
"""Of direct to float32: transformers and the convolutional net; the perceptron's is 2 in fp16.16."""
TILES_LIMIT = 1.3
WARM = 3  # steps before the first that is timed


def peers(name: str, model: Model) -> dict[str, Callable[[], float]]:
    """The same step in float32 by others."""
    found: dict[str, Callable[[], float]] = {}
    if name == "mlp":
        plain = Float32Step(model.params, model.optimizer.lr)
        found["numpy"] = lambda: plain.train(model.batch)
    if importlib.util.find_spec("torch"):
        found["torch"] = torch_models.step(name, model)
    return found


def seconds(call: Callable[[], float], count: int) -> float:
    """CPU time of one call."""
    start = time.process_time()
    for _ in range(count):
        call()
    return (time.process_time() - start) / count


def compare(name: str, engines: list[str], rounds: int) -> None:
    """Times one model and prints a line for each way of doing its step."""
    model = MODELS[name]()
    ways = peers(name, model)
    first = next(iter(ways), None)
    for precision in PRECISIONS:
        for engine in [engine for engine in engines if engine == "direct" or precision in LIMITS]:
            loop = TrainLoop(
                model.loss, model.params, model.batch, optimizer=model.optimizer, precision=precision, engine=engine
            )
            ways[f"{precision} {engine}"] = lambda loop=loop: loop.train(model.batch)  # type: ignore[misc]
    losses = {way: [call() for _ in range(WARM)][-1] for way, call in ways.items()}
    counts = {way: max(1, round(0.02 / seconds(call, 1))) for way, call in ways.items()}
    times: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(rounds):
        for way, call in ways.items():
            times[way].append(seconds(call, counts[way]))
    for way, mine in times.items():
        beside = f"{ratio(mine, times[first]):8.2f} of {first} {limit(name, way)}" if first else ""
        if first and way != first:
            record(f"models {name}, {way}, of {first}", ratio(mine, times[first]))
        direct = times.get(way.replace("tiles", "direct"))
        engine = f"{ratio(mine, direct):5.2f} / direct (limit {TILES_LIMIT})" if "tiles" in way and direct else ""
        print(f"{name:22s} {way:26s} {1e3 * min(mine):8.3f} ms {beside:28s} {engine:24s} loss {losses[way]:.4f}")


def limit(name: str, way: str) -> str:
    """What the direct engine is measured against."""
    precision, _, engine = way.rpartition(" ")
    if engine != "direct" or precision not in LIMITS:
        return ""
    wide, narrow = LIMITS[precision]
    bound = 2 if name == "mlp" and precision != "fp32.32" else narrow if name == "cnn" else wide
    return f"(limit {bound:g})"


def ratio(times: list[float], others: list[float]) -> float:
    """Median over rounds."""
    return statistics.median(a / b for a, b in zip(times, others, strict=True))


def main() -> None:
    """Prints one line per model, precision and engine."""
    parser = argparse.ArgumentParser(allow_abbrev=False, description=__doc__)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=[name for name in MODELS if name not in LARGE])
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES))
    given = parser.parse_args()
    for name in given.models:
        compare(name, given.engines, given.rounds)


if __name__ == "__main__":
    main()
