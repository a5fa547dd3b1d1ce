"""Convolutions and pooling. torch's images are (n, channels, h, w), the ones here (n, h, w, channels)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ipu_core.frontends.torch.operations.call import NodeCall, combined
from ipu_core.ir.trace.values import (
    Value,
    apply,
    concatenate,
    matmul,
    mean,
    reduce_max,
    reduce_sum,
    reshape,
    shape_of,
    transpose,
)
from ipu_core.nn import conv2d
from lowprec.values.windows import windows

LOWEST = -3e38  # what surrounds an image of which maxima are taken
Numbers = int | Sequence[int]


def last(x: Value) -> Value:
    """Channels moved behind the places."""
    return transpose(x, (0, *range(2, len(shape_of(x))), 1))


def first(x: Value) -> Value:
    """Channels moved before the places."""
    ndim = len(shape_of(x))
    return transpose(x, (0, ndim - 1, *range(1, ndim - 1)))


def pair(value: Numbers) -> tuple[int, int]:
    """A number for both axes; of one axis, that of a signal, the second of two."""
    given = [value] if isinstance(value, int) else list(value)
    return (given[0], given[-1])


def convolution(
    call: NodeCall, x: Value, weight: Value, bias: Value | None = None, stride: Numbers = 1, padding: Any = 0,
    dilation: Numbers = 1, groups: int = 1,
) -> Value:  # fmt: skip
    """A convolution of images or signals; a signal is an image of one line."""
    lines = len(shape_of(weight)) == 3
    if len(shape_of(x)) < len(shape_of(weight)):
        return convolution(call, reshape(x, (1, *shape_of(x))), weight, bias, stride, padding, dilation, groups)[0]
    if len(shape_of(weight)) > 4:
        raise NotImplementedError("convolutions of volumes")
    x, weight = (as_image(x), as_image(weight)) if lines else (x, weight)
    if padding == "same":
        # torch gives the odd one of "same" to the end
        spans = [d * (k - 1) for d, k in zip(pair(dilation), shape_of(weight)[2:], strict=True)]
        around: Any = tuple((span // 2, span - span // 2) for span in spans)
    else:
        around = _line(padding, 0, lines) if padding != "valid" else 0
    result = first(conv2d(
        last(x), transpose(weight, (2, 3, 1, 0)), bias,
        stride=_line(stride, 1, lines), padding=around, dilation=_line(dilation, 1, lines), groups=groups,
    ))  # fmt: skip
    return reshape(result, call.shape) if lines else result


def _line(value: Numbers, neutral: int, lines: bool) -> tuple[int, int]:
    """A number for each axis of an image, the first of which a signal does not have."""
    return (neutral, pair(value)[1]) if lines else pair(value)


def as_image(x: Value) -> Value:
    """A signal as an image of one line."""
    return reshape(x, (*shape_of(x)[:2], 1, shape_of(x)[2]))


def transposed(
    call: NodeCall, x: Value, weight: Value, bias: Value | None = None, stride: Numbers = 1, padding: Numbers = 0,
    output_padding: Numbers = 0, groups: int = 1, dilation: Numbers = 1,
) -> Value:  # fmt: skip
    """A transposed convolution: the gradient of a convolution with respect to its input."""
    lines = len(shape_of(weight)) == 3
    if len(shape_of(weight)) > 4:
        raise NotImplementedError("convolutions of volumes")
    x, weight = (as_image(x), as_image(weight)) if lines else (x, weight)
    # from torch's shape of the result: stride and padding leave several sizes open
    size = (1, call.shape[-1]) if lines else call.shape[2:]
    if groups > 1:  # the inputs of each group are outputs of the convolution
        inputs, outputs = shape_of(weight)[:2]
        parts = reshape(weight, (groups, inputs // groups, *shape_of(weight)[1:]))
        kernel = reshape(transpose(parts, (3, 4, 2, 0, 1)), (*shape_of(weight)[2:], outputs, inputs))
    else:
        kernel = transpose(weight, (2, 3, 1, 0))
    strides, around, apart = _line(stride, 1, lines), _line(padding, 0, lines), _line(dilation, 1, lines)
    where = windows((size[0], size[1]), pair(shape_of(weight)[2:]), strides, around, apart)
    result = apply("conv2d_input_gradient", last(x), kernel, stride=where.stride, padding=where.padding,
                   dilation=where.dilation, groups=groups, size=tuple(size))  # fmt: skip
    result = first(result if bias is None else combined("add", result, bias))
    return reshape(result, call.shape)


def pooled(take: Callable[..., Value]) -> Callable[..., Value]:
    """A pooling of images or signals by a function of (images with channels last, windows, ...)."""

    def pool(call: NodeCall, x: Value, kernel: Numbers, stride: Any = (), padding: Numbers = 0, *rest: Any) -> Value:
        # by name: three axes may be a batch of signals or one image
        lines = str(call.node.target._schema.name).endswith("1d")
        images = as_image(x if len(shape_of(x)) == 3 else reshape(x, (1, *shape_of(x)))) if lines else x
        if len(shape_of(images)) == 3:
            images = reshape(images, (1, *shape_of(images)))
        size = _line(kernel, 1, lines)
        step = size if stride in ((), [], None) else _line(stride, 1, lines)
        return reshape(first(take(last(images), size, step, _line(padding, 0, lines), *rest)), call.shape)

    return pool


def _windows(
    x: Value, kernel: Any, stride: Any, padding: Any, dilation: Any = (1, 1), beyond: Any = (0, 0)
) -> tuple[Value, tuple[int, ...]]:
    """The elements of all windows and the axes along which they lie: a view where the windows do not overlap.

    `beyond` is what the last windows reach over the padding, with zeros.
    """
    if any((*padding, *beyond)):
        ends = [p + more for p, more in zip(padding, beyond, strict=True)]
        x = apply("pad", x, low=(0, *padding, 0), high=(0, *ends, 0), interior=(0,) * 4)
    n, high, wide, channels = shape_of(x)
    down, across = ((size - d * (k - 1) - 1) // s + 1
                    for size, k, s, d in zip((high, wide), kernel, stride, dilation, strict=True))  # fmt: skip
    # windows that do not overlap are a reshape: no element is copied
    if tuple(kernel) == tuple(stride) and tuple(dilation) == (1, 1):
        whole = x[:, : down * kernel[0], : across * kernel[1]]
        return reshape(whole, (n, down, kernel[0], across, kernel[1], channels)), (2, 4)
    lines, places = (
        [slice(i * d, i * d + (count - 1) * s + 1, s) for i in range(k)]
        for k, s, d, count in zip(kernel, stride, dilation, (down, across), strict=True)
    )
    cut = [x[:, line, place] for line in lines for place in places]
    return concatenate([reshape(one, (n, down, across, 1, channels)) for one in cut], 3), (3,)


def max_pool(x: Value, kernel: Any, stride: Any, padding: Any, dilation: Numbers = 1, ceil: bool = False) -> Value:
    """The gradient goes to the largest element, in equal shares where several are; torch gives it to the first."""
    beyond = _beyond(x, kernel, stride, padding, pair(dilation), ceil)
    if any((*padding, *beyond)):
        sides = [(p, p + more) for p, more in zip(padding, beyond, strict=True)]
        # a choice by place, not a padded value: the padding may be the largest, and gets no gradient
        inside = np.pad(np.ones(shape_of(x)[1:3], np.float32), sides)[None, :, :, None]
        low, high = zip((0, 0), *sides, (0, 0), strict=True)
        x = combined("select", inside, apply("pad", x, low=low, high=high, interior=(0,) * 4), LOWEST)
    parts, axes = _windows(x, kernel, stride, (0, 0), pair(dilation))
    return reduce_max(parts, axes)


def avg_pool(
    x: Value, kernel: Any, stride: Any, padding: Any, ceil: bool = False, include: bool = True,
    divisor: int | None = None,
) -> Value:  # fmt: skip
    """The sum over its elements' number, or the window's size with its padding; never over what lies beyond."""
    beyond = _beyond(x, kernel, stride, padding, (1, 1), ceil)
    parts, axes = _windows(x, kernel, stride, padding, beyond=beyond)
    total = reduce_sum(parts, axes)
    if divisor or not any(beyond if include else (*padding, *beyond)):
        return combined("multiply", total, 1 / (divisor or math.prod(kernel)))
    around = [(p, p) for p in padding]
    # counts are constants of the sizes: torch leaves out what lies beyond the padding, and the padding if asked to
    ones = np.pad(np.ones(shape_of(x)[1:3], np.float32), around, constant_values=include)[None, :, :, None]
    counts, axes = _windows(ones, kernel, stride, (0, 0), beyond=beyond)
    return combined("divide", total, reduce_sum(counts, axes))


def _beyond(x: Value, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil: bool) -> tuple[int, ...]:
    """How far the last windows reach over the padding where `ceil` adds one, which begins within image or padding."""
    result = []
    for size, k, s, p, d in zip(shape_of(x)[1:3], kernel, stride, padding, dilation, strict=True):
        room, span = size + 2 * p, d * (k - 1) + 1
        last = -(-(room - span) // s) * s if ceil else 0
        # torch drops a last window that begins in the padding behind the image
        result.append(max(last + span - room, 0) if last < size + p else 0)
    return tuple(result)


def spans(size: int, count: int) -> list[tuple[int, int]]:
    """Where the windows of an adaptive pooling begin and end along one axis."""
    return [(i * size // count, -(-(i + 1) * size // count)) for i in range(count)]


def adaptive_mean(call: NodeCall, x: Value, size: Any) -> Value:
    """The mean over all places, or products with the shares of the places in each window."""
    count = len(size) if isinstance(size, list | tuple) else 1
    wanted = call.shape[-count:]
    ndim = len(shape_of(x))
    if all(n == 1 for n in wanted):
        return mean(x, tuple(range(ndim - count, ndim)), True)
    for place in range(ndim - count, ndim):
        n, parts = shape_of(x)[place], call.shape[place]
        if n == parts:
            continue
        if n % parts == 0:
            # windows of one length: a mean; else they overlap, and a product with their shares adds them up
            apart = reshape(x, (*shape_of(x)[:place], parts, n // parts, *shape_of(x)[place + 1 :]))
            x = mean(apart, place + 1)
            continue
        shares = np.zeros((n, parts), call.width)
        for i, (start, stop) in enumerate(spans(n, parts)):
            shares[start:stop, i] = 1 / (stop - start)
        order = (*(i for i in range(ndim) if i != place), place)
        x = transpose(matmul(transpose(x, order), shares), np.argsort(order).tolist())
    return x


def adaptive_max(call: NodeCall, x: Value, size: Any) -> list[Value | None]:
    """The largest of each window; the places, which it gives too, are refused where they are used."""
    count = len(size) if isinstance(size, list | tuple) else 1
    wanted, ndim = call.node.meta["val"][0].shape, len(shape_of(x))
    for place in range(ndim - count, ndim):
        n, parts = shape_of(x)[place], wanted[place]
        pieces = [reduce_max(x[(slice(None),) * place + (slice(*span),)], place, True) for span in spans(n, parts)]
        x = concatenate(pieces, place)
    return [x, None]


max_pool_of = pooled(max_pool)
TABLE: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("conv1d", "conv2d"), convolution),
    **dict.fromkeys(("conv_transpose1d", "conv_transpose2d"), transposed),
    **dict.fromkeys(("max_pool1d", "max_pool2d"), max_pool_of),
    **dict.fromkeys(("avg_pool1d", "avg_pool2d"), pooled(avg_pool)),
    **dict.fromkeys(("adaptive_avg_pool1d", "adaptive_avg_pool2d"), adaptive_mean),
    **dict.fromkeys(("adaptive_max_pool1d", "adaptive_max_pool2d"), adaptive_max),
}  # fmt: skip
