"""The refusal before planning: exact for the values, never above what the engine accounts, before any work is done."""

import itertools
from typing import Any

import numpy as np
import pytest
from ir.test_transformer import BATCH, LENGTH, WORDS, parameters
from ir.test_transformer import loss as transformer_loss

from ipu_core import nn
from ipu_core.chip.target import Target
from ipu_core.compile.lowering import lower
from ipu_core.compile.machine import Machine
from ipu_core.compile.planning import plan
from ipu_core.compile.schedule.residency import check_room, residency
from ipu_core.errors import OutOfStreamingMemory, OutOfTileMemory
from ipu_core.ir.block import Block
from ipu_core.ir.bodies import regions_of
from ipu_core.ir.liveness.lifetimes import in_place
from ipu_core.ir.passes.streaming import streaming
from ipu_core.ir.precision.precision import Precision
from ipu_core.ir.regions import Loop
from ipu_core.ir.trace.tracing import trace
from ipu_core.train.loop import TrainLoop
from ipu_core.train.optim import Adam, Lamb, Optimizer, Sgd
from ipu_core.train.step import step_block

TOKENS = np.arange(BATCH * (LENGTH + 1)).reshape(BATCH, -1) * 3 % WORDS
FEW = Target("gc200", tiles=7)


def loss(params: Any, batch: Any) -> Any:
    x, y = batch
    for layer in params[:-1]:
        x = nn.relu(x @ layer["w"] + layer["b"])
    return nn.softmax_cross_entropy(x @ params[-1]["w"] + params[-1]["b"], y)


def perceptron(precision: str, optimizer: Optimizer, layers: tuple[int, ...], batch: int = 8) -> Block:
    """A training step of these widths; its arrays take no memory."""
    zero = np.float32(0)
    params = [
        {"w": np.broadcast_to(zero, (m, n)), "b": np.broadcast_to(zero, (n,))} for m, n in itertools.pairwise(layers)
    ]
    x, y = np.zeros((batch, layers[0]), np.float32), np.zeros(batch, np.int32)
    return Precision.parse(precision).apply(step_block(loss, optimizer, params, (x, y)))


def needed(block: Block, target: Target) -> OutOfTileMemory:
    """What the values need, told by a target without memory."""
    with pytest.raises(OutOfTileMemory) as caught:
        check_room(block, Target(target.name, tiles=target.tiles, tile_memory=1))
    return caught.value


@pytest.mark.parametrize(
    "optimizer", [Sgd(0.1), Sgd(0.1, momentum=0.9), Adam(), Lamb()], ids=["sgd", "momentum", "adam", "lamb"]
)
@pytest.mark.parametrize("precision", ["fp32.32", "fp16.32", "fp16.16/stochastic"])
def test_no_more_is_counted_than_the_engine_needs(precision: str, optimizer: Optimizer) -> None:
    for target in (FEW, Target("gc200")):
        block = perceptron(precision, optimizer, (64, 300, 10))
        machine = Machine(lower(block, plan(block, target)), allow_out_of_memory=True)
        counted = needed(block, target).needed
        peak = machine.engine.memory.peak_bytes
        assert counted <= peak
        if target is FEW:
            assert counted > 0.4 * peak  # the rest is code, vertex state and what products have under way
        check_room(block, Target("gc200", tiles=target.tiles, tile_memory=counted))


def test_nor_for_a_transformer() -> None:
    batch = TOKENS[:, :-1].astype(np.int32), TOKENS[:, 1:].astype(np.int32)
    block = Precision.parse("fp16.16/nearest").apply(step_block(transformer_loss, Adam(), parameters(), batch))
    machine = Machine(lower(block, plan(block, FEW)), allow_out_of_memory=True)
    assert needed(block, FEW).needed <= machine.engine.memory.peak_bytes


def test_the_figures_are_exact() -> None:
    target = Target("gc200", tiles=1, tile_memory=1000)
    a = np.zeros((10, 30), np.float32)
    block = trace(lambda state, x: (state + x, (x * 2).sum()), a, a, carry=True)
    with pytest.raises(OutOfTileMemory) as caught:
        check_room(block, target)
    error = caught.value
    # at the start: the state of 1,200 bytes, where the new one will lie too, and the batch
    assert (error.tile, error.available, error.before_planning) == (0, 1000, True)
    assert error.needed == error.categories["variables"] + error.categories["temporaries"]
    assert error.categories["variables"] == 1200
    assert error.needed == 2400
    assert "tile 0 needs 2,400 bytes of 1,000 for the values of the step alone; by category: " in str(error)


def test_views_and_new_state_over_old_take_no_memory() -> None:
    target = Target("gc200", tiles=1)
    a = np.zeros((10, 30), np.float32)
    block = trace(lambda state, x: (state + x.transpose(1, 0).reshape(30, 10).transpose(1, 0),), a, a, carry=True)
    assert needed(block, target).needed == 2400
    block = trace(lambda state, x: (state + (x * 2),), a, a, carry=True)
    assert needed(block, target).needed == 2400
    block = trace(lambda state, x: (state @ x, state.sum()), np.eye(8, dtype=np.float32), np.eye(8, dtype=np.float32),
                  carry=True)  # fmt: skip
    assert needed(block, target).needed == 2 * 256 + 8  # old state, new state, and one word for the sum


