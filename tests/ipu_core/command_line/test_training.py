"""`train`: its parameters, data of one's own, more steps."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from ipu_core.study import tasks
from ipu_core.study.drive import Job
from ipu_core.train.loop import TrainLoop
from tests.ipu_core.command_line.commands import SMALL, TWO, exit_code, results


def test_a_precision_with_a_long_name_has_files(tmp_path: Path) -> None:
    name = "fp16.32/weights=float16" + "/nearest" * 40
    assert exit_code("train", *SMALL, "--precision", name, "--out", str(tmp_path)) == 0
    assert len(list(tmp_path.glob("parameters-fp16.32-weights=float16-nearest-*.npz"))) == 1


def test_train_keeps_the_parameters(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert exit_code("train", *SMALL, "--precision", "fp16.16/nearest", "--seed", "5", "--out", str(tmp_path)) == 0
    printed = capfd.readouterr().out
    assert "parameters-fp16.16-nearest-seed-5.npz" in printed
    with np.load(tmp_path / "parameters-fp16.16-nearest-seed-5.npz") as kept:
        assert kept["a/0.weight"].shape == (64, 16)
        assert kept["a/0.weight"].dtype == np.float16


def test_train_keeps_the_parameters_of_a_point_that_a_study_finished(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    order = ["--precision", "fp16.16/stochastic", "--seed", "1", "--out"]
    assert exit_code("train", *SMALL, *order, str(tmp_path / "alone")) == 0
    wanted = (tmp_path / "alone" / "parameters-fp16.16-stochastic-seed-1.npz").read_bytes()
    assert exit_code("study", *SMALL, *TWO, "--workers", "1", "--out", str(tmp_path / "out")) == 0
    before = (tmp_path / "out" / "results.jsonl").read_bytes()
    shown = {name: (tmp_path / "out" / name).read_bytes() for name in ("table.txt", "plan.txt", "convergence.png")}
    kept = tmp_path / "out" / "parameters-fp16.16-stochastic-seed-1.npz"
    capfd.readouterr()
    for _ in range(2):  # after a study, and after the file was deleted
        assert exit_code("train", *SMALL, *order, str(tmp_path / "out")) == 0
        printed, progress = capfd.readouterr()
        assert progress.startswith("1/1 ")
        assert "fp16.16/stochastic seed 1 is trained again: its result is here" in printed
        assert "forward.dot" not in printed  # but in plan.txt
        assert "\nfp32.32" not in printed
        (row,) = (line.split() for line in printed.splitlines() if line.startswith("fp16.16/stochastic  "))
        assert row[1] == "1"  # the one seed asked for
        assert "1 of 1 points were finished before; 0 to go" in printed
        assert kept.read_bytes() == wanted
        kept.unlink()
    kept.write_bytes(wanted)
    assert exit_code("train", *SMALL, *order, str(tmp_path / "out")) == 0
    assert "trained again" not in capfd.readouterr().out
    assert (tmp_path / "out" / "results.jsonl").read_bytes() == before
    assert {name: (tmp_path / "out" / name).read_bytes() for name in shown} == shown  # of all that the folder holds
    assert not (tmp_path / "out" / "checkpoints").exists()


def test_an_npz_of_ones_own_can_be_trained_on(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(120, 5)), rng.integers(0, 3, 120)
    np.savez(tmp_path / "d.npz", x_train=x[:100], y_train=y[:100], x_test=x[100:], y_test=y[100:])
    arguments = ["--data", str(tmp_path / "d.npz"), "--layers", "5-8-3", "--steps", "5", "--engine", "direct"]
    assert exit_code("train", *arguments, "--precision", "fp32.32", "--out", str(tmp_path / "out")) == 0
    assert len(results(tmp_path / "out")[0]["losses"]) == 5  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "precision, target, lacks",
    [
        ("fp8", "gc200", "gc200 has no figure for float8_e4m3fn x float8_e4m3fn into float32"),
        ("nvfp4", "gc200", "gc200 has no unit for nvfp4, whose elements share scales"),
        ("fp8", "c600", "c600 has no figure for float8_e4m3fn x float8_e4m3fn into float32"),
        ("fp16.16/stochastic", "gc200", None),
    ],
)
def test_precisions_that_the_chip_has_not_are_trained_by_default(
    precision: str, target: str, lacks: str | None, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["train", "--precision", precision, "--target", target, "--layers", "64-8-10", "--steps", "2"]
    assert exit_code(*words, "--out", str(tmp_path / "usual")) == 0
    printed, error = capfd.readouterr()
    said = "" if lacks is None else f"ipu-core: {precision} is trained on the direct engine: {lacks}\n"
    assert error.partition("1/1")[0] == said
    assert f", {'tiles of' if lacks is None else 'direct engine, for'} {target}\n(how every product" in printed
    assert (f"cycles, time and memory: tiles of {target}\n" in printed) == (lacks is None)
    assert exit_code(*words, "--engine", "tiles", "--out", str(tmp_path / "tiles")) == (0 if lacks is None else 2)
    assert "trained on the direct engine" not in capfd.readouterr().err


def test_train_goes_on_with_more_steps_to_the_same_bits(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    common = ["train", *SMALL[:2], "--batch", "32", "--lr", "0.5", "--engine", "direct"]
    common += ["--precision", "fp16.16/stochastic"]
    assert exit_code(*common, "--steps", "12", "--out", str(tmp_path / "a")) == 0
    capfd.readouterr()
    assert exit_code(*common, "--steps", "30", "--out", str(tmp_path / "a")) == 0
    assert "holds 12 steps of this training: it goes on from there" in capfd.readouterr().out
    assert exit_code(*common, "--steps", "30", "--out", str(tmp_path / "b")) == 0
    longer, whole = (json.loads((tmp_path / name / "results.jsonl").read_text()) for name in "ab")
    assert longer["losses"] == whole["losses"]
    assert len(longer["losses"]) == 30
    assert longer["test_accuracy"] == whole["test_accuracy"]
    first = json.loads((tmp_path / "a" / "results-12.jsonl").read_text())
    assert first["losses"] == whole["losses"][:12]
    capfd.readouterr()
    assert exit_code(*common, "--steps", "20", "--out", str(tmp_path / "a")) == 2
    assert "steps 30 there, 20 here" in capfd.readouterr().err
    assert exit_code(*common, "--steps", "40", "--schedule", "cosine", "--out", str(tmp_path / "b")) == 2
    shorter = [*common, "--schedule", "cosine", "--out", str(tmp_path / "c"), "--steps"]
    assert exit_code(*shorter, "12") == 0
    assert exit_code(*shorter, "30") == 2  # whose first steps have other rates
    assert "training.optimizer.lr.steps" in capfd.readouterr().err


def test_a_training_without_a_finished_step_is_not_called_longer(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["train", *SMALL[:2], "--engine", "direct", "--out", str(tmp_path / "a"), "--steps"]

    def interrupted(*_: object) -> float:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(TrainLoop, "train", interrupted)
        assert exit_code(*words, "3") == 130
    capfd.readouterr()
    assert exit_code(*words, "6") == 2
    assert "steps 3 there, 6 here), no point of it is finished: remove it" in capfd.readouterr().err
    assert not list((tmp_path / "a").glob("*-3.*"))
    assert exit_code(*words, "3") == exit_code(*words, "6") == 0
    assert "holds 3 steps of this training" in capfd.readouterr().out


@pytest.mark.parametrize("at", ["planning", "the renames", "the first step"])
def test_a_longer_training_that_ends_at_once_goes_on(
    at: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["train", *SMALL[:2], "--engine", "direct", "--out", str(tmp_path / "a"), "--steps"]
    assert exit_code(*words, "3") == 0

    def interrupted(*given: object) -> None:
        if at != "the renames" or str(given[0]).endswith("manifest.json"):
            raise KeyboardInterrupt
        shutil.move(str(given[0]), str(given[1]))

    with monkeypatch.context() as patched:
        places = {
            "planning": (Job, "rehearse"),
            "the renames": (tasks.os, "replace"),
            "the first step": (TrainLoop, "train"),
        }
        patched.setattr(*places[at], interrupted)
        assert exit_code(*words, "6") == 130
    capfd.readouterr()
    if at != "the renames":
        assert exit_code(*words, "9") == 2
        assert "steps 6 there, 9 here), no point of it is finished: go on with it" in capfd.readouterr().err
    assert exit_code(*words, "6") == 0
    assert len(json.loads((tmp_path / "a" / "results-3.jsonl").read_text())["losses"]) == 3
    assert exit_code(*words[:-2], str(tmp_path / "b"), "--steps", "6") == 0
    longer, whole = (json.loads((tmp_path / name / "results.jsonl").read_text()) for name in "ab")
    assert longer["losses"] == whole["losses"]


def test_a_damaged_manifest_is_left_alone_where_a_study_is_forced(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "manifest.json").write_text("{}")
    words = ["train", *SMALL[:2], "--engine", "direct", "--steps", "2", "--out", str(tmp_path / "a")]
    assert [exit_code(*words), exit_code(*words, "--force")] == [2, 0]
    assert (tmp_path / "a" / "manifest.json").read_text() == "{}"
    assert (tmp_path / "a-2" / "table.txt").is_file()


def test_a_rate_that_is_not_of_the_optimizer_is_said(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    said = "was not tuned for mlp with adam/b1=0.8: --lr says another"
    plain = ["--layers", "64-8-10", "--steps", "1", "--batch", "4", "--engine", "direct", "--out", str(tmp_path)]
    other = ["--optimizer", "adam/b1=0.8", *plain, "--force"]
    assert exit_code("train", *other) == 0
    assert capfd.readouterr().err.count(f"the learning rate 0.001 {said}") == 1
    for typed in (["train", *other, "--lr", "0.01"], ["train", *plain, "--force", "--optimizer", "sgd/momentum=0.9"]):
        assert exit_code(*typed) == 0
        assert "tuned" not in capfd.readouterr().err
    swept = ["--axis", "lr", "0.1", "0.01", "--seeds", "1"]
    assert exit_code("sweep", *other[:-2], str(tmp_path / "sweep"), *swept) == 0
    assert "tuned" not in capfd.readouterr().err
