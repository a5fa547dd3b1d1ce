"""results.jsonl: append-only, resumable, mended after a kill, one study to a folder."""

import json
import math
import os
from pathlib import Path

import pytest

from ipu_core.study.store import RESULTS, Store, digest, read_results

SETTINGS = {"steps": 10, "lr": 0.1, "layers": [4, 2]}


def point(seed: int = 0, losses: tuple[float, ...] = (2.0, 1.0)) -> dict[str, object]:
    return {"precision": "fp32.32", "seed": seed, "losses": list(losses)}


def test_appended_points_are_read_back_by_the_next_store(tmp_path: Path) -> None:
    with Store(tmp_path / "a" / "b", SETTINGS) as store:
        store.append(point(0))
    with Store(tmp_path / "a" / "b", SETTINGS) as store:
        store.append(point(1))
        assert [result["seed"] for result in store.results()] == [0, 1]
        assert {result["study"] for result in store.results()} == {digest(SETTINGS)}
    assert not (tmp_path / "a" / "b" / "checkpoints").exists()


def test_values_that_json_lacks_become_null_and_nan_again(tmp_path: Path) -> None:
    with Store(tmp_path, SETTINGS) as store:
        store.append({**point(losses=(1.0, math.nan, math.inf)), "test_accuracy": math.nan})
    line = (tmp_path / RESULTS).read_text()
    assert json.loads(line)["losses"] == [1.0, None, None]
    assert math.isnan(read_results(tmp_path)[0]["losses"][1])


def test_a_point_counts_once_however_often_its_line_is_there(tmp_path: Path) -> None:
    with Store(tmp_path, SETTINGS) as store:
        for losses in ((2.0, 1.0), (3.0,)):
            store.append(point(0, losses))
        assert [result["losses"] for result in store.results()] == [[2.0, 1.0]]


def test_a_torn_last_line_is_cut_off(tmp_path: Path) -> None:
    with Store(tmp_path, SETTINGS) as store:
        store.append(point(0))
    with (tmp_path / RESULTS).open("a") as file:
        file.write('{"precision": "fp32.32", "se')
    with Store(tmp_path, SETTINGS) as store:
        store.append(point(1))
        assert [result["seed"] for result in store.results()] == [0, 1]


def test_a_line_that_a_full_disk_cuts_off_does_not_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    with Store(tmp_path, SETTINGS) as store:
        store.append(point(0))
        before = (tmp_path / RESULTS).read_bytes()
        with monkeypatch.context() as full:
            full.setattr(os, "write", lambda file, line: write(file, line[:20]))
            with pytest.raises(OSError, match="No space left on device"):
                store.append(point(1))
        assert (tmp_path / RESULTS).read_bytes() == before
        store.append(point(2))
        assert [result["seed"] for result in store.results()] == [0, 2]


def test_other_settings_are_refused_and_named(tmp_path: Path) -> None:
    with Store(tmp_path, SETTINGS) as store:
        store.append(point(0))
    with pytest.raises(ValueError, match=r"other settings \(lr 0.1 there, 0.2 here\).*another folder"):
        Store(tmp_path, {**SETTINGS, "lr": 0.2})


def test_a_folder_without_results_takes_new_settings(tmp_path: Path) -> None:
    with Store(tmp_path, SETTINGS) as store:
        before = store.checkpoint("p")
        before.write_text("state of the old settings")
    with Store(tmp_path, {**SETTINGS, "lr": 0.2}) as store:
        assert json.loads((tmp_path / "manifest.json").read_text())["settings"]["lr"] == 0.2
        assert store.checkpoint("p") != before


def test_one_study_at_a_time(tmp_path: Path) -> None:
    with Store(tmp_path, SETTINGS), pytest.raises(ValueError, match="another study is running"):
        Store(tmp_path, SETTINGS)
    Store(tmp_path, SETTINGS).close()


@pytest.mark.parametrize("where", ["file", "file/below"])
def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path, where: str) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(ValueError, match=r"cannot write to the output folder .*file"):
        Store(tmp_path / where, SETTINGS)


def test_foreign_folders_are_refused(tmp_path: Path) -> None:
    (tmp_path / RESULTS).write_text("{}\n")
    with pytest.raises(ValueError, match="without a manifest"):
        Store(tmp_path, SETTINGS)
    (tmp_path / "manifest.json").write_text("[]")
    with pytest.raises(ValueError, match="not a study's manifest"):
        Store(tmp_path, SETTINGS)
    (tmp_path / "manifest.json").unlink()
    (tmp_path / "manifest.json").mkdir()
    with pytest.raises(ValueError, match=r"manifest.json cannot be read: Is a directory"):
        Store(tmp_path, SETTINGS)
    with pytest.raises(ValueError, match="line 1, is not a result"):
        read_results(tmp_path)
    for line in (b'{"losses": [1], "seed": 0}', b'{"losses": [], "precision": "a", "seed": 0}', b"\xff"):
        (tmp_path / RESULTS).write_bytes(line + b"\n")
        with pytest.raises(ValueError, match="line 1, is not a result"):
            read_results(tmp_path)
    with pytest.raises(ValueError, match="no results"):
        read_results(tmp_path / "nowhere")


def test_drafts_that_a_kill_left_do_not_stay(tmp_path: Path) -> None:
    with Store(tmp_path, SETTINGS) as store:
        (store.checkpoint("a").parent / ".a.npz.123").write_text("half a checkpoint")
    assert not (tmp_path / "checkpoints").exists()


def test_checkpoints_are_named_after_their_point(tmp_path: Path) -> None:
    with Store(tmp_path, SETTINGS) as store:
        path = store.checkpoint("fp16.16/nearest seed 2")
        assert path.parent.is_dir()
        assert path.name == f"fp16.16-nearest-seed-2-{store.digest[:12]}.npz"
        path.write_text("x")
    assert path.exists()
