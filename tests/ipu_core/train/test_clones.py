"""Clones: each has the bits of a loop of its own, whatever the others do, through checkpoints, traps and ends."""

from __future__ import annotations

import copy
import pickle
import warnings
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipu_core import (
    Adam,
    Checkpoint,
    Clone,
    Clones,
    Epochs,
    Evaluate,
    Execution,
    FloatingPointControl,
    FloatingPointException,
    NotFinite,
    OutOfTileMemory,
    Sgd,
    Target,
    Training,
    TrainLoop,
    nn,
)
from tests.examples import examples

ROWS, WIDTH = 6, 5
CHIP = Target("bow", tiles=24)
rng = np.random.default_rng(8)
PARAMS = {"w": (0.4 * rng.normal(size=(WIDTH, WIDTH))).astype(np.float32),
          "head": (0.4 * rng.normal(size=(WIDTH, 3))).astype(np.float32)}  # fmt: skip
BATCHES = [
    (rng.normal(size=(ROWS, WIDTH)).astype(np.float32), rng.integers(3, size=ROWS).astype(np.int32)) for _ in range(6)
]


def net(p: Any, batch: Any) -> Any:
    return nn.cross_entropy(nn.gelu(batch[0] @ p["w"]) @ p["head"], batch[1])


def noisy(p: Any, batch: Any) -> Any:
    return nn.cross_entropy(nn.dropout(nn.gelu(batch[0] @ p["w"]), 0.2) @ p["head"], batch[1])


def carried(p: Any, state: Any, batch: Any) -> Any:
    mean = 0.5 * state + 0.5 * nn.mean(batch[0], axis=0)
    return nn.cross_entropy(nn.tanh((batch[0] - mean) @ p["w"]) @ p["head"], batch[1]), mean


def explodes(p: Any, batch: Any) -> Any:
    return nn.exp(200.0 * net(p, batch))


def clone(loss: Any = net, **options: Any) -> Clone:
    options.setdefault("optimizer", Sgd(0.1))
    options.setdefault("precision", "fp16.16/stochastic")
    return Clone(loss, PARAMS, **options)


SETTINGS: list[dict[str, Any]] = [
    {},
    {"optimizer": Sgd(0.01, momentum=0.9), "key": 3},
    {"optimizer": Adam(lambda step: 0.01 / (1 + step)), "precision": "fp32.32"},
    {"loss": noisy, "precision": "fp16.32/nearest", "key": 7},
    {"micro_batches": 2, "optimizer": Adam(0.01)},
    {"loss_scale": "automatic", "precision": "fp16.16/nearest", "micro_batches": 3},
    {"loss": carried, "model_state": np.zeros(WIDTH, np.float32)},
    {"precision": "fp32.32", "loss": noisy, "micro_batches": 2},
]


def loops(each: list[dict[str, Any]], **execution: Any) -> list[TrainLoop]:
    made = []
    for given_options in each:
        options = {"loss": net, "optimizer": Sgd(0.1), "precision": "fp16.16/stochastic", **given_options}
        options.pop("name", None)
        options.pop("tiles", None)
        made.append(TrainLoop(options.pop("loss"), PARAMS, BATCHES[0], **options, **execution))
    return made


def same_state(made: Clones, alone: list[TrainLoop]) -> None:
    for one, other in zip(made.loops, alone, strict=True):
        for mine, theirs in zip(one.state.leaves.values(), other.state.leaves.values(), strict=True):
            np.testing.assert_array_equal(mine.view(f"u{mine.itemsize}"), theirs.view(f"u{theirs.itemsize}"))


@cache
def three_steps(number: int) -> tuple[TrainLoop, Any]:
    """A loop of its own of a setting, and its losses."""
    (alone,) = loops([SETTINGS[number]], target=CHIP, engine="direct")
    return alone, alone.run(BATCHES, 3)


