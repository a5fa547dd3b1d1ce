"""The plan of a Block: for every product and sum its order (Accumulation) and its place (Placement) on a target."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from ipu_core.graph.tensor import Tensor, element_type
from ipu_core.ir.block import Block, Equation, Var
from ipu_core.ir.convolving import CONVOLUTIONS, sums_of
from ipu_core.ir.homes import ghosts
from ipu_core.ir.room import free_bytes
from ipu_core.ir.views import sides
from ipu_core.plan.convolution import (
    ConvPlacement,
    ConvPlan,
    choose_convolution_accumulation,
    plan_convolution,
)
from ipu_core.plan.layout import Stored, linear_layout
from ipu_core.plan.matmul import (
    RESERVED,
    Placement,
    SumPlan,
    choose_accumulation,
    choose_reduction_accumulation,
    plan_sum,
    product_of,
    sum_of,
)
from ipu_core.target import Target
from lowprec import Accumulation, FloatFormat

__all__ = ["Plan", "choose_accumulations", "plan"]

SUMS: Final = ("dot", "reduce_sum", "reduce_max")
PLANNED: Final = (*SUMS, *CONVOLUTIONS)
RESERVED_SHARE: Final = 8  # of a small tile no more than an eighth is kept for code
LEAST_ROOM: Final = 32  # products may use this share of a tile at least, whatever the values of the Block leave


@dataclass(frozen=True)
class Plan:
    """The plans of a Block's products, sums and maxima, by equation number.

    Attributes:
        target: the chip.
        sums: by equation number.
        names: by equation number, what it is, for print.
        maxima: numbers of those that are maxima: their order has no meaning.
    """

    target: Target
    sums: Mapping[int, SumPlan | ConvPlan]
    names: Mapping[int, str]
    maxima: frozenset[int] = frozenset()

    @property
    def accumulations(self) -> dict[int, Accumulation]:
        """The orders: all that matters to the bits."""
        return {number: one.accumulation for number, one in self.sums.items() if number not in self.maxima}

    @property
    def placements(self) -> dict[int, Placement | ConvPlacement]:
        """The places: all that matters to cycles, exchange and memory."""
        return {number: one.placement for number, one in self.sums.items()}

    def digests(self) -> dict[int, str]:
        """The hash of every Accumulation."""
        return {number: order.digest() for number, order in self.accumulations.items()}

    def words(self) -> str:
        """Every product, sum and maximum in words."""
        return "\n".join(f"%{number} {self.names[number]}: {self._words(number)}" for number in self.sums)

    def _words(self, number: int) -> str:
        one = self.sums[number]
        return one.words(maximum=number in self.maxima) if isinstance(one, SumPlan) else one.words()


def choose_accumulations(block: Block, target: Target) -> dict[int, Accumulation]:
    """An order for every product and sum of a Block that suits the target and does not depend on any format.

    A study chooses once, for the Block before a precision is applied, and uses the choice for all its precisions.
    """
    chosen = {}
    for equation, (m, k, n, batch) in _sizes(block, target):
        if equation.op == "dot":
            chosen[equation.number] = choose_accumulation(target, m, k, n, batch=batch)
        elif equation.op == "reduce_sum":
            chosen[equation.number] = choose_reduction_accumulation(target, m, k, n)
    for equation in block.equations:
        if equation.op in CONVOLUTIONS:
            chosen[equation.number] = choose_convolution_accumulation(target, sums_of(equation, _operands(equation)))
    return chosen


def plan(
    block: Block,
    target: Target,
    accumulations: Mapping[int, Accumulation] | None = None,
    placements: Mapping[int, Placement | ConvPlacement] | None = None,
) -> Plan:
    """Plans every product and sum of a typed Block.

    Args:
        block: what is to be run.
        target: the chip.
        accumulations: orders by equation number (their types are replaced by the equations'); default
            `choose_accumulations` of the Block.
        placements: places by equation number; the others are searched for.

    Raises:
        UnsupportedByTarget: the chip has no unit for a product's formats.
        ValueError: a placement that needs more tiles than there are; numbers of no product or sum.
    """
    orders = choose_accumulations(block, target) if accumulations is None else accumulations
    known = {equation.number for equation in block.equations if equation.op in PLANNED}
    if unknown := (orders.keys() | (placements or {}).keys()) - known:
        raise ValueError(
            f"no products or sums of the block have the numbers {sorted(unknown)}; there are {sorted(known)}"
        )
    rooms = _rooms(block, target)
    sums: dict[int, SumPlan | ConvPlan] = {}
    names = {}
    values = ghosts(block)
    for equation in block.equations:
        if equation.op not in PLANNED:
            continue
        order = orders.get(equation.number, Accumulation()) if equation.op != "reduce_max" else Accumulation()
        place = (placements or {}).get(equation.number)
        names[equation.number] = " ".join(filter(None, (equation.role, equation.op, equation.parameter)))
        if equation.op in CONVOLUTIONS:
            sums[equation.number] = _plan_convolution(equation, target, order, place, rooms[equation.number])
            continue
        if isinstance(place, ConvPlacement):
            raise ValueError(f"equation {equation.number} is no convolution: its place is a Placement, not {place}")
        tensors = [values[var] for var in equation.operands]
        given = [side.layout for side in sides(equation, tensors, target)]
        sums[equation.number] = _plan_one(
            equation, target, order, place, rooms[equation.number], given, _size(equation, tensors, target)
        )
    maxima = frozenset(equation.number for equation in block.equations if equation.op == "reduce_max")
    return Plan(target, sums, names, maxima)


def _plan_one(
    equation: Equation,
    target: Target,
    order: Accumulation,
    placement: Placement | None,
    room: int,
    given: list[Stored],
    size: tuple[int, int, int, int],
) -> SumPlan:
    m, k, n, batch = size
    out = equation.output.type
    types = sum_types(equation)
    lies = (*given, Stored("bmn", linear_layout(target, out.shape).chunk))
    name = _operands(equation)
    if equation.op == "dot":
        product = product_of(target, m, k, n, batch=batch, operands=name, lies=lies)
    else:
        product = sum_of(target, m, k, n, operands=name, lies=lies)
    return plan_sum(target, product, order.with_types(*types), placement=placement, memory=room)


def _plan_convolution(
    equation: Equation, target: Target, order: Accumulation, place: Placement | ConvPlacement | None, room: int
) -> ConvPlan:
    if isinstance(place, Placement):
        raise ValueError(f"equation {equation.number} is a convolution: its place is a ConvPlacement, not {place}")
    sizes = sums_of(equation, _operands(equation))
    return plan_convolution(target, sizes, order.with_types(*sum_types(equation)), place, room)


def _operands(equation: Equation) -> str:
    """Name of the widest operand's format."""
    return max((_name(var) for var in equation.operands), key=lambda name: element_type(name)[1].itemsize)


def sum_types(equation: Equation) -> tuple[str, str]:
    """Names of the formats in which an equation accumulates and gives its result."""
    out = _name(equation.output)
    if equation.op == "reduce_max":
        return out, out
    accumulate = equation.arithmetic.accumulate
    return (accumulate.name if accumulate is not None else out), out


def _name(var: Var) -> str:
    return var.type.format.name if isinstance(var.type.format, FloatFormat) else var.type.format


def _size(equation: Equation, tensors: list[Tensor], target: Target) -> tuple[int, int, int, int]:
    first, *rest = (side.sizes for side in sides(equation, tensors, target))
    if rest:
        return first[1], first[2], rest[0][2], first[0]
    return first[0], first[1], first[2], 1


def _sizes(block: Block, target: Target) -> Iterator[tuple[Equation, tuple[int, int, int, int]]]:
    values = ghosts(block)
    for equation in block.equations:
        if equation.op in SUMS:
            yield equation, _size(equation, [values[var] for var in equation.operands], target)


def _rooms(block: Block, target: Target) -> dict[int, int]:
    """Bytes of a tile for what each equation has under way: what the values that live then leave, and code."""
    kept, least = min(RESERVED, target.tile_memory // RESERVED_SHARE), target.tile_memory // LEAST_ROOM
    return {number: max(free - kept, least) for number, free in free_bytes(block, target).items()}
