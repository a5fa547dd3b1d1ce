"""The golden files of exact arithmetic and of sums in stated orders, on both host backends and all instruction sets."""

from __future__ import annotations

import pytest

import lowprec as lp
from tests.golden import load, summation


def test_golden(host_backend: str) -> None:
    for name, data in summation.build().items():
        assert data == load(name), name


@pytest.mark.parametrize("isa", lp.testing.isa_names())
def test_golden_on_every_instruction_set(isa: str) -> None:
    with lp.testing.isa(isa):
        for name, data in summation.build().items():
            assert data == load(name), name
