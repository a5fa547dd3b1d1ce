"""Other ways to a product of float16 matrices with a float16 accumulator rounded to nearest after every 16 products."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
GROUP = 16


def chunk_loop(a: Array, b: Array) -> Array:
    """As a NumPy user writes it: sgemm of 16 columns at a time (in BLAS's order of additions)."""
    a32, b32 = a.astype(np.float32), b.astype(np.float32)
    total = np.zeros((len(a), b.shape[1]), np.float16)
    for k in range(0, a.shape[1], GROUP):
        total = (total.astype(np.float32) + a32[:, k : k + GROUP] @ b32[k : k + GROUP]).astype(np.float16)
    return total


def numba_kernel(a: Array, b: Array) -> Callable[[], Array]:
    """Compiled loops over a row of sums, rounded to 11 bits by Veltkamp's splitting: right for normal numbers alone."""
    numba: Any = importlib.import_module("numba")

    @numba.njit
    def product(a: Array, b: Array, out: Array) -> None:
        total = np.empty(b.shape[1], np.float32)
        for i in range(a.shape[0]):
            total[:] = 0
            for first in range(0, a.shape[1], GROUP):
                for k in range(first, min(first + GROUP, a.shape[1])):
                    factor = a[i, k]
                    for j in range(total.size):
                        total[j] += factor * b[k, j]
                for j in range(total.size):
                    high = total[j] * np.float32(8193)
                    total[j] = high - (high - total[j])
            out[i] = total

    a32, b32, out = a.astype(np.float32), b.astype(np.float32), np.empty((len(a), b.shape[1]), np.float32)

    def call() -> Array:
        product(a32, b32, out)
        return out

    return call


def qtorch_loop(a: Array, b: Array) -> Callable[[], Array]:
    """The chunk loop with torch's sgemm and qtorch's rounding."""
    torch: Any = importlib.import_module("torch")
    quantize: Any = importlib.import_module("qtorch.quant").float_quantize
    torch.set_num_threads(1)
    left, right = (torch.from_numpy(x.astype(np.float32)) for x in (a, b))

    def call() -> Array:
        total = torch.zeros(len(a), b.shape[1])
        for k in range(0, a.shape[1], GROUP):
            total = quantize(total + left[:, k : k + GROUP] @ right[k : k + GROUP], 5, 10, rounding="nearest")
        return np.asarray(total.numpy())

    return call


def peers(a: Array, b: Array) -> tuple[dict[str, Callable[[], Array]], list[str]]:
    """The calls of those that are installed, by name, and what is missing."""
    found: dict[str, Callable[[], Array]] = {"numpy chunk loop": lambda: chunk_loop(a, b)}
    missing = []
    for name, make in {"numba kernel": numba_kernel, "qtorch loop": qtorch_loop}.items():
        try:
            found[name] = make(a, b)
        except ImportError as error:
            missing.append(f"{name} ({error})")
    return found, missing
