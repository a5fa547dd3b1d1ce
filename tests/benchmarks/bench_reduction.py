"""Sums with a stated accumulator and order: our time over a copy of the same array, and over numpy's sum in float32.

The copy goes into an array that exists. numpy's sum is that of the same values in float32, whatever the dtype of ours
(pairwise along the last axis, plain along others). Over all elements a sum in sequence is one chain, and the latency of
an addition (or of an addition and a rounding) bounds it. Results are allocated. Arrays have 2^24 elements unless
`--elements` says otherwise; "short" axes have 16. Small calls, of ten elements, are in microseconds.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

import lowprec as lp
from lowprec.testing import isa, isa_names
from tests.benchmarks.ratios import record

Call = Callable[[], object]
Array = npt.NDArray[Any]
# name of the axis, axes of the array (powers of two that are taken off its size), axis
AXES: list[tuple[str, tuple[int, ...], int | tuple[int, ...] | None]] = [
    ("last", (11,), 1),
    ("first", (11,), 0),
    ("middle", (8, 8), 1),
    ("short last", (20,), 1),
    ("short first", (4,), 0),
    ("short middle", (10, 4), 1),
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


def copy(x: Array) -> Call:
    """A copy of the array's bytes."""
    words = x.reshape(-1).view(np.uint64)
    to = np.empty_like(words)
    return lambda: np.copyto(to, words)


def reductions(name: str, x: Array, axis: Any, rounds: int) -> None:
    """One line per accumulator: time over the copy's, and over numpy's sum of as many float32."""
    wide = x.astype(np.float32)
    base, numpy_sum = seconds(copy(x), rounds), seconds(lambda: wide.sum(axis), rounds)
    print(f"{x.dtype}, {name} axis of {x.shape}: copy {base * 1e3:.2f} ms, np.sum in float32 {numpy_sum / base:.2f}")
    for accumulate, group, rounding in REDUCTIONS:
        options: dict[str, Any] = dict(accumulate=accumulate, group=group, rounding=rounding)
        options["key"] = 1 if rounding == "stochastic" else None
        took = seconds(lambda o=options: lp.reduce_sum(x, axis, **o), rounds)  # type: ignore[misc]
        print(
            f"  reduce_sum into {accumulate} group {group:<2d} {rounding:12s} {took / base:8.2f} copies,"
            f" {took / numpy_sum:7.2f} np.sum, {took / x.size * 1e9:6.2f} ns per element",
            flush=True,
        )
        work = f"{x.dtype} into {accumulate} group {group} {rounding}"
        record(f"reduce_sum {work}, {name} axis of {x.shape}, of numpy", took / numpy_sum)


def largest(name: str, x: Array, axis: Any, rounds: int) -> None:
    """reduce_max beside numpy's."""
    ours, theirs = (seconds(call, rounds) for call in (lambda: lp.reduce_max(x, axis), lambda: x.max(axis)))
    record(f"reduce_max {x.dtype}, {name} axis of {x.shape}, of numpy", ours / theirs)
    print(f"  reduce_max {'':35s} {ours / seconds(copy(x), rounds):8.2f} copies, {ours / theirs:7.2f} np.max")


