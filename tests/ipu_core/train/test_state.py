"""The state of a training as a value: read from a loop where it is asked for, changed by `replace`, gone on from."""

from __future__ import annotations

import copy
import pickle
from dataclasses import FrozenInstanceError, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ipu_core import Adam, FloatingPointControl, LossScale, Precision, Target, TrainLoop, Watch, nn
from ipu_core.errors import FloatingPointException
from ipu_core.train import checkpoint
from ipu_core.train.loss_scale import Scale, Skipped
from ipu_core.train.state import State, Steps
from lowprec import Accumulation, Key

RNG = np.random.default_rng(3)
X = RNG.normal(size=(9, 8, 6)).astype(np.float32)
BATCHES = [(x, np.sin(x[:, :1])) for x in X]
PARAMS = {"a": RNG.normal(size=(6, 5)).astype(np.float32), "b": RNG.normal(size=(5, 1)).astype(np.float32)}
SCALE = LossScale(init_scale=256.0, growth_interval=2)
DRAWN = pytest.mark.filterwarnings("ignore::ipu_core.errors.Unvalidated")


def loss(params: Any, batch: Any) -> Any:
    return np.mean((nn.tanh(batch[0] @ params["a"]) @ params["b"] - batch[1]) ** 2)


def loop(engine: str = "direct", **more: Any) -> TrainLoop:
    options: dict[str, Any] = {
        "optimizer": Adam(0.01), "precision": "fp16.16/stochastic", "key": 5, "loss_scale": SCALE,
        "target": Target("gc200", tiles=4), "engine": engine, **more,
    }  # fmt: skip
    return TrainLoop(options.pop("loss", loss), PARAMS, BATCHES[0], **options)


def spoilt(number: int) -> Any:
    """A batch whose gradients overflow in half at every scale."""
    x, y = BATCHES[number]
    return x, y + np.float32(6e4)


def same(one: State, other: State) -> bool:
    arrays = one.arrays(), other.arrays()
    return (
        one.steps == other.steps
        and arrays[0].keys() == arrays[1].keys()
        and all(array.tobytes() == arrays[1][name].tobytes() for name, array in arrays[0].items())
    )


@pytest.mark.parametrize("engine", ["direct", "tiles"])
def test_a_loop_goes_on_from_any_state_of_it(engine: str) -> None:
    whole = loop(engine)
    states, losses = [whole.state], []
    for number, batch in enumerate(BATCHES):
        losses.append(whole.train(spoilt(number) if number == 3 else batch))
        states.append(whole.state)
    assert [each.step for each in states[-1].steps.skipped] == [3]
    other = loop(engine)
    for begin in (7, 2, 5):
        other.resume(states[begin])
        assert same(other.state, states[begin])
        for number in range(begin, 9):
            assert other.train(spoilt(number) if number == 3 else BATCHES[number]) == losses[number]
        assert same(other.state, states[-1])


@DRAWN
def test_the_generators_of_the_tiles_are_part_of_it() -> None:
    made = loop("tiles", random="hardware", loss_scale=None, precision="fp16.16/stochastic")
    made.train(BATCHES[0])
    before = made.state
    assert before.drawn.keys() == {"random.s0", "random.s1"}
    losses = [made.train(batch) for batch in BATCHES[:3]]
    after = made.state
    assert any((after.drawn[name] != before.drawn[name]).any() for name in before.drawn)
    for again in (made, copy.copy(made), pickle.loads(pickle.dumps(made))):
        again.resume(before)
        assert [again.train(batch) for batch in BATCHES[:3]] == losses
        assert same(again.state, after)


def test_a_state_is_frozen_and_no_view_of_what_goes_on() -> None:
    made = loop()
    before = made.state
    with pytest.raises(FrozenInstanceError):
        before.leaves = {}  # type: ignore[misc]
    kept = {name: array.copy() for name, array in before.leaves.items()}
    made.train(BATCHES[0])
    assert all((before.leaves[name] == array).all() for name, array in kept.items())
    made.resume(before)
    made.train(BATCHES[0])
    assert all((before.leaves[name] == array).all() for name, array in kept.items())


