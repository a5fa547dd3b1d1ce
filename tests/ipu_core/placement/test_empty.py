"""Products and sums without rows, terms, columns or batches are planned like others: their account is the engine's."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ipu_core.chip.target import Target
from ipu_core.compile.machine import Machine
from ipu_core.ir.trace.tracing import trace
from ipu_core.placement.orders import OrderRule, product_order, reduction_order
from lowprec import Accumulation
from tests.ipu_core.plans import plan_matmul, plan_reduction

EMPTY = [(2, 0, 4, 3), (2, 5, 0, 3), (2, 5, 4, 0), (0, 5, 4, 3), (1, 0, 0, 0), (3, 0, 4, 0)]
"""Products, rows, terms, columns."""
TARGETS = [Target("gc200"), Target("gc200", tiles=6), Target("gc200", tiles=1)]


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: f"{target.tiles} tiles")
@pytest.mark.parametrize("size", EMPTY)
def test_nothing_is_cut_where_there_is_nothing(size: tuple[int, int, int, int], target: Target) -> None:
    batch, m, k, n = size
    orders = product_order(OrderRule.of(target), m, k, n, batch=batch), reduction_order(OrderRule.of(target), m, k, n)
    assert [order.splits for order in orders] == [1, 1]
    for order in (None, Accumulation(), Accumulation(splits=4)):
        for memory in (None, 0, 100):  # with turns in time too
            product = plan_matmul(target, m, k, n, batch=batch, accumulation=order, memory=memory)
            total = plan_reduction(target, m, k, n, accumulation=order, memory=memory)
            assert product.placement.rows <= max(1, m)
            assert product.placement.columns <= max(1, n)
            assert product.placement.parts == product.placement.serial_depth == total.placement.parts == 1
            for one, results in ((product, batch * m * n), (total, m * n)):
                assert (one.received + one.sent + one.cycles == 0) == (not results)


CASES: dict[str, Callable[..., Any]] = {
    "product": lambda x, w: x @ w,
    "sum": lambda x, w: x.sum(1),
    "sum of rows": lambda x, w: x.sum((0, 2)),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("size", EMPTY)
def test_the_plan_says_what_the_engine_accounts(size: tuple[int, int, int, int], name: str) -> None:
    batch, m, k, n = size
    x, w = np.ones((batch, m, k), np.float32), np.ones((batch, k, n), np.float32)
    block = trace(CASES[name], x, w)
    machine = Machine.build(block, Target("gc200", tiles=6))
    (number,) = machine.plan.sums
    called = next(e for e in block.equations if e.number == number).name
    mine = [s for s in machine.profile.steps if s.name == called or s.name.startswith(f"{called}: sum")]
    assert sum(step.cycles for step in mine) == machine.plan.sums[number].cycles
    (found,) = machine.run([x, w], None)
    np.testing.assert_array_equal(found, CASES[name](x, w))
