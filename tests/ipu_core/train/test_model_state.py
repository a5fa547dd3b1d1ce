"""What a model carries beside its parameters: through steps, rounds, skipped steps, checkpoints, on both engines."""

import warnings
from typing import Any

import numpy as np
import pytest

from ipu_core import nn
from ipu_core.errors import NotFinite
from ipu_core.ir.passes.autodiff import value_and_grad
from ipu_core.train.loop import TrainLoop
from ipu_core.train.optim import Sgd

RNG = np.random.default_rng(4)
PARAMS = {"w": RNG.normal(size=(3, 2)).astype(np.float32)}
STATE = {"mean": np.zeros(3, np.float32), "seen": [np.float32(0)]}
BATCHES = [RNG.normal(size=(8, 3)).astype(np.float32) + 1 for _ in range(4)]


def loss(params: Any, state: Any, x: Any) -> Any:
    """Rows less a running mean, which follows the batch's."""
    centre = nn.mean(x, 0)
    new = {"mean": state["mean"] * 0.75 + centre * 0.25, "seen": [state["seen"][0] + 1.0]}
    return nn.mean(nn.square((x - state["mean"]) @ params["w"])), new


def loop(**options: Any) -> TrainLoop:
    given = {"precision": "fp32.32", "engine": "direct", "optimizer": Sgd(0.1), **options}
    return TrainLoop(loss, PARAMS, BATCHES[0], model_state=STATE, **given)


@pytest.mark.parametrize("engine", ["direct", "tiles"])
def test_it_goes_from_step_to_step(engine: str) -> None:
    made, mean, w = loop(engine=engine), np.zeros(3), PARAMS["w"].astype(np.float64)
    for x in BATCHES:
        assert made.train(x) == pytest.approx(np.mean(((x - mean) @ w) ** 2), rel=1e-5)
        w = w - 0.1 * 2 / 16 * (x - mean).T @ ((x - mean) @ w)
        mean = 0.75 * mean + 0.25 * x.mean(0)
    np.testing.assert_allclose(made.model_state["mean"], mean, rtol=1e-5)
    np.testing.assert_allclose(made.params["w"], w, rtol=1e-4)
    assert made.model_state["seen"] == [4.0]
    again = loop(engine=engine)
    again.restore(made.arrays(), made.step)
    assert again.train(BATCHES[0]) == made.train(BATCHES[0])


@pytest.mark.parametrize("engine", ["direct", "tiles"])
@pytest.mark.parametrize("precision", ["fp32.32", "mlperf-bert-pod16"])
def test_rounds_make_the_mean_of_what_each_makes_of_it(engine: str, precision: str) -> None:
    made = loop(engine=engine, micro_batches=4, precision=precision)
    made.train(BATCHES[0])
    np.testing.assert_allclose(made.model_state["mean"], 0.25 * BATCHES[0].mean(0), rtol=2e-3)
    assert made.model_state["seen"] == [1.0]


@pytest.mark.parametrize("engine", ["direct", "tiles"])
def test_a_skipped_step_leaves_it(engine: str) -> None:
    made = loop(engine=engine, loss_scale=1.0)
    made.train(BATCHES[0])
    before = {name: a.tobytes() for name, a in made.arrays().items()}
    with pytest.warns(NotFinite, match="that step was skipped"):
        made.train(np.full((8, 3), np.inf, np.float32))
    assert [skipped.step for skipped in made.skipped] == [1]
    assert {name: a.tobytes() for name, a in made.arrays().items()} == before
    made.train(BATCHES[1])
    assert made.model_state["seen"] == [2.0]


def test_a_loop_without_one_has_none() -> None:
    made = TrainLoop(
        lambda p, x: nn.mean(p["w"]) * nn.mean(x), PARAMS, BATCHES[0], optimizer=Sgd(0.1), precision="fp32.32",
        engine="direct",
    )  # fmt: skip
    assert made.model_state is None


def test_what_comes_beside_a_loss_is_not_differentiated() -> None:
    x = np.array([1.0, 2.0])
    (value, (double, more)), gradient = value_and_grad(
        lambda p: ((p * p).sum(), (2 * p, {"a": p.sum()})), has_aux=True
    )(x)
    assert value == 5
    np.testing.assert_array_equal(double, [2, 4])
    assert more["a"] == 3
    np.testing.assert_array_equal(gradient, [2, 4])


@pytest.mark.parametrize("overlap", [False, True])
def test_a_skipped_step_leaves_what_of_it_lies_in_streaming_memory(overlap: bool) -> None:
    """It is made in the forward part, for the loss, long before it is known whether the step counts."""

    def centred(params: Any, state: Any, x: Any) -> Any:
        mean = state["mean"] * 0.75 + nn.mean(x, 0) * 0.25
        return nn.mean(nn.square((x - mean) @ params["w"])), {"mean": mean, "seen": [state["seen"][0] + 1.0]}

    given = {"model_state": STATE, "precision": "fp32.32", "optimizer": Sgd(0.1), "loss_scale": 1.0}
    near = TrainLoop(centred, PARAMS, BATCHES[0], engine="direct", **given)
    far = TrainLoop(centred, PARAMS, BATCHES[0], engine="tiles", streamed="*mean", overlap=overlap, **given)
    assert [far.block.inputs[i].name for i in far.block.streamed] == ["state.model.mean"]
    for x in (BATCHES[0], np.full((8, 3), np.inf, np.float32), BATCHES[1]):
        for made in (near, far):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", NotFinite)
                made.train(x)
        assert {name: a.tobytes() for name, a in near.arrays().items()} == {
            name: a.tobytes() for name, a in far.arrays().items()
        }
    assert [skipped.step for skipped in far.skipped] == [1]
