"""Optimizers of the user's own: traced in float32, written as weights are, counted, and refused where they go wrong."""

import inspect
import textwrap
from typing import Any

import numpy as np
import pytest

import ipu_core
from ipu_core import TrainLoop, nn
from ipu_core.ir.precision.precision import Precision
from ipu_core.ir.trace.tracing import trace
from ipu_core.train.optim import Optimizer, Sgd
from ipu_core.train.step import training_step

GENERATOR = np.random.default_rng(0)
PARAMS = {"b": np.zeros(4, np.float32), "w": GENERATOR.standard_normal((8, 4)).astype(np.float32) / 3}
BATCH = GENERATOR.standard_normal((16, 8)).astype(np.float32), GENERATOR.integers(0, 4, 16).astype(np.int32)


def loss(params: Any, batch: Any) -> Any:
    return nn.softmax_cross_entropy(batch[0] @ params["w"] + params["b"], batch[1])


def adagrad() -> Any:
    """The class in the documentation."""
    assert Optimizer.__doc__ is not None
    code = inspect.cleandoc(Optimizer.__doc__).partition("::\n\n")[2]
    names: dict[str, Any] = {"np": np}
    exec(textwrap.dedent(code), names)
    return names["Adagrad"]()


class Plain:
    """SGD as a user writes it."""

    lr = 0.5

    def init(self, params: Any) -> Any:
        return {"steps": np.zeros((), np.float32)}

    def update(self, params: Any, gradients: Any, state: Any, lr: Any) -> Any:
        return {name: params[name] - lr * g for name, g in gradients.items()}, {"steps": state["steps"] + 1}


def equations(optimizer: Any, spec: str) -> Any:
    state = {"params": PARAMS, "optimizer": optimizer.init(PARAMS)}
    block = trace(training_step(loss, optimizer), state, BATCH, np.float32(0.1))
    return Precision.parse(spec).apply(block).equations


def test_the_documented_one_learns_and_stores_half_weights() -> None:
    assert ipu_core.Optimizer is Optimizer
    for spec in ("fp32.32", "fp16.16/stochastic"):
        loop = TrainLoop(loss, PARAMS, BATCH, optimizer=adagrad(), precision=spec, engine="direct")
        values = [loop.train(BATCH) for _ in range(30)]
        assert values[-1] < 0.7 * values[0]
    assert loop.arrays()["params.w"].dtype == np.float16
    assert loop.arrays()["optimizer.w"].dtype == np.float32


@pytest.mark.parametrize("optimizer", [Plain(), adagrad()])
def test_all_it_computes_is_float32_but_the_weights(optimizer: Any) -> None:
    found = equations(optimizer, "fp16.16/nearest")
    own = [e for e in found if e.role == "optimizer"]
    assert own
    assert {e.output.type.format.name for e in own} == {"float32"}
    updates = [e for e in found if e.role == "update"]
    assert sorted(e.parameter for e in updates) == ["b", "w"]
    assert {e.output.type.format.name for e in updates} == {"float16"}


def test_it_makes_the_same_weights_as_the_library_s_in_float32() -> None:
    loops = [
        TrainLoop(loss, PARAMS, BATCH, optimizer=one, precision="fp32.32", engine="direct")
        for one in (Plain(), Sgd(0.5))
    ]
    for _ in range(20):
        for loop in loops:
            loop.train(BATCH)
    for name in PARAMS:
        np.testing.assert_allclose(loops[0].params[name], loops[1].params[name], rtol=1e-5, atol=1e-6)
    assert loops[0].arrays()["optimizer.steps"] == 20


def test_both_engines_agree() -> None:
    loops = [
        TrainLoop(loss, PARAMS, BATCH, optimizer=Plain(), precision="fp16.16/stochastic", engine=engine)
        for engine in ("direct", "tiles")
    ]
    values = [[loop.train(BATCH) for _ in range(5)] for loop in loops]
    assert values[0] == values[1]


def test_lost_updates_are_counted() -> None:
    class Tiny(Plain):
        lr = 1e-7

    loop = TrainLoop(loss, PARAMS, BATCH, optimizer=Tiny(), precision="fp16.16/nearest", engine="direct")
    count = loop.count_updates(BATCH)
    assert 0 < count.wanted <= sum(w.size for w in PARAMS.values())
    assert count.lost >= 0.8 * (count.wanted - 4)  # biases are at zero, where the smallest update arrives


class Frozen(Plain):
    def update(self, params: Any, gradients: Any, state: Any, lr: Any) -> Any:
        new, state = super().update(params, gradients, state, lr)
        return new | {"b": params["b"]}, state


def test_a_parameter_it_leaves_alone_is_stored_all_the_same() -> None:
    loop = TrainLoop(loss, PARAMS, BATCH, optimizer=Frozen(), precision="fp16.16/nearest", engine="direct")
    loop.train(BATCH)
    assert loop.arrays()["params.b"].dtype == np.float16
    assert not loop.params["b"].any()


class Forgets(Plain):
    def update(self, params: Any, gradients: Any, state: Any, lr: Any) -> Any:
        return {"w": params["w"]}, state


class Widens(Plain):
    def update(self, params: Any, gradients: Any, state: Any, lr: Any) -> Any:
        return params | {"b": params["w"][0] + params["w"]}, state


@pytest.mark.parametrize(
    "optimizer, message",
    [
        (Forgets(), r"Forgets.update must give \(parameters, state\), parameters nested as it got them: b, w"),
        (Widens(), r"Widens.update gives b the shape \(8, 4\), it has \(4,\)"),
    ],
)
def test_what_it_must_give_is_said(optimizer: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TrainLoop(loss, PARAMS, BATCH, optimizer=optimizer, precision="fp32.32", engine="direct")