@given(st.lists(st.sampled_from(range(len(SETTINGS))), min_size=1, max_size=4), st.sampled_from(["direct", "tiles"]))
@examples(8, 100)
def test_bits_are_those_of_loops_alone(numbers: list[int], engine: str) -> None:
    each = [SETTINGS[number] for number in numbers]
    made = Clones([clone(**options) for options in each], BATCHES[0], target=CHIP, engine=engine)
    losses = made.run(BATCHES, 3)
    alone = [three_steps(number) for number in numbers]
    np.testing.assert_array_equal(losses, [wanted for _, wanted in alone])
    same_state(made, [loop for loop, _ in alone])
    assert losses.dtype == np.float32
    assert made.step == 3


def test_eight_rates_are_eight_runs() -> None:
    rates = [0.4 / 2**n for n in range(8)]
    made = Clones([clone(optimizer=Sgd(rate)) for rate in rates], BATCHES[0], target=CHIP, engine="tiles")
    alone = loops([{"optimizer": Sgd(rate)} for rate in rates], target=CHIP)
    batches = Epochs(BATCHES)
    np.testing.assert_array_equal(made.run(batches, 12), [loop.run(batches, 12) for loop in alone])
    same_state(made, alone)
    assert [loop.target.tiles for loop in made.loops] == [2] * 8


@pytest.mark.parametrize("streamed", ["optimizer.*", ""])
def test_streaming_and_own_tiles_change_no_bit(streamed: str) -> None:
    each: list[dict[str, Any]] = [{"optimizer": Adam(0.01), "tiles": 4}, {"optimizer": Adam(0.1)}]
    made = Clones([clone(**options) for options in each], BATCHES[0], target=CHIP, streamed=streamed or ())
    assert [loop.target.tiles for loop in made.loops] == [4, 20]
    np.testing.assert_array_equal(made.run(BATCHES, 4), [loop.run(BATCHES, 4) for loop in loops(each, target=CHIP)])


@pytest.mark.parametrize("engine", ["direct", "tiles"])
def test_a_checkpoint_goes_on_with_the_same_bits(engine: str, tmp_path: Path) -> None:
    each = [{**options, "name": f"of {number}"} for number, options in enumerate(SETTINGS[:6])]

    def made() -> Clones:
        return Clones([clone(**options) for options in each], BATCHES[0], target=CHIP, engine=engine)

    whole = made()
    expected = whole.run(Epochs(BATCHES), 9)
    first, second = made(), made()

    def save(clones: Clones, losses: Any) -> None:
        if clones.step == 4:
            clones.save(tmp_path / "half.npz")

    first.run(Epochs(BATCHES), 6, callbacks=[save])
    second.load(tmp_path / "half.npz")
    assert second.step == 4
    np.testing.assert_array_equal(second.run(Epochs(BATCHES), 5), expected[:, 4:])
    same_state(second, list(whole.loops))


def test_a_checkpoint_of_others_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    two = Clones([clone(name="a"), clone(name="b")], BATCHES[0], target=CHIP)
    two.run(BATCHES, 2)
    two.save(tmp_path / "two.npz")
    two.loops[0].save(tmp_path / "one.npz")
    other = Clones([clone(name="a"), clone(name="c")], BATCHES[0], target=CHIP)
    with pytest.raises(ValueError, match="clones a, b, not of clones a, c"):
        other.load(tmp_path / "two.npz")
    with pytest.raises(ValueError, match="checkpoint of one loop"):
        two.load(tmp_path / "one.npz")
    unlike = Clones([clone(name="a"), clone(name="b", optimizer=Adam(0.1))], BATCHES[0], target=CHIP)
    with pytest.raises(ValueError, match="clone b"):
        unlike.load(tmp_path / "two.npz")
    assert unlike.step == 0
    assert all(loop.step == 0 for loop in unlike.loops)
    with pytest.raises(ValueError, match="clones"):
        two.loops[0].load(tmp_path / "two.npz")


