"""A trained model's forward function in the precision that it was trained in."""

from typing import Any

import numpy as np
import pytest

import lowprec
from ipu_core import Predictor, Sgd, TrainLoop, nn

RNG = np.random.default_rng(0)
X = RNG.normal(size=(16, 4)).astype(np.float32)
LABELS = RNG.integers(0, 3, 16).astype(np.int32)
PARAMS = {"w": RNG.normal(size=(4, 3)).astype(np.float32)}


def forward(params: Any, x: Any) -> Any:
    return x @ params["w"]


def loss(params: Any, batch: Any) -> Any:
    return nn.softmax_cross_entropy(forward(params, batch[0]), batch[1])


def trained(precision: str, engine: str = "direct") -> TrainLoop:
    made = TrainLoop(loss, PARAMS, (X, LABELS), optimizer=Sgd(0.5), precision=precision, engine=engine, key=5)
    made.run([(X, LABELS)] * 3, 3)
    return made


def test_products_are_those_of_the_precision_on_any_number_of_rows() -> None:
    made = trained("fp16.16/nearest")
    scores = made.predict(forward, X[:5].astype(np.float64))
    half = lowprec.astype(X[:5], "float16")
    assert scores.dtype == np.float32
    assert np.array_equal(scores, lowprec.matmul(half, made.params["w"], accumulate="float16").astype(np.float32))


def test_stochastic_predictions_are_the_run_s_and_leave_it_as_it_is() -> None:
    loops = [trained("fp16.16/stochastic", engine) for engine in ("direct", "tiles")]
    first, second = (made.predict(forward, X) for made in loops)
    assert np.array_equal(first, second)
    assert np.array_equal(first, loops[0].predict(forward, X))
    went_on = trained("fp16.16/stochastic")
    assert loops[0].train((X, LABELS)) == went_on.train((X, LABELS))


def test_a_model_with_a_state_predicts_with_it() -> None:
    def stateful(params: Any, state: Any, batch: Any) -> Any:
        return loss(params, batch), {"seen": state["seen"] + 1.0}

    made = TrainLoop(
        stateful, PARAMS, (X, LABELS), optimizer=Sgd(0.5), precision="fp32.32", engine="direct",
        model_state={"seen": np.float32(2)},
    )  # fmt: skip
    made.run([(X, LABELS)] * 3, 3)
    outputs = made.predict(lambda params, state, x: {"scores": x @ params["w"], "seen": state["seen"] * 1.0}, X)
    assert outputs["scores"].shape == (16, 3)
    assert outputs["seen"] == 5


def test_it_is_the_first_prediction_of_a_predictor() -> None:
    made = trained("fp16.16/stochastic")
    alone = Predictor(forward, made.params, X, precision=made.precision, key=5)
    assert np.array_equal(made.predict(forward, X), alone(X))
    assert not np.array_equal(made.predict(forward, X), alone(X, 1))


def test_what_is_no_function_or_no_array_is_refused() -> None:
    made = trained("fp32.32")
    with pytest.raises(TypeError, match=r"forward must be a function \(params, batch\) -> arrays, not array"):
        made.predict(X, X)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"batch: 0\.0 is the number .* in a list, .* arrays: give arrays"):
        made.predict(forward, X.tolist())
