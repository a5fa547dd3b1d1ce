"""Values by way of which no gradient comes: stopped, compared, or given beside the loss. They decide no factor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ipu_core import nn, unit_scale, value_and_grad
from ipu_core.frontends.torch.operations import norms
from ipu_core.ir.run.evaluate import evaluate_flat
from ipu_core.study.models import resnet
from tests.ipu_core.ir.unit_scaling import models
from tests.ipu_core.ir.unit_scaling.models import Model, data, labels, zeros
from tests.ipu_core.ir.unit_scaling.sizes import sizes

ROWS, WIDTH, CLASSES = 32, 24, models.CLASSES
BATCH = (data(ROWS, WIDTH), labels(ROWS))
PARAMS = {"a": zeros(WIDTH, WIDTH), "b": zeros(WIDTH, CLASSES)}
NORM = {**PARAMS, "scale": np.ones(WIDTH, np.float32), "bias": zeros(WIDTH)}
RUNNING = {"mean": zeros(WIDTH), "variance": np.ones(WIDTH, np.float32)}


def kept_statistics(norm: Callable[..., Any]) -> Callable[..., Any]:
    """A loss with the new statistics of a norm beside it."""

    def loss(p: Any, batch: Any) -> Any:
        x, y = batch
        h, kept = norm(x @ p["a"], p)
        return nn.softmax_cross_entropy(nn.relu(h) @ p["b"], y), kept

    return loss


def of_nn(h: Any, p: Any) -> Any:
    return nn.batch_norm(h, p["scale"], p["bias"], RUNNING, training=True)


def of_torch(h: Any, p: Any) -> Any:
    """As a captured module's batch norm is."""
    statistics = RUNNING["mean"], RUNNING["variance"]
    h, *kept = norms.batch_norm(None, h, p["scale"], p["bias"], *statistics, True, 0.1, 1e-5)  # type: ignore[arg-type]
    return h, kept


def of_rows(h: Any, p: Any) -> Any:
    """A layer norm by hand that keeps a running mean of its deviations."""
    middle = nn.mean(h, -1, keepdims=True)
    size = np.sqrt(nn.mean((h - middle) ** 2, -1, keepdims=True) + 1e-5)
    return (h - middle) / size * p["scale"] + p["bias"], 0.1 * nn.stop_gradient(nn.mean(size))


def root_mean_square(h: Any, p: Any) -> Any:
    return nn.rms_norm(h, p["scale"]) + p["bias"], nn.stop_gradient(nn.mean(np.square(h)))


def stopped_norm(p: Any, batch: Any) -> Any:
    h = batch[0] @ p["a"]
    middle = nn.mean(h, -1, keepdims=True)
    size = np.sqrt(nn.mean((h - middle) ** 2, -1, keepdims=True) + 1e-5)
    h = (h - nn.stop_gradient(middle)) / nn.stop_gradient(size)
    return nn.softmax_cross_entropy(h @ p["b"], batch[1])


def centred(p: Any, batch: Any) -> Any:
    h = nn.layer_norm(batch[0] @ p["a"])
    return nn.softmax_cross_entropy((h - nn.stop_gradient(nn.mean(h, 0, keepdims=True))) @ p["b"], batch[1])


def masked(p: Any, batch: Any) -> Any:
    h = batch[0] @ p["a"]
    return nn.softmax_cross_entropy(nn.where(h > nn.mean(h, 0, keepdims=True), h, 0.0) @ p["b"], batch[1])


def without_largest(p: Any, batch: Any) -> Any:
    h = batch[0] @ p["a"]
    return nn.softmax_cross_entropy((h * (h < np.max(h, -1, keepdims=True))) @ p["b"], batch[1])


def nearest_label(p: Any, batch: Any) -> Any:
    """With a table of vectors that is looked up by the largest of the scores."""
    h = batch[0] @ p["a"]
    return nn.softmax_cross_entropy((h + nn.embedding(p["a"], np.argmax(h, -1))) @ p["b"], batch[1])


def with_and_without(p: Any, batch: Any) -> Any:
    h = batch[0] @ p["a"]
    return nn.softmax_cross_entropy((nn.relu(h) + nn.stop_gradient(nn.gelu(3 * h))) @ p["b"], batch[1])


def normed_weights(p: Any, batch: Any) -> Any:
    weight = p["a"] / nn.stop_gradient(np.sqrt(np.sum(p["a"] ** 2, 0, keepdims=True)))
    return nn.softmax_cross_entropy(nn.relu(batch[0] @ weight) @ p["b"], batch[1])


def signs(x: Any) -> Any:
    return nn.where(x > 0, 1.0, -1.0)


def straight_through(p: Any, batch: Any) -> Any:
    h, weight = batch[0] @ p["a"], p["b"]
    h = h + nn.stop_gradient(signs(h) - h)
    weight = nn.stop_gradient(signs(weight) - weight) + weight
    return nn.softmax_cross_entropy(h @ weight, batch[1])


LOSSES = [
    stopped_norm, centred, masked, without_largest, nearest_label, with_and_without, normed_weights, straight_through,
]  # fmt: skip


def first(loss: Callable[..., Any]) -> Callable[..., Any]:
    """The loss alone of what a function gives."""
    return lambda *arguments: loss(*arguments)[0]


