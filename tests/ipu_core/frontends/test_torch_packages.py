"""Models from packages, as they are, with random weights: torch's losses in float32, and training in halves."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from ipu_core import Target
from tests.ipu_core.frontends.torch_peer import check_engines, check_losses, check_narrow
from tests.ipu_core.frontends.torch_zoo import MODELS, made

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(params=MODELS)
def name(request: pytest.FixtureRequest) -> str:
    """A model whose package is installed."""
    pytest.importorskip(MODELS[request.param][0])
    return str(request.param)


def test_losses_and_gradients_are_those_of_torch(name: str) -> None:
    check_losses(*made(name), drifts="ResNet" in name)


def test_halves_train(name: str) -> None:
    check_narrow(*made(name), steps=20)


@pytest.mark.parametrize("kind", ["left-padded", "reentrant", "not reentrant"])
def test_a_padded_or_checkpointed_llama_trains_as_in_torch(kind: str) -> None:
    pytest.importorskip("transformers")
    module, batches, loss = made("LlamaForCausalLM")
    if kind == "left-padded":
        for batch in batches:
            batch["attention_mask"] = batch["labels"].clone().fill_(1)
            batch["attention_mask"][0, :5] = 0
    else:
        module.train().gradient_checkpointing_enable({"use_reentrant": kind == "reentrant"})
    check_losses(module, batches, loss, steps=6)


@pytest.mark.parametrize("precision", ["fp32.32", "fp16.16/stochastic"])
def test_engines_give_the_same_bits(name: str, precision: str) -> None:
    profile = check_engines(*made(name), precision=precision, target=Target("gc200"))
    assert 0 < profile.memory.peak_bytes <= profile.memory.available
