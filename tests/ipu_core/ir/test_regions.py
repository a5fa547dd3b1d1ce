"""Regions: bodies found, rewritten, checked and printed in one walk, and steps with them run to the same bits."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ipu_core import nn
from ipu_core.chip.target import Target
from ipu_core.compile.machine import Machine
from ipu_core.compile.planning import choose_accumulations, plan
from ipu_core.compile.schedule.residency import scheduled
from ipu_core.ir.block import Block, Equation, Params, Region, Type, Var, text
from ipu_core.ir.bodies import (
    EquationSpan,
    RegionSpan,
    closed,
    equations_of,
    fresh,
    inputs_of,
    mapped,
    outputs_of,
    refilled,
    region,
    regions_of,
    runs_of,
    steps_of,
    with_body,
)
from ipu_core.ir.liveness.lifetimes import lifetimes
from ipu_core.ir.passes.autodiff import value_and_grad
from ipu_core.ir.passes.guard import guarded
from ipu_core.ir.passes.recompute import recompute
from ipu_core.ir.passes.schedule import dead_code, schedule
from ipu_core.ir.passes.streaming import streaming
from ipu_core.ir.precision.precision import Precision
from ipu_core.ir.pytree import flatten
from ipu_core.ir.regions import Branch, Loop
from ipu_core.ir.run.evaluate import evaluate_flat
from ipu_core.ir.run.execute import Executable
from ipu_core.ir.trace.tracing import accumulated_over, interpret, trace
from ipu_core.ir.verify import DuplicateDefinition, InvalidBlock, UseBeforeDefinition, WrongType, verify
from ipu_core.placement.orders import OrderRule
from ipu_core.train.optim import Adam
from ipu_core.train.step import initial_state, step_block
from lowprec import Key, float16, float32
from tests.examples import examples

TARGET = Target("gc200", tiles=7)
OPTIMIZER = Adam(0.01)
A = np.arange(6, dtype=np.float32).reshape(2, 3)


def loss(params: Any, batch: Any) -> Any:
    x, y = batch
    hidden = nn.dropout(nn.gelu(nn.linear(x, **params[0])), 0.25)
    return nn.softmax_cross_entropy(nn.linear(hidden, **params[1]), y)


def step_of(
    precision: str, rounds: int, *, branch: bool = True, streamed: tuple[str, ...] = (), again: bool = False
) -> tuple[Block, list[Any]]:
    """A typed step, and inputs for it."""
    rng, params = np.random.default_rng(rounds), nn.mlp_parameters(3, [6, 5, 4])
    batch = rng.normal(size=(4 * rounds, 6)).astype(np.float32), rng.integers(0, 4, 4 * rounds).astype(np.int32)
    table = Precision.parse(precision)
    ideal = step_block(
        loss, OPTIMIZER, params, batch, micro_batches=rounds, scaled=branch, running_mean=table.running_mean
    )
    block = streaming(table.apply(ideal), streamed)
    block = guarded(block) if branch else block
    state = table.cast_state(block, initial_state(params, OPTIMIZER))
    numbers = [np.float32(0.05), np.float32(64)] if branch else [np.float32(0.05)]
    return recompute(block) if again else block, [*flatten((state, batch))[0], *numbers]


@examples(quick=3, slow=60)
@example("fp8.16/delayed", 1, True, ("optimizer.*",), True, False, True, 0)
@given(
    st.sampled_from(["fp32.32", "fp16.16/stochastic", "mlperf-bert-pod16", "fp8.16/delayed"]),
    st.integers(1, 3),
    st.booleans(),
    st.sampled_from([(), ("optimizer.*",), ("params.*", "optimizer.*")]),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.integers(0, 2**63),
)
def test_every_way_to_run_regions_gives_the_bits_of_the_plain_walk(
    precision: str, rounds: int, branch: bool, streamed: Any, overlap: bool, again: bool, fine: bool, seed: int
) -> None:
    """Also where the branch is not taken, whatever is streamed, overlapped, made again and in what order."""
    target = Target("c600", tiles=7) if precision.startswith("fp8") else TARGET
    block, inputs = step_of(precision, rounds, branch=branch, streamed=streamed, again=again)
    if branch and not fine:
        inputs[-1] = np.float32(np.inf)
    orders, key = choose_accumulations(block, OrderRule.of(target)), Key(seed)
    expected = [x.tobytes() for x in evaluate_flat(block, inputs, "declared", key=key, accumulations=orders)]
    if branch:
        assert fine == (expected[: block.carried] != [x.tobytes() for x in inputs[: block.carried]])
    for one in (block, scheduled(block, target)):
        assert [x.tobytes() for x in Executable(verify(one), orders).run(inputs, key)] == expected
    machine = Machine.build(one, target, orders, overlap=overlap, share=overlap)
    assert [x.tobytes() for x in machine.run(inputs, key)] == expected


def test_the_walk_meets_every_equation_once_in_its_region() -> None:
    block, _ = step_of("fp16.16/stochastic", 3)
    loop, *between, branch = block.equations
    assert (loop.op, branch.op, loop.number, branch.number) == ("loop", "branch", -1, -2)
    assert isinstance(loop.region, Loop)
    assert isinstance(branch.region, Branch)
    inside = loop.region.body.equations, branch.region.body.equations
    every = equations_of(block)
    assert every == (*inside[0], *between, *inside[1])
    assert (
        len({e.number for e in every})
        == len(every)
        == fresh(block.equations) - sum(n not in {e.number for e in every} for n in range(fresh(block.equations)))
    )
    ends = [0, len(inside[0]), len(every) - len(inside[1]), len(every)]
    assert runs_of(block) == (
        EquationSpan(0, 0, ()),
        EquationSpan(0, ends[1], (loop,)),
        EquationSpan(ends[1], ends[2], ()),
        EquationSpan(ends[2], ends[3], (branch,)),
        EquationSpan(ends[3], ends[3], ()),
    )
    steps = steps_of(block)
    assert [type(step) for step in steps] == [EquationSpan, RegionSpan, EquationSpan, RegionSpan, EquationSpan]
    assert [step[:] for _, step in regions_of(block, Region)] == [step[:] for step in steps[1::2]]


def test_a_region_reads_and_gives_what_its_body_does() -> None:
    block, _ = step_of("fp16.16/stochastic", 3)
    loop, *between, branch = block.equations
    assert loop.region is not None
    body, own = loop.region.body, set(loop.region.own)
    made = {e.output for e in body.equations}
    read = {var for e in body.equations for var in e.operands} - made - own
    assert set(body.inputs) == own | read
    assert set(loop.inputs) == read | set(loop.region.operands)
    after = {var for e in (*between, branch) for var in e.operands}
    assert set(loop.outputs) >= after & made
    assert {var.name for var in loop.outputs} >= {after.name for _, after in loop.region.carries}  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match=rf"region\.loop\.-1 is a region: it has {len(loop.outputs)} outputs"):
        loop.output  # noqa: B018
    assert inputs_of(block)[: block.carried] == block.inputs[: block.carried]
    fed = inputs_of(block)[block.carried : block.carried + 2]
    assert [var.type.shape for var in block.inputs[block.carried : block.carried + 2]] == [(12, 6), (12,)]
    assert [var.type.shape for var in fed] == [(4, 6), (4,)]
    assert {e.output for e in equations_of(block)} >= set(outputs_of(block))
    assert not {e.output for e in equations_of(block)} & set(block.outputs[: block.carried])


def test_a_rewrite_goes_into_bodies_and_leaves_numbers() -> None:
    block, _ = step_of("fp16.16/stochastic", 3)
    named = mapped(block, lambda equation: replace(equation, layer="here"))
    assert {e.layer for e in equations_of(named)} == {"here"}
    same = refilled(block, [equations_of(block)[run.first : run.last] for run in runs_of(block)])
    for one in (named, same, closed(block), dead_code(block)):
        assert text(verify(one)) == text(block)
        assert [(e.inputs, e.outputs) for e in one.equations] == [(e.inputs, e.outputs) for e in block.equations]
    numbers = {e.number for e in equations_of(block)}
    assert {e.number for e in equations_of(schedule(block))} == numbers
    kept = {e.number for e in equations_of(recompute(block)) if e.drawn is None}
    assert kept == numbers
    assert all(e.drawn in numbers for e in equations_of(recompute(block)) if e.drawn is not None)


def test_what_only_a_dead_equation_needs_goes_from_a_body_too() -> None:
    block, _ = step_of("fp32.32", 2)
    loop, *after = block.equations
    assert loop.region is not None
    total = loop.region.own[-1]
    spare = Equation(fresh(block.equations), "square", (total,), (Var("spare", total.type),), Params({}))
    more = closed(replace(block, equations=(with_body(loop, (*loop.region.body.equations, spare)), *after)))
    assert len(equations_of(verify(more))) == 1 + len(equations_of(block))
    assert str(dead_code(more)) == str(block)


def test_the_text_is_that_which_digests_were_made_of() -> None:
    block, _ = step_of("fp32.32", 2)
    lines = text(block).splitlines()
    assert lines[0].startswith("block(%state.optimizer.corrections.0: float32[], ")
    assert "%batch.0: float32[4,6], %batch.1: int32[4]" in lines[0]
    begin = lines.index("  2 iterations, each with its part of %batch.0, %batch.1, from zeros:")
    branch = regions_of(block, Branch)[0][0]
    middle = lines.index(f"  if {branch.flag}, else the state stays as it was:")
    (inside,) = (loop for loop, _ in regions_of(block, Loop))
    count = len(inside.body.equations) + len(inside.carries)
    assert all(line.startswith("    %") for line in lines[begin + 1 : begin + 1 + count])
    before, after = inside.carries[-1]
    assert lines[begin + count] == f"    {before}: {before.type} <- {after}"
    assert not any(line.startswith("    ") for line in lines[begin + 1 + count : middle])
    assert len(lines) == middle + 2 + len(branch.body.equations)
    assert lines[-1] == f"  return {', '.join(map(str, outputs_of(block)))}"


def broken() -> Iterator[tuple[str, Block, type[InvalidBlock], str]]:
    """Blocks that break a rule of regions: name, Block, error, message."""
    block, _ = step_of("fp32.32", 2)
    loop, *between, branch = block.equations
    inner, choice = loop.region, branch.region
    assert isinstance(inner, Loop)
    assert isinstance(choice, Branch)

    def looped(equation: Equation) -> Block:
        return replace(block, equations=(equation, *between, branch))

    def of_loop(**changes: Any) -> Block:
        return looped(replace(loop, region=replace(inner, **changes)))

    def of_body(**changes: Any) -> Block:
        return of_loop(body=replace(inner.body, **changes))

    def of_branch(**changes: Any) -> Block:
        return closed(replace(block, equations=(loop, *between, replace(branch, region=replace(choice, **changes)))))

    stray = Var("stray", Type((2,), float32))
    first, *others = inner.body.equations
    state = next(var for var in inner.body.inputs if var in block.inputs)
    yield "not an input", looped(replace(loop, inputs=tuple(x for x in loop.inputs if x is not state))), \
        UseBeforeDefinition, f"its body reads {state}, which is no input"  # fmt: skip
    inputs = tuple(var for var in inner.body.inputs if var is not state)
    yield "not in the body", of_body(inputs=inputs), UseBeforeDefinition, f"{state} is not defined before it is used"
    yield "a stray input", of_body(inputs=(*inner.body.inputs, stray)), UseBeforeDefinition, "its body reads %stray"
    yield "a stray output", of_body(outputs=(*inner.body.outputs, stray)), UseBeforeDefinition, "output %stray"
    yield "an output dropped", of_body(outputs=inner.body.outputs[1:]), UseBeforeDefinition, "is no output of the body"
    twice = replace(first, number=between[0].number)
    yield "one number in and out", of_body(equations=(twice, *others)), DuplicateDefinition, "another equation has"
    yield "a number that draws", looped(replace(loop, number=10_000)), DuplicateDefinition, "is negative"
    again = replace(first, number=10_000, outputs=(state,), inputs=(state,), op="absolute")
    yield "defined twice", of_body(equations=(again, *others)), DuplicateDefinition, f"{state} is defined twice"
    yield "no results", looped(replace(loop, outputs=())), WrongType, "a region without results"
    (before, after), *totals = inner.carries
    half = Var(before.name, Type(before.type.shape, float16))
    yield "a total's type", of_loop(carries=((half, after), *totals), body=replace(
        inner.body, inputs=tuple(half if x is before else x for x in inner.body.inputs),
        equations=tuple(replace(e, inputs=tuple(half if x is before else x for x in e.inputs))
                        for e in inner.body.equations))), WrongType, "before an iteration and"  # fmt: skip
    yield "another count", of_loop(count=5), WrongType, "5 rounds with parts"
    old = choice.chosen[0][2]
    yield "an old value of another leaf", of_branch(chosen=((*choice.chosen[0][:2], choice.chosen[1][2]), \
        *choice.chosen[1:])), UseBeforeDefinition, "all of it"  # fmt: skip
    wrong = Var("wrong", Type((7,), float32))
    yield (
        "a choice of other types",
        replace(
            of_branch(chosen=((wrong, *choice.chosen[0][1:]), *choice.chosen[1:])), outputs=(wrong, *block.outputs[1:])
        ),
        WrongType,
        f"is chosen of .* and {old.type}".replace("[", r"\[").replace("]", r"\]"),
    )
    late = choice.body.equations[-1].output
    yield "read outside", replace(block, outputs=(*block.outputs, late)), UseBeforeDefinition, "is read outside"


BROKEN = {name: case for name, *case in broken()}


@pytest.mark.parametrize("name", BROKEN)
def test_a_malformed_region_is_refused(name: str) -> None:
    block, error, message = BROKEN[name]
    with pytest.raises(error, match=message):
        verify(block)


@dataclass(frozen=True, eq=False)
class Checkpointed(Region):
    """A kind that no pass knows: a body that runs once."""


PLAIN = trace(lambda x, y: (nn.gelu(x * y) + x).sum(), A, A)


def checkpointed() -> Block:
    """PLAIN with such a region in its middle."""
    first, *middle, last = PLAIN.equations
    equation = region(Checkpointed(Block((), (), tuple(middle))), "checkpoint", PLAIN.equations)
    return closed(replace(PLAIN, equations=(first, equation, last)))


def test_a_kind_that_is_new_needs_no_change_where_passes_only_look() -> None:
    block, plain = checkpointed(), PLAIN
    assert [e.op for e in block.equations] == [plain.equations[0].op, "checkpoint", plain.equations[-1].op]
    assert equations_of(verify(block)) == plain.equations
    assert [line.strip() for line in str(block).splitlines()] == [line.strip() for line in str(plain).splitlines()]
    assert lifetimes(block) == lifetimes(plain)
    assert dead_code(block).equations[1].outputs == block.equations[1].outputs
    assert equations_of(verify(schedule(block))) == plain.equations
    assert plan(block, TARGET).accumulations == plan(plain, TARGET).accumulations


WAYS: dict[str, tuple[Callable[[Block], Any], str]] = {
    "evaluated": (lambda block: evaluate_flat(block, [A, A]), "no evaluation of Checkpointed"),
    "executed": (Executable, "no execution of Checkpointed"),
    "lowered": (lambda block: Machine.build(block, TARGET), "no lowering of Checkpointed"),
    "traced": (lambda block: interpret(block, [A, A]), "cannot join a trace"),
    "differentiated": (value_and_grad, "cannot be differentiated"),
    "typed": (Precision.parse("fp16.32").apply, "no typing of Checkpointed"),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_kind_that_a_pass_does_not_know_is_refused_not_passed_over(way: str) -> None:
    block = checkpointed()
    run, message = WAYS[way]
    with pytest.raises((NotImplementedError, ValueError), match=message):
        run(block)


def test_what_is_bad_in_the_first_round_is_bad_after_the_last() -> None:
    block, inputs = step_of("fp16.16/nearest", 3)
    branch = regions_of(block, Branch)[0][0]
    inputs[block.carried][0] = np.nan
    bad = dict(zip(branch.names, evaluate_flat(block, inputs, "declared", key=0)[-1], strict=True))
    looked_at = [name for name in bad if name.startswith("0.weight.grad_weight.")]
    assert looked_at
    assert all(bad[name] == 1 for name in looked_at)


def test_what_a_loop_reads_lives_until_its_last_equation() -> None:
    block = trace(lambda x, w: accumulated_over(lambda t: (x * w + 1.0) * 2.0 + t, x, A, 2), A, A)
    ((loop, step),) = regions_of(block, Loop)
    last = lifetimes(block).last
    ((whole, part),) = loop.fed
    assert last[block.inputs[1]] == step.last - 1 == 3
    assert last[part] == 0
    assert whole not in last
