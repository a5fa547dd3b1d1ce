"""Sums with a stated accumulator and order: our time over a read of the same array, and over numpy's sum.

The read is numpy's largest of the array's bytes taken as 64-bit integers: one pass, about at memory speed. numpy's sum
of float32 is float32 (pairwise along the last axis, plain along others); its sum of float16 is not timed. Over all
elements a sum in sequence is one chain, and the latency of an addition (or of an addition and a rounding) bounds it.
Results are allocated. Arrays have 2^24 elements unless `--elements` says otherwise.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

import lowprec as lp
from lowprec.testing import isa, isa_names

Call = Callable[[], object]
Array = npt.NDArray[Any]
# name of the axis, axes of the array (powers of two that are taken off its size), axis
AXES: list[tuple[str, tuple[int, ...], int | tuple[int, ...] | None]] = [
    ("last", (11,), 1),
    ("first", (11,), 0),
    ("middle", (8, 8), 1),
    ("all", (11,), None),
]
# accumulate, group, rounding
REDUCTIONS: list[tuple[str, int, str]] = [
    ("float32", 16, "nearest_even"),
    ("float16", 16, "nearest_even"),
    ("float16", 1, "nearest_even"),
    ("float16", 16, "stochastic"),
    ("float16", 1, "stochastic"),
]
# name, function, format, rounding
SUMS: list[tuple[str, Callable[..., Any], str, str]] = [
    ("sum", lp.sum, "float32", "nearest_even"),
    ("sum", lp.sum, "float16", "nearest_even"),
    ("sum", lp.sum, "float16", "stochastic"),
    ("pairwise", lambda x, *a, **k: lp.sum(x, *a, order="pairwise", **k), "float16", "nearest_even"),
    ("blocked", lambda x, *a, **k: lp.sum(x, *a, order="blocked", **k), "float16", "nearest_even"),
    ("kahan_sum", lp.kahan_sum, "float16", "nearest_even"),
    ("cumulative_sum", lp.cumulative_sum, "float16", "nearest_even"),
    ("mean", lp.mean, "float16", "nearest_even"),
    ("dot", lambda x, *a, axis, **k: lp.dot(x, x, *a, axis=axis, **k), "float16", "nearest_even"),
    ("norm", lp.norm, "float16", "nearest_even"),
]


def seconds(call: Call, rounds: int) -> float:
    """The least time of a call."""
    call()
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


def shaped(x: Array, cuts: Sequence[int]) -> Array:
    """x in as many axes as there are cuts and one more."""
    return x.reshape(*(1 << cut for cut in cuts), -1)


def read(x: Array) -> Call:
    """One pass over the array's bytes."""
    words = x.reshape(-1).view(np.uint64)
    return lambda: words.max()


def reductions(name: str, x: Array, axis: Any, rounds: int) -> None:
    """One line per accumulator: time over the read's, and over numpy's sum where x is float32."""
    base = seconds(read(x), rounds)
    numpy_sum = seconds(lambda: x.sum(axis), rounds) if x.dtype == np.float32 else None
    beside = "" if numpy_sum is None else f", np.sum {numpy_sum / base:6.2f}"
    print(f"{x.dtype}, {name} axis of {x.shape}: read {x.nbytes / base * 1e-9:.1f} GB/s{beside}")
    for accumulate, group, rounding in REDUCTIONS:
        options: dict[str, Any] = dict(accumulate=accumulate, group=group, rounding=rounding)
        options["key"] = 1 if rounding == "stochastic" else None
        took = seconds(lambda o=options: lp.reduce_sum(x, axis, **o), rounds)  # type: ignore[misc]
        against = "" if numpy_sum is None else f", {took / numpy_sum:7.2f} np.sum"
        print(
            f"  reduce_sum into {accumulate} group {group:<2d} {rounding:12s} {took / base:8.2f} reads{against},"
            f" {took / x.size * 1e9:6.2f} ns per element",
            flush=True,
        )


def largest(x: Array, axis: Any, rounds: int) -> None:
    """reduce_max beside numpy's."""
    ours, theirs = (seconds(call, rounds) for call in (lambda: lp.reduce_max(x, axis), lambda: x.max(axis)))
    print(f"  reduce_max {'':35s} {ours / seconds(read(x), rounds):8.2f} reads, {ours / theirs:7.2f} np.max")


def scatter(terms: Array, rounds: int) -> None:
    """scatter_add beside np.add.at: 64 columns, every row named about 64 times."""
    updates = terms.reshape(-1, 64)
    indices = np.random.default_rng(1).integers(0, max(1, len(updates) // 64), len(updates))
    rows = int(indices.max()) + 1
    total = np.zeros((rows, 64), np.float32)
    theirs = seconds(lambda: np.add.at(total, indices, updates), 1)
    base = seconds(read(updates), rounds)
    for accumulate, group in (("float32", None), ("float16", 16), ("float16", 1)):
        ours = seconds(
            lambda a=accumulate, g=group: lp.scatter_add(indices, updates, rows, accumulate=a, group=g),  # type: ignore[misc]
            rounds,
        )
        print(
            f"scatter_add of {updates.shape} into {accumulate} group {group}: {ours / base:.2f} reads,"
            f" {ours / theirs:.4f} np.add.at"
        )


def sums(name: str, x: Array, axis: Any, rounds: int) -> None:
    """One line per function of lowprec.summation."""
    base = seconds(read(x), rounds)
    print(f"{x.dtype}, {name} axis of {x.shape}, {x.size} elements")
    for label, function, fmt, rounding in SUMS:
        key = 1 if rounding == "stochastic" else None
        call = lambda f=function, a=(x, fmt, rounding), k=key: f(*a, axis=axis, key=k)  # type: ignore[misc] # noqa: E731
        took = seconds(call, rounds)
        each = took / x.size * 1e9
        print(f"  {label:14s} {fmt:8s} {rounding:12s} {took / base:8.2f} reads, {each:6.2f} ns per element", flush=True)


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--elements", type=int, default=1 << 24)
    parser.add_argument("--threads", type=int, nargs="+", default=[1])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=["reductions", "sums"], default=None)
    parser.add_argument("--isa", choices=isa_names(), default=isa_names()[-1])
    given = parser.parse_args()
    terms = np.random.default_rng(0).standard_normal(given.elements, np.float32)
    print(f"instruction set {given.isa}")
    with isa(given.isa):
        for threads in given.threads:
            print(f"{threads} thread(s)")
            with lp.num_threads(threads):
                for dtype in (np.float32, np.float16):
                    for name, cuts, axis in AXES:
                        x = shaped(terms.astype(dtype), cuts)
                        if given.only != "sums":
                            reductions(name, x, axis, given.rounds)
                            largest(x, axis, given.rounds)
                        if given.only != "reductions" and dtype is np.float32:
                            sums(name, x, axis, given.rounds)
                scatter(terms, given.rounds)


if __name__ == "__main__":
    main()
