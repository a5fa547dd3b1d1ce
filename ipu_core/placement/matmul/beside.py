"""Sums beside each other: the cheapest places of sums that run at once, on tiles of their own where that is cheaper.

A sum cut over fewer tiles takes longer, but the others run meanwhile: together they take the slowest tile's time. The
tiles are cut into lanes, of equal width with several sums one after another on each, or as wide as lets all end at
about the same time with one on each. A model of the search ranks these; the exact account decides between the best of
them and the places that each sum has alone. Orders of sums are given: no bit changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from ipu_core.chip.integers import Ints
from ipu_core.chip.target import Target
from ipu_core.placement.cuts import PlacementProblem
from ipu_core.placement.matmul.product import Product
from ipu_core.placement.matmul.product_cuts import PRODUCTS
from ipu_core.placement.matmul.sum_plan import SumPlan, accounted, plan_sum
from ipu_core.placement.search import UNBOUNDED, Costed
from ipu_core.placement.supersteps import Account, beside
from lowprec.integers import ceil_div

MOST_LANES: Final = 8  # of equal width
ACCOUNTED: Final = 2  # ways that the exact account looks at, the best by the model first


class Frontier(NamedTuple):
    """The places of a sum that are worth their tiles, uncut in time: with more tiles ever fewer cycles.

    Attributes:
        tiles: how many, ascending.
        cycles: modelled, descending.
        costed: the candidates.
    """

    tiles: Ints
    cycles: npt.NDArray[np.float64]
    costed: Costed

    def within(self, tiles: int) -> int:
        """The number of the fastest on so many tiles; -1: none is."""
        return int(np.searchsorted(self.tiles, tiles, side="right")) - 1

    def by(self, cycles: float) -> int:
        """The number of the one on the fewest tiles that takes no longer; how many there are: none is so fast."""
        return int(np.searchsorted(-self.cycles, -cycles))


class Lanes(NamedTuple):
    """A way to share out tiles among sums.

    Attributes:
        cycles: of the slowest lane, by the model of the search.
        which: of each sum the number of its place in its frontier.
        first: of each sum the first tile.
    """

    cycles: float
    which: tuple[int, ...]
    first: tuple[int, ...]


def placed_beside(plans: Sequence[SumPlan], memory: int) -> tuple[SumPlan, ...]:
    """Plans of sums that run at once: on tiles of their own where that takes fewer cycles, else as they are.

    Args:
        plans: for one target, each as if it ran alone.
        memory: bytes of a tile that they may have under way together, if not what they have as they are.
    """
    if not all(_account(plan).known for plan in plans):
        return tuple(plans)
    best, fewest = tuple(plans), _cycles(plans)
    room, target = max(memory, sum(plan.memory for plan in plans)), plans[0].target
    fronts = [frontier(_problem(plan)) for plan in plans]
    if not all(front.tiles.size for front in fronts):
        return best
    ways = sorted((way for way in lanes(fronts, target) if way.cycles < fewest), key=lambda way: way.cycles)
    for way in ways[:ACCOUNTED]:
        places = zip(plans, fronts, way.which, way.first, strict=True)
        apart = tuple(_moved(plan, front, which, first) for plan, front, which, first in places)
        if _fullest(apart, way) <= room and (cycles := _cycles(apart)) < fewest:
            best, fewest = apart, cycles
    return best


@lru_cache(maxsize=512)
def frontier(problem: PlacementProblem[Product]) -> Frontier:
    """The frontier of a sum; empty where nothing fits that is not cut in time."""
    whole = PRODUCTS.costs(problem, PRODUCTS.over_tiles(problem), UNBOUNDED)
    over = whole.candidates.over
    tiles = np.broadcast_to(over.batch * over.rows * over.columns * over.parts, whole.cycles.shape)
    fits = np.flatnonzero(whole.memory <= problem.target.tile_memory)
    order = fits[np.lexsort((whole.cycles[fits], tiles[fits]))]
    least = np.minimum.accumulate(whole.cycles[order])
    better = order[np.append(True, least[1:] < least[:-1])] if order.size else order
    return Frontier(tiles[better].astype(np.int64), whole.cycles[better].astype(np.float64), whole.at(better))


def lanes(fronts: Sequence[Frontier], target: Target) -> Iterator[Lanes]:
    """Ways to share out the tiles of a chip: lanes of equal width, in whole supertiles, and one for each sum."""
    pair = target.tiles_per_supertile
    for count in range(2, min(len(fronts), MOST_LANES) + 1):
        width = target.tiles // (count * pair) * pair
        if (found := _equal_lanes(fronts, count, width)) is not None:
            yield found
    if (found := _own_lanes(fronts, target.tiles, pair)) is not None:
        yield found


def _equal_lanes(fronts: Sequence[Frontier], count: int, width: int) -> Lanes | None:
    """The longest sums first, each on the lane that is free first; None: one has no place that is so narrow."""
    which = [front.within(width) for front in fronts]
    if min(which) < 0:
        return None
    cycles = [float(front.cycles[one]) for front, one in zip(fronts, which, strict=True)]
    busy, lane = [0.0] * count, [0] * len(fronts)
    for number in sorted(range(len(fronts)), key=lambda number: -cycles[number]):
        lane[number] = busy.index(min(busy))
        busy[lane[number]] += cycles[number]
    return Lanes(max(busy), tuple(which), tuple(one * width for one in lane))


def _own_lanes(fronts: Sequence[Frontier], tiles: int, pair: int) -> Lanes | None:
    """A lane for each sum, so wide that the slowest ends first; None: there are too few tiles."""
    ends = np.unique(np.concatenate([front.cycles for front in fronts]))
    low, high, found = 0, ends.size - 1, None
    while low <= high:  # with more time fewer tiles do: the first end for which there are enough
        middle = (low + high) // 2
        which = [front.by(ends[middle]) for front in fronts]
        first = _firsts(fronts, which, pair)
        if first is not None and first[-1] <= tiles:
            found, high = Lanes(float(ends[middle]), tuple(which), first[:-1]), middle - 1
        else:
            low = middle + 1
    return found


def _firsts(fronts: Sequence[Frontier], which: Sequence[int], pair: int) -> tuple[int, ...] | None:
    """The first tiles of lanes side by side, and the one after the last; None: a sum is not fast enough anywhere."""
    first = [0]
    for front, one in zip(fronts, which, strict=True):
        if one >= front.tiles.size:
            return None
        first.append(first[-1] + ceil_div(int(front.tiles[one]), pair) * pair)
    return tuple(first)


def _moved(plan: SumPlan, front: Frontier, which: int, first: int) -> SumPlan:
    place = replace(PRODUCTS.place(front.costed.at(which).candidates), first=first)
    return plan_sum(plan.target, plan.product, plan.accumulation, placement=place, memory=UNBOUNDED)


def _fullest(plans: Sequence[SumPlan], way: Lanes) -> int:
    """Bytes under way on the fullest lane."""
    return max(sum(plan.memory for plan, at in zip(plans, way.first, strict=True) if at == one) for one in way.first)


def _cycles(plans: Sequence[SumPlan]) -> int:
    return beside([_account(plan) for plan in plans])


def _account(plan: SumPlan) -> Account:
    return accounted(_problem(plan), plan.placement)


def _problem(plan: SumPlan) -> PlacementProblem[Product]:
    return PlacementProblem(plan.target, plan.product, plan.accumulation)
