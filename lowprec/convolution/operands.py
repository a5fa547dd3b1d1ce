"""Convolutions' arguments, checked: operands with an axis for groups, sums, orders and where results go."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from lowprec import backends
from lowprec.arrays import whole_array
from lowprec.backends.owner import is_cupy
from lowprec.types import Array
from lowprec.values.accumulation import Accumulation
from lowprec.values.float_format import FloatFormat
from lowprec.values.formats import bfloat16
from lowprec.values.keys import KeyLike, key_value
from lowprec.values.keywords import ProductKeywords, RoundingLike, as_sum, refuse_unhashable
from lowprec.values.operands import factor_dtypes, operand_format
from lowprec.values.outputs import check_out
from lowprec.values.sum_rules import SumRules, sum_rules
from lowprec.values.windows import Windows

Layout = Literal["NHWC", "NCHW"]
LAYOUTS: tuple[str, ...] = get_args(Layout)
AXES = {
    ("NHWC", False): ((0, 1, 2, 3), (0, 1, 2, 3)),
    ("NHWC", True): ((0, 1, 2, 3), (0, 1, 2, 3)),
    ("NCHW", False): ((0, 3, 1, 2), (0, 2, 3, 1)),
    ("NCHW", True): ((3, 2, 0, 1), (2, 3, 1, 0)),
}
"""(layout, whether it is a weight) -> the permutation from NHWC's axes to the layout's, and its inverse.

A weight of the layout NHWC has the axes (kh, kw, channels, outputs), one of NCHW (outputs, channels, kh, kw).
"""
WEIGHT_AXES = {"NHWC": "(kh, kw, channels / groups, outputs)", "NCHW": "(outputs, channels / groups, kh, kw)"}


def as_images(x: npt.ArrayLike, name: str, layout: Layout, groups: int) -> Array:
    """An operand as (n, h, w, groups, channels of a group)."""
    # Here first: all other sizes are read from axes that the layout places.
    if layout not in LAYOUTS:
        raise ValueError(f"unknown layout {layout!r}; allowed are {', '.join(LAYOUTS)}")
    if isinstance(groups, bool) or not isinstance(groups, int | np.integer):
        raise TypeError(f"groups must be an integer of at least 1, not {groups!r}")
    if groups < 1:
        raise ValueError(f"groups must be an integer of at least 1, not {groups!r}")
    array = as_operand(x)
    if array.ndim != 4:
        raise ValueError(f"{name} has the four axes {layout}; given was the shape {array.shape}")
    if layout == "NCHW":
        array = array.transpose(0, 2, 3, 1)
    if array.shape[3] % groups:
        raise ValueError(f"groups={groups} does not divide the {array.shape[3]} channels of {name}")
    # Splitting an axis is a view whatever the strides: nothing is copied here.
    return array.reshape(*array.shape[:3], groups, array.shape[3] // groups)


def as_weight(weight: npt.ArrayLike, layout: Layout, groups: int) -> Array:
    """A weight as (kh, kw, groups, C, N)."""
    array = as_operand(weight)
    if array.ndim != 4:
        raise ValueError(f"weight has the axes {WEIGHT_AXES[layout]}; given was the shape {array.shape}")
    if layout == "NCHW":
        array = array.transpose(2, 3, 1, 0)
    high, wide, channels, columns = array.shape
    if columns % groups:
        raise ValueError(f"groups={groups} does not divide the {columns} outputs of weight {WEIGHT_AXES[layout]}")
    # Outputs are split, channels are a group's already: a weight has channels / groups of them (as in torch).
    return array.reshape(high, wide, channels, groups, columns // groups).transpose(0, 1, 3, 2, 4)


def as_operand(x: npt.ArrayLike) -> Array:
    """An operand as an array whose format has a sign and a zero; e8m0 becomes bfloat16, which holds its values.

    Padding is zeros, and groups are filled up with products (+0) * (-1), which leave every sum as it is.
    """
    array = whole_array(x)
    fmt: FloatFormat = operand_format(array.dtype)
    if fmt.zero and fmt.signed:
        return array
    # On a GPU float32 holds them as well: CuPy converts no such dtype.
    wide = np.dtype(np.float32)
    return backends.load("cuda").values(array, wide) if is_cupy(array) else array.astype(bfloat16.dtype)


def refuse_two_places(**operands: Array) -> None:
    """Raises TypeError for a CuPy array beside NumPy's, ValueError for CuPy arrays of two devices."""
    (first, a), (second, b) = operands.items()
    if is_cupy(a) != is_cupy(b):
        raise TypeError(f"{first} and {second} lie on a GPU (CuPy arrays) and here: move them together")
    if is_cupy(a) and a.device != b.device:
        raise ValueError(f"{first} and {second} are on {a.device} and {b.device}: move them together")


