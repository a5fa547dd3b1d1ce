"""Where the elements of arrays of one shape lie: one contiguous run, or axes with a step in each of them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from lowprec.backends.cuda.records import MOST_AXES, STRIDES, Record


class Axis(NamedTuple):
    """Elements along an axis, and for each array the bytes from one to the next."""

    size: int
    steps: tuple[int, ...]


def merged_axes(shape: tuple[int, ...], *steps: tuple[int, ...]) -> list[Axis]:
    """The fewest axes that visit the elements of arrays in C order, outermost first; none for a single element."""
    axes: list[Axis] = []
    for size, *along in zip(shape, *steps, strict=True):
        # Never stepped along, so its steps join with anything.
        if size == 1:
            continue
        # Every axis costs each element a division on the GPU: those that all arrays walk as one are joined.
        if axes and axes[-1].steps == tuple(step * size for step in along):
            axes[-1] = Axis(axes[-1].size * size, tuple(along))
        else:
            axes.append(Axis(size, tuple(along)))
    return axes


def is_contiguous(axes: list[Axis], *item_bytes: int) -> bool:
    """Whether every array is one run of elements without gaps."""
    return not axes or (len(axes) == 1 and axes[0].steps == item_bytes)


def strides_record(axes: list[Axis]) -> Record:
    """The axes as `struct Strides` of storage.cuh.

    Raises:
        ValueError: more axes than the struct holds (CuPy has no such arrays).
    """
    refuse_more_axes(axes)
    record = np.zeros((), STRIDES)
    for place, axis in enumerate(axes):
        record["size"][place], (record["from"][place], record["to"][place]) = axis
    record["axes"] = len(axes)
    return record


def refuse_more_axes(axes: list[Axis]) -> None:
    """Raises a ValueError for more axes than the kernels' structs hold (CuPy has no such arrays)."""
    if len(axes) > MOST_AXES:
        raise ValueError(f"arrays of more than {MOST_AXES} axes are not supported, these have {len(axes)}")


def byte_range(array: Any) -> tuple[int, int]:
    """First byte and one past the last that a GPU array's elements occupy; equal where it has none."""
    start = end = int(array.data.ptr)
    if array.size == 0:
        return start, start
    for size, step in zip(array.shape, array.strides, strict=True):
        start += min(0, (size - 1) * step)
        end += max(0, (size - 1) * step)
    return start, end + int(array.itemsize)
