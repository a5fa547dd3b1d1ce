"""Losses that nobody wrote for unit scaling: their gradients stay true, and what they compute of norms stays it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ipu_core import nn, value_and_grad
from ipu_core.ir.pytree import flatten
from ipu_core.ir.run.evaluate import evaluate_flat
from ipu_core.ir.verify import verify
from tests.ipu_core.ir.unit_scaling import models
from tests.ipu_core.ir.unit_scaling.models import Model, data, labels, zeros

WIDTH, CLASSES = 24, models.CLASSES
ROWS, PLACES = (data(32, WIDTH), labels(32)), (data(4, 8, WIDTH), labels(4, 8))
SQUARE, HEAD = zeros(WIDTH, WIDTH), zeros(WIDTH, CLASSES)
PARAMS = {"a": SQUARE, "b": HEAD}


def by_hand(p: Any, batch: Any) -> Any:
    """A layer norm in NumPy's words."""
    h = batch[0] @ p["a"]
    middle = np.mean(h, -1, keepdims=True)
    variance = np.mean((h - middle) ** 2, -1, keepdims=True)
    return nn.softmax_cross_entropy(((h - middle) / np.sqrt(variance + 1e-5)) @ p["b"], batch[1])


def unmarked(p: Any, batch: Any) -> Any:
    return np.mean((np.tanh(batch[0] @ p["a"]) @ p["b"] - batch[0][:, :CLASSES]) ** 2)


def gated(p: Any, batch: Any) -> Any:
    return nn.softmax_cross_entropy((nn.silu(batch[0] @ p["a"]) * (batch[0] @ p["c"])) @ p["b"], batch[1])


def rotary(p: Any, batch: Any) -> Any:
    layers = {"qkv": {"weight": p["qkv"]}, "out": {"weight": p["a"]}}
    mixed = nn.multi_head_attention(layers, batch[0], 2, nn.causal_mask(8), rotary=True)
    return nn.softmax_cross_entropy(mixed @ p["b"], batch[1])


def dropped(p: Any, batch: Any) -> Any:
    return nn.softmax_cross_entropy(nn.dropout(nn.gelu(batch[0] @ p["a"]), 0.3) @ p["b"], batch[1])


def tied(p: Any, batch: Any) -> Any:
    h = nn.embedding(p["table"], batch[1])
    h = h + nn.gelu(h @ p["a"])
    return nn.softmax_cross_entropy(h @ p["table"].T, batch[1])


def pooled(p: Any, batch: Any) -> Any:
    return nn.softmax_cross_entropy(nn.mean(nn.relu(batch[0] @ p["a"]), 1) @ p["b"], batch[1][:, 0])


def smoothed(p: Any, batch: Any) -> Any:
    return nn.cross_entropy(batch[0] @ p["a"] @ p["b"], batch[1], label_smoothing=0.1, ignore_index=3)


def decayed(p: Any, batch: Any) -> Any:
    scores = nn.relu(batch[0] @ p["a"]) @ p["b"]
    return nn.softmax_cross_entropy(scores, batch[1]) + 0.01 * (p["a"] ** 2).sum()


def scanned(p: Any, batch: Any) -> Any:
    def step(h: Any, x: Any) -> Any:
        h = np.tanh(x @ p["a"] + h @ p["c"])
        return h, h

    _, states = nn.scan(step, np.zeros((4, WIDTH), np.float32), batch[0], 1)
    return nn.softmax_cross_entropy(states @ p["b"], batch[1])


def of_images(p: Any, batch: Any) -> Any:
    h = nn.conv2d(nn.reshape(batch[0], (8, 8, 8, 1)), p["kernel"], padding="same")
    return nn.softmax_cross_entropy(nn.flatten(nn.avg_pool2d(nn.relu(nn.group_norm(h, groups=2)))) @ p["b"], batch[1])


CASES: dict[str, tuple[Callable[..., Any], Any, Any]] = {
    "a norm by hand": (by_hand, PARAMS, ROWS),
    "a loss by hand": (unmarked, PARAMS, ROWS),
    "gated linear units": (gated, {**PARAMS, "c": SQUARE}, ROWS),
    "rotary attention": (rotary, {**PARAMS, "qkv": zeros(WIDTH, 3 * WIDTH)}, PLACES),
    "dropout": (dropped, PARAMS, ROWS),
    "tied weights": (tied, {"a": SQUARE, "table": zeros(CLASSES, WIDTH)}, PLACES),
    "mean pooling": (pooled, PARAMS, PLACES),
    "label smoothing": (smoothed, PARAMS, ROWS),
    "weight decay in the loss": (decayed, PARAMS, ROWS),
    "a recurrence by hand": (scanned, {**PARAMS, "c": SQUARE}, PLACES),
    "group norm and pooling": (
        of_images,
        {"kernel": zeros(3, 3, 1, 6), "b": zeros(96, CLASSES)},
        (data(8, 64), labels(8)),
    ),
}


@pytest.mark.parametrize("rules", [{}, {"mup": True}], ids=["plain", "mup"])
@pytest.mark.parametrize("name", CASES)
def test_gradients_are_true_and_no_size_is_far_from_one(name: str, rules: dict[str, Any]) -> None:
    model = Model(*CASES[name])
    block, inputs = models.block_of(model, **rules)
    _, *scaled = evaluate_flat(verify(value_and_grad(verify(block))), inputs, key=3)
    _, *true = evaluate_flat(value_and_grad(models.without_gradient_factors(block)), inputs, key=3)
    for one, other in zip(scaled, true, strict=True):
        ratio = (one * other).sum() / np.square(other).sum()
        np.testing.assert_allclose(one, ratio * other, rtol=1e-10, atol=1e-10 * np.abs(one).max())
        assert 0.3 < np.sqrt(np.square(one).mean()) < 3
    if not rules:
        found = models.scales(block, inputs, len(flatten(model.params)[0]))
        assert all(0.15 < scale.deviation < 3 for scale in found)


def test_a_norm_by_hand_is_left_what_it_is() -> None:
    block, _ = models.block_of(Model(by_hand, PARAMS, ROWS))
    made = {equation.output: equation.op for equation in block.equations}
    assert [made[e.operands[0]] for e in block.equations if e.op == "scale"] == ["dot", "dot"]
