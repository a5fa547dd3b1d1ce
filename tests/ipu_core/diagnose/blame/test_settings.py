"""Settings that are changed, seeds that tell two runs apart, and culprits that are dropped where another is enough."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ipu_core import Adam, LossScale, Sgd, TrainLoop, blame
from ipu_core.diagnose.blame.causes import Causes
from ipu_core.diagnose.blame.gap import Gap, above, improves, told_apart
from ipu_core.diagnose.blame.lockstep import Lockstep
from ipu_core.diagnose.blame.report import Culprit
from ipu_core.diagnose.blame.settings import Setting, Variant, not_finite, not_finite_state, numbers_in_words, sizes
from ipu_core.diagnose.blame.switches import CauseSwitch
from ipu_core.diagnose.blame.trials import Trials
from ipu_core.ir.precision.precision import Precision
from ipu_core.train.altered import altered, bounds_of
from tests.ipu_core.diagnose.blame.planted import batch, loss, parameters


def loop(optimizer: Any = None, precision: str = "fp16.32", **options: Any) -> TrainLoop:
    return TrainLoop(
        loss, parameters(), batch(0), optimizer=optimizer or Sgd(0.1), precision=precision, engine="direct", **options
    )


@pytest.mark.parametrize(
    "clip", [{"clip_norm": 1e-4}, {"clip_value": 3e-3}, {"clip_norm": 1e-4, "clip_value": 3e-3}], ids=str
)
@pytest.mark.parametrize("kind", [Sgd, Adam])
def test_without_clipping_it_has_the_bits_of_an_optimizer_that_does_not_clip(kind: Any, clip: dict[str, float]) -> None:
    clipped, plain = loop(kind(0.01, **clip)), loop(kind(0.01))
    wide = altered(clipped, clipped=False)
    assert wide.run(batch, 4).tolist() == plain.run(batch, 4).tolist() != clipped.run(batch, 4).tolist()
    assert bounds_of(plain) == frozenset()


def test_another_rate_is_that_of_another_optimizer_and_of_a_schedule() -> None:
    half = loop(Sgd(0.05)).run(batch, 4).tolist()
    made = loop(Sgd(0.1))
    assert altered(made, rate=0.5).run(batch, 4).tolist() == half
    assert altered(loop(Sgd(lambda step: 0.1)), rate=0.5).run(batch, 4).tolist() == half
    assert made.step == 0


def test_another_loss_scale_begins_anew_and_none_is_refused_where_nothing_is_scaled() -> None:
    made = altered(loop(loss_scale=2.0**30), loss_scale=LossScale(2.0**10))
    assert made.run(batch, 3).tolist() == loop(loss_scale=LossScale(2.0**10)).run(batch, 3).tolist()
    assert made.skipped == ()
    with pytest.raises(ValueError, match="this training has no loss scale"):
        altered(loop(), loss_scale=LossScale())


def test_a_look_says_what_clipping_leaves_and_how_far_a_step_moves() -> None:
    for clip, low, high in (({"clip_norm": 1e-3}, 1e-5, 0.01), ({"clip_value": 1e-4}, 1e-5, 0.1), ({}, 1, 1)):
        seen = Lockstep()
        seen.look(loop(Sgd(0.1, **clip)), batch(0))
        assert low <= seen.clips[0] <= high, clip
    slow, fast = Lockstep(), Lockstep()
    slow.look(loop(Sgd(0.001)), batch(0))
    fast.look(loop(Sgd(0.1)), batch(0))
    assert fast.moves[0] == pytest.approx(100 * slow.moves[0], rel=0.01)


def test_batches_that_are_left_out_give_way_to_those_before_them() -> None:
    variant = Variant(Precision.parse("fp16.32"), (Setting("batch", (7, 9, 10)),))
    assert variant.batches(["a", "b", "c", "d", "e"], 7) == ["b", "b", "b", "b", "e"]
    bad = np.array([1.0, np.inf])
    assert not_finite([(np.ones(2), np.arange(3)), (bad, np.arange(3)), (np.arange(2), bad)], 5) == (6, 7)
    assert sizes([(np.array([1.0, -3.0]), np.array([9])), (np.array([9]),)]) == [3.0, 0.0]
    assert numbers_in_words((1, 2, 3, 4, 5)) == "steps 1, 2, 3 and 2 more"


def test_words_of_settings() -> None:
    assert str(Setting("learning rate", 1 / 512)) == "1/512 of the learning rate"
    assert str(Setting("learning rate", 64.0)) == "64 times the learning rate"
    assert str(Setting("loss scale", LossScale(4096.0))) == (
        "a loss scale that begins at 2^12 and adapts (loss_scale=LossScale(4096))"
    )
    assert str(Setting("clipping")) == "gradients that are not clipped"
    assert str(Setting("batch", (3,))) == "the batch of step 3 left out"


def test_seeds_tell_apart_what_chance_does_not_make() -> None:
    assert told_apart([0.1, 0.11, 0.09], noise=1.0, least=0.05)
    assert not told_apart([0.1, 0.02, 0.16], noise=1.0, least=0.05)  # as noise of their own size gives them
    assert not told_apart([0.2, -0.1, 0.2], noise=0.0, least=0.05)
    assert told_apart([0.2, 1.7, 1.8], noise=0.05, least=0.05)  # unlike, and each beyond all noise
    assert not told_apart([0.04, 0.04, 0.04], noise=0.0, least=0.05)


def test_noise_is_told_apart_no_more_often_than_said() -> None:
    """Of triples of noise alone one in 20 is, whatever its size; of those that begin above 0 twice as many."""
    rng = np.random.default_rng(0)
    triples = rng.normal(size=(4000, 3))
    found = np.mean([told_apart(list(each), noise=1.0, least=0.0) for each in triples])
    assert 0.035 < found < 0.065


def test_where_a_run_left_training_for_good() -> None:
    losses = np.array([1.0, 3.0, 0.8, 2.5, 5.0, *[9.0] * 15])
    assert above(losses, 1.0, 100) == (103, 2.5, "")
    assert above(np.linspace(1, 0, 20), 1.0, 0) is None
    assert above(np.array([1.0] * 10 + [9.0] + [1.0] * 9), 1.0, 0) is None  # it came back


def test_what_improves() -> None:
    flat = np.full(10, 2.0)
    assert improves(np.linspace(2, 1, 10), flat)
    assert improves(np.array([1.0] + [1.5] * 9), flat)  # no better than its first batch, and below the other
    assert not improves(np.array([1.0] + [2.5] * 9), flat)
    gone = np.array([1.0] + [1e6] * 9)
    assert not improves(np.array([1.0] + [9.0] * 9), gone)  # to lie below one that diverged is nothing
    assert not improves(np.full(10, np.nan), flat)


def test_another_seed_has_other_bits_and_leaves_the_run_where_it_is() -> None:
    made = loop(precision="fp16.16/stochastic")
    trials = Trials(made, [batch(number) for number in range(8)])
    run = trials.begin(Variant(made.precision))
    trials.further(run, 4)
    one, same, two = (trials.seeded(run, seed, 6).tolist() for seed in (1, 1, 2))
    assert one == same != two
    assert trials.further(run, 8).tolist() == made.run(batch, 8).tolist()
    fixed = Trials(made, [batch(0)] * 8)
    run = fixed.begin(Variant(made.precision))
    # The batches are all alike: only the random bits differ.
    assert fixed.seeded(run, 1, 6).tolist() != fixed.seeded(run, 2, 6).tolist()


def test_a_skipped_batch_with_nan_ends_nothing_and_is_noted() -> None:
    def broken(step: int) -> Any:
        x, y = batch(step)
        return (x * np.nan if step == 20 else x, y)

    found = blame(loop(loss_scale=1024.0), broken, 60)
    assert (found.skipped, found.healthy, found.diverged) == (1, True, None)
    assert math.isfinite(found.loss)
    assert "infinities or NaN in the batch of step 20" in str(found)
    ended = blame(loop(), broken, 60)
    assert ended.diverged is not None
    assert ended.culprits[0].switch == Setting("batch", (20,))


def pruned(closed: dict[str, float], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is left of two culprits where each alone closes so much, and both together all."""
    causes = Causes.__new__(Causes)
    low, learns = np.ones(20), np.linspace(1, 0, 20)
    causes._whole, causes.length, causes._before = Gap(low, learns), 20, 0
    causes.run = SimpleNamespace(after=lambda steps: learns[:steps])  # type: ignore[assignment]
    causes.culprits = [
        Culprit(CauseSwitch(cause), "", "", "rounding", 0.0, 0, 0.5, before)
        for before, cause in enumerate(("forward", "weights"))
    ]
    monkeypatch.setattr(causes, "_joint", lambda switches: (closed[switches[0].cause], causes.run))
    monkeypatch.setattr(causes, "_finish", lambda run: None)
    causes._prune()
    return [culprit.switch.cause for culprit in causes.culprits]


