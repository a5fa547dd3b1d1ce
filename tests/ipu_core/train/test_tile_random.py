"""Runs whose random bits are the tiles': the same bits again, resumed or copied; others by seed and replica."""

import itertools
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ipu_core import nn
from ipu_core.chip.control import FloatingPointControl
from ipu_core.chip.hardware_random import HardwareRandom
from ipu_core.chip.target import Target
from ipu_core.errors import Unvalidated
from ipu_core.train.loop import TrainLoop
from ipu_core.train.optim import AdamW, Sgd
from lowprec import Key

TARGET = Target("gc200", tiles=6)
WIDTHS = (12, 9, 4)
pytestmark = pytest.mark.filterwarnings("ignore::ipu_core.errors.Unvalidated")


def loss(params: Any, batch: Any) -> Any:
    x, labels = batch
    hidden = nn.dropout(nn.gelu(nn.linear(x, **params[0])), 0.25)
    return nn.softmax_cross_entropy(nn.linear(hidden, **params[1]), labels)


def batches(step: int) -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(step).normal(size=(8, WIDTHS[0])).astype(np.float32)
    return x, np.argmax(x[:, :4], axis=1).astype(np.int32)


def loop(**more: Any) -> TrainLoop:
    rng = np.random.default_rng(1)
    params = [
        {"weight": rng.normal(size=(m, n)).astype(np.float32) / 3, "bias": np.zeros(n, np.float32)}
        for m, n in itertools.pairwise(WIDTHS)
    ]
    usual = {"precision": "fp16.16/stochastic", "optimizer": AdamW(0.01), "target": TARGET, "random": "hardware"}
    return TrainLoop(loss, params, batches(0), key=5, **(usual | more))


def bits(made: TrainLoop) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in made.arrays().items()}


def test_it_trains_and_says_what_is_not_validated() -> None:
    with pytest.warns(Unvalidated, match="not validated on hardware"):
        made = loop()
    losses = made.run(batches, 60)
    assert losses[-10:].mean() < 0.8 * losses[:10].mean()
    assert "random bits of the tiles' workers" in str(made)
    again = loop()
    assert again.run(batches, 60).tobytes() == losses.tobytes()
    assert bits(again) == bits(made)
    philox = loop(random="philox")
    assert philox.run(batches, 60).tobytes() != losses.tobytes()
    assert not philox.arrays().keys() & {"random.s0", "random.s1"}


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"micro_batches": 2, "loss_scale": "automatic"},
        {"steps_per_call": 2, "precision": "mlperf-bert"},
        {"precision": "fp16.32/stochastic", "optimizer": Sgd(0.1)},
    ],
    ids=["plain", "micro-batches", "steps_per_call", "sgd"],
)
def test_a_resumed_run_and_a_copy_go_on_with_the_same_bits(more: dict[str, Any], tmp_path: Path) -> None:
    made = loop(**more)
    made.run(batches, 2)
    made.save(tmp_path / "state.npz")
    copied = pickle.loads(pickle.dumps(made))
    made.run(batches, 4)
    resumed = loop(**more)
    resumed.load(tmp_path / "state.npz")
    for other in (copied, resumed):
        other.run(batches, 4)
        assert bits(other) == bits(made)
    forgetful = loop(**more)
    state = {**resumed.arrays(), **{name: forgetful.arrays()[name] for name in ("random.s0", "random.s1")}}
    forgetful.restore(state, resumed.step)
    forgetful.train(batches(6))
    resumed.train(batches(6))
    assert bits(forgetful) != bits(resumed)


def test_the_key_seeds_the_tiles_and_replicas_differ_as_asked() -> None:
    def state(random: Any) -> bytes:
        return bits(loop(random=random))["random.s0"]

    key = Key(5)
    seed = key.value & 0xFFFFFFFF, key.value >> 32
    assert state("hardware") == state(HardwareRandom(seed))
    assert state("hardware") == state(HardwareRandom(seed, replica=3, identical=True))
    assert state("hardware") != state(HardwareRandom(seed, replica=3))
    assert state(HardwareRandom(seed, replica=3)) == state(HardwareRandom((seed[0] + 3, seed[1])))


