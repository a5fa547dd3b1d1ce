"""Precisions under unit scaling: the factors they bring wherever a precision is named, and what they refuse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ipu_core import Predictor, TrainLoop, compare, nn, unit_scale
from ipu_core.__main__ import main
from ipu_core.ir.precision.precision import Precision
from ipu_core.train.optim import Sgd
from lowprec import float8_e4m3fn, float8_e5m2

RNG = np.random.default_rng(0)
BATCH = (RNG.normal(size=(32, 48)).astype(np.float32), RNG.integers(0, 8, 32).astype(np.int32))
SIZES = {"in": np.zeros((48, 40), np.float32), "bias": np.zeros(40, np.float32), "out": np.zeros((40, 8), np.float32)}
PARAMS = nn.unit_parameters(1, SIZES)


def scores(params: Any, x: Any) -> Any:
    return nn.relu(x @ params["in"] + params["bias"]) @ params["out"]


def loss(params: Any, batch: Any) -> Any:
    return nn.softmax_cross_entropy(scores(params, batch[0]), batch[1])


def loop(spec: str, function: Any = loss, params: Any = PARAMS, **changes: Any) -> TrainLoop:
    given = {"optimizer": Sgd(0.05), "engine": "direct"} | changes
    return TrainLoop(function, params, BATCH, precision=spec, **given)


def state(made: TrainLoop) -> bytes:
    return b"".join(array.tobytes() for _, array in sorted(made.arrays().items()))


@pytest.mark.parametrize("engine, spec, plain, target", [
    ("direct", "unit-fp16", "fp16.32", "gc200"),
    ("tiles", "unit-fp16", "fp16.32", "gc200"),
    ("direct", "unit-fp8", "fp8/unscaled", "gc200"),
    ("tiles", "fp8.16/unscaled/unit_scaled=true", "fp8.16/unscaled", "c600"),
])  # fmt: skip
def test_a_loop_in_such_a_precision_is_that_of_the_unit_scaled_loss(
    engine: str, spec: str, plain: str, target: str
) -> None:
    ours = loop(spec, engine=engine, target=target)
    theirs = loop(plain, unit_scale(loss), engine=engine, target=target)
    without = loop(plain, engine=engine, target=target)
    assert ours.run([BATCH] * 3, 3).tobytes() == theirs.run([BATCH] * 3, 3).tobytes()
    assert str(ours.block) == str(theirs.block) != str(without.block)
    assert state(ours) == state(theirs)
    without.run([BATCH] * 3, 3)
    assert state(ours) != state(without)
    assert ours.predict(scores, BATCH[0]).tobytes() == theirs.predict(unit_scale(scores), BATCH[0]).tobytes()
    assert ours.predict(unit_scale(scores), BATCH[0]).tobytes() == ours.predict(scores, BATCH[0]).tobytes()


def test_both_engines_give_the_same_bits() -> None:
    one, other = (loop("unit-fp16", engine=engine) for engine in ("direct", "tiles"))
    assert one.run([BATCH] * 3, 3).tobytes() == other.run([BATCH] * 3, 3).tobytes()
    assert state(one) == state(other)


def test_products_of_the_preset_are_fp8_without_scales() -> None:
    block = loop("unit-fp8").block
    formats = {e.role: [x.type.format for x in e.operands] for e in block.equations if e.op == "dot"}
    assert formats["forward"] == [float8_e4m3fn, float8_e4m3fn]
    assert formats["grad_input"] == [float8_e5m2, float8_e4m3fn]
    assert not [e for e in block.equations if e.op == "absolute"]
    assert "under unit scaling" in Precision.parse("unit-fp8").words()


def test_a_predictor_scales_the_scores() -> None:
    ours = Predictor(scores, PARAMS, BATCH[0], precision="unit-fp16")
    theirs = Predictor(unit_scale(scores), PARAMS, BATCH[0], precision="fp16.32")
    assert ours(BATCH[0]).tobytes() == theirs(BATCH[0]).tobytes()
    assert 0.5 < np.std(ours(BATCH[0]).astype(np.float32)) < 2


def test_weights_that_do_not_begin_with_deviation_1_are_refused_with_what_to_write() -> None:
    usual = {**SIZES, "in": nn.he_normal(1, (48, 40)), "out": nn.lecun_normal(2, (40, 8))}
    with pytest.raises(ValueError, match=r"unit-fp8 is under unit scaling, .* in has 0.2.*nn.unit_parameters"):
        loop("unit-fp8", params=usual)
    assert np.isfinite(loop("unit-fp8", unit_scale(loss), usual).train(BATCH))  # who says so himself may
    few = {**PARAMS, "in": PARAMS["in"], "gate": np.full((2, 2), 9.0, np.float32)}
    assert np.isfinite(loop("unit-fp8", params=few).train(BATCH))  # four numbers have no deviation to speak of


def test_a_loop_goes_on_in_another_precision_with_the_factors_that_it_was_traced_with() -> None:
    with pytest.raises(
        ValueError, match=r"with unit_scaled True, not False: 'fp32.32/unit_scaled=true' goes on with it"
    ):
        loop("unit-fp8").in_precision("fp32.32")
    with pytest.raises(ValueError, match=r"with unit_scaled False, not True: 'fp16.32' goes on with it"):
        loop("fp32.32").in_precision("unit-fp16")
    made = loop("unit-fp8").in_precision("fp32.32/unit_scaled=true")
    assert made.precision.name == "fp32.32/unit_scaled=true"
    assert (
        made.predict(scores, BATCH[0]).tobytes() == loop("fp32.32/unit_scaled=true").predict(scores, BATCH[0]).tobytes()
    )


def test_compare_begins_with_weights_of_deviation_1_where_the_name_says_so() -> None:
    usual = {**SIZES, "in": nn.he_normal(1, (48, 40)), "out": nn.lecun_normal(2, (40, 8))}
    names = ["fp32.32", "unit-fp16", "unit-fp8"]
    seen: dict[str, float] = {}

    def evaluate(params: Any, precision: Precision) -> dict[str, float]:
        seen[precision.name] = float(np.std(params["in"].astype(np.float32)))
        return {"size": float(np.std(Predictor(scores, params, BATCH[0], precision=precision)(BATCH[0])))}

    study = compare(
        loss, usual, [BATCH], names, optimizer=Sgd(0.01), steps=2, seeds=1, evaluate=evaluate, engine="direct"
    )
    assert not study.failures
    assert [round(seen[name], 1) for name in names] == [0.2, 1.0, 1.0]
    first = loop("unit-fp16", params=nn.unit_parameters(0, usual), optimizer=Sgd(0.01))
    assert study.results[1]["losses"] == first.run([BATCH] * 2, 2).tolist()


ONCE = ["--seeds", "1", "--workers", "1"]


@pytest.mark.parametrize("command", [
    ["study", "mlp", "--precisions", "unit-fp16,unit-fp8", *ONCE], ["train", "lm", "--precision", "unit-fp8"],
    ["study", "cnn", "--precisions", "fp16.32", "unit-fp16", "--lr", "0.03", *ONCE],
])  # fmt: skip
def test_the_command_line_takes_the_names(
    command: list[str], tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    small = ["--width", "16", "--layers", "1", "--heads", "2", "--context", "16"] if "lm" in command else []
    given = [*command, *small, "--engine", "direct", "--steps", "3", "--batch", "8", "--out", str(tmp_path / "out")]
    assert main(given) == 0
    printed = capsys.readouterr().out
    assert "lr 0.03" in printed
    assert "unit-fp" in printed


def test_the_command_line_profiles_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "mlp", "--precision", "unit-fp16", "--batch", "8"]) == 0
    assert "unit-fp16" in capsys.readouterr().out


def test_other_weights_want_another_learning_rate(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["study", "mlp", "--precisions", "fp32.32,unit-fp8"]) == 2
    assert "unit-fp8 begins with other weights than the others" in capsys.readouterr().err
    with pytest.raises(ValueError, match=r"unit_scaled in .* must be true or false"):
        Precision.parse("fp16.32/unit_scaled=perhaps")
