"""The order of a Block: less memory at a time, never more, and no rule of the old order broken."""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipu_core import nn
from ipu_core.compile.schedule.transfers import transfers
from ipu_core.ir.block import Block, Equation, Params, Type, Var, dtype_of
from ipu_core.ir.bodies import carries_of, equations_of, regions_of, runs_of
from ipu_core.ir.liveness.lifetimes import in_place, lifetimes
from ipu_core.ir.passes.autodiff import value_and_grad
from ipu_core.ir.passes.dependences import dependences, reordered
from ipu_core.ir.passes.guard import guarded
from ipu_core.ir.passes.schedule import dead_code, peak, schedule
from ipu_core.ir.passes.streaming import streaming
from ipu_core.ir.precision.precision import Precision
from ipu_core.ir.regions import Loop
from ipu_core.ir.trace.tracing import trace
from ipu_core.ir.verify import verify
from ipu_core.study.models import lm
from ipu_core.study.models.size import Size
from ipu_core.train.optim import Adam, AdamW, Lamb, Optimizer, Sgd
from ipu_core.train.step import step_block
from lowprec import float32
from tests.examples import examples, first

SIZE = Size(width=16, layers=2, heads=2, context=8)


def step(optimizer: Optimizer, precision: str, rows: int = 4, size: Size = SIZE, **more: Any) -> Block:
    """A step of a small language model."""
    text = np.zeros((rows, size.context), np.int32)
    params = lm.initial(lm.layout(size), 0)

    def loss(params: Any, batch: Any) -> Any:
        return lm.loss(size.heads, params, batch)

    return Precision.parse(precision).apply(step_block(loss, optimizer, params, (text, text), **more))


STEPS = {
    "sgd": lambda: step(Sgd(0.1, momentum=0.9), "fp16.16/stochastic"),
    "clipped": lambda: step(AdamW(0.1, clip_norm=1.0), "fp32.32"),
    "rounds": lambda: step(Adam(0.1), "fp16.32", micro_batches=2),
    "guarded": lambda: guarded(step(Lamb(0.1), "fp16.32", scaled=True)),
    "guarded rounds": lambda: guarded(step(Lamb(0.1), "mlperf-bert-pod16", scaled=True, micro_batches=4)),
    "streamed": lambda: step(Lamb(0.1), "mlperf-bert"),
    "all streamed": lambda: streaming(step(Lamb(0.1), "fp32.32"), ["params.*", "optimizer.*_moment.*"]),
}


@cache
def step_of(name: str) -> Block:
    return STEPS[name]()


def live_bytes(block: Block) -> int:
    """The peak as one would count it by hand, of what is neither streamed nor an iteration's."""
    views, last, over = lifetimes(block).views, lifetimes(block).last, in_place(block)
    made = [(position, e.output) for position, e in enumerate(equations_of(block)) if views[e.output].root is e.output]
    spans = [
        (first, max(first, last.get(var, first)), var.type.size * dtype_of(var.type.format).itemsize)
        for first, var in made
        if var not in over
    ]
    computing = [position for position, _ in made]
    return max(sum(size for first, end, size in spans if first <= now <= end) for now in computing)


