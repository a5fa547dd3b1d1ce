"""Results written over an operand that nothing needs any more: less memory, the same bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ipu_core import nn
from ipu_core.chip.target import Target
from ipu_core.compile.lowering.overwritten import overwritten
from ipu_core.compile.machine import Machine
from ipu_core.ir.block import Block
from ipu_core.ir.bodies import equations_of
from ipu_core.ir.run.execute import Executable
from ipu_core.ir.trace.tracing import trace

FEW = Target("gc200", tiles=6)
X = np.random.default_rng(1).normal(size=(24, 24)).astype(np.float32)


def in_a_loop(x: Any) -> Any:
    """A value from outside, read by the last equation of every round."""
    outside = nn.exp(x)
    return nn.scan(lambda total, row: (outside * total.T, ()), x, x)[0]


OVER: dict[str, tuple[Callable[[Any], Any], int]] = {
    "a chain": (lambda x: nn.exp(nn.tanh(x * 2.0)) + 1.0, 3),
    "two operands": (lambda x: nn.exp(x) * nn.tanh(x) + 1.0, 2),
    "a square": (lambda x: (y := nn.exp(x)) * y, 1),
    "with its rows": (lambda x: (y := nn.exp(x)) - y.max(-1, keepdims=True), 1),
    "read before": (lambda x: [(y := nn.exp(x)).sum(), y * 2.0], 1),
    "read after": (lambda x: [(y := nn.exp(x)) * 2.0, y.sum(0).max()], 0),
    "an output": (lambda x: [y := nn.exp(x), y * 2.0], 0),
    "its transpose": (lambda x: (y := nn.exp(x)) + y.T, 0),
    "a part": (lambda x: nn.exp(x)[:12] * 2.0, 0),
    "an input": (lambda x: x * 2.0, 0),
    "another format": (lambda x: nn.convert(nn.exp(x), "float16"), 0),
    "a number": (lambda x: nn.exp(x.sum() * 2.0) + x[0, 0], 0),
    "in a loop": (in_a_loop, 0),
}  # fmt: skip


def assert_same(block: Block, **how: Any) -> None:
    machine = Machine.build(block, FEW, **how)
    theirs = Executable(block, machine.plan.accumulations).run([X], 3)
    for mine, other in zip(machine.run([X], 3), theirs, strict=True):
        assert mine.tobytes() == np.asarray(other).tobytes()


@pytest.mark.parametrize("name", OVER)
def test_results_lie_where_an_operand_did_that_is_read_for_the_last_time(name: str) -> None:
    function, count = OVER[name]
    block = trace(function, X)
    assert len(overwritten(block, {}, (), {})) == count
    for share in (False, True):
        assert_same(block, share=share)


def test_a_chain_needs_one_array() -> None:
    memory = Machine.build(trace(lambda x: nn.exp(nn.tanh(x * 2.0)).sum(), X), FEW).profile.memory
    assert max(size for _, size in memory.variables) == X.nbytes // FEW.tiles
    assert memory.categories["temporaries"] < 1.5 * X.nbytes / FEW.tiles


def test_what_another_reads_at_once_or_elsewhere_or_later_stays() -> None:
    block = trace(lambda x: [(y := nn.exp(x)) * 2.0, y * 3.0], X)
    first, second = (e for e in equations_of(block) if e.op == "multiply")
    made = first.operands[0]
    assert overwritten(block, {}, (), {}) == {second.output: made}
    assert overwritten(block, {}, ((first.number, second.number),), {}) == {}
    assert overwritten(block, {made: 2}, (), {}) == {}
    assert overwritten(block, {}, (), {made: 9}) == {}
    assert_same(block, share=True)
