"""The one search for a place, of products, sums and convolutions: the cheapest of all cuts that fit.

Every cut over tiles is costed at once, uncut in time. Where one does not fit but could still win, the parts of its sums
are cut in time; then everything is, some cuts over tiles after the other, until a lower bound of what they would cost
rules out the rest. So nothing in the space is missed, the candidates do not depend on the memory, and more memory never
makes the modelled cycles more. Of candidates that cost the same, the one of the fewest tiles wins, then the first.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, NamedTuple, Self, TypeVar

import numpy as np
import numpy.typing as npt

from ipu_core.chip.integers import Ints
from ipu_core.chip.target import Target
from ipu_core.placement.cuts import Cuts, PlacementProblem, Sums, picked

Place = TypeVar("Place")

UNBOUNDED: Final = 1 << 60  # bytes: cut nothing in time
CUTS_PER_BATCH: Final = 48  # cuts over tiles whose cuts in time are costed at once: a few thousand candidates


class Candidates(NamedTuple):
    """Where sums could lie: numbers, or arrays that broadcast, with an entry per candidate.

    Attributes:
        over: cuts over tiles.
        turns: cuts in time.
        rows_fastest: whether tile numbers run fastest along rows; products alone choose.
        hold: which operand's piece stays on the tile, 0 none, 1 a, 2 b; products alone choose.
    """

    over: Cuts
    turns: Cuts
    rows_fastest: Any = 0
    hold: Any = 0


class Costed(NamedTuple):
    """Candidates with all their turns, their modelled cycles and the bytes a tile needs; these two have all axes."""

    candidates: Candidates
    cycles: npt.NDArray[Any]
    memory: Ints

    def at(self, which: Any) -> Self:
        """Those at a flat index."""
        shape = self.cycles.shape
        return self._replace(
            candidates=picked(self.candidates, shape, which),
            cycles=picked(self.cycles, shape, which),
            memory=picked(self.memory, shape, which),
        )


class BestPlacement(NamedTuple, Generic[Place]):
    """A place, and its modelled cycles."""

    placement: Place
    cycles: float


@dataclass(frozen=True)
class Family(Generic[Sums, Place]):
    """What the search has to know of a family of sums: its axes and its costs, each for arrays of candidates at once.

    Attributes:
        over_tiles: all cuts over tiles, with nothing cut in time.
        costs: what candidates cost. A family whose parts (or k's) are cut in time by what the memory allows reads it.
        least_memory: bytes per tile that candidates need at least with these cuts in time or fewer.
        parts_in_time: for cuts over tiles, the candidates with nothing but the parts cut in time.
        lower_bound: cycles that no other cut in time of candidates that were costed uncut stays below.
        in_time: for cuts over tiles, the candidates with all cuts in time.
        smallest: cuts over tiles, cut in time as often as can be.
        place: one candidate as a placement.
    """

    over_tiles: Callable[[PlacementProblem[Sums]], Candidates]
    costs: Callable[[PlacementProblem[Sums], Candidates, int], Costed]
    least_memory: Callable[[PlacementProblem[Sums], Candidates], Ints]
    parts_in_time: Callable[[PlacementProblem[Sums], Candidates], Candidates]
    lower_bound: Callable[[PlacementProblem[Sums], Costed, int], npt.NDArray[Any]]
    in_time: Callable[[PlacementProblem[Sums], Candidates], Candidates]
    smallest: Callable[[PlacementProblem[Sums], Candidates], Candidates]
    place: Callable[[Candidates], Place]


def search(family: Family[Sums, Place], problem: PlacementProblem[Sums], memory: int) -> BestPlacement[Place]:
    """The place of the fewest modelled cycles; where nothing fits, the one that needs least memory.

    Args:
        family: of sums.
        problem: what is to be placed.
        memory: bytes per tile for gathered operands, partials and results: the working set.
    """
    whole = family.costs(problem, family.over_tiles(problem), UNBOUNDED)
    best = _better(None, whole, whole.memory <= memory)
    # Cutting in time never makes a candidate cheaper: one that is no better uncut cannot win.
    crowded = whole.at(np.flatnonzero((whole.memory > memory) & (whole.cycles < _cycles(best))))
    if crowded.cycles.size:
        # Those that fit in no number of cuts are left out before any is costed.
        most = family.smallest(problem, crowded.candidates)
        crowded = crowded.at(np.flatnonzero(family.least_memory(problem, most) <= memory))
    if crowded.cycles.size:
        some = family.costs(problem, family.parts_in_time(problem, crowded.candidates), memory)
        best = _better(best, some, some.memory <= memory)
        best = _with_turns(family, problem, crowded, best, memory)
    if best is None:
        least = family.costs(problem, family.smallest(problem, whole.candidates), 0)
        best = _better(None, least, least.memory == least.memory.min())
        assert best is not None  # one of them is the smallest
    return BestPlacement(family.place(best.candidates), float(best.cycles))


def _with_turns(
    family: Family[Sums, Place], problem: PlacementProblem[Sums], crowded: Costed, best: Costed | None, memory: int
) -> Costed | None:
    """The best candidate with everything cut in time, if it is better than the `best` so far, else that.

    Args:
        family: of sums.
        problem: what is to be placed.
        crowded: cuts over tiles that do not fit uncut, costed so.
        best: the best so far.
        memory: bytes per tile.
    """
    bound = family.lower_bound(problem, crowded, memory)
    # The most promising first: the sooner a good one is found, the sooner the bound of the rest rules them out.
    order = np.argsort(bound, kind="stable")
    for start in range(0, order.size, CUTS_PER_BATCH):
        if bound[order[start]] >= _cycles(best):
            break
        batch = order[start : start + CUTS_PER_BATCH]
        some = family.costs(problem, family.in_time(problem, crowded.at(batch).candidates), memory)
        best = _better(best, some, some.memory <= memory)
    return best


def _cycles(best: Costed | None) -> float:
    return math.inf if best is None else float(best.cycles)


def _better(best: Costed | None, costed: Costed, allowed: npt.NDArray[np.bool_]) -> Costed | None:
    """The cheapest allowed candidate if it has fewer cycles than the best so far, else that."""
    where = np.flatnonzero(allowed)
    if not where.size:
        return best
    cycles = costed.cycles.reshape(-1)[where]
    if cycles.min() >= _cycles(best):
        return best
    equal = costed.at(where[cycles == cycles.min()])
    over = equal.candidates.over
    # Tiles that do not help are left to others, and ties are decided by the order of candidates, never by the machine.
    return equal.at(np.argmin(over.batch * np.atleast_2d(over.rows).prod(axis=0) * over.columns * over.parts))


def cuts_within(target: Target, axes: Sequence[Sequence[int] | Ints]) -> Ints:
    """Every choice of one number of cuts per axis for which the tiles suffice: an array (axes, choices).

    Args:
        target: the chip.
        axes: for each axis, the numbers of cuts that are tried.
    """
    grid = np.stack(np.meshgrid(*axes, indexing="ij")).reshape(len(axes), -1).astype(np.int64)
    return grid[:, grid.prod(axis=0) <= target.tiles]
