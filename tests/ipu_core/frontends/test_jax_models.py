"""Loss functions of JAX: losses and gradients are JAX's in float32, and they train in every precision."""

from __future__ import annotations

import itertools
import sys
from typing import Any

import numpy as np
import pytest

from ipu_core import Adam, Predictor, Sgd, TrainLoop, from_jax
from tests.ipu_core.frontends.jax_peer import check_step, compiled, jax, labelled, normal

jnp, lax = jax.numpy, jax.lax
Made = tuple[Any, Any, list[Any]]


def nll(logits: Any, labels: Any) -> Any:
    return -jnp.mean(jax.nn.log_softmax(logits)[jnp.arange(labels.shape[0]), labels])


def mlp() -> Made:
    def loss(params: Any, batch: Any) -> Any:
        x, y = batch
        for number, layer in enumerate(params):
            with jax.named_scope(f"layers/{number}"):
                x = x @ layer["w"] + layer["b"]
            x = jax.nn.relu(x) if layer is not params[-1] else x
        return nll(x, y)

    sizes = (6, 16, 16, 5)
    params = [{"w": normal(n, m), "b": np.zeros(m, np.float32)} for n, m in itertools.pairwise(sizes)]
    return loss, params, labelled(8, 6)


def cnn() -> Made:
    def loss(params: Any, batch: Any) -> Any:
        x, y = batch
        for kernel in params["kernels"]:
            x = lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
            x = lax.reduce_window(jax.nn.relu(x), -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        return nll(x.reshape(x.shape[0], -1) @ params["out"], y)

    params = {"kernels": [normal(3, 3, 2, 4), normal(3, 3, 4, 8)], "out": normal(32, 5)}
    return loss, params, labelled(4, 8, 8, 2)


def transformer() -> Made:
    words, width, heads, places = 11, 8, 2, 6

    def normed(x: Any, scale: Any) -> Any:
        middle = x.mean(-1, keepdims=True)
        return (x - middle) * lax.rsqrt(((x - middle) ** 2).mean(-1, keepdims=True) + 1e-5) * scale

    def loss(params: Any, batch: Any) -> Any:
        x = params["embedding"][batch[:, :-1]] + params["places"]
        for block in params["blocks"]:
            q, k, v = jnp.split(normed(x, block["n1"]) @ block["qkv"], 3, -1)
            q, k, v = (a.reshape(*a.shape[:2], heads, -1).transpose(0, 2, 1, 3) for a in (q, k, v))
            scores = jnp.einsum("bhqd,bhkd->bhqk", q, k) / jnp.sqrt(width / heads)
            weights = jax.nn.softmax(jnp.where(jnp.tril(jnp.ones((places, places))) > 0, scores, -1e9))
            mixed = jnp.einsum("bhqk,bhkd->bhqd", weights, v).transpose(0, 2, 1, 3).reshape(x.shape)
            x = x + mixed @ block["out"]
            x = x + jax.nn.gelu(normed(x, block["n2"]) @ block["up"]) @ block["down"]
        logits = jax.nn.log_softmax(x @ params["embedding"].T)
        return -jnp.take_along_axis(logits, batch[:, 1:, None], -1).mean()

    ones = np.ones(width, np.float32)
    blocks = [{"n1": ones, "n2": ones, "qkv": normal(width, 3 * width, seed=i), "out": normal(width, width, seed=i),
               "up": normal(width, 16, seed=i), "down": normal(16, width, seed=i)} for i in range(2)]  # fmt: skip
    params = {"embedding": normal(words, width), "places": normal(places, width), "blocks": blocks}
    rows = np.random.default_rng(4).integers(0, words, (3, 4, places + 1)).astype(np.int32)
    return loss, params, list(rows)


def recurrent() -> Made:
    def loss(params: Any, batch: Any) -> Any:
        x, y = batch

        def step(state: Any, row: Any) -> Any:
            h, c = state
            i, f, g, o = jnp.split(row @ params["x"] + h @ params["h"] + params["b"], 4, -1)
            c = jax.nn.sigmoid(f + 1) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        _, shown = lax.scan(step, (jnp.zeros((x.shape[0], 7)),) * 2, x.transpose(1, 0, 2))
        return nll(shown[-1] @ params["out"], y)

    params = {"x": normal(3, 28), "h": normal(7, 28), "b": np.zeros(28, np.float32), "out": normal(7, 5)}
    return loss, params, labelled(4, 5, 3)


def by_flax() -> Made:
    nn = pytest.importorskip("flax.linen")

    class Net(nn.Module):  # type: ignore[misc, name-defined]
        @nn.compact  # type: ignore[untyped-decorator]
        def __call__(self, x: Any) -> Any:
            x = nn.max_pool(nn.relu(nn.Conv(4, (3, 3))(x)), (2, 2), (2, 2))
            x = nn.avg_pool(nn.gelu(nn.Conv(8, (3, 3), strides=2)(x)), (2, 2))
            x = nn.LayerNorm()(x.reshape(x.shape[0], -1))
            x = nn.MultiHeadDotProductAttention(2)(nn.Dense(12)(x)[:, None].reshape(-1, 3, 4))
            return nn.Dense(5)(x.reshape(x.shape[0], -1))

    batches = labelled(4, 8, 8, 2)
    params = Net().init(jax.random.key(0), batches[0][0])
    return lambda params, batch: nll(Net().apply(params, batch[0]), batch[1]), params, batches


def by_haiku() -> Made:
    hk = pytest.importorskip("haiku")

    def forward(x: Any) -> Any:
        x = jax.nn.relu(hk.Conv2D(4, 3)(x))
        x = hk.MaxPool((2, 2, 1), (2, 2, 1), "VALID")(x)
        x = hk.LayerNorm(-1, create_scale=True, create_offset=True)(hk.Flatten()(x))
        return hk.nets.MLP([16, 5])(x)

    model = hk.without_apply_rng(hk.transform(forward))
    batches = labelled(4, 8, 8, 2)
    params = model.init(jax.random.key(0), batches[0][0])
    return lambda params, batch: nll(model.apply(params, batch[0]), batch[1]), params, batches


MODELS = {f.__name__: f for f in (mlp, cnn, transformer, recurrent, by_flax, by_haiku)}


@pytest.mark.parametrize("name", MODELS)
def test_losses_and_gradients_are_those_of_jax(name: str) -> None:
    loss, params, batches = MODELS[name]()
    check_step(loss, params, batches[0])
    model = from_jax(loss, params, batches[0])
    loop = TrainLoop(model, model.params, batches[0], optimizer=Sgd(0.1), precision="fp32.32", engine="direct")
    step = compiled(jax.value_and_grad(loss))
    for number in range(30):
        batch = batches[number % 3]
        value, gradients = step(params, batch)
        params = jax.tree.map(lambda x, g: x - np.float32(0.1) * np.asarray(g), params, gradients)
        assert loop.train(batch) == pytest.approx(float(value), rel=1e-4)
    assert jax.tree.structure(loop.params) == jax.tree.structure(params)
    ours, theirs = (float(step(final, batches[0])[0]) for final in (loop.params, params))
    assert ours == pytest.approx(theirs, rel=1e-4)


@pytest.mark.parametrize("name", ["cnn", "transformer"])
def test_halves_train_with_the_same_bits_on_both_engines(name: str) -> None:
    loss, params, batches = MODELS[name]()
    model = from_jax(loss, params, batches[0])
    tiles, direct = (
        TrainLoop(model, model.params, batches[0], optimizer=Adam(1e-2), precision="fp16.16/stochastic", engine=engine)
        for engine in ("tiles", "direct")
    )
    losses = [direct.train(batches[i % 3]) for i in range(30)]
    assert [tiles.train(batches[i % 3]) for i in range(2)] == losses[:2]
    assert np.mean(losses[-3:]) < np.mean(losses[:3]) - 0.1
    assert tiles.profile is not None
    assert tiles.profile.cycles > 0


def test_a_state_goes_from_step_to_step() -> None:
    """Running statistics, as a batch norm keeps them."""

    def loss(params: Any, state: Any, batch: Any) -> Any:
        x, y = batch
        mean, var = x.mean(0), x.var(0)
        new = {"mean": 0.9 * state["mean"] + 0.1 * mean, "var": 0.9 * state["var"] + 0.1 * var}
        return nll((x - mean) / jnp.sqrt(var + 1e-5) @ params, y), new

    batches, params = labelled(8, 6), normal(6, 5)
    state = {"mean": np.zeros(6, np.float32), "var": np.ones(6, np.float32)}
    model = from_jax(loss, params, batches[0], state=state)
    loop = TrainLoop(model, model.params, batches[0], optimizer=Sgd(0.1), precision="fp32.32", engine="direct",
                     model_state=model.state)  # fmt: skip
    step = compiled(jax.value_and_grad(loss, has_aux=True))
    for batch in batches:
        loop.train(batch)
        (_, state), gradients = step(params, state, batch)
        params = params - 0.1 * gradients
    np.testing.assert_allclose(loop.model_state["mean"], state["mean"], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(loop.model_state["var"], state["var"], rtol=1e-5)


def test_rules_go_by_the_names_of_scopes_and_tables_by_lines() -> None:
    loss, params, batches = mlp()
    model = from_jax(loss, params, batches[0])
    loop = TrainLoop(model, model.params, batches[0], optimizer=Sgd(0.1), engine="direct",
                     precision="fp16.16/nearest/layers.1:partials=float32")  # fmt: skip
    assert np.isfinite(loop.train(batches[0]))
    forward = [equation for equation in loop.block.equations if equation.role == "forward" and equation.source]
    assert {str(equation.source).partition(":")[0] for equation in forward} == {"test_jax_models.py"}
    with pytest.raises(ValueError, match=r"layers\.7"):
        TrainLoop(
            model, model.params, batches[0], optimizer=Sgd(0.1), precision="fp16.16/nearest/layers.7:partials=float32"
        )


def test_what_is_no_loss_is_refused() -> None:
    loss, params, batches = mlp()
    with pytest.raises(ValueError, match="one number"):
        from_jax(lambda p, b: b[0] @ p[0]["w"], params, batches[0])
    with pytest.raises(TypeError, match="params must be arrays of floats"):
        from_jax(loss, [1], batches[0])
    model = from_jax(loss, params, batches[0])
    with pytest.raises(ValueError, match="captured for arrays of"):
        TrainLoop(model, model.params, labelled(9, 6)[0], optimizer=Sgd(0.1), precision="fp32.32", engine="direct")


def test_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jax", None)
    with pytest.raises(ImportError, match=r"jax is needed here: .*\[jax\]"):
        from_jax(lambda p, b: p, (), ())


def tenths(params: Any, batch: Any) -> Any:
    return jnp.mean((jnp.tanh(batch @ params["w"]) * 0.1 + jnp.linspace(0.0, 1.0, 3)) ** 2)


def test_float64_is_no_baseline_of_what_was_captured_in_float32() -> None:
    params, batch = {"w": np.asarray(normal(4, 3), np.float64)}, np.asarray(normal(2, 4), np.float64)
    model = from_jax(tenths, params, batch)
    options: Any = {"optimizer": Sgd(0.1), "engine": "direct"}
    refused = pytest.raises(ValueError, match=r"tenths was captured in float32, its numbers such as 0\.1 too")
    with refused:
        TrainLoop(model, params, batch, precision="float64", **options)
    with refused:
        TrainLoop(model, params, batch, precision="fp32.32", **options).in_precision("float64")
    with refused:
        Predictor(model, params, batch, precision="float64")
    # finer weights alone, or a wider range, are no finer results
    for precision in ("fp32.32/weights=float64", "fp32.32/output=e9m5"):
        TrainLoop(model, params, batch, precision=precision, **options)
    with jax.enable_x64(True):
        mixed = from_jax(tenths, params, batch.astype(np.float32))
        model, wanted = from_jax(tenths, params, batch), float(tenths(params, jnp.asarray(batch)))
    with refused:
        TrainLoop(mixed, params, batch, precision="float64", **options)
    assert model.params["w"].dtype == np.float64
    assert TrainLoop(model, params, batch, precision="float64", **options).train(batch) == pytest.approx(
        wanted, rel=1e-14
    )


def test_a_loss_of_jax_that_was_not_captured_is_told_from_jax() -> None:
    params, batch = {"w": normal(4, 3)}, normal(2, 4)
    options: Any = {"optimizer": Sgd(0.1), "precision": "fp32.32", "engine": "direct"}
    relu = lambda params, batch: jax.nn.relu(params["w"]).sum()  # noqa: E731
    for loss in (tenths, relu, jax.jit(tenths)):
        with pytest.raises(
            TypeError, match=r"a function of JAX was given a traced value.*from_jax\(loss, params, batch\)"
        ):
            TrainLoop(loss, params, batch, **options)
    with pytest.raises(TypeError, match="from_jax captures those of JAX"):
        TrainLoop(lambda params, batch: (jnp.asarray(batch) @ params["w"]).sum(), params, batch, **options)
    with pytest.raises(TypeError, match="from_jax"):
        Predictor(tenths, params, batch, precision="fp32.32")


def test_nothing_to_train_is_refused() -> None:
    model = from_jax(lambda params, batch: jnp.sum(batch), {}, normal(2, 4))
    with pytest.raises(ValueError, match="params: there are none, so nothing is trained"):
        TrainLoop(model, {}, normal(2, 4), optimizer=Sgd(0.1), precision="fp32.32")