def checked_sums(
    a: np.dtype[Any],
    b: np.dtype[Any],
    accumulation: Accumulation | None,
    rounding: RoundingLike,
    key: KeyLike | None,
    keywords: Mapping[str, Any],
) -> tuple[Accumulation, SumRules]:
    """The Accumulation and the rules of sums of products of two dtypes, checked.

    Raises:
        TypeError, ValueError: as `lowprec.matmul`; stochastic rounding without a key.
    """
    refuse_unhashable(rounding=rounding, **keywords)
    order, rounded = as_sum(ProductKeywords, 16, accumulation, rounding, **keywords)
    # Called for what it refuses, before any array is made.
    factor_dtypes(a, b, order.adder)
    rules = sum_rules(order, rounded)
    if rules.stochastic and key is None:
        raise ValueError("stochastic rounding needs key=, a lowprec.Key or an integer")
    if key is not None:
        key_value(key)  # a key out of range is refused even where nothing is drawn
    return order, rules


def check_gradient(gradient: Array, where: Windows, columns: int, groups: int, images: int | None = None) -> None:
    """Raises ValueError unless the gradient has the shape of the convolution's result."""
    # Of an input gradient any number of images is right; a weight gradient has them from x.
    expected = (gradient.shape[0] if images is None else images, *where.count, groups, columns)
    if gradient.shape != expected:
        n, high, wide = expected[:3]
        raise ValueError(
            f"the convolution's result has {n} x {high} x {wide} positions of {groups * columns} channels, "
            f"gradient has {' x '.join(map(str, gradient.shape[:3]))} of {gradient.shape[3] * gradient.shape[4]}"
        )


def result_array(
    out: Array | None, shape: tuple[int, ...], layout: Layout, fmt: FloatFormat, *operands: Any, weight: bool = False
) -> tuple[Array, Array]:
    """The array that becomes the result, in its layout (out, or a new one), and a view of it with the axes of the sums.

    Args:
        out: as the caller gave it.
        shape: of the sums: (n, oh, ow, groups, N), or (kh, kw, groups, C, N) of a weight's gradient.
        layout: of the result.
        fmt: its format.
        operands: as the caller gave them; where out shares memory with one, the result is made elsewhere.
        weight: whether the result is a weight's gradient.
    """
    dtype = fmt.dtype
    groups, columns = shape[2] if weight else shape[3], shape[4]
    plain = (*shape[:2], shape[3] if weight else shape[2], groups * columns)
    order, back = AXES[layout, weight]
    # The backends write through a transposed view, so that NCHW costs no copy of the result.
    outside = tuple([plain[axis] for axis in order])
    if is_cupy(operands[0]):
        result = backends.load("cuda").output_apart(out, outside, dtype, *operands)
    else:
        if out is not None:
            check_out(out, outside, np.dtype(dtype))
        # Windows overlap: a result written over them would be read again. `finished` copies it into out.
        shared = out is not None and any(np.may_share_memory(out, operand) for operand in operands)
        result = np.empty(outside, dtype) if out is None or shared else out
    split = result.transpose(back).reshape(*plain[:3], groups, columns)
    return result, split.transpose(0, 1, 3, 2, 4) if weight else split


def finished(result: Array, out: Array | None) -> Array:
    """The result in `out`, if there is one and it was computed elsewhere."""
    if out is not None and result is not out:
        if is_cupy(out):
            return backends.load("cuda").shaped(result, result.shape, out)  # type: ignore[no-any-return]
        out[...] = result
        return out
    return result
