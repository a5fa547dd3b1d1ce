"""One point: what it measures, and that an interrupted one goes on to the same bits."""

import dataclasses
import functools
import math
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ipu_core.chip.target import Target
from ipu_core.placement.orders import RULE
from ipu_core.study import point
from ipu_core.study.command import recipe
from ipu_core.study.models import mlp
from ipu_core.study.models.classifier import accuracy
from ipu_core.study.point import Problem, Recipe, run_point
from ipu_core.study.settings import Point, Settings
from ipu_core.study.tasks import Task
from ipu_core.train import checkpoint
from ipu_core.train.data import dataset as data
from ipu_core.train.loop import TrainLoop
from ipu_core.train.optim import Sgd
from lowprec import Accumulation
from lowprec.statistics import UpdateCount

SETTINGS = Settings(layers=(64, 12, 10), steps=30, batch=32, lr=0.3, engine="direct")


@pytest.fixture(scope="module")
def problem() -> Problem:
    return mlp.problem(SETTINGS, data.digits())


def run(problem: Problem, **more: Any) -> dict[str, Any]:
    return run_point(problem, recipe(SETTINGS), Task(Point("fp16.16/stochastic", 3), **more), lambda payload: None)


def without_time(result: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in result.items() if name != "seconds"}


def test_a_point_is_described_and_measured(problem: Problem) -> None:
    result = run(problem)
    assert (result["precision"], result["rounding"], result["seed"]) == (
        "fp16.16/stochastic",
        "stochastic",
        3,
    )
    assert len(result["losses"]) == 30
    assert [step for step, _ in result["lost_updates_by_step"]] == list(range(30))
    assert 0 < result["lost_updates"] < 1
    assert 0.5 < result["update_kept"] < 1.5
    assert {len(digest) for digest in result["accumulations"].values()} == {64}
    assert "cycles_per_step" not in result


