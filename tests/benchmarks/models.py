"""Models whose training steps are timed: transformers, the study's nets, and one of depthwise convolutions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from ipu_core import nn
from ipu_core.study.models import cnn, mlp
from ipu_core.train.data import dataset as data
from ipu_core.train.optim import Adam, Optimizer, Sgd
from ipu_core.train.step import Loss
from lowprec import Key

WORDS = 64


@dataclass(frozen=True)
class Model:
    """What a training loop needs, and the shape of a transformer for those who build the same in another library."""

    loss: Loss
    params: Any
    batch: tuple[Any, Any]
    optimizer: Optimizer
    heads: int = 0


def transformer(batch: int, context: int, width: int, layers: int, heads: int = 4) -> Model:
    """A causal language model over 64 words: `layers` blocks of attention and a gelu perceptron of 4 * width."""
    keys = iter(Key(1).split(8 * layers + 3))

    def linear(inputs: int, outputs: int) -> dict[str, Any]:
        return {"weight": nn.lecun_normal(next(keys), (inputs, outputs)), "bias": np.zeros(outputs, np.float32)}

    def norm() -> dict[str, Any]:
        return {"scale": np.ones(width, np.float32), "bias": np.zeros(width, np.float32)}

    def block() -> dict[str, Any]:
        attention = {"norm1": norm(), "qkv": linear(width, 3 * width), "out": linear(width, width)}
        return {**attention, "norm2": norm(), "up": linear(width, 4 * width), "down": linear(4 * width, width)}

    params = {
        "embedding": nn.normal(next(keys), (WORDS, width)),
        "position": nn.normal(next(keys), (context, width)),
        "blocks": [block() for _ in range(layers)],
        "norm": norm(),
        "head": linear(width, WORDS),
    }
    tokens = np.random.default_rng(0).integers(0, WORDS, (batch, context + 1)).astype(np.int32)
    return Model(_causal_loss(heads), params, (tokens[:, :-1], tokens[:, 1:]), Adam(1e-3), heads)


def _causal_loss(heads: int) -> Loss:
    def apply(layer: Any, x: Any) -> Any:
        return nn.linear(x, layer["weight"], layer["bias"])

    def normal(layer: Any, x: Any) -> Any:
        return nn.layer_norm(x, layer["scale"], layer["bias"])

    def attention(block: Any, x: Any, mask: Any) -> Any:
        batch, context, width = x.shape
        parts = apply(block["qkv"], x).reshape(batch, context, 3, heads, width // heads).transpose(2, 0, 3, 1, 4)
        query, key, value = (parts[i] for i in range(3))
        shares = nn.softmax(query @ key.transpose(0, 1, 3, 2) * (width / heads) ** -0.5 + mask)
        return apply(block["out"], (shares @ value).transpose(0, 2, 1, 3).reshape(batch, context, width))

    def loss(params: Any, batch: Any) -> Any:
        words, following = batch
        mask = np.triu(np.full((words.shape[1],) * 2, -1e4, np.float32), 1)
        x = nn.embedding(params["embedding"], words) + params["position"]
        for block in params["blocks"]:
            x = x + attention(block, normal(block["norm1"], x), mask)
            x = x + apply(block["down"], nn.gelu(apply(block["up"], normal(block["norm2"], x))))
        return nn.softmax_cross_entropy(apply(params["head"], normal(params["norm"], x)), following)

    return loss


def digits(kind: str) -> Model:
    """The study's "cnn" (16 and 32 channels) or "mlp" (64-256-256-10) on its digits, batch 64, SGD."""
    batch = data.batches(data.digits(), 64, 0)(0)
    if kind == "cnn":
        return Model(cnn.loss, cnn.initial(cnn.kernels((64, 16, 32, 10)), 0), batch, Sgd(0.002))
    return Model(mlp.loss, mlp.initial((64, 256, 256, 10), 0), batch, Sgd(0.002))


def separable(batch: int, side: int, widths: tuple[int, ...]) -> Model:
    """Colour images through a convolution, then one for each channel and one over channels for every further width."""
    keys = iter(Key(1).split(2 * len(widths)))

    def linear(*shape: int) -> dict[str, Any]:
        return {"weight": nn.lecun_normal(next(keys), shape), "bias": np.zeros(shape[-1], np.float32)}

    params = {
        "stem": linear(3, 3, 3, widths[0]),
        "blocks": [
            {"each": linear(3, 3, 1, before), "over": linear(1, 1, before, after)} for before, after in pairwise(widths)
        ],
        "head": linear(widths[-1], 10),
    }
    rng = np.random.default_rng(0)
    images = rng.standard_normal((batch, side, side, 3)).astype(np.float32)
    return Model(_separable_loss, params, (images, rng.integers(0, 10, batch).astype(np.int32)), Sgd(0.01))


def _separable_loss(params: Any, batch: Any) -> Any:
    def convolved(layer: Any, x: Any, groups: int = 1) -> Any:
        return nn.relu(nn.conv2d(x, layer["weight"], layer["bias"], padding="same", groups=groups))

    images, classes = batch
    x = convolved(params["stem"], images)
    for block in params["blocks"]:
        x = convolved(block["over"], convolved(block["each"], x, x.shape[-1]))
    logits = nn.linear(x.mean(axis=(1, 2)), params["head"]["weight"], params["head"]["bias"])
    return nn.softmax_cross_entropy(logits, classes)


MODELS: dict[str, Callable[[], Model]] = {
    "transformer 8x128x128": lambda: transformer(8, 128, 128, 2),
    "transformer 8x32x64": lambda: transformer(8, 32, 64, 2),
    "transformer 1x128x768": lambda: transformer(1, 128, 768, 12, 12),
    "cnn": lambda: digits("cnn"),
    "separable 16x16x16": lambda: separable(16, 16, (16, 32, 32)),
    "mlp": lambda: digits("mlp"),
}
"""By name: transformers by batch x context x width, images by batch x side x side."""
LARGE = ("transformer 1x128x768",)
"""Of GPT-2 small's layers, heads and width (85 million weights, 64 words): timed only where asked for."""
