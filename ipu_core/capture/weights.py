"""Weights between torch and here: how they lie, and files of the safetensors format, which both read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ipu_core.ir.block import Array
from ipu_core.train.checkpoint import replacing
from lowprec.extras import optional

WEIGHTS = {"linear": (1, 0), "conv2d": (2, 3, 1, 0)}
"""Products by their weight's axes as they lie here: a weight that lies as its product takes it is never moved."""


def inverse(order: Sequence[int]) -> list[int]:
    """The order of axes that undoes another."""
    return [order.index(axis) for axis in range(len(order))]


def as_array(tensor: Any) -> Array:
    """A tensor or array of numbers, copied; floats of any format as float32."""
    if hasattr(tensor, "detach"):
        tensor = tensor.detach()
        tensor = (tensor.float() if tensor.is_floating_point() else tensor).numpy()
    array = np.array(tensor)
    return array if array.dtype.kind in "iub" else array.astype(np.float32)


def write_weights(path: str | Path, arrays: Mapping[str, Array]) -> None:
    """Writes arrays by name as packages of models for torch read them.

    Raises:
        ImportError: the package safetensors is not installed.
        OSError: the file cannot be written.
    """
    package = optional("safetensors.numpy", extra="safetensors")
    plain = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    with replacing(Path(path)) as draft:
        draft.write_bytes(package.save(plain, {"format": "pt"}))


def read_weights(path: str | Path) -> dict[str, Any]:
    """The tensors of a safetensors file by name.

    Raises:
        ImportError: the package safetensors is not installed.
        ValueError: it is no such file.
    """
    package = optional("safetensors.torch", extra="safetensors")
    try:
        return dict(package.load(Path(path).read_bytes()))
    except optional("safetensors", extra="safetensors").SafetensorError as error:
        raise ValueError(f"{path} is no safetensors file that can be read: {error}") from error
