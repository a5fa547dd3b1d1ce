"""matmul against the best sgemm: our time over sgemm's on the same shape, medians over rounds timed in turn.

Square products: operands and results in storage of the kind named, results into memory that exists. Training shapes:
numpy's float32 matmul on the same shape (and strides) against ours with float16 operands. `--isa v3` forces an older
instruction set and compares with OpenBLAS's AVX2 kernel.
Other libraries (the `bench` extra) join the table of the smallest size on one thread; those not installed are named.
"""

import os
import sys

for name in [name for name in os.environ if name.startswith("OPENBLAS_")]:
    del os.environ[name]
if "v3" in sys.argv:
    os.environ["OPENBLAS_CORETYPE"] = "Haswell"

import argparse  # noqa: E402
import statistics  # noqa: E402
import time  # noqa: E402
from collections.abc import Callable, Sequence  # noqa: E402
from typing import Any  # noqa: E402

import numpy as np  # noqa: E402
import numpy.typing as npt  # noqa: E402
from threadpoolctl import threadpool_info, threadpool_limits  # noqa: E402

import lowprec as lp  # noqa: E402
from lowprec import Accumulation, Rounding  # noqa: E402
from lowprec.sums.matmul import prepare  # noqa: E402
from lowprec.testing import isa, isa_names  # noqa: E402
from tests.benchmarks.product_peers import peers  # noqa: E402
from tests.benchmarks.ratios import record  # noqa: E402

Call = Callable[[], object]
Array = npt.NDArray[Any]
LARGE = 2048  # fewer rounds from this size on
# operands, accumulate, group, rounding, limit
SQUARE: list[tuple[str, str, int, str, float]] = [
    ("float32", "float32", 16, "nearest_even", 1.1),
    ("float16", "float32", 16, "nearest_even", 1.1),
    ("float16", "float16", 16, "nearest_even", 1.2),
    ("float16", "float16", 4, "nearest_even", 1.7),
    ("float16", "float16", 1, "nearest_even", 3.0),
    ("float16", "float16", 16, "stochastic", 1.8),
    ("float16", "float16", 4, "stochastic", 4.2),
    ("float16", "float16", 1, "stochastic", 14.0),
    ("bfloat16", "bfloat16", 16, "nearest_even", 1.4),
    ("bfloat16", "bfloat16", 16, "stochastic", 2.1),
    ("float8_e4m3fn", "float16", 16, "nearest_even", 1.4),
    ("float8_e4m3fn", "float8_e4m3fn", 16, "nearest_even", 1.4),
    ("float8_e4m3fn", "float8_e4m3fn", 16, "stochastic", 2.1),
]
# name, m, k, n, whether a and b are transposed views, batch
TRAINING: list[tuple[str, int, int, int, bool, bool, int]] = [
    ("x @ w", 64, 64, 256, False, False, 0),
    ("x @ w", 64, 256, 256, False, False, 0),
    ("x @ w", 64, 256, 10, False, False, 0),
    ("dy @ w.T", 64, 256, 256, False, True, 0),
    ("dy @ w.T", 64, 10, 256, False, True, 0),
    ("x.T @ dy", 256, 64, 256, True, False, 0),
    ("x.T @ dy", 256, 64, 10, True, False, 0),
    ("x @ w", 8, 64, 64, False, False, 0),
    ("x @ w", 8, 4096, 64, False, False, 0),
    ("x @ w", 128, 64, 4096, False, False, 0),
    ("x @ w", 128, 4096, 64, False, False, 0),
    ("x @ w", 32, 1024, 1024, False, False, 0),
    ("scores @ v", 64, 64, 64, False, False, 48),
    ("q @ k.T", 64, 64, 64, False, True, 48),
    ("x @ w", 64, 10, 256, False, False, 0),
    ("x @ w", 64, 16, 256, False, False, 0),
    ("x @ w", 256, 8, 64, False, False, 0),
    ("scores @ v", 32, 16, 32, False, False, 64),
    ("x @ w", 256, 256, 3, False, False, 0),
    ("x @ w", 256, 256, 1, False, False, 0),
    ("x @ w", 1, 1024, 1024, False, False, 0),
    ("x @ w", 3, 256, 256, False, False, 0),
]


def seconds(call: Call, count: int) -> float:
    """Time of one call, over `count` of them."""
    start = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - start) / count


def rested(call: Call, count: int) -> float:
    """As `seconds`, after a rest: the threads of the library called before it spin for a while, and are in the way."""
    time.sleep(0.2)
    call()
    return seconds(call, count)


def compare(
    calls: Sequence[Call], rounds: int, span: float = 0.02, measure: Callable[[Call, int], float] = seconds
) -> tuple[float, list[float]]:
    """Least seconds of the first call, and for the others the median over rounds of their time over the first's."""
    counts = []
    for call in calls:
        call()
        counts.append(max(1, int(span / max(seconds(call, 1), 1e-7))))
    times = [[measure(call, count) for call, count in zip(calls, counts, strict=True)] for _ in range(rounds)]
    ratios = [statistics.median(row[i] / row[0] for row in times) for i in range(1, len(calls))]
    return min(row[0] for row in times), ratios


