"""The page of the GPU's kernels says what the compiler reports, where it is the compiler that the page names."""

from __future__ import annotations

import pytest

from tests.cuda_shim.nvrtc import library
from tests.cuda_shim.report import BEGIN, END, PAGE, Kernel, Report, kernels, on_paper, resident, row, version_line
from tests.cuda_shim.tree import KERNELS

TABLE = PAGE.read_text().split(BEGIN)[1].split(END)[0].splitlines()
SAID = {line.split(" | ")[0].removeprefix("| "): line for line in TABLE if line.startswith("| ") and "`" in line}
QUICK = ("decode float8_e4m3fn", "float32_op exp", "convolution, float32 nearest_even, 4 x 4 sums", "hadamard")


def test_every_kernel_file_is_on_the_page() -> None:
    assert list(SAID) == [kernel.name for kernel in kernels()]
    assert {kernel.file for kernel in kernels()} == {path.name for path in (KERNELS / "cuda").glob("*.cu")}


@pytest.mark.parametrize(
    "kernel",
    [pytest.param(kernel, marks=[pytest.mark.slow] * (kernel.name not in QUICK)) for kernel in kernels()],
    ids=lambda kernel: kernel.name,
)
def test_the_page_has_the_compilers_numbers(kernel: Kernel) -> None:
    try:
        library()
    except FileNotFoundError as error:
        pytest.skip(str(error))
    if version_line() != TABLE[0]:
        pytest.skip(f"the page is of {TABLE[0]} here is {version_line()} (python -m tests.cuda_shim.report)")
    assert row(kernel) == SAID[kernel.name]


def test_occupancy_is_what_the_guide_s_limits_leave() -> None:
    # 64 warps; 65,536 registers, given to a warp by 256; 228 KB of shared memory, 1 KB of which goes with each block.
    cases = {
        (32, 0): 8,
        (33, 0): 6,
        (48, 0): 5,
        (64, 0): 4,
        (128, 0): 2,
        (255, 0): 1,
        (32, 33_792): 6,
        (32, 115_712): 2,
    }
    assert {sizes: resident(Report(sizes[0], 0, sizes[1])) for sizes in cases} == cases


def test_the_roofline_on_paper() -> None:
    memory, product = Kernel("", "", (), 16), Kernel("", "", (), None, 8)
    # 3.35e12 B/s for 0.6e-6 s over 132 multiprocessors are 15.2 KB.
    assert on_paper(memory, 2) == "0.54 of memory's speed"
    assert on_paper(memory, 8) == "1.00 of memory's speed"
    assert on_paper(product, 1) == "0.91 of the multiply-adds"
