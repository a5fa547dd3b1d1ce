"""The command line: a study end to end, resumed after a kill, and one clear line with exit code 2 for bad input."""

import errno
import json
import os
import signal
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from ipu_core.__main__ import main
from ipu_core.study import command, point
from ipu_core.study.demo import demo
from ipu_core.target import Target
from ipu_core.train import checkpoint
from ipu_core.train.loop import TrainLoop
from ipu_core.train.watch import Record

SMALL = ["--layers", "64-16-10", "--steps", "40", "--batch", "32", "--lr", "0.5", "--engine", "direct"]
TWO = ["--precisions", "fp32.32", "fp16.16/stochastic", "--seeds", "2"]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "ipu_core", *arguments], capture_output=True, text=True, check=False)


def results(folder: Path) -> list[dict[str, object]]:
    """The whole lines; the last may be being written by another process."""
    *lines, _ = (folder / "results.jsonl").read_text().split("\n")
    return [json.loads(line) for line in lines]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("study") / "out"
    done = run("study", *SMALL, *TWO, "--workers", "2", "--out", str(folder))
    assert done.returncode == 0, done.stderr
    return folder, done.stdout


def test_a_study_writes_its_files(finished: tuple[Path, str]) -> None:
    folder, printed = finished
    names = {path.name for path in folder.iterdir()}
    assert names == {"results.jsonl", "manifest.json", "table.txt", "plan.txt", "convergence.png", "page.html"}
    assert (folder / "table.txt").read_text().strip() in printed
    assert (folder / "convergence.png").read_bytes()[:4] == b"\x89PNG"


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


