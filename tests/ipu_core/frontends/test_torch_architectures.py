"""Architectures of packages, small and with random weights: three steps of AdamW are torch's, or they are refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("torch")

from ipu_core import from_torch
from ipu_core.errors import NotCovered
from tests.ipu_core.frontends.torch_peer import check_adamw
from tests.ipu_core.frontends.zoo.table import ALL, REFUSED, made, page

pytestmark = pytest.mark.filterwarnings("ignore")
QUICK = {
    "transformers: AlbertForMaskedLM", "transformers: FNetForMaskedLM", "timm: gMLP",
    "torch_geometric: GATConv(add_self_loops=False)", "torch_geometric: EdgeConv", "torch_geometric: RGCNConv",
    "torchvision: VisionTransformer", "diffusers: DiTTransformer2DModel",
}  # fmt: skip


@pytest.fixture(params=[pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in ALL])
def name(request: pytest.FixtureRequest) -> str:
    """An architecture whose package is installed."""
    pytest.importorskip(ALL[request.param][0])
    return str(request.param)


def test_three_steps_of_adamw_are_those_of_torch_or_it_is_refused(name: str) -> None:
    module, batches, loss = made(name)
    if name not in REFUSED:
        check_adamw(module, batches, loss)
        return
    with pytest.raises((NotCovered, ValueError)) as caught:
        from_torch(module.train(), batches[0], loss)
    assert re.search(REFUSED[name].words, str(caught.value))
    assert re.search(r"layer \S+ \(|\.py:\d+: ", str(caught.value))  # where
    assert "ipu_core.emulate" in str(caught.value)


def test_the_page_lists_these_architectures() -> None:
    assert (Path(__file__).parent / "zoo" / "ARCHITECTURES.md").read_text() == page() + "\n"
