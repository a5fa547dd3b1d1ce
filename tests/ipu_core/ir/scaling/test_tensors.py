"""Scales of tensors: what is cast, the scales against plain NumPy, the history, overflows."""

from __future__ import annotations

import copy
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ipu_core import nn
from ipu_core.ir.block import Block
from ipu_core.ir.precision.precision import Precision
from ipu_core.ir.run.execute import execute
from ipu_core.ir.trace.tracing import trace
from ipu_core.ir.trace.values import scope
from ipu_core.ir.verify import verify
from ipu_core.train.loop import TrainLoop
from ipu_core.train.optim import Adam, Sgd
from ipu_core.train.step import step_block
from lowprec import float8_e4m3fn, float8_e5m2, float16, float32
from tests.ipu_core.ir.scaling.models import PARAMS, batch, current, loop, loss, products, value_of

E4M3, E5M2 = np.dtype(ml_dtypes.float8_e4m3fn), np.dtype(ml_dtypes.float8_e5m2)


def typed(spec: str) -> Block:
    return verify(Precision.parse(spec).apply(step_block(loss, Sgd(0.1), PARAMS, batch(0))))


def scaled_product(x: np.ndarray, w: np.ndarray, sx: float, sw: float) -> np.ndarray:
    """A product of operands cast to E4M3 with scales, in plain NumPy: one float32 sum in order, then a half."""

    def cast(a: np.ndarray, scale: float) -> np.ndarray:
        halves = np.clip(a.astype(np.float32) * np.float32(scale), -65504, 65504).astype(np.float16)
        return np.clip(halves.astype(np.float32), -448, 448).astype(E4M3).astype(np.float32)

    a, b = cast(x, sx), cast(w, sw)
    total = np.zeros((len(x), w.shape[1]), np.float32)
    for k in range(x.shape[1]):
        total = (total.astype(np.float64) + np.outer(a[:, k], b[k]).astype(np.float64)).astype(np.float32)
    factor = np.float32(1) / np.float32(sx) * (np.float32(1) / np.float32(sw))
    return np.clip(total * factor, -65504, 65504).astype(np.float16)


@settings(max_examples=30)
@given(st.integers(0, 2**32 - 1), st.integers(-20, 12), st.integers(-10, 10))
def test_a_product_with_current_scales_is_that_of_plain_numpy(seed: int, ex: int, ew: int) -> None:
    rng = np.random.default_rng(seed)
    x = (rng.normal(size=(5, 7)) * 2.0**ex).astype(np.float16)
    w = (rng.normal(size=(7, 3)) * 2.0**ew).astype(np.float16)
    block = verify(Precision.parse("fp8").apply(trace(lambda x, w: x @ w, x, w)))
    got = execute(block, x, w, key=0)
    np.testing.assert_array_equal(got, scaled_product(x, w, current(x), current(w)))


@pytest.mark.parametrize("family", ["loss", "norm", "softmax"])
def test_products_that_are_part_of_a_loss_or_a_norm_are_not_cast(family: str) -> None:
    def inside(x: Any, w: Any) -> Any:
        with scope((x, w), family=family):
            return x @ w

    x = np.ones((4, 4), np.float32)
    wide = Precision.parse("fp8/operands=float32/output=float32")
    assert len(wide.apply(trace(lambda x, w: x @ w, x, x)).equations) > 1
    (product,) = wide.apply(trace(inside, x, x)).equations
    assert (product.op, product.family) == ("dot", family)


def test_only_operands_of_products_are_cast() -> None:
    block = typed("fp8")
    operands = {e.role: [v.type.format for v in e.operands] for e in products(block)}
    assert operands["forward"] == [float8_e4m3fn, float8_e4m3fn]
    assert operands["grad_input"] == [float8_e5m2, float8_e4m3fn]
    assert operands["grad_weight"] == [float8_e4m3fn, float8_e5m2]
    eight = {e.output for e in block.equations if e.output.type.format in (float8_e4m3fn, float8_e5m2)}
    readers = {e.op for e in block.equations if eight & set(e.operands)}
    assert readers == {"dot", "transpose"}
    assert {e.output.type.format for e in block.equations if e.family == "elementwise" and e.role == "forward"} == {
        float16
    }
    assert {e.output.type.format for e in block.equations if e.role == "update"} == {float32}


def test_a_tensor_is_cast_once_for_all_three_products_of_a_layer() -> None:
    block = typed("fp8")
    casts = [e for e in block.equations if e.family == "scaled_cast"]
    assert len(casts) == 2 * 3  # weight, input and cotangent of each layer
    assert len({e.inputs[0] for e in casts}) == len(casts)
    assert len([e for e in block.equations if e.op == "absolute"]) == len(casts)
    assert len([e for e in block.equations if e.op == "reciprocal"]) == len(casts)


