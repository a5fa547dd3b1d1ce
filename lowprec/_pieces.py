"""Large arrays taken a piece at a time, so that looking at one needs no second copy of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from lowprec.types import Array

PIECE = 1 << 16
"""Elements of a piece: half a mebibyte of float64, which a core's own cache holds."""


def pieces(
    *arrays: Array, dtype: npt.DTypeLike | None = None, size: int = PIECE
) -> Iterator[tuple[int, tuple[Array, ...]]]:
    """Runs of at most `size` elements, in C order, of arrays broadcast together.

    Args:
        arrays: of any layout.
        dtype: what the elements are given as; None: as they are.

    Yields:
        The index of the first element, and one-dimensional arrays that hold it until the next are asked for.
    """
    how: Any = [None if dtype is None else np.dtype(dtype)] * len(arrays)
    flags: Any = ["buffered", "external_loop", "zerosize_ok"]
    reading: Any = [["readonly"]] * len(arrays)
    begin = 0
    # In C order whatever the layout: the index that is yielded decides random bits.
    with np.nditer(arrays, flags, reading, how, order="C", casting="unsafe", buffersize=size) as walk:
        for part in walk:
            runs = part if isinstance(part, tuple) else (part,)
            yield begin, runs
            begin += runs[0].size


def in_pieces(function: Callable[..., npt.NDArray[np.float64]], *arrays: Array) -> npt.NDArray[np.float64]:
    """An elementwise function of arrays broadcast together, a piece at a time; it is given and gives float64."""
    result = np.empty(np.broadcast_shapes(*(x.shape for x in arrays)))
    flat = result.reshape(-1)
    for begin, runs in pieces(*arrays, dtype=np.float64):
        flat[begin : begin + runs[0].size] = function(*runs)
    return result
