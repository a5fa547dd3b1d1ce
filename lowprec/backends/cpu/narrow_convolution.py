"""Convolutions of many groups with few channels and outputs each, such as depthwise ones, by loops of their own.

A product for every group would leave most lanes of a vector idle: here lanes are the outputs of neighbouring groups.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from lowprec import _kernels
from lowprec.backends.cpu.operands import operand_type
from lowprec.backends.cpu.products import native_accumulator
from lowprec.types import Array, Pair
from lowprec.values.convolution_task import ConvolutionTask
from lowprec.values.operands import exact_products, operand_format
from lowprec.values.sum_rules import SumRules

MOST_OUTPUTS = 8
"""With more outputs in a group a product of its own fills the lanes better (measured)."""
FEWEST_LANES = 4  # with fewer outputs in all groups together most lanes are empty here too
MOST_FIELD = 1 << 22
"""Float32 numbers that one line of windows may read, zeros between them included."""
BLOCK = 16  # columns that share counters of random words (see `sum_bits` of the reference)


def is_narrow(weight: tuple[int, ...], across: int, stride: Pair, dilation: Pair, task: ConvolutionTask) -> bool:
    """Whether a convolution or its weight's gradient is computed here.

    Args:
        weight: the shape (kh, kw, groups, C, N).
        across: windows of a line.
    """
    high, wide, groups, channels, outputs = weight
    if (
        not _kernels.takes("narrow_windows")
        or groups == 1
        or outputs > MOST_OUTPUTS
        or groups * outputs < FEWEST_LANES
        or not high * wide * channels
    ):
        return False
    # The loops draw one block of columns for a group's outputs.
    if not takes_whole_chains(task) or (task.place.column % BLOCK + outputs > BLOCK and task.rules.stochastic):
        return False
    lines, positions = (high - 1) * dilation[0] + 1, (wide + BLOCK) * dilation[1] + (across + BLOCK) * stride[1]
    # For the 32 lanes of a unit of work (window_lanes of the kernels).
    return lines * positions * channels * 2 * BLOCK <= MOST_FIELD


def takes_whole_chains(task: ConvolutionTask) -> bool:
    """Whether every sum is one chain of all its products, and no rounding after the last group's changes it."""
    order, rules = task.accumulation, task.rules
    if task.span is not None or order.splits != 1 or order.adder != "sequential":
        return False
    # One part goes through all stages too, and there an infinity that the policy replaces is rounded once more.
    if not rules.settled and order.stage_shape(1)[0] > 1:
        return False
    # These loops draw for groups alone: another stochastic rounding at the end would need words under another tag.
    return rules.final is None or rules.final.mode != "stochastic" or rules.one_format


def narrow_sums(
    x: Array,
    weight: Array,
    stride: Pair,
    dilation: Pair,
    padding: tuple[Pair, Pair],
    task: ConvolutionTask,
    out: Array,
) -> None:
    """As `correlate`, where `is_narrow` says so."""
    # No group reaches beyond the channels of a kernel position.
    group = min(task.accumulation.group or x.shape[4], x.shape[4])
    call = prepared(x.dtype, weight.dtype, task.rules)
    front = padding[0][0], padding[1][0]
    call(x, weight, group, stride, dilation, front, task.key, task.place, out, task.threads)


def narrow_weight_sums(
    x: Array,
    gradient: Array,
    stride: Pair,
    dilation: Pair,
    padding: tuple[Pair, Pair],
    task: ConvolutionTask,
    out: Array,
) -> None:
    """As `correlate_gradient`, where `is_narrow` says so."""
    count = max(1, gradient.shape[0] * gradient.shape[1] * gradient.shape[2])
    group = min(task.accumulation.group or count, count)
    call = prepared(x.dtype, gradient.dtype, task.rules)
    front = padding[0][0], padding[1][0]
    call.weight_gradient(x, gradient, group, stride, dilation, front, task.key, task.place, out, task.threads)


@lru_cache(maxsize=4096)
def prepared(x: np.dtype[Any], weight: np.dtype[Any], rules: SumRules) -> _kernels.WindowCall:
    """The compiled loops for operands of two dtypes."""
    exact = exact_products(operand_format(x), operand_format(weight))
    return _kernels.WindowCall(operand_type(x), operand_type(weight), native_accumulator(rules), exact)
