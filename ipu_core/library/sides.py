"""Operands of products and sums as a plan takes them: how they lie, and what must first be copied elsewhere."""

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

from ipu_core.chip.target import Target
from ipu_core.graph.graph import Graph
from ipu_core.graph.program import Copy, Program
from ipu_core.graph.tensor import Tensor
from ipu_core.library.elementwise import add_array, begin_of
from ipu_core.placement.layout import Stored, linear_layout
from ipu_core.placement.matmul import Placement, SumPlan, plan_sum, product_of, sum_of
from lowprec import Accumulation
from lowprec.values.axes import fold

PRODUCTS: Final = ("bmk", "bkn")
"""The axes of the operands of a product, as the matrix unit takes them."""


class Sizes(NamedTuple):
    """Sizes of `batch` products m x k by k x n, or of a reduction of m x k x n over k."""

    m: int
    k: int
    n: int
    batch: int = 1


def product_sizes(a: tuple[int, ...], b: tuple[int, ...]) -> Sizes:
    """The sizes of a product of arrays of these shapes, whose leading axes are the same."""
    *batch, m, k = a
    return Sizes(m, k, b[-1], math.prod(batch))


def sum_sizes(shape: tuple[int, ...], axes: Sequence[int]) -> Sizes:
    """The sizes of a sum or a maximum of an array over some axes."""
    return Sizes(*fold(shape, tuple(axes)).shape)


class Side(NamedTuple):
    """How a plan takes an operand of a product or a sum.

    Attributes:
        perm: order in which its axes are taken; None: as they are.
        sizes: of the three axes the plan sees.
        layout: the mapping to tiles that the plan counts with.
        stays: whether it is read where it lies; False: it is first copied into a new array with that layout, as an
            operand whose axes do not join is, and one that is stored transposed.
    """

    perm: tuple[int, ...] | None
    sizes: tuple[int, int, int]
    layout: Stored
    stays: bool

    def source(self, tensor: Tensor) -> Tensor:
        """The operand with its axes in order."""
        return tensor if self.perm is None else tensor.transpose(*self.perm)


def product_sides(target: Target, a: Tensor, b: Tensor) -> list[Side]:
    """The operands of a product, of variables that lie in the layout of their shape or nowhere yet."""
    size = product_sizes(a.shape, b.shape)
    other = a.variable is not b.variable  # a plan counts its operands apart, a tile receives an element once
    return [
        _side(a, None, (size.batch, size.m, size.k), PRODUCTS[0], target, stay=True),
        _side(b, None, (size.batch, size.k, size.n), PRODUCTS[1], target, stay=other),
    ]


def sum_side(target: Target, x: Tensor, axes: Sequence[int]) -> Side:
    """The operand of a sum or a maximum over some axes, of a variable as of `product_sides`."""
    how = fold(x.shape, tuple(axes))
    perm = (*how.before, *how.terms, *how.after)
    return _side(x, perm, how.shape, "mkn", target, stay=True)


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
        # axes that do not join to the three of the plan are copied first, and then lie in the plan's order
        planned = source.reshape(sizes) if stay else None
    except ValueError:
        planned = None
    axes = None if planned is None else _stored_order(planned, letters)
    if axes is not None and not _transposed(axes, letters, sizes):
        return Side(perm, sizes, _stored(target, axes, source.variable.shape, begin_of(source)), True)
    return Side(perm, sizes, _stored(target, letters, source.shape, begin_of(source)), False)


def _stored(target: Target, axes: str, shape: Sequence[int], first: int) -> Stored:
    layout = linear_layout(target, shape, first)
    return Stored(axes, layout.chunk, layout.first)


def _transposed(axes: str, letters: str, sizes: tuple[int, int, int]) -> bool:
    """Whether an operand of a product is a matrix that is stored the other way round than the matrix unit takes it.

    The planner of PopLibs rearranges such operands in the gradients of its layers; a sum has no such unit.
    """
    return letters in PRODUCTS and min(sizes[1:]) > 1 and axes[-1] == letters[-2]


def _stored_order(tensor: Tensor, letters: str) -> str | None:
    """The axes in the order they are stored, if the tensor is a whole variable with its axes permuted."""
    # `Stored` describes whole variables alone
    if tensor.offset or tensor.size != tensor.variable.size:
        return None
    # axes of length 1 first: their strides say nothing about the order
    axes = sorted(zip(tensor.strides, tensor.shape, letters, strict=True), key=lambda axis: (axis[1] > 1, -axis[0]))
    size = 1
    for stride, length, _ in reversed(axes):
        if length > 1 and stride != size:
            return None
        size *= length
    return "".join(letter for _, _, letter in axes)


def arranged(
    graph: Graph, programs: list[Program], tensors: Sequence[Tensor], sides: Sequence[Side], name: str
) -> list[Tensor]:
    """The operands as a plan takes them; those whose side does not stay are copied."""
    found = []
    for tensor, side in zip(tensors, sides, strict=True):
        source = side.source(tensor)
        if not side.stays:
            source = copied(graph, programs, source, f"{name}: operand", reorders=len(sides) == 2)
        found.append(source.reshape(side.sizes))
    return found


def copied(graph: Graph, programs: list[Program], source: Tensor, name: str, *, reorders: bool = False) -> Tensor:
    """A new temporary in its layout, filled from a tensor, that begins where that does; `reorders` as of a Copy."""
    made = add_array(graph, source.format, source.shape, name, first=begin_of(source))
    if source.size:
        programs.append(Copy(source, made, name, reorders))
    return made


def planned(
    target: Target,
    size: Sizes,
    sides: Sequence[Side],
    operands: str,
    out: tuple[int, ...],
    order: Accumulation,
    place: Placement | None = None,
    memory: int | None = None,
    first: int = 0,
) -> SumPlan:
    """The plan of a product (two sides) or of a sum (one).

    Args:
        target: the chip.
        size: of `product_sizes` or `sum_sizes`.
        sides: the operands.
        operands: name of the widest operand's format.
        out: the shape of the result, which lies in its layout.
        order: with its types.
        place: where; None searches.
        memory: bytes of a tile for what is under way; None: what operands and result leave.
        first: the tile where the result begins.
    """
    (m, k, n, batch), result = size, _stored(target, "bmn", out, first)
    # the search counts the exchange from where operands lie to where the result lies
    lies = (*(side.layout for side in sides), result)
    if len(sides) == 2:
        product = product_of(target, m, k, n, batch=batch, operands=operands, lies=lies)
    else:
        product = sum_of(target, m, k, n, operands=operands, lies=lies)
    return plan_sum(target, product, order, placement=place, memory=memory)
