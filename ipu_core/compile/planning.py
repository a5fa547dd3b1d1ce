"""The plan of a Block: for every product and sum its order (Accumulation) and its place (Placement) on a target."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from ipu_core.chip.target import Target
from ipu_core.compile.operands import sides, sizes, sums_of
from ipu_core.compile.schedule.residency import residency
from ipu_core.compile.schedule.starts import NOWHERE, Starts, starts
from ipu_core.errors import UnsupportedByTarget
from ipu_core.graph.tensor import element_type
from ipu_core.ir.block import Block, Equation, Var, format_name
from ipu_core.ir.bodies import equations_of
from ipu_core.ir.ops import CONVOLUTIONS, DOTS, PLANNED, PRODUCTS, SUMS
from ipu_core.ir.run.kernels import given_order, order_of
from ipu_core.ir.run.rounded import is_rounded_apart
from ipu_core.library.sides import Side, planned
from ipu_core.placement.convolution import ConvPlacement, ConvPlan, plan_convolution
from ipu_core.placement.cuts import BYTE, BYTES_GROUP
from ipu_core.placement.matmul import RESERVED, Placement, SumPlan
from ipu_core.placement.orders import OrderRule, convolution_order, product_order, reduction_order
from lowprec import Accumulation, FloatFormat
from lowprec.checks import by_number, expect
from lowprec.processor import in_default_state

RESERVED_SHARE: Final = 8  # of a small tile no more than an eighth is kept for code
# Where a Block need not fit, smaller products hardly make it, and take hours to plan and years to run.
ROOM_ANYWAY: Final = 8
LEAST_ROOM: Final = 32  # products may use this share of a tile at least, whatever the values of the Block leave


@dataclass(frozen=True)
class BlockPlan:
    """The plans of a Block's products, sums and maxima, by equation number.

    Attributes:
        target: the chip.
        sums: by equation number; one of what labels choose runs as a pick instead, see `ipu_core.compile.labelled`.
        sides: the operands as the plans take them, by equation number; convolutions gather theirs by windows.
        names: of the equations, by number.
        maxima: numbers of those that are maxima: their order has no meaning.
        pinned: numbers of those whose places were given.
        starts: where arrays begin that do not at tile 0, see `ipu_core.compile.schedule.starts`.
    """

    target: Target
    sums: Mapping[int, SumPlan | ConvPlan]
    sides: Mapping[int, tuple[Side, ...]]
    names: Mapping[int, str]
    maxima: frozenset[int] = frozenset()
    pinned: frozenset[int] = frozenset()
    starts: Starts = field(default_factory=dict)

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
        return "\n".join(f"{self.names[number]}: {self._words(number)}" for number in self.sums)

    def _words(self, number: int) -> str:
        one = self.sums[number]
        return one.words(maximum=number in self.maxima) if isinstance(one, SumPlan) else one.words()


def choose_accumulations(block: Block, rule: OrderRule, typed: Block | None = None) -> dict[int, Accumulation]:
    """The order of every product and sum of a Block by the rule of `ipu_core.placement.orders`.

    It does not depend on formats but for one: products of at most 8 bits add twice as many in a group, as the matrix
    units that have them do. So a study has the same orders in all its precisions.

    Args:
        block: traced, or typed.
        rule: family, adder and version.
        typed: the Block with a precision applied, if `block` is the one without: without it no operands have 8 bits.
    """
    chosen = {}
    for equation in equations_of(block):
        if equation.op in CONVOLUTIONS:
            sums = sums_of(equation, _widest(equation))
            chosen[equation.number] = convolution_order(rule, sums)
        elif equation.op in SUMS:
            chosen[equation.number] = _by_rule(rule, equation)
    for number in _of_bytes(block if typed is None else typed) & chosen.keys():
        chosen[number] = replace(chosen[number], group=BYTES_GROUP)
    return chosen


def _of_bytes(block: Block) -> set[int]:
    """Numbers of the products whose operands are of at most 8 bits, or of blocks of such."""
    made = {equation.output: equation.op for equation in equations_of(block)}

    def narrow(var: Var) -> bool:
        fmt = var.type.format
        return made.get(var) == "to_blocks" or (not isinstance(fmt, str) and fmt.bits <= BYTE)

    # Both operands: the unit multiplies bytes by halves as halves, 16 at a time.
    return {e.number for e in equations_of(block) if e.op in PRODUCTS and all(map(narrow, e.operands[:2]))}


def _by_rule(rule: OrderRule, equation: Equation) -> Accumulation:
    size = sizes(equation)
    if (shards := equation.params.get("shards")) is not None:
        # Of shards that replicas may keep, each is summed as where it lies alone (see `ir.passes.shards`).
        return Accumulation() if shards == "ascending" else reduction_order(rule, 1, size.k, 1, shape=(size.k,))
    if equation.op in DOTS:
        return product_order(rule, size.m, size.k, size.n, batch=size.batch)
    return reduction_order(rule, size.m, size.k, size.n, shape=equation.operands[0].type.shape)


@in_default_state
def plan(
    block: Block,
    target: Target,
    accumulations: Mapping[int, Accumulation] | None = None,
    placements: Mapping[int, Placement | ConvPlacement] | None = None,
    *,
    spare: int = 0,
    share: int = LEAST_ROOM,
    apart: bool = True,
) -> BlockPlan:
    """Plans every product and sum of a typed Block.

    Args:
        block: what is to be run.
        target: the chip.
        accumulations: orders by equation number (their types are replaced by the equations'); default
            `choose_accumulations` of the Block, by the rule of the chip.
        placements: places by equation number; the others are searched for.
        spare: bytes of every tile that sums leave free beside what is kept for code: those that a plan without turned
            out to lack.
        share: a sum may use one part in so many of a tile at least, whatever the values leave.
        apart: whether arrays begin on tiles of their own; False: at tile 0, as what other programs share has to.

    Raises:
        TypeError: no Block, or no Target.
        UnsupportedByTarget: the chip has no unit for a product's formats, and none has one for block formats.
        ValueError: a placement that needs more tiles than there are; numbers of no product or sum.
    """
    expect(Block, block=block)
    expect(Target, target=target)
    _refuse_lacking(block, target)
    by_number("accumulations", accumulations, Accumulation)
    by_number("placements", placements, object)
    orders = choose_accumulations(block, OrderRule.of(target)) if accumulations is None else accumulations
    planned = {equation.number: equation for equation in equations_of(block) if equation.op in PLANNED}
    if unknown := (orders.keys() | (placements or {}).keys()) - planned.keys():
        raise ValueError(
            f"no products or sums of the block have the numbers {sorted(unknown)}; there are {sorted(planned)}"
        )
    maxima = frozenset(number for number, equation in planned.items() if equation.op not in SUMS)
    begin = starts(block, target) if apart else NOWHERE
    free = residency(block, target, apart).free
    sums: dict[int, SumPlan | ConvPlan] = {}
    lie: dict[int, tuple[Side, ...]] = {}
    for number, equation in planned.items():
        # A maximum is the same in every order: a stated one would only make digests differ, and a sum's is cheap.
        given = _by_rule(OrderRule.of(target), equation) if number in maxima else given_order(equation, orders)
        order = given or Accumulation()
        order = order_of(equation, order)
        place, room = (placements or {}).get(number), _room(target, free[number] - spare, share)
        if equation.op in CONVOLUTIONS:
            sums[number] = _plan_convolution(equation, target, order, place, room)
        else:
            lie[number], first = tuple(sides(block, equation, target, begin)), begin.get(equation.output, 0)
            sums[number] = _plan_sum(equation, lie[number], target, order, place, room, first)
    names = {number: e.name for number, e in planned.items()}
    return BlockPlan(target, sums, lie, names, maxima, frozenset(placements or ()), begin)


def _refuse_lacking(block: Block, target: Target) -> None:
    """Refuses what no tile computes: formats that it does not store, roundings that it does not have, block formats."""
    for var in block.inputs:
        if isinstance(fmt := var.type.format, FloatFormat) and fmt.dtype is None:
            raise UnsupportedByTarget(
                f"{var.name} is {fmt.name}, for which {target.name} has no unit; the direct engine (engine='direct') "
                "computes it"
            )
    for equation in equations_of(block):
        if is_rounded_apart(equation):
            how = equation.arithmetic.rounding
            fmt_name = format_name(equation.output.type.format)
            raise UnsupportedByTarget(
                f"{equation.name} is rounded to {fmt_name} ({how.words()}), for which {target.name} has no unit; the "
                "direct engine (engine='direct') computes it"
            )
        if equation.op == "to_blocks":
            raise UnsupportedByTarget(
                f"{equation.name}: {target.name} has no unit for {equation.params['format']}, whose elements "
                "share scales; the direct engine (engine='direct') computes it"
            )


def _plan_sum(
    equation: Equation,
    lie: tuple[Side, ...],
    target: Target,
    order: Accumulation,
    place: Placement | ConvPlacement | None,
    room: int,
    first: int,
) -> SumPlan:
    if not isinstance(place, Placement | None):
        raise ValueError(f"{equation.name} is no convolution: its place is a Placement, not {place}")
    name, out = _widest(equation), equation.output.type.shape
    return planned(target, sizes(equation), lie, name, out, order, place, room, first)


def _plan_convolution(
    equation: Equation, target: Target, order: Accumulation, place: Placement | ConvPlacement | None, room: int
) -> ConvPlan:
    if not isinstance(place, ConvPlacement | None):
        raise ValueError(f"{equation.name} is a convolution: its place is a ConvPlacement, not {place}")
    return plan_convolution(target, sums_of(equation, _widest(equation)), order, place, room)


def _widest(equation: Equation) -> str:
    """Name of the widest operand's format; a scale counts as none."""
    names = (format_name(var.type.format) for var in equation.operands[:2])
    return max(names, key=lambda name: element_type(name)[1].itemsize)


def _room(target: Target, free: int, share: int) -> int:
    """Bytes of a tile for what an equation has under way: what the values that live then leave, less code."""
    # `free` may be negative, where a Block goes on without enough memory: it is still planned.
    kept, least = min(RESERVED, target.tile_memory // RESERVED_SHARE), target.tile_memory // share
    return max(free - kept, least)
