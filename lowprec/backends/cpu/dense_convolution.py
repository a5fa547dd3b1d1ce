"""Convolutions with few channels in a group, by loops that sum windows where an image lies and copy none.

Lanes are the outputs of a group or, where those are few, neighbouring windows of a line.
"""

from __future__ import annotations

from lowprec import _kernels
from lowprec.backends.cpu.narrow_convolution import BLOCK, MOST_FIELD, prepared, takes_whole_chains
from lowprec.types import Array, Pair
from lowprec.values.convolution_task import ConvolutionTask

MOST_OUTPUTS = 8
"""Up to so many outputs of a group lanes are windows."""
MOST_CHANNELS = 64
"""With many more channels in a group products of copied windows are as fast (measured)."""
MOST_WEIGHTS = 1 << 18
"""Weights of a group, which stay in cache."""
FEWEST_WINDOWS = 4
"""Of a line, to fill lanes with (measured)."""
FEWEST_PLANES, FEWEST_PRODUCTS = 4, 16
"""Outputs times channels of a group from which on neighbouring groups need not share vectors: where positions of a
channel lie together, and elsewhere (measured)."""


def is_dense(
    x: Array, weight: tuple[int, ...], across: int, stride: Pair, dilation: Pair, task: ConvolutionTask
) -> bool:
    """Whether a convolution is computed here.

    Args:
        x: images (n, h, w, groups, C).
        weight: the shape (kh, kw, groups, C, N).
        across: windows of a line.
    """
    high, wide, groups, channels, outputs = weight
    if not _kernels.takes("dense_windows") or not high * wide * channels * groups * outputs or channels > MOST_CHANNELS:
        return False
    if outputs <= MOST_OUTPUTS:
        # Windows as lanes read neighbouring positions: quick where these lie together, as in NCHW.
        fewest = FEWEST_PLANES if x.strides[2] == x.itemsize else FEWEST_PRODUCTS
        if stride[1] != 1 or across < FEWEST_WINDOWS or (groups > 1 and outputs * channels < fewest):
            return False
    # Outputs as lanes fill whole vectors, of 32 lanes.
    if high * wide * channels * max(outputs, 2 * BLOCK) > MOST_WEIGHTS or not takes_whole_chains(task):
        return False
    lines, positions = (high - 1) * dilation[0] + 1, (wide + BLOCK) * dilation[1] + (across + 2 * BLOCK) * stride[1]
    if lines * positions * 2 * BLOCK * max(1, channels // BLOCK) > MOST_FIELD:
        return False
    # Columns draw in blocks of 16, in pairs: lanes of outputs begin at a block, outputs one by one stay within one.
    first = task.place.column % BLOCK if task.rules.stochastic else 0
    return first % 2 == 0 and first + outputs <= BLOCK if outputs <= MOST_OUTPUTS else first == 0


def dense_sums(
    x: Array,
    weight: Array,
    stride: Pair,
    dilation: Pair,
    padding: tuple[Pair, Pair],
    task: ConvolutionTask,
    out: Array,
) -> None:
    """As `correlate`, where `is_dense` says so."""
    group = min(task.accumulation.group or x.shape[4], x.shape[4])
    call = prepared(x.dtype, weight.dtype, task.rules)
    front, lanes_are_windows = (padding[0][0], padding[1][0]), weight.shape[4] <= MOST_OUTPUTS
    place, threads = task.place, task.threads
    call.dense(x, weight, lanes_are_windows, group, stride, dilation, front, task.key, place, out, threads)
