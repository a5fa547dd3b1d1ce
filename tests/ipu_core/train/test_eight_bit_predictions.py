"""Predictions of 8-bit products: at every door the bits of the forward part of training, at the rate of those."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import lowprec
from ipu_core import Predictor, Sgd, TrainLoop, compare, nn
from ipu_core.chip.target import Target
from ipu_core.compile.planning import choose_accumulations
from ipu_core.ir.block import Block
from ipu_core.ir.precision.precision import Precision
from ipu_core.ir.run.execute import execute
from ipu_core.ir.trace.tracing import trace
from ipu_core.placement.orders import OrderRule
from ipu_core.study.models import catalogue as models
from ipu_core.study.models import cnn, mlp, resnet
from ipu_core.study.models.size import Size
from ipu_core.study.point import Problem
from ipu_core.study.settings import Settings
from ipu_core.train.data import dataset as data
from ipu_core.train.data import text
from ipu_core.train.predictor import evaluated
from lowprec import FloatFormat, Key

C600 = "c600"
BYTES = "fp16.16/nearest/operands=float8_e4m3fnuz/gradients=float8_e5m2fnuz"
SPECS = [BYTES, "fp8.16", "fp8", "mxfp8", "fp8/delayed"]
RNG = np.random.default_rng(8)
PARAMS = {
    "first": {"weight": RNG.normal(size=(160, 96)).astype(np.float32), "bias": np.ones(96, np.float32)},
    "head": RNG.normal(size=(96, 24)).astype(np.float32),
}
X, LABELS = RNG.normal(size=(32, 160)).astype(np.float32), RNG.integers(0, 24, 32).astype(np.int32)
BATCH = X, LABELS


def forward(params: Any, x: Any) -> Any:
    return nn.matmul(nn.relu(nn.linear(x, **params["first"])), params["head"])


def loss(params: Any, batch: Any) -> Any:
    return nn.softmax_cross_entropy(forward(params, batch[0]), batch[1])


def keeping(params: Any, state: Any, batch: Any) -> Any:
    """A loss that keeps its scores in the model's state: the forward part of training, as it was."""
    scores = forward(params, batch[0])
    return nn.softmax_cross_entropy(scores, batch[1]), {"scores": nn.convert(scores, "float32")}


def loop(spec: str, engine: str = "direct", **more: Any) -> TrainLoop:
    return TrainLoop(
        keeping, PARAMS, BATCH, optimizer=Sgd(0.1), precision=spec, engine=engine, target=C600,
        model_state={"scores": np.zeros((32, 24), np.float32)}, **more,
    )  # fmt: skip


def of_training(spec: str) -> Any:
    """The scores of the first step."""
    made = loop(spec)
    made.train(BATCH)
    return np.asarray(made.model_state["scores"], np.float32)


def with_state(params: Any, state: Any, x: Any) -> Any:
    return forward(params, x)


@pytest.mark.parametrize("spec", SPECS[:-1])
def test_a_predictor_gives_the_bits_of_training(spec: str) -> None:
    wanted = of_training(spec)
    assert np.array_equal(loop(spec).predict(with_state, X), wanted)
    assert np.array_equal(Predictor(forward, PARAMS, X, precision=spec, target=C600)(X), wanted)
    arrays = evaluated(forward, Precision.parse(spec), OrderRule.of(Target(C600)), Key(0), loop(spec).params, X)
    assert np.array_equal(np.asarray(arrays, np.float32), wanted)


@pytest.mark.parametrize("spec", SPECS[:2])
def test_the_order_of_halves_gives_other_bits(spec: str) -> None:
    """What these tests compare can be told apart: 16 products at a time are other sums."""
    typed = Precision.parse(spec).apply(ideal := trace(forward, loop(spec).params, X))
    orders = {
        n: replace(o, group=16) for n, o in choose_accumulations(ideal, OrderRule.of(Target(C600)), typed).items()
    }
    halves = np.asarray(execute(typed, loop(spec).params, X, key=0, accumulations=orders), np.float32)
    assert np.count_nonzero(halves != of_training(spec)) > 100


def test_a_precision_with_delayed_scales_predicts_with_the_amax_of_now() -> None:
    trained_long = loop("fp8/delayed")
    now, current = (Predictor(forward, PARAMS, X, precision=spec)(X) for spec in ("fp8/delayed", "fp8"))
    assert np.array_equal(now, current)
    assert np.array_equal(trained_long.predict(with_state, X), loop("fp8").predict(with_state, X))


def test_tiles_predict_the_same_bits_in_fewer_cycles_than_halves_take() -> None:
    weights, x = {"w": np.ones((1024, 1024), np.float32)}, np.ones((1024, 1024), np.float32)

    def product(params: Any, x: Any) -> Any:
        return x @ params["w"]

    chip = Target(C600, tiles=64, tile_memory=2**21)
    cycles = {}
    for spec in (BYTES, "fp16.16/nearest"):
        profile = Predictor(product, weights, x, precision=spec, engine="tiles", target=chip).profile
        assert profile is not None
        cycles[spec] = max(step.account.compute_cycles for step in profile.steps)
    assert cycles[BYTES] < 0.6 * cycles["fp16.16/nearest"]


@pytest.mark.parametrize("spec", SPECS[:1])
def test_both_engines_predict_alike(spec: str) -> None:
    made = Predictor(forward, PARAMS, X, precision=spec, engine="tiles", target=C600)
    assert np.array_equal(made(X), of_training(spec))


