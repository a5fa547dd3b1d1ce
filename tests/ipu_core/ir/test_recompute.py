"""Forward values that are made again for the gradients: the same bits, less memory, and a minimum cut."""

from __future__ import annotations

import functools
import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipu_core import AdamW, Machine, Sgd, Target, TrainLoop, nn
from ipu_core.compile.schedule.transfers import transfers
from ipu_core.ir.block import Block, Type, Var
from ipu_core.ir.bodies import equations_of
from ipu_core.ir.passes.dependences import dependences
from ipu_core.ir.passes.guard import BACKWARD
from ipu_core.ir.passes.recompute import _far_side, recompute
from ipu_core.ir.passes.schedule import peak, schedule
from ipu_core.ir.passes.streaming import streaming
from ipu_core.ir.run.execute import Executable, execute
from ipu_core.ir.verify import verify
from ipu_core.study.models.size import Size
from ipu_core.train.step import step_block
from lowprec import float16
from tests.ipu_core.ir.test_schedule import STEPS, step


def temporaries(block: Block) -> int:
    known = dependences(block, 4)
    return peak(known, range(len(known.reads)))


@pytest.mark.parametrize("name", STEPS)
def test_the_same_bits_whatever_the_step_is_like(name: str) -> None:
    old = STEPS[name]()
    new = verify(recompute(old))
    assert len(equations_of(new)) > len(equations_of(old))
    rng = np.random.default_rng(0)

    def fill(var: Var) -> Any:
        kind = var.type
        if kind.format == "int32":
            return rng.integers(0, 200, kind.shape).astype(np.int32)
        return np.abs(rng.normal(size=kind.shape)).astype(kind.format.dtype)  # type: ignore[union-attr]

    inputs = [fill(var) for var in old.inputs]
    wanted, found = (execute(block, *inputs, key=3) for block in (bare(old), bare(new)))
    for one, other in zip(wanted, found, strict=True):
        np.testing.assert_array_equal(one, other)


def bare(block: Block) -> Block:
    """The Block as a function of its inputs one by one."""

    return replace(block, arguments=(), result=None)


@pytest.mark.parametrize("precision", ["fp32.32", "fp16.16/stochastic"])
def test_a_language_model_s_temporaries_fall_by_a_fifth_and_more(precision: str) -> None:
    old = step(AdamW(0.1), precision, rows=8, size=Size(width=64, layers=2, heads=4, context=64))
    new = recompute(old)
    assert temporaries(schedule(new, 4)) < 0.8 * temporaries(schedule(old, 4))
    copies = [equation for equation in equations_of(new) if equation.drawn is not None]
    assert copies
    assert {e.op for e in copies}.isdisjoint({"dot", "reduce_sum", "reduce_max", "gather"})
    assert not [e for e in copies if e.role in BACKWARD]


def test_what_waits_in_streaming_memory_is_read_from_there_and_not_made_again() -> None:
    """It is kept already: made again beside, it would be stored for nobody."""
    old = step(Sgd(0.1), "fp16.16/stochastic", size=Size(width=16, layers=1, heads=2, context=8))
    far = streaming(old, ["*.gelu", "blocks.0.attention.exp"])
    again = {name: {e.output.name for e in recompute(block).equations} for name, block in (("", old), ("far", far))}
    ways = transfers(recompute(far))
    assert len(far.offloaded) == 2
    for var in far.offloaded:
        assert f"{var.name}.again" in again[""]
        assert f"{var.name}.again" not in again["far"]
        assert any(var in loaded for loaded in ways.loads.values())


@pytest.mark.parametrize("engine", ["direct", "tiles"])
@pytest.mark.filterwarnings("ignore::ipu_core.errors.NothingSaved")  # of a model as small as this
def test_a_loop_ends_with_the_same_bits(engine: str) -> None:
    def loss(params: Any, batch: Any) -> Any:
        h = nn.dropout(nn.gelu(nn.layer_norm(batch[0]) @ params["in"]), 0.25)
        return nn.softmax_cross_entropy(nn.gelu(h) @ params["out"], batch[1])

    rng = np.random.default_rng(1)
    batch = rng.normal(size=(16, 24)).astype(np.float32), rng.integers(0, 4, 16).astype(np.int32)
    params = {"in": nn.he_normal(1, (24, 32)), "out": nn.lecun_normal(2, (32, 4))}
    make = functools.partial(TrainLoop, loss, params, batch, optimizer=Sgd(0.1), key=5, engine=engine)
    for precision in ("fp16.16/stochastic", "fp16.16/nearest"):
        plain, again = (make(precision=precision, recompute=choice) for choice in (False, True))
        assert len(equations_of(again.block)) > len(equations_of(plain.block))
        assert [plain.train(batch) for _ in range(4)] == [again.train(batch) for _ in range(4)]
        for name in params:
            np.testing.assert_array_equal(plain.params[name], again.params[name])