def test_a_planner_that_changed_does_not_mix_two_orders_in_one_table(
    finished: tuple[Path, str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    folder, before = finished[0], (finished[0] / "results.jsonl").read_bytes()
    monkeypatch.setattr(command, "Target", lambda name: Target(name, adder="pairwise"))
    more = ["study", *SMALL, *TWO[:-1], "3", "--workers", "1", "--out", str(folder)]
    assert exit_code(*more) == 2
    error = capfd.readouterr().err
    assert "holds a study with another order of sums (0 forward dot 0.weight and 4 more): choose another" in error
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


BAD = [
    (["--precisions", "fp12.7"], "fp12.7"),
    (["--precisions", "fp16.16/sideways"], "sideways"),
    (["--precisions", "fp16.16"], "fp16.16"),
    (["--precisions", ","], "no precision given"),
    (["--steps", "0"], "steps must be an integer of at least 1, not 0"),
    (["--steps", "many"], "invalid int value: 'many'"),
    (["--batch", "-1"], "batch must be an integer of at least 1, not -1"),
    (["--batch", "5000"], "a batch of 5000 cannot be drawn from 1438 rows"),
    (["--lr", "-0.1"], "lr must be a positive number that float32 holds, not -0.1"),
    (["--lr", "nan"], "lr must be a positive number that float32 holds, not nan"),
    (["--lr", "1e300"], "lr must be a positive number that float32 holds, not 1e+300"),
    (["--lr", "1e-300"], "lr must be a positive number that float32 holds, not 1e-300"),
    (["--seeds", "0"], "must be an integer from 1 to 1,024, not '0'"),
    (["--seeds", "100000000000"], "must be an integer from 1 to 1,024, not '100000000000'"),
    (["--out", ""], "must name a folder"),
    (["--optimizer", "adagrad"], "unknown optimizer 'adagrad': choose sgd, lars, adam, adamw or lamb"),
    (["--engine", "steam"], "unknown engine 'steam': choose tiles or direct"),
    (["--target", "gc3"], "unknown target 'gc3'; valid targets are gc2, gc200, bow, c600"),
    (
        ["--layers", "64-a-10"],
        "layers must be two or more positive widths such as 64-256-256-10, none beyond 1,000,000,000, not '64-a-10'",
    ),
    (["--layers", "64"], "layers must be two or more positive widths"),
    (["--layers", "64-9999999999999999999999-10"], "layers must be two or more positive widths"),
    (["--layers", "64-0-10"], "layers must be two or more positive widths"),
    (["--layers", "32-10"], "layers 32-10 do not fit digits: they lead from 64 features to 10 classes"),
    (["--data", "mnist"], "unknown data 'mnist': give 'digits' or the path of an .npz file"),
    (["--data", "nowhere.npz"], "no such data file: nowhere.npz"),
    (["--threads", "99999999999999999999"], "must be an integer from 1 to 1,024"),
    (["--loss-scale", "big"], "must be a number, 'automatic' or 'none', not 'big'"),
    (["--colour=red"], "unrecognized arguments: --colour=red"),
]


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_seeds_are_64_bit_numbers(seed: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert exit_code("train", *SMALL, "--seed", str(seed), "--out", str(tmp_path / "out")) == 2
    assert capfd.readouterr().err == f"ipu-core train: seed must be an integer from 0 to 2^64 - 1, not {seed}\n"
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("arguments", "message"), BAD, ids=[" ".join(a) for a, _ in BAD])
def test_bad_input_is_one_line_and_exit_code_2(
    arguments: list[str], message: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert exit_code("study", "--out", str(tmp_path / "out"), *arguments) == 2
    printed = capfd.readouterr()
    assert message in printed.err
    assert printed.err.count("\n") == 1
    assert printed.out == ""
    assert not (tmp_path / "out" / "results.jsonl").exists()


def exit_code(*arguments: str) -> int:
    try:
        return main(arguments)
    except SystemExit as end:
        return int(end.code or 0)


def test_a_folder_that_cannot_be_written_is_refused_before_any_work(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert exit_code("study", *SMALL, "--out", str(tmp_path / "file" / "out")) == 2
    assert capfd.readouterr().err.startswith("ipu-core study: cannot write to the output folder")


@pytest.mark.parametrize("name", ["plan.txt", "table.txt", "convergence.png", "page.html"])
def test_a_file_that_cannot_be_written_loses_no_point(
    name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).mkdir()
    arguments = ["study", *SMALL, "--precisions", "fp32.32", "--seeds", "1", "--out", str(tmp_path)]
    assert exit_code(*arguments) == 2
    printed, error = capfd.readouterr()
    assert error.splitlines()[-1] == f"ipu-core study: Is a directory: {tmp_path / name}"
    assert ("final loss" in printed) == (name != "plan.txt")  # the table is printed before anything is written
    (tmp_path / name).rmdir()
    assert exit_code(*arguments) == 0
    assert "1 of 1 points were finished before" in capfd.readouterr().out or name == "plan.txt"


def test_too_little_memory_is_one_line(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    def study(*_: object, **__: object) -> None:
        raise MemoryError("Unable to allocate 4.66 TiB")

    monkeypatch.setattr(command, "study", study)
    assert exit_code("study", *SMALL) == 2
    assert capfd.readouterr().err == "ipu-core study: not enough memory: Unable to allocate 4.66 TiB\n"


@pytest.mark.parametrize(("order", "kept"), [("study", "; finished points are kept"), ("profile", "\n")])
def test_an_interrupt_says_what_is_kept(
    order: str, kept: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, order, interrupted)
    assert exit_code(order, *(SMALL if order == "study" else SMALL[:2])) == 130
    assert capfd.readouterr().err.startswith(f"\ninterrupted{kept}")


def test_a_terminal_without_the_characters_gets_plain_ones(finished: tuple[Path, str]) -> None:
    line = [sys.executable, "-m", "ipu_core", "study", *SMALL, *TWO, "--out", str(finished[0])]
    plain = {**os.environ, "PYTHONIOENCODING": "ascii", "LC_ALL": "C", "PYTHONUTF8": "0"}
    done = subprocess.run(line, capture_output=True, env=plain, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"mean +- standard deviation over seeds" in done.stdout
    assert "mean ± standard deviation over seeds" in (finished[0] / "table.txt").read_text("utf-8")


def test_a_precision_with_a_long_name_has_files(tmp_path: Path) -> None:
    name = "fp16.32/weights=float16" + "/nearest" * 40
    assert exit_code("train", *SMALL, "--precision", name, "--out", str(tmp_path)) == 0
    assert len(list(tmp_path.glob("parameters-fp16.32-weights=float16-nearest-*.npz"))) == 1


def test_other_arguments_in_the_same_folder_are_refused(
    finished: tuple[Path, str], capfd: pytest.CaptureFixture[str]
) -> None:
    folder, _ = finished
    before = (folder / "results.jsonl").read_bytes()
    assert exit_code("study", *SMALL, *TWO, "--lr", "0.05", "--out", str(folder)) == 2
    assert "holds a study with other settings (lr 0.5 there, 0.05 here)" in capfd.readouterr().err
    assert (folder / "results.jsonl").read_bytes() == before


def test_a_folder_with_another_model_names_both(finished: tuple[Path, str], capfd: pytest.CaptureFixture[str]) -> None:
    arguments = [*SMALL, *TWO, "--model", "cnn", "--layers", "64-4-10"]
    assert exit_code("study", *arguments, "--out", str(finished[0])) == 2
    assert '[64, 4, 10] here, model "mlp" there, "cnn" here)' in capfd.readouterr().err


def test_an_npz_without_the_arrays_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    np.savez(tmp_path / "d.npz", images=np.ones(3))
    assert exit_code("study", "--data", str(tmp_path / "d.npz"), "--out", str(tmp_path / "out")) == 2
    assert "lacks x_train, y_train, x_test, y_test" in capfd.readouterr().err


def test_data_of_one_class_are_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    x, y = np.ones((9, 5)), np.full(9, 2)
    np.savez(tmp_path / "d.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    assert exit_code("study", "--data", str(tmp_path / "d.npz"), "--out", str(tmp_path / "out")) == 2
    assert "y_train and y_test hold one class, 2: at least two are needed\n" in capfd.readouterr().err


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
        assert "forward dot" not in printed  # but in plan.txt
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


def test_profile_prints_plan_and_account_and_writes_reports(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    arguments = ["--layers", "64-16-10", "--precision", "fp16.16/nearest", "--target", "bow"]
    assert exit_code("profile", *arguments, "--out", str(tmp_path / "p")) == 0
    printed = capfd.readouterr().out
    assert "forward dot 0.weight" in printed
    assert "program 0 on bow, 1472 tiles" in printed
    assert {path.name for path in (tmp_path / "p").iterdir()} == {
        "profile.json",
        "profile.html",
        "trace.json",
    }
    assert json.loads((tmp_path / "p" / "profile.json").read_text())["target"]["name"] == "bow"
    (tmp_path / "file").write_text("")
    assert exit_code("profile", *arguments, "--out", str(tmp_path / "file" / "p")) == 2
    assert "cannot write to the output folder" in capfd.readouterr().err
    assert "<td>grad_weight</td><td>dot</td>" in (tmp_path / "p" / "profile.html").read_text()
    both = [str(tmp_path / "p"), str(tmp_path / "p" / "profile.json")]
    assert exit_code("profile", "--compare", *both, "--out", str(tmp_path / "c")) == 0
    lines = capfd.readouterr().out.splitlines()
    assert [line.split()[-1] for line in lines if line.startswith("cycles of forward dot")] == ["1.000"]
    assert "cycles of forward dot" in (tmp_path / "c" / "comparison.html").read_text()
    assert exit_code("profile", "--compare", both[0], str(tmp_path / "file")) == 2
    assert "is no profile that `profile --out` wrote" in capfd.readouterr().err


@pytest.mark.parametrize("option", ["--steps=3", "--lr=1", "--schedule=cosine", "--engine=direct"])
def test_profile_has_no_options_that_change_nothing(
    option: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert exit_code("profile", option) == 2
    assert "unrecognized arguments" in capfd.readouterr().err
    (tmp_path / "c.toml").write_text('steps = 3\nengine = "direct"\nlayers = "64-8-10"\n')
    assert exit_code("profile", "--config", str(tmp_path / "c.toml")) == 0  # one file for all commands


def test_a_model_that_does_not_fit_names_the_tile(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "Target", lambda name: Target(name, tiles=3, tile_memory=8192))
    assert exit_code("study", "--layers", "64-64-10", "--out", str(tmp_path)) == 2
    error = capfd.readouterr().err
    assert error.count("\n") == 1
    assert "bytes of 8,192" in error
    assert not (tmp_path / "results.jsonl").exists()


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
    assert f"{target} ({'tiles' if lacks is None else 'direct'})" in printed
    assert exit_code(*words, "--engine", "tiles", "--out", str(tmp_path / "tiles")) == (0 if lacks is None else 2)
    assert "trained on the direct engine" not in capfd.readouterr().err


@pytest.mark.parametrize("words", [["study"], ["profile"]])
def test_a_model_far_too_large_is_refused_before_it_is_made(
    words: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    tracemalloc.start()
    assert exit_code(*words, "--layers", "64-20000-20000-10", "--target", "gc2", "--out", str(tmp_path / "out")) == 2
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 100e6  # the middle weight alone would be 1.6 GB
    error = capfd.readouterr().err
    assert error.count("\n") == 1
    assert "bytes of 262,144 for the values of the step alone" in error
    assert "1.weight" in error


def test_the_demo_runs(capfd: pytest.CaptureFixture[str]) -> None:
    assert demo(steps=20) == 0
    printed = capfd.readouterr().out
    assert "stochastic    away from zero with P" in printed
    assert "fp16.16/nearest" in printed


@pytest.mark.parametrize("words", [[], ["study"], ["train"], ["profile"], ["demo"]])
def test_help_is_there_and_nothing_else_happens(words: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    assert exit_code(*words, "--help") == 0
    assert "usage: ipu-core" in capfd.readouterr().out


def test_no_command_is_an_error(capfd: pytest.CaptureFixture[str]) -> None:
    assert exit_code() == 2
    assert "study|train|profile|blame|reproduce|demo" in capfd.readouterr().err


def test_a_closed_pipe_is_no_error(finished: tuple[Path, str]) -> None:
    folder, _ = finished
    line = f"{sys.executable} -m ipu_core study {' '.join([*SMALL, *TWO])} --out {folder} | head -c 20"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", line], capture_output=True, text=True, check=False)
    assert len(done.stdout) == 20
    assert done.stderr == ""


def test_train_and_profile_take_one_precision(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for order in ("train", "profile"):
        assert exit_code(order, "--precision", "fp16.32,fp32.32", "--out", str(tmp_path / "x")) == 2
        assert "one precision is wanted here, not 2: fp16.32, fp32.32" in capfd.readouterr().err


def test_blame_says_why_and_what_brings_it_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = ["--layers", "64-32-10", "--steps", "200"]
    assert main(["blame", "mlp", *small, "--precision", "fp16.16/nearest/1.*:weights=float32",
                 "--out", str(tmp_path / "out")]) == 0  # fmt: skip
    printed = capsys.readouterr().out
    assert (tmp_path / "out" / "blame.txt").read_text("utf-8") == printed
    assert "0.weight update, line " in printed
    assert "precision without it: fp16.16/nearest/1.*:weights=float32/0:weights=float32" in printed
    assert main(["blame", *small, "--precision", "fp16.16/nearest", "--by", "layer"]) == 0
    assert "it alone low" in capsys.readouterr().out
    assert main(["blame", *small, "--budget", "1"]) == 2
    assert "budget must be at least 3.5" in capsys.readouterr().err
    for setting in (["--budget", "5"], ["--tolerance", "0.05"]):
        assert main(["blame", *small, "--by", "cause", *setting]) == 2
        assert f"{setting[0]} is not for --by cause, which does two runs" in capsys.readouterr().err


WATCHED = ["study", *SMALL, "--precisions", "fp16.16/nearest", "--seeds", "1", "--workers", "1"]


def test_a_study_is_watched(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "out")
    assert exit_code(*WATCHED, "--out", out, "--watch", "8") == 0
    printed = capfd.readouterr().out
    assert "worst values of fp16.16/nearest seed 0" in printed
    path = tmp_path / "out" / "watch-fp16.16-nearest-seed-0.npy"
    record = Record.read(path)
    assert record.steps.tolist() == [0, 8, 16, 24, 32]
    assert str(record.table()).splitlines()[-1] in printed
    assert "What rounding did" in (tmp_path / "out" / "page.html").read_text("utf-8")


def test_looks_that_a_finished_study_lacks_are_made_and_its_results_stay(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "out"
    assert exit_code(*WATCHED, "--out", str(folder)) == 0
    before = (folder / "results.jsonl").read_bytes()
    for every, steps in (("20", [0, 20]), ("16", [0, 16, 32])):
        capfd.readouterr()
        assert exit_code(*WATCHED, "--out", str(folder), "--watch", every) == 0
        assert "is trained again: its result is here, what is to be watched is not" in capfd.readouterr().out
        assert Record.read(folder / "watch-fp16.16-nearest-seed-0.npy").steps.tolist() == steps
    assert exit_code(*WATCHED, "--out", str(folder), "--watch", "16") == 0
    assert "is trained again" not in capfd.readouterr().out
    assert (folder / "results.jsonl").read_bytes() == before


def test_what_somebody_says_of_a_study_stands_on_its_page(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    assert exit_code(*WATCHED, "--out", str(folder)) == 0
    (folder / "blame.txt").write_text("the weights <lost> it", "utf-8")
    assert exit_code(*WATCHED, "--out", str(folder)) == 0
    assert "the weights &lt;lost&gt; it" in (folder / "page.html").read_text("utf-8")


def test_a_study_is_not_watched_every_zero_steps(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert exit_code(*WATCHED, "--out", str(tmp_path / "out"), "--watch", "0") == 2
    assert "watch: every must be an integer of at least 1, not 0" in capfd.readouterr().err


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
