"""Convolutions whose sums round after every few products, such as depthwise ones: all products first, then the sums.

A product's columns are the outputs of a group. With few of them most lanes of a vector idle, and random bits are drawn
for sixteen columns of every row. Here windows are the lanes: products that float32 holds exactly are written down, then
summed by the loops that sum arrays, which give neighbouring rows the random bits of the same map.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from lowprec import _kernels
from lowprec.backends.cpu.products import reduce
from lowprec.backends.cpu.rounding import decode
from lowprec.types import Array
from lowprec.values.convolution_task import ConvolutionTask
from lowprec.values.operands import exact_products, operand_format
from lowprec.values.windows import contiguous

MOST_PRODUCTS, MOST_OUTPUTS = 8, 2
"""Outputs of a group times products between two roundings, and outputs, up to which this way is the faster one
(measured)."""


def is_thin(x: np.dtype[Any], weight: Array, task: ConvolutionTask) -> bool:
    """Whether a convolution with this weight (kh, kw, groups, C, N) is computed here."""
    group, step = max(1, min(task.accumulation.group or weight.shape[3], weight.shape[3])), task.rules.step
    return (
        # Without it a step of depthwise convolutions, rounded stochastically, took 2.07 times as long (AVX-512). A
        # single group goes by products, which are 1.8 times as fast there.
        _kernels.takes("thin_convolution")
        and weight.size > 0
        and weight.shape[2] > 1
        and step is not None
        and step.mode == "stochastic"
        and task.accumulation.adder == "sequential"
        and weight.shape[4] <= MOST_OUTPUTS
        and weight.shape[4] * group <= MOST_PRODUCTS
        and exact_products(operand_format(x), operand_format(weight.dtype))
    )


def as_lanes(x: Array) -> Array:
    """Images (n, h, w, groups, C) in float32, with neighbouring windows next to each other in memory."""
    # Decoded before windows are made of it: each element stands in as many windows as the kernel has positions.
    codes = contiguous(x.transpose(3, 4, 0, 1, 2))
    wide = np.empty(codes.shape, np.float32)
    decode(operand_format(x.dtype), codes.view(f"u{x.itemsize}"), wide)
    return wide.transpose(2, 3, 4, 0, 1)


def thin_sums(buffer: Array, piece: Array, factors: Array, terms: slice, task: ConvolutionTask, target: Array) -> None:
    """Writes into target (n, oh, ow, groups, N) the products of windows (n, oh, ow, kh, kw, groups, C) with factors.

    Args:
        buffer: float32 scratch for windows x groups x kh kw depth x N products.
        piece: windows, best in float32 and with windows as the fastest axes.
        factors: (groups, kh kw depth, N), -1 where there is no channel.
        terms: which of the kh kw depth products are summed.
        task: how; its place is the target's.
    """
    place = task.place
    images, lines, wide, high, across, groups, channels = piece.shape
    columns = target.shape[4]
    depth = factors.shape[1] // (high * across)
    shape: tuple[int, ...] = (groups, columns, high, across, depth, images, lines, wide)
    products = buffer[: math.prod(shape)].reshape(shape)
    # -1 among them stands for channels that are made up (see `weight_matrix`).
    weights = np.float32(factors).reshape(groups, high, across, depth, columns).transpose(0, 4, 1, 2, 3)
    seen = piece.transpose(5, 3, 4, 6, 0, 1, 2)[:, None]
    with np.errstate(invalid="ignore"):
        # Exact in float32 (`exact_products`): adding such products rounds as a fused multiply-add does.
        np.multiply(seen, weights[..., :channels, None, None, None], out=products[..., :channels, :, :, :])
    # What (+0) * (-1) gives: it leaves every sum as it is.
    products[..., channels:, :, :, :] = -0.0
    chains = products.reshape(groups, columns, high * across * depth, images, lines, wide)[:, :, terms]
    rows: Any = place.row
    if place.joined(target.shape):
        chains = chains.reshape(groups, columns, chains.shape[2], images * lines * wide)
    else:
        # Lines whose rows do not follow each other become vertices with numbers of their own.
        rows = rows + np.arange(images)[:, None] * place.outer + np.arange(lines) * place.inner
        chains = chains.transpose(0, 1, 3, 4, 2, 5)
    after = (1,) * (chains.ndim - 4)
    batches = np.arange(place.batch, place.batch + groups).reshape(groups, 1, *after)
    numbers = np.arange(place.column, place.column + columns).reshape(columns, *after)
    call = reduce(chains.dtype, task.accumulation, task.rules)
    terms_last = chains.swapaxes(-1, -2)[..., None]
    result = call(terms_last, task.key, rows, numbers, place.group, batches, None, task.threads)
    target.transpose(3, 4, 0, 1, 2)[...] = result.reshape(groups, columns, images, lines, wide)
