"""Reductions over any axes as one over the middle of three: which terms a sum has, and in which order."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from lowprec._caching import cached
from lowprec.types import Array

Axis = int | tuple[int, ...] | None


class Fold(NamedTuple):
    """How an array of some shape is seen so that its reduced axes come together.

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
        return x.reshape(self.shape)

    def is_view(self, x: Array) -> bool:
        """Whether `view` copies nothing."""
        return (
            (x.flags.c_contiguous and self.in_order)
            or not x.size
            or all(one_stride(x, group) for group in (self.before, self.terms, self.after))
        )


def one_stride(x: Array, axes: tuple[int, ...]) -> bool:
    """Whether the elements along some axes, in C order, lie at equal distances."""
    step: int | None = None
    for axis in reversed(axes):
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
    if not isinstance(axis, (int, tuple, np.integer)) and axis is not None:
        raise _no_axis(axis)
    if not isinstance(keepdims, (bool, np.bool_)):
        raise TypeError(f"keepdims must be True or False, not {keepdims!r}")
    return _fold(shape, axis, bool(keepdims))


@cached
def _fold(shape: tuple[int, ...], axis: Axis, keepdims: bool) -> Fold:
    axes = _axes(len(shape), axis)
    last = max(axes, default=-1)
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
    """An array as (v.., m, k, n): kept axes but two in front, so that nothing is copied.

    Attributes:
        x: the view.
        row, column: number of each vertex's first row and column in the folded result, as they broadcast over v.
        perm: axes of the result (before, then after) in the order (v.., m, n).
        kept: the shape of the result, (before, then after).
    """

    x: Array
    row: int | Array
    column: int | Array
    perm: tuple[int, ...]
    kept: tuple[int, ...]


def vertices(x: Array, how: Fold) -> Vertices | None:
    """x (of the shape that `how` was made for) without a copy; None where its terms do not lie at one stride."""
    if not one_stride(x, how.terms):
        return None
    terms = x.transpose(*how.terms, *how.before, *how.after)
    joined = terms.reshape(how.shape[1], *terms.shape[len(how.terms) :])
    b, a = len(how.before), len(how.after)
    joined = joined.reshape(joined.shape[0], *joined.shape[1 : 1 + b] or (1,), *joined.shape[1 + b :] or (1,))
    b, a = max(b, 1), max(a, 1)
    front = (*range(b - 1), *range(b, b + a - 1))
    kept = joined.shape[1:]
    perm = (*front, b - 1, b + a - 1)
    moved = joined.transpose(*(1 + i for i in front), b, 0, b + a)
    steps = [math.prod(kept[i + 1 : b]) for i in range(b - 1)], [math.prod(kept[i + 1 :]) for i in range(b, b + a - 1)]
    row = _numbers(kept[: b - 1], steps[0], a - 1)
    column = _numbers(kept[b : b + a - 1], steps[1], 0)
    return Vertices(moved, row, column, perm, kept)


def _numbers(shape: tuple[int, ...], steps: list[int], behind: int) -> int | Array:
    """The sum of index times step over some axes, with `behind` axes of length 1 behind them."""
    if not shape:
        return 0
    total = np.zeros(shape, np.int64)
    for axis, step in enumerate(steps):
        total += step * np.arange(shape[axis], dtype=np.int64).reshape(-1, *(1,) * (len(shape) - axis - 1))
    return total.reshape(*shape, *(1,) * behind)


def restrided(shape: Sequence[int], strides: Sequence[int], wanted: Sequence[int]) -> tuple[int, ...] | None:
    """Strides of the same elements in C order under another shape of as many; None where there are none.

    What numpy.reshape(copy=False) does, which NumPy 2.0 lacks, as arrays of later ones no longer take a new `.shape`.
    """
    if tuple(wanted) == tuple(shape):
        return tuple(strides)
    if 0 in shape:
        return tuple(math.prod(max(1, length) for length in wanted[axis + 1 :]) for axis in range(len(wanted)))
    runs = [(1, 1)]  # axes that can be walked as one: length and stride, the first is a bound
    for length, stride in zip(shape, strides, strict=True):
        if runs[-1][1] == length * stride and len(runs) > 1:
            runs[-1] = runs[-1][0] * length, stride
        elif length != 1:
            runs.append((length, stride))
    left, step, found = 1, runs[-1][1], []
    for length in reversed(wanted):
        if left == 1 and length != 1:
            left, step = runs.pop()
        if left % length:
            return None
        found.append(step)
        step, left = step * length, left // length
    return tuple(reversed(found))
