"""Parameters and batches of classes that JAX has registered: names, values and classes are those of JAX."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import numpy as np
import pytest

from ipu_core import AdamW, Evaluate, Sgd, TrainLoop, from_jax
from ipu_core.ir.pytree import Held, flatten, makers, map_leaves, named, unflatten
from tests.ipu_core.frontends.jax_peer import check_step, compiled, jax

jnp = jax.numpy


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Layer:
    w: Any
    b: Any
    act: Any = dataclasses.field(metadata={"static": True}, default=jnp.tanh)

    def __call__(self, x: Any) -> Any:
        return self.act(x @ self.w + self.b)


@jax.tree_util.register_pytree_node_class
class Net:
    """Its children are an array, layers and what is no array."""

    def __init__(self, scale: Any, layers: Any, note: Any) -> None:
        self.scale, self.layers, self.note = scale, layers, note

    def tree_flatten(self) -> Any:
        return (self.scale, self.layers, self.note), None

    @classmethod
    def tree_unflatten(cls, aux: Any, children: Any) -> Net:
        return cls(*children)

    def __call__(self, x: Any) -> Any:
        for layer in self.layers["own"]:
            x = layer(x)
        return x * self.scale


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Batch:
    x: Any
    y: Any
    power: int = dataclasses.field(metadata={"static": True}, default=2)


def normal(*shape: int) -> Any:
    return (0.4 * np.random.default_rng(shape).normal(size=shape)).astype(np.float32)


def net(note: Any = jax.nn.relu) -> Net:
    layers = [Layer(normal(4, 8), normal(8)), Layer(normal(8, 3), normal(3), jnp.sin)]
    return Net(np.ones(3, np.float32), {"own": layers}, note)


def loss(model: Any, batch: Any) -> Any:
    return jnp.mean(jnp.abs(model(batch.x) - batch.y) ** batch.power)


BATCH = Batch(normal(16, 4), normal(16, 3))


def test_classes_are_taken_apart_and_put_together() -> None:
    leaves, tree = flatten({"a": net(), "b": [np.zeros(2), None]})
    names = [name for name, _ in named({"a": net()})]
    assert names == ["a.0", "a.1.own.0.w", "a.1.own.0.b", "a.1.own.1.w", "a.1.own.1.b"]
    assert len(leaves) == 6
    assert Held(jax.nn.relu) in makers(tree)
    again = unflatten(tree, leaves)
    assert isinstance(again["a"].layers["own"][1], Layer)
    assert again["a"].layers["own"][1].act is jnp.sin
    assert again["a"].note is jax.nn.relu
    assert flatten(again)[1] == tree
    assert flatten({"a": net(jnp.tanh), "b": [np.zeros(2), None]})[1] != tree
    with pytest.raises(ValueError, match="structures differ"):
        map_leaves(lambda a, b: a, net(), net(jnp.tanh))


def test_the_loss_takes_the_class_and_the_loop_gives_it_back() -> None:
    check_step(lambda leaves, batch: loss(unflatten(tree, leaves), batch), flatten(net())[0], BATCH)
    model = from_jax(loss, net(), BATCH)
    loop = TrainLoop(model, model.params, BATCH, optimizer=AdamW(1e-2), precision="fp32.32", engine="direct")
    before = float(loss(loop.params, BATCH))
    assert loop.train(BATCH) == pytest.approx(before, rel=1e-6)
    assert isinstance(loop.params, Net)
    assert loop.params.note is jax.nn.relu
    assert float(loss(loop.params, BATCH)) < before
    again = copy.copy(loop)
    assert again.train(BATCH) == loop.train(BATCH)
    assert {name for name in loop.arrays() if name.startswith("params")} == {
        "params.0", "params.1.own.0.w", "params.1.own.0.b", "params.1.own.1.w", "params.1.own.1.b",
    }  # fmt: skip


tree = flatten(net())[1]


def test_rules_go_by_the_names_of_attributes() -> None:
    model = from_jax(loss, net(), BATCH)
    own = {"optimizer": Sgd(0.1), "engine": "direct"}
    loop = TrainLoop(model, model.params, BATCH, precision="fp16.16/nearest/1.own.1.w:weights=float32", **own)
    formats = {name: array.dtype for name, array in loop.arrays().items()}
    assert formats["params.1.own.1.w"] == np.float32
    assert formats["params.1.own.0.w"] == np.float16
    with pytest.raises(ValueError, match=r"1\.own\.7"):
        TrainLoop(model, model.params, BATCH, precision="fp16.16/nearest/1.own.7:weights=float32", **own)


def test_what_changes_from_batch_to_batch_is_an_array() -> None:
    model = from_jax(loss, net(), BATCH)
    loop = TrainLoop(model, model.params, BATCH, optimizer=Sgd(0.1), precision="fp32.32")
    loop.train(Batch(BATCH.x + 1, BATCH.y))
    with pytest.raises(ValueError, match="what changes from batch to batch must be an array"):
        loop.train(dataclasses.replace(BATCH, power=3))
    with pytest.raises(ValueError, match="the batch holds 0, 1; the step was traced with x, y"):
        loop.train((BATCH.x, BATCH.y))


@pytest.mark.parametrize(
    ("params", "why"),
    [
        (Layer(normal(4, 3), 0.5), r"params\.b is the number 0\.5, which JAX trains: np\.float32"),
        (Layer(normal(4, 3), np.arange(3)), r"params\.b is array\(\[0, 1, 2\]\): what is no parameter .*nnx\.split"),
        ({"w": normal(4, 3), "act": jnp.tanh}, r"params\.act is <.*: what is no parameter .*equinox\.partition"),
        (net(jax.random.key(0)), r"params\.2 is Array\(\(\), dtype=key"),
    ],
)  # fmt: skip
def test_what_is_no_parameter_is_refused(params: Any, why: str) -> None:
    with pytest.raises(TypeError, match=why):
        from_jax(loss, params, BATCH)


def test_a_state_of_a_class_comes_back_as_one() -> None:
    def with_state(params: Any, state: Any, batch: Any) -> Any:
        new = dataclasses.replace(state, b=0.9 * state.b + 0.1 * batch.x.mean(0))
        return jnp.mean((batch.x - state.b) @ params), new

    state = Layer(np.ones(1, np.float32), np.zeros(4, np.float32))
    model = from_jax(with_state, normal(4, 3), BATCH, state=state)
    loop = TrainLoop(model, model.params, BATCH, optimizer=Sgd(0.1), precision="fp32.32", model_state=model.state)
    loop.train(BATCH)
    assert isinstance(loop.model_state, Layer)
    np.testing.assert_allclose(loop.model_state.b, 0.1 * BATCH.x.mean(0), rtol=1e-5, atol=1e-7)
    with pytest.raises(ValueError, match="nested as the state is"):
        from_jax(lambda p, s, b: (jnp.sum(p), {"w": s.w}), normal(4, 3), BATCH, state=state)


def test_evaluation_and_checkpoint_of_a_class(tmp_path: Any) -> None:
    model = from_jax(loss, net(), BATCH)
    loop, other = (
        TrainLoop(model, model.params, BATCH, optimizer=AdamW(1e-2), precision="fp16.16/stochastic") for _ in range(2)
    )
    evaluate = Evaluate(lambda params: {"loss": float(loss(params, BATCH))}, every=2)
    loop.run([BATCH] * 4, 4, callbacks=[evaluate])
    assert evaluate.history[-1][1]["loss"] < evaluate.history[0][1]["loss"]
    loop.save(tmp_path / "loop.npz")
    other.load(tmp_path / "loop.npz")
    assert other.train(BATCH) == loop.train(BATCH)


def test_modules_of_equinox() -> None:
    eqx = pytest.importorskip("equinox")
    model = eqx.nn.Sequential([eqx.nn.Linear(4, 8, key=jax.random.key(0)), eqx.nn.Lambda(jax.nn.relu),
                               eqx.nn.Dropout(0.5, inference=True), eqx.nn.LayerNorm(8),
                               eqx.nn.Linear(8, 3, key=jax.random.key(1))])  # fmt: skip

    def own(model: Any, batch: Any) -> Any:
        return jnp.mean((jax.vmap(model)(batch[0]) - batch[1]) ** 2)

    captured, batch = from_jax(own, model, (BATCH.x, BATCH.y)), (BATCH.x, BATCH.y)
    assert [name for name, _ in named(captured.params)][:2] == ["layers.0.weight", "layers.0.bias"]
    loop = TrainLoop(captured, captured.params, batch, optimizer=Sgd(0.1), precision="fp32.32")
    value, gradients = eqx.filter_value_and_grad(own)(model, batch)
    assert loop.train(batch) == pytest.approx(float(value), rel=1e-6)
    assert isinstance(loop.params, eqx.nn.Sequential)
    wanted = eqx.apply_updates(model, jax.tree.map(lambda g: -0.1 * g, gradients))
    for mine, theirs in zip(flatten(loop.params)[0], flatten(wanted)[0], strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)
    assert jnp.isfinite(own(loop.params, batch))  # what holds no array came back too


def test_states_of_flax_nnx() -> None:
    nnx = pytest.importorskip("flax.nnx")

    class Module(nnx.Module):  # type: ignore[misc, name-defined]
        def __init__(self, rngs: Any) -> None:
            self.first = nnx.Linear(4, 8, rngs=rngs)
            self.blocks = nnx.List([nnx.Linear(8, 8, rngs=rngs), nnx.Linear(8, 3, rngs=rngs)])
            self.drop = nnx.Dropout(0.5, deterministic=True, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            x = self.drop(nnx.relu(self.first(x)))
            return self.blocks[1](nnx.relu(self.blocks[0](x)))

    module = Module(nnx.Rngs(0))
    graph, params, rest = nnx.split(module, nnx.Param, ...)

    def own(params: Any, batch: Any) -> Any:
        return jnp.mean((nnx.merge(graph, params, rest)(batch[0]) - batch[1]) ** 2)

    batch = (BATCH.x, BATCH.y)
    model = from_jax(own, params, batch)
    assert [name for name, _ in named(model.params)][:3] == ["blocks.0.bias", "blocks.0.kernel", "blocks.1.bias"]
    loop = TrainLoop(model, model.params, batch, optimizer=Sgd(0.1),
                     precision="fp32.32/blocks.1.kernel:weights=float32")  # fmt: skip
    value, gradients = compiled(jax.value_and_grad(own))(params, batch)
    assert loop.train(batch) == pytest.approx(float(value), rel=1e-6)
    assert isinstance(loop.params, nnx.State)
    wanted = jax.tree.map(lambda x, g: x - 0.1 * g, params, gradients)
    for mine, theirs in zip(flatten(loop.params)[0], jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)
    nnx.update(module, loop.params)  # into the user's module
    with pytest.raises(TypeError, match=r"params\.drop\.rngs\..*nnx\.split"):
        from_jax(lambda module, batch: jnp.mean(module(batch[0])), module, batch)
