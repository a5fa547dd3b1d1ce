"""Dropout: its law, one mask forward and backward, a new one for every call, step and micro-batch, same bits."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ipu_core import nn
from ipu_core.chip.target import Target
from ipu_core.compile.machine import Machine
from ipu_core.ir.block import Block, Var
from ipu_core.ir.bodies import closed, equations_of, with_body
from ipu_core.ir.passes.autodiff import value_and_grad
from ipu_core.ir.regions import Loop, iteration_key
from ipu_core.ir.run.evaluate import evaluate
from ipu_core.ir.run.execute import Executable, execute
from ipu_core.ir.trace.tracing import trace
from ipu_core.train.loop import TrainLoop
from ipu_core.train.optim import Sgd
from ipu_core.train.step import step_block
from lowprec import Key, random_bits

X = np.linspace(1, 2, 30, dtype=np.float32).reshape(5, 6)


def dropped_twice(x: Any) -> Any:
    return nn.dropout(x, 0.5) + nn.dropout(x, 0.5) * 4.0


def masks(block: Any) -> list[int]:
    """The numbers that the masks of a Block are keyed by."""
    return [e.params["operation"] for e in equations_of(block) if e.op == "dropout_mask"]


def test_the_mask_is_made_of_the_bits_the_contract_names() -> None:
    block = trace(lambda x: nn.dropout(x, 0.25), X)
    (number,) = masks(block)
    got = execute(block, X, key=7)
    kept = random_bits(Key(7).fold_in(number), X.shape, 16, use="dropout") >= 2**14
    scaled = X * np.float32(1 / 0.75)
    np.testing.assert_array_equal(got, np.where(kept, scaled, 0))
    assert 0 < kept.sum() < X.size


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9, 1 / 3])
def test_the_share_and_the_mean_are_as_asked(rate: float) -> None:
    ones = np.ones((400, 500), np.float32)
    y = execute(trace(lambda x: nn.dropout(x, rate), ones), ones, key=3)
    spread = np.sqrt(rate * (1 - rate) / y.size)
    assert abs((y == 0).mean() - rate) < 4 * spread
    assert abs(y.mean(dtype=np.float64) - 1) < 4 * spread / (1 - rate)
    assert len(np.unique(y)) == 2


def test_a_rate_of_zero_keeps_everything_and_the_largest_keeps_something() -> None:
    assert execute(trace(lambda x: nn.dropout(x, 0.0), X), X, key=0).tobytes() == X.tobytes()
    ones = np.ones(2**20, np.float32)
    y = execute(trace(lambda x: nn.dropout(x, 1 - 2**-30), ones), ones, key=0)
    assert set(np.unique(y)) == {0, 2**16}


def test_every_call_step_and_run_draws_anew() -> None:
    block = trace(dropped_twice, X)
    assert len(set(masks(block))) == 2
    first, again, other = (execute(block, X, key=key) for key in (1, 1, 2))
    assert first.tobytes() == again.tobytes() != other.tobytes()
    assert len(np.unique(np.round(first / X, 3))) == 4  # 0, 2, 8 and 10 times x


@pytest.mark.parametrize("tiles", [1, 7, 1472])
def test_both_engines_and_declared_arithmetic_agree(tiles: int) -> None:
    for function in (dropped_twice, lambda x: nn.dropout(x.T, 0.3), lambda x: nn.dropout(x[1:, ::2], 0.7)):
        block = trace(function, X)
        machine = Machine.build(block, Target("gc200", tiles=tiles))
        for key in (0, 5):
            (wanted,) = Executable(block).run([X], key)
            assert machine.run([X], key)[0].tobytes() == wanted.tobytes()
            assert evaluate(block, X, arithmetic="declared", key=key).tobytes() == wanted.tobytes()
            np.testing.assert_allclose(evaluate(block, X, key=key), wanted, rtol=1e-6)


def test_the_gradient_uses_the_mask_of_the_value() -> None:
    block = trace(value_and_grad(lambda x: (nn.dropout(x, 0.4) * X).sum()), X)
    assert len(masks(block)) == 1
    value, gradient = execute(block, X, key=4)
    (number,) = masks(block)
    kept = random_bits(Key(4).fold_in(number), X.shape, 16, use="dropout") >= round(0.4 * 2**16)
    np.testing.assert_array_equal(gradient != 0, kept)
    np.testing.assert_allclose(value, (X.astype(np.float64) * gradient).sum(), rtol=1e-5)


def loss(params: Any, batch: Any) -> Any:
    x, y = batch
    hidden = nn.dropout(nn.relu(x @ params["w"]), 0.3)
    return nn.softmax_cross_entropy(hidden @ params["v"], y)


def parameters() -> dict[str, Any]:
    return {"w": nn.he_normal(1, (20, 32)), "v": nn.lecun_normal(2, (32, 5))}


def batches(step: int) -> tuple[Any, Any]:
    x = np.random.default_rng(step).normal(size=(16, 20)).astype(np.float32)
    return x, np.argmax(x[:, :5], axis=1).astype(np.int32)


def alone(block: Block) -> Block:
    """The step of one micro-batch with the equations of several."""
    loop, *after = block.equations
    assert isinstance(loop.region, Loop)
    fed = dict(loop.region.fed)
    one = replace(loop.region, count=1, fed=tuple((part, Var(part.name, part.type)) for part in fed.values()))
    parts = dict(one.fed)
    body = [replace(e, inputs=tuple(parts.get(x, x) for x in e.inputs)) for e in one.body.equations]  # type: ignore[call-overload]
    inputs = tuple(fed.get(var, var) for var in block.inputs)
    return closed(replace(block, inputs=inputs, equations=(with_body(replace(loop, region=one), body), *after)))


def test_micro_batches_have_masks_of_their_own() -> None:
    """One equation draws them, from the key of each iteration."""
    ones = np.ones((16, 20), np.float32)
    seen: list[bytes] = []

    def observed(params: Any, x: Any) -> Any:
        return nn.mean(nn.dropout(x, 0.5) * params["w"])

    block = step_block(observed, Sgd(1.0), {"w": np.zeros(20, np.float32)}, ones, micro_batches=4)
    assert len(masks(block)) == 1
    for number in range(4):
        one = alone(block)
        out = evaluate(one, {"params": {"w": np.zeros(20)}, "optimizer": {}}, ones[:4], 1.0,
                       key=iteration_key(Key(3), number))  # fmt: skip
        seen.append(out[0]["params"]["w"].tobytes())
    assert len(set(seen)) == 4
    whole = evaluate(block, {"params": {"w": np.zeros(20)}, "optimizer": {}}, ones, 1.0, key=3)
    np.testing.assert_allclose(whole[0]["params"]["w"], np.sum([np.frombuffer(part) for part in seen], axis=0))


@pytest.mark.parametrize("precision", ["fp32.32", "fp16.16/stochastic"])
def test_a_training_run_is_the_same_on_both_engines_and_learns(precision: str) -> None:
    runs = [
        TrainLoop(loss, parameters(), batches(0), optimizer=Sgd(0.2), precision=precision, engine=engine, key=3,
                  target=Target("gc200", tiles=24))
        for engine in ("tiles", "direct")
    ]  # fmt: skip
    losses = [run.run(batches, 150) for run in runs]
    assert losses[0].tobytes() == losses[1].tobytes()
    for name, array in runs[0].arrays().items():
        assert array.tobytes() == runs[1].arrays()[name].tobytes()
    assert losses[0][-20:].mean() < 0.6 * losses[0][:20].mean()


def test_arrays_need_a_key_and_traced_values_take_the_steps() -> None:
    y = nn.dropout(X, 0.5, key=9)
    assert y.tobytes() == nn.dropout(X, 0.5, key=Key(9)).tobytes() != nn.dropout(X, 0.5, key=8).tobytes()
    assert y.dtype == np.float32
    assert set(np.unique(np.round(y / X, 3))) == {0, 2}
    assert nn.dropout(X.astype(np.float16), 0.5, key=9).dtype == np.float16
    with pytest.raises(ValueError, match="takes its bits from the step's key"):
        nn.dropout(X, 0.5)
    with pytest.raises(ValueError, match="takes its bits from the step's key"):
        trace(lambda x: nn.dropout(x, 0.5, key=1), X)
    for rate in (-0.1, 1.0, float("nan")):
        with pytest.raises(ValueError, match=r"must be in \[0, 1\)"):
            nn.dropout(X, rate, key=1)
    for unfit in ("0.5", None, X):
        with pytest.raises(TypeError, match=r"must be a number in \[0, 1\), not"):
            nn.dropout(X, unfit, key=1)


def test_a_mask_without_a_key_is_refused() -> None:
    block = trace(dropped_twice, X)
    for arithmetic in ("exact", "declared"):
        with pytest.raises(ValueError, match="draws random masks: give a key"):
            evaluate(block, X, arithmetic=arithmetic)
    with pytest.raises(ValueError, match="give the engine a key"):
        Machine.build(block, Target("gc200", tiles=4)).run([X], None)


def test_the_cost_is_the_published_formula() -> None:
    target = Target("gc200", tiles=1)
    steps = Machine.build(trace(lambda x: nn.dropout(x, 0.5), X), target).profile.steps
    (mask,) = (step for step in steps if "dropout_mask" in step.name)
    assert mask.cycles == 2 * (30 // 2) + 24 * 6 + 6 + target.sync_cycles
