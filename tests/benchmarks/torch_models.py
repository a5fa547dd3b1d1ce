"""The models of `models` in torch, float32, as its users write them: a call that does one training step."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

from ipu_core.ir.pytree import flatten, map_leaves
from ipu_core.train.optim import Adam
from tests.benchmarks.models import Model


def step(name: str, model: Model) -> Callable[[], float]:
    """One training step from the model's own parameters on its batch; gives the loss.

    Raises:
        ImportError: torch is not installed.
    """
    torch: Any = importlib.import_module("torch")
    torch.set_num_threads(1)
    params = map_leaves(lambda x: torch.tensor(np.asarray(x, np.float32), requires_grad=True), model.params)
    inputs = torch.from_numpy(np.array(model.batch[0]))
    labels = torch.from_numpy(np.array(model.batch[1], np.int64))
    kind = torch.optim.Adam if isinstance(model.optimizer, Adam) else torch.optim.SGD
    optimizer = kind(flatten(params)[0], lr=model.optimizer.lr)
    logits = LOGITS[name.split()[0]](torch.nn.functional, params, model.heads)

    def train() -> float:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(logits(inputs), labels.flatten())
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return train


def _perceptron(f: Any, params: Any, _heads: int) -> Callable[[Any], Any]:
    def logits(x: Any) -> Any:
        for layer in params[:-1]:
            x = f.relu(x @ layer["weight"] + layer["bias"])
        return x @ params[-1]["weight"] + params[-1]["bias"]

    return logits


def _convolutional(f: Any, params: Any, _heads: int) -> Callable[[Any], Any]:
    def logits(x: Any) -> Any:
        side = int(x.shape[1] ** 0.5)
        x = x.reshape(-1, 1, side, side)
        for layer in params[:-1]:
            x = f.max_pool2d(f.relu(f.conv2d(x, layer["weight"].permute(3, 2, 0, 1), layer["bias"], padding=1)), 2)
        return x.permute(0, 2, 3, 1).flatten(1) @ params[-1]["weight"] + params[-1]["bias"]

    return logits


def _separable(f: Any, params: Any, _heads: int) -> Callable[[Any], Any]:
    def convolved(layer: Any, x: Any, groups: int = 1) -> Any:
        weight = layer["weight"].permute(3, 2, 0, 1)
        return f.relu(f.conv2d(x, weight, layer["bias"], padding=weight.shape[2] // 2, groups=groups))

    def logits(x: Any) -> Any:
        x = convolved(params["stem"], x.permute(0, 3, 1, 2))
        for block in params["blocks"]:
            x = convolved(block["over"], convolved(block["each"], x, x.shape[1]))
        return x.mean(dim=(2, 3)) @ params["head"]["weight"] + params["head"]["bias"]

    return logits


def _transformer(f: Any, params: Any, heads: int) -> Callable[[Any], Any]:
    def apply(layer: Any, x: Any) -> Any:
        return x @ layer["weight"] + layer["bias"]

    def normal(layer: Any, x: Any) -> Any:
        return f.layer_norm(x, x.shape[-1:], layer["scale"], layer["bias"])

    def attention(block: Any, x: Any) -> Any:
        batch, context, width = x.shape
        parts = apply(block["qkv"], x).reshape(batch, context, 3, heads, width // heads).permute(2, 0, 3, 1, 4)
        mixed = f.scaled_dot_product_attention(*parts, is_causal=True)
        return apply(block["out"], mixed.transpose(1, 2).reshape(batch, context, width))

    def logits(words: Any) -> Any:
        x = f.embedding(words, params["embedding"]) + params["position"]
        for block in params["blocks"]:
            x = x + attention(block, normal(block["norm1"], x))
            x = x + apply(block["down"], f.gelu(apply(block["up"], normal(block["norm2"], x))))
        return apply(params["head"], normal(params["norm"], x)).flatten(0, -2)

    return logits


LOGITS: dict[str, Callable[[Any, Any, int], Callable[[Any], Any]]] = {
    "mlp": _perceptron,
    "cnn": _convolutional,
    "separable": _separable,
    "transformer": _transformer,
}
