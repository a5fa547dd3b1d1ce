"""State on tiles: which new values of a carried state are computed straight into the old one's memory."""

from collections.abc import Mapping

from ipu_core.graph.tensor import Tensor
from ipu_core.ir.block import Block, Equation, Var
from ipu_core.ir.lowering.families import computes

__all__ = ["in_place"]


def in_place(block: Block, roots: Mapping[Var, Var], same: Mapping[Var, bool]) -> dict[Var, int]:
    """Values that may be written over the carried input they replace: by value, the position of that input.

    That is safe where nothing reads the old state after the equation that makes the new one, and where that equation
    itself reads it element by element in place, or not at all.

    Args:
        block: with its carried state.
        roots: for every value, the one in whose memory it lies.
        same: for every value, whether it is its root seen just as it lies.
    """
    last: dict[Var, int] = {}
    made: dict[Var, tuple[int, Equation]] = {}
    for position, equation in enumerate(block.equations):
        made[equation.output] = position, equation
        for var in equation.operands:
            last[roots[var]] = position
    at_end = {roots[var] for var in block.outputs}
    found: dict[Var, int] = {}
    for index, (old, new) in enumerate(zip(block.inputs[: block.carried], block.outputs, strict=False)):
        if new not in made or roots[new] is not new or new in found or old in at_end or old.type != new.type:
            continue
        position, equation = made[new]
        here = [var for var in equation.operands if roots[var] is old]
        still = all(same[var] for var in here) and computes(equation) if here else True
        if last.get(old, -1) <= position and still:
            found[new] = index
    return found


def sees_whole(tensor: Tensor, own: Tensor) -> bool:
    """Whether a tensor is a variable seen just as it lies."""
    return (tensor.offset, tensor.shape, tensor.strides) == (own.offset, own.shape, own.strides)
