"""Hadamard rotations, which spread outliers over a block before it is quantised: `hadamard`.

If both operands of a product are rotated alike along the summed axis, the product stays the same, but for rounding. So
used for 4-bit training by Tseng, Yu and Park (arXiv 2502.20586, 2025) and NVIDIA (arXiv 2509.25149, 2025).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from lowprec import backends
from lowprec.arrays import whole_array
from lowprec.backends.owner import is_cupy
from lowprec.checks import truth
from lowprec.foreign import takes_foreign
from lowprec.processor import in_default_state
from lowprec.random import KeyLike
from lowprec.types import Array
from lowprec.values.formats import float32, format_of_dtype
from lowprec.values.keys import TAGS, key_value

MANY = 64
"""With fewer elements behind the rotated axis NumPy's loops along them are short and slow (see `_rotate`)."""


@takes_foreign
@in_default_state
def hadamard(
    x: npt.ArrayLike, axis: int = -1, *, block: int | None = None, key: KeyLike | None = None, inverse: bool = False
) -> Array:
    """Blocks along an axis times a Hadamard matrix over the root of its size, with random signs if there is a key.

    The matrix is Sylvester's: H(1) = 1, H(2 n) = [[H(n), H(n)], [H(n), -H(n)]], symmetric and orthogonal. With a key
    element k of the axis is first multiplied by a sign of its own, the same for all lines along the axis; `inverse`
    multiplies by the signs last, and so undoes the rotation.

    In float32 (float64 of float64): for h = 1, 2, 4, .. below the block's size, elements i and i + h of every run of
    2 h become their sum and their difference, each rounded to nearest even; at last each is multiplied by
    1 / sqrt(block), rounded, which is a power of two where the block is a power of four. NaN and infinities spread over
    a block (as everywhere, a NaN is the positive quiet one).

    Args:
        x: float64, float32 or a narrower float array with at least one axis.
        axis: the axis that blocks lie along.
        block: elements of a block, a power of two that divides the axis; None: all of the axis.
        key: of the signs (`random_signs`); None: there are none.
        inverse: whether to undo the rotation of the same arguments.

    Returns:
        A new array of x's shape, in float32, or in float64 of float64.

    Raises:
        TypeError: no floating-point array, or an axis that is no integer.
        ValueError: no such axis, or a block that is no power of two or does not divide it.
    """
    array, inverse = whole_array(x), truth("inverse", inverse)
    fmt = format_of_dtype(array.dtype)
    if fmt is None:
        raise TypeError(f"hadamard takes floating-point arrays, not {array.dtype}")
    if array.ndim == 0:
        raise ValueError("hadamard needs an axis, and x is 0-d")
    axis = axis_number(axis, array.ndim)
    dtype = np.dtype(np.float32 if float32.contains(fmt) else np.float64)
    length = array.shape[axis]
    size = block_size(length, block)
    drawn = None if key is None else random_signs(key, length)
    if is_cupy(array):
        return backends.load("cuda").rotated(array, axis, size, drawn, inverse, dtype)  # type: ignore[no-any-return]
    signs = None if drawn is None else drawn.astype(dtype).reshape(-1, *[1] * (array.ndim - axis - 1))
    with np.errstate(over="ignore", invalid="ignore"):
        # A copy always: the rotation is done in place, and x is the caller's.
        values = np.array(array, dtype, order="C")
        if signs is not None and not inverse:
            values *= signs
        if values.size:
            _rotate(values.reshape(-1, size, math.prod(array.shape[axis + 1 :])))
        # Once at the end, not 1/sqrt(2) at every step: one rounding, and none where the block is a power of four.
        values *= dtype.type(1 / math.sqrt(size))
        if signs is not None and inverse:
            values *= signs
    np.copyto(values, np.nan, where=np.isnan(values))  # processors differ in the sign of those that they make
    return values


def random_signs(key: KeyLike, size: int) -> npt.NDArray[np.float32]:
    """1 or -1 for each of `size` elements: one random bit of its index, under a tag that nothing else has."""
    bits = np.empty(size, np.uint16)
    backends.current().random_words(TAGS["signs"], 1, key_value(key), 0, bits)
    # By the index along the axis alone: all lines turn alike, and so does the other operand of a product.
    return np.float32(1) - np.float32(2) * bits


def axis_number(axis: int, count: int) -> int:
    """The axis of so many, from 0 on.

    Raises:
        TypeError: no integer.
        ValueError: there is no such axis.
    """
    if not isinstance(axis, (int, np.integer)) or isinstance(axis, bool):
        raise TypeError(f"axis must be an integer, not {axis!r}")
    if not -count <= axis < count:
        raise ValueError(f"there is no axis {axis} in a shape of {count} axes")
    return int(axis) % count


def block_size(length: int, block: int | None) -> int:
    """Elements of a block of an axis.

    Raises:
        ValueError: no power of two, or it does not divide the axis.
    """
    size: Any = length if block is None else block
    if not isinstance(size, (int, np.integer)) or isinstance(size, bool) or size < 1 or size & (size - 1):
        raise ValueError(f"a Hadamard block holds a power of two of elements, not {size!r}; give block=")
    if length % size:
        raise ValueError(f"blocks of {size} do not divide an axis of {length}")
    return int(size)


def _rotate(blocks: Array) -> None:
    """Rotates blocks (count, size, width) in place along the middle axis, without signs and the final factor."""
    if (
        blocks.shape[-1] < MANY and len(blocks) > 1
    ):  # runs of few neighbours are slow in NumPy: blocks become neighbours
        turned = np.ascontiguousarray(np.moveaxis(blocks, 0, -1))
        _butterflies(turned.reshape(1, len(turned), -1))
        blocks[...] = np.moveaxis(turned, -1, 0)
    else:
        _butterflies(blocks)


def _butterflies(blocks: Array) -> None:
    """The sums and differences of all log2(size) steps, in place, of blocks (count, size, width)."""
    count, size, width = blocks.shape
    half = 1
    while half < size:
        pairs = blocks.reshape(count * size // (2 * half), 2, half * width)
        first, second = pairs[:, 0], pairs[:, 1]
        # Kept apart until the sum is written: both read the same two values.
        difference = first - second
        first += second
        second[...] = difference
        half *= 2