def test_shares_are_of_all_counted_updates_together(problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    def count(loop: TrainLoop, batch: Any) -> UpdateCount:
        return UpdateCount(0, 0, 0.0, 0.0) if loop.step % 2 else UpdateCount(100 * loop.step + 4, 3, 8.0, 2.0)

    monkeypatch.setattr(TrainLoop, "count_updates", count)
    result = run(problem)
    assert result["lost_updates"] == pytest.approx(15 * 3 / sum(100 * step + 4 for step in range(0, 30, 2)))
    assert result["update_kept"] == 0.25
    assert result["lost_updates_by_step"] == [[step, 3 / (100 * step + 4)] for step in range(0, 30, 2)]
    monkeypatch.setattr(TrainLoop, "count_updates", lambda loop, batch: UpdateCount(0, 0, 0.0, 0.0))
    still = run(problem)
    assert (still["lost_updates"], still["update_kept"], still["lost_updates_by_step"]) == (None, None, [])


def test_the_seed_decides_parameters_batches_and_random_bits(problem: Problem) -> None:
    def losses(seed: int, precision: str, **change: Any) -> Any:
        changed = dataclasses.replace(problem, evaluate=None, **change)
        return run_point(changed, recipe(SETTINGS), Task(Point(precision, seed)), lambda payload: None)["losses"]

    same_params: dict[str, Any] = {"params": lambda seed: problem.params(0)}
    same_batches: dict[str, Any] = {"batches": lambda seed: problem.batches(0)}
    assert losses(0, "fp32.32", **same_params, **same_batches) == losses(1, "fp32.32", **same_params, **same_batches)
    for left in (same_params, same_batches, {}):
        assert losses(0, "fp32.32", **left) != losses(1, "fp32.32", **left)
    rounded = "fp16.16/stochastic"
    assert losses(0, rounded, **same_params, **same_batches) != losses(1, rounded, **same_params, **same_batches)


def test_trained_parameters_are_written_by_name(problem: Problem, tmp_path: Path) -> None:
    seen: list[Any] = []
    watched = dataclasses.replace(problem, evaluate=lambda params, precision: seen.append(params) or {})
    run(watched, parameters=tmp_path / "p.npz")
    arrays, meta = checkpoint.load(tmp_path / "p.npz")
    assert meta == {"step": 30}
    assert list(arrays) == ["0.bias", "0.weight", "1.bias", "1.weight"]
    for name, array in arrays.items():
        layer, kind = name.split(".")
        assert array.dtype == np.float16
        np.testing.assert_array_equal(array, seen[0][int(layer)][kind])


def test_the_machines_figures_are_those_of_its_profile(problem: Problem) -> None:
    small = Recipe.of(2, optimizer=Sgd(0.3), target=Target("gc200", tiles=16))
    result = run_point(problem, small, Task(Point("fp16.16/nearest", 0)), lambda payload: None)
    profile = point.make_loop(problem, small, Point("fp16.16/nearest", 0)).profile
    assert profile is not None
    assert result["cycles_per_step"] == profile.cycles
    assert result["microseconds_per_step"] == profile.microseconds
    assert result["tile_memory"] == profile.memory.peak_bytes
    assert result["rounding"] == "nearest"


def test_a_point_is_a_pure_function_of_its_seed(problem: Problem) -> None:
    assert without_time(run(problem)) == without_time(run(problem))


def test_an_interrupted_point_goes_on_from_its_checkpoint(
    problem: Problem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = without_time(run(problem))
    monkeypatch.setattr(point, "CHECKPOINT_SECONDS", 0.0)
    saved = tmp_path / "p.npz"
    calls = 0

    def failing(seed: int) -> Any:
        batch = problem.batches(seed)

        def at(step: int) -> Any:
            nonlocal calls
            calls += 1
            if calls == 20:
                raise KeyboardInterrupt
            return batch(step)

        return at

    with pytest.raises(KeyboardInterrupt):
        run(Problem(problem.loss, problem.params, failing, problem.evaluate), saved=saved)
    assert 10 < checkpoint.load(saved)[1]["step"] < 30
    assert without_time(run(problem, saved=saved)) == whole
    assert without_time(run(problem, saved=saved)) == whole  # killed before the result was kept


def test_steps_skipped_before_an_interruption_are_in_the_result(
    problem: Problem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(point, "CHECKPOINT_SECONDS", 0.0)
    usual = recipe(SETTINGS)
    scaled = dataclasses.replace(usual, training=dataclasses.replace(usual.training, loss_scale=2.0**30))  # overflows
    for steps in (4, 9):
        so_far = dataclasses.replace(scaled, steps=steps)
        result = run_point(problem, so_far, Task(Point("fp16.16/nearest", 0), tmp_path / "p.npz"), lambda _: None)
        assert result["skipped_steps"] == list(range(steps))


def test_seconds_go_on_from_those_before_the_interruption(problem: Problem, tmp_path: Path) -> None:
    loop = point.make_loop(problem, recipe(SETTINGS), Point("fp16.16/stochastic", 3))
    saved = tmp_path / "p.npz"
    checkpoint.save(saved, loop.arrays(), {"step": 0, "losses": [], "samples": [], "seconds": 1000.0})
    result = run(problem, saved=saved)
    assert 1000 < result["seconds"] < 1060
    assert without_time(result) == without_time(run(problem))


def test_a_checkpoint_says_how_long_it_took(problem: Problem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(point, "CHECKPOINT_SECONDS", 0.0)
    saved = tmp_path / "p.npz"
    first = run(problem, saved=saved)["seconds"]
    meta = checkpoint.load(saved)[1]
    assert 0 < meta["seconds"] <= first + 0.001  # the result's are rounded
    assert (meta["step"], len(meta["losses"]), len(meta["samples"])) == (30, 30, 30)
    assert run(problem, saved=saved)["seconds"] >= meta["seconds"]


def test_reports_and_checkpoints_come_at_their_intervals(
    problem: Problem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0

    def batches(seed: int) -> Any:
        batch = problem.batches(seed)

        def at(step: int) -> Any:
            nonlocal now
            now += 1.0 * (step >= 10)  # the first steps take no time
            return batch(step)

        return at

    monkeypatch.setattr(point, "time", types.SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(point, "REPORT_SECONDS", 4.0)
    monkeypatch.setattr(point, "CHECKPOINT_SECONDS", 5.0)
    saved: list[int] = []
    monkeypatch.setattr(checkpoint, "save", lambda path, arrays, meta: saved.append(meta["step"]))
    reports: list[dict[str, Any]] = []
    slow = dataclasses.replace(problem, batches=batches)
    result = run_point(slow, recipe(SETTINGS), Task(Point("fp32.32", 0), tmp_path / "p.npz"), reports.append)
    assert saved == [15, 20, 25, 30]
    assert [report["step"] for report in reports] == [1, 14, 18, 22, 26, 30]  # the first step at once
    assert [report["loss"] for report in reports] == [result["losses"][report["step"] - 1] for report in reports]
    assert result["seconds"] == 20.0


def test_a_checkpoint_that_cannot_be_written_warns_once_and_the_point_goes_on(
    problem: Problem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(point, "CHECKPOINT_SECONDS", 0.0)
    monkeypatch.setattr(point, "REPORT_SECONDS", math.inf)
    said: list[dict[str, Any]] = []
    saved = tmp_path / "gone" / "p.npz"
    result = run_point(problem, recipe(SETTINGS), Task(Point("fp16.16/stochastic", 3), saved), said.append)
    assert said.pop(0).keys() == {"step", "loss"}
    assert said == [{"warning": f"no checkpoint could be written to {saved}: No such file or directory"}]
    assert without_time(result) == without_time(run(problem))


def test_the_order_of_every_sum_has_a_digest_that_no_precision_changes(problem: Problem) -> None:
    orders = point.orders_of_sums(problem, SETTINGS.training())
    assert orders["rule"] == RULE  # so that results under another one are of another study
    for precision in ("fp32.32", "fp16.16/stochastic"):
        loop = point.make_loop(problem, recipe(SETTINGS), Point(precision, 0))
        assert orders.keys() == loop.sums().keys() | {"rule"}
        assert list(orders.values())[1:] == [
            order.with_types("float32").digest() for order in loop.accumulations.values()
        ]
    other = dataclasses.replace(SETTINGS.training(), adder="pairwise")
    assert point.orders_of_sums(problem, other).keys() == orders.keys()
    changed = {name for name, order in point.orders_of_sums(problem, other).items() if order != orders[name]}
    assert changed == {name for name in orders if ".dot." in name}
    own = {0: Accumulation(group=4)}
    assert point.orders_of_sums(problem, dataclasses.replace(other, accumulations=own)) == {
        "0.weight.forward.dot.0": own[0].digest()
    }
    unsaid = dataclasses.replace(problem, shapes=None)
    assert point.orders_of_sums(unsaid, SETTINGS.training()) == orders


def test_samples_are_spread_over_long_runs() -> None:
    sampled = [step for step in range(4000) if point._sampled(step, 4000)]
    assert len(sampled) == point.SAMPLES
    assert set(np.diff(sampled)) == {100}
    assert sampled[0] == 0
    assert sum(point._sampled(step, 7) for step in range(7)) == 7


def test_progress_is_reported(problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(point, "REPORT_SECONDS", 0.0)
    reports: list[dict[str, Any]] = []
    run_point(problem, recipe(SETTINGS), Task(Point("fp32.32", 0)), reports.append)
    assert [report["step"] for report in reports] == list(range(1, 31))


def test_initial_parameters_are_pinned_bounded_and_differ_by_seed() -> None:
    first, again, other = (mlp.initial((64, 12, 10), seed) for seed in (0, 0, 1))
    assert all(np.array_equal(a["weight"], b["weight"]) for a, b in zip(first, again, strict=True))
    assert not np.array_equal(first[0]["weight"], other[0]["weight"])
    assert np.abs(first[0]["weight"]).max() <= np.sqrt(6 / 64)
    assert first[0]["weight"][0, :2].tolist() == PINNED
    assert not first[1]["bias"].any()


PINNED = [0.19188939034938812, 0.15390843152999878]


def test_accuracy_is_the_share_of_right_answers() -> None:
    task = data.digits()
    always_three = functools.partial(mlp.initial, (64, 10))(0)
    always_three[0]["weight"][:] = 0
    always_three[0]["bias"][3] = 1
    from_pass = accuracy(task, mlp.logits, Target(), always_three, point.Precision.parse("fp32.32"))
    assert from_pass["test_accuracy"] == float((task.y_test == 3).mean())
