"""Equations that share compute sets: fewer supersteps, the same bits, no more memory; none that may not run at once."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest

from ipu_core.chip.target import Target
from ipu_core.compile.lowering import lower
from ipu_core.compile.lowering.lower import Lowered
from ipu_core.compile.machine import Machine
from ipu_core.compile.planning import BlockPlan, plan
from ipu_core.compile.schedule.residency import scheduled
from ipu_core.compile.schedule.supersteps import shared
from ipu_core.engine.memory import MemoryAccount
from ipu_core.engine.profile import Profile
from ipu_core.ir.block import Block, Var
from ipu_core.ir.bodies import equations_of, outputs_of, runs_of
from ipu_core.ir.liveness.lifetimes import lifetimes
from ipu_core.ir.passes.guard import guarded
from ipu_core.ir.passes.streaming import streaming
from ipu_core.ir.precision.precision import Precision
from ipu_core.ir.run.execute import Executable
from ipu_core.ir.trace.tracing import trace
from ipu_core.ir.verify import verify
from ipu_core.study.models import lm
from ipu_core.study.models.size import Size
from ipu_core.train.loop import TrainLoop
from ipu_core.train.optim import Adam, AdamW, Lamb, Optimizer, Sgd
from ipu_core.train.step import step_block

CONTEXT, FEW = 8, Target("gc200", tiles=24)


def initial(layers: int) -> Any:
    """Parameters of a small language model."""
    return lm.initial(lm.layout(Size(width=16, layers=layers, heads=2, context=CONTEXT)), 0)


loss = partial(lm.loss, 2)


def rows(count: int) -> tuple[Any, Any]:
    """Bytes to train on."""
    text = np.random.default_rng(1).integers(0, 256, (count, CONTEXT), np.int32)
    return text, text[:, ::-1].copy()


def step(layers: int, optimizer: Optimizer, precision: str, **more: Any) -> Block:
    """A step of that model, in order."""
    block = step_block(loss, optimizer, initial(layers), rows(4), **more)
    typed = Precision.parse(precision).apply(block)
    return scheduled(guarded(typed) if more.get("scaled") else typed, FEW)


STEPS: dict[str, Callable[[int], Block]] = {
    "adamw": lambda n: step(n, AdamW(0.1, clip_norm=1.0), "fp16.16/stochastic"),
    "guarded rounds": lambda n: step(n, Adam(0.1), "fp16.16/stochastic", micro_batches=2, scaled=True),
    "streamed": lambda n: step(n, Lamb(0.1), "mlperf-bert"),
    "all streamed": lambda n: streaming(step(n, Lamb(0.1), "fp32.32"), ["params.*", "optimizer.*_moment.*"]),
    "lamb": lambda n: step(n, Lamb(0.1), "fp32.32"),
}
QUICK = list(STEPS)[:4]


def supersteps(profile: Profile) -> int:
    """Of a run, transfers not counted."""
    return sum(each.count for each in profile.steps if each.kind in ("execute", "copy"))


class Built(NamedTuple):
    """A step, and what becomes of it with every equation in compute sets of its own, and with shared ones."""

    name: str
    block: Block
    planned: BlockPlan
    lowered: tuple[Lowered, Lowered]
    machines: tuple[Machine, Machine]


@pytest.fixture(
    scope="module",
    params=[
        *(pytest.param((name, 1), id=name) for name in QUICK),
        *(pytest.param((name, 2), id=f"{name}, two layers", marks=pytest.mark.slow) for name in STEPS),
    ],
)
def built(request: pytest.FixtureRequest) -> Built:
    name, layers = request.param
    block = STEPS[name](layers)
    planned = plan(block, FEW)
    apart, joined = lower(block, planned, share=False), lower(block, planned, share=True)
    return Built(name, block, planned, (apart, joined), (Machine(apart), Machine(joined)))


STATE = "vertex state"


def values(memory: MemoryAccount) -> int:
    """Bytes of the fullest tile but for its vertices."""
    return memory.peak_bytes - memory.categories[STATE]


def test_fewer_supersteps_in_no_more_memory(built: Built) -> None:
    apart, joined = (machine.profile for machine in built.machines)
    assert supersteps(joined) < (0.9 if "streamed" in built.name else 0.65) * supersteps(apart)
    assert joined.cycles < 0.97 * apart.cycles
    assert joined.compute_cycles <= apart.compute_cycles
    assert joined.exchange_cycles <= apart.exchange_cycles
    assert joined.exchanged <= apart.exchanged  # what several read comes once
    # Equal vertices of compute sets apart share their state, those of one have their own: the values need no more.
    assert values(joined.memory) <= values(apart.memory)
    kept = [sum(int(v.sum()) for name, v in one.memory.always.items() if name != STATE) for one in (joined, apart)]
    assert kept[0] == kept[1]
    assert (joined.loaded, joined.stored) == (apart.loaded, apart.stored)


def test_what_runs_at_once_needs_nothing_of_each_other(built: Built) -> None:
    block = built.block
    new, together, _ = shared(block, built.planned)
    verify(new)
    assert {e.number for e in equations_of(new)} == {e.number for e in equations_of(block)}
    views, number = lifetimes(new).views, {e.number: i for i, e in enumerate(equations_of(new))}
    far = {views[var].root for i in block.streamed for var in (block.inputs[i], outputs_of(block)[i])}
    seen = [one for group in together for one in group]
    assert len(seen) == len(set(seen)) > len(together) > 0
    for group in together:
        first, last = number[group[0]], number[group[-1]]
        equations = [e for e in equations_of(new)[first : last + 1] if e.number in group]
        assert [e.number for e in equations] == list(group)
        between = {e.output for e in equations_of(new)[first : last + 1]} - {e.output for e in equations}
        assert all(views[var].root is not var for var in between)
        made: set[Var] = {e.output for e in equations}
        read = {views[var].root for e in equations for var in e.operands}
        assert not made & read
        assert not (made | read) & far
        assert len({e.op for e in equations}) == 1
        assert all(not first < run.first <= last for run in runs_of(new))


def test_activations_in_streaming_memory_are_computed_and_read_alone() -> None:
    typed = Precision.parse("fp16.16/stochastic").apply(step_block(loss, Sgd(0.1), initial(2), rows(4)))
    block = scheduled(streaming(typed, "blocks"), FEW)
    views, (new, together, _) = lifetimes(block).views, shared(block, plan(block, FEW))
    joined = {number for group in together for number in group}
    touched = {e.number for e in block.equations if {views[v].root for v in (e.output, *e.operands)} & block.offloaded}
    assert len(touched) > 20
    assert len(joined) > 20
    assert not touched & joined
    assert new.offloaded == block.offloaded


def test_the_bits_are_the_same(built: Built) -> None:
    """Also on whole arrays."""
    block, rng = built.block, np.random.default_rng(0)
    given = [
        rng.integers(0, 256, kind.shape).astype(np.int32)
        if isinstance(kind.format, str)
        else rng.uniform(0.01, 0.1, kind.shape).astype(kind.format.dtype)
        for kind in (var.type for var in block.inputs)
    ]
    runners = (*built.machines, Executable(block, built.planned.accumulations))
    for apart, *others in zip(*(runner.run(given, 7) for runner in runners), strict=True):
        assert {apart.tobytes()} == {other.tobytes() for other in others}


def test_sums_of_one_shape_take_the_time_of_the_slowest_tile_of_all() -> None:
    def sums(x: Any, y: Any, z: Any, large: Any) -> Any:
        return x.sum(axis=0), y.sum(axis=0), z.sum(axis=1), large * 2.0

    arrays = [np.ones((6, 40), np.float32)] * 3
    block = trace(sums, *arrays, np.ones((40, 240), np.float32))
    apart, joined = (Machine(lower(block, plan(block, FEW), share=share)).profile for share in (False, True))
    executes = [[each.account for each in profile.steps if each.kind == "execute"] for profile in (apart, joined)]
    assert len(executes[0]) == len(executes[1]) + 1
    both = next(each for each in executes[1] if each.name.endswith(": and 1 more"))
    first, second, *_ = executes[0]
    assert both.joined == (first.name, second.name)
    np.testing.assert_array_equal(both.compute, first.compute + second.compute)  # on each tile, one after the other
    assert both.vertices == first.vertices + second.vertices
    assert both.sync_cycles == first.sync_cycles == second.sync_cycles
    assert both.exchange_cycles < first.exchange_cycles + second.exchange_cycles
    assert joined.cycles < apart.cycles


def test_a_chain_shares_nothing() -> None:
    block = trace(lambda x: ((x + 1.0) + 2.0) + 3.0, np.ones(4, np.float32))
    assert shared(block, plan(block, FEW)) == (block, (), {})


def test_a_loop_shares_unless_it_is_to_stay_as_traced() -> None:
    steps = {}
    for reorder in (True, False):
        loop = TrainLoop(
            loss, initial(1), rows(4),
            optimizer=AdamW(0.01), precision="fp16.16/stochastic", target=FEW, reorder=reorder,
        )  # fmt: skip
        losses = loop.run([rows(4)] * 2, 2)
        assert loop.profile is not None
        steps[reorder] = supersteps(loop.profile), losses.tolist()
    assert steps[True][0] < 0.7 * steps[False][0]
    assert steps[True][1] == steps[False][1]
