"""Arrays: memory aligned for the kernels, and digests that tell one array from another."""

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

LINE = 64  # bytes; kernels load whole cache lines


def aligned(size: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """A zeroed flat array that begins at a cache line."""
    raw = np.zeros(size * dtype.itemsize + LINE, np.uint8)
    shift = -raw.__array_interface__["data"][0] % LINE
    return raw[shift : shift + size * dtype.itemsize].view(dtype)


def words(array: NDArray[Any]) -> NDArray[Any]:
    """The same memory as unsigned integers, which NumPy moves fastest and for every format."""
    return array.view(np.dtype(f"u{array.dtype.itemsize}"))


def digest(array: NDArray[Any]) -> bytes:
    """A digest (16 bytes) of an array's elements, without its dtype and shape."""
    return hashlib.blake2b(array.tobytes(), digest_size=16).digest()
