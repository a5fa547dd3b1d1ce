"""Plans of sums (matrix products, reductions): the order, and the cheapest place for it under the tile-memory bound."""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

from ipu_core.plan.geometry import Geometry, geometry
from ipu_core.plan.placement import Placement
from ipu_core.plan.product import Product, account, item_bytes
from ipu_core.plan.search import search
from ipu_core.plan.under_way import Piece, bytes_under_way
from ipu_core.target import Target
from lowprec import Accumulation
from lowprec.spec.formats import FormatLike

__all__ = ["SumPlan", "choose_splits", "plan_product"]

RESERVED: Final = 32 * 1024  # bytes of a tile kept for code, vertex state and alignment [model]


@dataclass(frozen=True)
class SumPlan:
    """A product's Accumulation and Placement, the operand layout they are meant for, and what they cost.

    Attributes:
        target, product, accumulation, placement: what was planned.
        compute_cycles, exchange_cycles, sync_cycles: of all supersteps.
        received, sent: bytes over the exchange, summed over tiles.
        memory: estimated bytes on the fullest tile for gathered operands, partials and results under way.
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

    @property
    def geometry(self) -> Geometry:
        """The grid of blocks on tiles."""
        p = self.product
        return geometry(self.target, p.batch, p.m, p.k, p.n, self.accumulation, self.placement, p.grain)

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


def plan_product(
    target: Target,
    product: Product,
    accumulation: Accumulation | None,
    types: tuple[FormatLike, FormatLike],
    placement: Placement | None,
    memory: int | None,
) -> SumPlan:
    """Plans a product or a sum; see `plan_matmul` and `plan_reduction`."""
    room = _room(target, product, types[1]) if memory is None else memory
    return _plan(target, product, accumulation and accumulation.with_types(*types), types, placement, room)


@lru_cache(maxsize=512)
def _plan(
    target: Target,
    product: Product,
    accumulation: Accumulation | None,
    types: tuple[FormatLike, FormatLike],
    placement: Placement | None,
    memory: int,
) -> SumPlan:
    order = accumulation or Accumulation().with_types(*types)
    if placement is None or accumulation is None:
        found, splits = search(target, product, order, memory, choose_splits=accumulation is None)
        order = order if accumulation else replace(order, splits=splits)
        placement = placement or found
    grid = geometry(target, product.batch, product.m, product.k, product.n, order, placement, product.grain)
    if product.b is None and grid.depths > 1:
        raise ValueError(
            f"the chain of a sum's part is not cut in time: serial_depth {placement.serial_depth} for "
            f"{grid.parts.block} parts on a tile"
        )
    counted = account(target, product, order, grid)
    return SumPlan(
        target, product, order, placement, counted.compute, counted.exchange, counted.sync,
        int(counted.received.sum()), int(counted.sent.sum()),
        int(bytes_under_way(product, order, _piece(product, grid))),
    )  # fmt: skip


def choose_splits(target: Target, product: Product, order: Accumulation) -> Accumulation:
    """The order with the number of parts that is cheapest on this target."""
    _, splits = search(target, product, order, _room(target, product, order.out), choose_splits=True)
    return Accumulation(group=order.group, splits=splits, adder=order.adder)


def _room(target: Target, product: Product, out: FormatLike) -> int:
    """Bytes of a tile that the operands and the result leave."""
    size = item_bytes(product.operands)
    resident = (product.a.chunk + (product.b.chunk if product.b else 0)) * size + product.out.chunk * item_bytes(out)
    return max(0, target.tile_memory - RESERVED - resident)


def _piece(product: Product, grid: Geometry) -> Piece:
    """The largest serial step of a grid."""
    rows, columns = min(grid.rows.piece, product.m), min(grid.columns.piece, product.n)
    whole = min(grid.parts.block * grid.chunk, product.k)
    depth = grid.depth if grid.depths > 1 else min(grid.parts.piece * grid.chunk, product.k)
    held = ("none", "a", "b").index(grid.hold)
    shared = min(rows, grid.share)
    return Piece(
        grid.batch.block, rows, columns, depth, whole, grid.parts.block, grid.parts.size, shared, held, grid.depths > 1
    )
