"""Convolutions to tiles: padding made real, windows as views, one convolution per phase of an input gradient."""

import math

from ipu_core.compile.lowering.context import Lowering
from ipu_core.compile.operands import phase_sums
from ipu_core.graph.program import Copy
from ipu_core.graph.tensor import Tensor
from ipu_core.ir.block import Equation
from ipu_core.ir.convolution import place_of
from ipu_core.library.convolution import ConvolutionTensors, convolve, windows_of
from ipu_core.library.elementwise import add_array
from ipu_core.library.moves import fill
from ipu_core.library.sides import copied
from ipu_core.placement.convolution import ConvPlan, plan_convolution
from lowprec.types import Pair
from lowprec.values.windows import phase_blocks


def lower_convolution(lowering: Lowering, equation: Equation) -> None:
    """Adds one of the three convolutions."""
    if equation.op == "conv2d_input_gradient":
        _input_gradient(lowering, equation)
        return
    first, second = (lowering.tensors[var] for var in equation.operands)
    where, groups = place_of(equation), equation.params["groups"]
    images = _padded(lowering, equation, first, where.padding)
    if equation.op == "conv2d_weight_gradient":  # its sums run over positions, which lie apart by all the channels
        images, second = (_channels_outside(lowering, equation, tensor) for tensor in (images, second))
    images = _split(images, groups)
    windows = windows_of(images, where.kernel, where.stride, where.dilation, where.count)
    result = _split(lowering.result(equation), groups)
    forward = equation.op == "conv2d"
    other = _by_group(_split(second, groups)) if forward else _split(second, groups)
    _add(lowering, equation, ConvolutionTensors(windows, other, result), _plan(lowering, equation))


def _input_gradient(lowering: Lowering, equation: Equation) -> None:
    """A convolution of the output gradient with the flipped, transposed kernel for every phase of the inputs."""
    gradient, weight = (lowering.tensors[var] for var in equation.operands)
    where, groups, plan = place_of(equation), equation.params["groups"], _plan(lowering, equation)
    result = _split(lowering.result(equation), groups)
    phases = phase_blocks(where)
    size = gradient.shape[1], gradient.shape[2]
    # Padded once for all phases, by the most that one of them needs: each takes its view of that.
    needed = [block.pads(size) for block in phases] or [((0, 0), (0, 0))]
    (top, bottom), (left, right) = (
        tuple(max(0, *(pads[axis][end] for pads in needed)) for end in (0, 1)) for axis in (0, 1)
    )
    padded = _split(_padded(lowering, equation, gradient, ((top, bottom), (left, right))), groups)
    # An input gradient sums over outputs and gives channels: these axes of the kernel trade places.
    flipped = _by_group(_split(_outputs_outside(lowering, equation, weight), groups)).transpose(0, 1, 2, 4, 3)
    for block in phases:
        pads = block.pads(size)
        seen = padded[:, top - pads[0][0] :, left - pads[1][0] :]
        kernel = flipped[block.kernel]
        windows = windows_of(
            seen, (kernel.shape[0], kernel.shape[1]), (1, 1), block.steps, (block.row.count, block.column.count)
        )
        sums = phase_sums(equation, block, plan.convolution.operands)
        here = plan_convolution(lowering.target, sums, plan.accumulation, plan.placement)
        out = result[:, block.rows, block.columns]
        # A number for each phase and group: with the phase's alone, phases would draw the random bits of other groups'.
        _add(lowering, equation, ConvolutionTensors(windows, kernel, out, block.number * groups), here)


def _channels_outside(lowering: Lowering, equation: Equation, images: Tensor) -> Tensor:
    """Images (n, h, w, channels) whose positions lie together: in a new array, unless there is one of either."""
    *positions, channels = images.shape
    if channels == 1 or math.prod(positions) == 1:
        return images
    return _reordered(lowering, equation, images, (3, 0, 1, 2))


def _outputs_outside(lowering: Lowering, equation: Equation, weight: Tensor) -> Tensor:
    """A weight (kh, kw, channels, outputs) whose channels lie together: in a new array, unless there is one of either.

    An input gradient sums over the outputs and makes channels.
    """
    if min(weight.shape[2:]) == 1:
        return weight
    return _reordered(lowering, equation, weight, (0, 1, 3, 2))


def _reordered(lowering: Lowering, equation: Equation, tensor: Tensor, axes: tuple[int, ...]) -> Tensor:
    """A tensor's copy whose elements lie in another order of the axes, as the matrix unit takes it."""
    name = f"{equation.name}: operand"
    made = copied(lowering.graph, lowering.programs, tensor.transpose(*axes), name, reorders=True)
    return made.transpose(*(axes.index(axis) for axis in range(len(axes))))


def _add(lowering: Lowering, equation: Equation, tensors: ConvolutionTensors, plan: ConvPlan) -> None:
    lowering.programs += convolve(
        lowering.graph, tensors, plan, stochastic=equation.arithmetic.stochastic,
        operation=equation.keyed, name=equation.name,
    )  # fmt: skip


def _plan(lowering: Lowering, equation: Equation) -> ConvPlan:
    found = lowering.plan.sums[equation.number]
    assert isinstance(found, ConvPlan), equation
    return found


def _split(tensor: Tensor, groups: int) -> Tensor:
    """The last axis as (groups, channels of a group)."""
    *outer, last = tensor.shape
    return tensor.reshape(*outer, groups, last // groups)


def _by_group(weight: Tensor) -> Tensor:
    """A weight (kh, kw, C, groups, N) as (kh, kw, groups, C, N)."""
    return weight.transpose(0, 1, 3, 2, 4)


def _padded(lowering: Lowering, equation: Equation, tensor: Tensor, padding: tuple[Pair, Pair]) -> Tensor:
    """Images with zeros around them, in a new array; the images themselves where there is nothing to add."""
    (top, bottom), (left, right) = padding
    if max(top, bottom, left, right) == 0:
        return tensor
    n, high, wide, channels = tensor.shape
    name = f"{equation.name}: padding"
    made = add_array(lowering.graph, tensor.format, (n, top + high + bottom, left + wide + right, channels), name)
    lowering.programs += fill(lowering.graph, made, 0.0, name=f"{equation.name}: zeros")
    if tensor.size:
        lowering.programs.append(Copy(tensor, made[:, top : top + high, left : left + wide], name))
    return made
