"""Equations that share compute sets: fewer supersteps, the same bits, no more memory; none that may not run at once."""

from typing import Any

import numpy as np
import pytest

from ipu_core.compile.lowering import lower
from ipu_core.compile.machine import Machine
from ipu_core.compile.planning import plan
from ipu_core.compile.residency import scheduled
from ipu_core.compile.supersteps import shared
from ipu_core.engine.profile import Profile
from ipu_core.ir.block import Block, Var
from ipu_core.ir.guard import guarded
from ipu_core.ir.lifetimes import lifetimes
from ipu_core.ir.precision import Precision
from ipu_core.ir.streaming import streaming
from ipu_core.ir.tracing import trace
from ipu_core.ir.verify import verify
from ipu_core.study import lm
from ipu_core.study.size import Size
from ipu_core.target import Target
from ipu_core.train.loop import TrainLoop
from ipu_core.train.optim import Adam, AdamW, Lamb, Optimiser
from ipu_core.train.step import step_block

SIZE, FEW = Size(width=16, layers=2, heads=2, context=8), Target("gc200", tiles=24)
PARAMS = lm.initial(lm.layout(SIZE), 0)


def loss(params: Any, batch: Any) -> Any:
    """Of a small language model."""
    return lm.loss(SIZE.heads, params, batch)


def rows(count: int) -> tuple[Any, Any]:
    """Bytes to train on."""
    text = np.random.default_rng(1).integers(0, 256, (count, SIZE.context), np.int32)
    return text, text[:, ::-1].copy()


def step(optimizer: Optimiser, precision: str, **more: Any) -> Block:
    """A step of that model, in order."""
    block = step_block(loss, optimizer, PARAMS, rows(4), **more)
    typed = Precision.parse(precision).apply(block)
    return scheduled(guarded(typed) if more.get("scaled") else typed, FEW)


STEPS = {
    "adamw": lambda: step(AdamW(0.1, clip_norm=1.0), "fp16.16/stochastic"),
    "lamb": lambda: step(Lamb(0.1), "fp32.32"),
    "guarded rounds": lambda: step(Adam(0.1), "fp16.16/stochastic", micro_batches=2, scaled=True),
    "streamed": lambda: step(Lamb(0.1), "mlperf-bert"),
    "all streamed": lambda: streaming(step(Lamb(0.1), "fp32.32"), ["params.*", "optimiser.*_moment.*"]),
}


def supersteps(profile: Profile) -> int:
    """Of a run, transfers not counted."""
    return sum(each.count for each in profile.steps if each.kind in ("execute", "copy"))


@pytest.mark.parametrize("name", STEPS)
def test_fewer_supersteps_in_no_more_memory(name: str) -> None:
    block = STEPS[name]()
    apart, joined = (Machine(lower(block, plan(block, FEW), share=share)).profile for share in (False, True))
    assert supersteps(joined) < (0.9 if "streamed" in name else 0.65) * supersteps(apart)
    assert joined.cycles < 0.97 * apart.cycles
    assert joined.compute_cycles <= apart.compute_cycles
    assert joined.exchange_cycles <= apart.exchange_cycles
    assert joined.exchanged <= apart.exchanged  # what several read comes once
    assert joined.memory.peak_bytes <= apart.memory.peak_bytes
    assert joined.memory.always_bytes == apart.memory.always_bytes
    assert (joined.loaded, joined.stored) == (apart.loaded, apart.stored)


@pytest.mark.parametrize("name", STEPS)
def test_what_runs_at_once_needs_nothing_of_each_other(name: str) -> None:
    block = STEPS[name]()
    new, together = shared(block, plan(block, FEW))
    verify(new)
    assert {e.number for e in new.equations} == {e.number for e in block.equations}
    views, number = lifetimes(new).views, {e.number: i for i, e in enumerate(new.equations)}
    far = {views[var].root for i in block.streamed for var in (block.inputs[i], block.outputs[i])}
    seen = [one for group in together for one in group]
    assert len(seen) == len(set(seen)) > len(together) > 0
    for group in together:
        first, last = number[group[0]], number[group[-1]]
        equations = [e for e in new.equations[first : last + 1] if e.number in group]
        assert [e.number for e in equations] == list(group)
        between = {e.output for e in new.equations[first : last + 1]} - {e.output for e in equations}
        assert all(views[var].root is not var for var in between)
        made: set[Var] = {e.output for e in equations}
        read = {views[var].root for e in equations for var in e.operands}
        assert not made & read
        assert not (made | read) & far
        assert len({e.op for e in equations}) == 1
        for end in (new.looped, new.unguarded):
            assert not first < end <= last


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("whole", [False, True])
def test_the_bits_are_the_same(name: str, whole: bool) -> None:
    block, rng = STEPS[name](), np.random.default_rng(0)
    given = [
        rng.integers(0, 256, kind.shape).astype(np.int32)
        if isinstance(kind.format, str)
        else rng.uniform(0.01, 0.1, kind.shape).astype(kind.format.dtype)
        for kind in map(block.given, block.inputs)
    ]
    planned = plan(block, FEW)
    results = [Machine(lower(block, planned, share=share), whole=whole).run(given, 7) for share in (False, True)]
    for apart, joined in zip(*results, strict=True):
        assert apart.tobytes() == joined.tobytes()


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
    np.testing.assert_array_equal(both.compute, first.compute + second.compute)  # on each tile, one after the other
    assert both.vertices == first.vertices + second.vertices
    assert both.sync_cycles == first.sync_cycles == second.sync_cycles
    assert both.exchange_cycles < first.exchange_cycles + second.exchange_cycles
    assert joined.cycles < apart.cycles


def test_a_chain_shares_nothing() -> None:
    block = trace(lambda x: ((x + 1.0) + 2.0) + 3.0, np.ones(4, np.float32))
    assert shared(block, plan(block, FEW)) == (block, ())


def test_a_loop_shares_unless_it_is_to_stay_as_traced() -> None:
    steps = {}
    for reorder in (True, False):
        loop = TrainLoop(
            loss, PARAMS, rows(4), optimizer=AdamW(0.01), precision="fp16.16/stochastic", target=FEW, reorder=reorder
        )
        losses = loop.run([rows(4)] * 2, 2)
        assert loop.profile is not None
        steps[reorder] = supersteps(loop.profile), losses.tolist()
    assert steps[True][0] < 0.7 * steps[False][0]
    assert steps[True][1] == steps[False][1]