def test_not_finite_names_the_clone() -> None:
    made = Clones([clone(name="calm"), clone(explodes, precision="fp32.32", name="wild")], BATCHES[0], target=CHIP)
    with pytest.warns(NotFinite, match="clone wild: ") as caught:
        losses = made.run(BATCHES, 4)
    assert len(caught) == 1  # once, not at each step
    assert losses.shape == (2, 4)
    assert np.isfinite(losses[0]).all()
    stops = Clones([clone(), clone(explodes, precision="fp32.32")], BATCHES[0], target=CHIP, on_nonfinite="stop")
    with pytest.warns(NotFinite, match="clone 1: "):
        assert stops.run(BATCHES, 4).shape == (2, 1)
    assert stops.step == 1
    again = Clones([clone(), clone(explodes, precision="fp32.32")], BATCHES[0], target=CHIP, on_nonfinite="stop")
    with pytest.raises(NotFinite, match="clone 1: "):
        again.train(BATCHES[0])
    assert again.step == 1
    quiet = Clones([clone(explodes, precision="fp32.32")], BATCHES[0], target=CHIP, on_nonfinite="ignore")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        quiet.run(BATCHES, 2)


def test_a_trap_of_one_takes_back_the_step_of_all() -> None:
    control = FloatingPointControl(oflo=True)
    made = Clones([clone(), clone(explodes, control=control)], BATCHES[0], target=CHIP)
    before = [loop.state.leaves for loop in made.loops]
    with pytest.raises(FloatingPointException, match="clone 1: step 0"):
        made.train(BATCHES[0])
    assert made.step == 0
    for loop, leaves in zip(made.loops, before, strict=True):
        for name, leaf in loop.state.leaves.items():
            np.testing.assert_array_equal(leaf, leaves[name])


def test_a_batch_that_one_refuses_is_refused_before_the_first() -> None:
    made = Clones([clone(), clone()], BATCHES[0], target=CHIP)
    with pytest.raises(ValueError, match=r"shape \(3, 5\)"):
        made.train((BATCHES[0][0][:3], BATCHES[0][1]))
    assert made.step == 0


def test_callbacks_are_functions_and_end_the_run() -> None:
    made = Clones([clone(), clone()], BATCHES[0], target=CHIP)
    seen: list[Any] = []

    def second(clones: Clones, losses: Any) -> bool:
        seen.append((clones.step, losses.tolist()))
        return clones.step == 2

    losses = made.run(BATCHES, 5, callbacks=[second])
    assert losses.shape == (2, 2)
    assert seen == [(1, losses[:, 0].tolist()), (2, losses[:, 1].tolist())]
    with pytest.raises(TypeError, match=r"Checkpoint is of one loop: .*clones\.save"):
        made.run(BATCHES, 1, callbacks=[Checkpoint("run.npz", every=1)])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="Evaluate is of one loop"):
        made.run(BATCHES, 1, callbacks=[Evaluate(lambda params: 1.0)])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="function"):
        made.run(BATCHES, 1, callbacks=[3])  # type: ignore[list-item]
    assert made.step == 2


def test_a_loop_trained_alone_is_seen() -> None:
    made = Clones([clone(name="a"), clone(name="b")], BATCHES[0], target=CHIP)
    made.loops[1].train(BATCHES[0])
    with pytest.raises(ValueError, match="unlike numbers of them: a 0, b 1"):
        made.train(BATCHES[0])
    made.loops[0].train(BATCHES[0])
    made.train(BATCHES[1])
    assert made.step == 2


def test_what_it_says() -> None:
    made = Clones([clone(name="slow", optimizer=Sgd(0.01)), clone(tiles=6)], BATCHES[0], target=CHIP, engine="tiles")
    told = str(made)
    assert "2 on bow, engine tiles, 0 steps" in told
    assert "slow: 18 tiles" in told
    assert "1: 6 tiles" in told
    profile = made.profile
    assert profile is not None
    assert f"{profile.cycles:,} cycles" in told
    assert any(step.name.startswith("slow.w.") for step in profile.steps)
    assert Clones([clone()], BATCHES[0], engine="direct").profile is None


