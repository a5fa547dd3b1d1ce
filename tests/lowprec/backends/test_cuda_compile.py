"""NVRTC compiles every header and every kernel, without spills, stray fused products or flushed subnormals. No GPU."""

from __future__ import annotations

import re
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import lowprec
from lowprec.backends.cuda.compiler import machine_code
from lowprec.backends.cuda.measures import KINDS
from lowprec.backends.cuda.rounding import _decode_defines, convert_defines
from lowprec.backends.cuda.sources import OPTIONS, expand, source
from lowprec.values.conversion import conversion_of
from lowprec.values.elementwise_op import OPERATIONS
from lowprec.values.rounding import MODES, Rounding
from tests.cuda_shim.nvrtc import compile_cuda, library
from tests.cuda_shim.tree import HEADERS, KERNELS, tree_source

ARCHITECTURES = ("sm_80", "sm_90", "sm_100", "sm_120")
MOSTLY_ONE = ["sm_90", *(pytest.param(other, marks=pytest.mark.slow) for other in ("sm_80", "sm_100", "sm_120"))]
"""No source asks for the architecture, so that the kernels' own files show what differs: spills."""
USES = KERNELS.parent / "tests" / "cuda_shim" / "uses"

# Modifiers and instructions that the flags and the sources are there to prevent.
STRAY = re.compile(r"\S*(?:fma|\.ftz|\.approx|\.full)\S*")


@pytest.fixture(autouse=True)
def _nvrtc() -> None:
    try:
        library()
    except FileNotFoundError as error:
        pytest.skip(str(error))


FUSED = re.compile(r"fma\.rn\.f(?:32|64)")
"""Instructions that sources ask for by name: in exact products, quotients, roots and sums of products."""


def compiled(
    text: str, architecture: str, defines: tuple[tuple[str, str], ...] = (), *, fused: bool = False, stack: bool = False
) -> str:
    """The PTX of a source that compiles without spills and without anything stray.

    fused: whether the source asks for fused operations. stack: whether it may keep arrays in the stack's memory, where
    the routine that ends a root or quotient of doubles saves a few registers too.
    """
    result = compile_cuda(text, architecture, (*OPTIONS, *(f"-D{name}={value}" for name, value in defines)))
    assert result.machine_code > 0
    assert [stray for stray in STRAY.findall(result.ptx) if not (fused and FUSED.fullmatch(stray))] == []
    for line in re.findall(r".*stack frame.*", result.log):
        spilled = [int(bytes_) for bytes_ in re.findall(r"(\d+) bytes spill", line)]
        assert max(spilled) <= (32 if fused and stack else 0)
        assert stack or ("LP_STRIDED", "1") in defines or " 0 bytes stack frame" in line
    return result.ptx


def conversions() -> list[tuple[tuple[str, str], ...]]:
    """Definitions that the backend gives convert.cu: every mode, lane, kind of storage and layout."""
    asked = [("code", np.float32, "float16", mode, 16, True) for mode in MODES]
    asked += [("code", np.float32, "float8_e4m3fn", "stochastic", bits, False) for bits in (16, 24)]
    asked += [("value", dtype, "float8_e5m2", "stochastic", 16, True) for dtype in (np.float16, np.float32, np.float64)]
    asked += [("value", np.float32, "float8_e5m2", "stochastic", 24, True)]
    asked += [("storage", ml_dtypes.bfloat16, "float8_e8m0fnu", "nearest_even", 0, False)]
    asked += [("storage", ml_dtypes.float8_e4m3fn, fmt, "up", 0, True) for fmt in ("float32", "float64")]
    asked += [("code", dtype, "float16", "stochastic", 16, True) for dtype in (np.int8, np.uint32, np.int64, np.uint64)]
    return [
        convert_defines(conversion_of(kind, np.dtype(dtype), fmt, Rounding(mode, bits)), contiguous)
        for kind, dtype, fmt, mode, bits, contiguous in asked
    ]


CONVERSIONS = [
    pytest.param(architecture, number, marks=[pytest.mark.slow] * (number % 6 != 2 * place))
    for place, architecture in enumerate(ARCHITECTURES) for number in range(len(conversions()))
]  # fmt: skip
"""Every combination on every architecture; those that are not slow have half of them once."""


@pytest.mark.parametrize("architecture, number", CONVERSIONS)
def test_convert_compiles(architecture: str, number: int) -> None:
    ptx = compiled(tree_source("convert.cu"), architecture, conversions()[number])
    assert ".entry lowprec_convert(" in ptx


@pytest.mark.parametrize("architecture", MOSTLY_ONE)
def test_decode_compiles_in_every_combination(architecture: str) -> None:
    text = tree_source("decode.cu")
    for name in ("float8_e4m3fn", "float8_e8m0fnu", "float64"):
        fmt = lowprec.as_format(name)
        for out in (np.float32, np.float64):
            for contiguous in (False, True):
                defines = _decode_defines(fmt, fmt.code_dtype, np.dtype(out), contiguous)
                assert ".entry lowprec_decode(" in compiled(text, architecture, defines)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("path", sorted((KERNELS / "cuda").glob("*.cu")), ids=lambda path: path.name)
