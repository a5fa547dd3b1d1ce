"""Arrays begin on tiles of their own: counted exactly, to the same bits, on emptier tiles."""

from typing import Any

import numpy as np
import pytest

from ipu_core import nn
from ipu_core.chip.target import Target
from ipu_core.compile.bill import bill
from ipu_core.compile.lowering import lower
from ipu_core.compile.machine import Machine
from ipu_core.compile.planning import plan
from ipu_core.compile.schedule import starts as of_starts
from ipu_core.compile.schedule.residency import residency
from ipu_core.compile.schedule.starts import lies_of, ordered_stays, starts
from ipu_core.engine.memory import bytes_by_tile
from ipu_core.ir.block import Block, dtype_of
from ipu_core.ir.bodies import outputs_of
from ipu_core.ir.precision.precision import Precision
from ipu_core.ir.pytree import flatten
from ipu_core.ir.run.execute import Executable
from ipu_core.ir.trace.tracing import trace
from ipu_core.placement.matmul import SumPlan
from ipu_core.train.optim import Lamb
from ipu_core.train.step import initial_state, step_block

TARGET = Target("gc200", tiles=38, tile_memory=16_200)


def loss(params: Any, batch: Any) -> Any:
    x, y = batch
    x = nn.layer_norm(nn.relu(x @ params["first"] + params["bias"]), params["scale"], params["bias"])
    return nn.softmax_cross_entropy(nn.tanh(x @ params["second"]) @ params["third"], y)


PARAMS = {
    "first": nn.normal(1, (40, 96)), "second": nn.normal(2, (96, 96)), "third": nn.normal(3, (96, 10)),
    "bias": np.zeros(96, np.float32), "scale": np.ones(96, np.float32),
}  # fmt: skip
BATCH = nn.normal(4, (24, 40)), np.arange(24, dtype=np.int32) % 10


def step() -> Block:
    """An update whose norms add up the squares of whole weights."""
    return Precision.parse("fp16.16/stochastic").apply(step_block(loss, Lamb(), PARAMS, BATCH))


def test_plans_that_share_arrays_with_others_have_them_at_tile_0() -> None:
    block = step()
    assert plan(block, TARGET, apart=False).starts == {}
    assert residency(block, TARGET, apart=False).peak.tile == 0
    assert plan(block, TARGET).starts == starts(block, TARGET) != {}


