"""Gradient accumulation: the loop on both engines against the same equations run one after another by hand."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipu_core import nn
from ipu_core.chip.target import Target
from ipu_core.compile.machine import Machine
from ipu_core.compile.planning import choose_accumulations
from ipu_core.compile.schedule.residency import check_room
from ipu_core.errors import OutOfTileMemory
from ipu_core.ir.block import Array, Block, Var
from ipu_core.ir.bodies import carries_of, closed, inputs_of
from ipu_core.ir.liveness.lifetimes import in_place
from ipu_core.ir.passes.autodiff import value_and_grad
from ipu_core.ir.precision.precision import Precision
from ipu_core.ir.pytree import flatten
from ipu_core.ir.regions import Loop
from ipu_core.ir.run.evaluate import evaluate_flat
from ipu_core.ir.run.execute import Executable
from ipu_core.ir.trace.tracing import accumulated_over, trace
from ipu_core.ir.verify import UseBeforeDefinition, WrongType, verify
from ipu_core.placement.orders import OrderRule
from ipu_core.train.optim import Lamb, Optimizer, Sgd
from ipu_core.train.step import initial_state, step_block
from lowprec import Key
from tests.examples import examples

PRECISIONS = ["fp32.32", "fp16.32/stochastic", "fp16.16/stochastic", "mlperf-bert", "mlperf-bert-pod16"]
WIDTHS = (12, 10, 5)


def loss(params: Any, batch: Any) -> Any:
    x, y = batch
    hidden = nn.dropout(nn.relu(nn.linear(x, **params[0])), 0.25)
    return nn.softmax_cross_entropy(nn.linear(hidden, **params[1]), y)


def block_of(precision: str, count: int, rows: int = 3, optimizer: Optimizer = Lamb(0.01)) -> tuple[Block, list[Array]]:  # noqa: B008  # frozen
    """A typed step in a loop, and inputs for it."""
    rng = np.random.default_rng(count)
    batch = rng.normal(size=(count * rows, 12)).astype(np.float32), rng.integers(0, 5, count * rows).astype(np.int32)
    params = nn.mlp_parameters(3, list(WIDTHS))
    table = Precision.parse(precision)
    ideal = step_block(loss, optimizer, params, batch, micro_batches=count, running_mean=table.running_mean)
    block = verify(table.apply(ideal))
    state = table.cast_state(block, initial_state(params, optimizer))
    return block, [*flatten((state, batch))[0], np.float32(0.05)]


def by_hand(block: Block, inputs: Sequence[Array], key: Key, orders: Mapping[int, Any]) -> list[Array]:
    """The rounds one after another: a Block of their equations alone, run with keys and parts written out here."""
    equation, *after = block.equations
    loop = equation.region
    assert isinstance(loop, Loop)
    inside, fed = loop.body.equations, dict(loop.fed)
    later = {x for e in after for x in e.operands} | set(block.outputs)
    seen = [e.output for e in inside if e.output in later] + [new for _, new in loop.carries]
    old = [var for var, _ in loop.carries]
    numbers = [{e.number for e in part} for part in (inside, after)]
    body = Executable(
        replace(block, inputs=(*inputs_of(block), *old), outputs=tuple(seen), equations=inside, carried=0),
        {n: order for n, order in orders.items() if n in numbers[0]},
    )
    values: dict[Var, Array] = dict(zip(block.inputs, inputs, strict=True))
    values |= {var: np.zeros(var.type.shape, var.type.format.dtype) for var in old}  # type: ignore[union-attr]
    for number in range(loop.count):
        parts = [np.split(values[var], loop.count)[number] if var in fed else values[var] for var in block.inputs]
        own = key if number == 0 else key.fold_in(2**32 + number)
        values |= dict(zip(seen, body.run([*parts, *(values[var] for var in old)], own), strict=True))
        values |= {before: values[new] for before, new in loop.carries}
    wanted = tuple(dict.fromkeys(var for var in seen))
    whole = [var for var in block.inputs if var not in fed]
    rest = Executable(
        replace(block, inputs=(*whole, *wanted), equations=tuple(after), carried=0),
        {n: order for n, order in orders.items() if n in numbers[1]},
    )
    return rest.run([values[var] for var in (*whole, *wanted)], key)


@examples(quick=6, slow=12)
@given(
    st.sampled_from(PRECISIONS),
    st.integers(2, 8),
    st.integers(1, 4),
    st.sampled_from([Lamb(0.01), Sgd(0.1, momentum=0.5)]),
    st.integers(0, 2**63),
)
def test_both_engines_and_the_declared_arithmetic_do_what_is_done_by_hand(
    precision: str, count: int, rows: int, optimizer: Optimizer, seed: int
) -> None:
    block, inputs = block_of(precision, count, rows, optimizer)
    target, key = Target("gc200", tiles=7), Key(seed)
    orders = choose_accumulations(block, OrderRule.of(target))
    expected = [x.tobytes() for x in by_hand(block, inputs, key, orders)]
    assert [x.tobytes() for x in Executable(block, orders).run(inputs, key)] == expected
    assert [x.tobytes() for x in Machine.build(block, target, orders).run(inputs, key)] == expected
    if count == 2:
        declared = evaluate_flat(block, inputs, "declared", key=key, accumulations=orders)
        assert [x.tobytes() for x in declared] == expected


def test_eight_iterations_are_the_eight_unrolled() -> None:
    for precision in PRECISIONS:
        block, inputs = block_of(precision, 8)
        orders = choose_accumulations(block, OrderRule.of(Target("gc200")))
        expected = by_hand(block, inputs, Key(5), orders)
        for runner in (Executable(block, orders), Machine.build(block, Target("gc200", tiles=24), orders)):
            for got, wanted in zip(runner.run(inputs, Key(5)), expected, strict=True):
                assert got.tobytes() == wanted.tobytes()


def test_totals_are_updated_in_place() -> None:
    for precision in PRECISIONS:
        block, _ = block_of(precision, 4)
        assert {new for _, new in carries_of(block)} <= in_place(block).keys()


def test_a_total_that_cannot_lie_in_place_is_copied_each_round() -> None:
    """A product with the total before reads all of it while the new one is written."""
    a = np.arange(9, dtype=np.float32).reshape(3, 3) / 8

    def f(state: Any, x: Any) -> Any:
        totals = accumulated_over(lambda t: {"a": t["b"] @ x + x, "b": t["a"] + 1.0, "c": t["c"]}, x,
                           {"a": a, "b": a, "c": a}, 3)  # fmt: skip
        return state + totals["a"] + totals["c"], totals["b"].sum()

    block = verify(trace(f, a, a, carry=True))
    inputs = [a, np.concatenate([a, 2 * a, -a])]
    totals = np.zeros((3, 3, 3))
    for x in (a, 2 * a, -a):
        totals = np.array([totals[1] @ x + x, totals[0] + 1, totals[2]])
    wanted = a + totals[0]
    for got in (
        evaluate_flat(block, inputs),
        Executable(block).run(inputs, 0),
        Machine.build(block, Target("gc200", tiles=3)).run(inputs, 0),
    ):
        np.testing.assert_allclose(got[0], wanted, rtol=1e-6)
        np.testing.assert_allclose(got[1], totals[1].sum(), rtol=1e-6)


@pytest.mark.parametrize("count", [2, 192])
def test_no_more_is_counted_than_the_engine_needs(count: int) -> None:
    target = Target("gc200", tiles=7)
    block, _ = block_of("mlperf-bert", count)
    peak = Machine.build(block, target).engine.memory.peak_bytes
    with pytest.raises(OutOfTileMemory) as caught:
        check_room(block, replace(target, tile_memory=1))
    assert caught.value.needed <= peak
    check_room(block, replace(target, tile_memory=caught.value.needed))


def test_the_account_counts_every_round() -> None:
    cycles = []
    for count in (2, 3, 12):
        block, _ = block_of("fp32.32", count)
        machine = Machine.build(block, Target("gc200", tiles=7))
        profile = machine.profile
        assert profile.cycles == sum(step.count * step.account.cycles for step in profile.steps)
        assert {step.count for step in profile.steps if step.name.startswith("stream feed")} == {1, count}
        cycles.append(profile.cycles)
    assert cycles[2] - cycles[1] == 9 * (cycles[1] - cycles[0])


def test_what_is_no_loop_is_refused() -> None:
    block, inputs = block_of("fp32.32", 2)
    equation, *after = block.equations
    loop = equation.region
    assert isinstance(loop, Loop)
    (old, _), *others = loop.carries
    (_, part), *more = loop.fed

    def of(**changes: Any) -> Block:
        changed = replace(block, equations=(replace(equation, region=replace(loop, **changes)), *after))
        return closed(changed)

    with pytest.raises(UseBeforeDefinition, match="which no equation of the iterations computes"):
        verify(of(carries=((old, block.inputs[0]), *others)))
    with pytest.raises(WrongType, match="before an iteration and"):
        verify(of(carries=((old, others[0][1]), *others)))
    with pytest.raises(UseBeforeDefinition, match="which is no input"):
        verify(of(fed=((block.inputs[0], part), *more)))
    with pytest.raises(WrongType, match="3 rounds with parts"):
        verify(of(count=3))
    for runner in (Executable(block), Machine.build(block, Target("gc200", tiles=7))):
        with pytest.raises(ValueError, match=r"must have shape \(6, 12\), not \(3, 12\)"):
            runner.run([*inputs[:-3], inputs[-3][:3], *inputs[-2:]], 0)

    def twice(x: Any) -> Any:
        return accumulated_over(lambda t: accumulated_over(lambda s: s + x, x, x, 2) + t, x, x, 2)

    with pytest.raises(ValueError, match="only one loop"):
        trace(twice, np.ones(3, np.float32))
    with pytest.raises(ValueError, match="cannot become the number 3"):
        trace(lambda x: accumulated_over(lambda t: 3.0, x, x, 2), np.ones(3, np.float32))
    looped = trace(lambda x: accumulated_over(lambda t: t + x, x, x, 2).sum(), np.ones(3, np.float32))
    with pytest.raises(ValueError, match="a loop or a branch cannot be differentiated"):
        value_and_grad(looped)


def test_iterations_are_printed() -> None:
    text = str(block_of("mlperf-bert-pod16", 4)[0])
    assert "4 iterations, each with its part of %batch.0, %batch.1, from zeros:" in text
    assert "%total.gradients.0.bias: float16[10] <- " in text
