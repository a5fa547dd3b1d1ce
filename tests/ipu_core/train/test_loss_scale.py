"""Loss scaling: the loss that is reported, steps that are skipped and named, the scale's way, on both engines."""

import copy
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipu_core import nn
from ipu_core.chip.control import FloatingPointControl
from ipu_core.chip.target import Target
from ipu_core.errors import NotFinite
from ipu_core.ir.run.evaluate import evaluate_flat
from ipu_core.train.loop import TrainLoop
from ipu_core.train.loss_scale import LossScale, Scale
from ipu_core.train.optim import Adam, Lamb, Optimizer, Sgd
from tests.examples import examples, first
from tests.ipu_core.train.test_loop import batches, bits, loop

FP8 = "fp16.16/nearest/operands=float8_e4m3fn/gradients=float8_e5m2/output=float16"
QUICK = LossScale(init_scale=2.0**17, growth_interval=3)


def spoilt(step: int, at: int = 4, factor: float = 6e4) -> tuple[np.ndarray, np.ndarray]:
    """The batches of `test_loop`, one of them so large that gradients overflow in a half."""
    x, y = batches(step)
    return (x * np.float32(factor) if step == at else x), y


@cache
def unscaled(precision: str) -> float:
    """The loss of a first step."""
    return loop(precision).train(batches(0))


@pytest.mark.parametrize("precision", ["fp32.32", "fp16.32", "fp16.16/nearest", "mlperf-bert/nearest", FP8])
@pytest.mark.parametrize("exponent", first(2, [15, 0, 5, 10]))
def test_the_loss_is_the_true_one_at_every_scale(precision: str, exponent: int) -> None:
    plain = unscaled(precision)
    assert loop(precision, loss_scale=2.0**exponent).train(batches(0)) == plain
    if precision != FP8:  # which this chip has no unit for
        assert loop(precision, "tiles", loss_scale=2.0**exponent).train(batches(0)) == plain


@pytest.mark.parametrize("precision", ["fp16.32", "fp16.16/nearest", FP8])
@pytest.mark.parametrize("exponent", [0, 15])
def test_so_is_a_loss_of_ones_own(precision: str, exponent: int) -> None:
    """1,000 times a mean of halves neither saturates nor is rounded to their format."""

    def own(p: Any, x: Any) -> Any:
        return nn.mean(x @ p["w"]) * 1000.0 + 1.0 / 3.0

    x = np.full((16, 20), 4.0, np.float32)
    weights = {"w": np.full((20, 8), 1.0, np.float32)}
    made = TrainLoop(
        own, weights, x, optimizer=Sgd(1e-9), precision=precision, engine="direct", loss_scale=2.0**exponent
    )
    np.testing.assert_allclose(made.train(x), 80_000 + 1 / 3, rtol=1e-6)


@cache
def in_float32(optimizer: Optimizer, micro_batches: int) -> tuple[bytes, dict[str, np.ndarray]]:
    """The losses and the state of a run without a scale."""
    plain = loop(optimizer=optimizer, micro_batches=micro_batches)
    return plain.run(batches, 20).tobytes(), plain.arrays()


SCALED = [(scale, engine) for engine in ("direct", "tiles") for scale in (2.0**15, 2.0**-10, 1.0)]
SCALED.insert(2, SCALED.pop(3))  # the tiles' first too


@pytest.mark.parametrize(
    "optimizer",
    [Sgd(0.1), Adam(1e-2), Lamb(0.01), Adam(1e-2, clip_value=0.03, clip_norm=0.1)],
    ids=["sgd", "adam", "lamb", "clipped"],
)
@pytest.mark.parametrize("micro_batches", [1, 4])
@pytest.mark.parametrize("scale, engine", first(3, SCALED))
def test_in_float32_a_power_of_two_changes_no_bit(
    optimizer: Optimizer, micro_batches: int, scale: float, engine: str
) -> None:
    losses, state = in_float32(optimizer, micro_batches)
    made = loop(engine=engine, loss_scale=scale, optimizer=optimizer, micro_batches=micro_batches)
    assert made.run(batches, 20).tobytes() == losses
    kept = {name: a for name, a in made.arrays().items() if not name.startswith("loss_scale")}
    assert all(kept[name].tobytes() == a.tobytes() for name, a in state.items())
    assert made.skipped == ()


