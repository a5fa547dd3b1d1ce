"""One point: what it measures, and that an interrupted one goes on to the same bits."""

import dataclasses
import functools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ipu_core.study import mlp, point
from ipu_core.study.command import recipe
from ipu_core.study.point import Point, Problem, Recipe, run_point
from ipu_core.study.settings import Settings
from ipu_core.target import Target
from ipu_core.train import checkpoint, data
from ipu_core.train.optim import Sgd
from lowprec import Accumulation

SETTINGS = Settings(layers=(64, 12, 10), steps=30, batch=32, lr=0.3, engine="direct")


@pytest.fixture(scope="module")
def problem() -> Problem:
    return mlp.problem(SETTINGS, data.digits())


def run(problem: Problem, **more: Any) -> dict[str, Any]:
    return run_point(problem, recipe(SETTINGS), Point("fp16.16/stochastic", 3), lambda payload: None, **more)


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


def test_a_checkpoint_that_cannot_be_written_warns_once_and_the_point_goes_on(
    problem: Problem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(point, "CHECKPOINT_SECONDS", 0.0)
    monkeypatch.setattr(point, "REPORT_SECONDS", math.inf)
    said: list[dict[str, Any]] = []
    saved = tmp_path / "gone" / "p.npz"
    result = run_point(problem, recipe(SETTINGS), Point("fp16.16/stochastic", 3), said.append, saved=saved)
    assert said == [{"warning": f"no checkpoint could be written to {saved}: No such file or directory"}]
    assert without_time(result) == without_time(run(problem))


def test_the_order_of_every_sum_has_a_digest_that_no_precision_changes(problem: Problem) -> None:
    orders = point.orders_of_sums(problem, recipe(SETTINGS))
    for precision in ("fp32.32", "fp16.16/stochastic"):
        loop = point.make_loop(problem, recipe(SETTINGS), Point(precision, 0))
        assert orders.keys() == loop.sums().keys()
        assert list(orders.values()) == [order.digest() for order in loop.accumulations.values()]
    other = Recipe(Sgd(0.3), 30, target=Target("gc200", adder="pairwise"))
    assert point.orders_of_sums(problem, other).keys() == orders.keys()
    changed = {name for name, order in point.orders_of_sums(problem, other).items() if order != orders[name]}
    assert changed == {name for name in orders if " dot " in name}
    own = {0: Accumulation(group=4)}
    assert point.orders_of_sums(problem, other, own) == {"0 forward dot 0.weight": own[0].digest()}
    unsaid = dataclasses.replace(problem, shapes=None)
    assert point.orders_of_sums(unsaid, recipe(SETTINGS)) == orders


def test_samples_are_spread_over_long_runs() -> None:
    sampled = [step for step in range(4000) if point._sampled(step, 4000)]
    assert len(sampled) == point.SAMPLES
    assert set(np.diff(sampled)) == {100}
    assert sum(point._sampled(step, 7) for step in range(7)) == 7


def test_progress_is_reported(problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(point, "REPORT_SECONDS", 0.0)
    reports: list[dict[str, Any]] = []
    run_point(problem, recipe(SETTINGS), Point("fp32.32", 0), reports.append)
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
    from_pass = mlp.evaluate(task, always_three, point.Precision.parse("fp32.32"))
    assert from_pass["test_accuracy"] == float((task.y_test == 3).mean())