def test_another_key_draws_other_bits() -> None:
    made, other = loop(), loop(key=6)
    begun = made.state
    first = [made.train(batch) for batch in BATCHES[:4]]
    made.resume(replace(begun, steps=begun.steps._replace(key=Key(6))))
    assert made.key == Key(6)
    second = [made.train(batch) for batch in BATCHES[:4]]
    assert second != first
    assert second == [other.train(batch) for batch in BATCHES[:4]]
    made.resume(replace(begun, steps=begun.steps._replace(step=1)))
    assert [made.train(batch) for batch in BATCHES[:4]] not in (first, second)


@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy, lambda made: pickle.loads(pickle.dumps(made))])
@pytest.mark.parametrize("engine", ["direct", "tiles"])
def test_copies_hold_all_of_it(engine: str, how: Any) -> None:
    made = loop(engine, watch=2)
    for number in range(4):
        made.train(spoilt(number) if number == 1 else BATCHES[number])
    other = how(made)
    assert same(other.state, made.state)
    assert (other.training, other.execution) == (made.training, made.execution)
    assert len(other.watched.rows) == len(made.watched.rows) == 2
    assert made.train(BATCHES[4]) == other.train(BATCHES[4])
    made.train(BATCHES[5])
    assert (other.step, len(other.watched.rows)) == (5, 3)


def test_a_copy_forgets_the_run_under_way() -> None:
    made, copies = loop(), list[TrainLoop]()
    made.run(BATCHES, 3, callbacks=[lambda running, _: copies.append(copy.copy(running))])
    assert [each.step for each in copies] == [1, 2, 3]
    assert made.run(BATCHES[1:], 1).tolist() == copies[2].run(BATCHES[1:], 1).tolist()


@pytest.mark.parametrize("engine", ["direct", "tiles"])
def test_a_step_that_ends_early_changes_nothing(engine: str) -> None:
    made = loop(engine, control=FloatingPointControl(oflo=True), loss_scale=None, precision="fp16.16/nearest")
    made.train(BATCHES[0])
    before = made.state
    with pytest.raises(FloatingPointException, match="step 1"):
        made.train((BATCHES[1][0] * np.float32(6e4), BATCHES[1][1]))
    assert same(made.state, before)


@pytest.mark.parametrize("engine", ["direct", "tiles"])
def test_an_interrupted_call_gives_the_scale_back(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = loop(engine, control=FloatingPointControl(div0=True))
    for batch in BATCHES[:3]:
        made.train(batch)
    before, after = made.state, Steps.after
    assert before.steps.scale is not None

    def interrupted(self: Steps, *said: Any) -> Steps:
        made._stepper.steps = after(self, *said)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Steps, "after", interrupted)
        with pytest.raises(KeyboardInterrupt):
            made.train(spoilt(3))
    assert same(made.state, before)


def test_steps_are_counted_as_they_are_done() -> None:
    scale = Scale.of(SCALE)
    steps = Steps(key=Key(0), scale=scale)
    one = steps.after(0.5, ())
    assert (one.step, one.scale, one.skipped, one.not_finite) == (1, scale._replace(good=1), (), None)
    two = one.after(np.inf, ("a", "b"))
    assert two.skipped == (Skipped(1, 256.0, ("a", "b")),)
    assert (two.scale, two.not_finite) == (Scale(SCALE, np.float32(128)), (1, np.inf))
    assert two.skips(1)
    assert not two.skips(0)
    three = two.after(np.nan, None)  # nobody looked: the scale stays, and the first loss that was not finite
    assert (three.step, three.scale, three.skipped, three.not_finite) == (3, two.scale, two.skipped, two.not_finite)
    assert steps._replace(scale=None).after(0.0, ()).scale is None
    assert steps == Steps(key=Key(0), scale=scale)


def test_arrays_and_history_make_the_state_again() -> None:
    made = loop()
    begun = made.state
    for number in range(4):
        made.train(spoilt(number) if number == 1 else BATCHES[number])
    now = made.state
    assert same(begun.restored(now.arrays(), 4, now.steps.history()), now)
    without = begun.restored(now.arrays(), 4)
    assert without.steps == now.steps._replace(skipped=())
    less = {name: array for name, array in now.arrays().items() if name != "params.a"}
    other = {**now.arrays(), "params.a": now.leaves["params.a"].astype(np.float32)}
    for arrays in (less, other, {**now.arrays(), "more": np.zeros(2)}):
        with pytest.raises(ValueError, match="arrays are not those of this training step"):
            begun.restored(arrays, 4)
    with pytest.raises(ValueError, match="step must be an integer"):
        begun.restored(now.arrays(), -1)


