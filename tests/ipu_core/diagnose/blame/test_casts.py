"""Operands that are cast for products are a cause like others, and are not in what a run is compared with."""

from __future__ import annotations

import numpy as np
import pytest

from ipu_core import Sgd, TrainLoop, blame, cheapest, sensitivity
from ipu_core.diagnose.blame.lockstep import Lockstep
from ipu_core.diagnose.blame.switches import CauseSwitch
from ipu_core.diagnose.blame.trials import reference_of
from ipu_core.diagnose.defaults import BUDGET
from ipu_core.ir.precision.operand_scaling import SCALINGS
from ipu_core.ir.precision.precision import Precision
from tests.ipu_core.diagnose.blame import planted
from tests.ipu_core.diagnose.blame.planted import batch, parameters


def loop(precision: str) -> TrainLoop:
    return TrainLoop(planted.loss, parameters(), batch(0), optimizer=Sgd(0.1), precision=precision, engine="direct")


@pytest.mark.parametrize("name", [*SCALINGS, "fp8/delayed", "nvfp4/promote=16", "fp32.32/layer1:scaling=fp8"])
def test_a_reference_casts_nothing(name: str) -> None:
    made = loop(name)
    reference = reference_of(made.precision)
    assert str(reference.apply(made.ideal)) == str(Precision.parse("fp32.32").apply(made.ideal))
    losses = made.in_precision(reference).run(batch, 3)
    np.testing.assert_allclose(losses, loop("fp32.32").run(batch, 3), rtol=1e-5)  # sums are in the run's own order


def test_a_layer_s_blocks_of_four_bits_are_named() -> None:
    found = blame(loop("fp32.32/layer2:scaling=mxfp4"), batch, 300, tolerance=0.01)
    assert {culprit.switch for culprit in found.culprits} == {
        CauseSwitch("forward", "layer2"),
        CauseSwitch("backward", "layer2"),
    }
    first = found.culprits[0]
    assert first.equation.startswith("an operand of layer2.weight")
    assert first.kind == "rounding"
    assert 0.1 < first.share < 0.3
    assert found.closed > 0.9
    assert found.spent <= BUDGET
    assert found.cure is not None
    assert "scaling=none" in found.cure.name


def test_blocks_are_looked_at() -> None:
    made, seen = loop("mxfp4"), Lockstep()
    seen.look(made, batch(0))
    blocks = [equation.number for equation in made.block.equations if equation.op == "to_blocks"]
    assert blocks
    assert all(0.03 < seen.errors[number].size < 0.5 for number in blocks)


def test_delayed_scales_begin_anew_where_others_are_carried() -> None:
    """And go on where they are the same."""
    made = loop("fp8/delayed")
    made.run(batch, 3)
    assert [part.shape for name, part in made.arrays().items() if name.startswith("scaling")] == [(1024, 9), (9,)]
    fewer = made.in_precision("fp8/delayed/layer0:scaling=none")
    assert [part.shape for name, part in fewer.arrays().items() if name.startswith("scaling")] == [(1024, 6), (6,)]
    assert not any(name.startswith("scaling") for name in made.in_precision("fp16.32").arrays())
    back = made.in_precision("fp16.32").in_precision("fp8/delayed")
    assert back.arrays()["scaling.scale"].tolist() == [1.0] * 9
    same, further = made.in_precision("fp8/delayed"), [made.train(batch(i)) for i in (3, 4)]
    assert [same.train(batch(i)) for i in (3, 4)] == further
    assert blame(loop("fp8/delayed"), batch, 20).healthy


def test_what_a_layer_s_casts_cost() -> None:
    rows = {row[0]: row for row in sensitivity(loop("fp32.32/layer2:scaling=mxfp4"), batch, 40).rows}
    assert list(rows) == ["layer2"]
    assert rows["layer2"][2] > 0.02
    assert rows["layer2"][4] == 0


def test_the_cheapest_may_cast_in_some_layers_alone() -> None:
    found = cheapest(loop("fp32.32"), batch, 40, ["mxfp4/output=float32", "fp32.32"], tolerance=0.005)
    assert set(found.choices.values()) == {"mxfp4/output=float32", "fp32.32"}
    losses = loop(found.precision.name).run(batch, 40)
    tail = loop("fp32.32").run(batch, 40)
    learnt = tail[:4].mean() - tail[-4:].mean()
    assert (losses[-4:].mean() - tail[-4:].mean()) / learnt == pytest.approx(found.missing, abs=1e-3)
