"""A step beside float64: the declared one has the run's own bits, and errors are told apart by what they are."""

from __future__ import annotations

import numpy as np
import pytest

from ipu_core import FloatingPointControl, Sgd, TrainLoop
from ipu_core.diagnose.blame.errors import Errors
from ipu_core.diagnose.blame.gap import Gap
from ipu_core.diagnose.blame.lockstep import Lockstep
from ipu_core.diagnose.blame.settings import Variant
from ipu_core.diagnose.blame.suspects import Suspects
from ipu_core.diagnose.blame.switches import CauseSwitch
from ipu_core.diagnose.blame.trials import Trials
from ipu_core.ir.bodies import equations_of
from lowprec import float8_e4m3fn, float16
from lowprec.statistics import lost_updates, underflow
from tests.ipu_core.diagnose.blame import planted
from tests.ipu_core.diagnose.blame.planted import batch, parameters


def loop(precision: str, **options) -> TrainLoop:
    return TrainLoop(planted.loss, parameters(), batch(0), optimizer=Sgd(0.1), precision=precision, engine="direct",
                     **options)  # fmt: skip


@pytest.mark.parametrize("options", [{}, {"micro_batches": 2, "loss_scale": 64.0}], ids=["plain", "scaled"])
def test_a_look_has_the_bits_of_the_step_and_changes_nothing(options) -> None:
    made, seen = loop("fp16.16/stochastic", **options), Lockstep()
    for step in range(3):
        seen.look(made, batch(step))
        assert made.train(batch(step)) == np.float32(seen.losses[-1][1])
    assert [step for step, _, _ in seen.losses] == [0, 1, 2]
    assert all(abs(low - exact) < 0.02 for _, low, exact in seen.losses)
    assert set(seen.updates) == {f"layer{i}.{name}" for i in range(3) for name in ("weight", "bias")}


def test_in_float32_there_is_nothing_to_see_but_the_updates() -> None:
    made, seen = loop("fp32.32"), Lockstep()
    seen.look(made, batch(0))
    assert seen.errors == {}
    assert [update.kept for update in seen.updates.values()] == pytest.approx([1] * 6, abs=1e-4)


def test_what_is_kept_is_compared_with_its_increment() -> None:
    made, seen = loop("fp16.16/nearest", micro_batches=4), Lockstep()
    seen.look(made, batch(0))
    equations = {e.number: e for e in equations_of(made.block)}
    kept = {equations[number].family for number, errors in seen.errors.items() if errors.kept}
    assert "gradient_sum" in kept
    assert {equations[n].role for n, errors in seen.errors.items() if errors.kept} == {"update", "grad_weight"}


def test_a_run_that_ends_in_nan_is_looked_at_where_it_ended() -> None:
    made = loop("fp16.32", control=FloatingPointControl(nanoo=True))
    x, y = batch(20)
    batches = [*(batch(i) for i in range(20)), (x * 1e5, y), *(batch(i) for i in range(21, 40))]
    trials = Trials(made, batches)
    losses = trials.watched(Variant(made.precision), 2, 4).after(40)
    assert [step for step, _, _ in trials.seen.losses] == [0, 19, 20]
    assert np.isfinite(losses[:20]).all()
    assert np.isnan(losses[20:]).all()
    assert np.float32(trials.seen.losses[1][1]) == np.float32(losses[19])
    beyond = {number: errors.beyond for number, errors in trials.seen.errors.items() if errors.beyond}
    assert beyond
    assert all(errors.steps[-1][0] == 20 for errors in trials.seen.errors.values())


def errors(fmt, exact, made, before=None, sums=False, stochastic=False) -> Errors:
    found = Errors(stochastic=stochastic, kept=before is not None)
    found.add(0, np.array(made), np.array(exact), fmt, None if before is None else np.array(before), sums)
    return found


def test_kinds_of_errors() -> None:
    assert errors(float16, [1.0, 2.0], [1.0, 2.001]).kind() == "rounding"
    assert errors(float16, [1e-9, 2e-9], [0.0, 0.0]).kind() == "underflow"
    assert errors(float16, [1e6, 2.0], [65504.0, 2.0]).kind() == "overflow"
    assert errors(float16, [1e6, 2.0], [np.inf, 2.0]).kind() == "overflow"
    assert errors(float16, [1.0001, 2.0001], [1.0, 2.0], before=[1.0, 2.0]).kind() == "lost"
    assert errors(float16, [1e-9, 2e-9], [0.0, 0.0], before=[0.0, 0.0]).kind() == "underflow"
    assert errors(float16, [1.5, 2.5], [1.5, 2.5], before=[1.0, 2.0]).kind() == "rounding"


def test_a_sum_that_overflowed_on_the_way_is_no_underflow_and_loses_nothing() -> None:
    for made in (np.inf, np.nan):
        found = errors(float16, [1e3, 2.0], [made, 2.0], before=[0.0, 1.0])
        assert (found.kind(), found.beyond, found.zeros, found.wanted, found.lost) == ("overflow", 1, 0, 2, 0)