def operand(rng: np.random.Generator, shape: tuple[int, ...], transposed: bool) -> Array:
    """Normal float32 numbers, as a transposed view if told so."""
    if not transposed:
        return rng.standard_normal(shape).astype(np.float32)
    return rng.standard_normal((*shape[:-2], shape[-1], shape[-2])).astype(np.float32).swapaxes(-1, -2)


def narrow(x: Array, fmt: str) -> Array:
    """The same numbers and strides in a narrower format."""
    plain = x if x.flags.c_contiguous else x.swapaxes(-1, -2)
    result: Array = lp.astype(plain, fmt)
    return result if x.flags.c_contiguous else result.swapaxes(-1, -2)


def square(n: int, threads: int, rounds: int, beside: bool) -> None:
    """The table of square products; peers stand in it where `beside` says so."""
    rng = np.random.default_rng(0)
    a, b, c = operand(rng, (n, n), False), operand(rng, (n, n), False), np.empty((n, n), np.float32)
    calls: list[Call] = [lambda: np.matmul(a, b, out=c)]
    for fmt, accumulate, group, rounding, _ in SQUARE:
        left, right = narrow(a, fmt), narrow(b, fmt)
        call = prepare(left.dtype, right.dtype, Accumulation(group, accumulate=accumulate), Rounding(rounding))
        out = call(left, right, 1)
        calls.append(lambda f=call, x=left, y=right, o=out: f(x, y, 1, (0, 0), o))  # type: ignore[misc]
    others, missing = peers(narrow(a, "float16"), narrow(b, "float16")) if beside else ({}, [])
    calls += others.values()
    with threadpool_limits(threads), lp.num_threads(threads):
        least, ratios = compare(calls, rounds, 0.02, rested if threads > 1 else seconds)
    print(f"{n} x {n} x {n}, {threads} thread(s): sgemm {2e-9 * n**3 / least:.0f} GFLOP/s")
    for (fmt, accumulate, group, rounding, limit), ratio in zip(SQUARE, ratios, strict=False):
        print(f"  {fmt + ' into ' + accumulate:32s} {rounding:12s} group {group:<3d} {ratio:6.2f} (limit {limit})")
        name = f"matmul {n} {fmt} into {accumulate} {rounding} group {group}, {threads} threads, of sgemm"
        record(name, ratio)
    for name, ratio in zip(others, ratios[len(SQUARE) :], strict=True):
        print(f"  {'float16 into float16, ' + name:45s} group 16  {ratio:6.2f}")
    if missing:
        print(f"  not installed: {', '.join(missing)}")


def training(rounds: int) -> None:
    """The table of training shapes, one thread."""
    rng = np.random.default_rng(1)
    kinds = [("float32", "nearest_even"), ("float16", "nearest_even"), ("float16", "stochastic")]
    print("training shapes, one thread: time over numpy's float32 matmul (limit 1.5), float16 operands, group 16")
    print(f"  {'':32s} {'numpy us':>9s} {'into f32':>9s} {'into f16':>9s} {'f16 stoch.':>10s}")
    with threadpool_limits(1), lp.num_threads(1):
        for name, m, k, n, a_turned, b_turned, batch in TRAINING:
            lead = (batch,) if batch else ()
            a, b = operand(rng, (*lead, m, k), a_turned), operand(rng, (*lead, k, n), b_turned)
            left, right = narrow(a, "float16"), narrow(b, "float16")
            calls: list[Call] = [lambda a=a, b=b: np.matmul(a, b)]  # type: ignore[misc]
            for accumulate, rounding in kinds:
                call = prepare(left.dtype, right.dtype, Accumulation(accumulate=accumulate), Rounding(rounding))
                calls.append(lambda f=call, x=left, y=right: f(x, y, 1))  # type: ignore[misc]
            least, ratios = compare(calls, rounds, 0.005)
            shape = f"{name} {f'{batch} x ' if batch else ''}{m}x{k}x{n}"
            for (accumulate, rounding), ratio in zip(kinds, ratios, strict=True):
                record(f"matmul {shape} into {accumulate} {rounding}, of numpy", ratio)
            print(f"  {shape:32s} {1e6 * least:9.1f} {ratios[0]:9.2f} {ratios[1]:9.2f} {ratios[2]:10.2f}")


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(allow_abbrev=False, description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="*", default=[512, 1024, 2048])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--isa", choices=isa_names(), default=isa_names()[-1])
    given = parser.parse_args()
    operand(np.random.default_rng(0), (2, 2), False) @ np.eye(2, dtype=np.float32)
    kernels = {info["architecture"] for info in threadpool_info() if info.get("architecture")}
    print(f"instruction set {given.isa}, OpenBLAS kernels {', '.join(sorted(kernels))}")
    with isa(given.isa):
        for n in given.sizes:
            for threads in given.threads:
                rounds = given.rounds if n < LARGE else max(3, given.rounds // 3)
                square(n, threads, rounds, beside=n == min(given.sizes) and threads == 1)
        training(given.rounds)


if __name__ == "__main__":
    main()
