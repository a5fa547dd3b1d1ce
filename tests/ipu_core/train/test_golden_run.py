"""Twenty training steps in every precision: the golden bits, on the reference and on every instruction set."""

import pytest

import lowprec as lp
from tests.golden import load, training


@pytest.mark.parametrize("isa", lp.testing.isa_names())
@pytest.mark.parametrize("threads", [1, 2])
def test_twenty_steps_on_every_instruction_set(isa: str, threads: int) -> None:
    with lp.testing.isa(isa), lp.num_threads(threads):
        assert training.build()["training.json"] == load("training.json")


def test_the_first_steps_on_the_reference() -> None:
    spec = "fp16.16/stochastic"
    with lp.testing.backend("reference"):
        losses = training.run(spec, training.RUNS[spec], steps=3)["losses"]
    assert losses == load("training.json")[spec]["losses"][:3]
