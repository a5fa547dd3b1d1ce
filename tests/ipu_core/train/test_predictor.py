"""Forward passes in one precision: the same bits on both engines, what a function gives as it nests it, refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ipu_core import Predictor, Sgd, TrainLoop, nn

RNG = np.random.default_rng(3)
PARAMS = {"in": RNG.normal(size=(6, 8)).astype(np.float32), "out": RNG.normal(size=(8, 3)).astype(np.float32)}
X = RNG.normal(size=(4, 6)).astype(np.float32)


def forward(params: Any, batch: Any) -> Any:
    hidden = nn.relu(batch["x"] @ params["in"])
    return {"hidden": hidden, "scores": (hidden @ params["out"],)}


def with_state(params: Any, state: Any, batch: Any) -> Any:
    return batch @ params["in"] + state["mean"]


def loss(params: Any, batch: Any) -> Any:
    return nn.softmax_cross_entropy(forward(params, {"x": batch[0]})["scores"][0], batch[1])


@pytest.mark.parametrize("precision", ["fp32.32", "fp16.32", "fp16.16/stochastic"])
def test_engines_give_the_same_bits(precision: str) -> None:
    direct, tiles = (
        Predictor(forward, PARAMS, {"x": X}, precision=precision, engine=engine, key=5)
        for engine in ("direct", "tiles")
    )
    for number in range(2):
        one, other = direct({"x": X}, number), tiles({"x": X}, number)
        assert one["hidden"].tobytes() == other["hidden"].tobytes()
        assert one["scores"][0].tobytes() == other["scores"][0].tobytes()
    assert tiles.profile is not None
    assert tiles.profile.cycles > 0
    assert direct.profile is None


def test_in_float32_it_is_numpy_s_product() -> None:
    made = Predictor(forward, PARAMS, {"x": X}, precision="fp32.32")({"x": X})
    np.testing.assert_allclose(made["scores"][0], np.maximum(X @ PARAMS["in"], 0) @ PARAMS["out"], rtol=1e-5, atol=1e-5)


def test_stochastic_rounding_follows_the_key_and_the_number() -> None:
    def scores(key: int, number: int) -> bytes:
        made = Predictor(forward, PARAMS, {"x": X}, precision="fp16.16/stochastic", key=key)({"x": X}, number)
        return np.asarray(made["scores"][0]).tobytes()

    assert scores(1, 0) == scores(1, 0)
    assert len({scores(1, 0), scores(1, 1), scores(2, 0)}) == 3


@pytest.mark.parametrize("engine", ["direct", "tiles"])
@pytest.mark.parametrize("precision", ["fp32.32", "unit-fp16/stochastic"])
def test_predictions_drop_nothing_and_training_does(engine: str, precision: str) -> None:
    def scores(drop: bool) -> Any:
        def function(params: Any, batch: Any) -> Any:
            hidden = nn.relu(batch["x"] @ params["in"])
            return (nn.dropout(hidden, 0.5) if drop else hidden) @ params["out"]

        return function

    kept: dict[str, Any] = {"precision": precision, "engine": engine, "key": 3}
    with_it, without = (Predictor(scores(drop), PARAMS, {"x": X}, **kept)({"x": X}, 7) for drop in (True, False))
    assert with_it.tobytes() == without.tobytes()

    def trained(params: Any, batch: Any) -> Any:
        return nn.mean(scores(True)(params, batch))

    loop = TrainLoop(trained, PARAMS, {"x": X}, optimizer=Sgd(0.1), **kept)
    assert "dropout_mask" in {equation.op for equation in loop.block.equations}
    if precision == "fp32.32":
        wanted = np.maximum(X @ PARAMS["in"], 0) @ PARAMS["out"]
        np.testing.assert_allclose(loop.predict(scores(True), {"x": X}), wanted, rtol=1e-5, atol=1e-5)
        # of arrays with a key nothing is traced: the mask is a constant that the caller chose
        chosen = nn.dropout(np.ones((4, 3), np.float32), 0.5, key=1)

        def masked(params: Any, batch: Any) -> Any:
            return batch @ params["in"][:, :3] * nn.dropout(np.ones((4, 3), np.float32), 0.5, key=1)

        made = Predictor(masked, PARAMS, X, **kept)(X)
        assert ((made == 0) == (chosen == 0)).all()


def test_trained_parameters_are_taken_as_a_loop_gives_them() -> None:
    batch = (X, np.array([0, 1, 2, 0], np.int32))
    loop = TrainLoop(loss, PARAMS, batch, optimizer=Sgd(0.1), precision="fp16.16/stochastic", engine="direct")
    predictor = Predictor(forward, loop.params, {"x": X}, precision=loop.precision)
    before = predictor({"x": X})["hidden"]
    loop.train(batch)
    assert loop.params["in"].dtype == np.float16
    predictor.write(loop.params)
    after = predictor({"x": X})["hidden"]
    assert (before != after).any()
    assert (
        after.tobytes()
        == Predictor(forward, loop.params, {"x": X}, precision=loop.precision)({"x": X})["hidden"].tobytes()
    )


def test_a_state_goes_between_parameters_and_batch() -> None:
    state = {"mean": np.arange(8, dtype=np.float32)}
    predictor = Predictor(with_state, PARAMS, X, precision="fp32.32", model_state=state)
    first = predictor(X)
    predictor.write(PARAMS, {"mean": state["mean"] + 1})
    np.testing.assert_allclose(predictor(X) - first, np.ones((4, 8)), rtol=1e-5)
    with pytest.raises(ValueError, match="has a state"):
        predictor.write(PARAMS)


def test_refusals() -> None:
    predictor = Predictor(forward, PARAMS, {"x": X}, precision="fp32.32")
    with pytest.raises(ValueError, match=r"shape \(2, 6\)"):
        predictor({"x": X[:2]})
    with pytest.raises(ValueError, match="not nested"):
        predictor.write({"in": PARAMS["in"]})
    with pytest.raises(ValueError, match="has no state"):
        predictor.write(PARAMS, {"mean": X})
    with pytest.raises(ValueError, match="unknown engine 'gpu': choose tiles or direct"):
        Predictor(forward, PARAMS, {"x": X}, precision="fp32.32", engine="gpu")
