"""Bad input is one clear line and exit code 2, before any work is lost."""

import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from ipu_core.chip.target import Target
from ipu_core.study import command, profiles, settings, tasks
from ipu_core.study.files import point_file
from ipu_core.train.options import options_of
from tests.ipu_core.command_line.commands import SMALL, TWO, exit_code

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
    (
        ["--optimizer", "adadeltas"],
        "unknown optimizer 'adadeltas': choose sgd, lars, asgd, adam, adamw, nadam, radam, adamax, lamb, rmsprop, "
        "adagrad, adadelta, adafactor, lion or rprop",
    ),
    (["--engine", "steam"], "unknown engine 'steam': choose tiles or direct"),
    (["--target", "gc3"], "unknown target 'gc3'; valid targets are gc2, gc200, bow, c600"),
    (["--target", "gc200/tiles=9999"], "gc200/tiles=9999: tiles must be at most 1,472, all of a gc200"),
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
    (["--colour=red"], "unrecognized arguments: --colour=red (try --help)"),
    (["--=red"], "unrecognized arguments: --=red (try --help)"),
    (["--see", "2"], "unrecognized arguments: --see: is it --seeds? (try --help)"),
    (["--st=2"], "unrecognized arguments: --st=2: is it --stash or --stages or --streamed? (try --help)"),
    (["--stages", "0"], "argument --stages: must be an integer from 1 to 1,024, not '0'"),
    (["--stages", "2,"], "stages must be a number, or names of layers such as 'blocks.0', not ''"),
    (["--pipeline-schedule", "1f1b"], "pipeline_schedule='1f1b' would do nothing: one stage has nothing to wait for"),
    (["--repliacs=2"], "unrecognized arguments: --repliacs=2: is it --replicas? (try --help)"),
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


def test_a_folder_that_cannot_be_written_is_refused_before_any_work(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert exit_code("study", *SMALL, "--out", str(tmp_path / "file" / "out")) == 2
    assert capfd.readouterr().err.startswith("ipu-core study: cannot write to the output folder")


@pytest.mark.parametrize("name", ["plan.txt", "table.txt", "convergence.png", "page.html"])
def test_a_file_that_cannot_be_written_loses_no_point(
    name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["study", *SMALL, "--precisions", "fp32.32", "--seeds", "1", "--workers", "1", "--out", str(tmp_path)]
    (tmp_path / name).mkdir()
    assert exit_code(*arguments) == 2  # and before the work it costs none
    assert capfd.readouterr().err.endswith(f" to the output folder {tmp_path / name}: Is a directory\n")
    (tmp_path / name).rmdir()

    def check_nothing(*_: object) -> None:
        (tmp_path / name).mkdir()  # which comes into the way while it trains

    with monkeypatch.context() as patched:
        patched.setattr(tasks, "check_writable", check_nothing)
        assert exit_code(*arguments) == 2
    printed, error = capfd.readouterr()
    assert error.splitlines()[-1] == f"{name} could not be written: Is a directory: {tmp_path / name}"
    assert "final loss" in printed
    others = {"plan.txt", "table.txt", "convergence.png", "page.html"} - {name}
    assert all((tmp_path / other).is_file() for other in others)
    (tmp_path / name).rmdir()
    assert exit_code(*arguments) == 0
    assert "1 of 1 points were finished before" in capfd.readouterr().out
    assert (tmp_path / name).is_file()


@pytest.mark.parametrize("kind", ["watch", "parameters", "state"])
def test_a_folder_in_the_place_of_a_points_file_is_refused_before_any_work(
    kind: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "run_point", None)
    way = point_file(tmp_path, kind, "fp16.16/nearest seed 0")
    way.mkdir()
    words = ["train", *SMALL, "--precision", "fp16.16/nearest", "--watch", "8", "--out", str(tmp_path)]
    assert exit_code(*words) == 2
    assert capfd.readouterr().err == f"ipu-core train: cannot write to the output folder {way}: Is a directory\n"


@pytest.mark.parametrize("order", ["profile", "blame"])
@pytest.mark.parametrize("way", ["below a file", "read-only", "a folder of its name"])
def test_reports_find_out_before_the_work_that_they_cannot_be_written(
    order: str, way: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profiles if order == "profile" else command, "models", None)  # nothing is loaded
    (tmp_path / "file").touch()
    (tmp_path / {"profile": "trace.json", "blame": "blame.txt"}[order]).mkdir()
    out = {"below a file": tmp_path / "file" / "out", "read-only": Path("/proc"), "a folder of its name": tmp_path}[way]
    assert exit_code(order, *SMALL[:2], "--out", str(out)) == 2
    error = capfd.readouterr().err
    assert error.startswith(f"ipu-core {order}: cannot write to the output folder {out}")
    assert error.count("\n") == 1
    if order == "profile":
        assert exit_code("profile", "--compare", "a", "b", "--out", str(tmp_path / "file")) == 2
        assert "cannot write to the output folder" in capfd.readouterr().err


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

    monkeypatch.setattr(profiles if order == "profile" else command, order, interrupted)
    assert exit_code(order, *(SMALL if order == "study" else SMALL[:2])) == 130
    assert capfd.readouterr().err.startswith(f"\ninterrupted{kept}")


def test_other_arguments_in_the_same_folder_are_refused(
    finished: tuple[Path, str], capfd: pytest.CaptureFixture[str]
) -> None:
    folder, _ = finished
    before = (folder / "results.jsonl").read_bytes()
    assert exit_code("study", *SMALL, *TWO, "--lr", "0.05", "--out", str(folder)) == 2
    assert "holds a study with other settings (training.optimizer.lr 0.5 there, 0.05 here)" in capfd.readouterr().err
    assert (folder / "results.jsonl").read_bytes() == before


def test_a_folder_with_another_model_names_both(finished: tuple[Path, str], capfd: pytest.CaptureFixture[str]) -> None:
    arguments = [*SMALL, *TWO, "--model", "cnn", "--layers", "64-4-10"]
    assert exit_code("study", *arguments, "--out", str(finished[0])) == 2
    assert '[64, 4, 10] here, model "mlp" there, "cnn" here, ' in capfd.readouterr().err


def test_an_npz_without_the_arrays_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    np.savez(tmp_path / "d.npz", images=np.ones(3))
    assert exit_code("study", "--data", str(tmp_path / "d.npz"), "--out", str(tmp_path / "out")) == 2
    assert "lacks x_train, y_train, x_test, y_test" in capfd.readouterr().err


def test_data_of_one_class_are_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    x, y = np.ones((9, 5)), np.full(9, 2)
    np.savez(tmp_path / "d.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    assert exit_code("study", "--data", str(tmp_path / "d.npz"), "--out", str(tmp_path / "out")) == 2
    assert "y_train and y_test hold one class, 2: at least two are needed\n" in capfd.readouterr().err


def test_a_model_that_does_not_fit_names_the_tile(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    few = Target("gc200", tiles=3, tile_memory=8192)
    monkeypatch.setattr(settings, "options_of", lambda **options: options_of(**{**options, "target": few}))
    assert exit_code("study", "--layers", "64-64-10", "--out", str(tmp_path)) == 2
    error = capfd.readouterr().err
    assert error.count("\n") == 1
    assert "bytes of 8,192" in error
    assert not (tmp_path / "results.jsonl").exists()


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


def test_train_and_profile_take_one_precision(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for order in ("train", "profile"):
        assert exit_code(order, "--precision", "fp16.32,fp32.32", "--out", str(tmp_path / "x")) == 2
        assert "one precision is wanted here, not 2: fp16.32, fp32.32" in capfd.readouterr().err
