"""Learning-rate schedules against optax's, by hand where it has none, and in the training loop."""

from typing import Any

import numpy as np
import pytest

from ipu_core import nn
from ipu_core.train.loop import TrainLoop
from ipu_core.train.optim import Sgd
from ipu_core.train.schedules import Constant, Cosine, Piecewise, Polynomial, WarmUp

STEPS = range(130)


def rates(schedule):
    return [schedule(step) for step in STEPS]


def test_against_optax():
    optax = pytest.importorskip("optax")
    pairs = [
        (Constant(0.1), optax.constant_schedule(0.1)),
        (Polynomial(0.3, 0.01, 100), optax.linear_schedule(0.3, 0.01, 100)),
        (Polynomial(0.3, 0.01, 100, power=2.0), optax.polynomial_schedule(0.3, 0.01, 2.0, 100)),
        (Cosine(0.3, 100, end=0.03), optax.cosine_decay_schedule(0.3, 100, alpha=0.1)),
        (Piecewise(0.3, ((30, 0.1), (90, 0.5))), optax.piecewise_constant_schedule(0.3, {30: 0.1, 90: 0.5})),
        (WarmUp(Cosine(0.3, 80), 20), optax.warmup_cosine_decay_schedule(0.0, 0.3, 20, 100)),
    ]
    for ours, theirs in pairs:
        np.testing.assert_allclose(rates(ours), [float(theirs(step)) for step in STEPS], rtol=2e-6, atol=1e-8)


def test_ends_by_hand():
    assert rates(WarmUp(Constant(0.2), 4, start=0.1))[:6] == pytest.approx([0.1, 0.125, 0.15, 0.175, 0.2, 0.2])
    assert Polynomial(1.0, 0.5, 10)(10**6) == 0.5
    assert Piecewise(1.0, ((2, 0.5),))(2) == 0.5


@pytest.mark.parametrize(
    "make",
    [
        lambda: Constant(-1.0),
        lambda: Cosine(0.1, 0),
        lambda: Polynomial(float("inf"), 0, 10),
        lambda: WarmUp(Constant(1.0), 0),
        lambda: Piecewise(0.1, ((3, float("nan")),)),
    ],
)
def test_figures_out_of_range_are_refused(make):
    with pytest.raises(ValueError, match=r"must be (an integer of at least 1|a finite number of at least 0)"):
        make()


def loss(params, batch):
    return nn.mean(params["w"] * batch)


def loop(lr, engine="direct"):
    params = {"w": np.zeros(4, np.float32)}
    return TrainLoop(loss, params, np.ones(4, np.float32), optimizer=Sgd(lr), precision="fp32.32", engine=engine)


@pytest.mark.parametrize("engine", ["direct", "tiles"])
def test_a_loop_feeds_the_rate_of_its_step_and_goes_on_where_it_was(engine):
    schedule = WarmUp(Constant(1.0), 4)
    made = loop(schedule, engine)
    made.run(lambda step: np.full(4, 4, np.float32), 3)
    np.testing.assert_array_equal(made.params["w"], np.full(4, -(0.0 + 0.25 + 0.5)))
    again = loop(lambda step: schedule(step), engine)
    again.restore(made.arrays(), 3)
    assert again.count_updates(np.full(4, 4, np.float32)).squared == 4 * 0.75**2
    again.train(np.full(4, 4, np.float32))
    np.testing.assert_array_equal(again.params["w"], np.full(4, -1.5))


def test_a_schedule_that_gives_no_rate_is_refused():
    with pytest.raises(ValueError, match="the schedule gives the learning rate None for step 0"):
        loop(lambda step: None)
    made = loop(lambda step: 0.1 - step)
    made.train(np.ones(4, np.float32))
    with pytest.raises(ValueError, match=r"gives the learning rate -0.9 for step 1: it must be a number from 0"):
        made.train(np.ones(4, np.float32))


@pytest.mark.parametrize(("make", "error", "words"), [
    (lambda: Piecewise(0.1, ((2.5, 0.1),)), TypeError, "Piecewise: a step must be an integer, not 2.5"),
    (lambda: Piecewise(0.1, ((float("nan"), 0.1),)), TypeError, "Piecewise: a step must be an integer, not nan"),
    (lambda: Piecewise(0.1, (3,)), TypeError, r"factors must be \(step, factor\) pairs such as \(100, 0.1\), not 3"),
    (lambda: Piecewise(0.1, 3), TypeError, "Piecewise: factors must be a list, not 3"),
    (lambda: Piecewise(0.1, ((3, float("nan")),)), ValueError, "Piecewise: a rate, factor or power must"),
    (lambda: Polynomial(0.1, 0.0, 5, float("nan")), ValueError, "Polynomial: a rate, factor or power must"),
    (lambda: WarmUp(3, 5), TypeError, r"WarmUp: then must be a schedule such as Constant\(0.1\), not 3"),
    (lambda: Cosine(0.1, 2.5), TypeError, "Cosine: steps must be an integer, not 2.5"),
    (lambda: WarmUp(Constant(1.0), 1.5), TypeError, "WarmUp: steps must be an integer, not 1.5"),
])  # fmt: skip
def test_what_is_no_whole_step_or_no_rate_is_refused(make: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        make()


def test_numpys_integers_are_steps() -> None:
    assert Cosine(0.1, np.int64(4))(4) == 0.0  # type: ignore[arg-type]
    assert Piecewise(0.1, ((np.int64(2), 0.5),))(2) == 0.05  # type: ignore[arg-type]
