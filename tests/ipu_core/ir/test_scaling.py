"""Scaled operands of products: what is cast, the scales against plain NumPy, the history, names and refusals."""

from __future__ import annotations

import copy
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lowprec
from ipu_core import nn
from ipu_core.compile.planning import choose_accumulations, plan
from ipu_core.errors import UnsupportedByTarget
from ipu_core.ir.autodiff import value_and_grad
from ipu_core.ir.block import Block, Equation
from ipu_core.ir.evaluate import evaluate
from ipu_core.ir.execute import execute
from ipu_core.ir.kernels import order_of
from ipu_core.ir.precision import Precision
from ipu_core.ir.pytree import flatten
from ipu_core.ir.tracing import trace
from ipu_core.ir.verify import verify
from ipu_core.target import Target
from ipu_core.train.loop import TrainLoop
from ipu_core.train.optim import Adam, Sgd
from ipu_core.train.step import step_block
from lowprec import Accumulation, float8_e4m3fn, float8_e4m3fnuz, float8_e5m2, float16, float32

E4M3, E5M2 = np.dtype(ml_dtypes.float8_e4m3fn), np.dtype(ml_dtypes.float8_e5m2)
SIZES = (12, 9, 4)
PARAMS = nn.mlp_parameters(3, SIZES)


