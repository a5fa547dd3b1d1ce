"""Sets of elements as contiguous runs: what a view touches, whatever the order of its axes."""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from ipu_core.chip.integers import Ints


def canonical(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, tuple[tuple[int, int], ...]]:
    """The same set of elements with ascending strides: (shift of the offset, ((length, stride), ..) outermost first).

    Axes of length 1 or stride 0 vanish, negative strides are turned round, axes that continue each other join. An empty
    view has one axis of length 0.
    """
    if 0 in shape:
        return 0, ((0, 1),)
    shift = sum((n - 1) * s for n, s in zip(shape, strides, strict=True) if s < 0)
    axes = sorted(((abs(s), n) for n, s in zip(shape, strides, strict=True) if n > 1 and s != 0), reverse=True)
    joined: list[tuple[int, int]] = []
    for stride, length in axes:
        if joined and joined[-1][1] == stride * length:
            joined[-1] = (joined[-1][0] * length, stride)
        else:
            joined.append((length, stride))
    return shift, tuple(joined)


def runs_of(shape: Sequence[int], strides: Sequence[int]) -> tuple[Ints, Ints]:
    """Disjoint ascending runs (starts, lengths), relative to the view's offset, of the elements a view touches."""
    shift, axes = canonical(shape, strides)
    starts, lengths = axis_runs(axes)
    return starts + shift, lengths


@lru_cache(maxsize=256)
def axis_runs(axes: tuple[tuple[int, int], ...]) -> tuple[Ints, Ints]:
    """Runs of the axes that `canonical` gives."""
    if axes and axes[0][0] == 0:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    length = axes[-1][0] if axes and axes[-1][1] == 1 else 1
    starts = np.zeros(1, np.int64)
    for count, stride in axes[:-1] if length > 1 else axes:
        starts = (starts[:, None] + np.arange(count, dtype=np.int64) * stride).ravel()
    lengths = np.full(starts.size, length, np.int64)
    # Windows: axes whose strides are shorter than what lies within give runs that touch or overlap.
    if (np.diff(starts) <= length).any():
        starts, lengths = merge_runs(starts, lengths)
    return starts, lengths


def merge_runs(starts: Ints, lengths: Ints) -> tuple[Ints, Ints]:
    """The union of runs as disjoint ascending runs that do not touch."""
    if not starts.size:
        return starts, lengths
    order = np.argsort(starts, kind="stable")
    begin = starts[order]
    # The furthest end so far, not the last run's: a long run may reach over several behind it.
    reach = np.maximum.accumulate(begin + lengths[order])
    first = np.flatnonzero(np.concatenate([[True], begin[1:] > reach[:-1]]))
    last = np.append(first[1:] - 1, begin.size - 1)
    return begin[first], reach[last] - begin[first]
