"""The search for a Placement: cuts over tiles and in time together; the cheapest of all that fit wins.

Every cut over tiles is costed at once, uncut in time but for its k's, which are cut as seldom as the memory allows.
Cuts of rows and columns in time, and held operands, are then tried for those cuts over tiles that could still win: a
lower bound of what they would cost rules out the others. So nothing in the space is missed, the candidates do not
depend on the memory, and more memory never makes the modelled cycles more.
"""

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from ipu_core.chip.integers import Ints
from ipu_core.placement.cuts import UNCUT, Cuts, PlacementProblem, picked
from ipu_core.placement.matmul.estimate import UNBOUNDED, Candidates, Costed, costed, least_memory, lower_bound
from ipu_core.placement.matmul.placement import HOLDS, ORDERS, Placement
from ipu_core.placement.matmul.product import Product
from lowprec.integers import ceil_div

AXIS_CUTS: Final = 48  # cuts tried along one axis
TURNS: Final = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32)  # cuts in time tried along one axis
MOST_TURNS: Final = Cuts(1, TURNS[-1], TURNS[-1], 1)
CANDIDATES: Final = 48  # cuts over tiles for which cuts in time are costed at a time


class Found(NamedTuple):
    """A candidate: where, and its modelled cycles."""

    placement: Placement
    cycles: float


def search(problem: PlacementProblem[Product], memory: int) -> Found:
    """The Placement with the fewest modelled cycles; where nothing fits, the one that needs least memory.

    Args:
        problem: what is to be placed.
        memory: bytes per tile for gathered operands, partials and results: the working set.
    """
    every = _cuts_over_tiles(problem)
    whole = costed(problem, every, UNBOUNDED)
    if whole.memory.max() <= memory:  # a cut in time only adds to the cycles
        best = _cheapest(whole, whole.memory <= memory)
    else:
        plain = costed(problem, every, memory)
        best = _cheapest(plain, plain.memory <= memory)
        best = _with_turns(problem, whole, best, memory)
    return best or _smallest(problem, every)


def _with_turns(problem: PlacementProblem[Product], whole: Costed, best: Found | None, memory: int) -> Found | None:
    """The best candidate with rows or columns cut in time, if it is better than the `best` without, else that.

    Args:
        problem: what is to be placed.
        whole: the cuts over tiles costed with unbounded memory.
        best: the best of them that fits without turns of rows and columns.
        memory: bytes per tile.
    """
    crowded = np.flatnonzero(whole.memory > memory)  # where everything fits, a cut in time only adds to the cycles
    bound = lower_bound(problem, picked(whole, whole.cycles.shape, crowded), memory)
    inside = np.ones(crowded.size, bool) if best is None else bound < best.cycles
    crowded, bound = crowded[inside], bound[inside]
    least = least_memory(problem, picked(whole.candidates, whole.cycles.shape, crowded)._replace(turns=MOST_TURNS))
    order = np.argsort(bound, kind="stable")
    for start in range(0, order.size, CANDIDATES):
        some = order[start : start + CANDIDATES]
        if best is not None and bound[some[0]] >= best.cycles:
            break
        if not (some := some[least[some] <= memory]).size:
            continue
        turned = costed(problem, _every_turn(problem.sums, whole, crowded[some]), memory)
        one = _cheapest(turned, turned.memory <= memory)
        if one is not None and (best is None or one.cycles < best.cycles):
            best = one
    return best


def _axis_cuts(size: int, most: int) -> Ints:
    """Numbers of cuts that give different blocks, at most AXIS_CUTS of them, spread evenly in proportion."""
    counts = np.arange(1, min(size, most) + 1) if size else np.ones(1, np.int64)
    blocks = ceil_div(max(1, size), counts)
    _, first = np.unique(-blocks, return_index=True)
    chosen: Ints = counts[first]
    if chosen.size > AXIS_CUTS:
        chosen = chosen[np.unique(np.geomspace(1, chosen.size, AXIS_CUTS).astype(np.int64) - 1)]
    return chosen


def _cuts_over_tiles(problem: PlacementProblem[Product]) -> Candidates:
    """All cuts over tiles, with nothing cut in time."""
    target, product, accumulation = problem
    wanted = max(1, len(accumulation.parts(product.k)))
    axes = np.meshgrid(
        _axis_cuts(product.m, target.tiles),
        _axis_cuts(ceil_div(product.n, product.grain), target.tiles),
        _axis_cuts(wanted, target.tiles),
        _axis_cuts(product.batch, target.tiles),
        np.arange(2),
        indexing="ij",
    )
    rows, columns, parts, batch, rows_fastest = (axis.ravel().astype(np.int64) for axis in axes)
    keep = (rows * columns * parts * batch <= target.tiles) & ((rows_fastest == 0) | (columns * rows > 1))
    over = Cuts(batch[keep], rows[keep], columns[keep], parts[keep])
    part = min(max(1, product.k), accumulation.part_length(product.k))
    each = np.ones_like(over.parts)
    return Candidates(over, UNCUT, rows_fastest[keep], 0, part * each, wanted * each)


def _every_turn(product: Product, whole: Costed, which: Ints) -> Candidates:
    """Some cuts over tiles with all turns of rows and columns, with nothing or either operand held."""
    rows, columns, hold = (
        axis.ravel()[None, :]
        for axis in np.meshgrid(TURNS, TURNS, range(len(HOLDS) if product.b else 1), indexing="ij")
    )
    keep = ((hold == 0) | (hold == 1) & (columns > 1) | (hold == 2) & (rows > 1))[0]
    some: Candidates = picked(whole.candidates, whole.cycles.shape, which[:, None])
    return some._replace(turns=Cuts(1, rows[:, keep], columns[:, keep], 1), hold=hold[:, keep])


def _smallest(problem: PlacementProblem[Product], every: Candidates) -> Found:
    """The candidate that needs least memory: everything cut in time as often as can be."""
    turned = costed(problem, every._replace(turns=MOST_TURNS), 0)
    found = _cheapest(turned, turned.memory == turned.memory.min())
    assert found is not None  # one of them is the smallest
    return found


def _cheapest(costs: Costed, allowed: npt.NDArray[np.bool_]) -> Found | None:
    """The allowed candidate with the fewest cycles, then the fewest tiles, then the first; None without any."""
    where = np.flatnonzero(allowed)
    if not where.size:
        return None
    cycles = costs.cycles.reshape(-1)[where]
    where = where[cycles == cycles.min()]
    over: Cuts = picked(costs.candidates.over, costs.cycles.shape, where)
    first = where[np.argmin(over.rows * over.columns * over.parts * over.batch)]
    best: Candidates = picked(costs.candidates, costs.cycles.shape, first)
    over, turns = (Cuts(*map(int, cuts)) for cuts in (best.over, best.turns))
    placement = Placement(
        over.rows, over.columns, over.parts, over.batch, turns.rows, turns.columns,
        HOLDS[int(best.hold)], ORDERS[int(best.rows_fastest)], turns.parts,
    )  # fmt: skip
    return Found(placement, float(cycles.min()))
