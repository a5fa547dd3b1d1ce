"""What runs a step: whole arrays with the tiles' bill, or vertices where they are asked for; state, profile, copies."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ipu_core.chip.control import FloatingPointControl
from ipu_core.chip.hardware_random import HardwareRandom
from ipu_core.chip.target import Target
from ipu_core.compile.machine import Machine
from ipu_core.compile.planning import choose_accumulations
from ipu_core.engine.profile import Profile
from ipu_core.errors import FloatingPointException, OutOfTileMemory
from ipu_core.ir.block import Block
from ipu_core.ir.precision.precision import Precision
from ipu_core.ir.trace.tracing import trace
from ipu_core.placement.orders import OrderRule
from ipu_core.train.loop import TrainLoop
from ipu_core.train.runner import Runner
from lowprec import Accumulation, Key
from tests.ipu_core.train.test_loop import batches, bits, loop
from tests.ipu_core.train.test_loss_scale import spoilt

TARGET = Target("gc200", tiles=8)
TRAPS = FloatingPointControl(oflo=True)


def profile(made: TrainLoop) -> Profile:
    assert made.profile is not None
    return made.profile


def nothing(*given: Any, **more: Any) -> Any:
    raise AssertionError("nobody asked for that")


def test_tiles_run_no_vertices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Machine, "__init__", nothing)
    made, direct = loop("fp16.16/stochastic", "tiles"), loop("fp16.16/stochastic")
    np.testing.assert_array_equal(made.run(batches, 3), direct.run(batches, 3))
    assert bits(made) == bits(direct)
    assert profile(made).cycles > 0
    assert direct.profile is None
    assert made.words() != direct.words()


@pytest.mark.filterwarnings("ignore::ipu_core.errors.Unvalidated")
@pytest.mark.parametrize("more", [{"random": "hardware"}, {"control": TRAPS}], ids=["hardware", "traps"])
def test_vertices_run_where_they_are_asked_for(more: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    fed: list[Machine] = []
    real = Machine.feed
    monkeypatch.setattr(Machine, "feed", lambda self, *given: fed.append(self) or real(self, *given))
    made, other = loop("fp16.16/stochastic", "tiles", **more), loop("fp16.16/stochastic", "tiles")
    assert (made.run(batches, 2).tobytes() == other.run(batches, 2).tobytes()) == ("control" in more)
    assert len(fed) == 2
    assert fed[0].read()[0].tobytes() == made._stepper.runner.read()[0].tobytes()
    assert profile(made).cycles > 0


def product() -> tuple[Block, dict[int, Accumulation], list[np.ndarray]]:
    """A carried product of halves, in two parts that overflow and cancel each other."""
    a, b = np.full((4, 64), 100, np.float32), np.full((64, 4), 30, np.float32)
    b[32:] *= -1
    ideal = trace(lambda state, b: (state * 1.0, state @ b), a, b, carry=True)
    block = Precision.parse("fp16.16/nearest").apply(ideal)
    order = Accumulation(group=16, splits=2, accumulate="float16", out="float16")
    numbers = [e.number for e in block.equations if e.op == "dot"]
    return block, dict.fromkeys(numbers, order), [x.astype(v.type.format.dtype) for x, v in zip((a, b), block.inputs)]  # type: ignore[union-attr]  # noqa: B905


def test_vertices_see_an_overflow_in_a_part_of_a_sum() -> None:
    block, orders, (state, b) = product()
    trapping = Runner(block, TARGET, orders, TRAPS, "tiles")
    trapping.write([state])
    with pytest.raises(
        FloatingPointException, match=r"matmul: overflow: a result of at least 65504, in forward\.dot\.\d"
    ):
        trapping.feed([b], Key(1))
    silent = Runner(block, TARGET, orders, FloatingPointControl(), "tiles")
    silent.write([state])
    np.testing.assert_array_equal(silent.feed([b], Key(1))[0], 0)


def test_the_state_that_is_written_is_that_which_is_read_and_goes_on() -> None:
    block, orders, (state, b) = product()
    for control in (FloatingPointControl(), FloatingPointControl(div0=True)):
        made = Runner(block, TARGET, orders, control, "tiles")
        for factor in (1, 2):
            made.write([state * state.dtype.type(factor)])
            made.feed([b], Key(1))
            np.testing.assert_array_equal(made.read()[0], state * state.dtype.type(factor))


SCALED: dict[str, Any] = {"loss_scale": 64.0, "precision": "fp16.16/stochastic", "engine": "tiles"}


def test_the_profile_is_that_of_the_last_step() -> None:
    made = loop(**SCALED)
    vertices = Machine.build(made.block, made.target, made.accumulations, made.control, share=True, parallel=True)
    assert not profile(made).measured
    cycles = {}
    for step in range(6):
        state, key = made.next_step(spoilt(step))
        made.train(spoilt(step))
        vertices.run(state, key)
        assert profile(made).measured
        assert profile(made).to_json() == vertices.profile.to_json()
        cycles[bool(made.skipped) and made.skipped[-1].step == step] = profile(made).cycles
    assert cycles[True] < cycles[False]


def test_a_rehearsal_and_a_look_leave_the_profile_of_what_was_done() -> None:
    made, watched = loop(**SCALED), loop(**SCALED, watch=1)
    for step in range(5):
        for each in (made, watched):
            each.train(spoilt(step))
        assert profile(made).to_json() == profile(watched).to_json()
    last = profile(made).to_json()
    made.count_updates(batches(5))
    assert profile(made).to_json() == last
    made.train(batches(5))
    assert profile(made).cycles > last["cycles"]


def test_a_call_of_several_steps_has_the_profile_of_its_last_one() -> None:
    made, single = loop(**SCALED, steps_per_call=5), loop(**SCALED)
    for steps in (5, 5):
        made.run(spoilt, steps)
        single.run(spoilt, steps)
        assert [(step.name, step.count) for step in profile(made).steps] == [
            (step.name, step.count) for step in profile(single).steps
        ]


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda loop: pickle.loads(pickle.dumps(loop))])
def test_a_copy_compiles_nothing_anew(again: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    made = loop(**SCALED)
    made.run(spoilt, 5)
    monkeypatch.setattr("ipu_core.compile.bill.bill", nothing)
    other = again(made)
    assert profile(other).to_json() == profile(made).to_json()
    assert other.words() == made.words()
    for each in (made, other):
        each.train(batches(5))
    assert bits(made) == bits(other)
    assert profile(other).to_json() == profile(made).to_json()


def test_what_does_not_fit_is_refused_on_tiles_alone() -> None:
    block, orders, _ = product()
    small = Target("gc200", tiles=1, tile_memory=2000)
    with pytest.raises(OutOfTileMemory):
        Runner(block, small, orders, FloatingPointControl(), "tiles")
    assert Runner(block, small, orders, FloatingPointControl(), "direct").bill is None


@pytest.mark.filterwarnings("ignore::ipu_core.errors.Unvalidated")
def test_the_tiles_own_bits_are_not_the_keys() -> None:
    ideal = trace(lambda state, x: (state + x, x.sum()), np.ones(50, np.float32), np.ones(50, np.float32), carry=True)
    block = Precision.parse("fp16.16/stochastic").apply(ideal)
    orders, control = choose_accumulations(block, OrderRule.of(TARGET)), FloatingPointControl(esr=True)
    given = [np.full(50, 1e-4, v.type.format.dtype) for v in block.inputs]  # type: ignore[union-attr]
    made = Runner(block, TARGET, orders, control, "tiles", random=HardwareRandom((3, 4)))
    states = []
    for _ in range(2):
        made.write([given[0] + given[0].dtype.type(1)])
        made.feed([given[1]], Key(1))
        states.append(made.read()[0])
    assert states[0].tobytes() != states[1].tobytes()  # the key is the same
    assert made.drawn.keys() == {"random.s0", "random.s1"}
