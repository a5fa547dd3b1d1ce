"""Saves and loads training state: named arrays of any dtype and a few JSON values in one file."""

import contextlib
import hashlib
import json
import os
import re
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from lowprec.checks import expect_path
from lowprec.extras import optional

Arrays = dict[str, npt.NDArray[Any]]
DRAFT = re.compile(r"\.(.+)\.\d+\.draft")  # what `replacing` calls the drafts of a file
UNREADABLE = (OSError, ValueError, EOFError, AttributeError, RuntimeError, zipfile.BadZipFile, zlib.error, struct.error)
"""What NumPy and zipfile raise for a file that is no .npz of plain arrays, or a damaged one."""
_META = "__meta__"
SUFFIX = ".safetensors"
NATIVE = ("bfloat16", "float8_e4m3fn", "float8_e5m2")  # of ml_dtypes' formats, which every version of the package knows


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
    write = write_tensors if path.suffix == SUFFIX else _write_npz
    with replacing(path) as draft, draft.open("wb") as file:
        write(file, arrays, meta)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """The path of a draft beside a file. It replaces the file if the context ends well, and is removed if not.

    The draft is on the disk before it takes the place, and the folder's new entry when the context has ended: a power
    cut leaves either the old file or the new one, whole.
    """
    # The process id, since two processes may write the same file; the dot hides drafts from a glob for checkpoints.
    draft = path.with_name(f".{path.name}.{os.getpid()}.draft")
    try:
        yield draft
        sync(draft)
        os.replace(draft, path)
        with contextlib.suppress(OSError):  # some file systems cannot
            sync(path.parent)
    # BaseException: an interrupt leaves no draft either.
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
        # Drafts of other programs stay, and a folder that has such a name must not end a study.
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
        return read_tensors(path.read_bytes()) if path.suffix == SUFFIX else _read_npz(path)
    except FileNotFoundError:
        raise FileNotFoundError(f"there is no checkpoint {path}") from None
    except (*UNREADABLE, LookupError, TypeError) as error:
        raise ValueError(f"{path} is not a checkpoint that this version can read: remove it to start anew") from error


def _write_npz(file: IO[bytes], arrays: Mapping[str, npt.NDArray[Any]], meta: Mapping[str, Any]) -> None:
    kinds = {name: array.dtype.name for name, array in arrays.items()}
    # The prefix keeps names apart from _META, and from "file", which is an argument of np.savez.
    plain = {f"a/{name}": as_codes(array) for name, array in arrays.items()}
    text = json.dumps({"dtypes": kinds, "meta": dict(meta)})
    # As bytes: NumPy would store a str with four bytes a character.
    np.savez(file, **plain, **{_META: np.frombuffer(text.encode(), np.uint8)})  # type: ignore[arg-type]


def _read_npz(path: Path) -> tuple[Arrays, dict[str, Any]]:
    # No pickle: one in a checkpoint runs whatever code its author put there.
    with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
        head = json.loads(archive[_META].tobytes())
        arrays = {name: archive[f"a/{name}"].view(dtype_of(kind)) for name, kind in head["dtypes"].items()}
        return arrays, head["meta"]


def write_tensors(file: IO[bytes], arrays: Mapping[str, npt.NDArray[Any]], meta: Mapping[str, Any]) -> None:
    """Writes the safetensors format, which other programs read; dtypes without a name there as unsigned integers.

    The metadata hold the dtypes, the values, and a SHA-256 over all, which the format lacks.

    Raises:
        ImportError: the package safetensors is not installed.
    """
    package = optional("safetensors.numpy", extra="safetensors")
    plain = {name: np.asarray(_plain(array), order="C") for name, array in arrays.items()}
    kinds = {name: array.dtype.name for name, array in arrays.items()}
    text = json.dumps({"dtypes": kinds, "meta": dict(meta)})
    file.write(package.save(plain, {"lowprec": text, "sha256": _digest(text, plain)}))


def read_tensors(data: bytes) -> tuple[dict[str, npt.NDArray[Any]], dict[str, Any]]:
    """The arrays and values of what `write_tensors` wrote.

    Raises:
        ImportError: the package safetensors is not installed.
        ValueError, LookupError, TypeError: it is another file, or a damaged one.
    """
    package = optional("safetensors", extra="safetensors")
    try:
        tensors = dict(package.deserialize(data))
    except package.SafetensorError as error:
        raise ValueError(str(error)) from error
    # deserialize gives tensors alone; the metadata are read from the header: 8 bytes of length, then JSON.
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]
    head = json.loads(header["lowprec"])
    arrays = {}
    for name, kind in head["dtypes"].items():
        # A bytearray, so that the array is writable, as those of an .npz are.
        flat = np.frombuffer(bytearray(tensors[name]["data"]), dtype_of(kind))
        arrays[name] = flat.reshape(tensors[name]["shape"])
    # The format has no checksum of its own: a flipped bit in a tensor would be loaded as it is.
    if tensors.keys() != arrays.keys() or header["sha256"] != _digest(header["lowprec"], arrays):
        raise ValueError("its checksum is not that of its contents")
    return arrays, head["meta"]


def _plain(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return np.asarray(array) if array.dtype.name in NATIVE else as_codes(array)


def _digest(text: str, arrays: Mapping[str, npt.NDArray[Any]]) -> str:
    total = hashlib.sha256(text.encode())
    for name, array in arrays.items():
        # The shape too: two tensors of the same bytes in other shapes are different ones.
        total.update(f"{name}{array.shape}".encode())
        total.update(array.tobytes())
    return total.hexdigest()


def as_codes(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The array; where its dtype is not one of NumPy's, its bits as unsigned integers."""
    array = np.asarray(array)
    # isbuiltin is 2 for ml_dtypes: np.save writes those as raw bytes that np.load cannot give a type to.
    return array if array.dtype.isbuiltin == 1 else array.view(f"u{array.dtype.itemsize}")


def dtype_of(name: str) -> np.dtype[Any]:
    """The dtype of a name, NumPy's or ml_dtypes'."""
    return np.dtype(getattr(ml_dtypes, name)) if hasattr(ml_dtypes, name) else np.dtype(name)