def l1(params: Any, batch: Any) -> Any:
    return np.mean(np.abs(nn.tanh(batch[0] @ params["a"]) @ params["b"] - batch[1]))


def held(array: Any) -> Any:
    return lambda params, batch: np.mean((nn.tanh(batch[0] @ params["a"] * array) @ params["b"] - batch[1]) ** 2)


# Each has the arrays of the loop below, by name, shape and dtype, and other bits after a step.
FOREIGN: dict[str, tuple[dict[str, Any], str]] = {
    "rounding": ({"precision": "fp16.16/nearest"}, "precision fp16.16/nearest, this one has fp16.16/stochastic"),
    "partials": ({"precision": "fp16.16/stochastic/partials=float32"}, "precision .*partials=float32"),
    "order of a sum": ({"accumulations": {0: Accumulation(group=1)}}, "another traced step.* order of sums"),
    "loss": ({"loss": l1}, "another traced step: another loss"),
    "optimizer": ({"optimizer": Adam(0.01, b1=0.8)}, r"the optimizer Adam\(b1=0.8\), this one has Adam\(b1=0.9\)"),
    "micro-batches": ({"micro_batches": 2}, "another traced step"),
    "number of 9 digits": ({"optimizer": Adam(0.01, eps=1.000000001e-8)}, "other constants"),
    "loss scale": ({"loss_scale": LossScale(init_scale=128.0, growth_interval=2)}, r"loss scale LossScale\(.*128.0"),
    "control": ({"control": FloatingPointControl(nanoo=True)}, r"control FloatingPointControl\(.*nanoo=True"),
}


@pytest.mark.parametrize("what", FOREIGN)
def test_a_state_of_another_training_is_refused_with_what_differs(what: str, tmp_path: Path) -> None:
    options, words = FOREIGN[what]
    made, other = loop(), loop(**options)
    before = made.state
    with pytest.raises(ValueError, match=f"the state is of a run with {words}"):
        made.resume(other.state)
    other.save(tmp_path / "c.npz")
    with pytest.raises(ValueError, match=f"c.npz is of a run with {words}"):
        made.load(tmp_path / "c.npz")
    assert same(made.state, before)
    made.restore(other.arrays(), 0)  # which takes arrays, whose ever they are


def test_a_state_knows_the_arrays_that_a_loss_holds() -> None:
    ones = np.ones(5, np.float32)
    state = loop(loss=held(ones)).state
    loop(loss=held(ones.copy())).resume(state)
    with pytest.raises(ValueError, match="other constants: numbers or arrays that the loss or the optimizer holds"):
        loop(loss=held(2 * ones)).resume(state)


def test_a_state_without_a_name_of_its_precision_or_on_another_engine_is_the_same() -> None:
    made, named = loop(), Precision.parse("fp16.16/stochastic")
    for other in (
        loop(precision=replace(named, name="mine")), loop("tiles", streamed="optimizer.*"), loop(reorder=False),
        loop(optimizer=Adam(lambda step: 0.1)), loop(recompute=True), made.in_precision("fp16.16/stochastic"),
    ):  # fmt: skip
        other.resume(made.state)
        assert same(other.state, made.state)


