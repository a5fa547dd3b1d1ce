"""Rounding against a copy of the same bytes: the ratio is the copy's time over ours, medians over rounds taken in turn.

A conversion reads float32 and writes codes; the copy (of one thread, also beside two of ours) moves as many bytes in
all, and both write into memory that exists. Beside them stand the libraries that do the same: numpy and ml_dtypes
nearest-even, the usual NumPy bit trick for stochastic float16 (wrong for subnormals), gfloat, and torch where it is
installed; gfloat, which takes microseconds for each element, gets fewer. The last lines give the cost of a call on ten
elements and of `import lowprec` over numpy and ml_dtypes. In brackets: what the project wants.
"""

import argparse
import importlib.util
import os
import statistics
import subprocess
import sys
import time
import timeit
from collections.abc import Callable
from itertools import product
from typing import Any, NamedTuple

import gfloat
import gfloat.formats
import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.table import Table

import lowprec as lp
from lowprec.testing import isa, isa_names
from tests.benchmarks.ratios import record

Call = Callable[[], object]
Array = npt.NDArray[Any]
FEW = 1 << 16  # elements for gfloat
GFLOAT = {"float16": "binary16", "bfloat16": "bfloat16", "float8_e4m3fn": "ocp_e4m3", "float8_e5m2": "ocp_e5m2"}


class Row(NamedTuple):
    """A conversion and the least ratios wanted: one thread, two, and one on AVX2."""

    fmt: str | lp.FloatFormat
    mode: str
    one: float | None = None
    two: float | None = None
    old: float | None = None