def test_gradients_too_small_for_a_half_arrive() -> None:
    def faint(p: Any, batch: Any) -> Any:
        return nn.mse(batch[0] @ p["w"], batch[1]) * 2.0**-20

    batch = np.ones((4, 8), np.float32), np.zeros((4, 3), np.float32)
    moved = {}
    for scale in (None, 2.0**16):
        made = TrainLoop(faint, {"w": np.full((8, 3), 2.0**-7, np.float32)}, batch, optimizer=Sgd(2.0**18),
                         precision="fp16.32", engine="direct", loss_scale=scale)  # fmt: skip
        made.train(batch)
        moved[scale] = float(np.abs(made.params["w"] - 2.0**-7).max())
    assert moved[None] < 0.6 * moved[2.0**16]
    exact = 2.0**-2 * 2 * 8 * 2.0**-7 / 3
    assert abs(moved[2.0**16] - exact) < 1e-3 * exact


@pytest.mark.parametrize("engine", ["direct", "tiles"])
@pytest.mark.parametrize("precision", ["fp16.16/nearest", "mlperf-bert"])
def test_a_planted_overflow_is_skipped_counted_and_named(engine: str, precision: str) -> None:
    made = loop(precision, engine, loss_scale=64.0, optimizer=Lamb(0.01))
    made.run(spoilt, 4)
    before = bits(made)
    value = made.train(spoilt(4))
    assert bits(made) == before
    assert made.step == 5
    (skipped,) = made.skipped
    assert (skipped.step, skipped.scale) == (4, 64.0)
    assert "gradient of 0.weight" in skipped.names
    assert "gradient of 1.bias" not in skipped.names
    assert np.isfinite(value)
    made.train(spoilt(5))
    assert bits(made) != before
    assert len(made.skipped) == 1


@pytest.mark.parametrize("engine", ["direct", "tiles"])
@pytest.mark.parametrize("nanoo", [False, True])
def test_a_cotangent_that_saturates_on_the_way_is_seen(engine: str, nanoo: bool) -> None:
    """The weight's own gradient is small: it is the product with zeros of a cotangent that is not."""
    x, y = batches(0)
    made = loop("fp16.16/nearest", engine, loss_scale=2.0**24, control=FloatingPointControl(nanoo=nanoo))
    made.train((np.zeros_like(x), y))
    (skipped,) = made.skipped
    assert nanoo or "gradient of 0.weight" not in skipped.names
    assert any(name.startswith("grad_input.convert.") for name in skipped.names)


@pytest.mark.parametrize("engine", ["direct", "tiles"])
def test_one_bad_micro_batch_spoils_the_step(engine: str) -> None:
    x, y = (np.array(a) for a in batches(3))
    made = loop("mlperf-bert-pod16", engine, loss_scale=1024.0, micro_batches=4)
    made.train((x, y))
    before = bits(made)
    x[8:12] *= 6e4
    made.train((x, y))
    assert [skipped.step for skipped in made.skipped] == [1]
    assert bits(made) == before
    made.train(batches(3))
    assert bits(made) != before


@pytest.mark.parametrize("engine", ["direct", "tiles"])
def test_infinities_and_nan_are_seen_in_float32(engine: str) -> None:
    for value in (np.inf, np.nan):
        x, y = (np.array(a) for a in batches(3))
        x[2, 3] = value
        made = loop("fp32.32", engine, loss_scale=1.0)
        before = bits(made)
        with pytest.warns(NotFinite, match="that step was skipped"):
            made.train((x, y))
        assert bits(made) == before
        assert set(made.skipped[0].names) >= {"gradient of 0.weight", "gradient of 1.bias"}


def test_the_automatic_scale_finds_its_range_again() -> None:
    runs = [loop("fp16.16/nearest", engine, loss_scale=QUICK) for engine in ("direct", "tiles")]
    scales = []
    for step in range(40):
        for made in runs:
            made.train(spoilt(step, at=20))
        assert runs[0].loss_scale == runs[1].loss_scale
        scales.append(runs[0].loss_scale)
    assert bits(runs[0]) == bits(runs[1])
    assert runs[0].skipped == runs[1].skipped
    assert [s.step for s in runs[0].skipped if s.step < 20]  # it grew until it overflowed
    assert 20 in [s.step for s in runs[0].skipped]
    assert scales[20] == 0.5 * scales[19]
    assert max(scales[21:]) >= scales[19]  # and came back


