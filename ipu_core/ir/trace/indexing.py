"""NumPy's basic indexing as one slice and one reshape."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np


class Selection(NamedTuple):
    """What an index takes of an array: one (start, stop, step) per axis, and the shape of the result."""

    bounds: tuple[tuple[int, int, int], ...]
    shape: tuple[int, ...]


def select(shape: tuple[int, ...], index: Any) -> Selection:
    """What an index of whole numbers, slices with a positive step, None and ... takes of an array.

    Raises:
        TypeError: any other index.
        ValueError: a number outside its axis, too many indices, or a slice that goes backwards.
    """
    entries = list(index) if isinstance(index, tuple) else [index]
    if any(not (e is None or e is Ellipsis or isinstance(e, (int, np.integer, slice))) for e in entries):
        raise TypeError(
            f"cannot index with {index!r}: use whole numbers, slices, None, ... or one int32 array; "
            "np.take and np.take_along_axis pick along an axis"
        )
    used = sum(e is not None and e is not Ellipsis for e in entries)
    if used > len(shape):
        raise ValueError(f"{used} indices for the shape {shape}")
    place = entries.index(Ellipsis) if Ellipsis in entries else len(entries)
    entries[place : place + 1] = [slice(None)] * (len(shape) - used)
    bounds: list[tuple[int, int, int]] = []
    new: list[int] = []
    for entry in entries:
        if entry is None:
            new.append(1)
            continue
        size = shape[len(bounds)]
        start, stop, step = _bounds(entry, size)
        if step < 1:
            raise ValueError(f"a slice of a traced value must go forwards, not by {step}: np.flip(x, axis) turns it")
        if not isinstance(entry, slice) and not 0 <= start < size:
            raise ValueError(f"index {entry} is outside an axis of length {size} (shape {shape})")
        bounds.append((start, stop, step))
        if isinstance(entry, slice):
            new.append(-(-(stop - start) // step))
    return Selection(tuple(bounds), tuple(new))


def _bounds(entry: Any, size: int) -> tuple[int, int, int]:
    if isinstance(entry, slice):
        start, stop, step = entry.indices(size)
        return start, max(start, stop), step
    start = int(entry) + size if entry < 0 else int(entry)
    return start, start + 1, 1
