"""Saves and loads training state: named arrays of any dtype and a few JSON values in one file."""

import contextlib
import json
import os
import re
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from ipu_core.train import tensor_file
from ipu_core.train.codes import as_codes, dtype_of
from lowprec.checks import expect_path

Arrays = dict[str, npt.NDArray[Any]]
DRAFT = re.compile(r"\.(.+)\.\d+\.draft")  # what `replacing` calls the drafts of a file
UNREADABLE = (OSError, ValueError, EOFError, AttributeError, RuntimeError, zipfile.BadZipFile, zlib.error, struct.error)
"""What NumPy and zipfile raise for a file that is no .npz of plain arrays, or a damaged one."""
_META = "__meta__"


def save(path: str | Path, arrays: Mapping[str, npt.NDArray[Any]], meta: Mapping[str, Any]) -> None:
    """Writes the arrays bit for bit, then renames: a kill or a full disk leaves either the old file or the new one.

    ml_dtypes arrays are stored as unsigned integers beside the name of their dtype, because .npz forgets it; in
    safetensors, where that has a name for them, as they are.

    Args:
        path: The file: of the safetensors format where its name ends so, else an .npz.
        arrays: NumPy arrays by name.
        meta: JSON values, such as the step.

    Raises:
        OSError: the file cannot be written.
        ImportError: the package safetensors is wanted and not installed.
    """
    path = Path(path)
    write = tensor_file.write if path.suffix == tensor_file.SUFFIX else _write_npz
    with replacing(path) as draft, draft.open("wb") as file:
        write(file, arrays, meta)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A draft beside a file, which takes its place where the context ends well and goes where it does not.

    The draft is on the disk before it takes the place, and the folder's new entry when the context has ended: a power
    cut leaves either the old file or the new one, whole.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}.draft")
    try:
        yield draft
        sync(draft)
        os.replace(draft, path)
        with contextlib.suppress(OSError):  # some file systems cannot
            sync(path.parent)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def sync(path: Path) -> None:
    """Waits until a file, or a folder's list of files, is on the disk."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def sweep(folder: Path, own: re.Pattern[str]) -> None:
    """Removes the drafts that killed processes left in a folder; nobody may be writing there.

    Args:
        folder: Which may not be there.
        own: The names of the files whose drafts they are: those of others stay.
    """
    for path in folder.glob(".*.draft"):
        draft = DRAFT.fullmatch(path.name)
        if draft is not None and own.fullmatch(draft[1]) and path.is_file():
            path.unlink(missing_ok=True)


def load(path: str | Path) -> tuple[Arrays, dict[str, Any]]:
    """Reads what `save` wrote: (arrays, meta).

    Raises:
        FileNotFoundError: there is no file.
        ValueError: the file is not a checkpoint.
        ImportError: it is one in the safetensors format, and that package is not installed.
    """
    expect_path("path", path)
    path = Path(path)
    try:
        return tensor_file.read(path.read_bytes()) if path.suffix == tensor_file.SUFFIX else _read_npz(path)
    except FileNotFoundError:
        raise FileNotFoundError(f"there is no checkpoint {path}") from None
    except (*UNREADABLE, LookupError, TypeError) as error:
        raise ValueError(f"{path} is not a checkpoint that this version can read: remove it to start anew") from error


def _write_npz(file: IO[bytes], arrays: Mapping[str, npt.NDArray[Any]], meta: Mapping[str, Any]) -> None:
    kinds = {name: array.dtype.name for name, array in arrays.items()}
    plain = {f"a/{name}": as_codes(array) for name, array in arrays.items()}
    text = json.dumps({"dtypes": kinds, "meta": dict(meta)})
    np.savez(file, **plain, **{_META: np.frombuffer(text.encode(), np.uint8)})  # type: ignore[arg-type]


def _read_npz(path: Path) -> tuple[Arrays, dict[str, Any]]:
    with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
        head = json.loads(archive[_META].tobytes())
        arrays = {name: archive[f"a/{name}"].view(dtype_of(kind)) for name, kind in head["dtypes"].items()}
        return arrays, head["meta"]
