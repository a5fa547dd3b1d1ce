"""Checkpoints hold every dtype bit for bit and refuse foreign files."""

import importlib.util
import io
import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from ipu_core.train.checkpoint import load, replacing, save, sweep, write_tensors

DTYPES = ["float16", "float32", "float64", "int32", "uint8", "bfloat16", "float8_e4m3fnuz", "float8_e5m2"]
DTYPES += ["float8_e4m3fn", "float8_e3m4"]


@pytest.fixture(params=["npz", "safetensors"])
def file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Where a checkpoint of either format is kept."""
    if request.param == "safetensors":
        pytest.importorskip("safetensors")
    return tmp_path / f"s.{request.param}"


def test_every_dtype_comes_back_bit_for_bit(file: Path) -> None:
    codes = np.arange(256, dtype=np.uint8)
    arrays = {name: codes.view(getattr(ml_dtypes, name, None) or np.dtype(name)).reshape(2, -1) for name in DTYPES}
    save(file, arrays, {"step": 17, "loss": 0.25})
    loaded, meta = load(file)
    assert meta == {"step": 17, "loss": 0.25}
    assert list(loaded) == DTYPES
    for name, array in arrays.items():
        assert loaded[name].dtype == array.dtype
        assert loaded[name].shape == array.shape
        assert loaded[name].tobytes() == array.tobytes()


def test_dotted_and_odd_names_and_shapes_survive(file: Path) -> None:
    arrays = {"layers.0.weight": np.ones(3), "__meta__": np.zeros(2), "file": np.zeros(()), "none": np.ones((0, 3))}
    arrays["turned"] = np.arange(6.0).reshape(2, 3).T
    save(file, arrays, {})
    loaded = load(file)[0]
    assert list(loaded) == list(arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(loaded[name], array, strict=True)
        loaded[name][...] = 1  # what is loaded may be written to


def test_saving_replaces_and_leaves_no_draft(file: Path) -> None:
    for step in range(2):
        save(file, {"w": np.full(4, step)}, {"step": step})
    assert load(file)[1] == {"step": 1}
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_other_programs_read_the_tensors() -> None:
    package = pytest.importorskip("safetensors")
    data = io.BytesIO()
    arrays = {"w": np.arange(4, dtype=np.uint16).view(ml_dtypes.bfloat16), "q": np.zeros(3, ml_dtypes.float8_e4m3fnuz)}
    write_tensors(data, {**arrays, "e": np.ones(2, ml_dtypes.float8_e4m3fn)}, {"step": 3})
    found = {name: (each["dtype"], bytes(each["data"])) for name, each in package.deserialize(data.getvalue())}
    assert found == {
        "w": ("BF16", arrays["w"].tobytes()),
        "q": ("U8", arrays["q"].tobytes()),
        "e": ("F8_E4M3", b"88"),
    }


def test_without_the_package_one_sentence_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("safetensors", "safetensors.numpy"):
        monkeypatch.setitem(sys.modules, module, None)
    path = tmp_path / "s.safetensors"
    with pytest.raises(ImportError, match=r"safetensors is needed here: python -m pip install -e '.\[safetensors\]'"):
        save(path, {"w": np.ones(4)}, {})
    assert not list(tmp_path.iterdir())
    path.write_bytes(b"x")
    with pytest.raises(ImportError, match="safetensors is needed here"):
        load(path)


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


def test_a_damaged_file_is_refused_or_holds_what_was_saved(file: Path) -> None:
    save(file, {"w": np.arange(6, dtype=np.float16), "b": np.ones(2, ml_dtypes.bfloat16)}, {"step": 3, "losses": [0.5]})
    wanted, refused, whole = repr(load(file)), 0, list(damaged(file.read_bytes()))
    for data in whole:
        file.write_bytes(data)
        try:
            assert repr(load(file)) == wanted
        except ValueError as error:
            refused += 1
            assert "is not a checkpoint" in str(error)  # noqa: PT017
    said = {".npz": 0.5, ".safetensors": 0.99}  # the rest are fields that say nothing, such as an archive's dates
    assert refused > said[file.suffix] * len(whole), (refused, len(whole))


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
    assert done[:2] == [f".s.npz.{os.getpid()}.draft of {size}", "replace"]
    assert done[2].startswith(f"{tmp_path.name} of ")


def test_drafts_of_the_dead_are_swept_and_nothing_else(tmp_path: Path) -> None:
    drafts = [".s.npz.123.draft", ".a.npz.7.draft"]
    others = [
        ".s.npz.123",
        ".gitignore",
        ".notes.2024",
        ".t.txt.7.draft",
        ".s.npz.draft",
        ".s.npz.12x.draft",
        "s.npz",
        "s.npz.1.draft",
    ]
    for name in (*drafts, *others):
        (tmp_path / name).write_text("x")
    (tmp_path / ".b.npz.8.draft").mkdir()
    sweep(tmp_path, re.compile(r".+\.npz"))
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*others, ".b.npz.8.draft"])
    sweep(tmp_path / "nowhere", re.compile(".*"))


def test_a_draft_has_the_name_that_is_swept(tmp_path: Path) -> None:
    with replacing(tmp_path / "s.npz") as draft:
        draft.write_text("x")
        sweep(tmp_path, re.compile(r"t\.npz"))
        assert draft.exists()
        sweep(tmp_path, re.compile(r"s\.npz"))
        assert not draft.exists()
        draft.write_text("y")


def test_foreign_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.npz").write_bytes(b"no")
    np.savez(tmp_path / "b.npz", w=np.ones(2))
    (tmp_path / "b.safetensors").write_bytes((tmp_path / "b.npz").read_bytes())
    names = ["a.npz", "b.npz"]
    if importlib.util.find_spec("safetensors"):
        st = pytest.importorskip("safetensors.numpy")
        st.save_file({"w": np.ones(2)}, tmp_path / "c.safetensors")
        st.save_file({"w": np.ones(2)}, tmp_path / "d.safetensors", {"lowprec": "{}", "sha256": ""})
        names += ["b.safetensors", "c.safetensors", "d.safetensors"]
    for name in names:
        with pytest.raises(ValueError, match="is not a checkpoint"):
            load(tmp_path / name)
    for name in ("missing.npz", "missing.safetensors"):
        with pytest.raises(FileNotFoundError, match=f"there is no checkpoint .*{name}"):
            load(tmp_path / name)


def test_shapes_and_names_belong_to_what_a_tensor_file_is_checked_by(tmp_path: Path) -> None:
    """The same bytes of a tensor turned, or of another one, are not what was saved."""
    pytest.importorskip("safetensors")
    path = tmp_path / "s.safetensors"
    save(path, {"w": np.arange(6.0).reshape(2, 3), "v": np.zeros((2, 3))}, {})
    whole = path.read_bytes()
    header = json.loads(whole[8 : 8 + int.from_bytes(whole[:8], "little")])
    for change in ("shape", "name"):
        head = json.loads(json.dumps(header))
        if change == "shape":
            head["w"]["shape"] = [3, 2]
        else:
            head["w"], head["v"] = head["v"], head["w"]
        text = json.dumps(head).encode()
        text += b" " * (-len(text) % 8)
        path.write_bytes(len(text).to_bytes(8, "little") + text + whole[8 + int.from_bytes(whole[:8], "little") :])
        with pytest.raises(ValueError, match="is not a checkpoint"):
            load(path)
    path.write_bytes(whole)
    assert load(path)[0]["w"].shape == (2, 3)
