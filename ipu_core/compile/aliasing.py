"""Aliasing: new state that is written over the old, and operands as tensors of the variables they will lie in."""

from ipu_core.graph.tensor import Tensor, Variable, element_type
from ipu_core.ir.block import Block, Equation, Var, per_block
from ipu_core.ir.lifetimes import StridedView, lifetimes
from ipu_core.ir.ops import ELEMENTWISE


@per_block
def in_place(block: Block) -> dict[Var, Var]:
    """Values that may be written over the carried input, or the total of the round before, that they replace.

    That is safe where nothing reads the old state after the equation that makes the new one, and where that equation
    itself reads it element by element in place, or not at all.
    """
    views, last = lifetimes(block)
    made = {equation.output: (position, equation) for position, equation in enumerate(block.equations)}
    found: dict[Var, Var] = {}
    for old, new in [*zip(block.inputs[: block.carried], block.outputs, strict=False), *block.totals]:
        if new not in made or views[new].root is not new or new in found or old.type != new.type:
            continue
        position, equation = made[new]
        here = [views[var] for var in equation.operands if views[var].root is old]
        still = not here or (equation.op in ELEMENTWISE and all(view.whole for view in here))
        if still and last.get(old, -1) <= position:
            found[new] = old
    return found


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
