"""Small architectures of JAX, captured: three steps of AdamW, read from optax, have JAX's own losses to 1e-6."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ipu_core import TrainLoop, from_jax, from_optax
from ipu_core.ir.pytree import flatten
from tests.ipu_core.frontends.jax_peer import compiled, jax, labelled, normal

optax = pytest.importorskip("optax")
jnp, lax = jax.numpy, jax.lax
Made = tuple[Any, Any, list[Any]]


def nll(logits: Any, labels: Any) -> Any:
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def equinox_mlp() -> Made:
    eqx = pytest.importorskip("equinox")
    model = eqx.nn.MLP(6, 5, 16, 2, activation=jax.nn.silu, key=jax.random.key(0))
    return lambda model, batch: nll(jax.vmap(model)(batch[0]), batch[1]), model, labelled(8, 6)


def equinox_gru() -> Made:
    eqx = pytest.importorskip("equinox")

    class Net(eqx.Module):  # type: ignore[misc, name-defined]
        cell: Any
        out: Any

        def __call__(self, x: Any) -> Any:
            h, _ = lax.scan(lambda h, row: (self.cell(row, h), None), jnp.zeros(7), x)
            return self.out(h)

    first, second = jax.random.split(jax.random.key(1))
    model = Net(eqx.nn.GRUCell(3, 7, key=first), eqx.nn.Linear(7, 5, key=second))
    return lambda model, batch: nll(jax.vmap(model)(batch[0]), batch[1]), model, labelled(4, 6, 3)


def nnx_cnn() -> Made:
    """Convolutions, group norm and dropout whose key is the batch's."""
    nnx = pytest.importorskip("flax.nnx")

    class Net(nnx.Module):  # type: ignore[misc, name-defined]
        def __init__(self, rngs: Any) -> None:
            self.first = nnx.Conv(2, 8, (3, 3), rngs=rngs)
            self.norm = nnx.GroupNorm(8, num_groups=2, rngs=rngs)
            self.second = nnx.Conv(8, 8, (3, 3), strides=2, rngs=rngs)
            self.out = nnx.Linear(32, 5, rngs=rngs)

        def __call__(self, x: Any, key: Any) -> Any:
            x = nnx.gelu(self.norm(self.first(x)))
            x = nnx.avg_pool(nnx.gelu(self.second(x)), (2, 2), strides=(2, 2)).reshape(x.shape[0], -1)
            return self.out(jnp.where(jax.random.bernoulli(key, 0.9, x.shape), x / 0.9, 0.0))

    graph, params = nnx.split(Net(nnx.Rngs(0)))
    batches = [(*each, jax.random.key(n)) for n, each in enumerate(labelled(4, 8, 8, 2))]
    return lambda params, b: nll(nnx.merge(graph, params)(b[0], b[2]), b[1]), params, batches


def transformer() -> Made:
    """Pre-norm blocks scanned over stacked weights, a causal mask, tied embeddings."""

    def normed(x: Any, scale: Any) -> Any:
        return x * lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5) * scale

    def block(x: Any, own: Any) -> Any:
        q, k, v = jnp.split(normed(x, own["n1"]) @ own["qkv"], 3, -1)
        q, k, v = (a.reshape(*a.shape[:2], 2, -1).transpose(0, 2, 1, 3) for a in (q, k, v))
        scores = jnp.einsum("bhqd,bhkd->bhqk", q, k) / 2
        weights = jax.nn.softmax(jnp.where(jnp.tril(jnp.ones(scores.shape[-2:])) > 0, scores, -1e9))
        x = x + jnp.einsum("bhqk,bhkd->bhqd", weights, v).transpose(0, 2, 1, 3).reshape(x.shape) @ own["out"]
        return x + jax.nn.gelu(normed(x, own["n2"]) @ own["up"]) @ own["down"], None

    def loss(params: Any, batch: Any) -> Any:
        x = params["embedding"][batch[:, :-1]] + params["places"]
        x, _ = lax.scan(block, x, params["blocks"])
        return nll(x @ params["embedding"].T, batch[:, 1:])

    ones = np.ones((3, 8), np.float32)
    blocks = {"n1": ones, "n2": ones, "qkv": normal(3, 8, 24), "out": normal(3, 8, 8), "up": normal(3, 8, 16),
              "down": normal(3, 16, 8)}  # fmt: skip
    params = {"embedding": normal(11, 8), "places": normal(6, 8), "blocks": blocks}
    return loss, params, list(np.random.default_rng(4).integers(0, 11, (3, 4, 7)).astype(np.int32))


