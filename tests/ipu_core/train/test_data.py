"""The data sets, the .npz reader's refusals and the order of batches."""

import dataclasses
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ipu_core.train.data.dataset import ARRAYS, Dataset, batches, digits, from_npz, load, permutation, shuffled


@pytest.fixture
def arrays() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    return {
        "x_train": rng.normal(size=(30, 2, 3)),
        "y_train": rng.integers(0, 4, 30),
        "x_test": rng.normal(size=(10, 2, 3)),
        "y_test": rng.integers(0, 4, 10),
    }


def write(folder: Path, **arrays: np.ndarray) -> Path:
    path = folder / "task.npz"
    np.savez(path, **arrays)
    return path


def test_digits_are_the_real_ones_split_once() -> None:
    data = digits()
    assert (len(data.x_train), len(data.x_test), data.features, data.classes) == (1438, 359, 64, 10)
    assert data.x_train.dtype == np.float32
    assert data.y_train.dtype == np.int32
    assert set(np.unique(data.x_train * 16 + 8)) == set(range(17))
    assert np.array_equal(data.x_train, data.x_train.astype(np.float16).astype(np.float32))
    assert data.digest() == digits().digest()
    whole = pytest.importorskip("sklearn.datasets").load_digits()
    labels = {row.tobytes(): label for row, label in zip(np.float32(whole.data / 16 - 0.5), whole.target, strict=True)}
    rows = [*zip(data.x_train, data.y_train, strict=True), *zip(data.x_test, data.y_test, strict=True)]
    assert len({row.tobytes() for row, _ in rows}) == len(labels)
    assert all(labels[row.tobytes()] == label for row, label in rows)


def test_npz_is_flattened_to_rows(tmp_path: Path, arrays: dict[str, np.ndarray]) -> None:
    data = load(str(write(tmp_path, **arrays)))
    assert isinstance(data, Dataset)
    assert data.x_train.shape == (30, 6)
    assert data.x_test.dtype == np.float32
    assert np.array_equal(data.x_train, arrays["x_train"].reshape(30, 6).astype(np.float32))


def test_digest_sees_every_array(tmp_path: Path, arrays: dict[str, np.ndarray]) -> None:
    before = from_npz(write(tmp_path, **arrays)).digest()
    arrays["y_test"][3] = (arrays["y_test"][3] + 1) % 4
    assert from_npz(write(tmp_path, **arrays)).digest() != before


@pytest.mark.parametrize("name", ARRAYS)
def test_digest_sees_the_last_element_the_shape_and_the_dtype(name: str) -> None:
    x, y = np.arange(120, dtype=np.float32).reshape(40, 3), np.arange(39, dtype=np.int32) % 3
    task = Dataset("t", x, y, x, y)
    array = getattr(task, name)
    last = array.copy()
    last.flat[-1] += 1
    others = (last, array.reshape(3, -1), array.view(np.uint32), array[::-1])
    digests = {dataclasses.replace(task, **{name: other}).digest() for other in others} | {task.digest()}
    assert len(digests) == 5
    assert dataclasses.replace(task, **{name: np.asfortranarray(array)}).digest() == task.digest()


def test_missing_arrays_are_named(tmp_path: Path, arrays: dict[str, np.ndarray]) -> None:
    del arrays["x_test"], arrays["y_test"]
    with pytest.raises(
        ValueError, match=r"lacks x_test, y_test: expected arrays x_train, y_train.*found x_train, y_train"
    ):
        from_npz(write(tmp_path, **arrays))


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("x_train", lambda a: a[0, 0, 0], "x_train must be real numbers of shape"),
        ("x_train", lambda a: a.astype(complex), "x_train must be real numbers"),
        ("x_train", lambda a: a[:29], "x_train has 29 rows, y_train 30"),
        ("x_test", lambda a: a[:, :1], "x_train has 6 features a row, x_test 3"),
        ("x_test", lambda a: a * np.nan, "not finite"),
        ("x_test", lambda a: np.full(a.shape, 1e300), "not finite in float32"),
        ("y_train", lambda a: a.astype(float), "y_train must be integers"),
        ("y_train", lambda a: a[:, None], "y_train must be integers of shape"),
        ("y_test", lambda a: a - 9, "class numbers"),
    ],
)
def test_wrong_arrays_are_refused(tmp_path: Path, arrays: dict[str, np.ndarray], name, change, message) -> None:  # type: ignore[no-untyped-def]
    arrays[name] = change(arrays[name])
    with pytest.raises(ValueError, match=message):
        from_npz(write(tmp_path, **arrays))


