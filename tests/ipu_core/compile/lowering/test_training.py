"""Training steps on tiles: the bits of `execute` whatever the placement, state in place, the memory bound."""

import itertools
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pytest

from ipu_core import nn
from ipu_core.chip.control import FloatingPointControl
from ipu_core.chip.target import Target
from ipu_core.compile.lowering import lower
from ipu_core.compile.machine import Machine
from ipu_core.compile.planning import BlockPlan, choose_accumulations, plan
from ipu_core.errors import OutOfTileMemory
from ipu_core.graph.program import Copy
from ipu_core.ir.block import Block
from ipu_core.ir.precision.precision import Precision
from ipu_core.ir.pytree import flatten
from ipu_core.ir.run.execute import Executable
from ipu_core.placement.matmul import Placement
from ipu_core.placement.orders import OrderRule
from ipu_core.train.data.dataset import digits
from ipu_core.train.optim import Lamb, Optimizer, Sgd
from ipu_core.train.step import initial_state, step_block
from lowprec import Key

GC200 = Target("gc200")


class Task(NamedTuple):
    """A typed training step with its state and batches."""

    block: Block
    state: list[Any]
    batches: list[list[Any]]


def digits_mlp(precision: str, optimizer: Optimizer, layers: tuple[int, ...] = (64, 24, 10), batch: int = 16) -> Task:
    """A multi-layer perceptron on scikit-learn's digits."""
    data = digits()
    rng = np.random.default_rng(0)
    params = [
        {"w": (rng.normal(size=(m, n)) / np.sqrt(m)).astype(np.float32), "b": np.zeros(n, np.float32)}
        for m, n in itertools.pairwise(layers)
    ]

    def loss(params: Any, batch: Any) -> Any:
        x, y = batch
        for layer in params[:-1]:
            x = nn.relu(x @ layer["w"] + layer["b"])
        return nn.softmax_cross_entropy(x @ params[-1]["w"] + params[-1]["b"], y)

    images, labels = data.x_train + np.float32(0.5), data.y_train  # from 0 to 1
    chosen = [rng.integers(0, len(images), batch) for _ in range(8)]
    batches = [[images[rows], labels[rows]] for rows in chosen]
    ideal = step_block(loss, optimizer, params, (batches[0][0], batches[0][1]))
    table = Precision.parse(precision)
    block = table.apply(ideal)
    return Task(block, flatten(table.cast_state(block, initial_state(params, optimizer)))[0], batches)


def same(got: list[Any], wanted: list[Any]) -> bool:
    """Whether all arrays are equal, bit for bit."""
    return all(a.dtype == b.dtype and a.tobytes() == b.tobytes() for a, b in zip(got, wanted, strict=True))


def placements(block: Block, fields: Mapping[str, Any], target: Target, depth: int = 1) -> dict[int, Placement]:
    """One placement for every product and sum; products have their k's cut in time too."""
    depths = {number: depth if one.product.b else 1 for number, one in plan(block, target).sums.items()}
    return {number: Placement(**fields, serial_depth=cuts) for number, cuts in depths.items()}


def plans_of(task: Task) -> list[BlockPlan]:
    """Three plans with the same Accumulations."""
    orders = choose_accumulations(task.block, OrderRule.of(GC200))
    few = Target("gc200", tiles=50)
    return [
        plan(task.block, GC200, orders),
        plan(task.block, few, orders),
        plan(task.block, GC200, orders, placements(task.block, {"rows": 3, "columns": 2, "serial_rows": 2}, GC200, 3)),
    ]


@pytest.mark.parametrize("precision", ["fp16.16/stochastic", "fp16.32"])
def test_the_machine_equals_execute_over_200_steps_for_three_placements(precision: str) -> None:
    task = digits_mlp(precision, Sgd(0.1))
    plans = plans_of(task)
    assert plans[0].accumulations == plans[1].accumulations == plans[2].accumulations
    control = FloatingPointControl(esr=True)
    machines = [Machine(lower(task.block, one), control) for one in plans]
    direct = Executable(task.block, plans[0].accumulations, control)
    state, lr = task.state, np.float32(0.1)
    for machine in machines:
        machine.write(state)
    losses = []
    for step in range(200):
        batch, key = task.batches[step % 8], Key(9).fold_in(step)
        *state, loss = direct.run([*state, *batch, lr], key)
        losses.append(float(loss))
        assert {machine.step(batch, lr, key) for machine in machines} == {float(loss)}, step
    for machine in machines:
        assert same(machine.read(), state)
    assert losses[-1] < 0.5 * losses[0]
    assert len({machine.profile.cycles for machine in machines}) == 3


def test_a_planner_short_of_memory_cuts_k_in_time_and_keeps_the_bits() -> None:
    task = digits_mlp("fp16.16/stochastic", Sgd(0.1), layers=(64, 500, 10), batch=256)
    orders = choose_accumulations(task.block, OrderRule.of(GC200))
    machine = Machine.build(task.block, Target("gc200", tiles=60, tile_memory=40_000), orders)
    assert any(place.serial_depth > 1 for place in machine.plan.placements.values())
    direct = Executable(task.block, orders)
    state, lr = task.state, np.float32(0.1)
    machine.write(state)
    for step in range(3):
        batch, key = task.batches[step], Key(1).fold_in(step)
        *state, loss = direct.run([*state, *batch, lr], key)
        assert machine.step(batch, lr, key) == float(loss)
    assert same(machine.read(), state)