def test_a_study_evaluates_as_its_target_trains() -> None:
    seen: list[Any] = []

    def measure(both: Any, precision: Precision) -> dict[str, float]:
        params, _ = both
        seen.append(
            np.asarray(evaluated(forward, precision, OrderRule.of(Target(C600)), Key(0), params, X), np.float32)
        )
        return {"seen": 1.0}

    compare(
        keeping, PARAMS, [BATCH], [BYTES], optimizer=Sgd(0.1), steps=1, seeds=1, engine="direct", target=C600,
        evaluate=measure, model_state={"scores": np.zeros((32, 24), np.float32)},
    )  # fmt: skip
    assert np.array_equal(seen[0], of_training(BYTES))


SMALL: dict[str, dict[str, Any]] = {
    "mlp": {"layers": (64, 48, 10)}, "cnn": {"layers": (64, 4, 8, 10)}, "resnet": {"layers": (64, 8, 10)},
}  # fmt: skip


@pytest.mark.parametrize("name", SMALL)
def test_the_models_of_the_command_line_are_tested_with_the_sums_of_their_target(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(model=name, target=C600, engine="direct", **SMALL[name])
    rules: list[OrderRule] = []

    def watched(block: Block, rule: OrderRule, typed: Block) -> Any:
        rules.append(rule)
        return choose_accumulations(block, rule, typed)

    monkeypatch.setattr("ipu_core.train.predictor.choose_accumulations", watched)
    task = data.digits()
    problem = models.problem(settings, task)
    orders = _orders_of(problem, monkeypatch, BYTES)
    scores = {"mlp": mlp.logits, "cnn": cnn.logits, "resnet": resnet.tested}[name]
    params = problem.params(0) if problem.state is None else (problem.params(0), problem.initial_state(0))
    traced = trace(scores, *(params if problem.state else (params,)), task.x_test)
    typed = Precision.parse(BYTES).apply(traced)
    assert orders == choose_accumulations(traced, OrderRule.of(Target(C600)), typed)
    assert rules == [OrderRule("mk2")]
    assert any(order.group == 32 for order in orders.values())


def test_a_language_model_is_tested_with_the_sums_of_its_target(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(model="lm", target=C600, engine="direct", batch=4)
    settings = replace(settings, language_model=Size(width=32, layers=1, heads=2, context=16))
    orders = _orders_of(models.problem(settings, text.load()), monkeypatch, BYTES)
    assert {order.group for order in orders.values()} == {16, 32}


def _orders_of(problem: Problem, monkeypatch: pytest.MonkeyPatch, spec: str) -> Any:
    """The orders of the sums with which a problem is evaluated."""
    seen: list[Any] = []

    def watched(*args: Any, accumulations: Any = None, **kwargs: Any) -> Any:
        seen.append(accumulations)
        return execute(*args, accumulations=accumulations, **kwargs)

    monkeypatch.setattr("ipu_core.train.predictor.execute", watched)
    state = problem.initial_state(0)
    assert problem.evaluate is not None
    given = problem.params(0) if state is None else (problem.params(0), state)
    problem.evaluate(given, Precision.parse(spec))
    (orders,) = seen
    return orders


def test_the_same_training_in_another_precision_is_what_that_trains() -> None:
    for spec, other in (("fp16.16/nearest", BYTES), (BYTES, "fp16.16/nearest"), ("fp32.32", "fp8"), ("fp8", "fp32.32")):
        turned, fresh = loop(spec).in_precision(other), loop(other)
        assert turned.sums().keys() == fresh.sums().keys()
        assert {name: order for name, (_, order) in turned.sums().items()} == {
            name: order for name, (_, order) in fresh.sums().items()
        }
        assert turned.train(BATCH) == fresh.train(BATCH)
    own = {e.number: lowprec.Accumulation(group=4) for e in loop(BYTES).ideal.equations if e.op == "dot"}
    given = loop("fp16.16/nearest", accumulations=own).in_precision(BYTES)
    assert {order.group for _, (e, order) in given.sums().items() if e.op == "dot"} == {4}


def test_rules_for_parameters_reach_predictions() -> None:
    spec = "fp16.16/nearest/first:operands=float8_e4m3fnuz/head:weights=float32/head:partials=float32"
    made = loop(spec)
    assert made.params["head"].dtype == np.float32
    inputs = Predictor(forward, PARAMS, X, precision=spec, target=C600).block.inputs
    names = [var.type.format.name for var in inputs[:3] if isinstance(var.type.format, FloatFormat)]
    assert names == ["float16", "float16", "float32"]  # bias, weight, head
    assert np.array_equal(made.predict(with_state, X), of_training(spec))


def test_a_rule_for_no_part_is_refused_by_a_predictor_and_let_be_in_a_part_of_what_was_trained() -> None:
    with pytest.raises(ValueError, match="'heads:operands=float32' is for nothing in this model; names are head"):
        Predictor(forward, PARAMS, X, precision="fp8/heads:operands=float32")
    part = TrainLoop(loss, PARAMS, BATCH, optimizer=Sgd(0.1), precision="fp8/head:operands=float32", engine="direct")
    hidden = part.predict(lambda params, x: nn.linear(x, **params["first"]), X)
    assert hidden.shape == (32, 96)
    alone = {"first": PARAMS["first"]}
    with pytest.raises(ValueError, match="for nothing in this model"):
        Predictor(lambda p, x: nn.linear(x, **p["first"]), alone, X, precision="fp8/head:operands=float32")
    Predictor(lambda p, x: nn.linear(x, **p["first"]), alone, X, precision="fp8/head:operands=float32", whole=False)
