"""What is moved to and from streaming memory, and updates among the gradients: in rows, and nothing before its time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ipu_core import nn
from ipu_core.chip.target import Target
from ipu_core.compile.planning import plan
from ipu_core.compile.schedule.early_updates import EarlyUpdates, with_early_updates
from ipu_core.compile.schedule.transfers import transfers
from ipu_core.ir.block import Block
from ipu_core.ir.bodies import equations_of
from ipu_core.ir.passes.streaming import streaming
from ipu_core.ir.precision.precision import Precision
from ipu_core.ir.trace.tracing import trace
from ipu_core.ir.verify import verify
from ipu_core.train.optim import AdamW, Lamb, Optimizer
from ipu_core.train.step import step_block

WIDTHS = {"a": (32, 40), "b": (40, 30), "c": (30, 30), "d": (30, 8)}
FEW = Target("gc200", tiles=24)


def loss(params: Any, batch: Any) -> Any:
    x, y = batch
    for name in WIDTHS:
        x = nn.relu(x @ params[name])
    return nn.mse(x, y)


def step(optimizer: Optimizer) -> Block:
    """A training step whose moments are streamed."""
    params = {name: np.zeros(shape, np.float32) for name, shape in WIDTHS.items()}
    batch = np.zeros((4, 32), np.float32), np.zeros((4, 8), np.float32)
    return Precision.parse("fp32.32/streamed").apply(step_block(loss, optimizer, params, batch))


def updated(optimizer: Optimizer) -> EarlyUpdates:
    block = step(optimizer)
    return with_early_updates(block, plan(block, FEW))


def test_all_that_an_equation_reads_from_streaming_memory_is_loaded_and_every_new_value_stored() -> None:
    def made(state: Any, x: Any) -> Any:
        both = state[0] + state[1]
        return [both * x, both - x], both.sum()

    block = trace(made, [np.zeros(4, np.float32), np.zeros(4, np.float32)], np.zeros(4, np.float32), carry=True)
    moved = transfers(replace(block, streamed=frozenset((0, 1))))
    assert {place: {*loaded} for place, loaded in moved.loads.items()} == {0: {*block.inputs[:2]}}
    assert sorted(number for stored in moved.stores.values() for number in stored) == [0, 1]


def test_activations_are_stored_beside_what_is_streamed_of_the_state() -> None:
    block = streaming(step(AdamW(0.1)), "relu")
    moved = transfers(block)
    assert block.streamed
    assert {var for stored in moved.offloads.values() for var in stored} == block.offloaded != frozenset()
    assert block.offloaded <= {var for loaded in moved.loads.values() for var in loaded}


@pytest.mark.parametrize(
    "optimizer", [AdamW(0.1), Lamb(0.1), AdamW(0.1, clip_norm=1.0)], ids=["adamw", "lamb", "clipped"]
)
def test_a_row_takes_no_more_than_the_largest_parameter_s_state(optimizer: Optimizer) -> None:
    found = updated(optimizer)
    verify(found.block)
    sizes = {name: rows * columns for name, (rows, columns) in WIDTHS.items()}
    rows: dict[int, set[str]] = {}
    for equation in equations_of(found.block):
        if equation.number in found.rows:
            rows.setdefault(found.rows[equation.number], set()).add(str(equation.parameter))
    assert sorted(name for names in rows.values() for name in names) == sorted(WIDTHS)
    assert max(sum(sizes[name] for name in names) for names in rows.values()) == max(sizes.values())
