"""A study that is watched, before and after it has finished."""

from pathlib import Path

import pytest

from ipu_core.diagnose.watch import Record
from ipu_core.train.loop import TrainLoop
from tests.ipu_core.command_line.commands import SMALL, exit_code

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


def test_looks_that_a_kill_left_unfinished_are_not_called_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A finished study is looked at again, at other steps, in the same file."""
    folder, train = tmp_path / "out", TrainLoop.train
    assert exit_code(*WATCHED, "--out", str(folder), "--watch", "20") == 0

    def interrupted(loop: TrainLoop, batch: object) -> float:
        if loop.step == 20:
            raise KeyboardInterrupt
        return train(loop, batch)

    with monkeypatch.context() as killed:
        killed.setattr(TrainLoop, "train", interrupted)
        assert exit_code(*WATCHED, "--out", str(folder), "--watch", "16") == 130
    capfd.readouterr()
    assert exit_code(*WATCHED, "--out", str(folder)) == 0
    printed = capfd.readouterr().out
    assert "damaged" not in printed
    assert "worst values" not in printed  # two looks of three are no whole file
    assert exit_code(*WATCHED, "--out", str(folder), "--watch", "16") == 0
    printed = capfd.readouterr().out
    assert "damaged" not in printed
    assert "worst values" in printed
    assert Record.read(folder / "watch-fp16.16-nearest-seed-0.npy").steps.tolist() == [0, 16, 32]


def test_what_somebody_says_of_a_study_stands_on_its_page(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    assert exit_code(*WATCHED, "--out", str(folder)) == 0
    (folder / "blame.txt").write_text("the weights <lost> it", "utf-8")
    assert exit_code(*WATCHED, "--out", str(folder)) == 0
    assert "the weights &lt;lost&gt; it" in (folder / "page.html").read_text("utf-8")


def test_a_study_is_not_watched_every_zero_steps(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert exit_code(*WATCHED, "--out", str(tmp_path / "out"), "--watch", "0") == 2
    assert "watch: every must be an integer of at least 1, not 0" in capfd.readouterr().err
