"""Operands as plans take them: what a plan says of them is what the engine accounts, however they lie."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ipu_core.chip.target import Target
from ipu_core.compile.machine import Machine
from ipu_core.compile.operands import sides
from ipu_core.ir.precision.precision import Precision
from ipu_core.ir.run.evaluate import evaluate_flat
from ipu_core.ir.run.execute import Executable
from ipu_core.ir.trace.tracing import trace

GC200, FEW = Target("gc200"), Target("gc200", tiles=6)
X, W = (np.random.default_rng(n).normal(size=(48, 48)).astype(np.float16) for n in (1, 2))
CASES: dict[str, tuple[Callable[[Any, Any], Any], list[bool]]] = {
    "as they lie": (lambda x, w: x @ w, [True, True]),
    "transposed": (lambda x, w: x.T @ w.T, [False, False]),
    "a vector": (lambda x, w: x[0] @ w.T, [False, False]),
    "a row and a column": (lambda x, w: np.reshape(x, (2304, 1)).T @ np.reshape(w, (1, 2304)).T, [True, True]),
    "a part": (lambda x, w: x[:, 8:40] @ w[8:40], [False, False]),
    "the first rows": (lambda x, w: x[:32] @ w, [False, True]),
    "broadcast": (lambda x, w: np.broadcast_to(x, (2, 48, 48)) @ np.broadcast_to(w, (2, 48, 48)), [False, False]),
    "one value twice": (lambda x, w: x @ x, [True, False]),
    "a value and its transpose": (lambda x, w: x @ x.T, [True, False]),
    "a sum over rows": (lambda x, w: x.sum(0) + w[0], [True]),
    "a sum of a transpose": (lambda x, w: x.T.sum(0) + w[0], [True]),
    "a maximum of a part": (lambda x, w: x[:, ::2].max(1) + w[0, :], [False]),
}


@pytest.mark.parametrize("target", [GC200, FEW], ids=["gc200", "6 tiles"])
@pytest.mark.parametrize("name", CASES)
def test_the_plan_says_what_the_engine_accounts(name: str, target: Target) -> None:
    function, stay = CASES[name]
    block = trace(function, X, W)
    machine = Machine.build(block, target)
    (number,) = machine.plan.sums
    equation = next(e for e in block.equations if e.number == number)
    assert [side.stays for side in sides(block, equation, target, machine.plan.starts)] == stay
    called = equation.name
    mine = [s for s in machine.profile.steps if s.name == called or s.name.startswith(f"{called}: sum")]
    plan = machine.plan.sums[number]
    assert sum(step.cycles for step in mine) == plan.cycles
    copies = [s for s in machine.profile.steps if s.name == f"{called}: operand"]
    assert len(copies) == (1 if False in stay else 0)  # both operands are moved in one phase
    assert sum(len(copy.account.writes) for copy in copies) == stay.count(False)


@pytest.mark.parametrize("name", CASES)
def test_stochastic_sums_of_views_have_the_bits_of_the_declared_arithmetic(name: str) -> None:
    block = Precision.parse("fp16.16/stochastic").apply(trace(CASES[name][0], X, W))
    (rounded,) = (e for e in block.equations if e.op in ("dot", "reduce_sum", "reduce_max"))
    assert rounded.arithmetic.stochastic == (rounded.op != "reduce_max")
    machine = Machine.build(block, FEW)
    orders = machine.plan.accumulations
    for key in (1, 2):
        (declared,) = evaluate_flat(block, [X, W], "declared", key=key, accumulations=orders)
        np.testing.assert_array_equal(Executable(block, orders).run([X, W], key)[0], declared)
        np.testing.assert_array_equal(machine.run([X, W], key)[0], declared)