def test_products_in_a_format_that_was_asked_for_stay() -> None:
    def wide(x: Any, w: Any) -> Any:
        return nn.convert(x, "float32") @ nn.convert(w, "float32")

    x = np.ones((4, 4), np.float32)
    (product,) = products(Precision.parse("fp8").apply(trace(wide, x, x)))
    assert {v.type.format for v in product.operands} == {float32}


@pytest.mark.parametrize("spec", ["fp8", "mxfp8", "nvfp4", "fp8.16"])
def test_products_of_nothing_are_not_cast(spec: str) -> None:
    x = np.ones((3, 0), np.float32)
    block = verify(Precision.parse(spec).apply(trace(lambda x: x @ x.T, x)))
    np.testing.assert_array_equal(execute(block, x, key=0), np.zeros((3, 3), np.float16))


@settings(max_examples=40)
@given(st.floats(2.0**-80, 2.0**80, width=32), st.sampled_from(["fp8", "fp8/margin=3", "fp8/margin=-2"]))
def test_powers_of_two_are_the_ones_below(value: float, spec: str) -> None:
    x = np.full((1, 1), value, np.float32)
    spec += "/power_of_two=true/operands=float32"
    block = Precision.parse(spec).apply(trace(lambda x: x @ x, x))
    (cast,) = [e for e in block.equations if e.family == "scaled_cast"]
    scales = next(e for e in block.equations if e.output is cast.inputs[1])
    shown = value_of(block, scales.output, x)
    margin = Precision.parse(spec).scaling.margin
    ratio = np.float32(448 * 2.0**-margin) / np.float32(value)
    assert shown == 2.0 ** np.floor(np.log2(np.float64(ratio)))


@pytest.mark.parametrize("value", [0.0, np.inf, -np.inf, np.nan])
def test_a_tensor_without_a_largest_number_is_not_scaled(value: float) -> None:
    x, w = np.full((2, 3), value, np.float32), np.eye(3, dtype=np.float32)
    spec = "fp8/operands=float32/output=float32"
    block = Precision.parse(spec).apply(trace(lambda x, w: x @ w, x, w))
    (cast,) = [e for e in block.equations if e.family == "scaled_cast" and e.inputs[0] is block.inputs[0]]
    assert value_of(block, cast.inputs[1], x, w) == 1


@pytest.mark.parametrize("value", [1e-37, 1e-40, 2.0**-149])
def test_the_scale_of_a_tensor_of_tiny_values_is_the_largest_number_there_is(value: float) -> None:
    x, w = np.full((2, 3), value, np.float32), np.eye(3, dtype=np.float32)
    block = Precision.parse("fp8/operands=float32/output=float32").apply(trace(lambda x, w: x @ w, x, w))
    (cast,) = [e for e in block.equations if e.family == "scaled_cast" and e.inputs[0] is block.inputs[0]]
    assert value_of(block, cast.inputs[1], x, w) == np.finfo(np.float32).max


def amaxes(step: int, weights: Any) -> tuple[float, float]:
    """Of the first layer's input and weight, as halves."""
    return (float(np.abs(batch(step)[0].astype(np.float16)).max()),
            float(np.abs(weights[0]["weight"].astype(np.float16)).max()))  # fmt: skip


@pytest.mark.parametrize("algorithm", ["max", "most_recent"])
@pytest.mark.parametrize("length", [1, 3])
@pytest.mark.parametrize("micro_batches", [1, 4])
def test_delayed_scales_are_those_of_the_steps_before(algorithm: str, length: int, micro_batches: int) -> None:
    spec = f"fp8/delayed/amax_history_len={length}/amax_compute_algo={algorithm}/margin=1"
    made = loop(spec, micro_batches=micro_batches)
    seen: list[tuple[float, float]] = []
    scale = np.ones(2, np.float32)
    for step in range(9):
        np.testing.assert_array_equal(made.arrays()["scaling.scale"][:2], scale)
        seen = [amaxes(step, made.params), *seen][:length]
        made.train(batch(step))
        history = made.arrays()["scaling.amax_history"]
        assert history.shape == (length, 6)
        np.testing.assert_array_equal(history[: len(seen), :2], np.array(seen, np.float32))
        assert not history[len(seen) :].any()
        amax = np.max(seen, axis=0) if algorithm == "max" else np.array(seen[0])
        scale = np.float32(224) / amax.astype(np.float32)


def test_delayed_scales_become_the_current_ones_where_nothing_moves() -> None:
    """The first step is unscaled; the second has the amax of what that saw, the hidden layer's not yet the true one."""
    specs = ("fp8/unscaled", "fp8/delayed/amax_compute_algo=most_recent", "fp8")
    plain, delayed, now = (loop(spec, optimizer=Sgd(1e-30)) for spec in specs)
    first, second, third = (delayed.train(batch(0)) for _ in range(3))
    assert first == plain.train(batch(0))
    assert third == now.train(batch(0)) != first
    assert second != third


