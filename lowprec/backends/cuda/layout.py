"""Where the elements of two arrays of one shape lie: one contiguous run, or axes with a step in either array."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from lowprec.backends.cuda.records import MOST_AXES, STRIDES, Record


class Axis(NamedTuple):
    """Elements along an axis, and bytes from one to the next in either array."""

    size: int
    from_step: int
    to_step: int


def merged_axes(shape: tuple[int, ...], from_steps: tuple[int, ...], to_steps: tuple[int, ...]) -> list[Axis]:
    """The fewest axes that visit the elements in C order, outermost first; none for a single element."""
    axes: list[Axis] = []
    for axis in map(Axis, shape, from_steps, to_steps):
        # Never stepped along, so its steps join with anything.
        if axis.size == 1:
            continue
        # Every axis costs each element a division on the GPU: those that either array walks as one are joined.
        if axes and axes[-1][1:] == (axis.from_step * axis.size, axis.to_step * axis.size):
            axes[-1] = axis._replace(size=axes[-1].size * axis.size)
        else:
            axes.append(axis)
    return axes


def is_contiguous(axes: list[Axis], from_bytes: int, to_bytes: int) -> bool:
    """Whether both arrays are one run of elements without gaps."""
    return not axes or (len(axes) == 1 and axes[0][1:] == (from_bytes, to_bytes))


def strides_record(axes: list[Axis]) -> Record:
    """The axes as `struct Strides` of storage.cuh.

    Raises:
        ValueError: more axes than the struct holds (CuPy has no such arrays).
    """
    if len(axes) > MOST_AXES:
        raise ValueError(f"arrays of more than {MOST_AXES} axes are not supported, these have {len(axes)}")
    record = np.zeros((), STRIDES)
    for name, values in zip(("size", "from", "to"), zip(*axes, strict=True), strict=False):
        record[name][: len(axes)] = values
    record["axes"] = len(axes)
    return record


def byte_range(array: Any) -> tuple[int, int]:
    """First byte and one past the last that a GPU array's elements occupy; equal where it has none."""
    start = end = int(array.data.ptr)
    if array.size == 0:
        return start, start
    for size, step in zip(array.shape, array.strides, strict=True):
        start += min(0, (size - 1) * step)
        end += max(0, (size - 1) * step)
    return start, end + int(array.itemsize)
