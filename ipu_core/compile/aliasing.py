"""Variables of a Block on tiles: which values are views of others, which take an old state's place; and their names."""

from collections.abc import Mapping
from typing import NamedTuple

from ipu_core.compile.operands import view
from ipu_core.graph.tensor import Tensor, Variable, element_type, whole
from ipu_core.ir.block import Block, Equation, Var
from ipu_core.ir.ops import ELEMENTWISE

__all__ = ["Homes", "ghosts", "homes", "in_place", "label", "sees_whole", "state_name"]


def ghosts(block: Block) -> dict[Var, Tensor]:
    """Every value as a tensor of a variable that is in no graph: enough to see what is a view of what."""
    values: dict[Var, Tensor] = {}
    for number, var in enumerate((*block.inputs, *block.constants)):
        values[var] = _ghost(number, var)
    for equation in block.equations:
        seen = view(equation, values[equation.operands[0]]) if equation.operands else None
        values[equation.output] = seen if seen is not None else _ghost(equation.number, equation.output)
    return values


def _ghost(number: int, var: Var) -> Tensor:
    fmt, dtype = element_type(var.type.format)
    return whole(Variable(number, var.name, fmt, dtype, var.type.shape))


class Homes(NamedTuple):
    """In whose memory the values of a Block lie.

    Attributes:
        roots: for every value, the one in whose memory it lies.
        same: for every value, whether it is its root seen just as it lies.
    """

    roots: Mapping[Var, Var]
    same: Mapping[Var, bool]


def homes(block: Block) -> Homes:
    """Which values of a Block are views of which others."""
    seen = ghosts(block)
    first: dict[object, Var] = {}
    for var, tensor in seen.items():
        first.setdefault(tensor.variable, var)
    roots = {var: first[tensor.variable] for var, tensor in seen.items()}
    return Homes(roots, {var: sees_whole(tensor, whole(tensor.variable)) for var, tensor in seen.items()})


def state_name(block: Block, var: Var) -> str:
    """The name of a carried input in profiles: the parameter's, if it is one."""
    users = (
        equation.parameter for equation in block.equations if equation.role == "update" and var in equation.operands
    )
    return next((name for name in users if name), f"state.{var.name}")


def in_place(block: Block, where: Homes) -> dict[Var, int]:
    """Values that may be written over the carried input they replace: by value, the position of that input.

    That is safe where nothing reads the old state after the equation that makes the new one, and where that equation
    itself reads it element by element in place, or not at all.

    Args:
        block: with its carried state.
        where: its values lie.
    """
    roots, same = where
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
        still = all(same[var] for var in here) and equation.op in ELEMENTWISE if here else True
        if last.get(old, -1) <= position and still:
            found[new] = index
    return found


def sees_whole(tensor: Tensor, own: Tensor) -> bool:
    """Whether a tensor is a variable seen just as it lies."""
    return (tensor.offset, tensor.shape, tensor.strides) == (own.offset, own.shape, own.strides)


def label(equation: Equation) -> str:
    """An equation's name in profiles: parameter, operation, number."""
    return ".".join(filter(None, (equation.parameter, equation.op, str(equation.number))))
