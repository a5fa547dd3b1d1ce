"""The search for the cuts of a convolution, over tiles and in time, that take the fewest cycles."""

import itertools
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from ipu_core.chip.integers import Ints
from ipu_core.chip.target import Target
from ipu_core.placement.blocks import COLUMN_GRAIN
from ipu_core.placement.convolution.estimate import Costs, block_lengths, costs, gathered
from ipu_core.placement.convolution.sizes import Convolution, ConvPlacement, Five, along, part_spans
from ipu_core.placement.cuts import Cuts, PlacementProblem, item_bytes
from lowprec.integers import ceil_div

MOST_CUTS: Final = 12  # candidates along an axis
MOST_TURNS: Final = (256, 64, 64)  # pieces in time: of the images that are seen, of the outputs, of the parts
CANDIDATES: Final = 32  # cuts over tiles for which cuts in time are costed at a time


def search(problem: PlacementProblem[Convolution], memory: int) -> ConvPlacement:
    """The cuts with the fewest cycles among those that fit, then with the fewest tiles; else with the least memory.

    Cuts in time only add to the cycles: the parts' little, the others' at least what it takes to bring one operand
    again. They are tried, with the fastest cuts over tiles first, until none is left that could still win.
    """
    target, convolution, order = problem
    parts = len(part_spans(convolution, order))
    over = _cuts_over_tiles(target, convolution, parts)
    uncut = _uncut(over)
    whole = costs(problem, over, uncut)
    fits = whole.memory <= memory
    best = _first(None, over, uncut, whole, fits)
    crowded = np.flatnonzero(~fits & (whole.cycles < (np.inf if best is None else best.cycles)))
    if not crowded.size:
        assert best is not None  # there is always a candidate
        return best.placement
    over, bound = _at(over, crowded), whole.cycles[crowded]
    most = _most_turns(convolution, over, parts)
    least = costs(problem, over, most)
    feasible = least.memory <= memory
    if best is None and not feasible.any():
        found = _first(None, over, most, least, least.memory == least.memory.min())
        assert found is not None  # one of them is the smallest
        return found.placement
    over, bound = _at(over, feasible), bound[feasible]
    for number in (1 << i for i in range(1, MOST_TURNS[2].bit_length())):
        turns = _uncut(over)._replace(parts=np.minimum(number, ceil_div(parts, over.parts)))
        some = costs(problem, over, turns)
        best = _first(best, over, turns, some, some.memory <= memory)
    once = gathered(convolution, order, block_lengths(convolution, over), ceil_div(parts, over.parts))
    again = np.minimum(*once) * item_bytes(convolution.operands) / target.exchange_bytes_per_cycle
    best = _with_pieces(problem, over, bound + again, best, memory)
    assert best is not None  # something is feasible
    return best.placement


class _Best(NamedTuple):
    """A candidate and its cycles."""

    placement: ConvPlacement
    cycles: int


def _cuts_over_tiles(target: Target, convolution: Convolution, parts: int) -> Cuts:
    """All cuts over tiles, those of few tiles first."""
    sizes = (*convolution.result[:4], ceil_div(convolution.result[4], COLUMN_GRAIN), parts)
    grid = np.array(list(itertools.product(*map(_axis_cuts, sizes))), np.int64).T
    grid = grid[:, grid.prod(axis=0) <= target.tiles]
    grid = grid[:, np.argsort(grid.prod(axis=0), kind="stable")]
    return along(grid[:5], grid[5])


def _at(cuts: Cuts, which: Any) -> Cuts:
    """Those of some candidates."""
    return Cuts(*(numbers[..., which] for numbers in cuts))


def _uncut(cuts: Cuts) -> Cuts:
    """One turn for every candidate."""
    return Cuts(*map(np.ones_like, cuts))


def _first(best: _Best | None, over: Cuts, turns: Cuts, found: Costs, allowed: npt.NDArray[np.bool_]) -> _Best | None:
    """The first allowed candidate with the fewest cycles if it has fewer than the best so far, else that."""
    where = np.flatnonzero(allowed)
    if not where.size:
        return best
    i = where[np.argmin(found.cycles[where])]
    if best is not None and best.cycles <= found.cycles[i]:
        return best
    (cuts, parts), (serial, serial_parts) = (_numbers(_at(numbers, i)) for numbers in (over, turns))
    return _Best(ConvPlacement(cuts, parts, serial, serial_parts), int(found.cycles[i]))


