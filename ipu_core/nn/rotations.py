"""Hadamard rotations as products of a model: outliers are spread over a block before an operand is rounded."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from ipu_core.ir.trace.array_moves import swapaxes
from ipu_core.ir.trace.values import Value, elementwise, matmul, reshape, shape_of
from ipu_core.nn.operations import table_like
from lowprec.checks import truth
from lowprec.random import KeyLike
from lowprec.scaling.rotations import axis_number, block_size, random_signs


def hadamard(
    x: Value, axis: int = -1, *, block: int | None = None, key: KeyLike | None = None, inverse: bool = False
) -> Value:
    """Blocks along an axis rotated as `lowprec.hadamard` does, by a product with Sylvester's matrix.

    Operands that are rotated alike along the axis that a product sums over give the same product, but for rounding. The
    entries of the matrix are powers of two, 2^-floor(log2(block) / 2); what is then missing of 1 / sqrt(block), a
    factor of 1 / sqrt(2) in blocks of 2, 8, 32, .., is multiplied after. The gradient is the inverse rotation of the
    result's. Both are products like others, in the formats and partial sums that the precision has for them.

    Args:
        x: an array with the axis.
        axis: the axis that blocks lie along.
        block: elements of a block, a power of two that divides the axis; None: all of the axis.
        key: of random signs, the same in every step; None: there are none.
        inverse: whether to undo the rotation of the same arguments.

    Raises:
        TypeError: an axis that is no integer.
        ValueError: no such axis, or a block that is no power of two or does not divide it.
    """
    inverse, shape = truth("inverse", inverse), shape_of(x)
    axis = axis_number(axis, len(shape))
    size = block_size(shape[axis], block)
    signs = None if key is None else random_signs(key, shape[axis])
    lines = swapaxes(x, axis, -1)
    if signs is not None and not inverse:
        lines = elementwise("multiply", lines, table_like(signs, x))
    # entries of 1 / sqrt(size) would be rounded in narrow formats, powers of two are exact in all
    power = 2.0 ** -((size.bit_length() - 1) // 2)
    blocks = reshape(lines, (*shape_of(lines)[:-1], shape[axis] // size, size))
    turned = matmul(blocks, table_like(sylvester(size) * np.float32(power), x))
    lines = elementwise("multiply", reshape(turned, shape_of(lines)), 1 / math.sqrt(size) / power)
    # the inverse undoes the steps in the other order: the matrix is its own inverse, the signs come last
    if signs is not None and inverse:
        lines = elementwise("multiply", lines, table_like(signs, x))
    return swapaxes(lines, axis, -1)


def sylvester(size: int) -> npt.NDArray[np.float32]:
    """Sylvester's Hadamard matrix of a power of two."""
    matrix = np.ones((1, 1), np.float32)
    while len(matrix) < size:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return matrix
