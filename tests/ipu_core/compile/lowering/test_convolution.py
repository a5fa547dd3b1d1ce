"""Convolutions on tiles equal those without, bit for bit, in any order and placement; their account; a trained net."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipu_core import nn
from ipu_core.chip.target import Target
from ipu_core.compile.lowering.lower import lower
from ipu_core.compile.machine import Machine
from ipu_core.compile.planning import choose_accumulations, plan
from ipu_core.ir.block import Block
from ipu_core.ir.passes.autodiff import value_and_grad
from ipu_core.ir.precision.precision import Precision
from ipu_core.ir.run.execute import Executable
from ipu_core.ir.trace.tracing import trace
from ipu_core.placement.convolution import ConvPlacement, ConvPlan
from ipu_core.placement.matmul import Placement
from ipu_core.placement.orders import OrderRule
from ipu_core.train.data.dataset import digits
from ipu_core.train.loop import TrainLoop
from ipu_core.train.optim import Sgd
from lowprec import Accumulation
from tests.examples import examples

GC200 = Target("gc200")
SHAPES: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((2, 9, 8, 4), (3, 2, 2, 6), {"stride": (2, 1), "padding": ((1, 0), (2, 1)), "groups": 2}),
    ((3, 5, 6, 20), (2, 3, 20, 34), {"padding": "same"}),
    ((2, 8, 7, 3), (1, 1, 3, 5), {"stride": (3, 2)}),
    ((1, 7, 9, 6), (3, 3, 1, 6), {"stride": 2, "dilation": (1, 2), "padding": 2, "groups": 6}),
    ((2, 6, 6, 33), (3, 3, 33, 18), {"padding": 1, "dilation": 2}),
]
PRECISIONS = ("fp32.32", "fp16.32", "fp16.32/stochastic", "fp16.16/nearest", "fp16.16/stochastic")

orders = st.builds(
    Accumulation,
    st.sampled_from([1, 4, 16, 40]),
    st.sampled_from([1, 2, 3, 7, 40]),
    st.sampled_from([None, 1, 2, 3]),
    adder=st.sampled_from(["sequential", "pairwise"]),
)
places = st.builds(
    ConvPlacement, st.tuples(*[st.integers(1, 4)] * 5), st.integers(1, 4), st.tuples(*[st.integers(1, 2)] * 5),
    st.integers(1, 3),
)  # fmt: skip


def step(index: int) -> tuple[Block, list[Any]]:
    """The gradients of a sum of squares of a convolution, and operands."""
    shape, kernel, options = SHAPES[index]
    rng = np.random.default_rng(index)
    params = {"w": rng.normal(size=kernel).astype(np.float32), "x": rng.normal(size=shape).astype(np.float32)}
    block = value_and_grad(trace(lambda p: (nn.conv2d(p["x"], p["w"], **options) ** 2).sum(), params))
    return block, [params["w"], params["x"]]


def assert_same(block: Block, inputs: list[Any], orders: Any, placements: Any = None) -> Machine:
    """Runs a Block on tiles and without."""
    machine = Machine(lower(block, plan(block, GC200, orders, placements)))
    direct = Executable(block, orders).run(inputs, 7)
    for ours, theirs in zip(machine.run(inputs, 7), direct, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    return machine


@examples(quick=16, slow=25)
@given(st.integers(0, len(SHAPES) - 1), st.sampled_from(PRECISIONS), st.data())
def test_any_order_and_placement_gives_the_same_bits(index: int, precision: str, data: st.DataObject) -> None:
    block, inputs = step(index)
    typed = Precision.parse(precision).apply(block)
    numbers = [e.number for e in typed.equations if e.family == "conv"]
    chosen = {number: data.draw(orders) for number in numbers}
    assert_same(typed, inputs, chosen, {number: data.draw(places) for number in numbers})


@pytest.mark.parametrize("index", range(len(SHAPES)))
def test_the_planners_choice_costs_what_it_says(index: int) -> None:
    block, inputs = step(index)
    typed = Precision.parse("fp16.16/stochastic").apply(block)
    machine = assert_same(typed, inputs, choose_accumulations(block, OrderRule.of(GC200)))
    plans = {n: one for n, one in machine.plan.sums.items() if isinstance(one, ConvPlan)}
    strides = SHAPES[index][2].get("stride", 1)
    for equation in typed.equations:
        if equation.number not in plans or (equation.op == "conv2d_input_gradient" and strides != 1):
            continue  # an input gradient has a convolution for every phase, of which the plan is the largest
        name = equation.name
        names = name, f"{name}: sum parts", f"{name}: convert"
        counted = [s.account for s in machine.profile.steps if s.name in names]
        one = plans[equation.number]
        assert sum(s.compute_cycles for s in counted) == one.compute_cycles
        assert len(counted) >= 1
        assert sum(s.sync_cycles for s in counted) <= one.sync_cycles
        assert sum(s.exchange_cycles for s in counted) <= 1.1 * one.exchange_cycles


def test_operands_of_gradients_come_in_the_order_of_the_matrix_unit() -> None:
    """Both of a weight's gradient, whose sums run over positions, and the weight of an input's, summed over outputs."""
    block, _ = step(1)
    profile = Machine(lower(block, plan(block, GC200))).profile
    made = [variable.name for s in profile.steps if s.kind == "copy" for variable in s.account.writes]
    copies = {e.op: made.count(f"{e.name}: operand") for e in block.equations if e.family == "conv"}
    assert copies == {"conv2d": 0, "conv2d_input_gradient": 1, "conv2d_weight_gradient": 2}


@pytest.mark.parametrize(
    "shape, kernel, options",
    [
        ((0, 4, 4, 2), (2, 2, 2, 3), {}),
        ((1, 4, 4, 0), (2, 2, 0, 3), {"padding": 1}),
        ((1, 4, 4, 2), (1, 1, 2, 3), {"stride": 3}),
    ],
)
def test_nothing_to_add_gives_zeros(shape: Any, kernel: Any, options: Any) -> None:
    x, w = np.ones(shape, np.float32), np.ones(kernel, np.float32)
    block = value_and_grad(trace(lambda p: nn.conv2d(p["x"], p["w"], **options).sum(), {"w": w, "x": x}))
    assert_same(block, [w, x], {})


@pytest.mark.parametrize(
    "shape, kernel, options",
    [
        ((1, 1, 1, 1), (1, 2, 1, 1), {"stride": (3, 1), "padding": 1}),
        ((1, 4, 1, 1), (3, 2, 1, 1), {"dilation": 2, "stride": 2, "padding": "same"}),
        ((2, 5, 5, 0), (3, 3, 0, 2), {}),
    ],
)
def test_a_loop_whose_windows_reach_nothing_is_planned_and_runs(shape: Any, kernel: Any, options: Any) -> None:
    def loss(p: Any, x: Any) -> Any:
        return nn.mean(nn.conv2d(x * p["a"], p["w"], **options))

    params = {"a": np.ones(shape, np.float32), "w": np.ones(kernel, np.float32)}
    images, losses = np.ones(shape, np.float32), []
    for engine in ("tiles", "direct"):
        loop = TrainLoop(loss, params, images, optimizer=Sgd(0.1), precision="fp32.32", key=0, engine=engine)
        losses.append(loop.run(lambda step: images, 3))
    np.testing.assert_array_equal(*losses)


def test_padding_takes_part_as_zeros() -> None:
    x, w = np.ones((1, 3, 3, 1), np.float32), np.full((2, 2, 1, 1), np.inf, np.float32)
    block = trace(lambda x, w: nn.conv2d(x, w, padding=1), x, w)
    machine = Machine(lower(block, plan(block, GC200)))
    (result,) = machine.run([x, w], None)
    assert np.isnan(result[0, 0]).all()
    assert np.isinf(result[0, 1:3, 1:3]).all()


def test_a_place_of_another_kind_is_refused() -> None:
    block, _ = step(2)
    number = next(e.number for e in block.equations if e.op == "conv2d")
    with pytest.raises(ValueError, match="ConvPlacement"):
        plan(block, GC200, {}, {number: Placement()})
    total = next(e.number for e in block.equations if e.op == "reduce_sum")
    with pytest.raises(ValueError, match="no convolution"):
        plan(block, GC200, {}, {total: ConvPlacement()})


def logits(p: Any, x: Any) -> Any:
    """Two convolutions, each with relu and pooling, and a linear layer."""
    x = nn.max_pool2d(nn.relu(nn.conv2d(x, p["first"], p["first bias"], padding=1)))
    x = nn.max_pool2d(nn.relu(nn.conv2d(x, p["second"], p["second bias"], padding=1)))
    return nn.linear(nn.flatten(x), p["last"], p["last bias"])


def initial() -> dict[str, Any]:
    return {
        "first": nn.he_normal(1, (3, 3, 1, 8)), "first bias": np.zeros(8, np.float32),
        "second": nn.he_normal(2, (3, 3, 8, 16)), "second bias": np.zeros(16, np.float32),
        "last": nn.lecun_normal(3, (64, 10)), "last bias": np.zeros(10, np.float32),
    }  # fmt: skip


@pytest.mark.parametrize("precision", ["fp32.32", "fp16.16/nearest", "fp16.16/stochastic"])
def test_a_convolutional_net_learns_digits_and_both_engines_agree(precision: str) -> None:
    data = digits()
    images, labels = data.x_train.reshape(-1, 8, 8, 1) + np.float32(0.5), data.y_train
    rows = np.random.default_rng(0).integers(0, len(images), (300, 32))
    loops = [
        TrainLoop(
            lambda p, batch: nn.softmax_cross_entropy(logits(p, batch[0]), batch[1]), initial(),
            (images[rows[0]], labels[rows[0]]),
            optimizer=Sgd(0.1), precision=precision, engine=engine, target=GC200, key=11,
        )
        for engine in ("direct", "tiles")
    ]  # fmt: skip
    losses = [
        loop.run(((images[i], labels[i]) for i in rows), steps) for loop, steps in zip(loops, (300, 20), strict=True)
    ]
    np.testing.assert_array_equal(losses[0][:20], losses[1])
    assert losses[0][-20:].mean() < 0.4
    test = np.float64(data.x_test.reshape(-1, 8, 8, 1)) + 0.5
    right = np.argmax(logits({k: np.float64(v) for k, v in loops[0].params.items()}, test), 1)
    assert (right == data.y_test).mean() > 0.85
    assert any("second.grad_weight.conv2d_weight_gradient." in line for line in loops[1].words().splitlines())
    assert loops[1].profile is not None
