"""Operations on images (n, h, w, channels): convolution with a bias, pooling, flattening."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ipu_core.ir.trace.values import (
    Value,
    apply,
    concatenate,
    elementwise,
    index_basic,
    reduce_max,
    reduce_sum,
    reshape,
    shape_of,
)
from lowprec.types import Pair
from lowprec.values.windows import Padding, checked_pair, other_axes, windows

LOWEST = -3e38  # around an image of which maxima are taken: below any number of a format that training has


def conv2d(
    x: Value,
    weight: Value,
    bias: Value | None = None,
    *,
    stride: int | Pair = 1,
    padding: Padding = 0,
    dilation: int | Pair = 1,
    groups: int = 1,
) -> Value:
    """The convolution of images with a kernel (not flipped), plus a bias.

    Its products are added per kernel position and, within one, per 16 input channels: see `lowprec.conv2d`.

    Args:
        x: (n, h, w, channels).
        weight: (kh, kw, channels / groups, outputs). PyTorch's (outputs, channels / groups, kh, kw) is turned by
            weight.transpose(2, 3, 1, 0); where such a shape happens to fit it cannot be told apart, and is not refused.
        bias: (outputs,) or None.
        stride: distance of windows, one number or (vertical, horizontal).
        padding: zeros around each image: a number, (vertical, horizontal), ((top, bottom), (left, right)), "valid"
            (none) or "same" (ceil(size / stride) windows).
        dilation: distance of kernel positions, one number or (vertical, horizontal).
        groups: channels and outputs are split into as many contiguous runs.

    Raises:
        TypeError: numbers that are no integers; masked elements.
        ValueError: shapes that do not fit, groups that do not divide, an unknown padding.
    """
    if isinstance(groups, bool) or not isinstance(groups, int | np.integer):
        raise TypeError(f"groups must be an integer of at least 1, not {groups!r}")
    size, kernel = _size(x), _kernel(weight)
    try:
        where = windows(size, kernel, stride, padding, dilation)
    except ValueError as error:
        raise ValueError(f"{error}{other_axes(shape_of(x), shape_of(weight), int(groups))}") from None
    product = apply(
        *("conv2d", x, weight),
        stride=where.stride, padding=where.padding, dilation=where.dilation, groups=int(groups),
    )  # fmt: skip
    return product if bias is None else elementwise("add", product, vector("bias", bias, shape_of(product)[-1]))


def conv1d(
    x: Value,
    weight: Value,
    bias: Value | None = None,
    *,
    stride: int = 1,
    padding: int | tuple[int, int] | str = 0,
    dilation: int = 1,
    groups: int = 1,
) -> Value:
    """The convolution of sequences with a kernel (not flipped), plus a bias: `conv2d` of images of one line.

    Args:
        x: (n, length, channels).
        weight: (kernel, channels / groups, outputs); PyTorch's (outputs, channels / groups, kernel) is turned by
            weight.transpose(2, 1, 0).
        bias: (outputs,) or None.
        stride: distance of windows.
        padding: zeros at both ends, (before, after), "valid" (none) or "same" (ceil(length / stride) windows).
        dilation: distance of kernel positions.
        groups: channels and outputs are split into as many contiguous runs.

    Raises:
        TypeError, ValueError: see `conv2d`.
    """
    if len(shape_of(x)) != 3 or len(shape_of(weight)) != 3:
        raise ValueError(
            f"conv1d takes x (n, length, channels) and weight (kernel, channels / groups, outputs), not the shapes "
            f"{shape_of(x)} and {shape_of(weight)}"
        )
    (n, length, channels), ends = shape_of(x), (padding, padding) if isinstance(padding, int) else padding
    if shape_of(weight)[1] * groups != channels:
        first = "; from channels first: x.swapaxes(1, 2)" if shape_of(weight)[1] * groups == length else ""
        raise ValueError(
            f"x {shape_of(x)} has {channels} channels in {groups} groups, weight {shape_of(weight)} takes "
            f"{shape_of(weight)[1]}{first}"
        )
    made = conv2d(
        reshape(x, (n, 1, length, channels)), reshape(weight, (1, *shape_of(weight))), bias, groups=groups,
        stride=(1, stride), padding=ends if isinstance(ends, str) else ((0, 0), ends), dilation=(1, dilation),
    )  # fmt: skip
    return reshape(made, (n, *shape_of(made)[2:]))


def vector(name: str, value: Value, size: int) -> Value:
    """The value itself, which must have one number per output: any other shape might fit by broadcasting alone.

    Raises:
        ValueError: another shape.
    """
    if shape_of(value) != (size,):
        raise ValueError(f"{name} must have the shape ({size},), one number per output, not {shape_of(value)}")
    return value


def max_pool2d(x: Value, window: int | Pair = 2, stride: int | Pair | None = None, padding: int | Pair = 0) -> Value:
    """The largest of every window; NaN if there is one. Windows that would reach beyond image and padding are left out.

    The gradient goes to the largest element, in equal shares where several are.

    Args:
        x: (n, h, w, channels).
        window: its size, one number or (vertical, horizontal).
        stride: distance of windows; None: their size.
        padding: places around the image that count for nothing, at most half a window.

    Raises:
        TypeError: numbers that are no integers; masked elements.
        ValueError: images without four axes, numbers below 1, windows larger than the image with its padding, more
            padding than half a window.
    """
    around = checked_pair("padding", padding, 0, one=True)
    if any(2 * p > size for p, size in zip(around, checked_pair("window", window, 1, one=True), strict=True)):
        raise ValueError(f"padding is at most half a window, not {padding!r} for one of {window!r}")
    if any(around):
        high, wide = _size(x)
        sides = ((0, 0), (around[0],) * 2, (around[1],) * 2, (0, 0))
        low, ends = zip(*sides, strict=True)
        # A choice by place, not a padded value: a border of zeros would be the largest beside negative numbers.
        inside = np.pad(np.ones((1, high, wide, 1), np.float32), sides)
        x = elementwise("select", inside, apply("pad", x, low=low, high=ends, interior=(0,) * 4), LOWEST)
    pooled, axes = _pooled(x, window, stride)
    return reduce_max(pooled, axes)


def avg_pool2d(x: Value, window: int | Pair = 2, stride: int | Pair | None = None) -> Value:
    """The mean of every window: its sum times the reciprocal of its size. Arguments and errors as `max_pool2d`."""
    pooled, axes = _pooled(x, window, stride)
    count = math.prod(shape_of(pooled)[axis] for axis in axes)
    return elementwise("multiply", reduce_sum(pooled, axes), 1.0 / count)


def flatten(x: Value) -> Value:
    """All axes but the first as one: (n, ...) -> (n, features).

    Raises:
        ValueError: a number, which has no first axis.
    """
    if not shape_of(x):
        raise ValueError("flatten keeps the first axis, rows; a number without axes has none")
    # Of no elements -1 says nothing: any size would fit.
    return reshape(x, (shape_of(x)[0], -1 if math.prod(shape_of(x)) else math.prod(shape_of(x)[1:])))


def _size(x: Value) -> Pair:
    shape = shape_of(x)
    if len(shape) != 4:
        raise ValueError(f"images have the axes (n, h, w, channels), not the shape {shape}")
    return shape[1], shape[2]


def _kernel(weight: Value) -> Pair:
    shape = shape_of(weight)
    if len(shape) != 4:
        raise ValueError(f"a weight has the axes (kh, kw, channels / groups, outputs), not the shape {shape}")
    return shape[0], shape[1]


def _pooled(x: Value, window: Any, stride: Any) -> tuple[Value, Sequence[int]]:
    """The elements of every window, and the axes along which they lie: a view where windows do not overlap."""
    kernel = checked_pair("window", window, 1, one=True)
    where = windows(_size(x), kernel, kernel if stride is None else stride, 0, 1)
    (high, wide), (down, across) = where.count, where.stride
    n, channels = shape_of(x)[0], shape_of(x)[3]
    # Windows side by side are blocks of the image, and blocks are a view; others are cut out, an element of all windows
    # at a time.
    if where.stride == where.kernel:
        whole = index_basic(x, (slice(None), slice(0, high * down), slice(0, wide * across)))
        return reshape(whole, (n, high, down, wide, across, channels)), (2, 4)
    lines = [slice(i, i + (high - 1) * down + 1, down) for i in range(where.kernel[0])]
    places = [slice(j, j + (wide - 1) * across + 1, across) for j in range(where.kernel[1])]
    cut = [index_basic(x, (slice(None), line, place)) for line in lines for place in places]
    return concatenate([reshape(one, (n, high, wide, 1, channels)) for one in cut], 3), (3,)