def test_lamb_equals_execute() -> None:
    task = digits_mlp("fp16.16/stochastic", Lamb(0.01))
    machine = Machine.build(task.block, GC200)
    direct = Executable(task.block, machine.plan.accumulations)
    state, lr = task.state, np.float32(0.01)
    machine.write(state)
    for step in range(5):
        batch, key = task.batches[step], Key(1).fold_in(step)
        *state, loss = direct.run([*state, *batch, lr], key)
        assert machine.step(batch, lr, key) == float(loss)
    assert same(machine.read(), state)


def test_the_plan_says_what_the_engine_accounts_for_every_product() -> None:
    task = digits_mlp("fp16.16/stochastic", Sgd(0.1), layers=(64, 256, 256, 10), batch=64)
    machine = Machine.build(task.block, GC200)
    steps = machine.profile.steps
    checked = 0
    for equation in task.block.equations:
        if equation.number not in machine.plan.sums:
            continue
        name = equation.name
        mine = [step for step in steps if step.name == name or step.name.startswith(f"{name}: sum parts")]
        assert mine
        told = machine.plan.sums[equation.number]
        assert sum(step.cycles for step in mine) == told.cycles, name
        checked += 1
    assert checked >= 10


def test_weights_are_updated_in_place() -> None:
    task = digits_mlp("fp16.16/nearest", Sgd(0.1))
    lowered = lower(task.block, plan(task.block, GC200))
    copies = [step for step in lowered.program.steps if isinstance(step, Copy)]  # type: ignore[union-attr]
    assert not copies
    assert [tensor.variable.name for tensor in lowered.state] == ["0.b", "0.w", "1.b", "1.w"]
    assert not any(tensor.variable.temporary for tensor in lowered.state)


def test_every_element_lies_on_one_tile_and_bytes_add_up() -> None:
    task = digits_mlp("fp16.32", Sgd(0.1))
    lowered = lower(task.block, plan(task.block, GC200))
    for variable in lowered.graph.variables:
        each = variable.mapping.elements_per_tile(GC200.tiles)
        assert int(each.sum()) * variable.dtype.itemsize == variable.nbytes


def wide_mlp(width: int) -> Task:
    """64-width-10 at batch 4 in fp32.32: width 920 just fits 8 tiles of 80,000 bytes, width 960 does not."""
    return digits_mlp("fp32.32", Sgd(0.1), layers=(64, width, 10), batch=4)


def test_a_model_that_just_fits_and_one_that_does_not() -> None:
    target = Target("gc200", tiles=8, tile_memory=80_000)
    fits = Machine.build(wide_mlp(920).block, target)
    assert fits.engine.memory.peak.max() <= target.tile_memory
    assert fits.engine.memory.peak.max() > 0.95 * target.tile_memory
    with pytest.raises(OutOfTileMemory) as caught:
        Machine.build(wide_mlp(1040).block, target)
    error = caught.value
    assert error.needed > error.available == 80_000
    assert error.categories["variables"] > 0
    assert "0.w" in [name for name, _ in error.variables]
    assert f"tile {error.tile} needs" in str(error)
    anyway = Machine(lower(wide_mlp(1040).block, plan(wide_mlp(1040).block, target)), allow_out_of_memory=True)
    assert anyway.engine.memory.peak.max() > target.tile_memory


def test_a_state_that_is_exchanged_is_copied_out_of_the_way_first() -> None:
    def swap(state: Any, x: Any) -> Any:
        return (state[1], state[0]), (x * state[0]).sum()

    from ipu_core.ir.trace.tracing import trace

    a, b = np.float32([1, 2, 3]), np.float32([4, 5, 6])
    block = trace(swap, (a, b), a, carry=True)
    machine = Machine.build(block, Target("gc200", tiles=4))
    machine.write([a, b])
    assert float(machine.feed([a], None)[0]) == 14
    np.testing.assert_array_equal(machine.read(), [b, a])
    assert float(machine.feed([a], None)[0]) == 32
    np.testing.assert_array_equal(machine.read(), [a, b])


def test_a_state_read_after_its_update_is_not_overwritten() -> None:
    from ipu_core.ir.trace.tracing import trace

    def late(state: Any, x: Any) -> Any:
        new = state * 2.0 + x
        return new, (state * new).sum()

    a = np.float32([1, 2, 3])
    block = trace(late, a, a, carry=True)
    machine = Machine.build(block, Target("gc200", tiles=4))
    direct = Executable(block, machine.plan.accumulations)
    for got, wanted in zip(machine.run([a, a], 0), direct.run([a, a], 0), strict=True):
        np.testing.assert_array_equal(got, wanted)
