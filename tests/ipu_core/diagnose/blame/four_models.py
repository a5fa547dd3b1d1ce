"""Four small models, none of them a perceptron, on data that are made: what `faults.toml` plants its faults in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ipu_core import nn

Batch = tuple[Any, Any]
SIDE, CHANNELS, TURNS = 8, 8, 4
TOKENS, PLACES, WIDTH, HEADS = 12, 10, 24, 2
TIMES, INPUTS, UNITS = 6, 5, 20
FEATURES, HIDDEN = 12, 24


@dataclass(frozen=True)
class Model:
    """A model with its data.

    Attributes:
        loss: (params, batch, gain) -> one number; what stands in the scope "gained" is so many times as large.
        params: from a generator.
        batch: from a generator and what is the same in every batch of a seed.
        task: what is the same in every batch of a seed, from a generator.
    """

    loss: Callable[[Any, Batch, float], Any]
    params: Callable[[np.random.Generator], Any]
    batch: Callable[[np.random.Generator, Any], Batch]
    task: Callable[[np.random.Generator], Any]


def gained(x: Any, gain: float) -> Any:
    """Values that are multiplied and divided again: what lies between may be too large or too small for a format."""
    if gain == 1:
        return x
    with nn.name_scope("gained", x):
        x = x * gain
    return x * (1 / gain)


def _layer(rng: np.random.Generator, inputs: int, outputs: int, gain: float = 1.0) -> dict[str, Any]:
    weight = gain * rng.normal(size=(inputs, outputs)) / inputs**0.5
    return {"weight": weight.astype(np.float32), "bias": np.zeros(outputs, np.float32)}


def _images_params(rng: np.random.Generator) -> Any:
    first = rng.normal(size=(3, 3, 1, CHANNELS)) / 3
    second = rng.normal(size=(3, 3, CHANNELS, CHANNELS)) / (9 * CHANNELS) ** 0.5
    return {
        "conv1": {"weight": (1.4 * first).astype(np.float32), "bias": np.zeros(CHANNELS, np.float32)},
        "conv2": {"weight": (1.4 * second).astype(np.float32), "bias": np.zeros(CHANNELS, np.float32)},
        "head": _layer(rng, CHANNELS * (SIDE // 4) ** 2, TURNS),
    }


def _images_batch(rng: np.random.Generator, task: Any) -> Batch:
    """Stripes in four directions, under noise."""
    labels = rng.integers(0, TURNS, 24)
    x, y = np.mgrid[:SIDE, :SIDE]
    angle = (np.pi / TURNS * labels + task)[:, None, None]
    phase = rng.uniform(0, 2 * np.pi, (24, 1, 1))
    images = np.sin(1.6 * (np.cos(angle) * x + np.sin(angle) * y) + phase) + 0.4 * rng.normal(size=(24, SIDE, SIDE))
    return images[..., None].astype(np.float32), labels.astype(np.int32)


def _images_loss(params: Any, batch: Batch, gain: float) -> Any:
    x, labels = batch
    x = nn.max_pool2d(nn.relu(nn.conv2d(x, **params["conv1"], padding=1)))
    x = nn.max_pool2d(nn.relu(nn.conv2d(gained(x, gain), **params["conv2"], padding=1)))
    return nn.softmax_cross_entropy(nn.linear(nn.flatten(x), **params["head"]), labels)


def _text_params(rng: np.random.Generator) -> Any:
    return {
        "tokens": (0.5 * rng.normal(size=(TOKENS, WIDTH))).astype(np.float32),
        "places": (0.5 * rng.normal(size=(PLACES, WIDTH))).astype(np.float32),
        "attention": {"qkv": _layer(rng, WIDTH, 3 * WIDTH), "out": _layer(rng, WIDTH, WIDTH)},
        "up": _layer(rng, WIDTH, 2 * WIDTH), "down": _layer(rng, 2 * WIDTH, WIDTH), "head": _layer(rng, WIDTH, TOKENS),
    }  # fmt: skip


def _text_batch(rng: np.random.Generator, task: Any) -> Batch:
    """Sequences of which each token says the next one, most of the time."""
    tokens = np.empty((12, PLACES + 1), np.int32)
    tokens[:, 0] = rng.integers(0, TOKENS, 12)
    for place in range(PLACES):
        known = rng.random(12) < 0.85
        tokens[:, place + 1] = np.where(known, task[tokens[:, place]], rng.integers(0, TOKENS, 12))
    return tokens[:, :-1], tokens[:, 1:]


def _text_loss(params: Any, batch: Batch, gain: float) -> Any:
    tokens, following = batch
    x = nn.embedding(params["tokens"], tokens) + params["places"]
    x = x + nn.multi_head_attention(params["attention"], nn.layer_norm(x), HEADS, nn.causal_mask(PLACES))
    inner = gained(nn.gelu(nn.linear(nn.layer_norm(x), **params["up"])), gain)
    x = x + nn.linear(inner, **params["down"])
    return nn.softmax_cross_entropy(nn.linear(x, **params["head"]), following)


def _series_params(rng: np.random.Generator) -> Any:
    return {
        "input": _layer(rng, INPUTS, UNITS),
        "hidden": _layer(rng, UNITS, UNITS, 0.9),
        "head": _layer(rng, UNITS, 3),
    }


def _series_batch(rng: np.random.Generator, task: Any) -> Batch:
    """Series of which one direction, summed over time, says the class."""
    x = rng.normal(size=(24, TIMES, INPUTS))
    level = np.digitize(x.sum(1) @ task / TIMES**0.5, [-0.45, 0.45])
    return x.astype(np.float32), level.astype(np.int32)


def _series_loss(params: Any, batch: Batch, gain: float) -> Any:
    x, labels = batch
    state = nn.tanh(nn.linear(x[:, 0], **params["input"]))
    for time in range(1, TIMES):
        state = nn.tanh(nn.linear(x[:, time], **params["input"]) + nn.linear(state, **params["hidden"]))
    return nn.softmax_cross_entropy(nn.linear(gained(state, gain), **params["head"]), labels)


def _curves_params(rng: np.random.Generator) -> Any:
    blocks = {
        f"block{i}": {"up": _layer(rng, HIDDEN, 2 * HIDDEN), "down": _layer(rng, 2 * HIDDEN, HIDDEN)} for i in (0, 1)
    }
    return {"embed": _layer(rng, FEATURES, HIDDEN), **blocks, "head": _layer(rng, HIDDEN, 1, 0.3)}


def _curves_batch(rng: np.random.Generator, task: Any) -> Batch:
    """A smooth function of twelve features."""
    x = rng.normal(size=(32, FEATURES))
    y = np.sin(x @ task[0]) + 0.5 * np.tanh(x @ task[1])
    return x.astype(np.float32), y[:, None].astype(np.float32)


def _curves_loss(params: Any, batch: Batch, gain: float) -> Any:
    x, y = batch
    x = nn.linear(x, **params["embed"])
    for name in ("block0", "block1"):
        inner = nn.gelu(nn.linear(nn.layer_norm(x), **params[name]["up"]))
        x = x + nn.linear(gained(inner, gain) if name == "block0" else inner, **params[name]["down"])
    return nn.mse(nn.linear(nn.layer_norm(x), **params["head"]), y)


def _unit(rng: np.random.Generator, *shape: int) -> Any:
    made = rng.normal(size=shape)
    return made / np.linalg.norm(made, axis=-1, keepdims=True)


MODELS: Mapping[str, Model] = {
    "convolutional": Model(_images_loss, _images_params, _images_batch, lambda rng: rng.uniform(0, np.pi)),
    "attention": Model(_text_loss, _text_params, _text_batch, lambda rng: rng.permutation(TOKENS)),
    "recurrent": Model(_series_loss, _series_params, _series_batch, lambda rng: _unit(rng, INPUTS)),
    "residual": Model(_curves_loss, _curves_params, _curves_batch, lambda rng: _unit(rng, 2, FEATURES)),
}
