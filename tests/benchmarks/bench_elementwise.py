"""Elementwise work: our time over torch's (where it is installed) or numpy's for the same operation, by one thread.

float32 is over theirs in float32. float16 in and out is over theirs in float16, nearest and stochastic (torch and numpy
round to nearest); the last column is our stochastic time over our nearest. All write into memory that exists. "exact"
are `lowprec.add` and its kin, rounded once; the others are `lowprec.float32_op`. The last table is of calls on ten
elements, in microseconds. In brackets: what the project wants.
"""

import argparse
import importlib.util
import time
import timeit
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.table import Table

import lowprec as lp
from tests.benchmarks.ratios import record

Call = Callable[[], object]
Array = npt.NDArray[Any]
TORCH = importlib.util.find_spec("torch") is not None
WANTED = {"float32": 1.2, "nearest_even": 1.0}
OF_NEAREST = 2.0  # wanted of stochastic rounding
CALLS = {
    "round": (lambda x: lp.round(x, "float16"), 1.5),
    "astype": (lambda x: lp.astype(x, "float16"), 1.5),
    "decode": (lambda x: lp.decode(x.astype(np.float16), "float16"), None),
    "add": (lambda x: lp.add(x, x, "float16"), 1.5),
    "exp": (lambda x: lp.exp(x, "float16"), 1.5),
    "float32_op add": (lambda x: lp.float32_op("add", x, x), None),
    "matmul 8x8": (lambda x: lp.matmul(EIGHT, EIGHT), 3.0),
    "numpy add": (lambda x: np.add(x, x), None),
}
EIGHT = np.ones((8, 8), np.float32)


class Row(NamedTuple):
    """An operation of ours and the name it has in torch and in numpy (None: it has none there)."""

    name: str
    operands: int
    exact: bool = False
    torch: str | None = None
    numpy: str | None = None


ROWS = [
    *(Row(name, 2, True, name, name) for name in ("add", "subtract", "multiply", "divide")),
    Row("sqrt", 1, True, "sqrt", "sqrt"),
    *(Row(name, 2, False, name, name) for name in ("add", "multiply", "maximum")),
    Row("negative", 1, False, "negative", "negative"),
    *(Row(name, 1, False, name, name) for name in ("exp", "log", "tanh", "sin", "cos")),
    *(Row(name, 1, False, name) for name in ("erf", "sigmoid", "rsqrt", "gelu")),
    Row("gelu_gradient", 1),
    Row("scaled_add", 3),
]


def seconds(call: Call, rounds: int) -> float:
    """The least time of a call."""
    call()
    least = float("inf")
    for _ in range(rounds):
        start = time.perf_counter()
        call()
        least = min(least, time.perf_counter() - start)
    return least


def theirs(row: Row, operands: list[Array]) -> Call | None:
    """The same operation by torch or numpy."""
    if TORCH and row.torch:
        import torch

        torch.set_num_threads(1)
        tensors = [torch.from_numpy(x) for x in operands]
        if row.torch == "gelu":
            return lambda: torch.nn.functional.gelu(tensors[0])
        function, result = getattr(torch, row.torch), torch.empty_like(tensors[0])
        return lambda: function(*tensors, out=result)
    if not TORCH and row.numpy:
        known, out = getattr(np, row.numpy), np.empty_like(operands[0])
        return lambda: known(*operands, out=out)
    return None


def ours(row: Row, operands: list[Array], mode: str) -> Call:
    """The operation into the operands' dtype."""
    out, fmt = np.empty_like(operands[0]), operands[0].dtype
    if row.exact:
        function = getattr(lp, row.name)
        return lambda: function(*operands, fmt, mode, key=1, out=out)
    return lambda: lp.float32_op(row.name, *operands, fmt=fmt, rounding=mode, key=1, out=out)


def cell(time_taken: float, elements: int, least: float | None, wanted: float | None) -> str:
    """Nanoseconds per element, and the ratio."""
    text = f"{1e9 * time_taken / elements:.2f} ns"
    if least is None:
        return text
    ratio = time_taken / least
    return judged(f"{text}  {ratio:.2f}", ratio, wanted)


def judged(text: str, ratio: float, wanted: float | None) -> str:
    """A text that tells a ratio, beside what is wanted; red where it is more."""
    if wanted is None:
        return text
    return f"{text} ({wanted:.1f})" if ratio <= wanted else f"[red]{text} ({wanted:.1f})[/red]"


def elementwise(size: int, rounds: int, console: Console) -> None:
    """The table of operations on so many elements."""
    peer = "torch" if TORCH else "numpy"
    table = Table(title=f"{size} elements, one thread: ns per element, and our time over {peer}'s")
    for column in ("", "float32", "float16", "float16, stochastic", "of nearest"):
        table.add_column(column, justify="right" if column else "left")
    generator = np.random.default_rng(0)
    numbers = [np.abs(generator.standard_normal(size)).astype(np.float32) + np.float32(0.1) for _ in range(3)]
    with lp.num_threads(1):
        for row in ROWS:
            cells, name = [], f"{row.name}{', exact' if row.exact else ''}"
            of_halves = []
            for dtype, mode in ((np.float32, "nearest_even"), (np.float16, "nearest_even"), (np.float16, "stochastic")):
                operands = [x.astype(dtype) for x in numbers[: row.operands]]
                peers = theirs(row, operands)
                least = None if peers is None else seconds(peers, rounds)
                wanted = WANTED.get("float32" if dtype is np.float32 else mode)
                taken = seconds(ours(row, operands, mode), rounds)
                cells.append(cell(taken, size, least, wanted))
                if dtype is np.float16:
                    of_halves.append(taken)
                if least is not None:
                    record(f"elementwise {name}, {size}, {np.dtype(dtype)} {mode}, of {peer}", taken / least)
            ratio = of_halves[1] / of_halves[0]
            record(f"elementwise {name}, {size}, float16 stochastic, of nearest", ratio)
            cells.append(judged(f"{ratio:.2f}", ratio, OF_NEAREST))
            table.add_row(name, *cells)
    console.print(table)


def calls(console: Console) -> None:
    """The table of small calls."""
    table = Table(title="a call on ten elements, microseconds")
    for column in ("", "us", "wanted"):
        table.add_column(column, justify="right" if column else "left")
    x = np.zeros(10, np.float32)
    for name, (call, wanted) in CALLS.items():
        taken = 1e6 * min(timeit.repeat(lambda c=call: c(x), number=2000, repeat=25)) / 2000  # type: ignore[misc]
        text = f"{taken:.2f}"
        late = wanted is not None and taken > wanted
        table.add_row(name, f"[red]{text}[/red]" if late else text, "" if wanted is None else f"{wanted:.1f}")
    console.print(table)


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(allow_abbrev=False, description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="*", default=[1 << 16, 1 << 22])
    parser.add_argument("--rounds", type=int, default=60)
    given = parser.parse_args()
    console = Console(width=130)
    for size in given.sizes:
        elementwise(size, max(5, min(given.rounds, (given.rounds << 16) // size)), console)
    calls(console)


if __name__ == "__main__":
    main()