def _numbers(cuts: Cuts) -> tuple[Five, int]:
    """One candidate's cuts of the result's axes, and of the parts."""
    a, b, c = map(int, cuts.rows)
    return (a, b, c, int(cuts.batch), int(cuts.columns)), int(cuts.parts)


def _with_pieces(
    problem: PlacementProblem[Convolution], over: Cuts, bound: npt.NDArray[np.float64], best: _Best | None, memory: int
) -> _Best | None:
    """The best candidate with blocks cut in time, if it is better than the `best` so far, else that."""
    order = np.argsort(bound, kind="stable")
    for start in range(0, order.size, CANDIDATES):
        some = order[start : start + CANDIDATES]
        if best is not None and bound[some[0]] >= best.cycles:
            break
        wide, turns = _with_turns(problem, _at(over, some))
        found = costs(problem, wide, turns)
        best = _first(best, wide, turns, found, found.memory <= memory)
    return best


def _with_turns(problem: PlacementProblem[Convolution], over: Cuts) -> tuple[Cuts, Cuts]:
    """Every candidate with every number of cuts in time, powers of two."""
    convolution = problem.sums
    every = np.meshgrid(*([1 << i for i in range(most.bit_length())] for most in MOST_TURNS))
    seen, across, turns = (np.tile(axis.ravel(), over.parts.size) for axis in every)
    wide = Cuts(*(np.repeat(numbers, every[0].size, axis=-1) for numbers in over))
    (a0, a1, a2), groups, outputs = _grains(convolution, wide)
    longest = a2 if convolution.kind == "weight" else a0 * a1 * a2
    each = ceil_div(len(part_spans(convolution, problem.accumulation)), wide.parts)
    keep = (seen < 2 * longest) & (across < 2 * groups * outputs) & (turns < 2 * each)
    wide = _at(wide, keep)
    return wide, _turns(convolution, wide, seen[keep], across[keep], np.minimum(turns, each)[keep])


def _most_turns(convolution: Convolution, over: Cuts, parts: int) -> Cuts:
    """As many cuts in time as are ever tried."""
    seen, across, turns = (np.full_like(over.parts, most) for most in MOST_TURNS)
    return _turns(convolution, over, seen, across, np.minimum(turns, ceil_div(parts, over.parts)))


def _turns(convolution: Convolution, over: Cuts, seen: Ints, across: Ints, parts: Ints) -> Cuts:
    """Cuts in time of every axis from those of the images seen, of the other operand, and of the parts.

    The images that a tile sees shrink with a block's images, then rows, then columns (a weight gradient's: with its
    channels), the other operand with its groups, then outputs.
    """
    (a0, a1, a2), groups, outputs = _grains(convolution, over)
    by_group = np.minimum(across, groups)
    by_output = np.minimum(ceil_div(across, by_group), outputs)
    images = rows = np.ones_like(seen)
    columns = np.minimum(seen, a2)
    if convolution.kind == "image":
        images = np.minimum(seen, a0)
        rows = np.minimum(ceil_div(seen, images), a1)
        columns = np.minimum(ceil_div(seen, images * rows), a2)
    return Cuts(by_group, np.stack([images, rows, columns]), by_output, parts)


def _grains(convolution: Convolution, over: Cuts) -> tuple[Ints, Ints, Ints]:
    """Lengths of the largest block in whole grains, the least that a turn can have: of rows, groups, outputs."""
    block = block_lengths(convolution, over)
    return block.rows, block.batch, ceil_div(block.columns, COLUMN_GRAIN)


def _axis_cuts(size: int) -> list[int]:
    """Numbers of blocks that an axis can be cut into: all that differ, thinned out for long axes."""
    counts = sorted({ceil_div(size, block) for block in range(1, size + 1)}) or [1]
    if len(counts) <= MOST_CUTS:
        return counts
    chosen = np.unique(np.rint(np.geomspace(1, len(counts), MOST_CUTS)).astype(int)) - 1
    return [counts[i] for i in chosen]
