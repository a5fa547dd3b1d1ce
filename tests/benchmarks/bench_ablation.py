"""What each fast path brings: the rows of README and the models' steps with it and without it, one thread.

A path stays if some model's step is 5 % slower without it, or a row that README names; else it goes (CONTRIBUTING). All
is timed in turn, round after round in one process, in CPU time; a figure is the least over rounds. The line `nothing`
switches nothing off: what it shows is noise. Lines are those of files that only the path needs.
"""

import os

for name in [name for name in os.environ if name.startswith("OPENBLAS_")]:
    del os.environ[name]
os.environ |= {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "LOWPREC_NUM_THREADS": "1"}

import argparse  # noqa: E402
import time  # noqa: E402
from collections.abc import Callable, Sequence  # noqa: E402
from typing import NamedTuple  # noqa: E402

import numpy as np  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

import lowprec as lp  # noqa: E402
from ipu_core.train.loop import TrainLoop  # noqa: E402
from lowprec import Accumulation, Rounding, _kernels  # noqa: E402
from lowprec.sums.matmul import prepare  # noqa: E402
from tests.benchmarks.fast_paths import FILES, lines  # noqa: E402
from tests.benchmarks.models import MODELS  # noqa: E402

Call = Callable[[], object]
ENOUGH = 1.05
SPAN = 0.01
"""Seconds for each look at the clock."""
PRECISIONS = ("fp32.32", "fp16.16/stochastic", "fp16.16/nearest")
NOTHING = "nothing"


def readme_rows() -> dict[str, Call]:
    """The work of the rows that README's table of speed names, but for the models."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal(1 << 24).astype(np.float32)
    calls: dict[str, Call] = {}
    for fmt in ("float16", "float8_e4m3fn"):
        out = lp.astype(x, fmt)
        for mode in ("nearest_even", "stochastic"):
            calls[f"README: 2^24 to {fmt}, {mode}"] = lambda f=fmt, m=mode, o=out: lp.astype(x, f, m, key=1, out=o)  # type: ignore[misc]
    a, b = (rng.standard_normal((1024, 1024)).astype(np.float16) for _ in range(2))
    for mode in ("nearest_even", "stochastic"):
        call = prepare(a.dtype, b.dtype, Accumulation(accumulate="float16"), Rounding(mode))
        product = call(a, b, 1)
        calls[f"README: product, {mode}"] = lambda f=call, o=product: f(a, b, 1, (0, 0), o)  # type: ignore[misc]
    return calls


def steps(models: Sequence[str], engines: Sequence[str]) -> dict[str, Call]:
    """The training steps of models; the transformer of README's last row is among them."""
    calls: dict[str, Call] = {}
    for name in models:
        model = MODELS[name]()
        for engine in engines:
            for precision in PRECISIONS:
                loop = TrainLoop(
                    *(model.loss, model.params, model.batch),
                    **{"optimizer": model.optimizer, "precision": precision, "engine": engine},  # type: ignore[arg-type]
                )
                calls[f"{name}, {precision}, {engine}"] = lambda s=loop, m=model: s.train(m.batch)  # type: ignore[misc]
    return calls


def seconds(call: Call, count: int) -> float:
    """CPU time of one call."""
    start = time.process_time()
    for _ in range(count):
        call()
    return (time.process_time() - start) / count


class Times(NamedTuple):
    """The least seconds of a call with a path and without it, over as many looks at the clock."""

    taken: float
    without: float

    @property
    def ratio(self) -> float:
        return self.without / self.taken


def compare(call: Call, paths: Sequence[str], rounds: int) -> dict[str, Times]:
    """Times of a call for each path."""
    before = _kernels.paths_off()
    for _ in range(3):
        call()
    count = max(1, round(SPAN / seconds(call, 1)))
    times = {path: Times(float("inf"), float("inf")) for path in paths}
    try:
        for _ in range(rounds):
            for path in paths:
                taken = seconds(call, count)
                _kernels.set_paths_off(before if path == NOTHING else [*before, path])
                without = seconds(call, count)
                _kernels.set_paths_off(before)
                times[path] = Times(min(times[path].taken, taken), min(times[path].without, without))
    finally:
        _kernels.set_paths_off(before)
    return times


def report(found: dict[str, dict[str, Times]], paths: Sequence[str], shown: int, console: Console) -> None:
    """Of every path the cases that are slowest without it."""
    table = Table(title=f"fast paths: a case without the path over the same with it (stays from {ENOUGH:g} on)")
    for column in ("path", "lines", "case", "with, ms", "without, ms", "ratio", ""):
        table.add_column(column, justify="left" if column in ("path", "case", "") else "right")
    for path in paths:
        cases = sorted(found, key=lambda case: -found[case][path].ratio)
        for i, case in enumerate(cases[:shown]):
            times = found[case][path]
            head = (path, "" if path == NOTHING else str(lines(path))) if i == 0 else ("", "")
            verdict = "" if i or path == NOTHING else "stays" if times.ratio >= ENOUGH else "goes"
            table.add_row(
                *head, case, f"{1e3 * times.taken:.3f}", f"{1e3 * times.without:.3f}", f"{times.ratio:.3f}", verdict
            )
    console.print(table)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(allow_abbrev=False, description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--paths", nargs="+", choices=[*FILES, NOTHING], default=[NOTHING, *FILES])
    parser.add_argument("--models", nargs="*", choices=MODELS, default=list(MODELS))
    parser.add_argument("--engines", nargs="+", choices=["direct", "tiles"], default=["direct"])
    parser.add_argument("--shown", type=int, default=3, help="cases of each path")
    given = parser.parse_args()
    console = Console(width=130)
    cases = readme_rows() | steps(given.models, given.engines)
    found = {case: compare(call, given.paths, given.rounds) for case, call in cases.items()}
    console.print(f"instruction set {_kernels.isa()}, {given.rounds} rounds")
    report(found, given.paths, given.shown, console)


if __name__ == "__main__":
    main()