@pytest.mark.parametrize("name", STEPS)
def test_a_scheduled_step_keeps_the_rules_of_the_old_order(name: str) -> None:
    old = step_of(name)
    new = verify(schedule(old))
    assert new is not old
    assert [run[:2] for run in runs_of(new)] == [run[:2] for run in runs_of(old)]
    for begin, last, _ in runs_of(old):
        assert set(equations_of(new)[begin:last]) == set(equations_of(old)[begin:last])
    assert {f.name for f in fields(Block) if getattr(new, f.name) != getattr(old, f.name)} == {"equations"}
    assert in_place(new).items() >= in_place(old).items()
    ways = [transfers(block) for block in (old, new)]
    assert len(list(itertools.chain.from_iterable(ways[1].loads.values()))) == sum(map(len, ways[0].loads.values()))
    known = [dependences(block, 1) for block in (old, new)]
    traced, scheduled = (peak(one, range(len(one.reads))) for one in known)
    assert scheduled < traced
    if not old.streamed and not regions_of(old, Loop):
        assert (traced, scheduled) == (live_bytes(old), live_bytes(new))
    assert [e.number for e in equations_of(schedule(STEPS[name]()))] == [e.number for e in equations_of(new)]


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("seed", first(1, range(5)))
def test_every_order_that_the_dependences_allow_keeps_state_in_place_and_loads_no_more(seed: int, name: str) -> None:
    old = step_of(name)
    known, rng = dependences(old, 1), np.random.default_rng(seed)
    order, done = list[int](), set[int]()
    for part in known.parts:
        left = list(rng.permutation(part))
        while left:
            ready = [node for node in left if known.before[node] <= done][: 1 + int(rng.integers(4))]
            order += ready
            done.update(ready)
            left = [node for node in left if node not in done]
    new = verify(reordered(old, known, order))
    assert set(equations_of(new)) == set(equations_of(old))
    assert in_place(new).items() >= in_place(old).items()
    loads = [sum(map(len, transfers(block).loads.values())) for block in (new, old)]
    assert loads[0] == loads[1]


def test_views_that_nothing_computes_with_are_kept() -> None:
    def moved(x: Any) -> Any:
        twice = x * 2.0
        return x.T[1:], twice.T, twice.reshape(12).reshape(3, 4), (x.T + 1.0).sum()

    block = trace(moved, np.ones((3, 4), np.float32))
    known = dependences(block, 1)
    for order in itertools.permutations(range(len(known.reads))):
        if all(known.before[node] <= set(order[:place]) for place, node in enumerate(order)):
            new = verify(reordered(block, known, order))
            assert set(new.equations) == set(block.equations)


def test_what_is_loaded_is_stored_before_it_is_loaded_again() -> None:
    block = schedule(step_of("all streamed"))
    ways = transfers(block)
    for index in block.streamed:
        store = next(position for position, stored in ways.stores.items() if index in stored)
        assert max(position for position, loaded in ways.loads.items() if block.inputs[index] in loaded) <= store


def test_updates_come_as_soon_as_their_gradients() -> None:
    """Where parameters are more than activations, no more than a few gradients live at a time."""
    size = Size(width=64, layers=4, heads=2, context=8)
    old = step(Sgd(0.1), "fp32.32", rows=1, size=size)
    new = schedule(old)
    largest = max(var.type.size * 4 for var in old.inputs[: old.carried])
    assert live_bytes(old) > 12 * largest
    assert live_bytes(new) < 6 * largest


def test_a_result_waits_for_what_reads_it() -> None:
    """The loss's exponentials are made once what else reads its logits is done with them."""

    def loss(x: Any, labels: Any) -> Any:
        return nn.softmax_cross_entropy(x * 2.0, labels)

    old = trace(value_and_grad(loss), np.ones((4, 32), np.float32), np.zeros(4, np.int32))
    new = schedule(old)
    ops = [e.op for e in new.equations]
    assert [e.op for e in old.equations].index("exp") < [e.op for e in old.equations].index("select")
    assert ops.index("select") < ops.index("exp")
    assert live_bytes(old) - live_bytes(new) >= 4 * 32 * 4


def joined(name: str, number: int, operands: Sequence[Var], total: bool) -> Equation:
    """One value after another, or their sum's likes: a large result, or one of a single element."""
    if total:
        kind, params = Type((1,), float32), Params({"axis": (0,), "keepdims": True})
        return Equation(number, "reduce_sum", (operands[0],), (Var(name, kind),), params)
    kind = Type((sum(var.type.size for var in operands),), float32)
    return Equation(number, "concatenate", tuple(operands), (Var(name, kind),), Params({"axis": 0}))