def test_of_two_causes_one_that_only_undoes_the_other_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first made the second necessary: without the first, the second alone does as much."""
    assert pruned({"weights": 0.98, "forward": 0.3}, monkeypatch) == ["weights"]
    assert pruned({"weights": 0.6, "forward": 0.3}, monkeypatch) == ["forward", "weights"]


def test_a_gap_of_runs_that_never_were_finite_is_nan_and_no_error() -> None:
    nothing = np.full(20, math.nan)
    assert math.isnan(Gap(nothing, nothing).size(20))


def test_a_state_that_is_not_finite_is_made_of_zeros_there_and_stays_in_the_loop() -> None:
    values = {name: {key: x.copy() for key, x in layer.items()} for name, layer in parameters().items()}
    values["layer1"]["weight"][3, :4] = [np.nan, np.inf, -np.inf, 1.0]
    values["layer2"]["bias"][0] = np.nan
    made = TrainLoop(loss, values, batch(0), optimizer=Adam(0.003), precision="fp16.32", engine="direct")
    assert not_finite_state(made) == {"params.layer1.weight": "3 of 2,304", "params.layer2.bias": "1 of 4"}
    mended = Variant(made.precision, (Setting("state"),)).of(made)
    assert not_finite_state(mended) == {}
    weight = values["layer1"]["weight"].astype(np.float16)
    weight[3, :3] = 0
    assert mended.arrays()["params.layer1.weight"].astype(np.float16).tobytes() == weight.tobytes()
    assert np.isnan(made.params["layer1"]["weight"][3, 0])
    found = blame(made, batch, 60)
    (culprit,) = found.culprits
    assert culprit.switch == Setting("state")
    assert culprit.closed == pytest.approx(1.0, rel=1e-2)
    said = (
        "infinities or NaN in params.layer1.weight (3 of 2,304), params.layer2.bias (1 of 4) before step 0; with zeros"
    )
    assert said in " ".join(str(found).split())
    assert found.cure is None
