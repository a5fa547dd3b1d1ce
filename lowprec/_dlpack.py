"""Arrays of other libraries in, through DLPack, in the narrow dtypes that NumPy's own importer refuses too.

The structures are those of dlpack.h (DLManagedTensor, the unversioned capsule named "dltensor").
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from lowprec.types import Array
from lowprec.values.formats import formats

CPU = 1  # kDLCPU
# Codes of dlpack.h 1.1. Its types of 6 and 4 bits (15 to 17) are left out: ml_dtypes stores each in a byte.
NARROW: Mapping[int, str] = MappingProxyType(
    {
        4: "bfloat16",
        7: "float8_e3m4",
        8: "float8_e4m3",
        9: "float8_e4m3b11fnuz",
        10: "float8_e4m3fn",
        11: "float8_e4m3fnuz",
        12: "float8_e5m2",
        13: "float8_e5m2fnuz",
        14: "float8_e8m0fnu",
    }
)
"""DLDataTypeCode -> the format whose storage it is."""


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),  # in elements; null: C order
        ("byte_offset", ctypes.c_uint64),
    )


PLAIN: Mapping[int, str] = MappingProxyType({0: "int", 1: "uint", 2: "float"})
"""DLDataTypeCode -> NumPy's name of such a dtype, without its bits."""


def from_dlpack(x: Any, *, writable: bool = False) -> Array:
    """An object with `__dlpack__` as an array that sees the same memory.

    Args:
        x: the object.
        writable: whether the array must be one to write to, which the library must allow.

    Raises:
        TypeError: the object lives on a device other than the CPU, or its dtype has no NumPy or ml_dtypes counterpart.
        BufferError: the library refuses (torch does for a tensor that requires a gradient).
    """
    device = int(x.__dlpack_device__()[0])
    if device != CPU:
        raise TypeError(f"{type(x).__name__} lives on DLPack device {device}, not on the CPU; move it there first")
    # Without max_version a library gives the unversioned capsule, whose struct is written down here.
    capsule = x.__dlpack__()
    tensor = _tensor(capsule)
    # Before numpy.from_dlpack, which knows none of these.
    if tensor.code in NARROW and tensor.lanes == 1:
        return _view(capsule, tensor, formats[NARROW[tensor.code]].dtype, writable)
    # numpy.from_dlpack gives such a capsule's memory as a read-only array.
    if writable and tensor.code in PLAIN and tensor.lanes == 1:
        return _view(capsule, tensor, np.dtype(f"{PLAIN[tensor.code]}{tensor.bits}"), writable)
    try:
        return np.from_dlpack(x)
    except (RuntimeError, BufferError) as error:
        raise TypeError(
            f"{type(x).__name__} holds DLPack type code {tensor.code} of {tensor.bits} bits and {tensor.lanes} lanes, "
            f"which has no NumPy or ml_dtypes counterpart ({error})"
        ) from error


def _tensor(capsule: object) -> _Tensor:
    """The DLTensor a capsule points to; valid while the capsule lives."""
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    return _Tensor.from_address(pointer(capsule, b"dltensor"))


def _view(capsule: object, tensor: _Tensor, dtype: np.dtype[Any] | None, writable: bool) -> Array:
    """The tensor's elements where they lie. The capsule, not consumed, frees the tensor when the array is gone."""
    shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
    size = np.dtype(dtype).itemsize
    if 0 in shape:
        # A tensor without elements may have no memory at all.
        return np.empty(shape, dtype)
    if tensor.strides:
        strides = tuple(tensor.strides[i] * size for i in range(tensor.ndim))
    else:
        strides = tuple(size * math.prod(shape[i + 1 :]) for i in range(tensor.ndim))
    # The view starts at the lowest address; negative strides begin at its end.
    low = sum(min(0, stride * (n - 1)) for stride, n in zip(strides, shape, strict=True))
    high = sum(max(0, stride * (n - 1)) for stride, n in zip(strides, shape, strict=True)) + size
    # No more than from the lowest to the highest element: what lies beyond is not the tensor's.
    memory = (ctypes.c_char * (high - low)).from_address(tensor.data + tensor.byte_offset + low)
    memory.capsule = capsule  # which lives as long as what is made of this memory
    view = np.ndarray(shape, dtype, memory, -low, strides)
    view.flags.writeable = writable
    return view