def batch(step: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(step)
    return rng.normal(size=(16, 12)).astype(np.float32) * 2.0 ** (step % 5), rng.integers(0, 4, 16).astype(np.int32)


def loss(params: Any, given: Any) -> Any:
    return nn.softmax_cross_entropy(nn.mlp(params, given[0], nn.relu), given[1])


def typed(spec: str) -> Block:
    return verify(Precision.parse(spec).apply(step_block(loss, Sgd(0.1), PARAMS, batch(0))))


def products(block: Block) -> list[Equation]:
    return [e for e in block.equations if e.op == "dot"]


def loop(spec: str, **changes: Any) -> TrainLoop:
    return TrainLoop(loss, PARAMS, batch(0), precision=spec, **{"optimizer": Sgd(0.05), "engine": "direct"} | changes)


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


def current(a: np.ndarray) -> np.float32:
    return np.float32(448) / np.float32(np.abs(a.astype(np.float16)).max())


@settings(max_examples=30)
@given(st.integers(0, 2**32 - 1), st.integers(-20, 12), st.integers(-10, 10))
def test_a_product_with_current_scales_is_that_of_plain_numpy(seed: int, ex: int, ew: int) -> None:
    rng = np.random.default_rng(seed)
    x = (rng.normal(size=(5, 7)) * 2.0**ex).astype(np.float16)
    w = (rng.normal(size=(7, 3)) * 2.0**ew).astype(np.float16)
    block = verify(Precision.parse("fp8").apply(trace(lambda x, w: x @ w, x, w)))
    got = execute(block, x, w, key=0)
    np.testing.assert_array_equal(got, scaled_product(x, w, current(x), current(w)))


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


def value_of(block: Block, var: Any, *arguments: Any) -> np.ndarray:
    """A value on the way, as declared."""
    shown = Block(block.inputs, (var,), block.equations, block.constants)
    (result,) = evaluate(shown, *arguments, arithmetic="declared")
    return np.asarray(result)


@pytest.mark.parametrize("value, scale", [(2.0**60, 2.0**-31), (2.0**-60, 2.0**32), (240.0, 1.0), (241.0, 0.5)])
def test_a_c600s_scales_have_six_bits(value: float, scale: float) -> None:
    x = np.full((2, 2), value, np.float32)
    block = Precision.parse("fp8.16/operands=float32/partials=float32/output=float32").apply(trace(lambda x: x @ x, x))
    (cast,) = [e for e in block.equations if e.family == "scaled_cast"]
    assert value_of(block, cast.inputs[1], x) == scale


@pytest.mark.parametrize("value", [0.0, np.inf, -np.inf, np.nan])
def test_a_tensor_without_a_largest_number_is_not_scaled(value: float) -> None:
    x, w = np.full((2, 3), value, np.float32), np.eye(3, dtype=np.float32)
    spec = "fp8/operands=float32/output=float32"
    block = Precision.parse(spec).apply(trace(lambda x, w: x @ w, x, w))
    (cast,) = [e for e in block.equations if e.family == "scaled_cast" and e.inputs[0] is block.inputs[0]]
    assert value_of(block, cast.inputs[1], x, w) == 1


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
    assert any(name.startswith("grad_input convert") for name in made.skipped[0].names)


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
    assert [name.split()[:3] for name in skipped.names] == [["grad_input", "b", "multiply"]]


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


def in_blocks(a: np.ndarray, fmt: str, axis: int) -> np.ndarray:
    """A tensor's values in a block format; NVFP4's have a tensor scale in front, in float32."""
    values = a.astype(np.float32)
    if fmt == "nvfp4":
        values = values * (np.float32(6 * 448) / np.abs(values).max())
    return lowprec.to_blocks(values, fmt, axis, scale_rule=None if fmt == "nvfp4" else "rceil").dequantize()


def factor(fmt: str, *tensors: np.ndarray) -> np.float32:
    """What takes the tensor scales out of a product."""
    if fmt != "nvfp4":
        return np.float32(1)
    a, b = (np.float32(1) / (np.float32(6 * 448) / np.abs(x.astype(np.float32)).max()) for x in tensors)
    return a * b


@pytest.mark.parametrize("spec, fmt", [("mxfp8", "mxfp8_e4m3"), ("nvfp4", "nvfp4")])
def test_blocks_lie_along_the_summed_axis_in_all_three_products(spec: str, fmt: str) -> None:
    rng = np.random.default_rng(7)
    x, w, g = (
        (rng.normal(size=shape) * np.exp2(rng.integers(-8, 8, shape))).astype(np.float16).astype(np.float32)
        for shape in ((70, 50), (50, 40), (70, 40))
    )
    ideal = trace(lambda params, g: ((params[1] @ params[0]) * g).sum(), [w, x], g)
    block = verify(Precision.parse(f"{spec}/output=float32").apply(value_and_grad(ideal)))
    _, (dw, dx) = execute(block, [w, x], g, key=0)
    g = g.astype(np.float16)

    def of(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return lowprec.matmul(in_blocks(a, fmt, 1), in_blocks(b, fmt, 0)) * factor(fmt, a, b)

    np.testing.assert_array_equal(dx, of(g, w.T))
    np.testing.assert_array_equal(dw, of(x.T, g))
    (forward,) = [e for e in block.equations if e.op == "dot" and e.role == "forward"]
    casts = {e.output: e.params["axis"] for e in block.equations if e.op == "to_blocks"}
    assert [casts[v] for v in forward.operands] == [1, 0]
    wide = value_of(block, forward.output, [w, x], g)
    np.testing.assert_array_equal(wide, lowprec.matmul(in_blocks(x, fmt, 1), in_blocks(w, fmt, 0)))


@pytest.mark.parametrize("spec", ["fp8", "mxfp8", "nvfp4"])
def test_convolutions_sum_blocks_of_channels_and_for_the_weights_of_images(spec: str) -> None:
    rng = np.random.default_rng(8)
    x = rng.normal(size=(34, 5, 5, 3)).astype(np.float32)
    w = rng.normal(size=(3, 3, 3, 8)).astype(np.float32)
    ideal = value_and_grad(trace(lambda p: (nn.conv2d(p[1], p[0], padding=1) ** 2).mean(), [w, x]))
    block = verify(Precision.parse(spec).apply(ideal))
    casts = {e.output: e.params["axis"] for e in block.equations if e.op == "to_blocks"}
    axes = {e.op: [casts.get(v) for v in e.operands] for e in block.equations if e.op.startswith("conv2d")}
    blocks = {"conv2d": [3, 2], "conv2d_input_gradient": [3, 3], "conv2d_weight_gradient": [0, 0]}
    assert axes == ({op: [None, None] for op in blocks} if spec == "fp8" else blocks)
    got, wanted = execute(block, [w, x], key=0), evaluate(block, [w, x], arithmetic="declared")
    assert all(a.tobytes() == b.tobytes() for a, b in zip(flatten(got)[0], flatten(wanted)[0], strict=True))
    exact = flatten(evaluate(block, [w, x]))[0]
    for a, b in zip(flatten(got)[0], exact, strict=True):
        assert np.linalg.norm(a - b) < (0.25 if spec == "nvfp4" else 0.1) * np.linalg.norm(b)


def test_blocks_whose_largest_saturate_shrink_gradients() -> None:
    """One number in a block counts, as in the cotangent of a softmax: by OCP's rule 1.875 becomes 1.75."""
    x = np.zeros((64, 64), np.float32)
    np.fill_diagonal(x, 1.875)
    for spec, factor in (("mxfp8", 1.0), ("mxfp8/scale_rule=floor", 1.75 / 1.875)):
        block = Precision.parse(spec).apply(trace(lambda x, w: x @ w, x, np.eye(64, dtype=np.float32)))
        np.testing.assert_array_equal(execute(block, x, np.eye(64, dtype=np.float32), key=0), x * np.float32(factor))


def test_cotangents_may_be_rounded_stochastically_alone() -> None:
    block = typed("nvfp4/backward_rounding=stochastic")
    stochastic = {e.role for e in block.equations if e.arithmetic.stochastic}
    assert stochastic == {"grad_input"}
    assert {e.op for e in block.equations if e.arithmetic.stochastic} == {"to_blocks"}
    assert Precision.parse("nvfp4/backward_rounding=stochastic").stochastic
    made = loop("nvfp4/backward_rounding=stochastic")
    first, other = (copy.deepcopy(made).train(batch(0)) for _ in range(2))
    assert first == other


def test_activations_and_weights_may_be_rounded_stochastically_alone() -> None:
    spec = "mxfp4/forward_rounding=stochastic"
    block = typed(spec)
    stochastic = [e for e in block.equations if e.arithmetic.stochastic]
    assert {e.op for e in stochastic} == {"to_blocks"}
    assert {e.role for e in stochastic} == {"forward"}
    assert Precision.parse(spec).stochastic
    assert not Precision.parse("mxfp4").stochastic


def rotated(a: np.ndarray, axis: int, signs: np.ndarray | None, block: int) -> np.ndarray:
    whole = a if signs is None else a * signs.reshape([-1 if i == axis else 1 for i in range(a.ndim)])
    return lowprec.hadamard(whole, axis, block=block)


@pytest.mark.parametrize("rotation", ["fixed", "random"])
@pytest.mark.parametrize("length, block", [(96, 32), (40, 8)])
def test_both_operands_are_rotated_alike_along_the_summed_axis(rotation: str, length: int, block: int) -> None:
    rng = np.random.default_rng(3)
    x, w, g = (rng.normal(size=shape).astype(np.float32) for shape in ((64, length), (length, 32), (64, 32)))
    spec = f"mxfp4/operands=float32/gradients=float32/output=float32/rotation={rotation}"
    ideal = trace(lambda params, g: ((params[1] @ params[0]) * g).sum(), [w, x], g)
    block_of = verify(Precision.parse(spec).apply(value_and_grad(ideal)))
    _, (dw, dx) = execute(block_of, [w, x], g, key=5)
    masks = [e for e in block_of.equations if e.op == "dropout_mask"]
    assert len(masks) == (0 if rotation == "fixed" else 3)  # one for each of the three products
    wanted = {}
    for name, a, b, size in (("grad_weight", x.T, g, 32), ("grad_input", g, w.T, 32)):
        signs = None
        if masks:
            (mask,) = [e for e in masks if e.role != "forward" and e.output.type.shape == (a.shape[1],)]
            bits = lowprec.random_bits(lowprec.Key(5).fold_in(mask.params["operation"]), a.shape[1], use="dropout")
            signs = np.where(bits >= 2**15, 1, -1).astype(np.float32)
            assert set(signs) == {-1, 1}
        left, right = (rotated(v, axis, signs, size) for v, axis in ((a, 1), (b, 0)))
        cast = [lowprec.to_blocks(v, "mxfp4_e2m1", axis).dequantize() for v, axis in ((left, 1), (right, 0))]
        wanted[name] = lowprec.matmul(*cast)
    np.testing.assert_array_equal(dw, wanted["grad_weight"])
    np.testing.assert_array_equal(dx, wanted["grad_input"])
    assert {e.params["block"] for e in block_of.equations if e.op == "hadamard"} == {32, block}
    declared = evaluate(block_of, [w, x], g, arithmetic="declared", key=5)
    for ours, theirs in zip(flatten(declared)[0], flatten(execute(block_of, [w, x], g, key=5))[0], strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("rotation", ["fixed", "random"])
def test_rotations_alone_change_no_product(rotation: str) -> None:
    """Operands that are not narrowed give the product there was, in ideal arithmetic to the last bits of float64."""
    spec = f"fp8/unscaled/forward=float32/backward=float32/operands=float32/output=float32/rotation={rotation}"
    x, w = (np.random.default_rng(seed).normal(size=(64, 64)).astype(np.float32) for seed in (1, 2))
    block = Precision.parse(spec).apply(trace(lambda x, w: x @ w, x, w))
    np.testing.assert_allclose(execute(block, x, w, key=1), x @ w, atol=2e-5)
    np.testing.assert_allclose(evaluate(block, x, w, key=1), x.astype(np.float64) @ w, atol=1e-13)


def test_random_signs_are_new_in_every_step_and_fixed_rotations_have_none() -> None:
    for rotation, differs in (("random", True), ("fixed", False)):
        block = Precision.parse(f"mxfp4/rotation={rotation}").apply(trace(nn.mlp, PARAMS, batch(0)[0]))
        ends = [np.asarray(execute(block, PARAMS, batch(0)[0], key=key)) for key in (1, 2)]
        assert (ends[0].tobytes() != ends[1].tobytes()) is differs


@pytest.mark.parametrize("spec, words", [
    ("mxfp4/rotation=often", "rotation is fixed or random, not 'often'"),
    ("mxfp4/rotation_block=24", "rotation_block must be a power of two, not 24"),
    ("fp8/delayed/rotation=fixed", "have no history"),
    ("mxfp4/forward_rounding=up", "forward_rounding is nearest or stochastic"),
])  # fmt: skip
def test_rotations_and_roundings_that_there_are_not(spec: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Precision.parse(spec)


@pytest.mark.parametrize("spec, words", [
    ("fp8", "gc200 has no figure for float8_e4m3fn"), ("mxfp8", "forward to_blocks .*gc200 has no unit for mxfp8_e4m3"),
])  # fmt: skip
def test_tiles_refuse_what_they_lack_and_name_the_engine_that_does_it(spec: str, words: str) -> None:
    with pytest.raises(UnsupportedByTarget, match=rf"{words}.*\(engine='direct'\)"):
        loop(spec, engine="tiles")


@pytest.mark.parametrize("accumulate, worst", [("tfloat32", 0.007), ("bfloat16", 0.1)])
def test_promotion_cures_a_narrow_accumulator(accumulate: str, worst: float) -> None:
    """4,096 products of uniform numbers: a sum that a narrow accumulator keeps is too small, parts of 128 are not."""
    rng = np.random.default_rng(4)
    x, w = rng.uniform(size=(64, 4096)).astype(np.float32), rng.uniform(size=(4096, 64)).astype(np.float32)
    error = {}
    for spec in ("fp8", f"fp8/partials={accumulate}", f"fp8/partials={accumulate}/promote=128"):
        precision = Precision.parse(spec + "/output=float32/operands=float32")
        block = verify(precision.apply(trace(lambda x, w: x @ w, x, w)))
        error[spec] = np.asarray(execute(block, x, w, key=0), np.float64)
        assert error[spec].tobytes() == np.asarray(evaluate(block, x, w, arithmetic="declared"), np.float64).tobytes()
    exact, plain, promoted = error.values()
    alone, cured = (np.abs(one / exact - 1).max() for one in (plain, promoted))
    print(f"\n{accumulate}: {alone:.2%} alone, {cured:.2%} with promotion")
    assert alone > worst
    assert cured < alone / 4


def test_promotion_is_the_order_with_parts_of_so_many_products() -> None:
    x = np.ones((3, 300), np.float32)
    block = Precision.parse("fp16.16/nearest/promote=64").apply(trace(lambda x: x @ x.T, x))
    (product,) = products(block)
    order = order_of(product, Accumulation(group=16, splits=2))
    assert (order.splits, order.stages, order.accumulate) == (5, 1, float16)
    assert [end - start for start, end in order.parts(300)] == [64, 64, 64, 64, 44]
    assert "promoted every 64" in str(block)
    assert Precision.parse("fp16.16/nearest/promote=64").words().endswith("promoted every 64")


@pytest.mark.parametrize("promote", [1, 2, 15, 16, 24, 100, 299, 1000])
@pytest.mark.parametrize("group", [None, 1, 16])
def test_no_part_is_longer_than_promotion_allows(promote: int, group: int | None) -> None:
    x = np.ones((3, 300), np.float32)
    block = Precision.parse(f"fp16.16/nearest/promote={promote}").apply(trace(lambda x: x @ x.T, x))
    order = order_of(products(block)[0], Accumulation(group=group, splits=2))
    parts = order.parts(300)
    assert max(end - start for start, end in parts) <= promote
    assert sum(end - start for start, end in parts) == 300


@pytest.mark.parametrize("spec", ["fp16.32/promote=0", "fp16.32/promote=many", "fp16.32/promote=1.5"])
def test_promotion_takes_a_number_of_products(spec: str) -> None:
    with pytest.raises(ValueError, match="promote must be a number of products"):
        Precision.parse(spec)


@pytest.mark.parametrize("exponent", [-40, -10, 0, 14])
def test_the_c600_takes_scales_out_before_partial_sums_are_rounded(exponent: int) -> None:
    """As a product of the cast tensors' true values in float32, with half partial sums of 32 products."""
    rng = np.random.default_rng(6)
    x = np.ldexp(rng.normal(size=(9, 100)), min(exponent, 10)).astype(np.float16)
    w = np.ldexp(rng.normal(size=(100, 7)), exponent // 4).astype(np.float16)
    precision = Precision.parse("fp8.16")
    block = verify(precision.apply(trace(lambda x, w: x @ w, x, w)))
    (product,) = [e for e in block.equations if e.op == "scaled_dot"]
    assert [v.type.format for v in product.operands] == [float8_e4m3fnuz, float8_e4m3fnuz, float32]
    orders = choose_accumulations(block, Target("c600"))
    assert orders[product.number].group == 32

    def true(a: np.ndarray) -> np.ndarray:
        amax = float(np.abs(a).max())
        scale = np.clip(2.0 ** np.floor(np.log2(240 / amax)), 2.0**-31, 2.0**32) if amax else 1.0
        halves = np.clip(a.astype(np.float64) * scale, -65504, 65504).astype(np.float16)
        return lowprec.astype(halves, float8_e4m3fnuz, overflow="saturate").astype(np.float32) * np.float32(1 / scale)

    order = orders[product.number].with_types("float16")
    wanted = lowprec.matmul(true(x), true(w), accumulation=order, rounding=lowprec.Rounding(overflow="saturate"))
    got = execute(block, x, w, key=0, accumulations=orders)
    np.testing.assert_array_equal(got, wanted)


def test_a_convolution_has_the_scales_of_a_c600_too_and_its_tiles_do_not() -> None:
    rng = np.random.default_rng(8)
    x, w = rng.normal(size=(4, 5, 5, 40)).astype(np.float32), rng.normal(size=(3, 3, 40, 8)).astype(np.float32)
    block = verify(Precision.parse("fp8.16").apply(trace(lambda x, w: nn.conv2d(x, w), x, w)))
    got, exact = execute(block, x, w, key=0), evaluate(block, x, w)
    assert np.linalg.norm(got - exact) < 0.06 * np.linalg.norm(exact)
    with pytest.raises(UnsupportedByTarget, match="no figure for float32"):
        plan(block, Target("c600"))


def test_a_history_needs_a_state_that_is_a_dict() -> None:
    block = trace(
        lambda state, x: (state, (x @ state[0]).sum()), [np.ones((3, 2), np.float32)], np.ones((4, 3)), carry=True
    )
    with pytest.raises(ValueError, match=r"carried in a dict as its last part, 'scaling'; the state has \[0\]"):
        Precision.parse("fp8/delayed").apply(block)


def test_words_and_overrides() -> None:
    precision = Precision.parse("fp8/delayed/amax_history_len=16/amax_compute_algo=most_recent/forward=float8_e4m3fnuz")
    assert precision.scaling.forward == float8_e4m3fnuz
    words = precision.words()
    assert (
        "products of float8_e4m3fnuz, backward float8_e5m2, scaled by the amax of earlier steps (most_recent of 16)"
        in words
    )
    assert "operands float16" in words
    assert (
        Precision.parse("fp8/margin=2/power_of_two=true")
        .words()
        .endswith("by powers of two scaled by their amax, margin 2")
    )


@pytest.mark.parametrize(
    "spec, message",
    [
        ("fp16.32/delayed", "'delayed' in 'fp16.32/delayed': only fp8"),
        ("fp8/late", "unknown word 'late'.*unscaled, static, current, delayed"),
        ("fp8/amax_history=3", "unknown field 'amax_history'.*amax_history_len"),
        ("fp8/amax_history_len=0", "amax_history_len must be an integer from 1"),
        ("fp8/amax_history_len=x", "'amax_history_len=x' in 'fp8/amax_history_len=x'"),
        ("fp8/amax_compute_algo=mean", "amax_compute_algo is max or most_recent, not 'mean'"),
        ("fp8/forward_scale=0", "forward_scale must be a positive float32"),
        ("fp8/forward=float64", "forward cannot be float64"),
        ("fp8/power_of_two=yes", "'power_of_two=yes' in 'fp8/power_of_two=yes': it is true or false"),
        ("fp8/inside=true", "must be powers of two: say power_of_two=true"),
        ("mxfp8/power_of_two=true/inside=true", "not of blocks"),
        ("fp8.16/static/forward_scale=3", "forward_scale must be a power of two from 2\\^-31 to 2\\^32, not 3"),
        ("mxfp8/scale_rule=up", "scale_rule of mxfp8_e4m3 is floor, ceil, even, rceil, not 'up'"),
        ("nvfp4/backward_rounding=up", "backward_rounding is nearest or stochastic, not 'up'"),
    ],
)
def test_what_is_no_scaling_is_refused(spec: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Precision.parse(spec)


@pytest.mark.parametrize("settings_of", [{"micro_batches": 4}, {"recompute": True}, {"loss_scale": "automatic"}])
def test_rotated_operands_in_rounds_and_made_again(settings_of: dict[str, Any]) -> None:
    """The same training twice; where values are only made again, the same as without."""
    one, other = (loop("mxfp4/rotation=random/backward_rounding=stochastic", **settings_of) for _ in range(2))
    losses = one.run(batch, 4)
    assert np.isfinite(losses).all()
    assert losses.tobytes() == other.run(batch, 4).tobytes()
    if "recompute" in settings_of:
        plain = loop("mxfp4/rotation=random/backward_rounding=stochastic")
        assert losses.tobytes() == plain.run(batch, 4).tobytes()
