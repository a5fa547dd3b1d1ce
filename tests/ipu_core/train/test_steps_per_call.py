"""Several steps in one call of the machine: the bits, losses and skipped steps of as many calls."""

import copy
import itertools
import signal
from collections import Counter
from dataclasses import replace
from html import escape
from typing import Any

import numpy as np
import pytest

from ipu_core import report
from ipu_core.chip.control import FloatingPointControl
from ipu_core.compile.machine import Machine
from ipu_core.engine.profile import Profile
from ipu_core.errors import FloatingPointException
from ipu_core.train.callbacks import Evaluate
from ipu_core.train.optim import Lamb, Sgd
from ipu_core.train.schedules import Polynomial
from ipu_core.train.state import Steps
from tests.ipu_core.engine.test_accountant import facts
from tests.ipu_core.train.test_loop import SMALL, batches, bits, loop
from tests.ipu_core.train.test_loss_scale import spoilt

MORE: list[dict[str, Any]] = [
    {},
    {"micro_batches": 4, "optimizer": Lamb(Polynomial(0.01, 0.001, 9))},
    {"loss_scale": 64.0, "overlap": True, "micro_batches": 2},
]


@pytest.mark.parametrize("precision", ["fp16.16/stochastic", "mlperf-bert", "fp32.32/streamed"])
@pytest.mark.parametrize("more", MORE, ids=["plain", "looped", "scaled"])
def test_the_bits_are_those_of_single_steps(precision: str, more: dict[str, Any]) -> None:
    # Moments are what is streamed: plain descent has none.
    more = {"optimizer": Sgd(0.1, momentum=0.9), **more}
    single = loop(precision, **more)
    losses = single.run(spoilt, 11)
    for engine in ("tiles", "direct"):
        made = loop(precision, engine, steps_per_call=4, **more)  # two calls of four, and three single steps
        assert made.run(spoilt, 11).tobytes() == losses.tobytes()
        assert bits(made) == bits(single)
        assert (made.step, made.skipped) == (11, single.skipped)
    assert bool(single.skipped) == ("loss_scale" in more and precision != "fp32.32/streamed")


@pytest.mark.filterwarnings("ignore::ipu_core.errors.Unvalidated")
def test_one_call_is_one_run_of_the_machine() -> None:
    made = loop("fp16.16/stochastic", "tiles", steps_per_call=5, random="hardware")
    machine = made._stepper.runner._machine
    assert isinstance(machine, Machine)
    runs: list[int] = []
    run = machine.engine.run
    machine.engine.run = lambda program=0: (runs.append(program), run(program))[1]  # type: ignore[method-assign]
    made.run(batches, 12)
    assert runs == [1, 1, 0, 0]


def test_a_call_is_accounted_as_its_steps() -> None:
    made = loop("mlperf-bert", "tiles", steps_per_call=5)
    machine = Machine.build(
        made.block, SMALL, made.accumulations, made.control, share=True, parallel=True, steps_per_call=5
    )
    one, five = machine.engine.profile(0), machine.engine.profile(1)
    assert five.cycles == 5 * one.cycles
    assert (five.loaded, five.stored) == (5 * one.loaded, 5 * one.stored)
    assert made.profile is not None
    assert made.profile.cycles == one.cycles
    alone = loop("mlperf-bert", "tiles").profile
    assert alone is not None
    assert (alone.cycles, alone.call, alone.runs) == (one.cycles, None, 1)
    for each in (made.profile, machine.profile):
        call = each.call
        assert call is not None
        assert (each.runs, call.runs, call.call) == (1, 5, None)
        assert facts(call) == {**facts(replace(five, works=call.works)), "runs": 5}
        assert (call.from_host, call.to_host) == (5 * alone.from_host, 5 * alone.to_host)
        assert (alone.from_host, alone.to_host) == (16 * 20 * 4 + 16 * 4 + 4, 4)  # x, labels and rate; loss
    assert alone.memory.always_bytes == one.memory.always_bytes


SCALED: dict[str, Any] = {"loss_scale": 64.0, "precision": "fp16.16/stochastic", "engine": "tiles"}
SPOILT = [(), (4,), (9, 11), (12, 13, 14, 15), (19,), (20,)]
"""Steps that are skipped, call by call."""