def check(loss: Callable[..., Any], params: Any) -> None:
    """Every size near 1, and gradients the true ones but for a factor."""
    found = sizes(loss, params, BATCH)
    assert not found.outside(), found.outside()
    block, inputs = models.block_of(Model(loss, params, BATCH))
    _, *scaled = evaluate_flat(value_and_grad(block), inputs)
    _, *true = evaluate_flat(value_and_grad(models.without_gradient_factors(block)), inputs)
    for one, other in zip(scaled, true, strict=True):
        ratio = (one * other).sum() / np.square(other).sum()
        assert ratio > 0
        np.testing.assert_allclose(one, ratio * other, rtol=1e-9, atol=1e-9 * np.abs(one).max())


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.__name__)
def test_what_no_gradient_passes_decides_no_factor(loss: Callable[..., Any]) -> None:
    check(loss, PARAMS)


@pytest.mark.parametrize("norm", [of_nn, of_torch, of_rows, root_mean_square], ids=lambda norm: norm.__name__)
def test_running_statistics_of_every_norm(norm: Callable[..., Any]) -> None:
    loss = kept_statistics(norm)
    found = sizes(loss, NORM, BATCH)
    assert not found.outside(), found.outside()
    check(first(loss), NORM)


def test_a_residual_net_with_batch_norm() -> None:
    """Whose gradients had sizes of 0.0001 to 0.0004 before each norm: a study's model, its statistics beside."""
    widths = (64, 8, 16, CLASSES)
    found = sizes(resnet.loss, resnet.initial(resnet.layout(widths), 0), resnet.statistics(widths),
                  (data(ROWS, 64), labels(ROWS)))  # fmt: skip
    assert len(found.activations) > 20
    assert not [words for words in found.outside() if not words.startswith("gradient")]


def watched(p: Any, batch: Any) -> Any:
    """With all that one may want to see: values within functions, shares, which are right, variances."""
    x, y = batch
    h = x @ p["a"]
    bent = np.tanh(h)
    active = nn.relu(bent)
    normal = nn.layer_norm(active)
    scores = normal @ p["b"]
    right = np.equal(np.argmax(scores, -1), y)
    beside = {
        "bent": bent, "again": np.tanh(3 * bent), "active": nn.mean(nn.where(active > 0, 1.0, 0.0), 0),
        "right": nn.where(right, 1.0, 0.0), "variance": nn.mean((active - nn.mean(active, 0)) ** 2, 0),
        "gated": nn.sigmoid(h) * h, "scores": scores,
    }  # fmt: skip
    return nn.softmax_cross_entropy(scores, y), beside


def test_what_is_given_beside_a_loss_changes_no_gradient() -> None:
    params = nn.unit_parameters(1, PARAMS)
    alone, gradients = value_and_grad(unit_scale(first(watched)))(params, BATCH)
    (loss, _), same = value_and_grad(unit_scale(watched), has_aux=True)(params, BATCH)
    assert loss == alone
    for name, gradient in gradients.items():
        np.testing.assert_array_equal(same[name], gradient)


def test_what_is_given_beside_a_loss_gets_no_factor() -> None:
    _, beside = unit_scale(watched)(nn.unit_parameters(1, PARAMS), BATCH)
    share = np.round(beside["active"] * ROWS)
    np.testing.assert_allclose(beside["active"], share / ROWS, rtol=1e-6)  # a share of the rows
    assert 0 < beside["active"].min() < beside["active"].max() < 1
    np.testing.assert_array_equal(beside["right"], np.equal(np.argmax(beside["scores"], -1), BATCH[1]))
    np.testing.assert_allclose(beside["again"], np.tanh(3 * beside["bent"]), rtol=1e-5)


def test_the_factors_of_a_loss_are_those_of_its_running_statistics_too() -> None:
    """The statistics are of the values that the norm sees."""
    loss = kept_statistics(of_nn)
    _, kept = unit_scale(loss)(params := nn.unit_parameters(1, NORM), BATCH)
    seen = BATCH[0] @ params["a"] * WIDTH**-0.5
    np.testing.assert_allclose(kept["mean"], 0.1 * seen.mean(0), rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(kept["variance"], 0.9 + 0.1 * seen.var(0, ddof=1), rtol=1e-3)


@pytest.mark.parametrize("swapped", [False, True])
def test_a_value_whose_gradient_goes_straight_through_is_what_it_was_rounded_to(swapped: bool) -> None:
    """And not a residual branch, which would be added in part."""

    def loss(p: Any, batch: Any) -> Any:
        h = nn.gelu(batch[0] @ p["a"])
        change = nn.stop_gradient(signs(h) - h)
        rounded = change + h if swapped else h + change
        return nn.softmax_cross_entropy(rounded @ p["b"], batch[1]), rounded

    _, rounded = unit_scale(loss)(nn.unit_parameters(1, PARAMS), BATCH)
    np.testing.assert_allclose(np.abs(rounded), np.abs(rounded[0, 0]), rtol=1e-6)
    assert abs(rounded[0, 0]) == pytest.approx(1, rel=0.02)
    check(first(loss), PARAMS)


def test_a_function_of_several_results_is_scaled_whole() -> None:
    """One that gives no loss: what the first result is not made of is wanted too."""

    def scores(p: Any, x: Any) -> Any:
        h = nn.gelu(x @ p["a"])
        return h @ p["b"], h @ p["b"][:, :3]

    for result in unit_scale(scores)(nn.unit_parameters(1, PARAMS), BATCH[0]):
        assert 0.7 < np.std(result) < 1.4