def test_what_nobody_reads_takes_room_only_when_it_comes() -> None:
    target = Target("gc200", tiles=1)
    a, b = np.zeros((10, 30), np.float32), np.zeros((20, 30), np.float32)
    block = trace(lambda state, x, unread: (state * x, (x * 2.0).sum()), a, a, b, carry=True)
    assert needed(block, target).needed == 2 * 1200 + 2400
    assert residency(block, target).peak.equation is None
    free = residency(block, target).free[block.equations[0].number]
    assert target.tile_memory - free == 2 * 1200 + (0 if block.equations[0].output in in_place(block) else 1200)


@pytest.mark.parametrize("precision", ["fp32.32", "fp16.16/stochastic"])
@pytest.mark.parametrize("target", ["gc2", "gc200"])
def test_a_model_far_too_large_is_refused_before_planning(
    target: str, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    block = perceptron(precision, Sgd(0.1), (64, 20000, 20000, 10), 64)
    monkeypatch.delattr("ipu_core.compile.machine.plan")
    with pytest.raises(OutOfTileMemory) as caught:
        Machine.build(block, Target(target))
    error = caught.value
    size = 4 if precision == "fp32.32" else 2
    tiles = Target(target).tiles
    assert error.needed * tiles >= 2 * 20000 * 20000 * size  # the weights and their gradients
    assert error.categories["variables"] >= 20000 * 20000 * size // tiles
    assert next(name for name, _ in error.variables).startswith("1.w")


def test_a_training_loop_refuses_before_it_plans_or_allocates() -> None:
    zero = np.float32(0)
    params = [{"w": np.broadcast_to(zero, (64, 40000)), "b": np.broadcast_to(zero, (40000,))},
              {"w": np.broadcast_to(zero, (40000, 40000)), "b": np.broadcast_to(zero, (40000,))}]  # fmt: skip
    batch = np.zeros((64, 64), np.float32), np.zeros(64, np.int32)
    with pytest.raises(OutOfTileMemory, match="for the values of the step alone"):
        TrainLoop(loss, params, batch, optimizer=Sgd(0.1), precision="fp32.32")  # 6.4 GB, were they made


def test_what_the_values_leave_free_is_what_products_may_use() -> None:
    a, w = np.zeros((16, 32), np.float32), np.zeros((32, 64), np.float32)
    block = trace(lambda state, x: (state * 2.0, ((x @ state) ** 2).sum()), w, a, carry=True)
    free = {block.equations[i].op: n for i, n in enumerate(residency(block, Target("gc200", tiles=1)).free.values())}
    whole = Target("gc200").tile_memory
    assert free["dot"] == whole - 4 * (2 * 32 * 64 + 16 * 32 + 16 * 64)  # the old state, the new, x and the product
    assert free["reduce_sum"] == whole - 4 * (2 * 32 * 64 + 16 * 64) - 8
    tight = Target("gc200", tiles=1, tile_memory=30_000)
    (product,) = (one for one in plan(block, tight).sums.values() if one.product.b)
    assert product.memory <= 30_000 - 22_528 - 30_000 // 8


def test_the_totals_of_rounds_live_until_they_are_read_behind_them() -> None:
    """On one tile: 9,216 bytes of parameters, as much of sums over micro-batches, words for rate and loss."""
    params = {"v": np.ones((64, 4), np.float32), "w": np.ones((32, 64), np.float32)}
    block = step_block(
        lambda p, x: nn.mse(x @ p["w"] @ p["v"], x[:, :4]), Sgd(0.1), params, np.ones((8, 32), np.float32),
        micro_batches=2,
    )  # fmt: skip
    target, whole, (v, w) = Target("gc200", tiles=1), 9216, (1024, 8192)
    free = residency(Precision.parse("fp32.32").apply(block), target).free
    held, ((_, loop),) = [target.tile_memory - room for room in free.values()], regions_of(block, Loop)
    last, behind = held[loop.last - 1], held[loop.last :]
    assert last == 2 * whole + w + 2 * 8  # the last gradient is added to its sum
    assert behind == [
        2 * whole + 8 + 2 * 8,  # the mean loss of its sum
        2 * whole + 2 * 8 + v,  # the mean gradient of one sum, which goes,
        whole + w + 2 * 8 + v + w,  # and of the other
        whole + 8 + 8 + v + w + 8,  # the rate's negative
        whole + 8 + v + w + 8,  # either parameter over its old value, and its gradient goes
        whole + 8 + w + 8,
    ]


def test_an_output_that_is_read_later_lives_on_behind_that() -> None:
    target, x = Target("gc200", tiles=1), np.zeros((10, 30), np.float32)

    def made(state: Any, x: Any) -> Any:
        shown = x * 2.0
        return state, shown, ((shown + 1.0) * 3.0).sum()

    block = trace(made, np.zeros(2, np.float32), x, carry=True)
    held = [target.tile_memory - room for room in residency(block, target).free.values()]
    assert held == [8 + 2 * 1200, 8 + 2 * 1200, 8 + 3 * 1200, 8 + 2 * 1200 + 8]


def test_activations_in_streaming_memory_have_to_fit_there() -> None:
    block = streaming(perceptron("fp32.32", Sgd(0.1), (64, 300, 10)), "relu")
    (var,) = block.offloaded
    size = 4 * var.type.size
    check_room(block, Target("gc200", streaming_memory=size))
    with pytest.raises(OutOfStreamingMemory, match=f"{size:,}"):
        check_room(block, Target("gc200", streaming_memory=size - 1))
