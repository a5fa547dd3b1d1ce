"""The cuts of a product or sum that are tried, over tiles and in time, and the search for the cheapest."""

from typing import Final

import numpy as np

from ipu_core.chip.integers import Ints
from ipu_core.placement.cuts import UNCUT, Cuts, PlacementProblem
from ipu_core.placement.matmul.placement import HOLDS, ORDERS, Placement
from ipu_core.placement.matmul.product import Product
from ipu_core.placement.matmul.product_costs import costed, least_memory, lower_bound
from ipu_core.placement.search import Candidates, Family, cuts_within
from lowprec.integers import ceil_div

AXIS_CUTS: Final = 48  # cuts tried along one axis
TURNS: Final = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32)  # cuts in time tried along one axis


def over_tiles(problem: PlacementProblem[Product]) -> Candidates:
    """All cuts over tiles, tile numbers running fastest along columns or rows, with nothing cut in time."""
    target, product, accumulation = problem
    sizes = product.m, ceil_div(product.n, product.grain), len(accumulation.parts(product.k)), product.batch
    grid = cuts_within(target, [_axis_cuts(size, target.tiles) for size in sizes])
    rows_fastest = np.tile([0, 1], grid.shape[1])
    rows, columns, parts, batch = np.repeat(grid, 2, axis=1)
    # One block has no order.
    keep = (rows_fastest == 0) | (columns * rows > 1)
    return Candidates(Cuts(batch[keep], rows[keep], columns[keep], parts[keep]), UNCUT, rows_fastest[keep])


def _axis_cuts(size: int, most: int) -> Ints:
    """Numbers of cuts that give different blocks, at most AXIS_CUTS of them, spread evenly in proportion."""
    counts = np.arange(1, max(1, min(size, most)) + 1)
    _, first = np.unique(-ceil_div(max(1, size), counts), return_index=True)
    chosen: Ints = counts[first]
    if chosen.size > AXIS_CUTS:
        chosen = chosen[np.unique(np.geomspace(1, chosen.size, AXIS_CUTS).astype(np.int64) - 1)]
    return chosen


def every_turn(problem: PlacementProblem[Product], some: Candidates) -> Candidates:
    """Cuts over tiles with all turns of rows and columns, with nothing or either operand held."""
    holds = range(len(HOLDS) if problem.sums.b else 1)
    rows, columns, hold = (axis.reshape(1, -1) for axis in np.meshgrid(TURNS, TURNS, holds, indexing="ij"))
    # An operand is held while pieces of the other pass: with one piece there is nothing to hold it for.
    keep = ((hold == 0) | (hold == 1) & (columns > 1) | (hold == 2) & (rows > 1))[0]
    over = Cuts(*(cuts[:, None] for cuts in some.over))
    return Candidates(over, Cuts(1, rows[:, keep], columns[:, keep], 1), some.rows_fastest[:, None], hold[:, keep])


def placement(one: Candidates) -> Placement:
    """A candidate as a Placement."""
    over, turns = (Cuts(*map(int, cuts)) for cuts in (one.over, one.turns))
    return Placement(
        over.rows, over.columns, over.parts, over.batch, turns.rows, turns.columns,
        HOLDS[int(one.hold)], ORDERS[int(one.rows_fastest)], turns.parts,
    )  # fmt: skip


PRODUCTS: Final = Family(
    over_tiles=over_tiles,
    costs=costed,
    least_memory=least_memory,
    parts_in_time=lambda _, some: some,  # the memory decides how often k's are cut
    lower_bound=lower_bound,
    in_time=every_turn,
    smallest=lambda _, some: some._replace(turns=Cuts(1, TURNS[-1], TURNS[-1], 1)),
    place=placement,
)