def test_increments_count_and_are_lost_as_the_statistics_say() -> None:
    numbers = [0.0, 1.0, 1e-9, 6e4, np.inf, -np.inf, np.nan]
    exact, made, before = (x.ravel() for x in np.meshgrid(numbers, numbers, numbers))
    found = errors(float16, exact, made, before=before)
    with np.errstate(invalid="ignore"):
        assert (found.wanted, found.lost) == lost_updates(before, exact - before, made)[:2]
    assert found.zeros == underflow(exact[np.isfinite(before)], made[np.isfinite(before)]).zeroed
    assert 0 < found.lost < found.wanted < exact.size


def test_what_is_wrong_first_is_what_is_said_and_weighs_most() -> None:
    """What overflows at step 75 may follow from what became zero at step 0."""
    exact = [*[1e-9] * 3, *[4.0] * 7]
    found = errors(float16, exact, [*[0.0] * 3, *[4.0] * 7], before=[0.0] * 10)
    found.add(75, np.full(10, 7e4), np.full(10, 1e6), float16, np.zeros(10), False)
    step, sums = found.early
    assert (step, sums.kind(), found.steps[-1][1].kind()) == (0, "underflow", "overflow")
    late = errors(float16, [1.0, 2.0], [1.0, 2.0])
    late.add(75, np.array([7e4, 7e4]), np.array([1e6, 1e6]), float16, None, False)
    soon = errors(float16, [1e6, 1e6], [7e4, 7e4])
    soon.add(75, np.array([1.0, 2.0]), np.array([1.0, 2.0]), float16, None, False)
    assert (late.early[0], soon.early[0]) == (75, 0)
    assert late.suspicion(100) < soon.suspicion(100)


def test_of_equations_the_one_is_named_that_throws_the_updates_off() -> None:
    """A bias that becomes zero loses all of itself, and nothing of what it is added to."""
    made, seen = loop("fp16.32/layer0:forward.operands=float8_e4m3fn"), Lockstep()
    made.restore({n: 0 * a + 1e-5 if n.endswith("bias") else a for n, a in made.arrays().items()}, 0)
    seen.look(made, (batch(0)[0] * 300, batch(0)[1]))
    suspects, switch = Suspects(made, seen, 100), CauseSwitch("forward", "layer0")
    largest, named = (suspects.named(switch, count)[0] for count in (0, 8))
    assert suspects.culprit(switch, largest, 1.0, 0).kind == "underflow"
    assert seen.errors[largest].size == 1
    culprit = suspects.culprit(switch, named, 1.0, 0)
    assert (culprit.kind, culprit.equation) == ("overflow", "layer0.bias.forward.add.2")


def test_what_comes_from_elsewhere_is_no_error_of_the_equation() -> None:
    found = errors(float16, [np.nan, np.inf, 1.0], [np.nan, 65504.0, 1.0])
    assert found.error == 0


def test_partial_sums_are_told_from_the_rounding_of_the_result() -> None:
    rounded = np.array([1.0, 1.125], np.float32)  # the nearest in E4M3 to what follows
    exact = np.array([1.01, 1.1])
    assert errors(float8_e4m3fn, exact, rounded, sums=True).partial == 0
    found = errors(float8_e4m3fn, exact, rounded + 0.5, sums=True)
    assert found.partial == pytest.approx(0.5)
    assert found.size == pytest.approx(np.hypot(0.49, 0.525) / np.hypot(1.01, 1.1))


def test_errors_without_bias_are_less_suspect_where_they_are_drawn_anew() -> None:
    rng = np.random.default_rng(0)
    exact = rng.normal(size=4000)
    noisy, biased = exact * (1 + 0.1 * rng.normal(size=4000)), 0.9 * exact
    drawn = errors(float16, exact, noisy, stochastic=True).suspicion(400)
    assert drawn < errors(float16, exact, noisy).suspicion(400) < errors(float16, exact, biased).suspicion(400)
    assert errors(float16, exact, biased, stochastic=True).suspicion(400) == pytest.approx(0.1, rel=0.1)
    assert drawn < 0.01


def test_a_gap_is_measured_in_what_the_reference_learns() -> None:
    reference, low = np.linspace(2, 1, 101)[1:], np.full(100, 2.0)
    gap = Gap(low, reference)
    assert gap.size(100) == pytest.approx(0.955 / 0.9)  # what it learns is counted from its first tenth
    assert gap.closed(reference, 100) == pytest.approx(1)
    assert gap.closed(low, 100) == 0
    assert gap.closed((low + reference) / 2, 100) == pytest.approx(0.5)
    assert Gap(np.full(100, np.nan), reference).level(np.full(100, np.nan), 100) == pytest.approx(3.9, abs=0.2)
    assert gap.horizon(0.05) == 12
    late = np.where(np.arange(100) < 80, reference, reference[80])
    assert Gap(late, reference).horizon(0.05) == 100
