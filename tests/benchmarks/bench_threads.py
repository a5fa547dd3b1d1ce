"""What threads cost where others want the processors too: their processor time beside that of one thread.

Threads that wait sleep, so twice as many as there are processors should take at most 1.3 times the processor time of
one; loops that wait by turning took 15 times as much. Run by `make bench`, or `make bench ARGS=threads`.
"""

import multiprocessing
import os
import time

import numpy as np

import lowprec as lp
from tests.benchmarks.ratios import record

ROUNDS = 7


def busy() -> None:
    """Wants a processor until it is killed."""
    while True:
        pass


def cost(threads: int, calls: int = 400) -> float:
    """Seconds of processor time of a small product and a rounding, so many times."""
    a = np.random.default_rng(0).normal(size=(128, 128)).astype(np.float32)
    x = np.random.default_rng(1).normal(size=1_000_000).astype(np.float32)
    begin = time.process_time()
    with lp.num_threads(threads):
        for _ in range(calls):
            lp.matmul(a, a, accumulate="float16", rounding="stochastic", key=1)
            lp.astype(x, "float8_e5m2", "stochastic", key=2)
    return time.process_time() - begin


def main() -> None:
    """The median over rounds, with nothing else and with one busy process for every processor."""
    processors = os.cpu_count() or 1
    for others in (0, processors):
        processes = [multiprocessing.Process(target=busy, daemon=True) for _ in range(others)]
        for process in processes:
            process.start()
        ratio = float(np.median([cost(2 * processors) / cost(1) for _ in range(ROUNDS)]))
        for process in processes:
            process.kill()
        name = f"processor time of {2 * processors} threads beside {others} busy processes, of one thread"
        record(name, ratio)
        print(f"  {name}: {ratio:.2f}", flush=True)


if __name__ == "__main__":
    main()
