"""Activations in streaming memory until gradients read them: the same bits, less memory, an exact account."""

from functools import cache, partial
from typing import Any

import numpy as np
import pytest

from ipu_core import nn
from ipu_core.chip.target import Target
from ipu_core.compile.machine import Machine
from ipu_core.compile.schedule.residency import scheduled
from ipu_core.compile.schedule.transfers import transfers
from ipu_core.engine.profile import Profile
from ipu_core.ir.block import Block
from ipu_core.ir.bodies import equations_of
from ipu_core.ir.liveness.lifetimes import lifetimes
from ipu_core.ir.liveness.stays import phase
from ipu_core.ir.passes.guard import guarded
from ipu_core.ir.passes.recompute import recompute
from ipu_core.ir.passes.streaming import offloadable, streaming
from ipu_core.ir.precision.precision import Precision
from ipu_core.ir.run.execute import Executable
from ipu_core.study.models import lm
from ipu_core.study.models.size import Size
from ipu_core.train.loop import TrainLoop
from ipu_core.train.optim import AdamW, Sgd
from ipu_core.train.step import step_block

SIZE, FEW = Size(width=16, layers=2, heads=2, context=8), Target("gc200", tiles=32)
PARAMS = lm.initial(lm.layout(SIZE), 0)
NAMES = ((), "*.gelu", ("*.attention.exp", "blocks.0.*.gelu"), "blocks.0.*", "blocks")


def loss(params: Any, batch: Any) -> Any:
    return lm.loss(SIZE.heads, params, batch)


def batches(step: int) -> tuple[Any, Any]:
    text = np.random.default_rng(step).integers(0, 256, (4, SIZE.context), np.int32)
    return text, text[:, ::-1].copy()


def loop(streamed: Any = (), engine: str = "tiles", precision: str = "fp16.16/stochastic", **more: Any) -> TrainLoop:
    how = {"optimizer": AdamW(0.01), "target": FEW, "key": 7} | more
    return TrainLoop(loss, PARAMS, batches(0), precision=precision, engine=engine, streamed=streamed, **how)


def profile(made: TrainLoop) -> Profile:
    assert made.profile is not None
    return made.profile


@cache
def as_traced(names: Any) -> TrainLoop:
    """On tiles, in the order of the trace."""
    return loop(names, reorder=False)


@pytest.mark.filterwarnings("ignore::ipu_core.errors.NothingSaved")  # of a model as small as this
def test_both_engines_make_the_same_bits_whatever_is_streamed() -> None:
    runs = [*map(partial(loop, engine="direct"), ((), "blocks")), *map(as_traced, NAMES)]
    runs += [loop("blocks", overlap=True), loop("blocks", recompute=True)]
    losses = {made.run(batches, 3).tobytes() for made in runs}
    assert len(losses) == 1
    states = [made.arrays() for made in runs]
    assert all(x[name].tobytes() == states[0][name].tobytes() for x in states for name in states[0])


@pytest.mark.slow
def test_so_does_every_part_in_the_order_that_is_chosen() -> None:
    first, *others = [loop(names).run(batches, 3).tobytes() for names in NAMES]
    assert set(others) == {first}


def typed(streamed: Any, **more: Any) -> Block:
    """A step with rounds and a guard, in order."""
    block = step_block(loss, Sgd(0.1), PARAMS, batches(0), scaled=True, **more)
    return scheduled(guarded(streaming(Precision.parse("fp16.16/stochastic").apply(block), streamed)), FEW)


@pytest.mark.parametrize("more", [{}, {"micro_batches": 2}])
def test_vertices_make_the_same_bits_in_rounds_and_behind_a_guard(more: Any) -> None:
    block = typed("blocks", **more)
    rng = np.random.default_rng(0)
    given = [
        rng.integers(0, 256, kind.shape).astype(np.int32)
        if isinstance(kind.format, str)
        else rng.uniform(0.01, 0.1, kind.shape).astype(kind.format.dtype)
        for kind in (var.type for var in block.inputs)
    ]
    machine = Machine.build(block, FEW)
    for one, other in zip(
        machine.run(given, 3), Executable(block, machine.plan.accumulations).run(given, 3), strict=True
    ):
        assert one.tobytes() == other.tobytes()


