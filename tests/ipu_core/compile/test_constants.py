"""Constants on tiles: equal ones once, repeated ones unrepeated, and no bit of a result changed by it."""

from __future__ import annotations

from typing import Any

import numpy as np

from ipu_core import nn
from ipu_core.chip.target import Target
from ipu_core.compile.constants import held_constants
from ipu_core.compile.machine import Machine
from ipu_core.ir.run.execute import execute
from ipu_core.ir.trace.tracing import trace

TARGET = Target("gc200", tiles=16)
ROWS, HEADS, PLACES = 2, 3, 8


def masked(x: Any) -> Any:
    """Two softmaxes under masks that are made anew each time, as layers that know nothing of each other make them."""
    for _ in range(2):
        x = nn.softmax(x, mask=nn.causal_mask(PLACES))
    return x


def test_a_mask_of_every_layer_lies_on_the_tiles_once_and_unrepeated() -> None:
    x = np.random.default_rng(0).normal(size=(ROWS, HEADS, PLACES, PLACES)).astype(np.float32)
    block = trace(masked, x)
    assert [var.type.shape for var in block.constants] == [x.shape] * 2
    held = held_constants(block)
    first, second = block.constants
    assert held[first].first is first
    assert held[second].first is first
    assert held[first].array.shape == (1, 1, PLACES, PLACES)
    machine = Machine.build(block, TARGET)
    constants = machine.engine.memory.always["constants"]
    assert constants.sum() == PLACES * PLACES * 4
    (found,) = machine.run([x], 0)
    np.testing.assert_array_equal(found, execute(block, x, key=0))


def test_what_differs_or_goes_into_a_product_lies_whole() -> None:
    ones, twos = np.broadcast_to(np.float32(1), (4, 4)), np.broadcast_to(np.float32(2), (4, 4))

    def products(x: Any) -> Any:
        return nn.matmul(nn.matmul(x, ones), twos) + ones

    block = trace(products, np.ones((4, 4), np.float32))
    held = held_constants(block)
    assert [each.array.shape for each in held.values()] == [(4, 4)] * 2
    assert [each.first for each in held.values()] == list(block.constants)
    x = np.arange(16, dtype=np.float32).reshape(4, 4)
    np.testing.assert_array_equal(Machine.build(block, TARGET).run([x], 0)[0], execute(block, x, key=0))
