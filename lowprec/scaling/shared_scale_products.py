"""Products of operands that share scales: `scaled_matmul`.

The scales never meet the elements: the elements of a block are multiplied and added as `lowprec.matmul` does, and what
comes out is scaled. The docstring of `scaled_matmul` gives the order and the rounding of every step.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Unpack

import numpy as np
import numpy.typing as npt

from lowprec import backends, threads
from lowprec.arithmetic import fma, multiply
from lowprec.arrays import whole_array
from lowprec.backends.owner import refuse_cupy
from lowprec.foreign import as_array_of, takes_foreign
from lowprec.processor import in_default_state
from lowprec.random import KeyLike
from lowprec.rounding import decode
from lowprec.scaling.blocks import BlockArray
from lowprec.scaling.tensor import ScaledArray, from_storage
from lowprec.types import Array
from lowprec.values.accumulation import Accumulation
from lowprec.values.float_format import FloatFormat
from lowprec.values.formats import float32
from lowprec.values.keys import key_value
from lowprec.values.keywords import ProductKeywords, RoundingLike, as_sum, refuse_unhashable
from lowprec.values.operands import factor_dtypes
from lowprec.values.rounding import Rounding
from lowprec.values.sum_rules import rules_in_float32, sum_rules

ScaledLike = BlockArray | ScaledArray | npt.ArrayLike

BLOCK_SUMS = 1 << 20
"""Sums of blocks that are held at a time, unless one block has more."""


@takes_foreign
@in_default_state
def scaled_matmul(
    a: ScaledLike,
    b: ScaledLike,
    *,
    accumulation: Accumulation | None = None,
    rounding: RoundingLike = "nearest_even",
    key: KeyLike | None = None,
    **keywords: Unpack[ProductKeywords],
) -> Any:
    """The product of matrices (m, k) and (k, n) of which one or both have scales, each block added up by itself.

    1. The elements of each block of k are multiplied and added as `lowprec.matmul` does with `accumulation`, from +0:
       groups, parts and stages are those of a product as long as the block, and the result of its last stage is left in
       float32, as it is, infinities too. Block number i is batch number i among the random bits.
    2. The blocks' results d are added up in float32, from +0 and in order: sum + d * scale of a * scale of b, exact,
       rounded once to float32, to nearest even.
    3. That sum times the scales of the whole tensors is rounded once to `out_format`, with the random bits that
       `lowprec.round` gives the element's index.

    Step 2 is what kernels for block-scaled operands do in software (the scales meet partial sums of an accumulator in
    float32). Where neither operand has blocks all of k is one block of scale 1. The scales of step 3 are those of
    `to_scaled`, for the tensor or one for each row of a and each column of b, and the tensor scale of NVFP4.

    Args:
        a: a `BlockArray` with its blocks along axis 1, a `ScaledArray`, or an array that `lowprec.matmul` takes.
        b: the same with its blocks along axis 0. If both have blocks, these are of one size.
        accumulation: order and types of the sum of a block's products; or keywords as of `lowprec.matmul`.
        rounding: of these sums (step 1) and of the result (step 3), as of `lowprec.matmul`.
        key: as of `lowprec.round`.

    Returns:
        (m, n) in `out_format`'s storage dtype (`accumulate`'s where there is none given), as an array of the library
        that the operands were made of.

    Raises:
        TypeError: as `lowprec.matmul`.
        ValueError: as `lowprec.matmul`; operands that are no matrices; blocks along the other axis, or of two sizes;
            a `ScaledArray` with several scales along the summed axis.
    """
    refuse_unhashable(rounding=rounding, **keywords)
    order, how = as_sum(ProductKeywords, 16, accumulation, rounding, **keywords)
    left, right = _side("a", a, axis=1), _side("b", b, axis=0)
    length = left.elements.shape[1]
    if length != right.elements.shape[0]:
        raise ValueError(f"the inner lengths differ: {length} and {right.elements.shape[0]}")
    sizes = {side.block for side in (left, right) if side.block is not None}
    if len(sizes) > 1:
        raise ValueError(f"the blocks of a hold {left.block} values and those of b {right.block}")
    # Without blocks all of k is one; 1 for empty operands, since lengths are divided by it.
    block = sizes.pop() if sizes else max(1, length)
    total = np.zeros((left.elements.shape[0], right.elements.shape[1]), np.float32)
    product = _BlockProduct(left, right, order, how, None if key is None else key_value(key))
    # Several blocks in one call of the product, as a batch: their sums are held until they are scaled.
    many = max(1, BLOCK_SUMS // max(1, total.size))
    for first in range(0, length // block, many):
        product.add(total, first, min(many, length // block - first), block)
    if rest := length % block:
        # A short last block has groups and parts by its own length.
        product.add(total, length // block, 1, block, rest)
    # Exact, then rounded once: scales of a tensor never meet a sum that is rounded between.
    result = multiply(total, left.tensor * right.tensor, order.out, how, key=key)
    libraries = [x.library for x in (a, b) if isinstance(x, (BlockArray, ScaledArray))]
    return as_array_of(next((name for name in libraries if name != "numpy"), "numpy"), np.asarray(result))


class _Side(NamedTuple):
    """An operand of the product, taken apart.

    Attributes:
        elements: a matrix that `matmul` takes.
        scales: of its blocks, in float64, with the summed axis divided by the block; None: there are no blocks.
        block: values of a block; None: there are none.
        tensor: the scale of the whole tensor, or scales of the axis that is not summed.
    """

    elements: Array
    scales: Array | None
    block: int | None
    tensor: float | Array


def _side(name: str, x: ScaledLike, axis: int) -> _Side:
    """An operand whose summed axis is `axis`."""
    refuse_cupy(x.elements if isinstance(x, (ScaledArray, BlockArray)) else x)
    if isinstance(x, ScaledArray):
        side = _Side(_elements(x.elements, x.format), None, None, _factors(name, x, axis))
    elif isinstance(x, BlockArray):
        if x.axis != axis and len(x.shape) == 2:
            raise ValueError(f"the blocks of {name} lie along axis {x.axis}, and axis {axis} is summed")
        fmt = x.format
        values = _elements(x.elements, fmt.element) if not fmt.integers else _from_integers(x)
        scales = from_storage(x.scales, fmt.scale).astype(np.float64)
        side = _Side(values, scales, fmt.block, x.tensor_scale)
    else:
        side = _Side(whole_array(x), None, None, 1.0)
    if side.elements.ndim != 2:
        raise ValueError(f"{name} has {side.elements.ndim} axes; scaled_matmul takes matrices")
    return side


def _factors(name: str, x: ScaledArray, axis: int) -> Array:
    """The factors of a tensor's rows or columns, or of all of it, exact in float64; they broadcast to the result.

    Raises:
        ValueError: they differ along the axis that is summed.
    """
    factors = np.ldexp(np.asarray(x.scale, np.float64), x.exponent)
    # Such scales belong into the sum: taken out of it they would be wrong.
    if factors.ndim > 1 - axis and factors.shape[axis - 2] > 1:
        raise ValueError(
            f"{name} has {factors.shape[axis - 2]} scales along axis {axis}, which is summed: give one for each index "
            f"of axis {1 - axis}, to_scaled(.., axis={1 - axis}), or blocks, to_blocks(.., axis={axis})"
        )
    return factors


def _elements(elements: Array, fmt: FloatFormat) -> Array:
    """Elements as an operand; those of formats without a dtype as float32.

    Raises:
        TypeError: float32 does not hold them.
    """
    if fmt.dtype is not None:
        return elements
    if not float32.contains(fmt):
        raise TypeError(f"float32 does not hold {fmt.name}, the format of an operand's elements")
    return np.asarray(decode(elements, fmt))


def _from_integers(x: BlockArray) -> Array:
    """The values of int8 elements in float16, which holds their 8 bits."""
    # So the products of two such operands are exact in float32.
    return np.asarray(x.elements.astype(np.float16) * np.float16(x.format.element.smallest_subnormal))


class _BlockProduct:
    """The prepared product of blocks, whose sums are scaled and added to a total, block by block in order."""

    def __init__(self, a: _Side, b: _Side, order: Accumulation, rounding: Rounding, key: int | None) -> None:
        dtypes = factor_dtypes(a.elements.dtype, b.elements.dtype, order.adder)
        # The result's rounding belongs behind the scales (step 3); blocks' sums go on in float32.
        rules = rules_in_float32(sum_rules(order.with_types(order.accumulate, float32), rounding))
        self.call = backends.prepared("product", *dtypes, order, rules)()
        self.a, self.b, self.key = a, b, key
        self.scales = _scales(a, b)

    def add(self, total: Array, first: int, count: int, block: int, length: int | None = None) -> None:
        """Adds `count` blocks from number `first` on, of `length` values where they are short."""
        length = length or block
        run = slice(first * block, first * block + count * length)
        left = self.a.elements[:, run].reshape(-1, count, length).swapaxes(0, 1)
        right = self.b.elements[run].reshape(count, length, -1)
        numbers = np.arange(first, first + count)
        sums = self.call(left, right, self.key, 0, 0, 0, numbers, None, threads.current())
        for number, part in zip(numbers, sums, strict=True):
            # Exact product and sum, one rounding: step 2 has one for each block.
            fma(part, self._scale(int(number)), total, "float32", out=total)

    def _scale(self, number: int) -> Array:
        """The scales of a block's results, (m, n) or what broadcasts to it, exact."""
        left, right = self.scales
        return np.asarray(left[:, min(number, left.shape[1] - 1), None] * right[min(number, len(right) - 1)])


def _scales(a: _Side, b: _Side) -> tuple[Array, Array]:
    """The block scales of both operands (one of 1 where there are none), in float32 if that holds all their products.

    The product of two scales must be exact; `fma` is quicker on float32 than on float64.
    """
    left, right = (np.ones((1, 1)) if side.scales is None else side.scales for side in (a, b))
    # Significands of at most 12 bits each: a product of two has at most 24, float32's.
    significands = [np.frexp(scales)[0] * 2.0**12 for scales in (left, right)]
    short = all(np.array_equal(x, np.floor(x)) for x in significands)
    largest, least = (float(pick(left) * pick(right)) if left.size and right.size else 1.0 for pick in (np.max, np.min))
    narrow = short and least >= float32.smallest_normal and largest <= float32.max
    dtype = np.float32 if narrow else np.float64
    return left.astype(dtype), right.astype(dtype)