def test_every_kernel_file_compiles_as_it_is(path: Path, architecture: str) -> None:
    compiled(tree_source(path.name), architecture, fused=path.name in FUSING, stack=path.name in STACKED)


FUSING = ("blocks.cu", "elementwise.cu", "product.cu")
STACKED = ("blocks.cu", "elementwise.cu", "product.cu", "sums.cu")
ROUNDED = (("LP_LANE", "u32"), ("LP_TO", "Codes<u16>"), ("LP_VALUES", "0"))
STORED = (("LP_A", "Numbers<float>"), ("LP_B", "Codes<u8>"), ("LP_C", "Codes<u16>"))


@pytest.mark.parametrize("operation", ["add", "subtract", "multiply", "divide", "sqrt", "fma"])
def test_exact_operations_fuse_what_they_ask_for_alone(operation: str) -> None:
    mode = str(list(MODES).index("stochastic"))
    text = tree_source("elementwise.cu")
    exact = (("LP_EXACT", "1"), ("LP_OP", f"exact_{operation}"), ("LP_STEP", "odd"), ("LP_READ", "u64"))
    wide = (("LP_LANE", "u64"), ("LP_TO", "Codes<u16>"), ("LP_VALUES", "0"), ("LP_MODE", mode))
    fuses = operation not in ("add", "subtract")
    ptx = compiled(text, "sm_90", (*exact, *wide, *STORED), fused=fuses, stack=True)
    assert bool(FUSED.search(ptx)) == fuses


@pytest.mark.parametrize("operation", OPERATIONS)
def test_float32_operations_fuse_nothing(operation: str) -> None:
    single = (("LP_EXACT", "0"), ("LP_OP", f"{operation}_operation"), ("LP_STEP", "odd"), ("LP_READ", "u32"))
    compiled(tree_source("elementwise.cu"), "sm_90", (*single, *ROUNDED, ("LP_MODE", "0"), *STORED), stack=True)


@pytest.mark.parametrize("mode", ["-1", "0", "6"])
def test_sums_compile(mode: str) -> None:
    terms = (("LP_FROM", "Numbers<float>"), ("LP_READ", "u32"), ("LP_MAXIMUM", "0"))
    to = "Numbers<double>" if mode == "-1" else "Codes<u16>"
    for finish, lane in (("0", "u32"), ("1", "u32"), ("1", "u64")):
        last = (("LP_LAST", mode), ("LP_LANE", "u64" if mode == "-1" else lane), ("LP_TO", to))
        step = (("LP_STEP", mode), ("LP_STEP_LANE", lane))
        compiled(tree_source("sums.cu"), "sm_90", (("LP_FINISH", finish), *terms, *step, *last), stack=True)


@pytest.mark.parametrize("each, windows", [("4", "0"), ("8", "0"), ("4", "1")])
@pytest.mark.parametrize("mode", ["-1", "0", "6"])
def test_products_compile(mode: str, each: str, windows: str) -> None:
    for kind, lane in (("Numbers<float>", "u32"), ("Codes<u8>", "u32")):
        operands = (("LP_A", kind), ("LP_A_READ", lane), ("LP_B", kind), ("LP_B_READ", lane))
        step = (("LP_STEP", mode), ("LP_STEP_LANE", "u32"), ("LP_SUMS", each), ("LP_WINDOWS", windows))
        ptx = compiled(tree_source("product.cu"), "sm_90", (*operands, *step), fused=True, stack=True)
        # Four k of a whole panel stand side by side, and one of the others.
        assert len(re.findall(r"fma\.rn\.f32", ptx)) >= 5 * int(each) ** 2


@pytest.mark.parametrize("kind", ["sequential", "running", "kahan", "pair"])
def test_ordered_sums_compile(kind: str) -> None:
    for mode in ("-1", "0", "6"):
        for factor in ("Number", "Codes<u8>"):
            job = (("LP_KIND", f"{kind}_sum"), ("LP_A", "Codes<u16>"), ("LP_B", factor), ("LP_MODE", mode))
            compiled(tree_source("columns.cu"), "sm_90", (*job, ("LP_TO", "float")), fused=mode == "-1")


@pytest.mark.parametrize("scale", ["powers", "reals", "given"])
def test_blocks_compile(scale: str) -> None:
    for mode in ("0", "6"):
        made = (("LP_FROM", "Numbers<double>"), ("LP_TO", "Codes<u8>"), ("LP_MODE", mode), ("LP_SCALE_MODE", "up"))
        both = (("LP_SPREAD", "0"), ("LP_SCALE", scale), ("LP_SCALES", "Codes<u8>"))
        # Quotients are made exact by one fused operation: the rest.
        assert FUSED.search(compiled(tree_source("blocks.cu"), "sm_90", (*both, *made), fused=True, stack=True))
    for to in ("float", "double"):
        spread = (("LP_SPREAD", "1"), ("LP_FROM", "Codes<u8>"), ("LP_TO", f"Numbers<{to}>"))
        compiled(tree_source("blocks.cu"), "sm_90", (*spread, ("LP_SCALE", scale), *both[2:], *made[2:]))


