"""Convolutions with a chosen accumulator, in the order of the IPU's AMP unit, and their gradients.

The products of one element are cut into groups; a group is at most `group` input channels of *one* kernel position,
so the last group of a position may be short. Groups are numbered g = 0, 1, ... over kernel positions in C order (row
by row) and, within a position, over blocks of channels, ascending. The float32 partial sum starts at +0, takes the
products of a group in the `adder`'s order (see `lowprec.matmul`), channels ascending, and is rounded to `accumulate`
once per group, short or not. With G groups in all, part p takes the groups [p c, (p + 1) c), c = ceil(G / splits), as a
chain of its own; parts are summed in float32 and in stages as in `lowprec.matmul`, and the last sum is rounded to
`out_format`. No products at all (no input channels) give +0. Padding is multiplied as zeros: an infinite or NaN weight
makes a window that reaches into it NaN.

Random bits of stochastic rounding are those of `lowprec.matmul` with

    row      the output position: its index in C order over (image, output row, output column)
    column   the output channel within its convolution group
    batch    the convolution group
    group    g for the rounding after a group; intermediate results of stages are counted as there

so a 1 x 1 convolution has the bits of the product of (positions, channels) and (channels, output channels).

The input gradient is the same sum with output channels in the place of input channels and the kernel positions that
reach an input position in reverse C order (the flipped kernel). Under strides, inputs of equal r = (y + top) mod
stride and s = (x + left) mod stride, a *phase*, are reached from the same kernel positions. Only those are terms and
counted in g (the zeros that a dilated gradient would have in between are not); an output position outside of the
gradient is multiplied as 0; an input position without any term gets +0. Row: the input position's index in C order
over (image, rows of its phase, columns of its phase); column: the input channel within its convolution group; batch:
(r * horizontal stride + s) * groups + convolution group.

The weight gradient is one product over the output positions in C order over (image, output row, output column),
rounded after every `group` of them and cut into parts as in `lowprec.matmul`; padding is multiplied as zeros. Row: the
index in C order over (kernel row, kernel column, input channel within its convolution group); column: the output
channel within its group; batch: the convolution group. No output positions (no images) give +0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from lowprec import backends, threads
from lowprec.arrays import input_array
from lowprec.float_format import FloatFormat
from lowprec.formats import FormatLike, bfloat16
from lowprec.matmul import DOT4_PRECISION
from lowprec.random import KeyLike
from lowprec.sums import Accumulator, Order, first_element, operand_format
from lowprec.sums import accumulator as make_accumulator
from lowprec.sums import order as make_order
from lowprec.windows import Padding, Pair, Windows, contiguous, phases, windows, with_zeros

Array = npt.NDArray[Any]

LAYOUTS = ("NHWC", "NCHW")
WEIGHT_AXES = {"NHWC": "(kh, kw, channels / groups, outputs)", "NCHW": "(outputs, channels / groups, kh, kw)"}


def conv2d(
    x: npt.ArrayLike,
    weight: npt.ArrayLike,
    *,
    stride: int | Pair = 1,
    padding: Padding = 0,
    dilation: int | Pair = 1,
    groups: int = 1,
    layout: str = "NHWC",
    accumulate: FormatLike = "float32",
    group: int | None = 16,
    splits: int = 1,
    stages: int | None = None,
    out_format: FormatLike | None = None,
    rounding: str = "nearest_even",
    key: KeyLike | None = None,
    random_bits: int = 16,
    overflow: str | None = None,
    infinite_input: str | None = None,
    adder: str = "sequential",
    offset: Pair = (0, 0),
    out: Array | None = None,
) -> Array:
    """The convolution of images with a kernel (a correlation: the kernel is not flipped), as machine learning has it.

    Every addition and rounding is made in the order that this module's docstring gives.

    Args:
        x: images (n, h, w, channels), or (n, channels, h, w) in the layout NCHW; dtypes and strides as `matmul`.
        weight: (kh, kw, channels / groups, outputs), or (outputs, channels / groups, kh, kw) in the layout NCHW.
        stride: distance of windows, one number or (vertical, horizontal).
        padding: zeros around each image: a number, (vertical, horizontal), ((top, bottom), (left, right)), "valid"
            (none) or "same" (ceil(size / stride) windows; an odd rest at the bottom and right).
        dilation: distance of kernel positions, one number or (vertical, horizontal).
        groups: convolution groups; channels and outputs are split into as many contiguous runs.
        layout: NHWC or NCHW, of x, weight and result.
        group: channels between two roundings; None: all of a kernel position.
        accumulate, splits, stages, out_format, rounding, key, random_bits, overflow, infinite_input, adder: as
            `matmul`.
        offset: row and column of the result's first element among the random bits.
        out: where to put the result.

    Returns:
        (n, oh, ow, outputs) or (n, outputs, oh, ow) in out_format's (or accumulate's) storage dtype.

    Raises:
        TypeError: as `matmul`; numbers that are no integers; an `out` of another dtype.
        ValueError: as `matmul`; shapes that do not fit, groups that do not divide, an unknown layout or padding.

    References:
        Graphcore, "AI-Float: Mixed Precision Arithmetic for AI" (white paper, 2023), for the AMP unit's order.
    """
    images, kernel = _images(x, "x", layout, groups), _weight(weight, layout, groups)
    if images.shape[-1] != kernel.shape[3]:
        raise ValueError(
            f"x has {images.shape[-1]} channels in each of {groups} groups, weight has {kernel.shape[3]}; "
            f"weight has axes {WEIGHT_AXES[layout]}"
        )
    where = windows(images.shape[1:3], kernel.shape[:2], stride, padding, dilation)
    sums = _sums(accumulate, out_format, rounding, random_bits, overflow, infinite_input, key)
    sequence = _order(group, splits, stages, adder, images.dtype, kernel.dtype)
    result, target = _result(out, (images.shape[0], *where.count, groups, kernel.shape[4]), layout, sums, x, weight)
    backends.current().correlate(
        *(with_zeros(images, where.padding), kernel, where.stride, where.dilation, sums, sequence),
        *(key, (*first_element(offset), 0), target, threads.current()),
    )
    return _finish(result, out)


def conv2d_input_gradient(
    gradient: npt.ArrayLike,
    weight: npt.ArrayLike,
    size: Pair,
    *,
    stride: int | Pair = 1,
    padding: Padding = 0,
    dilation: int | Pair = 1,
    groups: int = 1,
    layout: str = "NHWC",
    accumulate: FormatLike = "float32",
    group: int | None = 16,
    splits: int = 1,
    stages: int | None = None,
    out_format: FormatLike | None = None,
    rounding: str = "nearest_even",
    key: KeyLike | None = None,
    random_bits: int = 16,
    overflow: str | None = None,
    infinite_input: str | None = None,
    adder: str = "sequential",
    out: Array | None = None,
) -> Array:
    """The gradient of a convolution's input: the output gradient convolved with the flipped, transposed kernel.

    Args:
        gradient: of the convolution's result, in its shape.
        weight: as `conv2d` had it.
        size: (h, w) of the convolution's input.
        group: output channels between two roundings; None: all of a kernel position.
        stride, padding, dilation, groups, layout: as `conv2d` had them.
        accumulate, splits, stages, out_format, rounding, key, random_bits, overflow, infinite_input, adder, out: as
            `conv2d`, for this sum.

    Returns:
        (n, h, w, channels) or (n, channels, h, w) in out_format's (or accumulate's) storage dtype.

    Raises:
        TypeError, ValueError: as `conv2d`; a gradient whose shape is not that of the result.
    """
    outer, kernel = _images(gradient, "gradient", layout, groups), _weight(weight, layout, groups)
    where = windows(_size("size", size), kernel.shape[:2], stride, padding, dilation)
    _check_gradient(outer, where, kernel.shape[4], groups)
    sums = _sums(accumulate, out_format, rounding, random_bits, overflow, infinite_input, key)
    sequence = _order(group, splits, stages, adder, outer.dtype, kernel.dtype)
    shape = (outer.shape[0], *where.size, groups, kernel.shape[3])
    result, target = _result(out, shape, layout, sums, gradient, weight)
    flipped = kernel.swapaxes(3, 4)
    high, wide = (
        phases(where.stride[i], where.kernel[i], where.dilation[i], where.padding[i][0], where.size[i]) for i in (0, 1)
    )
    for number, (row, column) in enumerate((row, column) for row in high for column in wide):
        if row.count == 0 or column.count == 0:
            continue
        part = flipped[list(row.positions)][:, list(column.positions)]
        pads = [
            (-axis.start, axis.start + axis.count + max(0, len(axis.positions) - 1) * axis.step - length)
            for axis, length in ((row, outer.shape[1]), (column, outer.shape[2]))
        ]
        backends.current().correlate(
            *(with_zeros(outer, (pads[0], pads[1])), part, (1, 1), (row.step, column.step), sums, sequence, key),
            (0, 0, number * groups),
            target[:, row.first :: where.stride[0], column.first :: where.stride[1]],
            threads.current(),
        )
    return _finish(result, out)


def conv2d_weight_gradient(
    x: npt.ArrayLike,
    gradient: npt.ArrayLike,
    kernel: Pair,
    *,
    stride: int | Pair = 1,
    padding: Padding = 0,
    dilation: int | Pair = 1,
    groups: int = 1,
    layout: str = "NHWC",
    accumulate: FormatLike = "float32",
    group: int | None = 16,
    splits: int = 1,
    stages: int | None = None,
    out_format: FormatLike | None = None,
    rounding: str = "nearest_even",
    key: KeyLike | None = None,
    random_bits: int = 16,
    overflow: str | None = None,
    infinite_input: str | None = None,
    adder: str = "sequential",
    out: Array | None = None,
) -> Array:
    """The gradient of a convolution's weight: for every kernel position a product over all output positions.

    Args:
        x: as `conv2d` had it.
        gradient: of the convolution's result, in its shape.
        kernel: (kh, kw) of the weight.
        group: output positions between two roundings; None: all of a part.
        stride, padding, dilation, groups, layout: as `conv2d` had them.
        accumulate, splits, stages, out_format, rounding, key, random_bits, overflow, infinite_input, adder, out: as
            `conv2d`, for this sum.

    Returns:
        The weight's shape in out_format's (or accumulate's) storage dtype.

    Raises:
        TypeError, ValueError: as `conv2d`; a gradient whose shape is not that of the result.
    """
    images, outer = _images(x, "x", layout, groups), _images(gradient, "gradient", layout, groups)
    where = windows(images.shape[1:3], _size("kernel", kernel), stride, padding, dilation)
    _check_gradient(outer, where, outer.shape[4], groups, images.shape[0])
    sums = _sums(accumulate, out_format, rounding, random_bits, overflow, infinite_input, key)
    sequence = _order(group, splits, stages, adder, images.dtype, outer.dtype)
    shape = (*where.kernel, groups, images.shape[4], outer.shape[4])
    result, target = _result(out, shape, layout, sums, x, gradient, weight=True)
    call = backends.current().product(images.dtype, outer.dtype, sums, sequence)
    columns = contiguous(outer.transpose(3, 0, 1, 2, 4))
    columns = columns.reshape(groups, outer.shape[0] * outer.shape[1] * outer.shape[2], outer.shape[4])
    rows = contiguous(with_zeros(images, where.padding).transpose(3, 4, 0, 1, 2))
    for number, position in enumerate(np.ndindex(*where.kernel)):
        high, wide = (
            slice(start := k * d, start + (n - 1) * s + 1, s)
            for k, d, n, s in zip(position, where.dilation, where.count, where.stride, strict=True)
        )
        left = contiguous(rows[..., high, wide]).reshape(groups, images.shape[4], columns.shape[1])
        first = number * images.shape[4]
        target[position] = call(left, columns, key, first, 0, 0, np.arange(groups), None, threads.current())
    return _finish(result, out)


def _images(x: npt.ArrayLike, name: str, layout: str, groups: int) -> Array:
    """An operand as (n, h, w, groups, channels of a group)."""
    if layout not in LAYOUTS:
        raise ValueError(f"unknown layout {layout!r}; allowed are {', '.join(LAYOUTS)}")
    if isinstance(groups, bool) or not isinstance(groups, int | np.integer) or groups < 1:
        raise ValueError(f"groups must be an integer of at least 1, not {groups!r}")
    array = _operand(x)
    if array.ndim != 4:
        raise ValueError(f"{name} has the four axes {layout}; given was the shape {array.shape}")
    if layout == "NCHW":
        array = array.transpose(0, 2, 3, 1)
    if array.shape[3] % groups:
        raise ValueError(f"groups={groups} does not divide the {array.shape[3]} channels of {name}")
    return array.reshape(*array.shape[:3], groups, array.shape[3] // groups)


def _weight(weight: npt.ArrayLike, layout: str, groups: int) -> Array:
    """A weight as (kh, kw, groups, C, N)."""
    array = _operand(weight)
    if array.ndim != 4:
        raise ValueError(f"weight has the axes {WEIGHT_AXES[layout]}; given was the shape {array.shape}")
    if layout == "NCHW":
        array = array.transpose(2, 3, 1, 0)
    high, wide, channels, columns = array.shape
    if columns % groups:
        raise ValueError(f"groups={groups} does not divide the {columns} outputs of weight {WEIGHT_AXES[layout]}")
    return array.reshape(high, wide, channels, groups, columns // groups).transpose(0, 1, 3, 2, 4)


def _operand(x: npt.ArrayLike) -> Array:
    """An array of an operand dtype that has a zero and negative numbers, which fill what there are no channels for."""
    array = input_array(x)[0]
    fmt: FloatFormat = operand_format(array.dtype)
    return array if fmt.zero and fmt.signed else array.astype(bfloat16.dtype)


def _size(name: str, value: Any) -> Pair:
    if not isinstance(value, Sequence) or len(value) != 2 or not all(isinstance(v, int | np.integer) for v in value):
        raise TypeError(f"{name} must be a pair of integers, not {value!r}")
    return int(value[0]), int(value[1])


def _sums(
    accumulate: FormatLike,
    out_format: FormatLike | None,
    rounding: str,
    random_bits: int,
    overflow: str | None,
    infinite_input: str | None,
    key: KeyLike | None,
) -> Accumulator:
    """The checked Accumulator; a key where one is needed."""
    sums = make_accumulator(accumulate, out_format, rounding, random_bits, overflow, infinite_input)
    if key is None and sums.stochastic:
        raise ValueError("stochastic rounding needs key=, a lowprec.Key or an integer")
    return sums


def _order(group: int | None, splits: int, stages: int | None, adder: str, a: np.dtype[Any], b: np.dtype[Any]) -> Order:
    """The checked Order for operands of these dtypes."""
    sequence = make_order(group, splits, stages, adder)
    widest = max((operand_format(dtype) for dtype in (a, b)), key=lambda fmt: fmt.precision)
    if adder == "dot4" and widest.precision > DOT4_PRECISION:
        raise ValueError(
            f"adder='dot4' takes significands of at most {DOT4_PRECISION} bits, not {widest.name}'s {widest.precision}"
        )
    return sequence


def _check_gradient(gradient: Array, where: Windows, columns: int, groups: int, images: int | None = None) -> None:
    """Raises ValueError unless the gradient has the shape of the convolution's result."""
    expected = (gradient.shape[0] if images is None else images, *where.count, groups, columns)
    if gradient.shape != expected:
        n, high, wide = expected[:3]
        raise ValueError(
            f"the convolution's result has {n} x {high} x {wide} positions of {groups * columns} channels, "
            f"gradient has {' x '.join(map(str, gradient.shape[:3]))} of {gradient.shape[3] * gradient.shape[4]}"
        )


def _result(
    out: Array | None, shape: tuple[int, ...], layout: str, sums: Accumulator, *operands: Any, weight: bool = False
) -> tuple[Array, Array]:
    """An array for the result in its layout, and the view of it that has the axes `shape` of the sums."""
    groups, columns = shape[2] if weight else shape[3], shape[4]
    plain = (*shape[:2], shape[3] if weight else shape[2], groups * columns)
    axes = (0, 1, 2, 3) if layout == "NHWC" else (3, 2, 0, 1) if weight else (0, 3, 1, 2)
    outside = tuple(plain[axis] for axis in axes)
    if out is not None and (out.dtype != sums.out_dtype or out.shape != outside):
        kind = TypeError if out.dtype != sums.out_dtype else ValueError
        raise kind(f"out must be an array of {sums.out_dtype} and shape {outside}, not {out.dtype} {out.shape}")
    if out is not None and not out.flags.writeable:
        raise ValueError("out is read-only")
    shared = out is not None and any(np.may_share_memory(out, operand) for operand in operands)
    result = np.empty(outside, sums.out_dtype) if out is None or shared else out
    view = result.transpose(tuple(np.argsort(axes)))
    split = view.reshape(*plain[:3], groups, columns)
    return result, split.transpose(0, 1, 3, 2, 4) if weight else split


def _finish(result: Array, out: Array | None) -> Array:
    if out is not None and result is not out:
        out[...] = result
        return out
    return result
