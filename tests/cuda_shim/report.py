"""The compiler's own report of every kernel for sm_90, and what it allows on paper: `python -m tests.cuda_shim.report`.

It writes the table of notebooks/docs/pages/reference/gpu-kernels.md anew. Nothing here has run on a GPU.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lowprec.backends.cuda.measures import KINDS
from lowprec.backends.cuda.products import product_defines
from lowprec.backends.cuda.rounding import _decode_defines, convert_defines
from lowprec.backends.cuda.sources import OPTIONS
from lowprec.values.accumulation import Accumulation
from lowprec.values.conversion import conversion_of
from lowprec.values.formats import as_format
from lowprec.values.rounding import Rounding
from lowprec.values.sum_rules import sum_rules
from tests.cuda_shim.nvrtc import compile_cuda, version
from tests.cuda_shim.tree import tree_source

PAGE = Path(__file__).parents[2] / "notebooks" / "docs" / "pages" / "reference" / "gpu-kernels.md"
BEGIN, END = "<!-- python -m tests.cuda_shim.report -->\n", "<!-- end -->\n"

# CUDA C++ Programming Guide, "Technical Specifications per Compute Capability", 9.0.
WARPS, BLOCKS, REGISTERS, SHARED = 64, 32, 65_536, 233_472
WARP, REGISTER_UNIT, SHARED_OF_A_BLOCK = 32, 256, 1024  # registers are given to warps by 256; CUDA keeps 1 KB a block
# NVIDIA H100 datasheet, SXM.
PROCESSORS, BANDWIDTH = 132, 3.35e12
LATENCY = 0.6e-6  # seconds of a load from memory; an assumption
THREADS = 256

Defines = tuple[tuple[str, str], ...]


class Kernel(NamedTuple):
    """One combination of a kernel file.

    Attributes:
        name: what it does.
        file: of kernels/cuda.
        defines: as the backend gives them.
        moved: bytes that a thread reads, and then writes, for each time that it waits for memory; None: it is bound by
            arithmetic.
        sums: of a thread along either axis of a product; 0: no product.
    """

    name: str
    file: str
    defines: Defines
    moved: int | None
    sums: int = 0


class Report(NamedTuple):
    """What the compiler says of one kernel."""

    registers: int
    stack: int
    shared: int


def kernels() -> Iterator[Kernel]:
    """One or two combinations of every kernel file, those of the benchmark."""
    single = np.dtype(np.float32)

    def conversion(kind: str, fmt: str, mode: str, contiguous: bool = True) -> Defines:
        rounding = Rounding(mode, 16 if mode == "stochastic" else None)  # type: ignore[arg-type]
        return convert_defines(conversion_of(kind, single, as_format(fmt), rounding), contiguous)  # type: ignore[arg-type]

    for mode in ("nearest_even", "stochastic"):
        yield Kernel(f"float32 to float16, {mode}", "convert.cu", conversion("code", "float16", mode), 48)
        yield Kernel(f"float32 to float8_e4m3fn, {mode}", "convert.cu", conversion("code", "float8_e4m3fn", mode), 40)
    yield Kernel("the same of any strides", "convert.cu", conversion("code", "float8_e4m3fn", mode, False), 5)
    narrow = as_format("float8_e4m3fn")
    yield Kernel("decode float8_e4m3fn", "decode.cu", _decode_defines(narrow, np.dtype(np.uint8), single, True), 20)
    operands = (("LP_A", "Numbers<float>"), ("LP_B", "Numbers<float>"), ("LP_C", "Number"))
    into = (("LP_LANE", "u32"), ("LP_TO", "Codes<u16>"), ("LP_VALUES", "0"), ("LP_MODE", "0"))
    plain = (("LP_EXACT", "0"), ("LP_STEP", "odd"), ("LP_READ", "u32"), *operands, *into)
    yield Kernel("float32_op multiply", "elementwise.cu", (("LP_OP", "multiply_operation"), *plain), 10)
    yield Kernel("float32_op exp", "elementwise.cu", (("LP_OP", "exp_operation"), *plain), None)
    exact = (("LP_EXACT", "1"), ("LP_STEP", "odd"), ("LP_READ", "u64"), *operands, ("LP_LANE", "u64"), *into[1:])
    yield Kernel("exact divide", "elementwise.cu", (("LP_OP", "exact_divide"), *exact), None)
    sums = (("LP_FROM", "Numbers<float>"), ("LP_READ", "u32"), ("LP_MAXIMUM", "0"), ("LP_STEP_LANE", "u32"))
    last = (("LP_LAST", "-1"), ("LP_LANE", "u32"), ("LP_TO", "Numbers<float>"))
    for finish, name in (("0", "chains of reduce_sum"), ("1", "parts into results")):
        yield Kernel(name, "sums.cu", (("LP_FINISH", finish), ("LP_STEP", "-1"), *sums, *last), 4)
    kahan = (("LP_A", "Numbers<float>"), ("LP_B", "Number"), ("LP_MODE", "6"), ("LP_TO", "float"))
    yield Kernel("sum in Kahan's order, stochastic", "columns.cu", (("LP_KIND", "kahan_sum"), *kahan), None)
    for accumulate, how in (("float32", "nearest_even"), ("float16", "nearest_even"), ("float16", "stochastic")):
        for each, windows in ((8, False), (4, False), (4, True)):
            rules = sum_rules(Accumulation(accumulate=accumulate), Rounding(how))  # type: ignore[arg-type]
            defines = product_defines(single, single, rules, each, windows=windows)
            what = "convolution" if windows else "product"
            yield Kernel(f"{what}, {accumulate} {how}, {each} x {each} sums", "product.cu", defines, None, each)
    scale = (("LP_FROM", "Numbers<float>"), ("LP_TO", "Codes<u8>"), ("LP_SCALES", "Codes<u8>"), ("LP_MODE", "0"))
    kinds = (("LP_SPREAD", "0"), ("LP_SCALE", "powers"), ("LP_SCALE_MODE", "nearest_even"))
    yield Kernel("to_blocks, powers of two", "blocks.cu", (*kinds, *scale), None)
    yield Kernel("hadamard", "layouts.cu", (("LP_KERNEL", "rotate"), ("LP_REAL", "float")), 16)
    yield Kernel("pack", "layouts.cu", (("LP_KERNEL", "pack"), ("LP_REAL", "float")), 3)
    for squares, name, moved in (("0", "magnitudes, counts", 4), ("1", "magnitudes, squares", None)):
        yield Kernel(name, "magnitudes.cu", (("LP_SQUARES", squares), ("LP_FROM", "Numbers<float>")), moved)
    for measure, kinds, moved in (("ulp_error", 0, None), ("ulp_distance", 0, 28), ("binade", KINDS["binade"], 8)):
        counted = (("LP_MEASURE", measure), ("LP_COUNTS", str(kinds)), ("LP_CODE", "u16"))
        yield Kernel(f"measures, {measure}", "measures.cu", counted, moved)


def compiled(kernel: Kernel) -> Report:
    """The compiler's report of a kernel for sm_90."""
    options = (*OPTIONS, *(f"-D{name}={value}" for name, value in kernel.defines))
    log = compile_cuda(tree_source(kernel.file), "sm_90", options).log
    found = [max(map(int, re.findall(text, log)), default=0)
             for text in (r"Used (\d+) registers", r"(\d+) bytes stack frame", r"(\d+) bytes smem")]  # fmt: skip
    return Report(*found)


