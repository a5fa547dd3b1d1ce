"""A reduction over any axes as one over the middle of (outer, terms, inner): the order in which its terms are added."""

from __future__ import annotations

import math
from typing import NamedTuple

from ipu_core.ir.block import Array


class Reduction(NamedTuple):
    """How to see an array so that its reduced axes come together.

    Attributes:
        perm: kept axes before the last reduced one, the reduced axes, and the kept axes after it.
        shape: (outer, terms, inner) of the transposed array.
    """

    perm: tuple[int, ...]
    shape: tuple[int, int, int]


def reduction(shape: tuple[int, ...], axes: tuple[int, ...]) -> Reduction:
    """The view that a sum or maximum over some axes is made on."""
    last = max(axes, default=-1)
    outer = tuple(axis for axis in range(last) if axis not in axes)
    inner = tuple(range(last + 1, len(shape)))
    sizes = [math.prod(shape[axis] for axis in group) for group in (outer, axes, inner)]
    return Reduction((*outer, *axes, *inner), (sizes[0], sizes[1], sizes[2]))


def folded(x: Array, axes: tuple[int, ...]) -> Array:
    """The array as (outer, terms, inner): a view where its strides allow one, else a copy."""
    perm, shape = reduction(x.shape, axes)
    return x.transpose(perm).reshape(shape)
