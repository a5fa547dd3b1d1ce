"""Checkpoints in the safetensors format, which other programs read: arrays under their names, the rest as metadata."""

import hashlib
import json
from collections.abc import Mapping
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from ipu_core.train.codes import as_codes, dtype_of
from lowprec.extras import optional

Arrays = Mapping[str, npt.NDArray[Any]]
SUFFIX = ".safetensors"
NATIVE = ("bfloat16", "float8_e4m3fn", "float8_e5m2")  # of ml_dtypes' formats, which every version of the package knows


def write(file: IO[bytes], arrays: Arrays, meta: Mapping[str, Any]) -> None:
    """Writes the arrays and JSON values; what the format has no name for as unsigned integers.

    The metadata hold the dtypes, the values, and a SHA-256 over all, which the format lacks.

    Raises:
        ImportError: the package safetensors is not installed.
    """
    package = optional("safetensors.numpy", extra="safetensors")
    plain = {name: np.asarray(_plain(array), order="C") for name, array in arrays.items()}
    kinds = {name: array.dtype.name for name, array in arrays.items()}
    text = json.dumps({"dtypes": kinds, "meta": dict(meta)})
    file.write(package.save(plain, {"lowprec": text, "sha256": _digest(text, plain)}))


def read(data: bytes) -> tuple[dict[str, npt.NDArray[Any]], dict[str, Any]]:
    """The arrays and values of what `write` wrote.

    Raises:
        ImportError: the package safetensors is not installed.
        ValueError, LookupError, TypeError: it is another file, or a damaged one.
    """
    package = optional("safetensors", extra="safetensors")
    try:
        tensors = dict(package.deserialize(data))
    except package.SafetensorError as error:
        raise ValueError(str(error)) from error
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]
    head = json.loads(header["lowprec"])
    arrays = {}
    for name, kind in head["dtypes"].items():
        flat = np.frombuffer(bytearray(tensors[name]["data"]), dtype_of(kind))
        arrays[name] = flat.reshape(tensors[name]["shape"])
    if tensors.keys() != arrays.keys() or header["sha256"] != _digest(header["lowprec"], arrays):
        raise ValueError("its checksum is not that of its contents")
    return arrays, head["meta"]


def _plain(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return np.asarray(array) if array.dtype.name in NATIVE else as_codes(array)


def _digest(text: str, arrays: Arrays) -> str:
    total = hashlib.sha256(text.encode())
    for name, array in arrays.items():
        total.update(f"{name}{array.shape}".encode())
        total.update(array.tobytes())
    return total.hexdigest()