def test_a_checkpoint_of_other_random_bits_is_refused(tmp_path: Path) -> None:
    philox, hardware = loop(random="philox"), loop()
    for made, other in ((philox, hardware), (hardware, loop(random=HardwareRandom((1, 2))))):
        made.save(tmp_path / "state.npz")
        with pytest.raises(ValueError, match="is of a run with random"):
            other.load(tmp_path / "state.npz")
    hardware.save(tmp_path / "state.npz")
    with pytest.raises(ValueError, match="not those of this training step"):
        philox.load(tmp_path / "state.npz")


def test_updates_are_counted_without_a_draw() -> None:
    made, other = loop(), loop()
    for step in range(3):
        assert made.count_updates(batches(step)).wanted > 0
        made.train(batches(step))
        other.train(batches(step))
    assert bits(made) == bits(other)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"engine": "direct"}, "draws on every tile and worker, of which the engine 'direct' knows nothing"),
        ({"precision": "fp16.32/stochastic/weights=bfloat16"}, "rounds to bfloat16, the hardware only to float16"),
        ({"random": "dice"}, "unknown random 'dice': choose philox or hardware"),
    ],
)
def test_what_the_tiles_cannot_draw_is_refused(more: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        loop(**more)
    with pytest.raises(TypeError, match="or a HardwareRandom"):
        loop(random=3)


def test_convolutions_draw_for_their_results_and_not_within() -> None:
    def image_loss(kernel: Any, batch: Any) -> Any:
        made = nn.conv2d(batch, kernel)
        return (made * made).sum()

    x = np.random.default_rng(0).normal(size=(2, 5, 5, 3)).astype(np.float32)
    kernel = np.random.default_rng(1).normal(size=(3, 3, 3, 3)).astype(np.float32) / 5

    def of(precision: str, random: str) -> TrainLoop:
        return TrainLoop(image_loss, kernel, x, optimizer=Sgd(0.001), precision=precision, target=TARGET, random=random)

    with pytest.raises(ValueError, match=r"forward\.conv2d\.\d+ accumulates in float16"):
        of("fp16.16/stochastic", "hardware")
    losses = [of("fp16.32/stochastic", random).run(lambda step: x, 5) for random in ("philox", "hardware", "hardware")]
    assert losses[1].tobytes() == losses[2].tobytes() != losses[0].tobytes()
    np.testing.assert_allclose(losses[1], losses[0], rtol=2e-2)


@pytest.mark.parametrize("how", ["several at a time", "trapping"])
def test_steps_that_end_early_leave_the_generators_as_they_were(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    several = how == "several at a time"
    more: dict[str, Any] = {"steps_per_call": 3} if several else {"control": FloatingPointControl(inv=True)}
    made, other = loop(**more), loop(**more)
    for each in (made, other):
        each.run(batches, 3)
    before, name = bits(made), "feed_many" if several else "feed"
    whole = getattr(made._stepper.runner, name)

    def interrupted(*given: Any) -> Any:
        whole(*given)
        raise KeyboardInterrupt

    monkeypatch.setattr(made._stepper.runner, name, interrupted)
    with pytest.raises(KeyboardInterrupt):
        made.run(batches, 3)
    monkeypatch.undo()
    assert bits(made) == before
    for each in (made, other):
        each.run(batches, 3)
    assert bits(made) == bits(other)


def test_the_order_of_the_equations_is_part_of_such_a_run(tmp_path: Path) -> None:
    """The tiles draw as equations come; bits of a key do not care."""
    sgd: dict[str, Any] = {"optimizer": Sgd(0.1, momentum=0.9)}
    ordered, traced = loop(**sgd), loop(**sgd, reorder=False)
    assert str(ordered.block) != str(traced.block)
    ordered.save(tmp_path / "state.npz")
    with pytest.raises(ValueError, match="is of a run with another traced step"):
        traced.load(tmp_path / "state.npz")
    ordered, traced = loop(**sgd, random="philox"), loop(**sgd, random="philox", reorder=False)
    ordered.save(tmp_path / "state.npz")
    traced.load(tmp_path / "state.npz")
