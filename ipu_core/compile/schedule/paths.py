"""Parallel paths: sums of unlike sizes that run at once, as those of two towers of a model do, on tiles of their own.

Sums that share compute sets take no longer than one after the other, since a superstep takes as long as its slowest
tile. Where the tiles are not full they take less on tiles of their own: the exact account decides. Orders of sums stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ipu_core.chip.target import Target
from ipu_core.compile.planning import BlockPlan
from ipu_core.ir.block import Block
from ipu_core.ir.bodies import equations_of
from ipu_core.placement.matmul import SumPlan
from ipu_core.placement.matmul.beside import placed_beside

SUM: Final = "sum"
"""The kind of all products of matrices and sums: any that are independent may run at once."""
GRADIENTS: Final = ("grad_input", "grad_weight")
MORE: Final = 5 / 4  # so many times what a Block needs may live: the bound of what is under way is seldom reached
FREE_SHARE: Final = 8  # or an eighth of a tile, of which nobody runs short
MOST_SHARE: Final = 2  # but no more than half of it, since it is an estimate


def room_for_paths(block: Block, target: Target, peak: int) -> int:
    """Bytes that may live on the fullest tile for the sake of speed, where a Block needs so many at most as it is.

    That is more than it needs where half the tile is empty; 0, which allows what independent equations of one kind are
    allowed, where it is not, and where something is streamed or made again to need less.
    """
    free, half = target.tile_memory // FREE_SHARE, target.tile_memory // MOST_SHARE
    spares = block.streamed or block.offloaded or _makes_again(block)
    return 0 if spares or peak > half else min(max(int(MORE * peak), free), half)


def _makes_again(block: Block) -> bool:
    """Whether gradients make forward values again: copies, or those of reversible layers, which are traced late."""
    equations = equations_of(block)
    gradients = min((e.number for e in equations if e.role in GRADIENTS), default=None)
    if any(e.drawn is not None for e in equations):
        return True
    return gradients is not None and any(
        e.number > gradients for e in equations if e.role == "forward" and e.op != "convert"
    )


@dataclass(frozen=True)
class Paths:
    """The sums of a Block that may run beside others of any size.

    Attributes:
        sums: their plans, each as if it ran alone, by the equation's node.
    """

    sums: dict[int, SumPlan]

    @staticmethod
    def of(plan: BlockPlan, numbers: Sequence[int]) -> Paths:
        """Those of a plan, whose equations have these numbers, but for those that somebody placed."""
        found = {node: plan.sums.get(number) for node, number in enumerate(numbers) if number not in plan.pinned}
        return Paths({node: one for node, one in found.items() if isinstance(one, SumPlan)})

    def placed(self, group: Sequence[int], room: int) -> dict[int, SumPlan]:
        """The plans of sums that run at once, of those whose places change.

        Args:
            group: nodes that run at once.
            room: bytes of a tile that they may have under way.
        """
        if len(group) < 2 or not all(node in self.sums for node in group):
            return {}
        new = placed_beside([self.sums[node] for node in group], room)
        return {node: plan for node, plan in zip(group, new, strict=True) if plan is not self.sums[node]}