@pytest.mark.parametrize("names", NAMES[1:])
@pytest.mark.filterwarnings("ignore::ipu_core.errors.NothingSaved")  # of a model as small as this
def test_a_store_and_a_load_each_and_less_memory_in_between(names: Any) -> None:
    far, near = profile(as_traced(names)), profile(as_traced(()))
    steps = [step for step in far.steps if step.kind == "remote"]
    stored = [step.name.removeprefix("store ") for step in steps if step.name.startswith("store ")]
    loaded = [step.name.removeprefix("load ") for step in steps if step.name.startswith("load ")]
    assert sorted(stored) == sorted(loaded)
    assert len(set(stored)) == len(stored) > 0
    assert far.loaded == far.stored == far.memory.remote > 0
    assert far.cycles - near.cycles == far.streaming_cycles
    assert near.memory.peak_bytes == far.memory.unstreamed.max()
    assert far.memory.always_bytes == near.memory.always_bytes
    if names == "blocks":
        assert far.memory.peak_bytes < 0.93 * near.memory.peak_bytes


@pytest.mark.parametrize("more", [{}, {"micro_batches": 2}])
def test_it_comes_back_once_for_all_gradients_in_any_order(more: Any) -> None:
    block = typed("blocks", **more)
    ways, made = transfers(block), {e.output: i for i, e in enumerate(equations_of(block))}
    views = lifetimes(block).views
    assert {var for some in ways.offloads.values() for var in some} == block.offloaded
    for var in block.offloaded:
        (load,) = (position for position, some in ways.loads.items() if var in some)
        reads = [
            position
            for position, e in enumerate(equations_of(block))
            if views[e.output].root is e.output and var in {views[x].root for x in e.operands}
        ]
        assert var in ways.offloads[made[var]]
        assert load == min(position for position in reads if phase(equations_of(block)[position]))
        assert all(phase(equations_of(block)[position]) == (position >= load) for position in reads)


def test_what_gradients_make_anew_may_read_what_was_streamed() -> None:
    block = Precision.parse("fp32.32").apply(step_block(loss, Sgd(0.1), PARAMS, batches(0)))
    again = recompute(streaming(block, "blocks.*.perceptron.up"))
    assert again.offloaded
    assert {phase(e) for e in equations_of(again) if e.drawn is not None} == {1}
    assert again.offloaded <= {e.output for e in equations_of(again)}


def test_names_that_nothing_has_are_refused_with_those_there_are() -> None:
    with pytest.raises(
        ValueError, match=r"no part of the state and no activation that can be streamed is called 'block'"
    ):
        loop("block")
    block = Precision.parse("fp32.32").apply(step_block(loss, Sgd(0.1), PARAMS, batches(0)))
    results = {lifetimes(block).views[var].root for var in block.outputs}
    assert offloadable(block)
    assert not results & offloadable(block).keys()
    assert all(e.role == "forward" for e in offloadable(block).values())


def test_what_is_a_result_too_does_not_go_there() -> None:
    def shown(params: Any, state: Any, x: Any) -> Any:
        h = nn.gelu(x @ params["in"])
        return nn.mean(nn.square(h @ params["out"])), h if state.ndim == 2 else state

    params = {"in": np.ones((8, 16), np.float32), "out": np.ones((16, 4), np.float32)}
    for state, there in ((np.zeros((32, 16), np.float32), False), (np.zeros(1, np.float32), True)):
        block = step_block(shown, Sgd(0.1), params, np.ones((32, 8), np.float32), model_state=state)
        assert ("gelu" in {e.op for e in offloadable(Precision.parse("fp32.32").apply(block)).values()}) == there
