"""Checkpoints hold every dtype bit for bit and refuse foreign files."""

import os
from collections.abc import Iterator
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from ipu_core.train.checkpoint import load, replacing, save, sweep

DTYPES = ["float16", "float32", "float64", "int32", "uint8", "bfloat16", "float8_e4m3fnuz", "float8_e5m2"]


def test_every_dtype_comes_back_bit_for_bit(tmp_path: Path) -> None:
    codes = np.arange(256, dtype=np.uint8)
    arrays = {name: codes.view(getattr(ml_dtypes, name, None) or np.dtype(name)).reshape(2, -1) for name in DTYPES}
    save(tmp_path / "state.npz", arrays, {"step": 17, "loss": 0.25})
    loaded, meta = load(tmp_path / "state.npz")
    assert meta == {"step": 17, "loss": 0.25}
    assert list(loaded) == DTYPES
    for name, array in arrays.items():
        assert loaded[name].dtype == array.dtype
        assert loaded[name].shape == array.shape
        assert loaded[name].tobytes() == array.tobytes()


def test_dotted_and_odd_names_survive(tmp_path: Path) -> None:
    arrays = {"layers.0.weight": np.ones(3), "__meta__": np.zeros(2), "file": np.zeros(())}
    save(tmp_path / "s.npz", arrays, {})
    assert {name: a.shape for name, a in load(tmp_path / "s.npz")[0].items()} == {n: a.shape for n, a in arrays.items()}


def test_saving_replaces_and_leaves_no_draft(tmp_path: Path) -> None:
    for step in range(2):
        save(tmp_path / "s.npz", {"w": np.full(4, step)}, {"step": step})
    assert load(tmp_path / "s.npz")[1] == {"step": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["s.npz"]


def test_a_file_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    save(tmp_path / "s.npz", {"w": np.ones(4)}, {"step": 1})
    with pytest.raises(TypeError, match="JSON"):
        save(tmp_path / "s.npz", {"w": np.ones(4)}, {"step": object()})
    draft = replacing(tmp_path / "s.npz")
    draft.__enter__().write_text("half")
    assert not draft.__exit__(OSError, OSError("full"), None)
    assert load(tmp_path / "s.npz")[1] == {"step": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["s.npz"]


def damaged(whole: bytes) -> Iterator[bytes]:
    """The file with each of its bytes changed, and cut at every eighth."""
    for place, byte in enumerate(whole):
        change = 0xFF if place % 3 else 1 << place % 8
        yield whole[:place] + bytes([byte ^ change]) + whole[place + 1 :]
        if place % 8 == 0:
            yield whole[:place]


def test_a_damaged_file_is_refused_or_holds_what_was_saved(tmp_path: Path) -> None:
    path = tmp_path / "s.npz"
    save(path, {"w": np.arange(6, dtype=np.float16), "b": np.ones(2, ml_dtypes.bfloat16)}, {"step": 3, "losses": [0.5]})
    wanted, refused = repr(load(path)), 0
    for data in damaged(path.read_bytes()):
        path.write_bytes(data)
        try:
            assert repr(load(path)) == wanted
        except ValueError as error:
            refused += 1
            assert "is not a checkpoint" in str(error)  # noqa: PT017
    assert refused > 650  # the rest are fields of the archive that say nothing, such as dates


def test_a_draft_is_on_the_disk_before_it_takes_the_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    fsync, replace = os.fsync, os.replace

    def follow(number: int) -> None:
        done.append(f"{Path(os.readlink(f'/proc/self/fd/{number}')).name} of {os.fstat(number).st_size}")
        fsync(number)

    monkeypatch.setattr(os, "fsync", follow)
    monkeypatch.setattr(os, "replace", lambda draft, path: (done.append("replace"), replace(draft, path)))
    save(tmp_path / "s.npz", {"w": np.ones(4)}, {})
    size = (tmp_path / "s.npz").stat().st_size
    assert done[:2] == [f".s.npz.{os.getpid()} of {size}", "replace"]
    assert done[2].startswith(f"{tmp_path.name} of ")


def test_drafts_of_the_dead_are_swept_and_nothing_else(tmp_path: Path) -> None:
    for name in (".s.npz.123", ".a.b.7", ".gitignore", ".123", "s.npz", "a.1", ".s.npz.12x"):
        (tmp_path / name).write_text("x")
    sweep(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".123", ".gitignore", ".s.npz.12x", "a.1", "s.npz"]
    sweep(tmp_path / "nowhere")


def test_foreign_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.npz").write_bytes(b"no")
    np.savez(tmp_path / "b.npz", w=np.ones(2))
    for name in ("a.npz", "b.npz", "missing.npz"):
        with pytest.raises(ValueError, match="is not a checkpoint"):
            load(tmp_path / name)
