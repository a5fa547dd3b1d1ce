"""Rounding and products beside what a NumPy user would write, one thread, in turn in one process.

Run by `make bench`. Rates are medians over rounds, with `out=` wherever the peer has it. The usual NumPy bit trick for
stochastic rounding is timed though it is wrong for subnormals; gfloat is exact, and written to be read.
"""

import os

for name in [name for name in os.environ if name.startswith("OPENBLAS_")]:
    del os.environ[name]
os.environ |= {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "LOWPREC_NUM_THREADS": "1"}

import argparse  # noqa: E402
import statistics  # noqa: E402
import time  # noqa: E402
from collections.abc import Callable  # noqa: E402

import gfloat  # noqa: E402
import gfloat.formats  # noqa: E402
import ml_dtypes  # noqa: E402
import numpy as np  # noqa: E402

import lowprec  # noqa: E402
from tests.benchmarks.product_peers import chunk_loop  # noqa: E402

Call = Callable[[], object]
KEY = lowprec.Key(1)


def rates(calls: dict[str, Call], work: float, rounds: int) -> dict[str, float]:
    """Work per nanosecond of each call, the calls taken in turn."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    for _ in range(rounds):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - start)
    return {name: 1e-9 * work / statistics.median(taken) for name, taken in times.items()}


def bit_trick(x: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Stochastic rounding to float16's 10 bits as usually written in NumPy; wrong for subnormals and overflow."""
    noise = generator.integers(0, 1 << 13, x.shape, np.uint32)
    return ((x.view(np.uint32) + noise) & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float16)


def rounding(size: int, rounds: int) -> list[tuple[str, dict[str, float]]]:
    """Billions of elements per second, float32 to narrower formats."""
    generator = np.random.default_rng(0)
    x = generator.normal(size=size).astype(np.float32)
    few = x[: size // 64]
    half, brain, quarter = (np.empty(size, d) for d in (np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn))

    def ours(fmt: str, out: np.ndarray, how: str = "nearest_even") -> Call:
        return lambda: lowprec.astype(x, fmt, how, key=KEY if how == "stochastic" else None, out=out)

    def copies(out: np.ndarray) -> Call:
        return lambda: np.copyto(out, x, casting="unsafe")

    rows = [
        ("float16 nearest", rates({"lowprec": ours("float16", half), "numpy": copies(half)}, size, rounds)),
        ("bfloat16 nearest", rates({"lowprec": ours("bfloat16", brain), "ml_dtypes": copies(brain)}, size, rounds)),
        ("e4m3fn nearest", rates(
            {"lowprec": ours("float8_e4m3fn", quarter), "ml_dtypes": copies(quarter)}, size, rounds
        )),
        ("float16 stochastic", rates(
            {"lowprec": ours("float16", half, "stochastic"), "numpy bit trick": lambda: bit_trick(x, generator)},
            size, rounds,
        )),
    ]  # fmt: skip
    exact = gfloat.formats.format_info_binary16
    slow = rates({"gfloat": lambda: gfloat.round_ndarray(exact, few.astype(np.float64))}, few.size, rounds)
    rows[0][1].update(slow)
    return rows


def products(n: int, rounds: int) -> list[tuple[str, dict[str, float]]]:
    """Billions of floating-point operations per second, n x n x n float16 operands."""
    generator = np.random.default_rng(0)
    a, b = (generator.normal(size=(n, n)).astype(np.float16) for _ in range(2))
    a32, b32 = a.astype(np.float32), b.astype(np.float32)
    out, out32 = np.empty((n, n), np.float16), np.empty((n, n), np.float32)

    def ours(how: str) -> Call:
        key = KEY if how == "stochastic" else None
        return lambda: lowprec.matmul(a, b, accumulate="float16", rounding=how, key=key, out=out)

    calls = {
        "lowprec nearest": ours("nearest_even"),
        "lowprec stochastic": ours("stochastic"),
        "numpy chunk loop": lambda: chunk_loop(a, b),
        "numpy float32 (no rounding)": lambda: np.matmul(a32, b32, out=out32),
    }
    return [(f"float16 accumulator, n = {n}", rates(calls, 2.0 * n**3, rounds))]


def main() -> None:
    """Prints one line per task."""
    parser = argparse.ArgumentParser(allow_abbrev=False, description=__doc__)
    parser.add_argument("--size", type=int, default=1 << 23)
    parser.add_argument("--n", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=9)
    given = parser.parse_args()
    for title, rows in (
        ("rounding float32 arrays, 1 thread, Gelem/s", rounding(given.size, given.rounds)),
        ("products, 1 thread, GFLOP/s", products(given.n, given.rounds)),
    ):
        print(title)
        for task, found in rows:
            print(f"  {task:32s}" + "   ".join(f"{name} {rate:.3g}" for name, rate in found.items()))


if __name__ == "__main__":
    main()
