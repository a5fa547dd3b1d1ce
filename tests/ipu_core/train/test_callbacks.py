"""What a loop calls: evaluation, early stop, checkpoints; runs killed at any time go on to the same bits."""

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ipu_core.chip.control import FloatingPointControl
from ipu_core.errors import NotFinite
from ipu_core.ir.precision.precision import Precision
from ipu_core.train.callbacks import Checkpoint, EarlyStop, Evaluate
from ipu_core.train.loop import TrainLoop
from ipu_core.train.loss_scale import LossScale
from ipu_core.train.optim import Lamb, Sgd
from lowprec import float8_e4m3fn, float8_e5m2fnuz
from tests.examples import first
from tests.ipu_core.train.test_loop import batches, bits, loop

SETTINGS: dict[str, Any] = {
    "optimizer": Lamb(0.01),
    "loss_scale": LossScale(init_scale=2.0**18, growth_interval=4),
    "micro_batches": 2,
}


def test_callbacks_see_every_step_in_order_and_end_a_run() -> None:
    made, seen = loop(), []

    def first(of: TrainLoop, loss: float) -> None:
        seen.append((of.step, np.float32(loss)))

    losses = made.run(batches, 10, callbacks=[first, lambda of, loss: of.step == 4, first])
    assert [step for step, _ in seen] == [1, 1, 2, 2, 3, 3, 4, 4]  # those behind the one that ends it are called too
    assert losses.shape == (4,)
    assert [loss for _, loss in seen[::2]] == losses.tolist()
    assert made.step == 4


def test_a_metric_is_measured_every_so_many_steps() -> None:
    made = loop()
    norm = Evaluate(lambda params: float(np.abs(params[0]["weight"]).max()), every=3)
    both = Evaluate(lambda params: {"a": 1, "b": np.float32(2)}, every=5)
    made.run(batches, 10, callbacks=[norm, both])
    assert [step for step, _ in norm.history] == [3, 6, 9]
    assert both.history == [(5, {"a": 1.0, "b": 2.0}), (10, {"a": 1.0, "b": 2.0})]
    assert norm.latest == {"metric": norm.history[-1][1]["metric"]}
    made.run(batches, 2, callbacks=[norm])
    assert [step for step, _ in norm.history] == [3, 6, 9, 12]


@pytest.mark.parametrize(
    ("values", "options", "steps", "best"),
    [
        ([3, 2, 1, 1, 1, 0], {"patience": 2}, 10, (1, 6)),
        ([3, 2, 1, 2, 0, 1, 1], {"patience": 2}, 14, (0, 10)),
        ([1, 2, 3, 3, 4], {"patience": 1, "larger": True}, 8, (3, 6)),
        ([1, 0.9, 0.8, 0.5], {"patience": 2, "least": 0.25}, 6, (1, 2)),
        ([float("nan")] * 5, {"patience": 3}, 6, (float("inf"), 0)),
    ],
)
def test_a_run_ends_where_nothing_becomes_better(
    values: list[float], options: dict[str, Any], steps: int, best: tuple[float, int]
) -> None:
    given = iter(values)
    evaluate = Evaluate(lambda params: next(given), every=2)
    stop = EarlyStop(evaluate, **options)
    made = loop()
    made.run(batches, 40, callbacks=[evaluate, stop])
    assert (made.step, stop.best) == (steps, best)


def test_a_measure_must_be_named_where_there_are_several() -> None:
    evaluate = Evaluate(lambda params: {"a": 1.0, "b": 2.0}, every=1)
    with pytest.raises(ValueError, match="name one of the measures a, b, not None"):
        loop().run(batches, 2, callbacks=[evaluate, EarlyStop(evaluate)])
    stop = EarlyStop(evaluate, "b", patience=1)
    loop().run(batches, 4, callbacks=[evaluate, stop])
    assert stop.best == (2.0, 1)
    for make in (
        lambda: Evaluate(len, every=0),
        lambda: EarlyStop(evaluate, patience=0),
    ):
        with pytest.raises(ValueError, match="must be an integer of at least 1"):
            make()
    with pytest.raises(TypeError, match="a number of steps must be an integer, not True"):
        Checkpoint("x", True)


