"""What low precision costs layer by layer and cause by cause, and the search for the cheapest precision."""

from __future__ import annotations

import math

import pytest

from ipu_core import Sgd, TrainLoop, cheapest, sensitivity
from tests.ipu_core.diagnose.blame import planted
from tests.ipu_core.diagnose.blame.planted import FAULTS, batch, parameters

STUCK = next(fault for fault in FAULTS if fault.name == "weights of a layer in bfloat16")
LOW, MIDDLE, HIGH = "fp16.32/weights=bfloat16", "fp16.32/weights=float16", "fp16.32"


def loop(precision: str) -> TrainLoop:
    return TrainLoop(
        planted.loss, parameters(), batch(0), optimizer=STUCK.optimizer, precision=precision, engine="direct"
    )


def test_the_layer_that_suffers_is_the_one_that_costs_most() -> None:
    found = sensitivity(loop(LOW), batch, STUCK.steps)
    rows = {name: (alone, without) for name, _, alone, _, without in found.rows}
    assert set(rows) == {"layer0", "layer1", "layer2", "(the rest)"}
    assert max(rows, key=lambda name: rows[name][0]) == "layer0"
    assert rows["layer0"][0] > 0.08
    assert rows["layer0"][1] < 0.3 * rows["layer1"][1]
    assert str(found).splitlines()[3].startswith("layer0 ")
    assert "<table>" in found._repr_html_()


def test_causes_that_are_low_are_listed_with_what_each_costs() -> None:
    found = sensitivity(loop(LOW), batch, STUCK.steps, by="cause")
    rows = {name: alone for name, _, alone, _, _ in found.rows}
    assert set(rows) == {"weights", "forward values and operands", "gradients and their operands"}
    assert rows["weights"] > 0.08 > 0.01 > max(value for name, value in rows.items() if name != "weights")


def test_the_search_raises_only_the_layer_that_needs_it_and_only_as_far() -> None:
    found = cheapest(loop(HIGH), batch, STUCK.steps, [LOW, MIDDLE, HIGH], tolerance=0.03)
    assert found.precision.name == f"{LOW}/layer0:weights=float16"
    assert found.choices == {"layer0": MIDDLE, "layer1": LOW, "layer2": LOW, "(the rest)": LOW}
    assert found.missing <= 0.03
    assert found.runs <= 12
    pasted = loop(found.precision.name)
    losses = pasted.run(batch, STUCK.steps)
    reference = loop("fp32.32").run(batch, STUCK.steps)
    tail = STUCK.steps // 10
    learnt = reference[:tail].mean() - reference[-tail:].mean()
    assert (losses[-tail:].mean() - reference[-tail:].mean()) / learnt == pytest.approx(found.missing, abs=1e-3)
    assert str(found).splitlines()[0] == found.precision.name


def test_the_search_stops_at_once_where_the_cheapest_is_enough() -> None:
    found = cheapest(loop(HIGH), batch, 100, [HIGH, "fp32.32"])
    assert found.precision.name == HIGH
    assert found.runs == 2


def test_a_run_that_ended_in_nan_has_no_loss() -> None:
    planted_nan = next(fault for fault in FAULTS if fault.name == "overflow gives NaN")
    found = sensitivity(planted_nan.loop(), batch, 20, by="cause")
    assert math.isnan(found.low)
    assert math.isfinite(found.reference)
    assert "nan" in str(found).splitlines()[0]


def test_what_is_refused() -> None:
    made = loop(HIGH)
    with pytest.raises(ValueError, match="by must be layer or cause, not 'role'"):
        sensitivity(made, batch, 5, by="role")
    with pytest.raises(ValueError, match="a search needs two precisions or more"):
        cheapest(made, batch, 5, [HIGH])
    for wrong in (HIGH, {LOW, HIGH}, None):
        with pytest.raises(ValueError, match="a search needs two precisions or more, from the cheapest to the dearest"):
            cheapest(made, batch, 5, wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="tolerance must be a share"):
        cheapest(made, batch, 5, [LOW, HIGH], tolerance=float("nan"))
    slow = TrainLoop(planted.loss, parameters(), batch(0), optimizer=Sgd(0.02), precision=LOW, engine="direct")
    with pytest.raises(ValueError, match=r"even fp16.32/weights=bfloat16 everywhere leaves \d+.\d % missing"):
        cheapest(slow, batch, 600, [f"{LOW}/nearest", LOW], tolerance=0.01)
