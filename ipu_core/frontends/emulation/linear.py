"""Products and convolutions of torch, and their gradients, by lowprec: what a dispatch mode calls in their place."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

import lowprec
from ipu_core.ir.block import Array


class How(Protocol):
    """How a product is made."""

    def operand(self, tensor: Any) -> Array:
        """A tensor in the format in which it goes into the product."""

    def sums(self, role: str | None = None) -> dict[str, Any]:
        """The keywords of lowprec's products; counts one, of a role or that of the operation."""

    def tensor(self, array: Array) -> Any:
        """A result as a float32 tensor."""

    def rounded(self, tensor: Any, family: str = "elementwise") -> Any:
        """A float32 result of torch, rounded once in place."""


def mm(how: How, a: Any, b: Any) -> Any:
    """The product of two matrices, batches of matrices, or vectors."""
    return how.tensor(np.asarray(lowprec.matmul(how.operand(a), how.operand(b), **how.sums())))


def addmm(how: How, bias: Any, a: Any, b: Any, beta: float = 1, alpha: float = 1) -> Any:
    """beta * bias + alpha * (a @ b), rounded after each operation."""
    product = mm(how, a, b)
    # torch computes it as one operation; the machine has a product and an addition, each with its rounding
    product = product if alpha == 1 else how.rounded(product * alpha)
    if beta == 0:
        # torch does not read the bias where beta is 0: it may hold NaN
        return product.expand(np.broadcast_shapes(bias.shape, product.shape)).clone()
    return how.rounded(product + (bias if beta == 1 else how.rounded(bias * beta)))


def convolution(
    how: How, x: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any, transposed: bool, extra: Any,
    groups: int,
) -> Any:  # fmt: skip
    """A convolution of lines or images; transposed: the gradient of a convolution with respect to its input."""
    space = Space(x, stride, padding, dilation, groups)
    given, kernel = space.images(how.operand(x)), space.images(how.operand(weight))
    if transposed:
        size = space.grown(given.shape[2:], kernel.shape[2:], extra)
        made = lowprec.conv2d_input_gradient(given, kernel, size, **space.keywords, **how.sums())
    else:
        made = lowprec.conv2d(given, kernel, **space.keywords, **how.sums())
    result = how.tensor(space.back(made))
    return result if bias is None else how.rounded(result + bias.reshape(-1, *(1,) * (x.dim() - 2)))


def convolution_backward(
    how: How, gradient: Any, x: Any, weight: Any, sizes: Any, stride: Any, padding: Any, dilation: Any,
    transposed: bool, extra: Any, groups: int, wanted: Sequence[bool],
) -> tuple[Any, Any, Any]:  # fmt: skip
    """The gradients of input, weight and bias, those that are wanted."""
    space = Space(x, stride, padding, dilation, groups)
    outer = space.images(how.operand(gradient))
    given, kernel = space.images(how.operand(x)), space.images(how.operand(weight))
    first = second = third = None
    if wanted[0] and transposed:
        # a transposed convolution is the gradient of one, so its own gradient is that convolution
        first = lowprec.conv2d(outer, kernel, **space.keywords, **how.sums("grad_input"))
    elif wanted[0]:
        first = lowprec.conv2d_input_gradient(
            outer, kernel, given.shape[2:], **space.keywords, **how.sums("grad_input")
        )
    if wanted[1]:
        # for the same reason image and gradient change places
        inner, over = (outer, given) if transposed else (given, outer)
        second = lowprec.conv2d_weight_gradient(
            inner, over, kernel.shape[2:], **space.keywords, **how.sums("grad_weight")
        )
    if wanted[2]:
        third = how.rounded(gradient.sum([axis for axis in range(gradient.dim()) if axis != 1]), "reduction")
    made = [None if array is None else how.tensor(space.back(array)) for array in (first, second)]
    return made[0], made[1], third


class Space:
    """The axes of a convolution as those of images: a line is an image of one row.

    Args:
        x: the input.
        stride, padding, dilation: a number for each axis.
        groups: of channels.

    Raises:
        NotImplementedError: volumes.
    """

    def __init__(self, x: Any, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], groups: int):
        self.line = x.dim() == 3
        if x.dim() not in (3, 4):
            raise NotImplementedError("convolutions of volumes")
        missing = 2 - (x.dim() - 2)
        self.stride = (1,) * missing + _pair(stride, 2 - missing)
        self.padding = (0,) * missing + _pair(padding, 2 - missing)
        self.dilation = (1,) * missing + _pair(dilation, 2 - missing)
        self.keywords: dict[str, Any] = {"stride": self.stride, "padding": self.padding, "dilation": self.dilation,
                                         "groups": groups, "layout": "NCHW"}  # fmt: skip

    def images(self, array: Array) -> Array:
        """The array with four axes, a line as an image of one row."""
        return array[:, :, None] if self.line else array

    def back(self, array: Array) -> Array:
        """The array with as many axes as torch has."""
        return array[:, :, 0] if self.line else array

    def grown(self, size: Sequence[int], kernel: Sequence[int], extra: Sequence[int]) -> tuple[int, int]:
        """The size of what a transposed convolution makes."""
        more = (0,) * (2 - len(extra)) + tuple(extra)
        axes = zip(size, kernel, self.stride, self.padding, self.dilation, more, strict=True)
        high, wide = [(n - 1) * s - 2 * p + d * (k - 1) + e + 1 for n, k, s, p, d, e in axes]
        return high, wide


def _pair(numbers: Sequence[int], count: int) -> tuple[int, ...]:
    """A number for each axis, where one may stand for all."""
    return tuple(numbers) * count if len(numbers) == 1 else tuple(numbers)


PRODUCTS: Mapping[str, Callable[..., Any]] = {
    "mm": mm, "bmm": mm, "mv": mm, "dot": mm, "vdot": mm, "addmm": addmm, "baddbmm": addmm, "addmv": addmm,
    "convolution": convolution, "convolution_backward": convolution_backward,
}  # fmt: skip
