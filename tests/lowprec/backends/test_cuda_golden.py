"""The golden files through the GPU's own source, run on the CPU, at several sizes of grid and block."""

from __future__ import annotations

from types import ModuleType

import pytest

import lowprec as lp
from tests.golden import blocks, load, summation, sums

SIZES = [(256, 8), (33, 2), (1, 1)]
"""Threads of a block, and blocks of a multiprocessor; products have 256 threads."""


@pytest.fixture(params=SIZES, ids=str)
def size(request: pytest.FixtureRequest, cupy: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """A size of grid and block."""
    threads, many = request.param
    monkeypatch.setattr("lowprec.backends.cuda.device.THREADS", threads)
    monkeypatch.setattr("lowprec.backends.cuda.device.BLOCKS_PER_PROCESSOR", many)


@pytest.fixture
def grid(request: pytest.FixtureRequest, cupy: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """A size of grid, for products."""
    monkeypatch.setattr("lowprec.backends.cuda.device.BLOCKS_PER_PROCESSOR", request.param)


@pytest.mark.usefixtures("size")
def test_functions_reductions_and_blocks() -> None:
    with lp.testing.backend("cuda"):
        assert sums.functions() == load("functions.json")
        assert sums.reductions() == load("reductions.json")
        assert blocks.build()["blocks.json"] == load("blocks.json")


@pytest.mark.usefixtures("size")
def test_arithmetic_and_sums_in_every_order() -> None:
    with lp.testing.backend("cuda"):
        assert summation.arithmetic() == load("arithmetic.json")
        assert summation.sums() == load("summation.json")


@pytest.mark.parametrize("grid", [1, 2, 8], indirect=True)
@pytest.mark.usefixtures("grid")
def test_convolutions() -> None:
    with lp.testing.backend("cuda"):
        assert sums.convolutions() == load("convolutions.json")


@pytest.mark.parametrize("dtype", ["float16", "float32", "bfloat16", "float8_e4m3fn"])
@pytest.mark.parametrize("grid", [1, pytest.param(2, marks=pytest.mark.slow)], indirect=True)
@pytest.mark.usefixtures("grid")
def test_products(dtype: str) -> None:
    with lp.testing.backend("cuda"):
        made = sums.products([dtype], adders=())
    want = load("products.json")
    assert made == {name: want[name] for name in made}
    assert len(made) == 60