def scatter(terms: Array, rounds: int) -> None:
    """scatter_add beside np.add.at: 64 columns, every row named about 64 times."""
    updates = terms.reshape(-1, 64)
    indices = np.random.default_rng(1).integers(0, max(1, len(updates) // 64), len(updates))
    rows = int(indices.max()) + 1
    total = np.zeros((rows, 64), np.float32)
    theirs = seconds(lambda: np.add.at(total, indices, updates), 1)
    base = seconds(copy(updates), rounds)
    for accumulate, group in (("float32", None), ("float16", 16), ("float16", 1)):
        ours = seconds(
            lambda a=accumulate, g=group: lp.scatter_add(indices, updates, rows, accumulate=a, group=g),  # type: ignore[misc]
            rounds,
        )
        print(
            f"scatter_add of {updates.shape} into {accumulate} group {group}: {ours / base:.2f} copies,"
            f" {ours / theirs:.4f} np.add.at"
        )


def sums(name: str, x: Array, axis: Any, rounds: int) -> None:
    """One line per function of lowprec.summation."""
    wide = x.astype(np.float32)
    base, numpy_sum = seconds(copy(x), rounds), seconds(lambda: wide.sum(axis), rounds)
    print(f"{x.dtype}, {name} axis of {x.shape}, {x.size} elements: np.sum in float32 {numpy_sum / base:.2f} copies")
    for label, function, fmt, rounding in SUMS:
        key = 1 if rounding == "stochastic" else None
        call = lambda f=function, a=(x, fmt, rounding), k=key: f(*a, axis=axis, key=k)  # type: ignore[misc] # noqa: E731
        took = seconds(call, rounds)
        each = took / x.size * 1e9
        print(
            f"  {label:14s} {fmt:8s} {rounding:12s} {took / base:8.2f} copies, {took / numpy_sum:7.2f} np.sum,"
            f" {each:6.2f} ns per element",
            flush=True,
        )
        record(f"{label} {x.dtype} to {fmt} {rounding}, {name} axis of {x.shape}, of numpy", took / numpy_sum)


def small(rounds: int) -> None:
    """Microseconds of calls on ten elements, beside `lowprec.round`."""
    x, key = np.linspace(0, 1, 10, dtype=np.float32), lp.Key(1)
    calls: dict[str, Call] = {
        "round": lambda: lp.round(x, "float16"),
        "sum": lambda: lp.sum(x, "float16"),
        "sum stochastic": lambda: lp.sum(x, "float16", "stochastic", key=key),
        "sum blocked": lambda: lp.sum(x, "float16", order="blocked", block=4),
        "mean": lambda: lp.mean(x, "float16"),
        "reduce_sum": lambda: lp.reduce_sum(x, accumulate="float16", group=16),
        "add arrays": lambda: lp.add(x, x, "float16"),
        "add a number": lambda: lp.add(x, 0.5, "float16"),
        "add a NumPy number": lambda: lp.add(x, np.float32(0.5), "float16"),
        "float32_op add": lambda: lp.float32_op("add", x, x, fmt="float16"),
        "np.sum": lambda: x.sum(),
    }
    for label, call in calls.items():
        least = min(seconds(lambda c=call: [c() for _ in range(1000)], rounds) for _ in range(3))  # type: ignore[misc]
        print(f"ten elements: {label:20s} {least * 1e3:6.2f} us", flush=True)


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(allow_abbrev=False, description=__doc__)
    parser.add_argument("--elements", type=int, default=1 << 24)
    parser.add_argument("--threads", type=int, nargs="+", default=[1])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=["reductions", "sums", "small"], default=None)
    parser.add_argument(
        "--axes", nargs="+", choices=[name for name, _, _ in AXES], default=[name for name, _, _ in AXES]
    )
    parser.add_argument("--isa", choices=isa_names(), default=isa_names()[-1])
    given = parser.parse_args()
    terms = np.random.default_rng(0).standard_normal(given.elements, np.float32)
    print(f"instruction set {given.isa}")
    with isa(given.isa):
        if given.only in ("small", None):
            small(given.rounds)
        if given.only != "small":
            for threads in given.threads:
                print(f"{threads} thread(s)")
                with lp.num_threads(threads):
                    arrays(terms, given)


def arrays(terms: Array, given: argparse.Namespace) -> None:
    """The tables of large arrays."""
    for dtype in (np.float32, np.float16):
        for name, cuts, axis in AXES:
            if name not in given.axes:
                continue
            x = shaped(terms.astype(dtype), cuts)
            if given.only != "sums":
                reductions(name, x, axis, given.rounds)
                largest(name, x, axis, given.rounds)
            if given.only != "reductions":
                sums(name, x, axis, given.rounds)
    if given.only != "sums":
        scatter(terms, given.rounds)


if __name__ == "__main__":
    main()
