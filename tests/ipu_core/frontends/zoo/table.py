"""The architectures that the tests capture, by package, and those that are refused.

`python -m tests.ipu_core.frontends.zoo.table` prints them for the page, as ARCHITECTURES.md beside this file has them.
"""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

from tests.ipu_core.frontends import torch_zoo
from tests.ipu_core.frontends.test_jax_architectures import MODELS as JAX
from tests.ipu_core.frontends.torch_zoo import Made
from tests.ipu_core.frontends.zoo import diffusion, geometric, hugging_face, vision


class Refused(NamedTuple):
    """What is refused.

    Attributes:
        words: in the message.
        why: for the page, with the way out.
    """

    words: str
    why: str


PACKAGES: Mapping[str, Mapping[str, Callable[[Any], Made]]] = {
    "transformers": hugging_face.MODELS,
    "torch_geometric": geometric.MODELS,
    "timm": vision.TIMM,
    "torchvision": vision.TORCHVISION,
    "diffusers": diffusion.MODELS,
    "torch": {name: make for name, (package, make) in torch_zoo.MODELS.items() if package == "torch"},
}
MASKED = "keeps the edges of a mask, whose number the batch decides"
DECIDES = r"decides by numbers in tensors.*torch\.where takes the place of if"
REFUSED: Mapping[str, Refused] = {
    "transformers: FNetForMaskedLM": Refused(r"aten\.fft_fftn is not covered", "complex numbers: `torch.fft.fftn`"),
    "transformers: LongformerForMaskedLM": Refused(DECIDES, "asks whether any word has global attention"),
    "transformers: NystromformerForMaskedLM": Refused(
        r"torch\.export cannot capture", "adds a mask of all words to the scores of its landmarks when it is captured"),
    "torch_geometric: GCNConv": Refused(
        r"aten\.index is not covered", f"{MASKED}: `add_self_loops=False`, and loops among the edges"),
    "torch_geometric: ChebConv": Refused(r"aten\.index is not covered", MASKED),
    "torch_geometric: RGCNConv": Refused(DECIDES, f"{MASKED}: `FastRGCNConv`"),
    "torch_geometric: SchNet": Refused(DECIDES, "reads the number of molecules from the batch"),
    "torchvision: VideoResNet": Refused(r"aten\.conv3d is not covered", "convolutions of volumes"),
    "torchvision: SSDLite": Refused(DECIDES, "keeps the boxes that it finds, whose number the batch decides"),
}  # fmt: skip
ALL = {f"{package}: {name}": (package, make) for package, table in PACKAGES.items() for name, make in table.items()}


def made(name: str) -> Made:
    """A model, batches and its loss; None: the model gives it.

    Raises:
        ImportError: its package is not installed.
    """
    package, make = ALL[name]
    torch.manual_seed(1)
    return make(importlib.import_module(package))


def page() -> str:
    """The architectures in Markdown, package by package."""
    names = {**{package: list(table) for package, table in PACKAGES.items()}, "JAX": [n.replace("_", " ") for n in JAX]}
    refused, count = Counter(name.partition(": ")[0] for name in REFUSED), sum(map(len, names.values()))

    def row(package: str) -> str:
        taken = [name for name in names[package] if f"{package}: {name}" not in REFUSED]
        share = f"{len(taken)} of {len(taken) + refused[package]}"
        return f"| {package} | {share} | {', '.join(taken)} |"

    lines = [
        f"Of {count} architectures, small and with random weights, {count - len(REFUSED)} are captured. Three steps of",
        "AdamW have torch's own losses, parameters and buffers (in the last row JAX's) to 1e-6; where the numbers are",
        "worse conditioned, they are as near as torch is to itself when its weights are moved by units in the last",
        "place. The others are refused with the layer or the line, and `emulate` trains them.",
        "",
        "| package | captured | which |",
        "|---|---|---|",
        *map(row, names),
        "",
        "| refused | what it does, and the way out |",
        "|---|---|",
        *(f"| {name} | {why} |" for name, (_, why) in REFUSED.items()),
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    print(page())
