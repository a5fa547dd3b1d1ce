"""Aliasing: operands as tensors of the variables they will lie in."""

from ipu_core.graph.tensor import Tensor, Variable, element_type
from ipu_core.ir.block import Block, Equation, Var
from ipu_core.ir.liveness.lifetimes import lifetimes
from ipu_core.ir.liveness.views import StridedView


def seen(var: Var, view: StridedView, root: Tensor) -> Tensor:
    """A value as a tensor, given that of the value in whose memory it lies."""
    return Tensor(root.variable, view.offset, var.type.shape, view.strides)


def operand_tensors(block: Block, equation: Equation) -> list[Tensor]:
    """The operands as tensors of variables that are in no graph: enough to see how they lie."""
    views = lifetimes(block).views
    variables = {views[var].root: _variable(views[var].root) for var in equation.operands}
    return [
        Tensor(variables[(view := views[var]).root], view.offset, var.type.shape, view.strides)
        for var in equation.operands
    ]


def _variable(var: Var) -> Variable:
    fmt, dtype = element_type(var.type.format)
    return Variable(0, var.name, fmt, dtype, var.type.shape)