@examples(quick=5, slow=8)
@given(
    st.sampled_from(["fp32.32/streamed", "fp16.32/stochastic", "fp16.16/stochastic/streamed", "mlperf-bert-pod16"]),
    st.sampled_from([Sgd(0.1, momentum=0.5), Lamb(0.01), Adam(1e-2, bias_correction=False)]),
    st.sampled_from([1, 2, 4]),
    st.floats(-10, 20),
)
def test_both_engines_and_the_declared_arithmetic_agree(
    precision: str, optimizer: Optimizer, micro_batches: int, exponent: float
) -> None:
    settings: dict[str, Any] = {
        "optimizer": optimizer, "micro_batches": micro_batches, "target": Target("gc200", tiles=9),
        "loss_scale": LossScale(init_scale=float(np.float32(2.0**exponent)), growth_interval=2),
    }  # fmt: skip
    direct = loop(precision, **settings)
    tiles = loop(precision, "tiles", **settings, accumulations=direct.accumulations)
    inputs, key = direct.next_step(spoilt(0, at=1))
    declared = evaluate_flat(direct.block, inputs, "declared", key=key, accumulations=direct.accumulations)
    first = [run.train(spoilt(0, at=1)) for run in (direct, tiles)]
    assert first == [float(declared[direct.block.carried])] * 2
    assert [a.tobytes() for a in direct._stepper.runner.read()] == [
        a.tobytes() for a in declared[: direct.block.carried]
    ]
    for step in range(1, 5):
        assert direct.train(spoilt(step, at=1)) == tiles.train(spoilt(step, at=1))
    assert bits(direct) == bits(tiles)
    assert direct.skipped == tiles.skipped
    assert direct.loss_scale == tiles.loss_scale


def test_a_restored_or_copied_run_keeps_its_scale() -> None:
    whole = loop("fp16.16/stochastic", loss_scale=QUICK)
    whole.run(spoilt, 8)
    again, other = loop("fp16.16/stochastic", loss_scale=QUICK), copy.deepcopy(whole)
    again.restore(whole.arrays(), whole.step)
    losses = whole.run(spoilt, 12).tobytes()
    assert again.run(spoilt, 12).tobytes() == other.run(spoilt, 12).tobytes() == losses
    assert bits(again) == bits(other) == bits(whole)
    assert again.loss_scale == other.loss_scale == whole.loss_scale
    assert again.skipped == whole.skipped[-len(again.skipped) :] != ()
    with pytest.raises(ValueError, match="not those of this training step"):
        loop("fp16.16/stochastic").restore(whole.arrays(), 3)


def test_a_skipped_step_is_no_update_that_is_counted() -> None:
    made = loop("fp16.16/nearest", loss_scale=64.0)
    assert made.count_updates(spoilt(0, at=0)).wanted == 0
    assert made.count_updates(spoilt(0)).wanted > 0
    assert made.skipped == ()


def test_the_scale_moves_as_pytorchs() -> None:
    scale = Scale.of(LossScale(init_scale=8.0, growth_factor=4.0, backoff_factor=0.25, growth_interval=2))
    seen = []
    for skipped in (False, False, False, True, False, False, True, True):
        scale = scale.after(skipped)
        seen.append(float(scale.value))
    assert seen == [8, 32, 32, 8, 8, 32, 8, 2]
    assert LossScale() == LossScale(65536.0, 2.0, 0.5, 2000)
    top = Scale(LossScale(growth_interval=1), np.float32(2.0**127))
    assert top.after(False).value == 2.0**127
    bottom = Scale(LossScale(), np.float32(np.finfo(np.float32).tiny))
    assert bottom.after(True).value == np.finfo(np.float32).tiny
    assert Scale.of(3.0).after(True) == Scale.of(3.0)
    assert loop(loss_scale="automatic").loss_scale == 65536
    assert loop().loss_scale is None


def test_a_loss_that_is_not_finite_is_said_once() -> None:
    x, y = batches(0)
    bad = np.full_like(x, np.inf), y
    made = loop()
    made.run(batches, 2)
    assert made.not_finite is None
    with pytest.warns(NotFinite, match="the loss of step 2 is nan"):
        made.run(lambda step: bad, 3)
    made.run(batches, 1)
    assert made.not_finite is not None
    assert made.not_finite[0] == 2


@pytest.mark.parametrize(
    ("value", "kind", "words"),
    [
        ("auto", TypeError, "must be a number, 'automatic' or a LossScale, not 'auto'"),
        (True, TypeError, "not True"),
        (0.0, ValueError, "must be a positive float32, not 0.0"),
        (float("inf"), ValueError, "not inf"),
        (float("nan"), ValueError, "not nan"),
        ({"growth_factor": 1.0}, ValueError, "growth_factor must lie between 1 and inf, not 1.0"),
        ({"backoff_factor": 1.0}, ValueError, "backoff_factor must lie between 0 and 1"),
        ({"growth_interval": 1.5}, ValueError, "growth_interval must be a whole number"),
        ({"init_scale": "1"}, TypeError, "init_scale must be a number"),
    ],
)
def test_scales_that_are_none_are_refused(value: Any, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        loop(loss_scale=LossScale(**value) if isinstance(value, dict) else value)