def graph_net() -> Made:
    """Messages along edges, sums by node, the largest by graph; edges that pad have numbers that JAX drops."""
    nodes, edges, graphs = 12, 30, 3

    def loss(params: Any, batch: Any) -> Any:
        x = batch["nodes"] @ params["in"]
        for own in params["rounds"]:
            messages = jnp.tanh(jnp.concatenate([x[batch["from"]], batch["edges"]], 1) @ own["message"])
            x = x + jnp.tanh(jax.ops.segment_sum(messages, batch["to"], nodes) @ own["update"])
        pooled = jax.ops.segment_max(x, batch["graph"], graphs) + jnp.zeros((graphs, 8)).at[batch["graph"]].add(x)
        return jnp.mean((pooled @ params["out"] - batch["target"]) ** 2)

    def batch(seed: int) -> Any:
        r = np.random.default_rng(seed)
        to = np.where(np.arange(edges) < 25, r.integers(0, nodes, edges), nodes)
        return {"nodes": normal(nodes, 4, seed=seed), "edges": normal(edges, 2, seed=seed), "to": to.astype(np.int32),
                "from": r.integers(0, nodes, edges).astype(np.int32), "target": normal(graphs, 2, seed=seed),
                "graph": np.repeat(np.arange(graphs), nodes // graphs).astype(np.int32)}  # fmt: skip

    params = {"in": normal(4, 8), "rounds": [{"message": normal(10, 8, seed=i), "update": normal(8, 8, seed=i)}
                                             for i in range(2)], "out": normal(8, 2)}  # fmt: skip
    return loss, params, [batch(seed) for seed in range(3)]


def mixture() -> Made:
    """The two best of four experts by a gate, with the balance of their loads."""

    def loss(params: Any, batch: Any) -> Any:
        x, y = batch
        scores = jax.nn.softmax(x @ params["gate"])
        weights, chosen = lax.top_k(scores, 2)
        weights = weights / weights.sum(-1, keepdims=True)
        shares = (jax.nn.one_hot(chosen, 4) * weights[..., None]).sum(1)
        h = jax.nn.silu(jnp.einsum("nd,edh->neh", x, params["up"]))
        made = jnp.einsum("ne,neh,eho->no", shares, h, params["down"])
        load = jnp.zeros(4).at[chosen[:, 0]].add(1.0) / len(x)
        return nll(made, y) + 0.01 * 4 * (lax.stop_gradient(load) * scores.mean(0)).sum()

    params = {"gate": normal(6, 4), "up": normal(4, 6, 8), "down": normal(4, 8, 5)}
    return loss, params, labelled(16, 6)


def unet() -> Made:
    """Two halves joined by what skips the middle; up by a transposed convolution."""
    dims = ("NHWC", "HWIO", "NHWC")

    def conv(x: Any, w: Any, stride: int = 1) -> Any:
        return lax.conv_general_dilated(x, w, (stride, stride), "SAME", dimension_numbers=dims)

    def loss(params: Any, batch: Any) -> Any:
        x, y = batch
        first = jax.nn.silu(conv(x, params["in"]))
        low = jax.nn.silu(conv(jax.nn.silu(conv(first, params["down"], 2)), params["middle"]))
        up = jax.nn.silu(lax.conv_transpose(low, params["up"], (2, 2), "SAME", dimension_numbers=dims))
        wide = jax.image.resize(low, first.shape, "nearest")
        return jnp.mean((conv(jnp.concatenate([first, up + wide], -1), params["out"]) - y) ** 2)

    params = {"in": normal(3, 3, 1, 4), "down": normal(3, 3, 4, 4), "middle": normal(3, 3, 4, 4),
              "up": normal(2, 2, 4, 4), "out": normal(1, 1, 8, 1)}  # fmt: skip
    return loss, params, [(normal(2, 8, 8, 1, seed=i), normal(2, 8, 8, 1, seed=9 + i)) for i in range(3)]


def neural_ode() -> Made:
    """A field followed by Runge and Kutta's method of fourth order, in a loop of 20 steps."""

    def loss(params: Any, batch: Any) -> Any:
        x, y = batch
        step = 1 / 20

        def field(x: Any) -> Any:
            return jnp.tanh(x @ params["in"] + params["b"]) @ params["out"]

        def one(i: Any, x: Any) -> Any:
            a = field(x)
            b = field(x + step / 2 * a)
            c = field(x + step / 2 * b)
            return x + step / 6 * (a + 2 * b + 2 * c + field(x + step * c))

        return jnp.mean((lax.fori_loop(0, 20, one, x) - y) ** 2)

    params = {"in": normal(2, 16), "b": normal(16), "out": normal(16, 2)}
    return loss, params, [(normal(8, 2, seed=i, scale=1), normal(8, 2, seed=9 + i, scale=1)) for i in range(3)]


def flow() -> Made:
    """Couplings of halves that change places: the density of the data under a normal that is bent."""

    def loss(params: Any, batch: Any) -> Any:
        x, volume = batch, 0.0
        for number, own in enumerate(params):
            a, b = jnp.split(x[:, ::-1] if number % 2 else x, 2, -1)
            scale, shift = jnp.split(jnp.tanh(a @ own["in"]) @ own["out"] + own["b"], 2, -1)
            scale = jnp.tanh(scale)
            x, volume = jnp.concatenate([a, b * jnp.exp(scale) + shift], -1), volume + scale.sum(-1)
        return jnp.mean(0.5 * (x * x).sum(-1) + 2 * jnp.log(2 * jnp.pi) - volume)

    params = [{"in": normal(2, 8, seed=i), "out": normal(8, 4, seed=i), "b": normal(4, seed=i)} for i in range(3)]
    return loss, params, [normal(16, 4, seed=i, scale=1.5) for i in range(3)]


def vae() -> Made:
    """Noise of the code from a key of the batch."""

    def loss(params: Any, batch: Any) -> Any:
        x, key = batch
        mean, spread = jnp.split(jnp.tanh(x @ params["encode"]) @ params["code"], 2, -1)
        z = mean + jnp.exp(spread / 2) * jax.random.normal(key, mean.shape)
        logits = jnp.tanh(z @ params["decode"]) @ params["out"]
        seen = optax.sigmoid_binary_cross_entropy(logits, (x > 0).astype(jnp.float32)).sum(-1)
        return jnp.mean(seen - 0.5 * (1 + spread - mean**2 - jnp.exp(spread)).sum(-1))

    params = {"encode": normal(12, 16), "code": normal(16, 6), "decode": normal(3, 16), "out": normal(16, 12)}
    return loss, params, [(normal(8, 12, seed=i, scale=1), jax.random.key(i)) for i in range(3)]


def diffusion() -> Made:
    """Noise of a level that a key draws for each image, found again by a net that is told the level."""

    def loss(params: Any, batch: Any) -> Any:
        x, key = batch
        first, second = jax.random.split(key)
        level = jax.random.uniform(first, (x.shape[0], 1), minval=0.05, maxval=0.95)
        noise = jax.random.normal(second, x.shape)
        mixed = jnp.sqrt(1 - level) * x + jnp.sqrt(level) * noise
        told = jnp.concatenate([mixed, jnp.sin(level * jnp.arange(1, 5)), jnp.cos(level * jnp.arange(1, 5))], -1)
        return jnp.mean((jax.nn.silu(told @ params["in"] + params["b"]) @ params["out"] - noise) ** 2)

    params = {"in": normal(14, 32), "b": normal(32), "out": normal(32, 6)}
    return loss, params, [(normal(16, 6, seed=i, scale=1), jax.random.key(i)) for i in range(3)]


MODELS = {f.__name__: f for f in (equinox_mlp, equinox_gru, nnx_cnn, transformer, graph_net, mixture, unet, neural_ode,
                                  flow, vae, diffusion)}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_three_steps_of_adamw_are_those_of_jax(name: str) -> None:
    loss, params, batches = MODELS[name]()
    decay = optax.chain(optax.clip_by_global_norm(5.0), optax.adamw(1e-3, weight_decay=0.01))
    model = from_jax(loss, params, batches[0])
    loop = TrainLoop(model, model.params, batches[0], optimizer=from_optax(decay, model.params), precision="fp32.32",
                     engine="direct")  # fmt: skip
    held = jax.tree.map(lambda x: x if hasattr(x, "shape") else None, params)  # what an optimizer of optax takes

    def own(arrays: Any, batch: Any) -> Any:
        whole = jax.tree.map(lambda a, x: x if a is None else a, arrays, params, is_leaf=lambda x: x is None)
        return loss(whole, batch)

    @compiled
    def step(arrays: Any, state: Any, batch: Any) -> Any:
        value, gradients = jax.value_and_grad(own)(arrays, batch)
        updates, state = decay.update(gradients, state, arrays)
        return value, optax.apply_updates(arrays, updates), state

    state = decay.init(held)
    for batch in batches:
        value, held, state = step(held, state, batch)
        assert loop.train(batch) == pytest.approx(float(value), rel=1e-6, abs=1e-6)
    assert type(loop.params) is type(params)
    for mine, theirs in zip(flatten(loop.params)[0], jax.tree.leaves(held), strict=True):
        far = 1e-6 * max(1.0, float(np.abs(theirs).max()))
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=far)


@pytest.mark.parametrize("name", ["equinox_mlp", "graph_net", "mixture", "neural_ode", "vae"])
def test_halves_train_with_the_same_bits_on_both_engines(name: str) -> None:
    loss, params, batches = MODELS[name]()
    model = from_jax(loss, params, batches[0])
    tiles, direct = (
        TrainLoop(model, model.params, batches[0], optimizer=from_optax(optax.adamw(3e-3), model.params), engine=engine,
                  precision="fp16.16/stochastic")
        for engine in ("tiles", "direct")
    )  # fmt: skip
    losses = [direct.train(batches[i % 3]) for i in range(20)]
    assert [tiles.train(batches[i % 3]) for i in range(2)] == losses[:2]
    assert np.mean(losses[-3:]) < np.mean(losses[:3])
