"""The golden files of formats, random words and rounding, on every backend and instruction set."""

from __future__ import annotations

import pytest

import lowprec as lp
from tests.golden import load, rounding


@pytest.mark.parametrize("name", ["formats.json", "random_words.json", "rounding.json"])
def test_golden(name: str, backend: str) -> None:
    assert rounding.build()[name] == load(name)


@pytest.mark.parametrize("isa", lp.testing.isa_names())
def test_golden_on_every_instruction_set(isa: str) -> None:
    with lp.testing.isa(isa):
        for name, data in rounding.build().items():
            assert data == load(name)
