"""The golden files of functions, products, reductions and convolutions, on every instruction set and the reference."""

from __future__ import annotations

import pytest

import lowprec as lp
from tests.golden import load, sums


def test_golden(host_backend: str) -> None:
    for name, data in sums.build().items():
        assert data == load(name), name


@pytest.mark.parametrize("isa", lp.testing.isa_names())
def test_golden_on_every_instruction_set(isa: str) -> None:
    with lp.testing.isa(isa):
        for name, data in sums.build().items():
            assert data == load(name), name
