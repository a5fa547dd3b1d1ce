"""Reductions over any axes, seen as a reduction over the middle axis of three (outer, terms, inner).

This decides which terms a sum has, in which order they are added, and the row and column of its random bits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from lowprec._caching import cached
from lowprec.types import Array

Axis = int | tuple[int, ...] | None


class Fold(NamedTuple):
    """The three groups of axes, kept, reduced, kept, of a reduction over an array of some shape.

    Attributes:
        before: kept axes before the last reduced one.
        terms: reduced axes, ascending; a sum's terms lie in C order over them.
        after: kept axes after the last reduced one.
        shape: lengths of these three groups, (outer, terms, inner).
        result: the shape of the result, reduced axes dropped or of length 1.
    """

    before: tuple[int, ...]
    terms: tuple[int, ...]
    after: tuple[int, ...]
    shape: tuple[int, int, int]
    result: tuple[int, ...]

    @property
    def in_order(self) -> bool:
        """Whether the three groups follow each other as the axes do."""
        return self.before == tuple(range(len(self.before)))

    def view(self, x: Array) -> Array:
        """x as (outer, terms, inner): a view where its strides allow one, else a copy."""
        if not self.in_order:
            x = x.transpose(*self.before, *self.terms, *self.after)
        # reshape copies only where no strides describe the shape; a caller who must not copy asks `is_view` first.
        return x.reshape(self.shape)

    def is_view(self, x: Array) -> bool:
        """Whether `view` copies nothing."""
        return (
            (x.flags.c_contiguous and self.in_order)
            # An array without elements is reshaped without a copy whatever its strides.
            or not x.size
            or all(one_stride(x, group) for group in (self.before, self.terms, self.after))
        )


def one_stride(x: Array, axes: tuple[int, ...]) -> bool:
    """Whether the elements along some axes, in C order, lie at equal distances."""
    step: int | None = None
    for axis in reversed(axes):
        # The stride of an axis of length 1 is never walked, and NumPy gives it any value.
        if x.shape[axis] != 1:
            if step is not None and x.strides[axis] != step:
                return False
            step = x.strides[axis] * x.shape[axis]
    return True


def fold(shape: tuple[int, ...], axis: Axis, keepdims: bool = False) -> Fold:
    """The Fold of a reduction over one axis, several, or (None) all.

    Raises:
        TypeError: an axis that is no integer; keepdims that is no truth value.
        ValueError: an axis that the shape does not have, or one given twice.
    """
    # Before the cache, which would only say that a list is unhashable.
    if not isinstance(axis, (int, tuple, np.integer)) and axis is not None:
        raise _no_axis(axis)
    if not isinstance(keepdims, (bool, np.bool_)):
        raise TypeError(f"keepdims must be True or False, not {keepdims!r}")
    return _fold(shape, axis, bool(keepdims))


@cached
def _fold(shape: tuple[int, ...], axis: Axis, keepdims: bool) -> Fold:
    axes = _axes(len(shape), axis)
    last = max(axes, default=-1)
    # Split at the last reduced axis: where one axis or neighbours are reduced, the three groups follow each other in
    # memory and the view copies nothing.
    before = tuple(i for i in range(last) if i not in axes)
    after = tuple(range(last + 1, len(shape)))
    lengths = [math.prod(shape[i] for i in group) for group in (before, axes, after)]
    result = (1 if i in axes else n for i, n in enumerate(shape) if keepdims or i not in axes)
    return Fold(before, axes, after, (lengths[0], lengths[1], lengths[2]), tuple(result))


def _no_axis(axis: object) -> TypeError:
    return TypeError(f"axis must be an integer, a tuple of integers or None, not {axis!r}")


def _axes(count: int, axis: Axis) -> tuple[int, ...]:
    """The axes, from 0 and ascending."""
    if axis is None:
        return tuple(range(count))
    given = axis if isinstance(axis, tuple) else (axis,)
    for one in given:
        if not isinstance(one, (int, np.integer)):
            raise _no_axis(axis)
        if not -count <= one < count:
            raise ValueError(f"axis {one} is out of bounds for an array of {count} axes")
    axes = sorted({int(one) % count for one in given})
    if len(axes) < len(given):
        raise ValueError(f"axis {axis!r} names an axis twice")
    return tuple(axes)


class Vertices(NamedTuple):
    """A view (v.., m, k, n) of an array, k the reduced terms, with all kept axes but two as vertex axes in front.

    Kept axes that do not lie at one stride cannot be joined without a copy; as vertex axes they need not be.

    Attributes:
        x: the view.
        row, column: of each vertex's first sum in the result folded to (outer, inner); they broadcast over v.
        perm: axes of the result (before, then after) in the order (v.., m, n).
        kept: the shape of the result, (before, then after).
    """

    x: Array
    row: int | Array
    column: int | Array
    perm: tuple[int, ...]
    kept: tuple[int, ...]


def vertices(x: Array, how: Fold) -> Vertices | None:
    """The Vertices of x, whose shape is the one `how` was made for; None where its terms do not lie at one stride."""
    if not one_stride(x, how.terms):
        return None
    terms = x.transpose(*how.terms, *how.before, *how.after)
    joined = terms.reshape(how.shape[1], *terms.shape[len(how.terms) :])
    b, a = len(how.before), len(how.after)
    # Without kept axes before or after, m or n is an axis of length 1.
    joined = joined.reshape(joined.shape[0], *joined.shape[1 : 1 + b] or (1,), *joined.shape[1 + b :] or (1,))
    b, a = max(b, 1), max(a, 1)
    front = (*range(b - 1), *range(b, b + a - 1))
    kept = joined.shape[1:]
    perm = (*front, b - 1, b + a - 1)
    moved = joined.transpose(*(1 + i for i in front), b, 0, b + a)
    # Numbered as if the kept axes were joined in C order: random bits must not tell a view from a copy.
    steps = [math.prod(kept[i + 1 : b]) for i in range(b - 1)], [math.prod(kept[i + 1 :]) for i in range(b, b + a - 1)]
    row = _numbers(kept[: b - 1], steps[0], a - 1)
    column = _numbers(kept[b : b + a - 1], steps[1], 0)
    return Vertices(moved, row, column, perm, kept)


def _numbers(shape: tuple[int, ...], steps: list[int], behind: int) -> int | Array:
    """An array of `shape` whose element is the sum of index * step over its axes, then `behind` axes of length 1."""
    if not shape:
        return 0
    total = np.zeros(shape, np.int64)
    for axis, step in enumerate(steps):
        total += step * np.arange(shape[axis], dtype=np.int64).reshape(-1, *(1,) * (len(shape) - axis - 1))
    return total.reshape(*shape, *(1,) * behind)


def restrided(shape: Sequence[int], strides: Sequence[int], wanted: Sequence[int]) -> tuple[int, ...] | None:
    """Strides under which the elements, in C order, have another shape of equal size; None where only a copy has it.

    What numpy.reshape(copy=False) does, which NumPy 2.0 lacks, as arrays of later ones no longer take a new `.shape`.
    """
    if tuple(wanted) == tuple(shape):
        return tuple(strides)
    if 0 in shape:
        # No element is ever read: any strides do, and those of C order are what NumPy gives.
        return tuple(math.prod(max(1, length) for length in wanted[axis + 1 :]) for axis in range(len(wanted)))
    runs = [(1, 1)]  # axes that can be walked as one: length and stride, the first is a bound
    for length, stride in zip(shape, strides, strict=True):
        if runs[-1][1] == length * stride and len(runs) > 1:
            runs[-1] = runs[-1][0] * length, stride
        # An axis of length 1 joins any run: its stride is never walked.
        elif length != 1:
            runs.append((length, stride))
    left, step, found = 1, runs[-1][1], []
    for length in reversed(wanted):
        if left == 1 and length != 1:
            left, step = runs.pop()
        # Else the wanted axis would begin in one run and end in the next, which has another stride.
        if left % length:
            return None
        found.append(step)
        step, left = step * length, left // length
    return tuple(reversed(found))
