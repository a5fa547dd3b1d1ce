"""A study end to end: its files, resumed after a kill, with more seeds or other words for the same."""

import errno
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ipu_core.study import command, point
from ipu_core.train import checkpoint
from ipu_core.train.loop import TrainLoop
from tests.ipu_core.command_line.commands import SMALL, TWO, exit_code, results


def test_a_study_writes_its_files(finished: tuple[Path, str]) -> None:
    folder, printed = finished
    names = {path.name for path in folder.iterdir()}
    assert names == {"results.jsonl", "manifest.json", "table.txt", "plan.txt", "convergence.png", "page.html"}
    assert (folder / "table.txt").read_text().strip() in printed


def test_each_point_is_one_object_with_its_measures(finished: tuple[Path, str]) -> None:
    points = results(finished[0])
    wanted = {(p, s) for p in ("fp32.32", "fp16.16/stochastic") for s in (0, 1)}
    assert {(point["precision"], point["seed"]) for point in points} == wanted
    for each in points:
        losses = each["losses"]
        assert isinstance(losses, list)
        assert len(losses) == 40
        assert losses[-1] < losses[0]
        assert each["rounding"] == ("nearest" if each["precision"] == "fp32.32" else "stochastic")
        assert 0.2 < each["test_accuracy"] <= 1
        assert 0 <= each["lost_updates"] <= 1
        assert each["accumulations"]
        assert all(len(digest) == 64 for digest in each["accumulations"].values())


def test_every_product_is_planned_in_words(finished: tuple[Path, str]) -> None:
    plan = (finished[0] / "plan.txt").read_text()
    assert "fp32.32" in plan
    assert "fp16.16/stochastic" in plan
    assert plan.count("group 16") >= 2 * 5  # two forward products, two for weights, one for inputs; per precision


def test_a_finished_study_is_not_run_again(finished: tuple[Path, str], capfd: pytest.CaptureFixture[str]) -> None:
    folder, _ = finished
    before = (folder / "results.jsonl").read_bytes()
    assert exit_code("study", *SMALL, *TWO, "--out", str(folder)) == 0
    assert "4 of 4 points were finished before; 0 to go" in capfd.readouterr().out
    assert (folder / "results.jsonl").read_bytes() == before