@pytest.mark.parametrize("engine", ["direct", "tiles"])
@pytest.mark.parametrize("precision", ["fp16.16/stochastic", "mlperf-bert-pod16"])
def test_a_run_goes_on_from_its_checkpoint_to_the_same_bits(engine: str, precision: str, tmp_path: Path) -> None:
    whole = loop(precision, engine, **SETTINGS)
    losses = whole.run(batches, 12)
    path = tmp_path / "run.npz"
    loop(precision, engine, **SETTINGS).run(batches, 8, callbacks=[Checkpoint(path, every=5)])
    again = loop(precision, engine, **SETTINGS)
    again.load(path)
    assert again.step == 5
    assert again.run(batches, 7).tobytes() == losses[5:].tobytes()
    assert bits(again) == bits(whole)
    assert again.loss_scale == whole.loss_scale
    assert [p.name for p in tmp_path.iterdir()] == ["run.npz"]


def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.npz"
    made = loop("fp16.16/stochastic")
    made.run(batches, 2)
    made.save(path)
    for other, words in (
        (loop("fp16.16/stochastic", key=8), "is of a run with key"),
        (loop("fp16.16/nearest"), r"of a run with precision fp16.16/stochastic, this one has fp16.16/nearest$"),
        (loop("fp16.16/stochastic", micro_batches=2), "is of a run with another traced step"),
        (loop("fp16.16/stochastic", control=FloatingPointControl(nanoo=True)), "is of a run with control"),
    ):
        with pytest.raises(ValueError, match=words):
            other.load(path)
        assert other.step == 0
    loop("fp16.16/stochastic", optimizer=Sgd(0.2)).load(path)  # a rate is fed, and may change
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ValueError, match="is not a checkpoint"):
        made.load(path)


@pytest.mark.parametrize("field", ["operands", "gradients", "partials", "output"])
def test_a_checkpoint_of_another_format_of_the_same_name_is_refused(field: str, tmp_path: Path) -> None:
    path = tmp_path / "run.npz"
    usual = Precision.parse("fp16.16/nearest")
    mine = [replace(fmt, name="mine") for fmt in (float8_e4m3fn, float8_e5m2fnuz, float8_e4m3fn)]
    first, second, same = (loop(usual.changed(**{field: fmt})) for fmt in mine)
    first.run(batches, 1)
    first.save(path)
    with pytest.raises(ValueError, match="is of a run with another traced step"):
        second.load(path)
    same.load(path)
    assert same.step == 1


RUN = """
import sys
from tests.ipu_core.train.test_callbacks import *
path, step, seconds = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
made = loop("fp16.16/stochastic", **SETTINGS)
if path.exists():
    made.load(path)
print(made.step, flush=True)

def die_soon(made, loss):
    if made.step == step:
        signal.setitimer(signal.ITIMER_PROF, seconds)  # its signal ends a process at once, as SIGKILL does

made.run(batches, int(sys.argv[4]) - made.step, callbacks=[die_soon, Checkpoint(path, every=1)])
print(bits(made))
"""


