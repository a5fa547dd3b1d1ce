"""Text as bytes: what is read, how it is cut, and batches that depend on nothing but seed and step."""

from pathlib import Path

import numpy as np
import pytest

from ipu_core.train.data import text


def test_the_standard_librarys_sources_are_there() -> None:
    task = text.load()
    assert task.train.size > 5_000_000
    assert 8 < task.train.size / task.test.size < 10
    whole = task.train.tobytes()
    assert b"def dataclass(" in whole + task.test.tobytes()
    assert b"class TestCase(" in whole + task.test.tobytes()  # unittest is no test
    assert b"site-packages/numpy" not in whole


def test_folders_are_read_in_order_without_what_is_hidden_or_binary(tmp_path: Path) -> None:
    files = {"b/z.txt": b"second ", "a.txt": b"first, ", "c.bin": b"\0\1", ".git/x": b"no", "tests/t": b"no"}
    for name, data in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(data * 10)
    task = text.load(str(tmp_path))
    joined = b"first, " * 10 + b"\n" + b"second " * 10
    assert task.name == tmp_path.name
    assert task.train.size + task.test.size == len(joined)
    size = len(joined) // 10
    assert task.test.tobytes() == joined[9 * size : 10 * size]
    alone = text.load(str(tmp_path / "a.txt"))
    assert alone.name == "a.txt"
    assert alone.digest() != task.digest()


def test_batches_are_rows_and_the_bytes_that_follow() -> None:
    task = text.Text("t", np.arange(250, dtype=np.uint8), np.zeros(0, np.uint8))
    x, y = text.batches(task, 5, 16, seed=3)(7)
    assert x.dtype == y.dtype == np.int32
    assert x.shape == y.shape == (5, 16)
    np.testing.assert_array_equal(y, x + 1)
    np.testing.assert_array_equal(x[:, 1:], x[:, :-1] + 1)
    for other in (text.batches(task, 5, 16, seed=4)(7), text.batches(task, 5, 16, seed=3)(8)):
        assert (other[0] != x).any()
    np.testing.assert_array_equal(text.batches(task, 5, 16, seed=3)(7)[0], x)
    starts = {int(row[0]) for step in range(200) for row in text.batches(task, 5, 247, seed=0)(step)[0]}
    assert starts == {0, 1, 2}


def test_texts_that_are_none_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no such text: .*nowhere"):
        text.load(str(tmp_path / "nowhere"))
    (tmp_path / "short").write_text("abc")
    with pytest.raises(ValueError, match="the text short has 3 bytes"):
        text.load(str(tmp_path / "short"))
    task = text.Text("t", np.zeros(20, np.uint8), np.zeros(5, np.uint8))
    with pytest.raises(ValueError, match="2 rows of 20 bytes cannot be drawn from 20 bytes"):
        text.batches(task, 2, 20, 0)