@pytest.mark.filterwarnings("ignore::ipu_core.errors.Unvalidated")
@pytest.mark.parametrize("more", [{}, {"random": "hardware"}], ids=["bill", "vertices"])
def test_a_call_is_accounted_as_its_steps_of_which_some_are_skipped(more: dict[str, Any]) -> None:
    made, single = loop(**SCALED, **more, steps_per_call=4), loop(**SCALED, **more)
    first = profile(made)
    assert first.call is not None
    assert (first.call.measured, first.call.cycles) == (False, 4 * first.cycles)
    told: list[Profile] = []
    for number, at in enumerate(SPOILT):
        given = [
            batches(step) if step not in at else spoilt(step, at=step) for step in range(4 * number, 4 * number + 4)
        ]
        for batch in given:
            single.train(batch)
            told.append(profile(single))
        made.run(given, 4)
        assert [s.step for s in made.skipped if s.step >= 4 * number] == list(at)
        of_one = {**profile(made).to_json(), "call": None, "memory": told[-1].to_json()["memory"]}
        assert of_one == told[-1].to_json()
        check_call(made, told[-4:])
        if (machine := made._stepper.runner._machine) is not None:
            ran = replace(machine.engine.profile(1), works=profile(made).works)  # an engine knows no equations
            assert facts(profile(made).call) == {**facts(ran), "runs": 4}
    made.run(batches, 2)  # one by one
    for step in range(made.step - 2, made.step):
        single.train(batches(step))
        told.append(profile(single))
    assert profile(made).to_json()["cycles"] == told[-1].cycles
    check_call(made, told[-4:])
    check_call(copy.deepcopy(made), told[-4:])


def check_call(made: Any, steps: list[Profile]) -> None:
    """The account of a call, against those of its steps."""
    call, counts = profile(made).call, Counter[str]()
    assert call is not None
    assert (call.measured, call.runs) == (True, 4)
    for one in steps:
        counts.update({step.name: step.count for step in one.steps})
    assert {step.name: step.count for step in call.steps} == counts
    for figure in ("cycles", "compute_cycles", "exchanged", "from_host", "to_host", "loaded"):
        assert getattr(call, figure) == sum(getattr(one, figure) for one in steps)
    words = (
        f"a call of 4 {{}}: {call.cycles:,} cycles = {call.microseconds:,.2f} us, {call.exchanged:,} bytes exchanged; "
    )
    words += f"{call.from_host:,} bytes from the host and {call.to_host:,} to it, at {call.target.host_rate}"
    assert words.format("steps") in str(made)
    assert words.format("runs") in str(profile(made))
    assert ", one of 4 runs in a call: " in str(profile(made))
    assert " tiles, 4 runs: " in str(call)
    page = report.to_html(profile(made))
    assert "<td>a call of 4 runs</td><td>" + escape(words.partition(": ")[2]) in page
    assert "<td>runs</td><td>4</td>" in report.to_html(call)
    data = profile(made).to_json()
    assert (data["runs"], data["call"]["runs"], data["call"]["cycles"]) == (1, 4, call.cycles)
    assert data["call"]["from_host"] == call.from_host


def profile(made: Any) -> Profile:
    found: Profile | None = made.profile
    assert found is not None
    return found


def test_copies_and_restored_runs_go_on() -> None:
    made = loop("fp16.16/stochastic", "tiles", steps_per_call=3)
    made.run(batches, 3)
    again = copy.deepcopy(made)
    kept = made.arrays()
    made.run(batches, 6)
    again.run(batches, 6)
    assert bits(again) == bits(made)
    again.restore(kept, 3)
    again.run(batches, 6)
    assert bits(again) == bits(made)


def test_callbacks_see_the_end_of_each_call() -> None:
    evaluate = Evaluate(lambda params: 0.0, every=4)
    seen: list[int] = []
    loop(steps_per_call=4).run(batches, 10, callbacks=[evaluate, lambda made, loss: seen.append(made.step)])
    assert seen == [4, 8, 10]
    assert [step for step, _ in evaluate.history] == [4, 8]


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="steps_per_call must be an integer of at least 1, not 0"):
        loop(steps_per_call=0)
    with pytest.raises(ValueError, match="moved by the host after each step"):
        loop(steps_per_call=2, loss_scale="automatic")
    machine = Machine.build(loop().block, SMALL, steps_per_call=2)
    with pytest.raises(ValueError, match="takes 2 runs in a call, 1 were given"):
        machine.feed_many([[]], loop().key, 0)
    x, y = batches(0)
    made = loop("fp16.16/nearest", "tiles", steps_per_call=2, control=FloatingPointControl(oflo=True))
    with pytest.raises(FloatingPointException, match="one of the steps 0 to 1: "):
        made.run([(x, y), (x * np.float32(6e4), y)], 2)


TRAPS = {"control": FloatingPointControl(oflo=True)}


def trapped(step: int) -> tuple[np.ndarray, np.ndarray]:
    """Overflows at step 6, the third of a call of four."""
    return spoilt(step, at=6)


