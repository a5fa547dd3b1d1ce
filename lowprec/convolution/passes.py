"""The three passes of a convolution: its result and the gradients of its input and of its weight."""

from __future__ import annotations

from typing import Unpack

import numpy.typing as npt

from lowprec import backends, threads
from lowprec.arrays import whole_array
from lowprec.convolution.operands import (
    WEIGHT_AXES,
    Layout,
    as_images,
    as_weight,
    check_gradient,
    checked_sums,
    finished,
    refuse_two_places,
    result_array,
)
from lowprec.foreign import takes_foreign
from lowprec.random import KeyLike
from lowprec.types import Array, Pair
from lowprec.values.accumulation import Accumulation
from lowprec.values.convolution_task import ConvolutionTask
from lowprec.values.keys import first_element
from lowprec.values.keywords import ProductKeywords, RoundingLike
from lowprec.values.windows import BlockPlace, Padding, checked_pair, other_axes, phase_blocks, windows

MOST_BATCHES = 1 << 24  # what the counter of random words has room for beside the tag (see `sum_bits`)


@takes_foreign
def conv2d(
    x: npt.ArrayLike,
    weight: npt.ArrayLike,
    *,
    stride: int | Pair = 1,
    padding: Padding = 0,
    dilation: int | Pair = 1,
    groups: int = 1,
    layout: Layout = "NHWC",
    accumulation: Accumulation | None = None,
    rounding: RoundingLike = "nearest_even",
    key: KeyLike | None = None,
    offset: Pair = (0, 0),
    out: Array | None = None,
    **keywords: Unpack[ProductKeywords],
) -> Array:
    """The convolution of images with a kernel (a correlation: the kernel is not flipped), as machine learning has it.

    Every addition and rounding is made in the order that `help("lowprec.convolution")` gives.

    Args:
        x: images (n, h, w, channels), or (n, channels, h, w) in the layout NCHW; dtypes and strides as `matmul`.
        weight: (kh, kw, channels / groups, outputs), or (outputs, channels / groups, kh, kw) in the layout NCHW.
            Another order of axes whose sizes happen to fit cannot be told apart.
        stride: distance of windows, one number or (vertical, horizontal).
        padding: zeros around each image: a number, (vertical, horizontal), ((top, bottom), (left, right)), "valid"
            (none) or "same" (ceil(size / stride) windows; an odd rest at the bottom and right).
        dilation: distance of kernel positions, one number or (vertical, horizontal).
        groups: convolution groups; channels and outputs are split into as many contiguous runs.
        layout: NHWC or NCHW, of x, weight and result.
        accumulation: as of `matmul`, or its keywords, of which group means: channels between two roundings (16; None:
            all of a kernel position).
        rounding, key: as of `matmul`, with the keywords random_bits, overflow and infinite_input.
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
    images, kernel = as_images(x, "x", layout, groups), as_weight(weight, layout, groups)
    refuse_two_places(x=images, weight=kernel)
    if images.shape[-1] != kernel.shape[3]:
        raise ValueError(
            f"x has {images.shape[-1]} channels in each of {groups} groups, weight has {kernel.shape[3]}; "
            f"x has axes {layout.upper()}, weight {WEIGHT_AXES[layout]} (layout={layout!r})"
            f"{_other_axes(x, weight, layout, groups)}"
        )
    try:
        where = windows(images.shape[1:3], kernel.shape[:2], stride, padding, dilation)
    # Axes in PyTorch's order often show first in windows that do not fit.
    except ValueError as error:
        raise ValueError(f"{error}{_other_axes(x, weight, layout, groups)}") from None
    how = checked_sums(images.dtype, kernel.dtype, accumulation, rounding, key, keywords)
    shape = (images.shape[0], *where.count, groups, kernel.shape[4])
    result, target = result_array(out, shape, layout, how[0].out, x, weight)
    # Rows of random bits are output positions over (image, row, column), whatever the layout.
    place = BlockPlace(*first_element(offset), 0, where.count[0] * where.count[1], where.count[1])
    task = ConvolutionTask(*how, key, place, None, threads.current())
    backends.of(images).correlate(images, kernel, where.stride, where.dilation, where.padding, task, target)
    return finished(result, out)


def _other_axes(x: npt.ArrayLike, weight: npt.ArrayLike, layout: Layout, groups: int) -> str:
    """The hint that a refusal adds where the layout is NHWC and the operands' shapes look like PyTorch's; else ""."""
    return other_axes(whole_array(x).shape, whole_array(weight).shape, groups) if layout == "NHWC" else ""


@takes_foreign
def conv2d_input_gradient(
    gradient: npt.ArrayLike,
    weight: npt.ArrayLike,
    size: Pair,
    *,
    stride: int | Pair = 1,
    padding: Padding = 0,
    dilation: int | Pair = 1,
    groups: int = 1,
    layout: Layout = "NHWC",
    accumulation: Accumulation | None = None,
    rounding: RoundingLike = "nearest_even",
    key: KeyLike | None = None,
    out: Array | None = None,
    **keywords: Unpack[ProductKeywords],
) -> Array:
    """The gradient of a convolution's input: the output gradient convolved with the flipped, transposed kernel.

    Args:
        gradient: of the convolution's result, in its shape.
        weight: as `conv2d` had it.
        size: (h, w) of the convolution's input.
        stride, padding, dilation, groups, layout: as `conv2d` had them.
        accumulation, rounding, key, out, keywords: as of `conv2d`, for this sum; group: output channels between two
            roundings (16; None: all of a kernel position).

    Returns:
        (n, h, w, channels) or (n, channels, h, w) in out_format's (or accumulate's) storage dtype.

    Raises:
        TypeError, ValueError: as `conv2d`; a gradient whose shape is not that of the result.
    """
    outer, kernel = as_images(gradient, "gradient", layout, groups), as_weight(weight, layout, groups)
    refuse_two_places(gradient=outer, weight=kernel)
    # The gradient alone does not say it: under strides images of several sizes have results of one size.
    where = windows(checked_pair("size", size, 0), kernel.shape[:2], stride, padding, dilation)
    check_gradient(outer, where, kernel.shape[4], groups)
    how = checked_sums(outer.dtype, kernel.dtype, accumulation, rounding, key, keywords)
    shape = (outer.shape[0], *where.size, groups, kernel.shape[3])
    result, target = result_array(out, shape, layout, how[0].out, gradient, weight)
    # A transposed convolution without the zeros of a dilated gradient: one dense convolution for every phase of the
    # stride.
    flipped, blocks = kernel.swapaxes(3, 4), phase_blocks(where)
    # Batches count modulo 2^24: beyond, two phases would share their random bits.
    if how[1].stochastic and blocks and (blocks[-1].number + 1) * groups > MOST_BATCHES:
        raise ValueError(f"stochastic rounding tells at most 2^24 phases of groups apart; stride={stride!r} makes more")
    for block in blocks:
        part = flipped[block.kernel]
        # Times the groups: a phase has a batch for each of them.
        place = BlockPlace(0, 0, block.number * groups, block.row.count * block.column.count, block.column.count)
        task = ConvolutionTask(*how, key, place, None, threads.current())
        pads, here = block.pads(outer.shape[1:3]), target[:, block.rows, block.columns]
        backends.of(outer).correlate(outer, part, (1, 1), block.steps, pads, task, here)
    return finished(result, out)


@takes_foreign
def conv2d_weight_gradient(
    x: npt.ArrayLike,
    gradient: npt.ArrayLike,
    kernel: Pair,
    *,
    stride: int | Pair = 1,
    padding: Padding = 0,
    dilation: int | Pair = 1,
    groups: int = 1,
    layout: Layout = "NHWC",
    accumulation: Accumulation | None = None,
    rounding: RoundingLike = "nearest_even",
    key: KeyLike | None = None,
    out: Array | None = None,
    **keywords: Unpack[ProductKeywords],
) -> Array:
    """The gradient of a convolution's weight: for every kernel position a product over all output positions.

    Args:
        x: as `conv2d` had it.
        gradient: of the convolution's result, in its shape.
        kernel: (kh, kw) of the weight.
        stride, padding, dilation, groups, layout: as `conv2d` had them.
        accumulation, rounding, key, out, keywords: as of `conv2d`, for this sum; group: output positions between two
            roundings (16; None: all of a part).

    Returns:
        The weight's shape in out_format's (or accumulate's) storage dtype.

    Raises:
        TypeError, ValueError: as `conv2d`; a gradient whose shape is not that of the result.
    """
    images, outer = as_images(x, "x", layout, groups), as_images(gradient, "gradient", layout, groups)
    refuse_two_places(x=images, gradient=outer)
    # 0 is left to `windows`, whose sentence says what a kernel needs.
    where = windows(images.shape[1:3], checked_pair("kernel", kernel, 0), stride, padding, dilation)
    check_gradient(outer, where, outer.shape[4], groups, images.shape[0])
    how = checked_sums(images.dtype, outer.dtype, accumulation, rounding, key, keywords)
    shape = (*where.kernel, groups, images.shape[4], outer.shape[4])
    result, target = result_array(out, shape, layout, how[0].out, x, gradient, weight=True)
    # A row is (kernel row, kernel column, channel), the first, second and fourth axis of the sums.
    place = BlockPlace(0, 0, 0, where.kernel[1] * images.shape[4], images.shape[4])
    task = ConvolutionTask(*how, key, place, None, threads.current())
    backends.of(images).correlate_gradient(images, outer, where.stride, where.dilation, where.padding, task, target)
    return finished(result, out)
