"""Convolutions in a Block: their parameters, the shapes of their results, and their values in ideal arithmetic.

Images are (n, h, w, channels), weights (kh, kw, channels / groups, outputs). Parameters of all three operations are
stride, padding ((top, bottom), (left, right)), dilation and groups; the gradient of the input also has the input's
size (h, w), that of the weight the kernel's (kh, kw).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ipu_core.ir.block import Array, Equation, Params
from lowprec.values.windows import Windows, other_axes, window_view, windows, with_zeros

Shape = tuple[int, ...]

PARAMS = ("stride", "padding", "dilation", "groups")


def options(params: Params) -> dict[str, Any]:
    """The parameters that all three share."""
    return {name: params[name] for name in PARAMS}


def place(op: str, first: Shape, second: Shape, params: Params) -> Windows:
    """Where the windows of a convolution of these operands lie.

    Raises:
        ValueError: operands without four axes, or windows that do not fit into the image.
    """
    if len(first) != 4 or len(second) != 4:
        raise ValueError(f"{first} and {second} must both have four axes")
    size = params["size"] if op == "conv2d_input_gradient" else first[1:3]
    kernel = params["kernel"] if op == "conv2d_weight_gradient" else second[:2]
    return windows((size[0], size[1]), (kernel[0], kernel[1]), params["stride"], params["padding"], params["dilation"])


def result_shape(op: str, first: Shape, second: Shape, params: Params) -> Shape:
    """The shape of a convolution (images, weight), of its input gradient (gradient, weight) or of its weight gradient
    (images, gradient).

    Raises:
        ValueError: operands that do not fit together.
    """
    where, groups = place(op, first, second, params), params["groups"]
    if groups < 1:
        raise ValueError(f"groups must be at least 1, not {groups}")
    if first[3] % groups or second[3] % groups:
        raise ValueError(f"groups={groups} does not divide the channels of {first} and {second}")
    if op == "conv2d":
        if first[3] // groups != second[2]:
            raise ValueError(
                f"images {first} have {first[3]} channels in {groups} groups, the weight is {second}; images are "
                "(batch, height, width, channels), weights (height, width, channels, channels out)"
                f"{other_axes(first, second, groups)}"
            )
        return (first[0], *where.count, second[3])
    if op == "conv2d_input_gradient":
        if first[1:] != (*where.count, second[3]):
            raise ValueError(f"the gradient is {first}, the convolution gives {(first[0], *where.count, second[3])}")
        return (first[0], *where.size, second[2] * groups)
    if second[:3] != (first[0], *where.count):
        raise ValueError(f"the gradient is {second}, the convolution gives {(first[0], *where.count)} and channels")
    return (*where.kernel, first[3] // groups, second[3])


def place_of(equation: Equation) -> Windows:
    """Where the windows of a convolution's equation lie."""
    first, second = (var.type.shape for var in equation.operands)
    return place(equation.op, first, second, equation.params)


def exact_conv2d(x: Array, w: Array, params: Params) -> Array:
    """The convolution in float64."""
    seen = windowed(x, place("conv2d", x.shape, w.shape, params), params["groups"])
    kernel = w.reshape(*w.shape[:3], params["groups"], -1 if w.size else 0)
    result: Array = np.einsum("nyxijgc,ijcgo->nyxgo", seen, kernel, optimize=True)
    return result.reshape(*result.shape[:3], w.shape[3])


def exact_input_gradient(gradient: Array, w: Array, params: Params) -> Array:
    """The gradient of the images in float64: every product added where it came from."""
    where, groups = place("conv2d_input_gradient", gradient.shape, w.shape, params), params["groups"]
    (top, bottom), (left, right) = where.padding
    (high, wide), channels = where.size, w.shape[2]
    padded = np.zeros((gradient.shape[0], high + top + bottom, wide + left + right, groups, channels))
    outer = gradient.reshape(*gradient.shape[:3], groups, w.shape[3] // groups)
    kernel = w.reshape(*w.shape[:3], groups, w.shape[3] // groups)
    for i, j in np.ndindex(*where.kernel):
        padded[:, *reached(where, i, j)] += np.einsum("nyxgo,cgo->nyxgc", outer, kernel[i, j], optimize=True)
    inner = padded[:, top : top + high, left : left + wide]
    return inner.reshape(*inner.shape[:3], groups * channels)


def exact_weight_gradient(x: Array, gradient: Array, params: Params) -> Array:
    """The gradient of the weight in float64."""
    where, groups = place("conv2d_weight_gradient", x.shape, gradient.shape, params), params["groups"]
    outer = gradient.reshape(*gradient.shape[:3], groups, gradient.shape[3] // groups)
    result: Array = np.einsum("nyxijgc,nyxgo->ijcgo", windowed(x, where, groups), outer, optimize=True)
    return result.reshape(*result.shape[:3], gradient.shape[3])


def exact_weight_gradient_at(x: Array, gradient: Array, params: Params, at: Array) -> Array:
    """Elements of the gradient of the weight in float64, by their places in C order: of a few of them alone."""
    where, groups = place("conv2d_weight_gradient", x.shape, gradient.shape, params), params["groups"]
    row, column, channel, output = np.unravel_index(at, (*where.kernel, x.shape[3] // groups, gradient.shape[3]))
    group = output // (gradient.shape[3] // groups)
    seen = windowed(x, where, groups)[:, :, :, row, column, group, channel]
    return np.asarray(np.einsum("nyxe,nyxe->e", seen, gradient[..., output]))


def windowed(x: Array, where: Windows, groups: int) -> Array:
    """Images as their windows, a view (n, y, x, row and column of the kernel, group, channel)."""
    split = x.reshape(*x.shape[:3], groups, x.shape[3] // groups)
    return window_view(with_zeros(split, where.padding), where.kernel, where.stride, where.dilation, where.count)


def reached(where: Windows, i: int, j: int) -> tuple[slice, slice]:
    """The padded inputs that a kernel position meets in all windows."""
    row, column = (
        slice(k * d, k * d + (n - 1) * s + 1, s)
        for k, d, n, s in zip((i, j), where.dilation, where.count, where.stride, strict=True)
    )
    return row, column
