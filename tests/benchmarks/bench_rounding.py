"""Rounding against a copy of the same bytes: the ratio is the copy's time over ours, medians over rounds taken in turn.

A conversion reads float32 and writes codes; the copy moves as many bytes in all. Both write into memory that exists.
With `--isa v3` the older instruction set is forced. The last lines give the cost of a call on ten elements and of
`import lowprec` over numpy and ml_dtypes.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
import timeit
from collections.abc import Callable

import numpy as np

import lowprec as lp
from lowprec.testing import isa, isa_names

Call = Callable[[], object]
CONVERSIONS = [
    *((fmt, mode) for fmt in ("float16", "bfloat16", "float8_e4m3fn") for mode in ("nearest_even", "stochastic")),
    ("float8_e5m2fnuz", "stochastic"),
    ("float6_e3m2fn", "stochastic"),
    ("float16", "toward_zero"),
]


def against(copy: Call, ours: Call, rounds: int) -> float:
    """Median of copy's time over ours."""
    ratios = []
    copy(), ours()
    for _ in range(rounds):
        start = time.perf_counter()
        copy()
        middle = time.perf_counter()
        ours()
        ratios.append((middle - start) / (time.perf_counter() - middle))
    return statistics.median(ratios)


def copying(bytes_moved: int) -> Call:
    """A copy that reads and writes so many bytes in all."""
    source = np.ones(bytes_moved // 2, np.uint8)
    target = np.empty_like(source)
    return lambda: np.copyto(target, source)


def conversions(size: int, threads: int, rounds: int) -> None:
    """One line per conversion."""
    x = np.random.default_rng(0).standard_normal(size).astype(np.float32)
    values = np.empty_like(x)
    with lp.num_threads(threads):
        for name, mode in CONVERSIONS:
            fmt = lp.as_format(name)
            out = np.empty(size, fmt.code_dtype)
            copy = copying((4 + out.itemsize) * size)

            def ours(name: str = name, mode: str = mode, out: np.ndarray = out) -> object:
                return lp.encode(x, name, mode, key=1, out=out)

            print(f"  {name + ' ' + mode:34s} {against(copy, ours, rounds):5.2f}")
        for mode in ("nearest_even", "stochastic"):
            copy = copying(8 * size)
            ratio = against(copy, lambda mode=mode: lp.round(x, "float16", mode, key=1, out=values), rounds)
            print(f"  {'round to float16, ' + mode:34s} {ratio:5.2f}")
        for name in ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz"):
            codes = lp.encode(x, name).view(lp.as_format(name).dtype)
            copy = copying((4 + codes.itemsize) * size)
            ratio = against(copy, lambda c=codes, n=name: lp.decode(c, n, out=values), rounds)
            print(f"  {'decode ' + name:34s} {ratio:5.2f}")


def call_overhead() -> float:
    """Microseconds of a stochastic call on ten elements."""
    x, key = np.zeros(10, np.float32), lp.Key(1)
    number = 20_000
    taken = timeit.repeat(lambda: lp.astype(x, "float16", "stochastic", key=key), number=number, repeat=5)
    return 1e6 * min(taken) / number


def import_time(statement: str) -> float:
    """Milliseconds of processor time of a new interpreter that runs one statement, the least of nine."""
    taken = []
    for _ in range(9):
        before = os.times()
        subprocess.run([sys.executable, "-c", statement], check=True)
        after = os.times()
        spent = after.children_user + after.children_system - before.children_user - before.children_system
        taken.append(1e3 * spent)
    return min(taken)


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=1 << 24)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--isa", choices=isa_names(), nargs="+", default=[isa_names()[-1]])
    given = parser.parse_args()
    for name in given.isa:
        for threads in given.threads:
            print(
                f"{given.size} elements, {name}, {threads} thread(s); ratio to a copy of the same bytes by one thread"
            )
            with isa(name):
                conversions(given.size, threads, given.rounds)
    print(f"call on 10 elements: {call_overhead():.2f} us (limit 5)")
    bare, ours = import_time("import numpy, ml_dtypes"), import_time("import numpy, ml_dtypes, lowprec")
    print(f"import lowprec: {ours - bare:.0f} ms over numpy and ml_dtypes ({bare:.0f} ms; limit 30)")


if __name__ == "__main__":
    main()
