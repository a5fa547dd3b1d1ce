"""Blame names the equation and the cause of planted faults, of some that nobody planted, and says where all is well."""

from __future__ import annotations

import inspect
import re
from dataclasses import replace

import numpy as np
import pytest

from ipu_core import Sgd, TrainLoop, blame
from ipu_core.diagnose.blame import Blame
from ipu_core.diagnose.blame.switches import CauseSwitch, trimmed
from ipu_core.ir.precision.precision import Precision
from ipu_core.study import command
from ipu_core.study.models import catalogue as models
from ipu_core.study.models.size import Size
from ipu_core.study.point import make_loop
from ipu_core.study.settings import Point, Settings
from ipu_core.train.data.batches import Epochs
from lowprec import Accumulation
from tests.ipu_core.diagnose.blame import planted
from tests.ipu_core.diagnose.blame.planted import FAULTS, HEALTHY, Fault, batch, parameters

MOST = 12.0  # times the run that is explained


@pytest.mark.parametrize(
    "fault",
    [pytest.param(fault, marks=[pytest.mark.slow] if fault.steps > 1000 else [], id=fault.name) for fault in FAULTS],
)
def test_it_names_the_cause_the_part_and_what_happened(fault: Fault) -> None:
    found = blame(fault.loop(), batch, fault.steps)
    culprit, *others = found.culprits
    assert (culprit.switch.cause, culprit.switch.part) == (fault.cause, fault.part)
    assert {other.switch.cause for other in others} <= set(fault.also)
    assert culprit.kind in fault.kinds
    assert culprit.closed > 0.6
    assert culprit.line.startswith("planted.py:")
    assert found.spent <= MOST
    assert found.cure is not None
    again = TrainLoop(fault.loss, parameters(), batch(0), optimizer=fault.optimizer, precision=found.cure.name,
                      engine="direct", **fault.options)  # fmt: skip
    losses = again.run(batch, fault.steps)[-fault.steps // 10 :]
    assert found.closed > 0.6
    assert losses.mean() == pytest.approx(found.cured, rel=0.03)


@pytest.mark.parametrize("fault", HEALTHY, ids=lambda fault: fault.name)
def test_it_says_nothing_where_all_is_well(fault: Fault) -> None:
    found = blame(fault.loop(), batch, fault.steps)
    assert found.healthy
    assert found.culprits == ()
    assert found.tried == ()
    assert "nothing: this precision costs no more than the tolerance" in str(found)
    assert found.spent <= 2.5


SMALL = {"layers": (64, 64, 10), "steps": 400}
FP8 = {"model": "lm", "steps": 60, "batch": 4, "lr": 0.003, "optimizer": "adamw",
       "language_model": Size(layers=1, width=32, heads=2, context=24)}  # fmt: skip
UNPLANTED = [
    ("fp16.16/nearest", SMALL, "weights", ("lost updates",)),
    (
        "mlperf-bert/scaled_state=1/store_root=false",
        {**SMALL, "optimizer": "adamw"},
        "second_moment",
        ("underflow", "lost increments"),
    ),
]


@pytest.mark.parametrize("precision, settings, cause, kinds", UNPLANTED, ids=[row[0] for row in UNPLANTED])
def test_faults_that_nobody_planted_on_digits(precision, settings, cause, kinds) -> None:
    loop, batches = task(precision, settings)
    found = blame(loop, batches, settings["steps"])
    assert {culprit.switch.cause for culprit in found.culprits} == {cause}
    assert {culprit.kind for culprit in found.culprits} <= set(kinds)
    assert found.closed > 0.9
    assert found.spent <= MOST


def test_fp8_without_scales_in_a_language_model() -> None:
    loop, batches = task("fp16.32/operands=float8_e4m3fn/gradients=float8_e4m3fn", FP8)
    found = blame(loop, batches, FP8["steps"])
    (culprit,) = found.culprits
    assert culprit.switch == CauseSwitch("backward")
    assert culprit.kind == "underflow"
    assert found.closed > 0.9
    assert found.spent <= MOST


@pytest.mark.parametrize("precision", ["fp16.32", "fp16.16/stochastic"])
def test_digits_where_all_is_well(precision: str) -> None:
    loop, batches = task(precision, SMALL)
    assert blame(loop, batches, SMALL["steps"]).healthy


def task(precision: str, settings: dict) -> tuple[TrainLoop, object]:
    made = Settings(engine="direct", **settings)
    problem = models.problem(made, models.load(made))
    return make_loop(problem, command.recipe(made), Point(precision, 0)), problem.batches(0)


def fault(name: str) -> Fault:
    return next(each for each in FAULTS if each.name == name)


@pytest.fixture(scope="module")
def stuck() -> Blame:
    one = fault("weights of a layer in bfloat16")
    return blame(one.loop(), batch, one.steps)


def test_the_report_has_figures_and_the_line_of_the_model(stuck: Blame) -> None:
    lines, first = inspect.getsourcelines(planted.loss)
    number = first + next(i for i, line in enumerate(lines) if "nn.linear(x, **params[name])" in line)
    text = " ".join(str(stuck).split())
    assert re.search(
        rf"layer0\.weight\.update\.scaled_add\.\d+, line {number} of planted.py: "
        r"\d\d % of the updates rounded to nothing; "
        r"float32 weights of layer0 alone bring back (9\d|10\d) % of the loss",
        text,
    )
    assert "precision without it: fp16.32/layer0:weights=bfloat16/layer0:weights=float32" in text
    assert re.search(r"arrive, along them: layer0.weight 8\d %", text)
    assert max(map(len, str(stuck).splitlines())) <= 100
    assert stuck._repr_html_().startswith("<pre>")


def test_updates_are_compared_with_float64_s(stuck: Blame) -> None:
    assert stuck.updates["layer0.weight"].kept < 0.9
    assert stuck.updates["layer1.weight"].kept == pytest.approx(1, abs=0.02)


TWO = Fault("two", "fp16.32/layer0:forward.partials=float8_e4m3fn/layer0:weights=bfloat16",
            loss=planted.loss_that_cancels, optimizer=Sgd(0.02), steps=600)  # fmt: skip


def test_two_causes_are_found_one_after_the_other() -> None:
    found = blame(TWO.loop(), batch, TWO.steps)
    first, second = found.culprits
    assert {first.switch, second.switch} == {CauseSwitch("partials", "layer0"), CauseSwitch("weights", "layer0")}
    assert (first.before, second.before) == (0, 1)
    assert found.closed > 0.9
    assert found.spent <= MOST
    assert "of what is then missing" in " ".join(str(found).split())


def test_the_tolerance_says_what_is_missing_and_when_to_stop() -> None:
    """16 % are missing at first, 10 % without the first cause; trials are as long as twice the tolerance takes."""
    orders = {4: Accumulation(splits=6), **dict.fromkeys((9, 13, 43), Accumulation(splits=3))}
    two = replace(TWO, options={"accumulations": orders})
    found = {tolerance: blame(two.loop(), batch, two.steps, tolerance=tolerance) for tolerance in (0.17, 0.12, 0.1, 0)}
    gap = found[0].gap
    assert 0.155 < gap < 0.165
    assert found[0.17].healthy
    assert found[0.17].culprits == ()
    assert [len(found[tolerance].culprits) for tolerance in (0.12, 0.1, 0)] == [1, 2, 2]
    assert 0.1 < gap * (1 - found[0.12].closed) < 0.12
    assert [found[tolerance].tried[-1][2] for tolerance in (0.1, 0)] == [600, 300]


def test_the_loop_stays_as_it_is_and_may_be_on_tiles_and_under_way() -> None:
    one = fault("saturated values")
    loop = TrainLoop(one.loss, parameters(), batch(0), optimizer=one.optimizer, precision=one.precision, key=3)
    loop.run(batch, 3)
    before = loop.arrays()
    found = blame(loop, Epochs([batch(i) for i in range(7)]), 60)
    assert loop.step == 3
    assert loop.profile is not None
    for old, new in zip(before.values(), loop.arrays().values(), strict=True):
        np.testing.assert_array_equal(old, new)
    assert found.looked[0] == 3


def test_in_precision_goes_on_as_a_loop_of_that_precision_would() -> None:
    one = HEALTHY[2]
    loop, wide = one.loop(), one.loop().in_precision("fp32.32")
    assert wide.precision == Precision.parse("fp32.32")
    fresh = TrainLoop(planted.loss, loop.params, batch(0), optimizer=one.optimizer, precision="fp32.32",
                      engine="direct")  # fmt: skip
    assert wide.run(batch, 5).tolist() == fresh.run(batch, 5).tolist()
    assert loop.in_precision(loop.precision).run(batch, 5).tolist() == loop.run(batch, 5).tolist()
    with pytest.raises(ValueError, match="traced with scaled_state 1"):
        loop.in_precision("mlperf-bert")


def test_rules_that_change_nothing_are_left_out() -> None:
    loop = HEALTHY[1].loop()
    base = loop.precision
    cured = CauseSwitch("backward", "layer1").off(CauseSwitch("weights").off(base, loop.ideal), loop.ideal)
    short = trimmed(cured, base, loop.ideal)
    assert ":weights=float32" in cured.name
    assert ":weights=float32" not in short.name  # they are in fp16.32
    assert str(short.apply(loop.ideal)) == str(cured.apply(loop.ideal)) != str(base.apply(loop.ideal))
    assert Precision.parse(short.name).rules == short.rules


def test_what_is_refused() -> None:
    loop = HEALTHY[0].loop()
    with pytest.raises(TypeError, match="a TrainLoop is needed"):
        blame(planted.loss, batch, 5)
    with pytest.raises(ValueError, match="steps must be an integer of at least 1"):
        blame(loop, batch, 0)
    with pytest.raises(ValueError, match="5 steps need as many batches, there are 2"):
        blame(loop, [batch(0), batch(1)], 5)
    with pytest.raises(ValueError, match=r"budget must be at least 3\.5 times the run, not 2"):
        blame(loop, batch, 5, budget=2)
    with pytest.raises(ValueError, match=r"budget must be at least 3\.5 times the run, not '5'"):
        blame(loop, batch, 5, budget="5")  # type: ignore[arg-type]
    for tolerance in (float("nan"), -0.1, 5, "0.1", None):
        with pytest.raises(ValueError, match="tolerance must be a share of what float32 learns, from 0 to 1, not"):
            blame(loop, batch, 5, tolerance=tolerance)  # type: ignore[arg-type]


def test_a_run_in_which_float32_learns_nothing_is_called_that() -> None:
    found = Blame(Precision.parse("fp16.32"), 9, first=2.0, loss=2.3, reference=2.1, gap=0.1)
    text = " ".join(str(found).split())
    assert "(before: 2); float32 learns nothing yet, this ends 10 % of the first loss above it no single" in text


def test_a_run_of_one_step() -> None:
    text = str(blame(HEALTHY[0].loop(), batch, 1))
    assert "fp32.32, 1 step: loss" in text
    assert "nothing is missing" in text
