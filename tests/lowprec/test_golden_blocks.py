"""The golden file of block formats, on every instruction set and the reference."""

from __future__ import annotations

import pytest

import lowprec as lp
from tests.golden import blocks, load


def test_golden(host_backend: str) -> None:
    assert blocks.build()["blocks.json"] == load("blocks.json")


@pytest.mark.parametrize("isa", lp.testing.isa_names())
def test_golden_on_every_instruction_set(isa: str) -> None:
    with lp.testing.isa(isa):
        assert blocks.build()["blocks.json"] == load("blocks.json")
