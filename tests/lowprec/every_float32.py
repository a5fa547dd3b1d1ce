"""All 2^32 float32 numbers in pieces: tests over them are cut into parts, so that a run shows how far it has come."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

PARTS = 16
CHUNK = 1 << 20  # numbers held at once: 4 MiB


def numbers(part: int, parts: int = PARTS) -> Iterator[npt.NDArray[np.float32]]:
    """The float32 numbers of one of the equal parts of all bit patterns, in arrays of CHUNK."""
    size = (1 << 32) // parts
    for start in range(part * size, (part + 1) * size, CHUNK):
        yield np.arange(start, start + CHUNK, dtype=np.uint32).view(np.float32)
