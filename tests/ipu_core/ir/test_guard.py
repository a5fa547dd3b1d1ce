"""The guard of a step: what it looks at, and that nothing of the state is touched where it refuses."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ipu_core import nn
from ipu_core.chip.target import Target
from ipu_core.compile.machine import Machine
from ipu_core.compile.schedule.residency import check_room
from ipu_core.errors import OutOfTileMemory
from ipu_core.ir.block import Block
from ipu_core.ir.bodies import branch_of, closed, regions_of
from ipu_core.ir.passes.guard import UNSCALE, guarded
from ipu_core.ir.precision.precision import Precision
from ipu_core.ir.regions import Branch, Loop
from ipu_core.ir.run.evaluate import evaluate_flat
from ipu_core.ir.run.execute import Executable
from ipu_core.ir.trace.tracing import trace
from ipu_core.ir.trace.values import elementwise, scope
from ipu_core.ir.verify import UseBeforeDefinition, WrongType, verify
from ipu_core.train.optim import Adam, Lamb, Optimizer, Sgd
from ipu_core.train.step import step_block

A = np.arange(6, dtype=np.float32).reshape(2, 3)
TARGET = Target("gc200", tiles=5)


def early(state: Any, x: Any) -> Any:
    """New state that the loss is made of, so that it is there before the guard, and some that waits for it."""
    first = state["a"] * 0.5 + x
    with scope(x, role="optimizer", family=UNSCALE, parameter="a"):
        gradient = elementwise("multiply", x, 2.0)
    return {"a": first, "b": state["b"] - gradient, "c": state["b"]}, first.sum()


@pytest.mark.parametrize("streamed", [frozenset(), frozenset({0, 1})], ids=["near", "streamed"])
@pytest.mark.parametrize("value", [1.0, np.inf, np.nan])
def test_no_state_is_replaced_where_the_guard_refuses(value: float, streamed: frozenset[int]) -> None:
    state = {"a": A, "b": A + 1, "c": A + 2}
    block = replace(verify(guarded(trace(early, state, A, carry=True))), streamed=streamed)
    assert branch_of(block) is not None
    x = A.copy()
    x[1, 2] = value
    inputs = [state["a"], state["b"], state["c"], x]
    fine = np.isfinite(value)
    new = [A * 0.5 + x, A + 1 - 2 * x, A + 1] if fine else inputs[:3]
    for outputs in (
        evaluate_flat(block, inputs),
        Executable(block).run(inputs, 0),
        Machine.build(block, TARGET).run(inputs, 0),
    ):
        for got, wanted in zip(outputs, new, strict=False):
            np.testing.assert_array_equal(got, wanted)
        np.testing.assert_array_equal(outputs[3], (A * 0.5 + x).sum())
        assert outputs[4].tolist() == [not fine]
    held = Executable(block)
    held.write(inputs[:3])
    held.feed([x], 0)
    for got, wanted in zip(held.read(), new, strict=True):
        np.testing.assert_array_equal(got, wanted)


def typed(precision: str, micro_batches: int = 1, optimizer: Optimizer = Lamb(0.01)) -> Block:  # noqa: B008  # frozen
    def loss(params: Any, batch: Any) -> Any:
        return nn.softmax_cross_entropy(nn.mlp(params, batch[0]), batch[1])

    batch = np.zeros((8, 12), np.float32), np.zeros(8, np.int32)
    params = nn.mlp_parameters(3, [12, 10, 5])
    ideal = step_block(loss, optimizer, params, batch, micro_batches=micro_batches, scaled=True)
    return Precision.parse(precision).apply(ideal)


def test_what_is_looked_at() -> None:
    parameters = [f"gradient of {layer}.{part}" for layer in (1, 0) for part in ("bias", "weight")]
    names = {spec: branch_of(guarded(typed(spec))) for spec in ("fp32.32", "fp16.32")}
    assert names["fp32.32"] is not None
    assert sorted(names["fp32.32"].names) == sorted(parameters)
    assert names["fp16.32"] is not None
    narrow = set(names["fp16.32"].names) - set(parameters)
    assert {name.split()[0] for name in narrow} == {"grad_input"}
    assert {name.split()[-2] for name in narrow} == {"convert", "dot", "select"}
    looped = guarded(typed("fp16.16/nearest", 4))
    assert len(regions_of(looped, Loop)) == 1
    branch = branch_of(looped)
    assert branch is not None
    assert sum(name.startswith("grad_weight") and " add " in name for name in branch.names) == 4
    assert len(branch.names) == looped.outputs[-1].type.size


@pytest.mark.parametrize("micro_batches", [1, 4])
@pytest.mark.parametrize("precision", ["fp32.32/streamed", "fp16.16/stochastic", "mlperf-bert"])
def test_no_more_is_counted_than_the_engine_needs(precision: str, micro_batches: int) -> None:
    for optimizer in (Sgd(0.1), Adam()):
        block = guarded(typed(precision, micro_batches, optimizer))
        peak = Machine.build(block, TARGET).engine.memory.peak_bytes
        with pytest.raises(OutOfTileMemory) as caught:
            check_room(block, replace(TARGET, tile_memory=1))
        assert caught.value.needed <= peak


def test_a_step_that_is_skipped_costs_less() -> None:
    block = guarded(trace(early, {"a": A, "b": A + 1, "c": A + 2}, A, carry=True))
    machine = Machine.build(block, TARGET)
    cycles = []
    for x in (A, A * np.float32(np.nan)):
        machine.feed([x], 0)
        cycles.append(machine.profile.cycles)
    assert cycles[1] < cycles[0]


@pytest.mark.parametrize("shape", [(1,), (257,), (256, 2), (30, 40), (3, 5, 7, 11), (64, 64)])
def test_the_largest_of_many_is_found_wherever_it_is(shape: tuple[int, ...]) -> None:
    def step(state: Any, x: Any) -> Any:
        with scope(x, role="optimizer", family=UNSCALE, parameter="a"):
            gradient = elementwise("multiply", x, 2.0)
        return {"a": state["a"] - gradient}, (state["a"] * 3.0).sum()

    x = np.ones(shape, np.float32)
    run = Executable(guarded(trace(step, {"a": x}, x, carry=True)))
    for place in {0, x.size // 2, x.size - 1}:
        for value in (np.inf, -np.inf, np.nan):
            spoilt = x.copy()
            spoilt.flat[place] = value
            assert run.run([x, spoilt], 0)[2].tolist() == [1]
    assert run.run([x, x], 0)[2].tolist() == [0]


def test_looking_at_a_large_weight_is_spread_over_the_tiles() -> None:
    """On one tile the maximum of a million halves would take its memory thrice over."""

    def loss(params: Any, batch: Any) -> Any:
        return nn.mse(batch @ params["w"], batch)

    x = np.zeros((4, 1024), np.float32)
    weights = {"w": np.broadcast_to(np.float32(0), (1024, 1024))}
    blocks = [Precision.parse("fp16.32").apply(step_block(loss, Sgd(0.1), weights, x, scaled=True))]
    blocks.append(guarded(blocks[0]))
    plain, looked = (Machine.build(block, Target("gc200")).profile for block in blocks)
    assert looked.cycles < 1.6 * plain.cycles
    assert looked.memory.peak_bytes < 1.6 * plain.memory.peak_bytes


def test_what_is_no_guard_is_refused() -> None:
    block = guarded(typed("fp32.32"))
    *before, last = block.equations
    guard = last.region
    assert isinstance(guard, Branch)
    late = next(e.output for e in guard.body.equations if not e.output.type.shape)

    def of(**changes: Any) -> Block:
        return closed(replace(block, equations=(*before, replace(last, region=replace(guard, **changes)))))

    with pytest.raises(UseBeforeDefinition, match="is not defined before it is used"):
        verify(of(flag=late))
    with pytest.raises(UseBeforeDefinition, match="is read outside"):
        verify(replace(block, outputs=(*block.outputs[:-1], late)))
    with pytest.raises(WrongType, match="must be one number"):
        verify(of(flag=block.outputs[-1]))
    with pytest.raises(UseBeforeDefinition, match="all of it"):
        verify(of(chosen=guard.chosen[1:]))
    with pytest.raises(ValueError, match="is guarded already"):
        guarded(block)
    with pytest.raises(ValueError, match="there is nothing to guard"):
        guarded(trace(lambda x: x + 1.0, A))
    assert f"if {guard.flag}, else the state stays as it was:" in str(block)
