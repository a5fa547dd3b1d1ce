"""Values of a Block as views of variables: moves that cost nothing, and operands in the form a plan takes them."""

import math
from typing import NamedTuple

from ipu_core.graph.tensor import Tensor
from ipu_core.ir.block import Equation
from ipu_core.plan.layout import linear_layout
from ipu_core.plan.product import Operand
from ipu_core.target import Target
from lowprec.spec.axes import fold

__all__ = ["Side", "sides", "view"]


def view(equation: Equation, tensor: Tensor) -> Tensor | None:
    """The result of a structural equation as a view of its operand; None if it has no affine form, or is no view."""
    params = equation.params
    match equation.op:
        case "transpose":
            return tensor.transpose(*params["perm"])
        case "broadcast":
            return tensor.broadcast_to(tuple(params["shape"]))
        case "stop_gradient":
            return tensor
        case "slice":
            return tensor[tuple(map(slice, params["start"], params["stop"], params["step"]))]
        case "reshape":
            try:
                return tensor.reshape(tuple(params["shape"]))
            except ValueError:
                return None
    return None


class Side(NamedTuple):
    """An operand of a product or a sum.

    Attributes:
        source: the operand with its axes in order.
        sizes: of the three axes the plan sees.
        letters: their names.
        layout: how it lies.
        stays: False: it must first be copied into a new array of the source's shape, which then lies so.
    """

    source: Tensor
    sizes: tuple[int, int, int]
    letters: str
    layout: Operand
    stays: bool

    def planned(self, tensor: Tensor) -> Tensor:
        """The source, or its copy, with the plan's three axes."""
        return tensor.reshape(self.sizes)


def sides(equation: Equation, tensors: list[Tensor], target: Target) -> list[Side]:
    """The operands of a dot, a reduce_sum or a reduce_max."""
    if equation.op == "dot":
        a, b = tensors
        batch, (m, k), n = math.prod(a.shape[:-2]), a.shape[-2:], b.shape[-1]
        other = a.variable is not b.variable  # tiles count what they receive of a variable, whichever operand asks
        return [
            _side(a, (batch, m, k), "bmk", target, stay=True),
            _side(b, (batch, k, n), "bkn", target, stay=other),
        ]
    x = tensors[0]
    how = fold(x.shape, tuple(equation.params["axis"]))
    return [_side(x.transpose(*how.before, *how.terms, *how.after), how.shape, "mkn", target, stay=True)]


def _side(source: Tensor, sizes: tuple[int, int, int], letters: str, target: Target, *, stay: bool) -> Side:
    try:
        planned = source.reshape(sizes) if stay else None
    except ValueError:
        planned = None
    axes = None if planned is None else _stored_order(planned, letters)
    if axes is not None:
        return Side(source, sizes, letters, Operand(axes, linear_layout(target, source.variable.shape).chunk), True)
    return Side(source, sizes, letters, Operand(letters, linear_layout(target, source.shape).chunk), False)


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