def test_a_foreign_state_is_refused_and_changes_nothing() -> None:
    made = loop()
    before = made.state
    with pytest.raises(TypeError, match="state must be"):
        made.resume(before.arrays())  # type: ignore[arg-type]
    with pytest.raises(
        ValueError, match=r"loss scale changes as None says, this training's as LossScale\(init_scale=256"
    ):
        made.resume(replace(before, steps=before.steps._replace(scale=None)))
    scale = before.steps.scale
    assert scale is not None
    for steps, words in (
        (before.steps._replace(step=-1), "step must be an integer of at least 0, not -1"),
        (before.steps._replace(scale=scale._replace(value=np.float32(np.nan))), "no loss scale is nan"),
        (before.steps._replace(scale=scale._replace(good=-2)), "after -2 good steps"),
    ):
        with pytest.raises(ValueError, match=words):
            made.resume(replace(before, steps=steps))
    for wrong, words in (
        (replace(before, steps=(Key(0), 1)), "state.steps must be a Steps"),  # type: ignore[arg-type]
        (replace(before, steps=before.steps._replace(key=3)), "state.steps.key must be a Key, not 3"),  # type: ignore[arg-type]
        (replace(before, leaves=[]), r"state.leaves must be a Mapping, not \[\]"),  # type: ignore[arg-type]
    ):
        with pytest.raises(TypeError, match=words):
            made.resume(wrong)
    lists = {name: array.tolist() for name, array in before.leaves.items()}
    with pytest.raises(ValueError, match=r"corrections.0 is float64\[\], not float32\[\], .*, and 5 more"):
        made.resume(replace(before, leaves=lists))
    assert same(made.state, before)
    fixed = loop(loss_scale=256.0)
    with pytest.raises(ValueError, match="the loss scale is 256 in every step, not 128"):
        fixed.restore({**fixed.arrays(), "loss_scale.value": np.array(128, np.float32)}, 0)


@DRAWN
def test_another_key_is_refused_where_tiles_have_drawn_with_theirs() -> None:
    made = loop("tiles", random="hardware", loss_scale=None)
    other = loop("tiles", random="hardware", loss_scale=None, key=6)
    state = other.state
    made.resume(state)
    assert made.train(BATCHES[0]) == other.train(BATCHES[0])
    with pytest.raises(ValueError, match=r"run with random HardwareRandom.*6.*, this one has HardwareRandom.*7"):
        made.resume(replace(state, steps=state.steps._replace(key=Key(7))))


def test_what_was_seen_of_later_steps_is_forgotten() -> None:
    made = loop(watch=Watch(every=1))
    states = []
    for batch in BATCHES[:4]:
        states.append(made.state)
        made.train(batch)
    made.resume(states[2])
    assert made.watched is not None
    assert made.watched.rows["step"][:, 0].tolist() == [0, 1]


def test_another_precision_goes_on_from_the_state() -> None:
    made = loop(precision="fp32.32")
    for number in range(3):
        made.train(spoilt(number) if number == 1 else BATCHES[number])
    other = made.in_precision("fp16.16/stochastic")
    now = other.state
    assert now.steps == made.state.steps
    assert now.leaves["params.a"].dtype == np.float16
    np.testing.assert_array_equal(now.leaves["params.a"], made.state.leaves["params.a"].astype(np.float16))
    assert made.in_precision("fp32.32").train(BATCHES[3]) == made.train(BATCHES[3])


def test_a_checkpoint_holds_the_state_under_the_names_it_always_had(tmp_path: Path) -> None:
    made = loop()
    for number in range(3):
        made.train(spoilt(number) if number == 1 else BATCHES[number])
    made.save(tmp_path / "c.npz")
    arrays, meta = checkpoint.load(tmp_path / "c.npz")
    moments = [f"optimizer.{moment}.{name}" for moment in ("first_moment", "second_moment") for name in "ab"]
    scales = ["loss_scale.value", "loss_scale.good"]
    assert {*arrays} == {
        "params.a",
        "params.b",
        *moments,
        *scales,
        "optimizer.corrections.0",
        "optimizer.corrections.1",
    }
    assert meta.keys() == {
        "step",
        "key",
        "precision",
        "optimizer",  # which later versions write, and no version needs
        "traced step",
        "constants",
        "loss scale",
        "control",
        "history",
        "run",
    }
    assert meta["key"] == "Key(0x5)"
    other = loop(engine="tiles")
    other.load(tmp_path / "c.npz")
    assert same(other.state, made.state)
    assert other.train(BATCHES[3]) == made.train(BATCHES[3])
    with pytest.raises(ValueError, match="with key"):
        loop(key=6).load(tmp_path / "c.npz")
    older = {name: value for name, value in meta.items() if name not in ("constants", "loss scale", "control")}
    checkpoint.save(tmp_path / "older.npz", arrays, older)
    again = loop()
    again.load(tmp_path / "older.npz")
    assert again.step == 3