def test_files_that_are_no_npz_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "text.npz").write_text("hello")
    np.save(tmp_path / "array.npy", np.ones(3))
    (tmp_path / "array.npy").rename(tmp_path / "array.npz")
    for name in ("text.npz", "array.npz"):
        with pytest.raises(ValueError, match=f"{name} is not an .npz file, or not a whole one"):
            load(str(tmp_path / name))
    with monkeypatch.context() as locked:
        locked.setattr(Path, "open", lambda path, mode: os.open(tmp_path / "nowhere" / "x", os.O_RDONLY))
        with pytest.raises(ValueError, match=r"text.npz cannot be read: No such file"):
            load(str(tmp_path / "text.npz"))
    with pytest.raises(ValueError, match="no such data file"):
        load(str(tmp_path / "none.npz"))
    with pytest.raises(ValueError, match="unknown data 'mnist': give 'digits' or the path"):
        load("mnist")


@pytest.mark.parametrize("write_file", [np.savez, np.savez_compressed])
def test_a_damaged_file_is_refused_or_the_same(tmp_path: Path, write_file: Callable[..., None]) -> None:
    path = tmp_path / "task.npz"
    x, y = np.arange(8, dtype=np.float32).reshape(4, 2), np.array([0, 1, 1, 0])
    write_file(path, x_train=x, y_train=y, x_test=x, y_test=y)
    wanted, whole = from_npz(path).digest(), path.read_bytes()
    for place in range(0, len(whole), 2):
        change = 0xFF if place % 3 else 1 << place % 8
        path.write_bytes(whole[:place] + bytes([whole[place] ^ change]) + whole[place + 1 :])
        try:
            assert from_npz(path).digest() == wanted
        except ValueError as error:
            assert str(path) in str(error)  # noqa: PT017


def test_object_arrays_are_refused(tmp_path: Path, arrays: dict[str, np.ndarray]) -> None:
    arrays["x_train"] = np.array([{}] * 30, dtype=object)
    with pytest.raises(ValueError, match=r"cannot be read as an .npz file of plain arrays"):
        from_npz(write(tmp_path, **arrays))


def test_permutation_is_pinned() -> None:
    assert permutation(10, (0, 0)).tolist() == PINNED
    assert permutation(10, (0, 1)).tolist() != PINNED
    assert permutation(10, (3, 1)).tolist() == [9, 7, 8, 3, 5, 6, 4, 0, 2, 1]


PINNED = [0, 2, 9, 1, 8, 5, 4, 3, 6, 7]


def test_an_epoch_visits_each_row_once_and_the_next_in_another_order() -> None:
    rows = shuffled(23, 5, seed=7)
    first, second = ([r for step in range(4 * e, 4 * e + 4) for r in rows(step)] for e in (0, 1))
    assert len(set(first)) == len(set(second)) == 20
    assert first != second


def test_any_step_can_be_asked_for_in_any_order() -> None:
    data = digits()
    forward, backward = batches(data, 64, 3), batches(data, 64, 3)
    wanted = {step: forward(step) for step in (0, 21, 22, 50)}
    for step in (50, 0, 22, 21):
        x, y = backward(step)
        assert np.array_equal(x, wanted[step][0])
        assert np.array_equal(y, wanted[step][1])
    assert not np.array_equal(batches(data, 64, 4)(0)[1], wanted[0][1])


def test_rows_and_labels_stay_together_and_either_part_may_hold_the_last_class() -> None:
    x = np.arange(30, dtype=np.float32)[:, None]
    y = np.arange(30, dtype=np.int32) % 3
    batch = batches(Dataset("t", x, y, x, y + 2), 7, 3)
    for step in range(9):
        features, labels = batch(step)
        assert features.shape == (7, 1)
        np.testing.assert_array_equal(labels, features[:, 0] % 3)
    assert Dataset("t", x, y, x, y + 2).classes == 5
    assert Dataset("t", x, y + 2, x, y).classes == 5


def test_batches_and_labels_may_be_as_large_as_is_said(tmp_path: Path, arrays: dict[str, np.ndarray]) -> None:
    assert sorted(shuffled(30, 30, 0)(0).tolist()) == list(range(30))
    arrays["y_train"][0] = 65535
    assert from_npz(write(tmp_path, **arrays)).classes == 65536
    arrays["y_train"][0] = 65536
    with pytest.raises(ValueError, match=r"must hold class numbers 0\.\.65535, found 0\.\.65536"):
        from_npz(write(tmp_path, **arrays))


@pytest.mark.parametrize("size", [0, 31])
def test_batches_that_do_not_fit_are_refused(size: int) -> None:
    with pytest.raises(ValueError, match=f"a batch of {size} cannot be drawn from 30 rows"):
        shuffled(30, size, 0)


def test_digits_come_without_importing_scikit_learn() -> None:
    code = "import sys; from ipu_core.train.data import dataset; dataset.digits(); assert 'sklearn' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