def resident(report: Report) -> int:
    """Blocks of 256 threads that a multiprocessor holds at once."""
    warps = THREADS // WARP
    unit = -(-report.registers * WARP // REGISTER_UNIT) * REGISTER_UNIT
    by_registers = REGISTERS // unit // warps
    by_shared = SHARED // (report.shared + SHARED_OF_A_BLOCK)
    return min(WARPS // warps, BLOCKS, by_registers, by_shared)


def on_paper(kernel: Kernel, blocks: int) -> str:
    """What a kernel can reach: of memory's speed by Little's law, or of the multipliers', beside its shared loads."""
    if kernel.sums:
        # For each k: a thread reads rows in fours and columns in pairs, beside its fused multiply-adds.
        loads = kernel.sums / 4 + kernel.sums / 2
        return f"{kernel.sums**2 / (kernel.sums**2 + loads):.2f} of the multiply-adds"
    if kernel.moved is None:
        return "bound by arithmetic"
    needed = BANDWIDTH * LATENCY / PROCESSORS
    return f"{min(1.0, blocks * THREADS * kernel.moved / needed):.2f} of memory's speed"


def row(kernel: Kernel) -> str:
    """A kernel's line of the table."""
    report = compiled(kernel)
    blocks = resident(report)
    share = f"{blocks * THREADS} ({blocks * THREADS / (WARPS * WARP):.0%})"
    sizes = f"{report.registers} | {report.stack} | {report.shared}"
    return f"| {kernel.name} | `{kernel.file}` | {sizes} | {share} | {on_paper(kernel, blocks)} |"


def rows() -> list[str]:
    """The table's lines."""
    lines = [
        "| kernel | file | registers | stack | shared | threads at once | on paper |",
        "|---|---|---|---|---|---|---|",
    ]
    return [*lines, *map(row, kernels())]


def version_line() -> str:
    """Which compiler reports."""
    return "NVRTC {}.{}:".format(*version())


def page(text: str) -> str:
    """The page's text with the table made anew."""
    before, rest = text.split(BEGIN)
    return before + BEGIN + f"{version_line()}\n\n" + "\n".join(rows()) + "\n\n" + END + rest.split(END)[1]


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
    print(PAGE.read_text())
