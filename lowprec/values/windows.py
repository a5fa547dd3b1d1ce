"""Where the windows of a convolution lie: strides, padding, dilation, the result's size, and phases of strides."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import as_strided

from lowprec._caching import cached
from lowprec.integers import ceil_div
from lowprec.types import Array, Pair

Padding = int | str | Sequence[int] | Sequence[Sequence[int]]
LARGEST_NUMBER, LARGEST_IMAGE = 1 << 31, 1 << 40
"""What strides, dilations and pads stay below; the most positions of a padded image. Products of them fit 64 bits."""

REMEMBERED_PHASES = 16
"""The most phases of a convolution whose blocks are kept in a cache.

With more they are made anew at every call: 4,096 remembered lists of a block per pixel would fill the memory.
"""


@dataclass(frozen=True)
class Windows:
    """The windows along both axes of an image; every pair is (height, width).

    Attributes:
        size: of the image.
        kernel: positions of the kernel.
        stride: distance of neighbouring windows.
        dilation: distance of neighbouring kernel positions.
        padding: ((top, bottom), (left, right)).
    """

    size: Pair
    kernel: Pair
    stride: Pair = (1, 1)
    dilation: Pair = (1, 1)
    padding: tuple[Pair, Pair] = ((0, 0), (0, 0))

    @cached_property
    def count(self) -> Pair:
        """Windows along each axis: the size of the convolution's result."""
        first, second = (
            (size + sum(pad) - (kernel - 1) * dilation - 1) // stride + 1
            for size, pad, kernel, dilation, stride in zip(
                self.size, self.padding, self.kernel, self.dilation, self.stride, strict=True
            )
        )
        return first, second


class BlockPlace(NamedTuple):
    """Where a block of a convolution's sums lies in the whole result; its random bits follow from this.

    The sum at (i, j, k) along the block's first three axes has the row `row + i * outer + j * inner + k`.

    Attributes:
        row, column: of the block's first sum.
        batch: the number of its first convolution group.
        outer, inner: rows from one index to the next along its first and second axis.
        group: the global number of the first group of products that is summed here.
    """

    row: int
    column: int
    batch: int
    outer: int
    inner: int
    group: int = 0

    def joined(self, shape: tuple[int, ...]) -> bool:
        """Whether the rows of a block of this shape, over its first three axes in C order, have successive numbers."""
        # Along an axis of length 1 no step is ever taken, so its distance does not count.
        return (shape[1] == 1 or self.inner == shape[2]) and (shape[0] == 1 or self.outer == shape[1] * shape[2])


@dataclass(frozen=True)
class WindowPhase:
    """The inputs along one axis that the same kernel positions reach: every `stride`-th, from `first`.

    An input is reached by a kernel position from an output if that position of the output's window lies on the input.

    Attributes:
        residue: (index + pad in front) mod stride, the same for all of them.
        first: index of the first one.
        count: how many there are.
        positions: the kernel positions that reach them, descending (the flipped kernel).
        start: index of the output from which the first of `positions` reaches the first input; may lie outside.
        step: distance of the outputs from which neighbouring `positions` reach one input.
    """

    residue: int
    first: int
    count: int
    positions: range
    start: int
    step: int


def windows(size: Pair, kernel: Pair, stride: int | Pair, padding: Padding, dilation: int | Pair) -> Windows:
    """The checked Windows.

    Raises:
        TypeError: numbers that are no integers.
        ValueError: numbers out of range, unknown names, windows larger than the padded image.
    """
    # Only plain numbers and names are looked up: (1.0, 1.0) equals (1, 1) and would find its result, unchecked.
    if type(stride) is type(dilation) is int and type(padding) in (int, str):
        return _checked_windows(size, kernel, stride, padding, dilation)
    return _windows(size, kernel, stride, padding, dilation)


def _windows(size: Pair, kernel: Pair, stride: int | Pair, padding: Padding, dilation: int | Pair) -> Windows:
    if min(kernel) < 1:
        raise ValueError(f"a kernel has at least one position along each axis, not {kernel[0]} x {kernel[1]}")
    strides, dilations = checked_pair("stride", stride, 1, one=True), checked_pair("dilation", dilation, 1, one=True)
    pads = _padding(padding, size, kernel, strides, dilations)
    result = Windows(size, kernel, strides, dilations, pads)
    padded = [n + sum(pad) for n, pad in zip(size, pads, strict=True)]
    # Before anything is allocated: a padding of 2^30 is a slip, not an image.
    if math.prod(padded) > LARGEST_IMAGE:
        raise ValueError(f"padding={padding!r} makes an image of {padded[0]} x {padded[1]}, more than 2^40 positions")
    if min(result.count) < 1:
        extent = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
        raise ValueError(
            f"windows of {extent[0]} x {extent[1]} do not fit into the padded image of {padded[0]} x {padded[1]}"
        )
    return result


