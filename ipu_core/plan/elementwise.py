"""Plans of elementwise operations: the layout of the result's shape, and what the operation costs in it."""

from collections.abc import Sequence
from dataclasses import dataclass

from ipu_core import cost
from ipu_core.plan.layout import Layout, linear_layout
from ipu_core.plan.product import item_bytes
from ipu_core.target import Target

__all__ = ["ElementwisePlan", "plan_elementwise", "vertex_cycles"]


@dataclass(frozen=True)
class ElementwisePlan:
    """An elementwise operation whose operands lie in the layout of its result: no exchange.

    Attributes:
        op: an operation of the tile; "identity" converts.
        layout: of the result and of every operand of its shape.
        compute_cycles, sync_cycles: of its one superstep.
    """

    op: str
    layout: Layout
    compute_cycles: int
    sync_cycles: int

    @property
    def cycles(self) -> int:
        """All cycles of the operation."""
        return self.compute_cycles + self.sync_cycles

    def words(self) -> str:
        """The plan in one printed line."""
        return f"{self.op}: {self.layout.words()}; {self.cycles:,} cycles"


def plan_elementwise(target: Target, op: str, shape: Sequence[int], formats: Sequence[str]) -> ElementwisePlan:
    """Plans one operation on arrays of a shape.

    Args:
        target: the chip.
        op: an operation of the tile.
        shape: of the result and of its operands.
        formats: names of the formats of the operands and of the result; the widest decides the cycles.

    Raises:
        ValueError: unknown operation or format.
    """
    layout = linear_layout(target, shape)
    size = max(item_bytes(name) for name in formats)
    full = vertex_cycles(target, op, layout.rows * layout.columns, size)
    vertices = min(layout.per_tile, -(-layout.size // (layout.rows * layout.columns)))
    compute = (
        full * vertices if layout.size >= layout.rows * layout.columns else vertex_cycles(target, op, layout.size, size)
    )
    return ElementwisePlan(op, layout, compute if layout.size else 0, target.sync_cycles if layout.size else 0)


def vertex_cycles(target: Target, op: str, elements: int, size: int) -> int:
    """Cycles of one vertex: a conversion's for "identity", else the operation's.

    Raises:
        ValueError: unknown operation.
    """
    return int(cost.cast(target, elements, size) if op == "identity" else cost.elementwise(target, op, elements, size))
