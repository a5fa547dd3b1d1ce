"""Text as bytes, without a network: the sources of Python's standard library, or files of your own."""

from __future__ import annotations

import functools
import hashlib
import os
import sysconfig
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Batch = tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]
SYMBOLS = 256
BLOCK = 2**16  # bytes; every tenth block of a text is kept for testing
TEST_SHARE = 10
LEFT_OUT = frozenset({"site-packages", "dist-packages", "test", "tests", "__pycache__"})


@dataclass(frozen=True, eq=False)
class Text:
    """A text cut into bytes to train and to test on.

    Attributes:
        name: What to call it in tables.
        train, test: uint8.
    """

    name: str
    train: Bytes
    test: Bytes

    def digest(self) -> str:
        """A SHA-256 over both parts: the standard library differs between versions of Python."""
        total = hashlib.sha256()
        for part in (self.train, self.test):
            total.update(f"{part.size},".encode())
            total.update(part.tobytes())
        return total.hexdigest()


def load(path: str | None = None) -> Text:
    """The standard library's sources, or a file or folder of text by its path.

    Raises:
        ValueError: nothing can be read there, or it is too short.
    """
    return standard_library() if path is None else from_path(Path(path))


@functools.lru_cache(maxsize=1)
def standard_library() -> Text:
    """The sources of Python's standard library without its tests, some ten million bytes, in the order of names."""
    root = Path(sysconfig.get_path("stdlib"))
    return _cut("standard library", _joined(path for path in _files(root) if path.suffix == ".py"))


def from_path(path: Path) -> Text:
    """A file, or all files of text in a folder and below it, in the order of names; hidden and binary ones left out.

    Raises:
        ValueError: see `load`.
    """
    if not path.exists():
        raise ValueError(f"no such text: {path}")
    return _cut(path.name, _joined([path] if path.is_file() else _files(path)))


def _files(root: Path) -> list[Path]:
    found = []
    for folder, below, names in os.walk(root):
        below[:] = [name for name in below if not name.startswith(".") and name not in LEFT_OUT]
        found += [Path(folder) / name for name in names if not name.startswith(".")]
    # os.walk gives names in the order of the file system, which decides the text.
    return sorted(found)


def _joined(paths: Iterable[Path]) -> bytes:
    try:
        parts = [path.read_bytes() for path in paths]
    except OSError as error:
        raise ValueError(f"a text cannot be read: {error.filename}: {error.strerror}") from error
    # A NUL byte is how binary files are told from text.
    return b"\n".join(part for part in parts if part and b"\0" not in part)


def _cut(name: str, whole: bytes) -> Text:
    """Cuts a text: every tenth block is for testing. A block is 2^16 bytes, or a tenth of a shorter text."""
    if len(whole) < 2 * TEST_SHARE:
        raise ValueError(f"the text {name} has {len(whole)} bytes: too few to train on")
    data, size = np.frombuffer(whole, np.uint8), min(BLOCK, len(whole) // TEST_SHARE)
    # Blocks from all over the text: its last tenth would be other subjects than the rest.
    kept = np.arange(len(data)) // size % TEST_SHARE == TEST_SHARE - 1
    return Text(name, data[~kept], data[kept])


def batches(text: Text, size: int, context: int, seed: int) -> Callable[[int], Batch]:
    """The training batch of any step: rows of a context's bytes, and of the bytes that follow each of them.

    Args:
        text: what to read from, at places that depend on nothing but seed and step.
        size: rows of a batch.
        context: bytes of a row.
        seed: any integer in [0, 2^64).

    Raises:
        ValueError: the text is shorter than a row, or the batch empty.
    """
    places = len(text.train) - context
    if size < 1 or places < 1:
        raise ValueError(f"a batch of {size} rows of {context} bytes cannot be drawn from {len(text.train)} bytes")

    def batch(step: int) -> Batch:
        # 64-bit words modulo the places: the bias is below places / 2^64.
        words = np.random.Philox(key=np.array((seed, step), np.uint64)).random_raw(size)
        return windows(text.train, (words % np.uint64(places)).astype(np.int64), context)

    return batch


def windows(data: Bytes, starts: npt.NDArray[np.int64], context: int) -> Batch:
    """The rows of `context` bytes that begin at `starts`, and the same one byte later: int32 (rows, context) each."""
    rows = data[starts[:, None] + np.arange(context + 1)].astype(np.int32)
    return rows[:, :-1], rows[:, 1:]