def test_saturation_and_underflow_are_what_scales_are_for() -> None:
    """A normal tensor of deviation 2^-12: unscaled E4M3 loses nearly all, a scale loses what lies 2^18 below amax."""
    rng = np.random.default_rng(5)
    x = (rng.normal(size=(256, 256)) * 2.0**-12).astype(np.float16)
    lost = {}
    for spec in ("fp8/unscaled", "fp8", "fp8/static/forward_scale=4096", "fp8/static/forward_scale=1048576"):
        block = Precision.parse(spec).apply(trace(lambda x: x @ x, x))
        (cast,) = [e for e in block.equations if e.output.type.format == float8_e4m3fn]
        values = np.asarray(value_of(block, cast.output, x), np.float32)
        lost[spec] = float(np.mean(values[x != 0] == 0)), float(np.mean(np.abs(values) == 448))
    assert lost["fp8/unscaled"][0] > 0.99  # below half the least subnormal, 2^-10, lie 4 deviations
    assert lost["fp8"][0] < 1e-4
    assert 1 <= round(lost["fp8"][1] * x.size) < 10
    # Of N(0, 1) a share of 2^-10 * 0.798 / 2 lies within half a subnormal of 0, and all within 448.
    assert lost["fp8/static/forward_scale=4096"] == pytest.approx((2**-10 * 0.798, 0), abs=2e-4)
    assert lost["fp8/static/forward_scale=1048576"][1] == pytest.approx(2 * 0.0457, abs=5e-3)  # 432 / 256 on


def test_training_follows_float32() -> None:
    losses = {}
    for spec in ("fp32.32", "fp8", "fp8/delayed/amax_history_len=8", "fp8/unscaled"):
        made = loop(spec, optimizer=Adam(1e-2))
        losses[spec] = made.run(lambda step: batch(step % 4), 60)[-8:].mean()
    assert abs(losses["fp8"] - losses["fp32.32"]) < 0.1
    assert abs(losses["fp8/delayed/amax_history_len=8"] - losses["fp32.32"]) < 0.1


@pytest.mark.parametrize("spec", ["fp8", "fp8/delayed/amax_history_len=4", "fp8/static/backward_scale=1024"])
@pytest.mark.parametrize("micro_batches", [1, 2])
def test_a_loss_scale_sees_no_overflow_where_scales_fill_the_format(spec: str, micro_batches: int) -> None:
    made = loop(spec, loss_scale=8.0, micro_batches=micro_batches)
    made.run(batch, 6)
    assert made.skipped == ()


def test_an_overflow_of_what_is_cast_is_seen_all_the_same() -> None:
    made = loop("fp8", loss_scale=2.0**22)
    made.run(batch, 2)
    assert made.skipped
    assert any(name.startswith("grad_input.convert.") for name in made.skipped[0].names)


def test_an_overflow_of_a_product_of_what_is_cast_is_seen_by_name() -> None:
    """The cotangent of the scores fits a half, and so do the gradients of the weights; what passes between does not."""

    def scores(params: Any, given: Any) -> Any:
        return nn.softmax_cross_entropy((given[0] @ params["a"]) @ params["b"], given[1])

    weights = {"a": np.full((12, 9), 2.0**-20, np.float32), "b": np.full((9, 4), 256.0, np.float32)}
    weights["b"][:, 0] *= 2
    x, labels = batch(0)[0] * np.float32(2.0**-20), np.ones(16, np.int32)
    settings: dict[str, Any] = {"optimizer": Sgd(0.05), "engine": "direct", "loss_scale": 2.0**16}
    made = TrainLoop(scores, weights, (x, labels), precision="fp8", **settings)
    made.train((x, labels))
    (skipped,) = made.skipped
    assert [name.rpartition(".")[0] for name in skipped.names] == ["b.grad_input.multiply"]


def test_a_checkpoint_holds_the_history(tmp_path: Any) -> None:
    made, other = (loop("fp8/delayed/amax_history_len=5") for _ in range(2))
    made.run(batch, 4)
    made.save(tmp_path / "half.npz")
    other.load(tmp_path / "half.npz")
    assert other.run(lambda step: batch(step + 4), 3).tobytes() == made.run(lambda step: batch(step + 4), 3).tobytes()


def test_a_program_without_state_takes_current_scales() -> None:
    x = batch(0)[0]
    now, delayed = (Precision.parse(spec).apply(trace(nn.mlp, PARAMS, x)) for spec in ("fp8", "fp8/delayed"))
    assert str(now) == str(delayed)


def test_cotangents_may_be_rounded_stochastically_alone() -> None:
    block = typed("nvfp4/backward_rounding=stochastic")
    stochastic = {e.role for e in block.equations if e.arithmetic.stochastic}
    assert stochastic == {"grad_input"}
    assert {e.op for e in block.equations if e.arithmetic.stochastic} == {"to_blocks"}
    assert Precision.parse("nvfp4/backward_rounding=stochastic").stochastic
    made = loop("nvfp4/backward_rounding=stochastic")
    first, other = (copy.deepcopy(made).train(batch(0)) for _ in range(2))
    assert first == other