def test_each_array_begins_where_the_one_before_ended() -> None:
    """Small ones with those that they meet element by element, large ones with those of their size; the one in no entry
    is the word that counts updates, at tile 0, as is an array of nearly all tiles."""
    block, at, large = step(), 0, dict[tuple[int, int], int]()
    begin, sizes = starts(block, TARGET), lies_of(block, TARGET)
    small = dict[int, set[int]]()
    for stay, size, chunk in zip(ordered_stays(block, TARGET), sizes.size.tolist(), sizes.chunk.tolist(), strict=True):
        tiles, first = -(-size // chunk), begin.get(stay.var, 0)
        if 16 * tiles >= 15 * 38:
            assert first == 0
            continue
        known = first in small.get(size, ()) if 4 * tiles <= 38 else large.get((size, chunk)) == first
        if not known:
            assert first == at
            at = (at + tiles + 1) // 2 * 2 % 38  # pairs of tiles stay together
        if 4 * tiles <= 38:
            small.setdefault(size, set()).add(first)
        else:
            large[size, chunk] = first
    assert len(large) > 1
    assert max(map(len, small.values())) > 3


def test_what_meets_element_by_element_begins_on_one_tile() -> None:
    block = step()
    begin, by_name = starts(block, TARGET), {var.name: var for var in block.inputs}
    of = {name: {begin.get(var, 0) for key, var in by_name.items() if key.endswith(f".{name}")} for name in PARAMS}
    assert all(len(tiles) == 1 for tiles in of.values()), of
    assert of["bias"] != of["scale"]
    outputs = outputs_of(block)
    assert [begin.get(var, 0) for var in block.inputs[: block.carried]] == [
        begin.get(var, 0) for var in outputs[: block.carried]
    ]


def test_small_arrays_leave_their_kin_where_tiles_are_crowded_and_emptier_without() -> None:
    block = step()
    for tiles, emptier in ((38, True), (36, False)):
        peak = residency(block, Target("gc200", tiles=tiles)).peak.needed
        roomy, crowded = (Target("gc200", tiles=tiles, tile_memory=2 * peak - less) for less in (0, 1))
        assert starts(block, roomy) == starts(block, Target("gc200", tiles=tiles))
        assert (starts(block, crowded) != starts(block, roomy)) == emptier
        assert (residency(block, crowded).peak.needed < 0.95 * peak) == emptier


@pytest.mark.parametrize("target", [TARGET, Target("gc200", tiles=37, tile_memory=16_400)])
def test_bits_are_those_of_any_place(target: Target) -> None:
    block = step()
    orders = plan(block, TARGET, apart=False).accumulations
    given = [*flatten(initial_state(PARAMS, Lamb()))[0], *BATCH, np.float32(0.01)]
    inputs = [np.asarray(x, dtype_of(var.type.format)) for var, x in zip(block.inputs, given, strict=True)]
    expected = [x.tobytes() for x in Executable(block, orders).run(inputs, 5)]
    assert starts(block, target)
    assert [x.tobytes() for x in Machine.build(block, target, orders).run(inputs, 5)] == expected


def test_the_fullest_tile_is_emptier(monkeypatch: pytest.MonkeyPatch) -> None:
    target = Target("gc200", tiles=38, tile_memory=18_000)
    monkeypatch.setattr(of_starts, "CROWDED", 3)
    begun, needed = bill(step(), target).done.memory, residency(step(), target).peak.needed
    monkeypatch.setattr(of_starts, "SPREAD", 1)  # nothing leaves tiles empty
    plain = bill(step(), target).done.memory
    assert needed < residency(step(), target).peak.needed
    assert begun.peak_bytes < 0.9 * plain.peak_bytes
    assert begun.peak_bytes / begun.peak.mean() < 1.15 < plain.peak_bytes / plain.peak.mean()


def test_what_is_left_is_counted_as_the_mappings_have_it() -> None:
    block = step()
    found, lowered = residency(block, TARGET), lower(block, plan(block, TARGET))
    state = [lowered.tensors[var].variable for var in block.inputs]
    # The first equation reads what is fed; before it there is nothing else.
    there = np.sum([-(-bytes_by_tile(v, 38) // 8) * 8 for v in state], axis=0)
    (first, free), *_ = found.free.items()
    made = lowered.tensors[next(e.output for e in block.equations if e.number == first)]
    assert TARGET.tile_memory - free == (there + bytes_by_tile(made.variable, 38)).max()
    by_tile = sum(
        -(-bytes_by_tile(lowered.tensors[var].variable, 38)[found.peak.tile] // 8) * 8 for var, _ in found.peak.values
    )
    assert by_tile == found.peak.needed


def test_plans_are_what_is_accounted_and_sums_stay_with_their_terms() -> None:
    done = bill(step(), TARGET)
    sums = {number: one for number, one in done.plan.sums.items() if isinstance(one, SumPlan)}
    moved = 0
    for number, one in sums.items():
        name, first = done.plan.names[number], one.product.a.first
        steps = [s for s in done.done.steps if s.name in (name, f"{name}: sum parts", f"{name}: convert")]
        assert sum(s.cycles for s in steps) == one.cycles, name
        assert one.placement.first == (0 if one.product.b else first)
        moved += first and not one.product.b
    assert moved > 5


def test_equal_constants_lie_there_once() -> None:
    fixed = np.arange(64, dtype=np.float32).reshape(8, 8)
    block = trace(lambda state: (state @ fixed @ fixed.copy(),), np.zeros((8, 8), np.float32), carry=True)
    assert len(block.constants) == 2
    target = Target("gc200", tiles=1)
    held = [target.tile_memory - room for room in residency(block, target).free.values()]
    assert held == [3 * 256, 3 * 256]  # state, one constant and a product; the other is the new state over the old
