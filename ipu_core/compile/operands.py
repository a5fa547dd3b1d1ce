"""Equations as a plan takes them: operands and how they lie, sizes of sums."""

import math
from typing import NamedTuple

from ipu_core.compile.aliasing import operand_tensors
from ipu_core.graph.tensor import Tensor
from ipu_core.ir.block import Block, Equation
from ipu_core.ir.convolution import place_of
from ipu_core.plan.convolution import Convolution
from ipu_core.plan.layout import Stored, linear_layout
from ipu_core.target import Target
from lowprec.spec.axes import fold
from lowprec.spec.windows import PhaseBlock, phase_blocks


class Sizes(NamedTuple):
    """Of a product m x k by k x n, as often as `batch` says; of a reduction over k of m x k x n."""

    m: int
    k: int
    n: int
    batch: int = 1


def sizes(equation: Equation) -> Sizes:
    """Of a dot, a reduce_sum or a reduce_max."""
    first = equation.operands[0].type.shape
    if equation.op != "dot":
        return Sizes(*fold(first, equation.params["axis"]).shape)
    *batch, m, k = first
    return Sizes(m, k, equation.operands[1].type.shape[-1], math.prod(batch))


class Side(NamedTuple):
    """How a plan takes an operand of a product or a sum.

    Attributes:
        perm: order in which its axes are taken; None: as they are.
        sizes: of the three axes the plan sees.
        layout: how it lies.
        stays: False: it must first be copied into a new array with its axes in that order, which then lies so.
    """

    perm: tuple[int, ...] | None
    sizes: tuple[int, int, int]
    layout: Stored
    stays: bool

    def source(self, tensor: Tensor) -> Tensor:
        """The operand with its axes in order."""
        return tensor if self.perm is None else tensor.transpose(*self.perm)


def sides(block: Block, equation: Equation, target: Target) -> list[Side]:
    """The operands of a dot, a reduce_sum or a reduce_max."""
    size, tensors = sizes(equation), operand_tensors(block, equation)
    if equation.op == "dot":
        a, b = tensors
        other = a.variable is not b.variable  # tiles count what they receive of a variable, whichever operand asks
        return [
            _side(a, None, (size.batch, size.m, size.k), "bmk", target, stay=True),
            _side(b, None, (size.batch, size.k, size.n), "bkn", target, stay=other),
        ]
    how = fold(tensors[0].shape, equation.params["axis"])
    perm = (*how.before, *how.terms, *how.after)
    return [_side(tensors[0], perm, how.shape, "mkn", target, stay=True)]


def _side(
    tensor: Tensor,
    perm: tuple[int, ...] | None,
    sizes: tuple[int, int, int],
    letters: str,
    target: Target,
    *,
    stay: bool,
) -> Side:
    source = tensor if perm is None else tensor.transpose(*perm)
    try:
        planned = source.reshape(sizes) if stay else None
    except ValueError:
        planned = None
    axes = None if planned is None else _stored_order(planned, letters)
    if axes is not None:
        return Side(perm, sizes, Stored(axes, linear_layout(target, source.variable.shape).chunk), True)
    return Side(perm, sizes, Stored(letters, linear_layout(target, source.shape).chunk), False)


def _stored_order(tensor: Tensor, letters: str) -> str | None:
    """The axes in the order they are stored, if the tensor is a whole variable with its axes permuted."""
    if tensor.offset or tensor.size != tensor.variable.size:
        return None
    axes = sorted(zip(tensor.strides, tensor.shape, letters, strict=True), key=lambda axis: (axis[1] > 1, -axis[0]))
    size = 1
    for stride, length, _ in reversed(axes):
        if length > 1 and stride != size:
            return None
        size *= length
    return "".join(letter for _, _, letter in axes)


def sums_of(equation: Equation, operands: str) -> Convolution:
    """The sums of a convolution's equation; of an input gradient those of the phase with most products.

    Args:
        equation: of one of the three operations.
        operands: name of the operands' format.
    """
    where, groups = place_of(equation), equation.params["groups"]
    first, second = (var.type.shape for var in equation.operands)
    outputs = (second[3] if equation.op != "conv2d_input_gradient" else second[2] * groups) // groups
    if equation.op == "conv2d":
        return Convolution("image", (first[0], *where.count, groups, outputs), (*where.kernel, second[2]), where.stride,
                           where.dilation, operands)  # fmt: skip
    if equation.op == "conv2d_weight_gradient":
        result = (*where.kernel, first[3] // groups, groups, outputs)
        return Convolution("weight", result, (first[0], *where.count), where.stride, where.dilation, operands)
    phases = [phase_sums(equation, block, operands) for block in phase_blocks(where)]
    none = Convolution("image", (first[0], 0, 0, groups, outputs), (0, 0, 0), (1, 1), (1, 1), operands)
    return max(
        phases, key=lambda phase: phase.result[1] * phase.result[2] * phase.inner[0] * phase.inner[1], default=none
    )


def phase_sums(equation: Equation, block: PhaseBlock, operands: str) -> Convolution:
    """The sums of one phase of an input gradient."""
    (images, *_), (_, _, channels, outputs) = (var.type.shape for var in equation.operands)
    groups = equation.params["groups"]
    kernel = len(block.row.positions), len(block.column.positions)
    result = (images, block.row.count, block.column.count, groups, channels)
    return Convolution("image", result, (*kernel, outputs // groups), (1, 1), block.steps, operands)