def test_vertices_make_the_same_bits_as_whole_arrays() -> None:
    """The copies draw the first ones' random bits on the machine's vertices too."""
    block = recompute(step(Sgd(0.1), "fp16.16/stochastic", size=Size(width=16, layers=1, heads=2, context=8)))
    rng = np.random.default_rng(0)
    state = [rng.normal(size=v.type.shape).astype(v.type.format.dtype) for v in block.inputs[: block.carried]]  # type: ignore[union-attr]
    rest = block.inputs[block.carried :]
    fed = [np.ones(v.type.shape, np.int32 if v.type.format == "int32" else np.float32) for v in rest]
    results = []
    machine = Machine.build(block, Target("gc200", tiles=16))
    for runner in (machine, Executable(block, machine.plan.accumulations)):
        runner.write(state)
        runner.feed(fed, 7)
        results.append(runner.read())
    for one, other in zip(*results, strict=True):
        np.testing.assert_array_equal(one, other)


def test_the_tiles_own_generators_cannot_draw_twice() -> None:
    def loss(params: Any, batch: Any) -> Any:
        return nn.mse(batch[0] @ params, batch[1])

    batch = np.ones((4, 8), np.float32), np.ones((4, 2), np.float32)
    with pytest.raises(ValueError, match="never draw the same bits again: recompute needs random='philox'"):
        TrainLoop(
            loss, np.ones((8, 2), np.float32), batch,
            optimizer=Sgd(0.1), precision="fp16.16/stochastic", random="hardware", recompute=True,
        )  # fmt: skip


@st.composite
def graphs(draw: st.DrawFn) -> tuple[dict[Var, set[Var]], dict[Var, float], set[Var]]:
    count = draw(st.integers(1, 7))
    values = [Var(str(i), Type((draw(st.integers(1, 9)),), float16)) for i in range(count)]
    sources = {v: {u for u in values[:i] if draw(st.booleans())} for i, v in enumerate(values)}
    prices = st.one_of(st.just(0.0), st.integers(1, 20).map(float))
    cheap = {v: draw(prices) for v in values if draw(st.booleans())}
    needed = {v for v in values if draw(st.booleans())}
    return sources, cheap, needed


@given(graphs())
def test_what_is_kept_and_made_again_costs_the_least_there_is(
    graph: tuple[dict[Var, set[Var]], dict[Var, float], set[Var]],
) -> None:
    """Against every choice of what to keep."""
    sources, cheap, needed = graph

    def made_again(kept: set[Var]) -> set[Var] | None:
        pending, found = list(needed - kept), set[Var]()
        while pending:
            value = pending.pop()
            if value not in cheap:
                return None
            if value not in found:
                found.add(value)
                pending += sources[value] - kept
        return found

    def costs(kept: set[Var], again: set[Var]) -> float:
        return sum(2 * value.type.size for value in kept) + sum(cheap[value] for value in again)

    choices = (set(c) for n in range(len(sources) + 1) for c in itertools.combinations(sources, n))
    least = min(costs(kept, again) for kept in choices if (again := made_again(kept)) is not None)
    anew = _far_side(sources, cheap, needed)
    read = needed.union(*(sources[value] for value in anew)) if anew else needed
    kept = read - anew
    assert made_again(kept) == anew
    assert costs(kept, set(anew)) == least


def test_what_lives_to_the_end_is_not_made_again() -> None:
    def loss(params: Any, state: Any, batch: Any) -> Any:
        h = nn.gelu(batch @ params["in"])
        return nn.mean(nn.square(h @ params["out"])), h

    params = {"in": np.ones((8, 16), np.float32), "out": np.ones((16, 4), np.float32)}
    state = np.zeros((32, 16), np.float32)
    kept = step_block(loss, Sgd(0.1), params, np.ones((32, 8), np.float32), model_state=state)
    assert "gelu" not in {e.op for e in recompute(kept).equations if e.drawn is not None}
    free = step_block(
        lambda p, s, b: (loss(p, s, b)[0], s), Sgd(0.1), params, np.ones((32, 8), np.float32), model_state=state
    )
    assert "gelu" in {e.op for e in recompute(free).equations if e.drawn is not None}
