"""Plans of sums (matrix products, reductions): the order, and the cheapest place for it under the tile-memory bound."""

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Final

from ipu_core.chip.target import Target
from ipu_core.placement.cuts import PlacementProblem, item_bytes
from ipu_core.placement.matmul.account import account
from ipu_core.placement.matmul.geometry import Geometry, geometry
from ipu_core.placement.matmul.placement import HOLDS, Placement
from ipu_core.placement.matmul.product import Product
from ipu_core.placement.matmul.product_cuts import PRODUCTS
from ipu_core.placement.matmul.working_set import Piece, working_set
from ipu_core.placement.orders import OrderRule, product_order, reduction_order
from ipu_core.placement.search import UNBOUNDED, search
from ipu_core.placement.supersteps import Account
from lowprec import Accumulation
from lowprec.values.formats import FormatLike

RESERVED: Final = 32 * 1024  # bytes of a tile kept for code, vertex state and alignment [model]


@dataclass(frozen=True)
class SumPlan:
    """A product's Accumulation and Placement, the operand layout they are meant for, and what they cost.

    Attributes:
        target, product, accumulation, placement: what was planned.
        compute_cycles, exchange_cycles, sync_cycles: of all supersteps.
        received, sent: bytes over the exchange, summed over tiles.
        memory: estimated bytes of the working set on the fullest tile: gathered operands, partials and results.
    """

    target: Target
    product: Product
    accumulation: Accumulation
    placement: Placement
    compute_cycles: int
    exchange_cycles: int
    sync_cycles: int
    received: int
    sent: int
    memory: int

    @property
    def cycles(self) -> int:
        """All cycles of the operation, operands already in the stated layout."""
        return self.compute_cycles + self.exchange_cycles + self.sync_cycles

    @cached_property
    def geometry(self) -> Geometry:
        """The grid of blocks on tiles."""
        return geometry(PlacementProblem(self.target, self.product, self.accumulation), self.placement)

    def efficiency(self, *, compute_only: bool = False) -> float:
        """Multiply-accumulates per cycle over the chip's FP16.16 (or the operands' own best) peak.

        Args:
            compute_only: count compute cycles alone, as if exchange and sync were free.
        """
        p = self.product
        peak = max(macs for operands, _, macs in self.target.macs if p.operands.startswith(operands))
        cycles = self.compute_cycles if compute_only else self.cycles
        return p.batch * p.m * p.k * p.n / (cycles * peak * self.target.tiles) if cycles else 0.0

    def words(self, *, maximum: bool = False) -> str:
        """The plan in a few printed lines.

        Args:
            maximum: the terms are compared, not added: their order has no meaning.
        """
        p = self.product
        name = "maximum" if maximum else "sum"
        size = f"{p.m} x {p.k} by {p.k} x {p.n}" if p.b else f"{name} over {p.k} of {p.m} x {p.n}"
        size = size if p.batch == 1 else f"{p.batch} x ({size})"
        order = f"  accumulation: {self.accumulation.words()} [{self.accumulation.digest()[:12]}]\n"
        return (
            f"{size}, {p.operands}\n"
            f"{'' if maximum else order}"
            f"  placement: {self.placement.words()}\n"
            f"  grid: {self.geometry.words()}\n"
            f"  cost: {self.cycles:,} cycles (compute {self.compute_cycles:,}, exchange {self.exchange_cycles:,}, "
            f"sync {self.sync_cycles:,}); {self.received:,} bytes received; {self.memory:,} bytes per tile under way"
        )


def plan_sum(
    target: Target,
    product: Product,
    accumulation: Accumulation | None = None,
    *,
    types: tuple[FormatLike, FormatLike] | None = None,
    placement: Placement | None = None,
    memory: int | None = None,
) -> SumPlan:
    """Plans a product of matrices or a sum.

    Args:
        target: the chip.
        product: sizes, formats and layouts, from `product_of` or `sum_of`.
        accumulation: the order of the sum; None: the rule's (see `placement.orders`).
        types: (accumulate, out); default the accumulation's, or the operands' own, of operands of 8 bits float16.
        placement: where; None searches for the fewest cycles. A given one is checked and costed.
        memory: bytes per tile for the working set: gathered operands, partials and results; default what the operands
            and the result leave.

    Raises:
        ValueError: unknown format, or a placement that needs more tiles than there are.
        UnsupportedByTarget: the chip has no AMP mode for these formats, or no such adder.
    """
    if accumulation is not None:
        target.check_adder(accumulation.adder)
    order = _by_rule(target, product) if accumulation is None else accumulation
    accumulate, out = types or (order.accumulate, order.out)
    room = _room(target, product, out) if memory is None else memory
    order = order.with_types(accumulate, out)
    problem = PlacementProblem(target, product, order)
    if placement is None:
        ample = _plan(problem, None, UNBOUNDED)
        if ample.memory <= room:  # the cheapest of all is the cheapest of those that fit: searched for once
            return ample
    return _plan(problem, placement, room)


@lru_cache(maxsize=512)
def _plan(problem: PlacementProblem[Product], placement: Placement | None, memory: int) -> SumPlan:
    product = problem.sums
    if placement is None:
        placement = search(PRODUCTS, problem, memory).placement
        # A sum lies where its terms do; a product takes its operands from everywhere.
        placement = replace(placement, first=0 if product.b else product.a.first)
    grid = geometry(problem, placement)
    if product.b is None and grid.depths > 1:
        raise ValueError(
            f"the chain of a sum's part is not cut in time: serial_depth {placement.serial_depth} for "
            f"{grid.parts.block} parts on a tile"
        )
    counted = accounted(problem, placement)
    return SumPlan(
        problem.target, product, problem.accumulation, placement, counted.compute, counted.exchange, counted.sync,
        int(counted.received.sum()), int(counted.sent.sum()),
        int(working_set(product, problem.accumulation, _piece(product, grid))),
    )  # fmt: skip


@lru_cache(maxsize=96)
def accounted(problem: PlacementProblem[Product], placement: Placement) -> Account:
    """The account of a place; one for all who ask."""
    return account(problem, geometry(problem, placement))


def _by_rule(target: Target, product: Product) -> Accumulation:
    """The order that the rule gives these sizes, in the operands' own types; no unit adds up in 8 bits."""
    m, k, n, operands = product.m, product.k, product.n, product.operands
    types = "float16" if item_bytes(operands) == 1 else operands
    if product.b is None:
        return reduction_order(OrderRule.of(target), m, k, n).with_types(types, types)
    return product_order(OrderRule.of(target), m, k, n, batch=product.batch, operands=operands).with_types(types, types)


def _room(target: Target, product: Product, out: FormatLike) -> int:
    """Bytes of a tile that the operands and the result leave."""
    size = item_bytes(product.operands)
    resident = (product.a.chunk + (product.b.chunk if product.b else 0)) * size + product.out.chunk * item_bytes(out)
    return max(0, target.tile_memory - RESERVED - resident)


def _piece(product: Product, grid: Geometry) -> Piece:
    """The largest turn of a grid."""
    rows, columns = min(grid.rows.piece, product.m), min(grid.columns.piece, product.n)
    whole = min(grid.parts.block * grid.chunk, product.k)
    depth = grid.depth if grid.depths > 1 else min(grid.parts.piece * grid.chunk, product.k)
    shared = min(rows, grid.share)
    return Piece(
        grid.batch.block, rows, columns, depth, whole, grid.parts.block, grid.parts.size, shared,
        HOLDS.index(grid.hold), grid.depths > 1,
    )  # fmt: skip