@pytest.mark.parametrize(
    "steps, deaths",
    [
        (200, ((80, 0.006),)),
        pytest.param(400, ((5, 0.004), (100, 0.007), (200, 0.011)), marks=pytest.mark.slow),
    ],
)
def test_killed_runs_end_in_the_same_bits(steps: int, deaths: tuple[tuple[int, float], ...], tmp_path: Path) -> None:
    whole = loop("fp16.16/stochastic", **SETTINGS)
    whole.run(batches, steps)
    started = []
    for step, seconds in (*deaths, (0, 0)):  # of the processor
        run = subprocess.run(
            [sys.executable, "-c", RUN, str(tmp_path / "run.npz"), str(step), str(seconds), str(steps)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},  # the installed package, where that is tested
            stdout=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
        begun, *end = run.stdout.split()
        started.append(int(begun))
        assert run.returncode == (-signal.SIGPROF if step else 0)
    assert end == [bits(whole)]
    assert started[0] == 0
    for (step, _), again in zip(deaths, started[1:], strict=True):
        assert step <= again + 1 < steps


def test_a_loop_prints_what_it_is() -> None:
    made = loop("mlperf-bert", "tiles", **SETTINGS)
    made.run(batches, 3)
    text = str(made)
    assert "TrainLoop: 3 steps of Lamb(lr=0.01) on gc200, engine tiles" in text
    assert "629 parameters in 4 arrays, 2 micro-batches a step" in text
    assert f"loss scale {made.loss_scale:g}, {len(made.skipped)} steps skipped" in text
    assert made.skipped
    assert f"last: step {made.skipped[-1].step}, " in text
    assert made.profile is not None
    assert f"{made.profile.cycles:,} cycles" in text
    assert str(loop()).count("\n") == 2


def measured(values: list[float]) -> tuple[Evaluate, EarlyStop]:
    """An evaluation every second step whose values are given, and what they stop."""
    evaluate = Evaluate(lambda params: values[len(evaluate.history)], every=2)
    return evaluate, EarlyStop(evaluate, patience=3)


KEPT = [(1, "npz"), (3, "npz"), (2, "safetensors"), (2, "npz"), (4, "npz"), (3, "safetensors")]


@pytest.mark.parametrize("every, suffix", first(3, KEPT))
def test_a_resumed_run_stops_at_the_same_step(every: int, suffix: str, tmp_path: Path) -> None:
    """Killed after any step, also the one that ends it; checkpoints hold what the callbacks behind them have seen."""
    if suffix == "safetensors":
        pytest.importorskip("safetensors")
    values = [3.0, 2.0, float("nan"), 2.0, 1.0, 1.0, 2.0, 1.0, 0.5]
    whole, path = loop(), tmp_path / f"run.{suffix}"
    evaluate, stop = measured(values)
    losses = whole.run(batches, 40, callbacks=[evaluate, stop])
    assert (whole.step, stop.best) == (16, (1.0, 10))
    for kill in range(1, 18):
        path.unlink(missing_ok=True)
        loop().run(batches, kill, callbacks=[Checkpoint(path, every), *measured(values)])
        made, (evaluate, stop) = loop(), measured(values)
        if path.exists():
            made.load(path)
        begun = made.step
        assert made.run(batches, 40 - begun, callbacks=[Checkpoint(path, every), evaluate, stop]).tobytes() == (
            losses[begun:].tobytes()
        )
        assert (made.step, stop.best) == (16, (1.0, 10))
        assert repr(evaluate.history) == repr([(2 * i + 2, {"metric": v}) for i, v in enumerate(values[:8])])
        assert bits(made) == bits(whole)


class Count:
    """A callback of one's own with a state."""

    def __init__(self) -> None:
        self.seen = 0

    def __call__(self, made: TrainLoop, loss: float) -> bool:
        self.seen += 1
        return self.seen == 6

    def state(self) -> Any:
        return self.seen

    def restore(self, state: Any) -> None:
        self.seen = state


def test_callbacks_of_ones_own_are_part_of_a_checkpoint(tmp_path: Path) -> None:
    path, made = tmp_path / "run.npz", loop()
    made.run(batches, 4, callbacks=[Count(), Checkpoint(path, every=2)])
    again = loop()
    again.load(path)
    again.save(path)  # nothing is lost by loading and saving
    again = loop()
    again.load(path)
    assert len(again.run(batches, 9, callbacks=[Count()])) == 2


def test_other_callbacks_are_refused_and_none_keep_what_was(tmp_path: Path) -> None:
    path, made = tmp_path / "run.npz", loop()
    made.run(batches, 4, callbacks=[*measured([1.0, 1.0]), Checkpoint(path, every=2)])
    made.load(path)
    with pytest.raises(ValueError, match="had the callbacks Evaluate, EarlyStop, this one has Count: give the same"):
        made.run(batches, 2, callbacks=[Count()])
    assert made.step == 4
    made.run(batches, 2, callbacks=[Checkpoint(path, every=1)])
    made.load(path)
    evaluate, stop = measured([1.0, 1.0, 1.0])
    made.run(batches, 2, callbacks=[evaluate, stop])
    assert [step for step, _ in evaluate.history] == [2, 4, 8]  # while there was no Evaluate nothing was measured
    made.load(path)
    made.train(batches(6))  # by hand: what comes then is another run
    made.run(batches, 1, callbacks=[Count()])


def test_steps_that_were_skipped_and_a_loss_that_was_not_finite_are_not_forgotten(tmp_path: Path) -> None:
    x, y = batches(0)
    made = loop("fp16.16/nearest", loss_scale=LossScale(init_scale=2.0**20))
    made.run(batches, 6)
    made.save(tmp_path / "run.npz")
    again = loop("fp16.16/nearest", loss_scale=LossScale(init_scale=2.0**20))
    again.load(tmp_path / "run.npz")
    assert again.skipped == made.skipped
    assert again.skipped
    lost = loop(optimizer=Sgd(1e30))
    with pytest.warns(NotFinite):
        lost.run([(x * np.float32(1e30), y)] * 4, 4)
    lost.save(tmp_path / "run.npz")
    again = loop(optimizer=Sgd(1e30))
    again.load(tmp_path / "run.npz")
    assert repr(again.not_finite) == repr(lost.not_finite)
    again.run(batches, 1)  # without another warning


@pytest.mark.parametrize(
    ("first", "second"), [(8.0, "automatic"), ("automatic", 8.0), (LossScale(1024.0), "automatic")]
)
def test_a_checkpoint_of_another_loss_scale_is_refused(first: Any, second: Any, tmp_path: Path) -> None:
    loop("fp16.16/nearest", loss_scale=first).save(tmp_path / "run.npz")
    with pytest.raises(ValueError, match="is of a run with loss scale"):
        loop("fp16.16/nearest", loss_scale=second).load(tmp_path / "run.npz")


@pytest.mark.parametrize("steps_per_call", [1, 4, 7])
def test_what_is_due_among_several_steps_of_a_call_is_done_after_it(steps_per_call: int, tmp_path: Path) -> None:
    made, evaluate = loop(steps_per_call=steps_per_call), Evaluate(lambda params: 1.0, every=3)
    made.run(batches, 10, callbacks=[evaluate, Checkpoint(tmp_path / "run.npz", every=3)])
    wanted = {1: [3, 6, 9], 4: [4, 8, 10], 7: [7, 10]}[steps_per_call]
    assert [step for step, _ in evaluate.history] == wanted
    again = loop(steps_per_call=steps_per_call)
    again.load(tmp_path / "run.npz")
    assert again.step == wanted[-1]
    by_hand = Evaluate(lambda params: 1.0, every=3)
    for step in range(10, 14):  # after calls of several steps
        by_hand(made, made.train(batches(step)))
    assert [step for step, _ in by_hand.history] == [12]


def test_what_a_loop_was_made_with_cannot_be_set() -> None:
    made = loop()
    for name in ("training", "execution", "precision", "accumulations", "block"):
        with pytest.raises(AttributeError, match=f"a loop's {name} is what it was made with"):
            setattr(made, name, getattr(made, name))
    with pytest.raises(AttributeError):
        made.accumulations.clear()  # type: ignore[attr-defined]