@pytest.mark.parametrize("steps_per_call", [1, 4])
@pytest.mark.parametrize("engine", ["tiles", "direct"])
@pytest.mark.parametrize("precision", ["fp16.16/stochastic", "mlperf-bert"])
def test_a_trap_leaves_the_last_whole_state(precision: str, engine: str, steps_per_call: int) -> None:
    """State, step and random keys are those of the same step: with other batches it goes on to the bits of ones own."""
    more: dict[str, Any] = {**TRAPS, "optimizer": Lamb(0.01), "micro_batches": 2, "steps_per_call": steps_per_call}
    made, whole = loop(precision, engine, **more), loop(precision, **more)
    words = "step 6: " if steps_per_call == 1 else "one of the steps 4 to 7: "
    with pytest.raises(FloatingPointException, match=words):
        made.run(trapped, 12)
    assert made.step == (6 if steps_per_call == 1 else 4)
    before = loop(precision, **more)
    before.run(batches, made.step)
    assert bits(made) == bits(before)
    losses = whole.run(batches, 12)
    assert made.run(batches, 12 - made.step).tobytes() == losses[before.step :].tobytes()
    assert bits(made) == bits(whole)


@pytest.mark.parametrize("engine", ["tiles", "direct"])
def test_an_exception_of_a_callback_comes_after_the_whole_call(engine: str) -> None:
    def fail(made: Any, loss: float) -> None:
        raise ZeroDivisionError

    made, whole = loop("fp16.16/stochastic", engine, steps_per_call=4), loop("fp16.16/stochastic")
    with pytest.raises(ZeroDivisionError):
        made.run(batches, 12, callbacks=[fail])
    assert made.step == 4
    made.run(batches, 6)
    whole.run(batches, 10)
    assert bits(made) == bits(whole)


@pytest.mark.timeout(method="thread")  # it needs the timer that would be used
@pytest.mark.parametrize("more", [{}, {"loss_scale": 2.0**18}, TRAPS], ids=["plain", "scaled", "traps"])
@pytest.mark.parametrize("steps_per_call", [1, 5])
@pytest.mark.parametrize("engine", ["tiles", "direct"])
def test_interrupts_at_any_moment_change_no_bit(engine: str, steps_per_call: int, more: dict[str, Any]) -> None:
    """Ctrl-C again and again, a little later each time, until 60 steps are done.

    The collector is off here, as in all tests: Python drops what is raised while hypothesis's callback of it runs.
    """
    settings: dict[str, Any] = {"optimizer": Lamb(0.01), "micro_batches": 2, "steps_per_call": steps_per_call, **more}
    made, whole = loop("fp16.16/stochastic", engine, **settings), loop("fp16.16/stochastic", **settings)
    whole.run(batches, 60)
    came, before = 0, signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        for delay in (0.0004 * 1.15**n for n in itertools.count()):
            try:
                try:
                    signal.setitimer(signal.ITIMER_REAL, delay)
                    made.run(batches, 60 - made.step)
                finally:  # where the interrupt may come too
                    signal.setitimer(signal.ITIMER_REAL, 0)
                break
            except KeyboardInterrupt:
                came += 1
                assert made.step % steps_per_call == 0
    finally:
        signal.signal(signal.SIGALRM, before)
    assert came > 3
    assert (made.step, made.skipped) == (60, whole.skipped)
    assert bits(made) == bits(whole)


@pytest.mark.parametrize("engine", ["tiles", "direct"])
def test_an_interrupt_between_the_steps_of_a_call_leaves_nothing_of_them(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was skipped in the call is done again, and is to be counted once."""
    made = loop("fp16.16/stochastic", engine, steps_per_call=4, loss_scale=64.0, micro_batches=2)
    made.run(batches, 4)
    after = Steps.after

    def interrupted(self: Steps, *said: Any) -> Steps:
        if self.step == 6:
            raise KeyboardInterrupt
        return after(self, *said)

    before = bits(made)
    with monkeypatch.context() as patch:
        patch.setattr(Steps, "after", interrupted)
        with pytest.raises(KeyboardInterrupt):
            made.run(lambda step: spoilt(step, at=5), 4)
    assert (made.step, made.skipped, made.not_finite) == (4, (), None)
    assert bits(made) == before


def test_what_is_given_beside_the_account_counts_once_for_every_update() -> None:
    """It is in the profile's words, data and seconds, of a call for each of its steps, and in no cycles."""
    plain, made = (loop("fp32.32", "tiles", steps_per_call=3, **more) for more in ({}, {"update_overhead": 0.25}))
    bare, given = plain.profile, made.profile
    assert bare is not None and given is not None and given.call is not None  # noqa: PT018
    assert (given.cycles, given.seconds) == (bare.cycles, bare.seconds)
    assert given.seconds_per_update == given.seconds + 0.25
    assert given.call.seconds_per_update == given.call.seconds + 0.75
    data = given.to_json()
    assert (data["update_overhead"], data["call"]["seconds_per_update"]) == (0.25, given.call.seconds_per_update)
    assert "update overhead: 0.25 s of an update, given and in no cycles" in str(given)
    assert "update overhead" not in str(bare)
    assert bare.to_json()["seconds_per_update"] == bare.seconds
