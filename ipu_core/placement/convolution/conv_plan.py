"""Plans of convolutions: the order of their sums, and the cheapest cut of their results and parts over tiles."""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from ipu_core.chip.target import Target
from ipu_core.placement.axis_blocks import Blocks
from ipu_core.placement.convolution.conv_costs import compute_cycles, costs
from ipu_core.placement.convolution.conv_cuts import CONVOLUTIONS
from ipu_core.placement.convolution.sizes import (
    AXES,
    Convolution,
    ConvPlacement,
    along,
    blocks,
    chain_pieces,
    part_spans,
    placed_grid,
)
from ipu_core.placement.cuts import PlacementProblem
from ipu_core.placement.search import search
from lowprec import Accumulation


@dataclass(frozen=True)
class ConvPlan:
    """A convolution's Accumulation and ConvPlacement, and what they cost.

    Attributes:
        target, convolution, accumulation, placement: what was planned.
        compute_cycles: of all supersteps, exactly as an engine counts them.
        exchange_cycles: estimated: what every tile gathers is taken to come from others, and what a tile has of the
            operands to be wanted in every step. Over 1,300 random small convolutions on 16 to 1472 tiles an engine
            counted 0.18 to 1.44 of it (median 0.9, the middle nine tenths 0.46 to 1.00), and 0.52 to 1.18 of all
            cycles (0.97, 0.78 to 1.00).
        sync_cycles: at most; an engine leaves out phases in which nothing moves.
        memory: bytes on the fullest tile for gathered operands, partials and results, at most but for the padding of
            arrays to whole words.
    """

    target: Target
    convolution: Convolution
    accumulation: Accumulation
    placement: ConvPlacement
    compute_cycles: int
    exchange_cycles: int
    sync_cycles: int
    memory: int

    @property
    def cycles(self) -> int:
        """All cycles of the operation, without those of padding."""
        return self.compute_cycles + self.exchange_cycles + self.sync_cycles

    @property
    def blocks(self) -> tuple[Blocks, ...]:
        """The blocks of the result's axes, and their pieces in time."""
        return blocks(self.convolution, self.placement)

    @property
    def parts(self) -> tuple[tuple[int, int], ...]:
        """First and last term of every part of the sums."""
        return part_spans(self.convolution, self.accumulation)

    @property
    def chain(self) -> tuple[tuple[int, int], ...]:
        """First and last position of every piece in time of a weight gradient's one chain; else the first part."""
        return chain_pieces(self.convolution, self.accumulation, self.placement.serial_parts)

    @property
    def direct(self) -> bool:
        """Whether the chains write the result themselves: one part, and nothing to convert."""
        return len(self.parts) <= 1 and self.accumulation.one_format

    def words(self) -> str:
        """The plan in a few printed lines."""
        names = AXES[self.convolution.kind]
        cuts = " x ".join(f"{name} {n}" for name, n in zip(names, self.placement.cuts, strict=True))
        in_turn = "parts" if len(self.chain) == 1 else "positions"
        turns = zip((*names, in_turn), (*self.placement.serial, self.placement.serial_parts), strict=True)
        serial = " x ".join(f"{name} {n}" for name, n in turns if n > 1)
        return (
            f"{self.convolution.words()}\n"
            f"  accumulation: {self.accumulation.words()} [{self.accumulation.digest()[:12]}]\n"
            f"  placement: {cuts} x parts {self.placement.parts} over {self.placement.tiles} tiles"
            f"{f'; one after the other {serial}' if serial else ''}\n"
            f"  cost: {self.cycles:,} cycles (compute {self.compute_cycles:,}, exchange about "
            f"{self.exchange_cycles:,}, sync {self.sync_cycles:,}); {self.memory:,} bytes per tile under way"
        )


def plan_convolution(
    target: Target,
    convolution: Convolution,
    accumulation: Accumulation,
    placement: ConvPlacement | None = None,
    memory: int | None = None,
) -> ConvPlan:
    """Plans a convolution's sums.

    Args:
        target: the chip.
        convolution: sizes.
        accumulation: the order of the sums, with their types.
        placement: where; None searches for the fewest cycles. A given one is checked and costed.
        memory: bytes per tile for gathered operands and partials; default half of a tile.

    Raises:
        ValueError: a placement that needs more tiles than there are.
        UnsupportedByTarget: the chip has no AMP mode for these formats, or no such adder.
    """
    target.check_adder(accumulation.adder)
    room = target.tile_memory // 2 if memory is None else memory
    if placement is not None and math.prod(placed_grid(convolution, accumulation, placement)) > target.tiles:
        raise ValueError(f"{placement} needs more than the {target.tiles} tiles of {target.name}")
    return _plan(PlacementProblem(target, convolution, accumulation), placement, room)


@lru_cache(maxsize=512)
def _plan(problem: PlacementProblem[Convolution], placement: ConvPlacement | None, memory: int) -> ConvPlan:
    at = search(CONVOLUTIONS, problem, memory).placement if placement is None else placement
    over, turns = (
        along(np.array(axes, np.int64)[:, None], np.array([parts], np.int64))
        for axes, parts in ((at.cuts, at.parts), (at.serial, at.serial_parts))
    )
    _, exchange, sync, needed = (int(x[0]) for x in costs(problem, over, turns))
    return ConvPlan(*problem, at, compute_cycles(problem, at), exchange, sync, needed)
