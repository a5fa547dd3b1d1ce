"""Equations as a plan takes them: operands and how they lie, sizes of sums."""

from collections.abc import Mapping

from ipu_core.chip.target import Target
from ipu_core.graph.tensor import Tensor, Variable, element_type, whole
from ipu_core.ir.block import Block, Equation, Var
from ipu_core.ir.convolution import place_of
from ipu_core.ir.liveness.lifetimes import lifetimes
from ipu_core.ir.liveness.views import StridedView
from ipu_core.ir.ops import DOTS
from ipu_core.library.elementwise import map_array
from ipu_core.library.sides import Side, Sizes, product_sides, product_sizes, sum_side, sum_sizes
from ipu_core.placement.convolution import Convolution
from lowprec.values.windows import PhaseBlock, phase_blocks


def sizes(equation: Equation) -> Sizes:
    """Of a product of matrices, a reduce_sum or a reduce_max."""
    shapes = [var.type.shape for var in equation.operands[:2]]
    return product_sizes(*shapes) if equation.op in DOTS else sum_sizes(shapes[0], equation.params["axis"])


def seen(var: Var, view: StridedView, memory: Variable) -> Tensor:
    """A value as a tensor of the variable in whose memory it lies."""
    return Tensor(memory, view.offset, var.type.shape, view.strides)


def sides(block: Block, equation: Equation, target: Target, starts: Mapping[Var, int]) -> list[Side]:
    """The operands of a product of matrices, without its scale, of a reduce_sum or a reduce_max.

    Arrays begin on the tiles of `starts`, others at tile 0.
    """
    views = lifetimes(block).views
    # Stand-ins for variables: a plan asks how operands lie before there is a graph.
    roots = {var: views[var].root for var in equation.operands[:2]}
    memory = {root: Variable(0, root.name, *element_type(root.type.format), root.type.shape) for root in roots.values()}
    for root, variable in memory.items():
        map_array(target, whole(variable), starts.get(root, 0))
    tensors = [seen(var, views[var], memory[roots[var]]) for var in equation.operands[:2]]
    if equation.op in DOTS:
        return product_sides(target, tensors[0], tensors[1])
    return [sum_side(target, tensors[0], equation.params["axis"])]


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
    # All phases share one order and one place: the largest decides both.
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
