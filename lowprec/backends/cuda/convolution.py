"""Convolutions of CuPy arrays: the chains of product.cu over windows, and the launch of sums.cu that ends them.

Nothing is copied into panels: a thread finds the element of a row and a term by their axes (`struct Windows`).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from lowprec.backends.cuda.device import download, upload
from lowprec.backends.cuda.products import LONGEST, launched
from lowprec.backends.cuda.records import PRODUCT, WINDOWS, Record, format_record
from lowprec.backends.cuda.sums import finish_parts, numbers_on_device, set_numbers, sum_record
from lowprec.backends.owner import is_cupy
from lowprec.integers import ceil_div
from lowprec.types import Array, Pair
from lowprec.values.accumulation import Accumulation
from lowprec.values.convolution_task import ConvolutionTask
from lowprec.values.operands import operand_format
from lowprec.values.windows import BlockPlace

_NOWHERE = (0, 0, 0)


class _Image(NamedTuple):
    """Where a row and a term of the products meet in an image: both coordinates by the axes of rows and of terms.

    Attributes:
        first: coordinates of the first row's first term; negative in padding.
        size: of the image.
        rows, terms: for each coordinate, its steps along the three axes.
    """

    first: Pair = (0, 0)
    size: Pair = (1, 1)
    rows: tuple[tuple[int, ...], tuple[int, ...]] = (_NOWHERE, _NOWHERE)
    terms: tuple[tuple[int, ...], tuple[int, ...]] = (_NOWHERE, _NOWHERE)


class _Side(NamedTuple):
    """An operand: its array, byte steps along the axes of lines and of terms, and from one group to the next."""

    array: Any
    lines: tuple[int, ...]
    terms: tuple[int, ...]
    group: int
    start: int = 0  # bytes from the array's first element to that of the first line's first term


def correlate(
    x: Any, weight: Any, stride: Pair, dilation: Pair, padding: tuple[Pair, Pair], task: ConvolutionTask, out: Any
) -> None:
    """Writes into out (n, oh, ow, groups, N) the products of the windows of x (n, h, w, groups, C) with weight.

    Args:
        weight: (kh, kw, groups, C, N).
        padding: zeros around x; negative: so much is cut off.
        task: how; its place is out's, its span is all.
    """
    if not is_cupy(x):
        return _on_device(correlate, (x, weight), out, stride, dilation, padding, task)
    image, start = _placed(x, (1, 2), stride, dilation, padding, terms_from=0)
    n, high, wide, group, channel = x.strides
    rows, positions = (n, high * stride[0], wide * stride[1]), (high * dilation[0], wide * dilation[1])
    _forward(_Side(x, rows, (*positions, channel), group, start), weight, image, task, out)
    return None


def correlate_windows(windows: Any, weight: Any, task: ConvolutionTask, out: Any) -> None:
    """Writes into out (n, oh, ow, groups, N) the products of windows (n, oh, ow, kh, kw, groups, C) with weight."""
    if not is_cupy(windows):
        return _on_device(correlate_windows, (windows, weight), out, task)
    steps = windows.strides
    _forward(_Side(windows, steps[:3], (*steps[3:5], steps[6]), steps[5]), weight, _Image(), task, out)
    return None


def correlate_gradient(
    x: Any, gradient: Any, stride: Pair, dilation: Pair, padding: tuple[Pair, Pair], task: ConvolutionTask, out: Any
) -> None:
    """Writes into out (kh, kw, groups, C, N) the products of the windows of x (n, h, w, groups, C) with gradient.

    Args:
        gradient: (n, oh, ow, groups, N).
        padding: zeros around x; negative: so much is cut off.
        task: how; its place is out's, its span is all.
    """
    if not is_cupy(x):
        return _on_device(correlate_gradient, (x, gradient), out, stride, dilation, padding, task)
    image, start = _placed(x, (0, 1), dilation, stride, padding, terms_from=1)
    n, high, wide, group, channel = x.strides
    rows, positions = (high * dilation[0], wide * dilation[1], channel), (n, high * stride[0], wide * stride[1])
    _backward(_Side(x, rows, positions, group, start), gradient, image, task, out)
    return None


def weight_sums(windows: Any, gradient: Any, task: ConvolutionTask, out: Any) -> None:
    """Writes into out (kh, kw, groups, C, N) the products of windows and gradient over all positions, or a span.

    Args:
        windows: (n, oh, ow, kh, kw, groups, C).
        gradient: (n, oh, ow, groups, N).
        task: how; its place is out's.
    """
    if not is_cupy(windows):
        return _on_device(weight_sums, (windows, gradient), out, task)
    steps = windows.strides
    _backward(_Side(windows, (*steps[3:5], steps[6]), steps[:3], steps[5]), gradient, _Image(), task, out)
    return None


def _on_device(call: Any, operands: tuple[Array, Array], out: Array, *how: Any) -> None:
    """A call on NumPy arrays, which come here inside `backend("cuda")`: they travel to the GPU and back."""
    there = upload(np.ascontiguousarray(out))
    call(*map(upload, operands), *how, there)
    download(there, out)


def _placed(
    x: Any, row_axes: Pair, row_steps: Pair, term_steps: Pair, padding: tuple[Pair, Pair], terms_from: int
) -> tuple[_Image, int]:
    """The image of windows of x, and the bytes from its first element to the first window's, which padding may hold."""
    first = (-padding[0][0], -padding[1][0])

    def step(axis: int, size: int) -> tuple[int, ...]:
        return tuple(size if at == axis else 0 for at in range(3))

    rows = step(row_axes[0], row_steps[0]), step(row_axes[1], row_steps[1])
    terms = step(terms_from, term_steps[0]), step(terms_from + 1, term_steps[1])
    return _Image(first, x.shape[1:3], rows, terms), first[0] * x.strides[1] + first[1] * x.strides[2]