@st.composite
def small_blocks(draw: Any) -> Block:
    """Blocks of a few equations that make values of many sizes of one another."""
    start = Var("x", Type((draw(st.integers(1, 4)),), float32))
    known, equations = [start], []
    for number in range(draw(st.integers(2, 7))):
        operands = draw(st.lists(st.sampled_from(known), min_size=1, max_size=2))
        equations.append(joined(str(number), number, operands, draw(st.booleans())))
        known.append(equations[-1].output)
    outputs = draw(st.lists(st.sampled_from(known[1:]), min_size=1, max_size=2, unique=True))
    return verify(Block((start,), tuple(outputs), tuple(equations)))


def possible(block: Block) -> Iterator[Block]:
    """The Block in every order that its dependences allow."""
    for order in itertools.permutations(block.equations):
        there = {*block.inputs}
        for equation in order:
            if not there.issuperset(equation.operands):
                break
            there.add(equation.output)
        else:
            yield replace(block, equations=order)


@examples(quick=60, slow=60)
@given(block=small_blocks())
def test_no_order_is_worse_than_the_traced_or_better_than_the_best(block: Block) -> None:
    new = verify(schedule(block))
    assert min(map(live_bytes, possible(block))) <= live_bytes(new) <= live_bytes(block)
    known = dependences(new, 1)
    assert peak(known, range(len(known.reads))) == live_bytes(new)


@pytest.mark.parametrize("size, made, kept, traced, best", [
    (4, [((0,), False), ((0, 0), False), ((1,), True)], 3, 48, 32),  # first late, then early: the other way round 36
    (3, [((0,), True), ((0, 0), False), ((1,), True)], 2, 32, 24),  # first early, then late: the other way round 32
])  # fmt: skip
def test_both_alternatives_to_the_traced_order_are_tried(
    size: int, made: list[tuple[tuple[int, ...], bool]], kept: int, traced: int, best: int
) -> None:
    block = made_of(size, made, kept)
    assert live_bytes(block) == traced
    assert live_bytes(schedule(block)) == best


def made_of(size: int, made: Sequence[tuple[tuple[int, ...], bool]], kept: int) -> Block:
    """A Block of one input: by equation what it reads, 0 the input, and whether it gives a single element."""
    known, equations = [Var("x", Type((size,), float32))], []
    for number, (operands, total) in enumerate(made):
        equations.append(joined(str(number), number, [known[one] for one in operands], total))
        known.append(equations[-1].output)
    return Block((known[0],), (known[kept],), tuple(equations))


def test_what_needs_more_on_the_way_than_there_was_waits() -> None:
    """Moved forward whatever it takes, the runs that make room would make the order worse, and the trace would stay."""
    block = made_of(3, [((0,), False), ((1, 1), True), ((1,), True), ((2,), True), ((1, 3), True)], 3)
    assert (live_bytes(block), live_bytes(schedule(block))) == (24, 20)


def test_what_lives_to_the_end_makes_no_room() -> None:
    block = made_of(1, [((0,), True), ((0, 1), True), ((1, 0), False), ((0, 1), True), ((2, 1), True)], 3)
    assert (live_bytes(block), live_bytes(schedule(block))) == (16, 12)


def test_sizes_are_multiples_of_the_grain() -> None:
    block = step(Sgd(0.1), "fp32.32")
    for grain in (1, 64, 4096):
        known = dependences(block, grain)
        exact = dependences(block, 1).bytes
        assert known.bytes == [math.ceil(size / grain) * grain for size in exact]


def test_totals_are_made_though_nothing_behind_the_rounds_reads_them() -> None:
    old = STEPS["rounds"]()
    new = verify(dead_code(replace(old, outputs=old.inputs[: old.carried], result=None)))
    ((loop, step),), ((_, before),) = (regions_of(block, Loop) for block in (new, old))
    assert (step.first, step.last) == (before.first, before.last) == (0, len(equations_of(new)))
    assert [after.type for _, after in loop.carries] == [after.type for _, after in carries_of(old)]
    known = dependences(new, 1)
    kept = {equations_of(new)[maker].output for one in known.kept if (maker := known.values[one].maker) is not None}
    assert kept >= {after for _, after in loop.carries}