_checked_windows = cached(_windows)


def other_axes(images: Sequence[int], weight: Sequence[int], groups: int) -> str:
    """What a refusal of images (n, h, w, channels) or a weight (kh, kw, channels / groups, outputs) adds where their
    shapes look like PyTorch's, (n, channels, h, w) and (outputs, channels / groups, kh, kw)."""
    fits = len(weight) == len(images) == 4
    if fits and weight[1] * groups in (images[1], images[3]):
        kernel = "a weight (outputs, channels, kh, kw) becomes one by weight.transpose(2, 3, 1, 0)"
        # Where both axes would fit, the images may be right and the weight alone turned.
        first = weight[1] * groups == images[1] and weight[1] * groups != images[3]
        return f"; from channels first: x.transpose(0, 2, 3, 1), and {kernel}" if first else f"; {kernel}"
    return "; from channels first: x.transpose(0, 2, 3, 1)" if fits and weight[2] * groups == images[1] else ""


def phases(stride: int, kernel: int, dilation: int, front: int, size: int) -> list[WindowPhase]:
    """The phases of an axis of `size` inputs that are not empty, in the order of (index + front) mod stride."""
    result = []
    # The first `stride` inputs have every residue there is; a loop over the stride itself could be 2^31 long.
    for residue in sorted((index + front) % stride for index in range(min(stride, size))):
        first = (residue - front) % stride
        reached = [k for k in range(kernel) if (k * dilation - residue) % stride == 0]
        # k * dilation meets the same residue again after stride / gcd positions.
        apart = stride // math.gcd(stride, dilation)
        positions = range(reached[-1], reached[0] - 1, -apart) if reached else range(0)
        # Without remainder: `positions` were chosen so.
        start = (first + front - positions[0] * dilation) // stride if reached else 0
        count = ceil_div(size - first, stride)
        result.append(WindowPhase(residue, first, count, positions, start, dilation // math.gcd(stride, dilation)))
    return result


@dataclass(frozen=True)
class PhaseBlock:
    """The inputs of one phase in each axis: one convolution of the output gradient gives their gradients.

    Attributes:
        number: of the pair of phases, for the random bits (see `lowprec.convolution`).
        row, column: the phases along the two axes.
        stride: of the convolution.
    """

    number: int
    row: WindowPhase
    column: WindowPhase
    stride: Pair

    @property
    def steps(self) -> Pair:
        """Distances of the outputs that neighbouring kernel positions reach an input from."""
        return self.row.step, self.column.step

    @property
    def rows(self) -> slice:
        """The rows of inputs."""
        return slice(self.row.first, None, self.stride[0])

    @property
    def columns(self) -> slice:
        """The columns of inputs."""
        return slice(self.column.first, None, self.stride[1])

    @property
    def kernel(self) -> tuple[slice, slice]:
        """The kernel positions that reach an input, descending."""
        reached = self.row.positions, self.column.positions
        # A stop of -1 would mean the last position, not one before the first.
        high, wide = (slice(p.start, p.stop if p.stop >= 0 else None, p.step) for p in reached)
        return high, wide

    def pads(self, size: Pair) -> tuple[Pair, Pair]:
        """Zeros ((top, bottom), (left, right)) around an output gradient of this size; negative: so much is cut off."""
        top, left = (
            (-axis.start, axis.start + axis.count + max(0, len(axis.positions) - 1) * axis.step - length)
            for axis, length in ((self.row, size[0]), (self.column, size[1]))
        )
        return top, left


def phase_blocks(where: Windows) -> tuple[PhaseBlock, ...]:
    """The blocks of a convolution's inputs that are not empty."""
    # As many phases as that, if the image is large enough.
    few = where.stride[0] * where.stride[1] <= REMEMBERED_PHASES
    return _known_phase_blocks(where) if few else _phase_blocks(where)


def _phase_blocks(where: Windows) -> tuple[PhaseBlock, ...]:
    high, wide = (
        phases(where.stride[i], where.kernel[i], where.dilation[i], where.padding[i][0], where.size[i]) for i in (0, 1)
    )
    return tuple(
        # The number goes into the random bits: of residues, so that it does not depend on which phases are empty.
        PhaseBlock(row.residue * where.stride[1] + column.residue, row, column, where.stride)
        for row in high
        for column in wide
    )


_known_phase_blocks = cached(_phase_blocks)


def window_view(x: Array, kernel: Pair, stride: Pair, dilation: Pair, count: Pair) -> Array:
    """x (n, h, w, ..) as (n, rows of windows, windows of a row, kernel rows, kernel columns, ..), without a copy."""
    n, high, wide = x.strides[:3]
    strides = (n, high * stride[0], wide * stride[1], high * dilation[0], wide * dilation[1], *x.strides[3:])
    bits = x.view(f"u{x.itemsize}")  # as_strided does not know all of ml_dtypes' types
    shape = (x.shape[0], *count, *kernel, *x.shape[3:])
    return as_strided(bits, shape, strides, writeable=False).view(x.dtype)


def window_lines(x: Array, kernel: Pair, stride: Pair, dilation: Pair, count: Pair) -> Array:
    """As `window_view`, of a copy in which an element of neighbouring windows of a line lies at neighbouring addresses.

    At stride 1 the lines of an image follow each other too. Weight gradients with few channels copy panels from it.
    """
    lines = contiguous(x.transpose(3, 4, 0, 1, 2)).transpose(2, 3, 4, 0, 1)
    apart = window_view(lines, (1, kernel[1]), (1, stride[1]), (1, dilation[1]), (x.shape[1], count[1]))[:, :, :, 0]
    shifted = contiguous(apart.transpose(4, 5, 3, 0, 1, 2)).transpose(3, 4, 5, 2, 0, 1)
    return window_view(shifted, (kernel[0], 1), (stride[0], 1), (dilation[0], 1), count)[:, :, :, :, 0]


def with_zeros(x: Array, padding: tuple[Pair, Pair]) -> Array:
    """x (n, h, w, ..) with zeros around it, or with less of it where a number is negative; x itself if all are 0."""
    (top, bottom), (left, right) = padding
    # A phase of an input gradient may need less than the whole output gradient: negative pads cut it.
    inner = x[:, max(0, -top) : x.shape[1] - max(0, -bottom), max(0, -left) : x.shape[2] - max(0, -right)]
    if max(top, bottom, left, right) <= 0:
        return inner
    top, left = max(0, top), max(0, left)
    high, wide = inner.shape[1] + top + max(0, bottom), inner.shape[2] + left + max(0, right)
    result = np.zeros((x.shape[0], high, wide, *x.shape[3:]), x.dtype)
    result[:, top : top + inner.shape[1], left : left + inner.shape[2]] = inner
    return result


def contiguous(x: Array) -> Array:
    """x in C order, copied as integers: NumPy copies some of ml_dtypes' types one by one."""
    return np.ascontiguousarray(x.view(f"u{x.itemsize}")).view(x.dtype)


def checked_pair(name: str, value: Any, least: int, *, one: bool = False) -> Pair:
    """Two integers in [least, LARGEST_NUMBER); where `one` allows it, a single one stands for both.

    Raises:
        TypeError: something else.
        ValueError: a number out of range.
    """
    pair = (value, value) if one and isinstance(value, int | np.integer) else value
    plain = isinstance(pair, Sequence) and not isinstance(pair, str | bytes)
    if not plain or len(pair) != 2 or not all(isinstance(v, int | np.integer) for v in pair):
        allowed = "an integer or a pair of integers" if one else "a pair of integers"
        raise TypeError(f"{name} must be {allowed}, not {value!r}")
    if min(pair) < least:
        raise ValueError(f"{name} must be at least {least}, not {value!r}")
    if max(pair) >= LARGEST_NUMBER:
        raise ValueError(f"{name} must be less than 2^31, not {value!r}")
    return int(pair[0]), int(pair[1])


def _padding(padding: Any, size: Pair, kernel: Pair, stride: Pair, dilation: Pair) -> tuple[Pair, Pair]:
    """The pads ((top, bottom), (left, right)) that any of the allowed forms describes."""
    if isinstance(padding, str):
        if padding == "valid":
            return (0, 0), (0, 0)
        if padding != "same":
            raise ValueError(f"unknown padding {padding!r}; allowed are same, valid, integers and pairs")
        both = [
            max(0, (ceil_div(n, s) - 1) * s + (k - 1) * d + 1 - n)
            for n, k, s, d in zip(size, kernel, stride, dilation, strict=True)
        ]
        # TensorFlow's rule for an odd pad: the rest goes to the bottom and the right.
        return (both[0] // 2, both[0] - both[0] // 2), (both[1] // 2, both[1] - both[1] // 2)
    if isinstance(padding, Sequence) and len(padding) == 2 and all(isinstance(pad, Sequence) for pad in padding):
        return checked_pair("padding", padding[0], 0), checked_pair("padding", padding[1], 0)
    high, wide = checked_pair("padding", padding, 0, one=True)
    return (high, high), (wide, wide)
