"""Weights between torch and here: how they lie, and files of the safetensors format, which both read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np

from ipu_core.ir.block import Array
from ipu_core.train.checkpoint import replacing
from lowprec.checks import shown
from lowprec.extras import optional

WEIGHTS = {"linear": (1, 0), "conv2d": (2, 3, 1, 0)}
"""Products by their weight's axes as they lie here: a weight that lies as its product takes it is never moved."""


def shown_module(given: Any) -> str:
    """What was given in the place of a module, in words; a state_dict and a class with their cure."""
    if isinstance(given, Mapping) and given and all(hasattr(x, "shape") for x in given.values()):
        return f"a state_dict of {len(given)} tensors: make the module and module.load_state_dict(...) it"
    if isinstance(given, type):
        return f"the class {given.__name__}: {given.__name__}(...) makes one"
    if isinstance(given, FunctionType):
        return f"{shown(given)}: a class derived from it calls the function in its forward"
    return shown(given)


def inverse(order: Sequence[int]) -> list[int]:
    """The order of axes that undoes another."""
    return [order.index(axis) for axis in range(len(order))]


def as_array(tensor: Any, *, wide: bool = False) -> Array:
    """A tensor or array of numbers, copied; floats of any format as float32, or as float64."""
    if hasattr(tensor, "detach"):
        tensor = tensor.detach()
        # NumPy has no bfloat16
        tensor = (tensor.double() if wide else tensor.float()).numpy() if tensor.is_floating_point() else tensor.numpy()
    array = np.array(tensor)
    return array if array.dtype.kind in "iub" else array.astype(np.float64 if wide else np.float32)


def as_floats(tensor: Any, *, wide: bool) -> Array:
    """A tensor of floats as an array of float32 or float64, in its own memory where it is of that."""
    tensor = tensor.detach()
    return np.asarray((tensor.double() if wide else tensor.float()).numpy())


def tensors_of(torch: Any, module: Any) -> dict[str, Any]:
    """The parameters and buffers of a module by name, tied ones under each.

    Raises:
        TypeError: no module.
    """
    if not isinstance(module, torch.nn.Module):
        raise TypeError(f"weights are written to a torch.nn.Module, not to {shown_module(module)}")
    return {**dict(module.named_parameters(remove_duplicate=False)), **dict(module.named_buffers())}


def write_tensors(torch: Any, module: Any, targets: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
    """Writes arrays to the tensors of a module that have their names: all of them, or none where one does not fit.

    Raises:
        ValueError: a name that is not there, or there in another shape.
    """
    for name, array in arrays.items():  # all are looked at before any is written
        if name not in targets or tuple(targets[name].shape) != array.shape:
            found = f"has {name} of shape {tuple(targets[name].shape)}" if name in targets else f"has no {name}"
            raise ValueError(f"the {type(module).__name__} given {found}, the one that was captured {array.shape}")
    with torch.no_grad():
        for name, array in arrays.items():
            targets[name].copy_(torch.from_numpy(np.array(array)))


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
    # torch's reader: NumPy has no bfloat16
    package = optional("safetensors.torch", extra="safetensors")
    try:
        return dict(package.load(Path(path).read_bytes()))
    except optional("safetensors", extra="safetensors").SafetensorError as error:
        raise ValueError(f"{path} is no safetensors file that can be read: {error}") from error