def test_the_account_is_of_the_last_step() -> None:
    """A skipped step of one is not billed."""
    scaled = clone(explodes, precision="fp16.16/nearest", loss_scale="automatic", name="scaled")
    made = Clones([scaled, clone()], BATCHES[0], target=CHIP, engine="tiles", update_overhead=1e-3)
    before = made.profile
    with pytest.warns(NotFinite, match="clone scaled: .*skipped"):
        made.train(BATCHES[0])
    after = made.profile
    assert before is not None
    assert after is not None
    assert len(made.loops[0].skipped) == 1
    assert after.cycles < before.cycles
    assert after.measured
    assert after.seconds_per_update == after.seconds + 1e-3


REFUSED: dict[str, tuple[Any, type[Exception], str]] = {
    "one clone bare": (lambda: Clones(clone(), BATCHES[0]), TypeError, r"give \[clone\]"),  # type: ignore[arg-type]
    "none": (lambda: Clones([], BATCHES[0]), ValueError, "one Clone at least"),
    "a loop": (lambda: Clones(loops([{}]), BATCHES[0]), TypeError, "a model is a Clone"),  # type: ignore[arg-type]
    "names": (lambda: Clones([clone(name="a"), clone(name="a")], BATCHES[0]), ValueError, "called 'a'"),
    "a number's name": (lambda: Clones([clone(name="1"), clone()], BATCHES[0]), ValueError, "called '1'"),
    "tiles": (lambda: Clones([clone(tiles=20)] * 2, BATCHES[0], target=CHIP), ValueError, "do not share 24"),
    "too many": (lambda: Clones([clone()] * 13, BATCHES[0], target=CHIP), ValueError, "13 more need 2"),
    "odd tiles": (lambda: Clones([clone(tiles=3)], BATCHES[0], target=CHIP), ValueError, "whole pairs"),
    "no tiles": (lambda: clone(tiles=0), ValueError, "tiles"),
    "a name of no string": (lambda: clone(name=3), TypeError, "name"),
    "replicas": (lambda: Clones([clone(replicas=2)], BATCHES[0]), ValueError, "clones share one"),
    "stages": (lambda: Clones([clone()], BATCHES[0], stages=2, target="m2000"), ValueError, "one training on chips"),
    "a system": (lambda: Clones([clone()], BATCHES[0], target="bow-pod16"), ValueError, "a TrainLoop has it"),
    "calls": (lambda: Clones([clone()], BATCHES[0], steps_per_call=2), ValueError, "steps_per_call=2"),
    "overlap": (lambda: Clones([clone()], BATCHES[0], overlap=True), ValueError, "overlap=True"),
    "tiles' generators": (
        lambda: Clones([clone(random="hardware")], BATCHES[0], engine="tiles"), ValueError, "random='philox'"),
    "two trainings": (
        lambda: Clones([Clone(net, PARAMS, training=Training(precision="fp32.32", optimizer=Sgd(0.1)),
                              optimizer=Sgd(0.2))], BATCHES[0]), TypeError, "optimizer is a field of training"),
    "two executions": (
        lambda: Clones([clone()], BATCHES[0], execution=Execution(), engine="tiles"), TypeError, "engine is a field"),
    "an unknown word": (lambda: clone(rate=3), TypeError, "rate"),
    "no precision": (
        lambda: Clones([Clone(net, PARAMS, optimizer=Sgd(0.1))], BATCHES[0]), TypeError, "precision"),
    "a list too short": (lambda: Clones([clone()], BATCHES[0]).run(BATCHES, 7), ValueError, "6"),
    "steps": (lambda: Clones([clone()], BATCHES[0]).run(BATCHES, -1), ValueError, "steps"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_refused(what: str) -> None:
    call, kind, words = REFUSED[what]
    with pytest.raises(kind, match=words):
        call()


def test_the_orders_are_of_the_chips_family() -> None:
    """As target= says for a TrainLoop."""
    made = Clones([clone()], BATCHES[0], target="gc2")
    assert made.loops[0].training.family == Target("gc2").family
    (alone,) = loops([{}], target="gc2")
    np.testing.assert_array_equal(made.run(BATCHES, 2), [alone.run(BATCHES, 2)])


def test_losses_are_as_wide_as_those_of_loops() -> None:
    each = [{"precision": "float64"}, {"precision": "fp32.32"}]
    made = Clones([clone(**options) for options in each], BATCHES[0], target=CHIP, engine="direct")
    losses = made.run(BATCHES, 3)
    assert losses.dtype == np.float64
    np.testing.assert_array_equal(losses, [loop.run(BATCHES, 3) for loop in loops(each, engine="direct")])


def test_another_clone_like_one() -> None:
    one = clone(name="a", key=3, optimizer=Adam(0.1))
    other = replace(one, name="b", optimizer=Sgd(0.1), tiles=4)
    assert (other.name, other.key, other.tiles) == ("b", 3, 4)
    assert other.options == {"optimizer": Sgd(0.1), "precision": "fp16.16/stochastic"}
    assert one.options["optimizer"] == Adam(0.1)


def test_copies_train_on_their_own() -> None:
    made = Clones([clone(), clone(optimizer=Adam(0.01))], BATCHES[0], target=CHIP, engine="direct")
    made.run(BATCHES, 1)
    copies = copy.copy(made), copy.deepcopy(made), pickle.loads(pickle.dumps(made))
    losses = [each.train(BATCHES[1]) for each in copies]
    assert made.step == 1
    losses.append(made.train(BATCHES[1]))
    for own in losses:
        np.testing.assert_array_equal(own, losses[0])
    with pytest.raises(AttributeError, match="execution of clones"):
        made.execution = Execution()


def test_dots_of_names_part_no_layers() -> None:
    rates = [0.4, 0.2]
    made = Clones([clone(name=f"rate {rate:g}", optimizer=Sgd(rate)) for rate in rates], BATCHES[0], target=CHIP)
    assert made.names == ("rate 0.4", "rate 0.2")
    profile = made.profile
    assert profile is not None
    found = {work.layer.split(".")[0] for work in profile.works.values()}
    assert found == {"rate 0_4", "rate 0_2"}
    with pytest.raises(ValueError, match="called 'a_b'"):
        Clones([clone(name="a.b"), clone(name="a_b")], BATCHES[0])


def test_an_error_names_its_clone() -> None:
    with pytest.raises(ValueError) as caught:
        Clones([clone(), clone(name="cut", micro_batches=4)], BATCHES[0], target=CHIP)
    assert caught.value.__notes__ == ["this is of clone cut"]


def test_memory_is_of_a_clones_tiles() -> None:
    """What fits the chip need not fit a part of it."""
    wide = {"w": np.zeros((WIDTH, 60_000), np.float32), "head": np.zeros((60_000, 3), np.float32)}
    options: Any = {"optimizer": Sgd(0.1), "precision": "fp32.32"}
    TrainLoop(net, wide, BATCHES[0], target=CHIP, engine="tiles", **options)
    with pytest.raises(OutOfTileMemory):
        Clones([Clone(net, wide, tiles=4, **options)], BATCHES[0], target=CHIP, engine="tiles")


def test_results_at_the_host_have_the_clone_s_name() -> None:
    params, batch = {"w": np.ones((4, 3), np.float32)}, np.ones((2, 4), np.float32)
    models = [
        Clone(
            lambda p, b: ((b @ p["w"]) ** 2).sum(), params, optimizer=Sgd(0.1), precision="fp16.16/nearest", name=name
        )
        for name in ("one", "two")
    ]
    clones = Clones(models, batch, target=Target("bow", tiles=8), engine="tiles")
    clones.train(batch)
    results = [moved.name for moved in clones.profile.host if not moved.to_tiles]
    assert results
    assert all(name.startswith("stream result one.") for name in results)
