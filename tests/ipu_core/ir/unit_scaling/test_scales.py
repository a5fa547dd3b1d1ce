"""Under unit scaling activations and their gradients begin with size 1, and gradients are the true ones but for one
factor per parameter."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import numpy as np
import pytest

from ipu_core import Precision, evaluate, nn, trace, unit_scale, value_and_grad
from ipu_core.ir.pytree import flatten
from ipu_core.ir.run.evaluate import evaluate_flat
from ipu_core.ir.verify import verify
from tests.ipu_core.ir.unit_scaling import models
from tests.ipu_core.ir.unit_scaling.sizes import sizes

MODELS = {
    "mlp": (models.perceptron, {}),
    "cnn": (models.convolutional, {}),
    "lstm": (models.recurrent, {}),
    "transformer": (models.transformer, {}),
    "transformer of 2 layers": (partial(models.transformer, 2), {}),
    "transformer of 8 layers": (partial(models.transformer, 8), {}),
    "transformer, branches as they come": (models.transformer, {"tau": None}),
}
SMALL = {
    "mlp": partial(models.perceptron, (16, 8, CLASSES := models.CLASSES), 6),
    "cnn": partial(models.convolutional, 3),
    "lstm": partial(models.recurrent, "lstm", 6, 3, 4),
    "gru": partial(models.recurrent, "gru", 6, 3, 4),
    "transformer": partial(models.transformer, 2, 8, 2, 5, 2),
}
RULES: dict[str, dict[str, Any]] = {
    "plain": {},
    "tau": {"tau": 0.1},
    "as it comes": {"tau": None},
    "mup": {"mup": True},
}


@cache
def scales_of(name: str) -> list[models.Scale]:
    """Of a model's activations and gradients, at the beginning."""
    make, rules = MODELS[name]
    model = make()
    block, inputs = models.block_of(model, **rules)
    return models.scales(block, inputs, len(flatten(model.params)[0]))


SLOW = pytest.param("transformer of 8 layers", marks=pytest.mark.slow)


@pytest.mark.parametrize("name", [*(name for name in MODELS if "8" not in name), SLOW])
def test_every_activation_and_gradient_begins_with_size_one(name: str) -> None:
    found = scales_of(name)
    assert {scale.equation.role for scale in found} == {"forward", "grad_input"}
    assert len(found) >= 8
    bad = [f"{scale.deviation:.3f} {scale.equation.op} {scale.equation.role}" for scale in found
           if not 0.5 <= scale.deviation <= 2]  # fmt: skip
    assert not bad, bad


def test_branches_as_they_come_are_for_few_layers() -> None:
    """The gradients of eight layers then leave [0.5, 2], which is why shares go by depth unless one says otherwise."""
    model = models.transformer(8)
    block, inputs = models.block_of(model, tau=None)
    found = [scale.deviation for scale in models.scales(block, inputs, len(flatten(model.params)[0]))]
    assert min(found) < 0.45
    assert max(found) > 2.5


def test_what_rows_have_in_common_does_not_grow_in_attention() -> None:
    """A nonlinearity's mean gives all places a part in common, which weighted sums do not make smaller."""
    forward = [scale.deviation for scale in scales_of("transformer") if scale.equation.role == "forward"]
    assert 0.7 < min(forward) < max(forward) < 1.6


def test_a_gated_unit_but_for_the_gate_that_mixes() -> None:
    model = models.recurrent("gru")
    block, inputs = models.block_of(model)
    found = models.scales(block, inputs, len(flatten(model.params)[0]))
    outside = {scale.equation.op for scale in found if not 0.5 <= scale.deviation <= 2}
    assert outside == {"sigmoid"}  # between 0 and 1, as it is


@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("name", SMALL)
def test_gradients_are_the_true_ones_but_for_a_factor(name: str, rules: str) -> None:
    model = SMALL[name]()
    block, inputs = models.block_of(model, **RULES[rules])
    loss, *scaled = evaluate_flat(verify(value_and_grad(verify(block))), inputs)
    same, *true = evaluate_flat(value_and_grad(models.without_gradient_factors(block)), inputs)
    assert loss == pytest.approx(same, rel=1e-12)
    for one, other in zip(scaled, true, strict=True):
        ratio = (one * other).sum() / np.square(other).sum()
        assert ratio > 0
        np.testing.assert_allclose(one, ratio * other, rtol=1e-10, atol=1e-10 * np.abs(one).max())


@pytest.mark.parametrize("ways", [2, 4])
def test_a_gradient_that_comes_by_several_ways_alike_counts_each(ways: int) -> None:
    def loss(p: Any, batch: Any) -> Any:
        h = nn.tanh(batch[0] @ p["in"])
        return nn.mse(nn.concatenate([h @ weight for weight in p["out"]], -1), batch[1])

    params = {"in": models.zeros(64, 64), "out": [models.zeros(64, 16)] * ways}
    drawn = models.data(128, 64 + 16 * ways)
    found = sizes(loss, params, (drawn[:, :64], drawn[:, 64:]))
    assert 0.8 < found.range("cotangents")[0] < found.range("cotangents")[1] < 1.3


def test_factors_are_the_same_whenever_they_are_made() -> None:
    """And not a matter of where in memory something lies."""
    model = SMALL["gru"]()
    params = nn.unit_parameters(1, model.params)
    made = [str(trace(unit_scale(model.loss), params, model.batch)) for _ in range(12)]
    assert len(set(made)) == 1


def test_a_block_is_scaled_as_its_function_is() -> None:
    model = SMALL["transformer"]()
    params = nn.unit_parameters(3, model.params)
    block = trace(model.loss, params, model.batch)
    one = evaluate(value_and_grad(verify(unit_scale(block))), params, model.batch)
    other = evaluate(value_and_grad(trace(unit_scale(model.loss), params, model.batch)), params, model.batch)
    for a, b in zip(models.leaves_of(one), models.leaves_of(other), strict=True):
        np.testing.assert_array_equal(a, b)


def test_scores_are_those_in_the_loss() -> None:
    """A model alone has the factors of its results, so that it can be used as it was trained."""
    model = models.perceptron()
    params = nn.unit_parameters(3, model.params)
    x, y = model.batch
    scores = unit_scale(models.mlp.logits)(params, x)
    loss = unit_scale(model.loss)(params, model.batch)
    assert loss == pytest.approx(float(nn.softmax_cross_entropy(scores, y)), rel=1e-6)


def test_the_weights_of_attention_are_rounded_once_after_their_factor() -> None:
    model = SMALL["transformer"]()
    block, _ = models.block_of(model)
    typed = Precision.parse("fp16.16/nearest").apply(block)
    made = {equation.output: equation for equation in typed.equations}
    factors = [e for e in typed.equations if e.op == "scale" and made[e.operands[0]].op == "divide"]
    assert len(factors) == 2
    for equation in factors:
        assert (equation.operands[0].type.format.name, equation.output.type.format.name) == ("float32", "float16")


@pytest.mark.parametrize("wrong", [{"tau": 0.0}, {"tau": 1}, {"tau": "deep"}, {"deviation": 0}, {"deviation": np.inf}])
def test_what_is_out_of_range_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"unit_scale: {next(iter(wrong))} must"):
        unit_scale(models.mlp.loss, **wrong)