def _forward(a: _Side, weight: Any, image: _Image, task: ConvolutionTask, out: Any) -> None:
    """The sums over kernel positions and channels into out (n, oh, ow, groups, N); a group ends with its position."""
    high, wide, _, channels, _ = weight.shape
    order, span = task.accumulation, task.span
    group = max(1, min(order.group or channels, channels))
    # Where nothing rounds between groups they may cross kernel positions: nothing has to be filled up.
    plain = span is None and task.rules.step is None and order.splits == 1
    depth = channels if plain else ceil_div(channels, group) * group
    terms = (0, high * wide * depth) if span is None else (span[0] * group, span[1] * group)
    rows, row, weights, channel, column = weight.strides
    b = _Side(weight, (column,), (rows, row, channel), weights)
    cut = _Cut(group, order, terms, (high, wide, depth), channels)
    _summed(a, b, cut, image, task, out.transpose(3, 0, 1, 2, 4))


def _backward(a: _Side, gradient: Any, image: _Image, task: ConvolutionTask, out: Any) -> None:
    """The sums over output positions into out (kh, kw, groups, C, N)."""
    images, high, wide, _, _ = gradient.shape
    first, last = task.span or (0, images * high * wide)
    n, rows, row, group, column = gradient.strides
    cut = _Cut(task.accumulation.group_of(last - first), task.accumulation, (first, last), (images, high, wide), wide)
    _summed(a, _Side(gradient, (column,), (n, rows, row), group), cut, image, task, out.transpose(2, 0, 1, 3, 4))


class _Cut(NamedTuple):
    """The terms of a sum.

    Attributes:
        group: how many lie between two roundings.
        order: their Accumulation, for its parts and stages.
        terms: the first and the last (exclusive) that are summed.
        sizes: of their three axes.
        there: how many of the last axis are no filling.
    """

    group: int
    order: Accumulation
    terms: Pair
    sizes: tuple[int, int, int]
    there: int


def _summed(a: _Side, b: _Side, cut: _Cut, image: _Image, task: ConvolutionTask, out: Any) -> None:
    """The products over windows into out (groups, and three axes of rows, N), any strides.

    Raises:
        ValueError: an adder other than the sequential one; a NaN, where the result's format has none.
    """
    if cut.order.adder != "sequential":
        raise ValueError(f"on a GPU products are made by the sequential adder, not {cut.order.adder!r}")
    if out.size == 0:
        return
    groups, *lines, columns = out.shape
    place, rules = task.place, task.rules
    # Rows without gaps among the random bits are numbered through; else each line of them is a vertex of its own.
    joined = place.joined(tuple(lines)) or not rules.stochastic
    own = {"row": place.row, "batch": place.batch} if joined else _numbers(place, out.shape[:3])
    numbers = numbers_on_device(own | {"column": place.column, "first_group": place.group}, out.shape[:3])
    vertices, steps = ((groups,), (a.group,)) if joined else (out.shape[:3], (a.group, *a.lines[:2]))
    through = math.prod(lines) if joined else 0
    k = cut.terms[1] - cut.terms[0]
    pieces = Accumulation(cut.group, cut.order.splits, cut.order.stages).cut(k)
    sums = sum_record(vertices, steps, rules, task.key, numbers)
    group = LONGEST if rules.step is None else min(pieces.group, LONGEST)
    set_numbers(sums, m=through or lines[2], through=through, k=k, n=columns)
    set_numbers(sums, group=group, part=min(pieces.part, LONGEST), parts=max(1, pieces.parts))
    set_numbers(sums, x=a.array.data.ptr + a.start, x_row=a.lines[2], x_k=a.terms[2])
    sums["source"] = format_record(operand_format(a.array.dtype))[()]
    record = np.zeros((), PRODUCT)
    record["sums"], record["b_format"] = sums, format_record(operand_format(b.array.dtype))[()]
    record["b_step"][0] = b.group
    set_numbers(record, b=b.array.data.ptr, b_k=b.terms[2], b_column=b.lines[0])
    record["windows"] = _windows(a, b, cut, image, lines if joined else [1, 1, lines[2]])[()]
    with out.device as device:
        chains = launched(record, a.array.dtype, b.array.dtype, rules, device.id, windows=True)
    # The results' strides may need three axes of rows.
    last = sum_record(out.shape[:3], (0, 0, 0), rules, task.key, numbers)
    set_numbers(last, m=lines[2], n=columns, through=through)
    finish_parts(last, chains, out.shape, (pieces.stages, pieces.run), rules, out)


def _numbers(place: BlockPlace, shape: tuple[int, int, int]) -> dict[str, Array]:
    """The numbers of a block's lines among the random bits: of rows, and of batches, over (groups, and two axes)."""
    groups, outer, inner = (np.arange(size, dtype=np.int64) for size in shape)
    rows = place.row + outer[:, None] * place.outer + inner * place.inner
    return {"row": np.broadcast_to(rows, shape), "batch": np.broadcast_to((place.batch + groups)[:, None, None], shape)}


def _windows(a: _Side, b: _Side, cut: _Cut, image: _Image, lines: list[int]) -> Record:
    """The operands' places as `struct Windows` of panels.cuh."""
    record = np.zeros((), WINDOWS)
    record["row_size"], record["term_size"] = lines[1:], cut.sizes[1:]
    record["row_step"], record["term_step"], record["b_step"] = a.lines, a.terms, b.terms
    record["y_row"], record["x_row"] = image.rows
    record["y_term"], record["x_term"] = image.terms
    (y, x), (high, wide) = image.first, image.size
    set_numbers(record, y=y, x=x, high=high, wide=wide, there=cut.there, first=cut.terms[0])
    return record
