"""The file of a record: two arrays of NumPy's .npy format, one behind the other, of which the second grows.

    with open("run.watch", "rb") as file:
        values = np.load(file)  # a structured array, a row for each value: `WatchedValue`
        rows = np.load(file)    # of shape (looks, values): `ROW`, rows["rms"][:, k] is a column of value k

The header of the second says how many looks are whole; what a kill left behind them does not count.
"""

from __future__ import annotations

import io
import warnings
from pathlib import Path
from tokenize import TokenError
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from ipu_core.diagnose.watch.look import ROW
from ipu_core.train.checkpoint import UNREADABLE, replacing
from lowprec.checks import expect_path

Rows = npt.NDArray[np.void]


def read(path: str | Path) -> tuple[Rows, Rows]:
    """The values and the rows of a file.

    Raises:
        ValueError: it is no such file.
        OSError: it cannot be read.
    """
    expect_path("path", path)
    with Path(path).open("rb") as file:
        try:
            values, rows = np.load(file, allow_pickle=False), np.load(file, allow_pickle=False)
        except (*UNREADABLE, LookupError, TypeError, SyntaxError, ArithmeticError, MemoryError, TokenError) as error:
            # NumPy raises OSErrors without a number for damaged files, and passes on the system's.
            if isinstance(error, OSError) and error.errno is not None:
                raise
            raise ValueError(f"{path} is no record of a watched run, or a damaged one: remove it") from error
    if rows.dtype != ROW or values.ndim != 1 or rows.shape[1:] != values.shape:
        raise ValueError(f"{path} is a record of another version, or of something else")
    return values, rows


def write(path: str | Path, values: Rows, rows: Rows) -> None:
    """Writes a whole file, or leaves the old one."""
    expect_path("path", path)
    with replacing(Path(path)) as draft, draft.open("wb") as file:
        np.save(file, values, allow_pickle=False)
        np.save(file, rows, allow_pickle=False)


class RowFile:
    """The rows of one run in a file, written look by look; between them the file is closed.

    Args:
        path: Of the file; made with the first look if it is not there.
        values: The table of values.

    Raises:
        ValueError: there is a file, and it is none of these values.
        FileNotFoundError: its folder is not there.
    """

    def __init__(self, path: str | Path, values: Rows) -> None:
        self.path, self._values = Path(path), values
        self._head = _saved(values)
        if not self.path.parent.is_dir():
            raise FileNotFoundError(f"there is no folder {self.path.parent} for the record {self.path.name}")
        if self.path.exists():
            there, _ = read(self.path)
            # Names aside, which an older lowprec wrote otherwise.
            if _facts(there) != _facts(values):
                raise ValueError(f"{self.path} is the record of another step: choose another file or remove that one")
            self._keep_names(there)

    def append(self, rows: Rows) -> None:
        """Adds one look, in place of those of the same or later steps, which a run that goes on from before repeats.

        Raises:
            OSError: it cannot be written.
        """
        if not self.path.exists():
            with replacing(self.path) as draft:
                draft.write_bytes(self._head + self._header(0))
        with self.path.open("r+b") as file:
            # The count comes down before rows are replaced and up after: a kill between leaves whole looks only.
            count = self._before(file, int(rows["step"][0]))
            self._count(file, count)
            file.seek(self._offset + count * rows.nbytes)
            file.write(rows.tobytes())
            file.truncate()
            self._count(file, count + 1)

    def rewind(self, step: int) -> None:
        """Takes away the looks at a step and those after it."""
        if self.path.exists():
            with self.path.open("r+b") as file:
                self._count(file, self._before(file, step))

    def rows(self) -> Rows:
        """All rows."""
        return read(self.path)[1] if self.path.exists() else np.zeros((0, len(self._values)), ROW)

    def _keep_names(self, there: Rows) -> None:
        """Goes on with the values of the file as an older lowprec named them."""
        names = [(str(old), str(new)) for old, new in zip(there["name"], self._values["name"], strict=True)]
        if other := [(old, new) for old, new in names if old != new]:
            words = f"{self.path} has names of an older lowprec, which it keeps: {other[0][0]!r} is {other[0][1]!r} now"
            warnings.warn(words, DeprecationWarning, stacklevel=2)
            self._head = _saved(there)

    @property
    def _offset(self) -> int:
        return len(self._head) + len(self._header(0))

    def _header(self, count: int) -> bytes:
        """NumPy leaves room in it for the count to grow."""
        file = io.BytesIO()
        head = {"descr": np.lib.format.dtype_to_descr(ROW), "fortran_order": False, "shape": (count, len(self._values))}
        np.lib.format.write_array_header_1_0(file, head)
        return file.getvalue()

    def _count(self, file: IO[bytes], count: int) -> None:
        """Says how many looks are whole; what was written before is with the system by then."""
        file.flush()
        file.seek(len(self._head))
        file.write(self._header(count))
        file.flush()

    def _before(self, file: IO[bytes], step: int) -> int:
        """How many looks there are before a step."""
        file.seek(len(self._head))
        np.lib.format.read_magic(file)
        (count, width), _, _ = np.lib.format.read_array_header_1_0(file)
        # From the end: a run goes on from a few looks back, and the file may hold thousands.
        size = width * ROW.itemsize
        while count:
            file.seek(self._offset + (count - 1) * size)
            if np.frombuffer(file.read(8), "<i8")[0] < step:
                break
            count -= 1
        return int(count)


def _saved(values: Rows) -> bytes:
    """An array as a file of NumPy's holds it."""
    file = io.BytesIO()
    np.save(file, values, allow_pickle=False)
    return file.getvalue()


def _facts(values: Rows) -> dict[str, list[Any]]:
    """All that a table says of values but their names."""
    return {field: values[field].tolist() for field in values.dtype.names or () if field != "name"}