@pytest.mark.filterwarnings("ignore::ipu_core.errors.NothingSaved")  # of a model as small as this
def test_a_study_goes_on_elsewhere_to_the_same_bits(
    finished: tuple[Path, str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Begun on tiles, with the figures of one chip, and finished on another's, with what else decides no bit."""
    small, out = SMALL[:-2], ["--workers", "1", "--out", str(tmp_path)]
    assert exit_code("study", *small, *TWO[:-1], "1", *out) == 0
    more = ["--target", "bow", "--recompute", "--streamed", "params.*", "--overlap"]
    assert exit_code("study", *small, *TWO, *more, *out) == 0
    printed = capfd.readouterr().out
    assert "2 of 4 points were finished before; 2 to go" in printed
    assert (
        "\n  tiles of gc200\n  tiles of bow; streamed params.*; transfers beside computation; recomputation\n"
        in printed
    )
    assert all("cycles_per_step" in each for each in results(tmp_path))

    def bits(folder: Path) -> Any:
        return {(p["precision"], p["seed"]): (p["losses"], p["test_accuracy"]) for p in results(folder)}

    assert bits(tmp_path) == bits(finished[0])
    assert exit_code("study", *small, *TWO, "--target", "gc2", *out) == 2
    assert 'other settings (training.family "mk2" there, "mk1" here)' in capfd.readouterr().err


def test_more_seeds_are_added_to_a_finished_study(finished: tuple[Path, str], tmp_path: Path) -> None:
    folder, _ = finished
    for name in ("results.jsonl", "manifest.json"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    assert exit_code("study", *SMALL, *TWO[:-1], "3", "--workers", "1", "--out", str(tmp_path)) == 0
    assert len(results(tmp_path)) == 6


def comparable(points: list[dict[str, object]]) -> dict[tuple[object, object], dict[str, object]]:
    return {(p["precision"], p["seed"]): {k: v for k, v in p.items() if k not in ("seconds", "sha256")} for p in points}


FATE = """
import signal, sys
from ipu_core.__main__ import main
from ipu_core.train.loop import TrainLoop

train, trained = TrainLoop.train, []

def until(loop, batch):
    trained.append(batch)
    if len(trained) == 100:  # in the third of four points of 40 steps
        signal.raise_signal(int(sys.argv[1]))
    return train(loop, batch)

TrainLoop.train = until
sys.exit(main(sys.argv[2:]))
"""


@pytest.mark.parametrize("fate", [signal.SIGKILL, signal.SIGINT], ids=["killed", "interrupted"])
def test_a_study_ended_half_way_keeps_finished_points_and_continues_to_the_same_bits(
    fate: signal.Signals, finished: tuple[Path, str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    arguments = ["study", *SMALL, *TWO, "--workers", "1", "--out", str(tmp_path / "out")]
    line = [sys.executable, "-c", FATE, str(int(fate)), *arguments]
    ended = subprocess.run(line, capture_output=True, text=True, check=False)
    if fate == signal.SIGKILL:
        assert ended.returncode == -fate
    else:
        assert ended.returncode == 130
        assert ended.stderr.splitlines()[-1].startswith("interrupted; finished points are kept")
    kept = results(tmp_path / "out")
    assert len(kept) == 2
    assert exit_code(*arguments) == 0
    assert "2 of 4 points were finished before" in capfd.readouterr().out
    assert results(tmp_path / "out")[:2] == kept
    assert comparable(results(tmp_path / "out")) == comparable(results(finished[0]))


def test_a_study_keeps_checkpoints_while_it_runs_and_goes_on_from_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(point, "CHECKPOINT_SECONDS", 0.0)
    train, trained = TrainLoop.train, 0

    def interrupted(loop: TrainLoop, batch: object) -> float:
        nonlocal trained
        trained += 1
        if trained == 55:  # in the second of four points of 40 steps
            raise KeyboardInterrupt
        return train(loop, batch)

    monkeypatch.setattr(TrainLoop, "train", interrupted)
    arguments = ["study", *SMALL, *TWO, "--workers", "1", "--out", str(tmp_path / "out")]
    assert exit_code(*arguments) == 130
    (kept,) = (tmp_path / "out" / "checkpoints").iterdir()
    assert kept.name.startswith("fp16.16-stochastic-seed-0-")
    assert checkpoint.load(kept)[1]["step"] == 14
    (tmp_path / "out" / "checkpoints" / kept.name.replace("fp16.16-stochastic", "fp32.32")).write_text("of the first")
    assert exit_code(*arguments) == 0
    assert trained == 55 + 40 - 14 + 2 * 40
    assert not (tmp_path / "out" / "checkpoints").exists()
    assert exit_code(*arguments[:-1], str(tmp_path / "whole")) == 0
    assert comparable(results(tmp_path / "out")) == comparable(results(tmp_path / "whole"))
    assert (tmp_path / "out" / "table.txt").read_text() == (tmp_path / "whole" / "table.txt").read_text()


def test_a_full_disk_for_checkpoints_warns_once_a_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(point, "CHECKPOINT_SECONDS", 0.0)
    monkeypatch.setattr(checkpoint, "save", full)
    assert exit_code("study", *SMALL, *TWO, "--workers", "1", "--out", str(tmp_path)) == 0
    warnings = [line for line in capfd.readouterr().err.splitlines() if "checkpoint" in line]
    assert [line.split(": no checkpoint could be written to ")[0] for line in warnings] == [
        "fp32.32 seed 0",
        "fp16.16/stochastic seed 0",
        "fp32.32 seed 1",
        "fp16.16/stochastic seed 1",
    ]
    assert all(line.endswith("No space left on device") for line in warnings)


def test_a_kill_loses_no_more_than_what_came_after_the_last_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing that a point tells, and no failure, takes its checkpoint away; its result does."""
    seen = dict[str, list[bool]]()

    def work(settings: object, task: command.Task, report: Any, load: object) -> dict[str, Any]:
        task.saved.write_text("hours of work")
        told = seen.setdefault(str(task), [])
        for payload in ({"step": 1, "loss": 1.0}, {"warning": "odd"}, {"step": 2, "loss": 1.0}):
            report(payload)
            told.append(task.saved.exists())
        if task.point.precision == "fp32.32":
            raise ValueError("not now")
        return {"precision": task.point.precision, "seed": task.point.seed, "losses": [1.0], "lost_updates": 0.0}

    monkeypatch.setattr(command, "run_task", work)
    assert exit_code("study", *SMALL, *TWO, "--workers", "1", "--out", str(tmp_path)) == 2
    assert [told for told in seen.values()] == [[True] * 3] * 4
    left = sorted(path.name.rpartition("-")[0] for path in (tmp_path / "checkpoints").iterdir())
    assert left == ["fp32.32-seed-0", "fp32.32-seed-1"]


def test_a_planner_that_changed_does_not_mix_two_orders_in_one_table(
    finished: tuple[Path, str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    folder, before = finished[0], (finished[0] / "results.jsonl").read_bytes()
    choose = point.choose_accumulations
    monkeypatch.setattr(
        point, "choose_accumulations", lambda ideal, rule: choose(ideal, replace(rule, adder="pairwise"))
    )
    more = ["study", *SMALL, *TWO[:-1], "3", "--workers", "1", "--out", str(folder)]
    assert exit_code(*more) == 2
    error = capfd.readouterr().err
    assert "a study with another order of sums (0.weight.forward.dot.0 and 4 more): choose another" in error
    assert exit_code(*more, "--force") == 0
    printed = capfd.readouterr().out
    assert printed.startswith(f"{folder} holds another study and stays as it is; this one is kept in {folder}-2\n")
    assert f"written to {folder}-2: convergence.png" in printed
    assert (folder / "results.jsonl").read_bytes() == before
    assert len(results(folder.with_name(f"{folder.name}-2"))) == 6


def test_the_same_data_elsewhere_and_numbers_written_otherwise_are_the_same_study(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    x, y = np.random.default_rng(0).normal(size=(40, 5)), np.arange(40) % 3
    for place in ("a", "b"):
        (tmp_path / place).mkdir()
        np.savez(tmp_path / place / "d.npz", x_train=x[:30], y_train=y[:30], x_test=x[30:], y_test=y[30:])
    common = ["train", "--engine", "direct", "--precision", "fp32.32", "--out", str(tmp_path / "out"), "--batch", "8"]
    first = ["--data", str(tmp_path / "a" / "d.npz"), "--layers", "5-4-3", "--lr", "0.5", "--steps", "5"]
    second = ["--steps", "5", "--lr", "5e-1", "--layers", "5,4,3", "--data", str(tmp_path / "b" / "d.npz")]
    assert exit_code(*common, *first) == 0
    assert exit_code(*common, *second) == 0
    assert "1 of 1 points were finished before" in capfd.readouterr().out
    np.savez(tmp_path / "b" / "d.npz", x_train=x[10:], y_train=y[10:], x_test=x[:10], y_test=y[:10])
    assert exit_code(*common, *second) == 2
    assert "other settings (data_digest " in capfd.readouterr().err


def test_a_terminal_without_the_characters_gets_plain_ones(finished: tuple[Path, str]) -> None:
    line = [sys.executable, "-m", "ipu_core", "study", *SMALL, *TWO, "--out", str(finished[0])]
    plain = {**os.environ, "PYTHONIOENCODING": "ascii", "LC_ALL": "C", "PYTHONUTF8": "0"}
    done = subprocess.run(line, capture_output=True, env=plain, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"mean +- standard deviation over seeds" in done.stdout
    assert "mean ± standard deviation over seeds" in (finished[0] / "table.txt").read_text("utf-8")
