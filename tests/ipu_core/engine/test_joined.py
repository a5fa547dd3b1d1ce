"""Whole computations that are one call: the bits of single ones, the account of the vertices."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ipu_core import nn
from ipu_core.compile.machine import Machine
from ipu_core.engine.joined import Joined, joined
from ipu_core.ir.block import Block
from ipu_core.ir.execute import Executable
from ipu_core.ir.precision import Precision
from ipu_core.ir.pytree import flatten
from ipu_core.ir.tracing import trace
from ipu_core.target import Target
from ipu_core.train.optim import Lamb
from ipu_core.train.step import initial_state, step_block
from lowprec import Key, num_threads
from lowprec.testing import backend

RNG = np.random.default_rng(4)
FEW = Target("gc200", tiles=5)
X = RNG.normal(size=(12, 20)).astype(np.float32)
LABELS = RNG.integers(0, 5, 12).astype(np.int32)
SPECS = ["fp32.32", "fp16.16/stochastic", "fp16.32/nearest"]


def loss(params: Any, batch: Any) -> Any:
    x = nn.gelu(nn.linear(nn.layer_norm(batch[0], params["scale"]), **params["up"]))
    return nn.softmax_cross_entropy(nn.linear(nn.softmax(x), **params["down"]), batch[1])


def step(spec: str, micro_batches: int) -> tuple[Block, list[Any]]:
    """A typed step and all that it is given."""
    layers = nn.mlp_parameters(3, [20, 24, 5])
    params = {"up": layers[0], "down": layers[1], "scale": np.ones(20, np.float32)}
    precision, optimiser = Precision.parse(spec), Lamb()
    block = precision.apply(step_block(loss, optimiser, params, (X, LABELS), micro_batches=micro_batches))
    state = flatten(precision.cast_state(block, initial_state(params, optimiser)))[0]
    return block, [*state, X, LABELS, np.float32(0.05)]


@pytest.mark.parametrize("micro_batches", [1, 3])
@pytest.mark.parametrize("spec", SPECS)
def test_joined_computations_have_the_bits_of_single_ones(spec: str, micro_batches: int) -> None:
    block, given = step(spec, micro_batches)
    machine = Machine.build(block, FEW, whole=True)
    orders = {number: planned.accumulation for number, planned in machine.lowered.plan.sums.items()}
    direct = Executable(block, orders, chained=False)
    for run in range(2):
        with num_threads(1 + 2 * run):
            outputs = machine.run(given, Key(run)), direct.run(given, Key(run))
        for got, wanted in zip(*outputs, strict=True):
            assert got.tobytes() == wanted.tobytes()
        given[: block.carried] = outputs[0][: block.carried]


def test_the_account_is_that_of_the_vertices_and_the_reference_computes_one_by_one() -> None:
    block, _ = step("fp16.16/stochastic", 1)
    machines = [Machine.build(block, FEW, whole=whole) for whole in (True, False)]
    assert machines[0].profile.to_json() == machines[1].profile.to_json()
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    small = Precision.parse("fp16.16/stochastic").apply(trace(lambda x: nn.softmax(np.tanh(x) * 0.5), x))
    machine = Machine.build(small, FEW, whole=True)
    wanted = machine.run([x], 3)
    with backend("reference"):
        assert machine.run([x], 3)[0].tobytes() == wanted[0].tobytes()
    with pytest.raises(ValueError, match="draws random bits: give the engine a key"):
        Machine.build(small, FEW, whole=True).run([x], None)


def test_neighbours_are_joined_and_what_lies_between_stays() -> None:
    ran: list[int] = []

    def one(number: int) -> Joined:
        return Joined(None, [lambda: ran.append(number)], [], draws=True)  # type: ignore[arg-type]

    def other() -> None:
        ran.append(-1)

    found = joined([one(0), one(1), other, other, one(2)])
    assert [type(call) for call in found] == [Joined, type(other), type(other), Joined]


@pytest.mark.parametrize("made, draws", [(lambda x: nn.relu(np.tanh(x)), [True, False]),
                                         (lambda x: np.tanh(nn.relu(x)), [False, True])])  # fmt: skip
def test_whoever_draws_in_a_joined_call_asks_for_a_key(made: Callable[[Any], Any], draws: list[bool]) -> None:
    x = np.linspace(-1, 1, 12, dtype=np.float16).reshape(3, 4)
    block = Precision.parse("fp16.16/stochastic").apply(trace(made, x))
    assert [equation.draws is not None for equation in block.equations] == draws
    machine = Machine.build(block, FEW, whole=True)
    assert any(isinstance(call, Joined) for call in machine.engine._calls[0])
    with pytest.raises(ValueError, match="draws random bits: give the engine a key"):
        machine.run([x], None)


def test_a_step_is_few_calls() -> None:
    block, _ = step("fp32.32", 1)
    calls = Machine.build(block, FEW, whole=True).engine._calls[0]
    assert sum(isinstance(call, Joined) for call in calls) > 3
    assert len(calls) < len(block.equations) / 3
