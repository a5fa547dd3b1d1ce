"""Fast paths decide no bit: with each switched off, golden files and calls of every kind give the same."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import lowprec as lp
from lowprec._kernels import paths_off
from lowprec.types import Array
from lowprec.values.elementwise_op import OPERATIONS
from tests.benchmarks.fast_paths import FILES, ROOT, lines, lines_of
from tests.golden import blocks, load, orders, rounding, summation, sums, training

GOLDEN = (blocks, orders, rounding, summation, sums, training)
EVERY = tuple(lp.testing.path_names())
CASES = [*((path,) for path in EVERY), EVERY]
MODES = ("nearest_even", "stochastic")
FORMATS = ("float16", "bfloat16", "float8_e4m3fn", "float32")


def numbers(shape: tuple[int, ...], dtype: str, seed: int) -> Array:
    """Numbers of many sizes, some of them zero, none too large for a product in float16."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(shape) * 2.0 ** rng.integers(-9, 3, shape) * (rng.random(shape) < 0.9)
    return lp.astype(x, dtype)  # type: ignore[no-any-return]


def conversions() -> Iterator[Array]:
    """Whole panels and what is left of them."""
    x = np.random.default_rng(1).integers(0, 1 << 32, 2500, np.uint32).view(np.float32)
    x = np.concatenate([x[~np.isnan(x)], numbers((1500,), "float32", 2)])
    for fmt in ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float4_e2m1fn"):
        for mode in (*MODES, "nearest_away", "up"):
            codes = lp.encode(x, fmt, mode, key=3)
            yield from (codes, lp.decode(codes, fmt), lp.round(x, fmt, mode, key=3))


def functions() -> Iterator[Array]:
    """Every operation of float32_op, and exact arithmetic."""
    for dtype in ("float16", "float32"):
        operands = tuple(numbers((1500,), dtype, seed) for seed in range(3))
        for fmt in FORMATS:
            for mode in MODES:
                for op, arity in OPERATIONS.items():
                    yield lp.float32_op(op, *operands[:arity], fmt=fmt, rounding=mode, key=4)
                for call in (lp.add, lp.multiply, lp.divide):
                    yield call(*operands[:2], fmt, mode, key=5)
                yield lp.sqrt(np.abs(operands[0]), fmt, mode, key=6)


def products() -> Iterator[Array]:
    """Large and small ones, of few rows and of few columns."""
    for m, k, n in ((40, 70, 50), (3, 300, 90), (90, 300, 3), (40, 9, 40), (1, 200, 200)):
        for dtype in ("float16", "float32"):
            a, b = numbers((m, k), dtype, 7), numbers((k, n), dtype, 8)
            for accumulate in ("float16", "float32", "bfloat16"):
                for group in (1, 16):
                    for mode in MODES:
                        order = {"accumulate": accumulate, "group": group, "rounding": mode, "key": 9}
                        yield lp.matmul(a, b, **order)
                        yield lp.matmul(a, b, out_format="float16", **order)


def convolutions() -> Iterator[Array]:
    """Few channels and many, depthwise too, and their gradients."""
    for channels, outputs, groups in ((2, 3, 1), (8, 20, 1), (6, 6, 6), (6, 12, 6), (40, 8, 1)):
        x = numbers((2, 9, 10, channels), "float16", 10)
        weight = numbers((3, 3, channels // groups, outputs), "float16", 11)
        for mode in MODES:
            how = {"groups": groups, "accumulate": "float16", "group": 4, "rounding": mode, "key": 12}
            out = lp.conv2d(x, weight, padding=1, **how)
            yield out
            y = lp.astype(out, "float16")
            yield lp.conv2d_weight_gradient(x, y, (3, 3), padding=1, **how)
            yield lp.conv2d_input_gradient(y, weight, (9, 10), padding=1, **how)


CALLS = (conversions, functions, products, convolutions)


def digests() -> list[str]:
    """One of every kind of calls."""
    found = []
    for calls in CALLS:
        digest = hashlib.sha256()
        for result in calls():
            digest.update(np.ascontiguousarray(result).tobytes())
        found.append(f"{calls.__name__} {digest.hexdigest()}")
    return found


@pytest.fixture(scope="module")
def with_all() -> dict[str, list[str]]:
    found = {}
    for isa in lp.testing.isa_names():
        with lp.testing.isa(isa):
            found[isa] = digests()
    return found


@pytest.mark.parametrize("isa", lp.testing.isa_names())
@pytest.mark.parametrize("off", CASES, ids=lambda off: off[0] if len(off) == 1 else "all")
def test_no_bit_hangs_on_a_path(off: tuple[str, ...], isa: str, with_all: dict[str, list[str]]) -> None:
    with lp.testing.isa(isa), lp.testing.without(*off):
        for module in GOLDEN:
            for name, data in module.build().items():
                assert data == load(name), name
        assert digests() == with_all[isa]


def test_instruction_sets_agree(with_all: dict[str, list[str]]) -> None:
    assert len({tuple(found) for found in with_all.values()}) == 1


def test_what_is_off_is_off_within_the_context() -> None:
    outside = paths_off()
    with lp.testing.without("strips"):
        with lp.testing.without("pipelines"):
            assert set(paths_off()) == {"strips", "pipelines", *outside}
        assert set(paths_off()) == {"strips", *outside}
    assert paths_off() == outside
    with (
        pytest.raises(ValueError, match=r"'strip' is not a fast path .* there are .*strips"),
        lp.testing.without("strip"),
    ):
        pass


def imported(without: str) -> subprocess.CompletedProcess[str]:
    code = "from lowprec._kernels import paths_off; print(*paths_off())"
    return subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "LOWPREC_WITHOUT": without}, capture_output=True, text=True
    )


def test_the_environment_is_read_when_the_module_is_loaded() -> None:
    assert imported("").stdout.split() == []
    assert imported("strips,pipelines").stdout.split() == ["strips", "pipelines"]
    refused = imported("strips,none")
    assert refused.returncode != 0
    assert "LOWPREC_WITHOUT: 'none' is not a fast path that can be switched off; there are" in refused.stderr


def test_what_is_no_name_is_refused_in_words_of_ours() -> None:
    before = paths_off()
    with pytest.raises(TypeError, match="path 1 must be a str, not 3"), lp.testing.without("strips", 3):  # type: ignore[arg-type]
        pass
    with pytest.raises(TypeError, match="name must be a str, not 3"), lp.testing.isa(3):  # type: ignore[arg-type]
        pass
    assert paths_off() == before


def test_the_ablation_knows_every_path_and_its_files() -> None:
    assert set(FILES) == set(EVERY)
    for path, files in FILES.items():
        assert all((ROOT / file).is_file() for file in files), path
        assert lines(path) > 0


def test_lines_are_those_of_code(tmp_path: Path) -> None:
    loops, module = tmp_path / "loops.cpp", tmp_path / "module.py"
    loops.write_text("// Says why.\n\nint f();\n    // more\nint g();  // there\n")
    module.write_text(
        '"""Says\n\nwhy."""\n\nx = 1  # there\n\n\ndef f():\n    """More."""\n    # and more\n    return "x"\n'
    )
    assert lines_of(loops) == 2
    assert lines_of(module) == 3