@pytest.mark.parametrize("real", ["float", "double"])
@pytest.mark.parametrize("name", ["pack", "unpack", "rotate"])
def test_layouts_compile(name: str, real: str) -> None:
    compiled(tree_source("layouts.cu"), "sm_90", (("LP_KERNEL", name), ("LP_REAL", real)))


@pytest.mark.parametrize("architecture", MOSTLY_ONE)
def test_counts_compile(architecture: str) -> None:
    for squares in ("0", "1"):
        for kind in ("Numbers<float>", "Codes<u16>"):
            ptx = compiled(tree_source("magnitudes.cu"), architecture, (("LP_SQUARES", squares), ("LP_FROM", kind)))
            assert ("mul.rn.f64" in ptx or "mul.f64" in ptx) == (squares == "1")


@pytest.mark.parametrize("architecture", MOSTLY_ONE)
def test_measures_compile(architecture: str) -> None:
    distances = dict.fromkeys(("relative_error", "ulp_error", "ulp_distance"), 0)
    for measure, kinds in {**distances, **KINDS}.items():
        job = (("LP_MEASURE", measure), ("LP_COUNTS", str(kinds)), ("LP_CODE", "u16"))
        ptx = compiled(tree_source("measures.cu"), architecture, job, stack=measure.endswith("error"))
        assert ("div.rn.f64" in ptx) == measure.endswith("error")


@pytest.mark.parametrize("architecture", MOSTLY_ONE)
@pytest.mark.parametrize("header", HEADERS, ids=lambda path: path.name)
def test_every_header_compiles_alone(header: Path, architecture: str) -> None:
    include = f'#include "lowprec/{header.name}"\n'
    options = (*OPTIONS, f"-I{KERNELS / 'include'}")
    result = compile_cuda(include + 'extern "C" __global__ void empty() {}', architecture, options)
    assert result.machine_code > 0
    assert "warning" not in result.log


@pytest.mark.parametrize("architecture", MOSTLY_ONE)
@pytest.mark.parametrize("path", sorted(USES.glob("*.cu")), ids=lambda path: path.name)
def test_templates_of_headers_compile_when_used(path: Path, architecture: str) -> None:
    compiled(expand(path, (KERNELS / "include",)), architecture)


def test_philox_multiplies_32_bit_words() -> None:
    ptx = compiled(tree_source("convert.cu"), "sm_90", conversions()[MODES.index("stochastic")])
    assert len(re.findall(r"mul\.(?:wide|hi)\.u32", ptx)) >= 20  # two a round
    assert len(re.findall(r"mul\.lo\.[su]64", ptx)) <= 1


def test_pairs_move_in_one_instruction() -> None:
    ptx = compiled(tree_source("convert.cu"), "sm_90", conversions()[0])
    assert len(re.findall(r"ld\.global\S*\.v2\.[fub]32", ptx)) == 4
    assert len(re.findall(r"st\.global\S*\.v2\.[ub]16", ptx)) == 4


def test_the_check_for_stray_instructions_sees_them() -> None:
    fused = 'extern "C" __global__ void f(float *x) { x[0] = __fmaf_rn(x[1], x[2], x[3]); }'
    with pytest.raises(AssertionError):
        compiled(fused, "sm_90")
    product = 'extern "C" __global__ void f(float *x) { x[0] = x[1] * x[2] + x[3]; }'
    assert ".rn.f32" in compiled(product, "sm_90")


def test_sources_are_installed_with_the_package() -> None:
    for path in (KERNELS / "cuda").glob("*.cu"):
        text = source(path.name)
        assert "#include" not in text
        assert text.count("LP_INLINE Words philox") <= 1
        compiled(text, "sm_90", fused=path.name in FUSING, stack=path.name in STACKED)


def test_cupys_binding_of_nvrtc_compiles_and_keeps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cupy = pytest.importorskip("cupy")
    monkeypatch.setenv("CUPY_CACHE_DIR", str(tmp_path))
    made = machine_code(cupy, tree_source("decode.cu"), OPTIONS, "sm_90")
    assert made.read_bytes().startswith(b"\x7fELF")
    assert machine_code(cupy, tree_source("decode.cu"), OPTIONS, "sm_90") == made
    assert list(tmp_path.iterdir()) == [made]
    with pytest.raises(RuntimeError, match="NVRTC refuses lowprec's kernels"):
        machine_code(cupy, "not a program", OPTIONS, "sm_90")
