"""Keys of jax.random in a batch: every step draws JAX's own bits, none are frozen."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest

from ipu_core import Checkpoint, OtherStudy, Sgd, TrainLoop, blame, compare, diverge, from_jax, trace
from ipu_core.errors import NotCovered
from tests.ipu_core.frontends.jax_peer import jax

jnp = jax.numpy


def normal(*shape: int) -> Any:
    return (0.4 * np.random.default_rng(shape).normal(size=shape)).astype(np.float32)


X, Y = normal(8, 4), normal(8, 3)
PARAMS = {"a": normal(4, 16), "b": normal(16, 3)}


def dropout(params: Any, batch: Any) -> Any:
    """Masks, noise of another shape than the batch, and an order."""
    first, second, third = jax.random.split(batch["key"], 3)
    h = jax.nn.relu(batch["x"] @ params["a"])
    h = jnp.where(jax.random.bernoulli(first, 0.7, h.shape), h / 0.7, 0.0)
    z = h @ params["b"] + 0.1 * jax.random.normal(second, (3,))
    z = z[jax.random.permutation(third, len(z))]
    return jnp.mean((z - batch["y"]) ** 2)


def recurrent(params: Any, batch: Any) -> Any:
    """A key for each place of a scan."""

    def step(h: Any, row: Any) -> Any:
        x, key = row
        return jnp.tanh(x @ params["a"] + h) * jax.random.bernoulli(key, 0.8, h.shape), None

    h, _ = jax.lax.scan(step, jnp.zeros((2, 16)), (batch["x"].reshape(4, 2, 4), jax.random.split(batch["key"], 4)))
    return jnp.mean((h @ params["b"]) ** 2)


def in_a_loop(params: Any, batch: Any) -> Any:
    """The number of the round folded in, and noise that a branch is chosen by."""

    def one(i: Any, x: Any) -> Any:
        key = jax.random.fold_in(batch["key"], i)
        return jax.lax.cond(jax.random.uniform(key) > 0.5, jnp.sin, lambda y: y * y, x)

    return jnp.mean(jax.lax.fori_loop(0, 4, one, batch["x"] @ params["a"]) @ params["b"])


def a_key_for_each_row(params: Any, batch: Any) -> Any:
    keys = jax.random.split(batch["key"], 8)
    mask = jax.vmap(lambda key: jax.random.bernoulli(key, 0.5, (4,)))(keys)
    return jnp.mean((batch["x"] * mask) @ params["a"] @ params["b"])


def stepped(loss: Any, make: Any, precision: str = "fp32.32") -> list[float]:
    """Three losses of plain descent, each with a key of its own; beside those of JAX."""
    batches = [{"x": X, "y": Y, "key": make(i)} for i in range(3)]
    model = from_jax(loss, PARAMS, batches[0])
    loop = TrainLoop(model, model.params, batches[0], optimizer=Sgd(0.1), precision=precision)
    mine, params, step = list[float](), PARAMS, jax.jit(jax.value_and_grad(loss))
    for batch in batches:
        value, gradients = step(params, batch)
        mine.append(loop.train(batch))
        assert mine[-1] == pytest.approx(float(value), rel=1e-5 if precision == "fp32.32" else 0.05)
        params = jax.tree.map(lambda x, g: x - 0.1 * g, params, gradients)
    return mine


@pytest.mark.parametrize("make", [jax.random.key, jax.random.PRNGKey])
@pytest.mark.parametrize("loss", [dropout, recurrent, in_a_loop, a_key_for_each_row])
def test_every_step_draws_what_jax_draws(loss: Any, make: Any) -> None:
    assert len(set(stepped(loss, make))) == 3


def test_halves_read_the_same_masks() -> None:
    stepped(dropout, jax.random.key, "fp16.16/nearest")


def test_parts_of_a_batch_have_keys_of_their_own() -> None:
    whole = {"x": np.concatenate([X, 2 * X]), "y": np.concatenate([Y, Y]), "key": jax.random.key(7)}
    model = from_jax(dropout, PARAMS, {"x": X, "y": Y, "key": jax.random.key(0)})
    for own in ({"micro_batches": 2}, {"replicas": 2}):
        loop = TrainLoop(model, model.params, whole, optimizer=Sgd(0.1), precision="fp32.32", engine="direct", **own)
        parts = [
            dropout(PARAMS, {"x": x, "y": Y, "key": jax.random.fold_in(whole["key"], i)})
            for i, x in enumerate((X, 2 * X))
        ]
        assert loop.train(whole) == pytest.approx(float(sum(parts)) / 2, rel=1e-5)


def test_rows_of_keys_are_cut_as_the_batch_is() -> None:
    def loss(params: Any, batch: Any) -> Any:
        x, keys = batch
        mask = jax.vmap(lambda key: jax.random.bernoulli(key, 0.5, (4,)))(keys)
        return jnp.mean((x * mask) @ params["a"])

    keys = jax.random.split(jax.random.key(1), 16)
    model = from_jax(loss, PARAMS, (X, keys[:8]))
    batch = (np.concatenate([X, X]), keys)
    loop = TrainLoop(model, model.params, batch, optimizer=Sgd(0.1), precision="fp32.32", micro_batches=2)
    wanted = (loss(PARAMS, (X, keys[:8])) + loss(PARAMS, (X, keys[8:]))) / 2
    assert loop.train(batch) == pytest.approx(float(wanted), rel=1e-5)
    with pytest.raises(ValueError, match=r"1 of the batch: keys of shape \(5,\) for 2 parts that each read \(8,\)"):
        loop.train((batch[0], keys[:5]))


def test_a_run_with_keys_goes_on_from_its_checkpoint(tmp_path: Any) -> None:
    batches = [{"x": X, "y": Y, "key": jax.random.key(i)} for i in range(5)]
    model = from_jax(dropout, PARAMS, batches[0])

    def loop() -> TrainLoop:
        return TrainLoop(model, model.params, batches[0], optimizer=Sgd(0.1), precision="fp16.16/stochastic")

    whole, rest = loop(), loop()
    losses = whole.run(batches, 5, callbacks=[Checkpoint(tmp_path / "run.npz", every=2)])
    rest.load(tmp_path / "run.npz")  # of the second time, after 4 steps
    np.testing.assert_array_equal(rest.run(batches, 1), losses[4:])


def test_a_study_trains_with_keys(tmp_path: Any) -> None:
    """Its folder knows the keys of its batches: with others it is another study."""
    batches = [{"x": X, "y": Y, "key": jax.random.key(i)} for i in range(3)]
    model = from_jax(dropout, PARAMS, batches[0])
    own = {"steps": 3, "seeds": 1, "optimizer": Sgd(0.1), "engine": "direct", "folder": tmp_path / "study"}
    study = compare(model, model.params, batches, ["fp32.32"], **own)
    assert not study.failures
    batches[2]["key"] = jax.random.key(7)
    with pytest.raises(OtherStudy, match="batches"):
        compare(model, model.params, batches, ["fp32.32"], **own)


def test_runs_with_keys_are_diagnosed() -> None:
    batches = [{"x": X, "y": Y, "key": jax.random.key(i)} for i in range(2)]
    model = from_jax(dropout, PARAMS, batches[0])
    loops = [TrainLoop(model, model.params, batches[0], optimizer=Sgd(0.1), precision=precision, engine="direct")
             for precision in ("fp32.32", "fp16.16/nearest")]  # fmt: skip
    assert diverge(*loops, batches).step == 0
    assert blame(loops[1], batches, steps=2).loss == pytest.approx(float(dropout(PARAMS, batches[-1])), rel=0.2)


def test_copies_draw_the_same_and_pickles_are_refused() -> None:
    batch = {"x": X, "y": Y, "key": jax.random.key(0)}
    model = from_jax(dropout, PARAMS, batch)
    loop = TrainLoop(model, model.params, batch, optimizer=Sgd(0.1), precision="fp16.16/stochastic", engine="direct")
    loop.train(batch)
    copies = copy.copy(loop), copy.deepcopy(loop)
    assert [each.train(batch) for each in copies] == [loop.train(batch)] * 2
    with pytest.raises(TypeError, match=r"cannot be pickled, since JAX draws from them: TrainLoop\.save"):
        pickle.dumps(loop)


def test_what_is_no_key_is_refused() -> None:
    batch = {"x": X, "y": Y, "key": jax.random.key(0)}
    model = from_jax(dropout, PARAMS, batch)
    loop = TrainLoop(model, model.params, batch, optimizer=Sgd(0.1), precision="fp32.32")
    with pytest.raises(ValueError, match=r"key of the batch was captured as a key of jax\.random, and is int"):
        loop.train({**batch, "key": 3})
    with pytest.raises(ValueError, match="the batch holds x, y; it was captured with key, x, y"):
        loop.train({"x": X, "y": Y})
    with pytest.raises(TypeError, match=r"reads keys of its batch: give it model\.feeder\(batch\)"):
        trace(model, model.params, {"x": X, "y": Y})


def test_a_key_that_meets_a_value_of_the_step_is_refused() -> None:
    def loss(params: Any, batch: Any) -> Any:
        x, number, key = batch
        noise = jax.random.normal(jax.random.fold_in(key, number), x.shape)
        return jnp.mean((x + noise) @ params["a"])

    with pytest.raises(NotCovered, match=r"a key meets what the step computes: .*test_jax_keys\.py"):
        from_jax(loss, PARAMS, (X, np.int32(1), jax.random.key(0)))


@pytest.mark.parametrize("cut", [{"micro_batches": 2}, {"replicas": 2}])
def test_a_function_captured_for_the_whole_batch_is_not_cut(cut: Any) -> None:
    batch = {"x": X, "y": Y, "key": jax.random.key(0)}
    model = from_jax(dropout, PARAMS, batch)
    why = r"captured for arrays of \(\(8, 4\), \(8, 3\)\), not \(\(4, 4\), \(4, 3\)\): .* those of one part"
    with pytest.raises(ValueError, match=why):
        TrainLoop(model, PARAMS, batch, optimizer=Sgd(0.1), precision="fp32.32", engine="direct", **cut)


@pytest.mark.parametrize("make", [jax.random.key, jax.random.PRNGKey])
def test_a_key_of_the_other_kind_is_told(make: Any) -> None:
    made, other = make(0), jax.random.PRNGKey(0) if make is jax.random.key else jax.random.key(0)
    model = from_jax(dropout, PARAMS, {"x": X, "y": Y, "key": made})
    why = f"key of the batch was captured as a jax.random.{make.__name__} and is a jax.random"
    with pytest.raises(ValueError, match=why) as error:
        model.feeder({"x": X, "y": Y, "key": other})
    cure = getattr(jax.random, str(error.value).split()[-5].removeprefix("jax.random."))
    fed = [model.feeder({"x": X, "y": Y, "key": key})["draws"] for key in (made, cure(other))]
    for a, b in zip(*fed, strict=True):
        np.testing.assert_array_equal(a, b)