NARROW = [name for name in lp.formats if name not in ("float64", "float32", "tfloat32", "float8_e8m0fnu")]
HEAD = [
    Row("float16", "nearest_even", 0.95, None, 0.5),
    Row("float16", "stochastic", 0.8, 0.95, 0.3),
    Row("bfloat16", "nearest_even", None, None, 0.5),
    Row("bfloat16", "stochastic", 0.85, None, 0.3),
    Row("float8_e4m3fn", "nearest_even", 0.85, None, 0.5),
    Row("float8_e4m3fn", "stochastic", 0.6, 0.85, 0.3),
    Row("float8_e5m2", "nearest_even", 0.85, None, 0.5),
    Row("float8_e5m2", "stochastic", 0.6, 0.85, 0.3),
]
OTHERS = [Row(name, "stochastic") for name in NARROW if name not in {row.fmt for row in HEAD}]
CUSTOM = [
    Row(lp.FloatFormat("e5m9", 5, 9), "stochastic", 0.7),
    Row(lp.FloatFormat("e6m5", 6, 5), "stochastic", 0.7),
    Row(lp.FloatFormat("e7m8", 7, 8), "stochastic", 0.7),
    Row(lp.p3109(8, 3), "stochastic"),
    Row("float16", "toward_zero"),
    Row("float16", "up"),
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


def bit_trick(x: Array, generator: np.random.Generator) -> Array:
    """Stochastic rounding to float16's ten bits as NumPy's users write it."""
    noise = generator.integers(0, 1 << 13, x.shape, np.uint32)
    rounded: Array = ((x.view(np.uint32) + noise) & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float16)
    return rounded


def peers_of(row: Row, x: Array) -> dict[str, Call]:
    """The same conversion by others, where they have it."""
    calls: dict[str, Call] = {}
    generator = np.random.default_rng(0)
    fmt = lp.as_format(row.fmt)
    if row.mode == "nearest_even":
        out = np.empty(x.size, fmt.dtype)
        calls["numpy, ml_dtypes"] = lambda: np.copyto(out, x, casting="unsafe")
        if importlib.util.find_spec("torch"):
            calls["torch"] = torch_cast(fmt.name, x)
    elif row.fmt == "float16" and row.mode == "stochastic":
        calls["numpy, ml_dtypes"] = lambda: bit_trick(x, generator)
    if fmt.name in GFLOAT and row.mode in ("nearest_even", "stochastic"):
        info = getattr(gfloat.formats, "format_info_" + GFLOAT[fmt.name])
        bits = generator.integers(0, 1 << 16, FEW)
        stochastic = row.mode == "stochastic"
        how = gfloat.RoundMode.Stochastic if stochastic else gfloat.RoundMode.TiesToEven
        extra = {"srbits": bits, "srnumbits": 16} if stochastic else {}
        wide = x[:FEW].astype(np.float64)
        calls["gfloat"] = lambda: gfloat.round_ndarray(info, wide, how, **extra)
    return calls


def torch_cast(name: str, x: Array) -> Call:
    """Torch's cast into memory that exists, by one thread."""
    import torch

    torch.set_num_threads(1)
    source = torch.from_numpy(x)
    target = torch.empty(x.size, dtype=getattr(torch, name))
    return lambda: target.copy_(source)


def conversion_ratio(row: Row, x: Array, threads: int, rounds: int) -> float:
    """Ours against the copy."""
    fmt = lp.as_format(row.fmt)
    out = np.empty(x.size, fmt.code_dtype)
    copy = copying((4 + out.itemsize) * x.size)
    with lp.num_threads(threads):
        return against(copy, lambda: lp.encode(x, fmt, row.mode, key=1, out=out), rounds)


def cell(ratio: float, wanted: float | None) -> str:
    """A ratio beside what is wanted; red where it falls short."""
    if wanted is None:
        return f"{ratio:.2f}"
    text = f"{ratio:.2f} ({wanted:.2f})"
    return text if ratio >= wanted else f"[red]{text}[/red]"


def conversions(x: Array, rounds: int, console: Console) -> None:
    """The table of conversions."""
    names = isa_names()
    newest, old = names[-1], "v3" if "v3" in names[:-1] else None
    peers = ["numpy, ml_dtypes", "gfloat", "torch"]
    table = Table(title=f"{x.size} float32 numbers to codes on {newest}, in copies of the same bytes by one thread")
    for column in ("", "1 thread", "2 threads", f"1 thread, {old}", *peers):
        table.add_column(column, justify="right" if column else "left")
    for row in HEAD + OTHERS + CUSTOM:
        fmt = lp.as_format(row.fmt)
        cells = [cell(conversion_ratio(row, x, 1, rounds), row.one), cell(conversion_ratio(row, x, 2, rounds), row.two)]
        if old:
            with isa(old):
                cells.append(cell(conversion_ratio(row, x, 1, rounds), row.old))
        else:
            cells.append("")
        copy = copying((4 + fmt.code_dtype.itemsize) * x.size)
        least = min(timeit.repeat(copy, number=1, repeat=5))
        calls = peers_of(row, x)
        for peer in peers:
            call, part = calls.get(peer), FEW / x.size if peer == "gfloat" else 1.0
            cells.append(f"{least * part / min(timeit.repeat(call, number=1, repeat=3)):.4f}" if call else "")
        table.add_row(f"{fmt.name} {row.mode}", *cells)
    console.print(table)


# A format and the least ratios wanted of nearest and stochastic rounding in cache, of both at 2^24, and of decoding.
SIZED = [("float16", 0.8, 0.35), ("bfloat16", 0.8, 0.35), ("float8_e4m3fn", 0.5, 0.35), ("float8_e5m2", 0.5, 0.35)]


def by_size(rounds: int, console: Console) -> None:
    """Rounding and decoding of arrays from those that lie in the first cache to those that lie in none."""
    sizes = [1 << power for power in (12, 16, 20, 24)]
    table = Table(title="rounding and decoding by size, in copies of the same bytes by one thread")
    table.add_column("")
    for size in sizes:
        table.add_column(f"2^{size.bit_length() - 1}, 1 thread", justify="right")
        table.add_column("2", justify="right")
    for level in isa_names():
        with isa(level):
            for fmt, nearest, stochastic in SIZED:
                for what, wanted in (("nearest_even", nearest), ("stochastic", stochastic), ("decode", 0.8)):
                    cells = [one_size(fmt, what, size, n, rounds) for size in sizes for n in (1, 2)]
                    for (size, n), ratio in zip(product(sizes, (1, 2)), cells, strict=True):
                        record(f"rounding {level} {fmt} {what}, {size}, {n} threads, of a copy", 1 / ratio)
                    least = [0.8 if size == 1 << 24 else wanted for size in sizes for _ in (1, 2)]
                    newest = level == isa_names()[-1]
                    shown = [cell(x, y if newest else None) for x, y in zip(cells, least, strict=True)]
                    table.add_row(f"{level} {fmt} {what}", *shown)
    console.print(table)


def one_size(fmt: str, what: str, size: int, threads: int, rounds: int) -> float:
    """A conversion against the copy; small ones several times for each look at the clock."""
    x = np.random.default_rng(1).standard_normal(size).astype(np.float32)
    codes, values = lp.astype(x, fmt), np.empty_like(x)
    copy, again = copying((4 + codes.itemsize) * size), max(1, (1 << 17) // size)

    def ours() -> None:
        for _ in range(again):
            if what == "decode":
                lp.decode(codes, fmt, out=values)
            else:
                lp.astype(x, fmt, what, key=1, out=codes)  # type: ignore[arg-type]

    def copies() -> None:
        for _ in range(again):
            copy()

    with lp.num_threads(threads):
        return against(copies, ours, rounds)


def values_and_decoding(x: Array, rounds: int, console: Console) -> None:
    """Rounding to values, float64 input, and decoding every format."""
    table = Table(title="rounding to values, other input, and decoding, in copies of the same bytes by one thread")
    for column in ("", "1 thread", "2 threads"):
        table.add_column(column, justify="right" if column else "left")
    values, wide = np.empty_like(x), x.astype(np.float64)
    half = np.empty(x.size, np.float16)

    def line(name: str, bytes_moved: int, call: Call, wanted: float | None = None) -> None:
        copy, cells = copying(bytes_moved * x.size), []
        for threads in (1, 2):
            with lp.num_threads(threads):
                cells.append(cell(against(copy, call, rounds), wanted if threads == 1 else None))
        table.add_row(name, *cells)

    for mode in ("nearest_even", "stochastic"):
        line(f"round to float16, {mode}", 8, lambda m=mode: lp.round(x, "float16", m, key=1, out=values))  # type: ignore[misc]
    for mode in ("nearest_even", "stochastic"):
        line(f"float64 to float16, {mode}", 10, lambda m=mode: lp.astype(wide, "float16", m, key=1, out=half))  # type: ignore[misc]
    for name in NARROW:
        codes = lp.astype(x, name)
        line(f"decode {name}", 4 + codes.itemsize, lambda c=codes, n=name: lp.decode(c, n, out=values), 0.85)  # type: ignore[misc]
    console.print(table)


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
    parser = argparse.ArgumentParser(allow_abbrev=False, description=__doc__)
    parser.add_argument("--size", type=int, default=1 << 24)
    parser.add_argument("--rounds", type=int, default=15)
    given = parser.parse_args()
    x = np.random.default_rng(0).standard_normal(given.size).astype(np.float32)
    console = Console(width=130)
    conversions(x, given.rounds, console)
    values_and_decoding(x, given.rounds, console)
    by_size(given.rounds, console)
    console.print(f"call on 10 elements: {call_overhead():.2f} us (5)")
    bare, ours = import_time("import numpy, ml_dtypes"), import_time("import numpy, ml_dtypes, lowprec")
    console.print(f"import lowprec: {ours - bare:.0f} ms over numpy and ml_dtypes, which take {bare:.0f} ms (30)")


if __name__ == "__main__":
    main()
