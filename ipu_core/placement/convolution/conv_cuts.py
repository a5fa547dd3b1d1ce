"""The cuts of a convolution that are tried, over tiles and in time, and the search for the cheapest."""

from typing import Any, Final

import numpy as np

from ipu_core.chip.integers import Ints
from ipu_core.placement.axis_blocks import COLUMN_GRAIN
from ipu_core.placement.convolution.conv_costs import block_lengths, costed, gathered
from ipu_core.placement.convolution.sizes import Convolution, ConvPlacement, Five, along, most_pieces, part_spans
from ipu_core.placement.cuts import Cuts, PlacementProblem, item_bytes
from ipu_core.placement.search import Candidates, Costed, Family, cuts_within
from lowprec.integers import ceil_div

MOST_CUTS: Final = 12  # candidates along an axis
MOST_TURNS: Final = (256, 64, 64)  # pieces in time: of the images that are seen, of the outputs, of the parts
UNCUT: Final = along(np.ones((5, 1), np.int64))


def over_tiles(problem: PlacementProblem[Convolution]) -> Candidates:
    """All cuts over tiles, with nothing cut in time."""
    target, convolution, order = problem
    *sizes, outputs = convolution.result
    axes = *sizes, ceil_div(outputs, COLUMN_GRAIN), len(part_spans(convolution, order))
    grid = cuts_within(target, [_axis_cuts(size) for size in axes])
    return Candidates(along(grid[:5], grid[5]), UNCUT)


def _axis_cuts(size: int) -> list[int]:
    """Numbers of blocks that an axis can be cut into: all that differ, thinned out for long axes."""
    counts = sorted({ceil_div(size, block) for block in range(1, size + 1)}) or [1]
    if len(counts) <= MOST_CUTS:
        return counts
    # Evenly in proportion: one block more or fewer counts where there are few.
    return [counts[i - 1] for i in sorted(set(np.rint(np.geomspace(1, len(counts), MOST_CUTS)).astype(int)))]


def parts_in_time(problem: PlacementProblem[Convolution], some: Candidates) -> Candidates:
    """Cuts over tiles with every number of turns for their parts but one, powers of two."""
    # One turn is left out: these cuts have been costed uncut.
    numbers = [1 << i for i in range(1, MOST_TURNS[2].bit_length())]
    over = Cuts(*(np.tile(cuts, len(numbers)) for cuts in some.over))
    turns = np.minimum(np.repeat(numbers, some.over.parts.size), _pieces_of_a_tile(problem, over))
    return Candidates(over, UNCUT._replace(parts=turns))


def lower_bound(problem: PlacementProblem[Convolution], uncut: Costed, memory: int) -> Any:
    """Cycles that no piece in time stays below: at least one operand comes again, whatever the memory."""
    target, convolution, order = problem
    over = uncut.candidates.over
    once = gathered(convolution, order, block_lengths(convolution, over), _parts_of_a_tile(problem, over))
    return uncut.cycles + np.minimum(*once) * item_bytes(convolution.operands) / target.exchange_bytes_per_cycle


def every_turn(problem: PlacementProblem[Convolution], some: Candidates) -> Candidates:
    """Cuts over tiles with every number of cuts in time, powers of two."""
    every = np.meshgrid(*([1 << i for i in range(most.bit_length())] for most in MOST_TURNS))
    seen, across, turns = (np.tile(axis.ravel(), some.over.parts.size) for axis in every)
    over = Cuts(*(np.repeat(numbers, every[0].size, axis=-1) for numbers in some.over))
    (a0, a1, a2), groups, outputs = _grains(problem.sums, over)
    longest = a2 if problem.sums.kind == "weight" else a0 * a1 * a2
    # Of the powers of two up to the first that cuts everything apart: those beyond it are the same candidate again.
    keep = (seen < 2 * longest) & (across < 2 * groups * outputs) & (turns < 2 * _pieces_of_a_tile(problem, over))
    over = Cuts(*(numbers[..., keep] for numbers in over))
    return _in_turns(problem, over, seen[keep], across[keep], turns[keep])


def smallest(problem: PlacementProblem[Convolution], some: Candidates) -> Candidates:
    """Cuts over tiles, with as many cuts in time as are ever tried."""
    return _in_turns(problem, some.over, *(np.full_like(some.over.parts, most) for most in MOST_TURNS))


def placement(one: Candidates) -> ConvPlacement:
    """A candidate as a ConvPlacement."""
    (over, parts), (turns, serial_parts) = map(_numbers, (one.over, one.turns))
    return ConvPlacement(over, parts, turns, serial_parts)


def _numbers(cuts: Cuts) -> tuple[Five, int]:
    """One candidate's cuts of the result's axes, and of the parts."""
    a, b, c = map(int, cuts.rows)
    return (a, b, c, int(cuts.batch), int(cuts.columns)), int(cuts.parts)


def _in_turns(problem: PlacementProblem[Convolution], over: Cuts, seen: Ints, across: Ints, parts: Ints) -> Candidates:
    """Cuts in time of every axis from those of the images seen, of the other operand, and of the parts.

    The images that a tile sees shrink with a block's images, then rows, then columns (a weight gradient's: with its
    channels), the other operand with its groups, then outputs.
    """
    (a0, a1, a2), groups, outputs = _grains(problem.sums, over)
    by_group = np.minimum(across, groups)
    by_output = np.minimum(ceil_div(across, by_group), outputs)
    images = rows = np.ones_like(seen)
    columns = np.minimum(seen, a2)
    if problem.sums.kind == "image":
        images = np.minimum(seen, a0)
        rows = np.minimum(ceil_div(seen, images), a1)
        columns = np.minimum(ceil_div(seen, images * rows), a2)
    turns = np.minimum(parts, _pieces_of_a_tile(problem, over))
    return Candidates(over, Cuts(by_group, np.stack([images, rows, columns]), by_output, turns))


def _parts_of_a_tile(problem: PlacementProblem[Convolution], over: Cuts) -> Ints:
    parts: Ints = ceil_div(len(part_spans(problem.sums, problem.accumulation)), over.parts)
    return parts


def _pieces_of_a_tile(problem: PlacementProblem[Convolution], over: Cuts) -> Ints:
    """Turns that a tile can take for its parts, or for its one chain."""
    pieces: Ints = ceil_div(most_pieces(problem.sums, problem.accumulation), over.parts)
    return pieces


def _grains(convolution: Convolution, over: Cuts) -> tuple[Ints, Ints, Ints]:
    """Rows, groups and outputs of the largest block in whole grains, the least that a turn can have; 1 at least."""
    block = block_lengths(convolution, over)
    rows, groups, outputs = block.rows, block.batch, ceil_div(block.columns, COLUMN_GRAIN)
    return np.maximum(1, rows), np.maximum(1, groups), np.maximum(1, outputs)


CONVOLUTIONS: Final = Family(
    over_tiles=over_tiles,
    costs=costed,
    least_memory=lambda problem, some: costed(problem, some, 0).memory,
    parts_in_time=parts_in_time,
    lower_bound=lower_bound,
    in_time=every_turn,
    smallest=smallest,
    place=placement,
)
