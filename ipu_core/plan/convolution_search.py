"""The search for the cuts of a convolution, over tiles and in time, that take the fewest cycles; what cuts cost.

Candidates are columns of integers: cuts over tiles (of the result's axes and of the parts), and in time (the same).
"""

import itertools
import math
from collections import Counter
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from ipu_core.plan.convolved import GRAINS, Convolution, ConvPlacement, blocks, chain_cycles, combined, part_spans
from ipu_core.plan.layout import linear_layout
from ipu_core.plan.placement import COLUMN_GRAIN
from ipu_core.plan.product import item_bytes, stage_cycles
from ipu_core.target import Target
from lowprec import Accumulation

__all__ = ["Costs", "cheapest", "compute_cycles", "costs", "sum_block"]

Ints = npt.NDArray[np.int64]
Five = tuple[int, int, int, int, int]

MOST_CUTS: Final = 12  # candidates along an axis
MOST_TURNS: Final = (256, 64, 64)  # pieces in time: of the images that are seen, of the outputs, of the parts
TOGETHER: Final = 32  # cuts over tiles for which cuts in time are costed at a time


class Costs(NamedTuple):
    """Cycles of compute, exchange and barriers, and bytes per tile, of every candidate."""

    compute: Ints
    exchange: Ints
    sync: Ints
    memory: Ints

    @property
    def cycles(self) -> Ints:
        """All cycles."""
        return self.compute + self.exchange + self.sync


def cheapest(target: Target, convolution: Convolution, order: Accumulation, parts: int, room: int) -> ConvPlacement:
    """The cuts with the fewest cycles among those that fit, then with the fewest tiles; else with the least memory.

    Cuts in time only add to the cycles: the parts' little, the others' at least what it takes to bring one operand
    again. They are tried, with the fastest cuts over tiles first, until none is left that could still win.
    """
    task = _Task(target, convolution, order)
    sizes = (*convolution.result[:4], _ceil(convolution.result[4], COLUMN_GRAIN), parts)
    grid = np.array(list(itertools.product(*map(_candidates, sizes))), np.int64).T
    grid = grid[:, grid.prod(axis=0) <= target.tiles]
    grid = grid[:, np.argsort(grid.prod(axis=0), kind="stable")]
    one = np.ones_like(grid)
    whole = costs(*task, grid, one)
    fits = whole.memory <= room
    best = _first(None, grid, one, whole, fits)
    crowded = np.flatnonzero(~fits & (whole.cycles < (np.inf if best is None else best.cycles)))
    if not crowded.size:
        assert best is not None  # there is always a candidate
        return best.placement
    grid, bound = grid[:, crowded], whole.cycles[crowded]
    most = _most_turns(convolution, grid, parts)
    least = costs(*task, grid, most)
    if best is None and not (least.memory <= room).any():
        found = _first(None, grid, most, least, least.memory == least.memory.min())
        assert found is not None  # one of them is the smallest
        return found.placement
    feasible = least.memory <= room
    grid, bound = grid[:, feasible], bound[feasible]
    for turns in (1 << i for i in range(1, MOST_TURNS[2].bit_length())):
        serial = np.ones_like(grid)
        serial[5] = np.minimum(turns, _ceil(parts, grid[5]))
        some = costs(*task, grid, serial)
        best = _first(best, grid, serial, some, some.memory <= room)
    once = _gathered(convolution, order, _blocks(convolution, grid), _ceil(parts, grid[5]))
    again = np.minimum(*once) * item_bytes(convolution.operands) / target.exchange_bytes_per_cycle
    best = _with_pieces(task, grid, bound + again, best, parts, room)
    assert best is not None  # something is feasible
    return best.placement


class _Task(NamedTuple):
    """What is to be placed."""

    target: Target
    convolution: Convolution
    order: Accumulation


class _Found(NamedTuple):
    """A candidate and its cycles."""

    placement: ConvPlacement
    cycles: int


def _first(best: _Found | None, grid: Ints, turns: Ints, found: Costs, allowed: npt.NDArray[np.bool_]) -> _Found | None:
    """The first allowed candidate with the fewest cycles if it has fewer than the best so far, else that."""
    where = np.flatnonzero(allowed)
    if not where.size:
        return best
    i = where[np.argmin(found.cycles[where])]
    if best is not None and best.cycles <= found.cycles[i]:
        return best
    (*cuts, over), (*serial, turn) = ([int(n) for n in numbers[:, i]] for numbers in (grid, turns))
    return _Found(ConvPlacement(_five(cuts), over, _five(serial), turn), int(found.cycles[i]))


def _with_pieces(
    task: _Task, grid: Ints, bound: npt.NDArray[np.float64], best: _Found | None, parts: int, room: int
) -> _Found | None:
    """The best candidate with blocks cut in time, if it is better than the `best` so far, else that."""
    order = np.argsort(bound, kind="stable")
    for start in range(0, order.size, TOGETHER):
        some = order[start : start + TOGETHER]
        if best is not None and bound[some[0]] >= best.cycles:
            break
        wide, turns = _with_turns(task.convolution, grid[:, some], parts)
        found = costs(*task, wide, turns)
        best = _first(best, wide, turns, found, found.memory <= room)
    return best


def _gathered(convolution: Convolution, order: Accumulation, block: Ints, parts: Ints) -> tuple[Any, Any]:
    """Elements of both operands that so many parts, one after the other, of a block are made of, at most."""
    start, end = part_spans(convolution, order)[0]
    together = convolution.footprint(block, convolution.box(order, parts * (end - start)))
    apart = convolution.footprint(block, convolution.box(order, end - start))
    x, other = (np.minimum(whole, parts * one) for whole, one in zip(together, apart, strict=True))
    return x, other


def _five(numbers: list[int]) -> Five:
    a, b, c, d, e = numbers
    return a, b, c, d, e


def _with_turns(convolution: Convolution, grid: Ints, parts: int) -> tuple[Ints, Ints]:
    """Every candidate with every number of cuts in time, powers of two."""
    every = np.meshgrid(*([1 << i for i in range(most.bit_length())] for most in MOST_TURNS))
    seen, across, turns = (np.tile(axis.ravel(), grid.shape[1]) for axis in every)
    wide = np.repeat(grid, every[0].size, axis=1)
    a0, a1, a2, groups, outputs = _ceil(_blocks(convolution, wide), np.array(GRAINS)[:, None])
    longest = a2 if convolution.kind == "weight" else a0 * a1 * a2
    keep = (seen < 2 * longest) & (across < 2 * groups * outputs) & (turns < 2 * _ceil(parts, wide[5]))
    wide, seen, across, turns = wide[:, keep], seen[keep], across[keep], turns[keep]
    return wide, _turns(convolution, wide, seen, across, np.minimum(turns, _ceil(parts, wide[5])))


def _most_turns(convolution: Convolution, grid: Ints, parts: int) -> Ints:
    """As many cuts in time as are ever tried."""
    seen, across, turns = (np.full(grid.shape[1], most) for most in MOST_TURNS)
    return _turns(convolution, grid, seen, across, np.minimum(turns, _ceil(parts, grid[5])))


def _turns(convolution: Convolution, grid: Ints, seen: Ints, across: Ints, turns: Ints) -> Ints:
    """Cuts in time of every axis from those of the images seen, of the other operand, and of the parts.

    The images that a tile sees shrink with a block's images, then rows, then columns (a weight gradient's: with its
    channels), the other operand with its groups, then outputs.
    """
    a0, a1, a2, groups, outputs = _ceil(_blocks(convolution, grid), np.array(GRAINS)[:, None])
    one = np.ones_like(seen)
    by_group = np.minimum(across, groups)
    by_output = np.minimum(_ceil(across, by_group), outputs)
    if convolution.kind == "weight":
        return np.stack([one, one, np.minimum(seen, a2), by_group, by_output, turns])
    images = np.minimum(seen, a0)
    rows = np.minimum(_ceil(seen, images), a1)
    columns = np.minimum(_ceil(seen, images * rows), a2)
    return np.stack([images, rows, columns, by_group, by_output, turns])


def _candidates(size: int) -> list[int]:
    """Numbers of blocks that an axis can be cut into: all that differ, thinned out for long axes."""
    counts = sorted({_ceil(size, block) for block in range(1, size + 1)}) or [1]
    if len(counts) <= MOST_CUTS:
        return counts
    chosen = np.unique(np.rint(np.geomspace(1, len(counts), MOST_CUTS)).astype(int)) - 1
    return [counts[i] for i in chosen]


def _blocks(convolution: Convolution, grid: Ints) -> Ints:
    """Lengths of the largest block along the result's axes."""
    sizes, grains = np.array(convolution.result, np.int64)[:, None], np.array(GRAINS)[:, None]
    found: Ints = np.minimum(_ceil(_ceil(sizes, grains), grid[:5]) * grains, sizes)
    return found


def costs(target: Target, convolution: Convolution, order: Accumulation, grid: Ints, turns: Ints) -> Costs:
    """What candidates cost; all pieces in time are taken to be as long as the first.

    Args:
        target: the chip.
        convolution: sizes.
        order: of the sums.
        grid: (6, candidates) cuts of the result's axes and of the parts over tiles.
        turns: (6, candidates) cuts of the same in time.
    """
    spans = part_spans(convolution, order)
    parts, terms = len(spans), spans[0][1] - spans[0][0]
    block, grains = _blocks(convolution, grid), np.array(GRAINS)[:, None]
    piece = np.maximum(1, np.minimum(_ceil(_ceil(block, grains), turns[:5]) * grains, block))
    steps = np.maximum(1, _ceil(block, piece))
    each = _ceil(parts, grid[5])
    at_once = _ceil(each, turns[5])
    compute = steps.prod(axis=0) * each * chain_cycles(target, convolution, order, piece, terms)
    piece = np.minimum(piece, block)
    x, other = _gathered(convolution, order, piece, at_once)
    size, partial, out = item_bytes(convolution.operands), *(item_bytes(fmt) for fmt in (order.accumulate, order.out))
    gathered = (x + other) * size
    zeros = (combined(target, convolution, order, piece) - 1) * other * size  # between groups that share passes
    results = block.prod(axis=0)
    leaving = np.maximum(results, _chunk(target, convolution)) * out  # what its blocks send, what its own tiles receive
    loads = steps.prod(axis=0) * _ceil(each, at_once)
    busiest = np.maximum(gathered, _sent(target, convolution, turns) * size)
    exchange = loads * (target.exchange_fixed_cycles + busiest / target.exchange_bytes_per_cycle)
    if parts == 1 and order.accumulate == order.out:
        exchange = exchange + loads * target.exchange_fixed_cycles + leaving / target.exchange_bytes_per_cycle
        memory = gathered + zeros + piece.prod(axis=0) * out
        return Costs(compute, exchange.astype(np.int64), 2 * loads * target.sync_cycles, memory.astype(np.int64))
    summed = math.prod(sum_block(target, convolution.result)) * convolution.result[3] * convolution.result[4]
    stages = order.stage_runs(parts)
    compute = compute + _summing(target, convolution, order, parts)
    received = parts * summed * partial + max(summed, _chunk(target, convolution)) * out
    exchange = exchange + 2 * target.exchange_fixed_cycles + received / target.exchange_bytes_per_cycle
    between = len(stages[0]) * partial if len(stages) > 1 else out
    memory = np.maximum(gathered + zeros, summed * (parts * partial + between)) + each * results * partial
    sync = (loads + 1 + len(stages)) * target.sync_cycles
    return Costs(compute, exchange.astype(np.int64), sync, memory.astype(np.int64))


def compute_cycles(target: Target, convolution: Convolution, order: Accumulation, placement: ConvPlacement) -> int:
    """Compute cycles of all supersteps, exactly as an engine counts them: the slowest tile of each.

    A short last block may take longer than a whole one: the unit's cycles do not always rise with the positions.
    """
    spans = part_spans(convolution, order)
    kinds = []
    for axis in blocks(convolution, placement):
        lengths = [{segment.length for segment in axis.segments(piece)} for piece in range(axis.steps)]
        kinds.append(Counter(map(frozenset, lengths)).items())
    each = -(-len(spans) // placement.parts)
    first, last = (end - start for start, end in (spans[0], spans[-1]))
    total = 0
    for pieces in itertools.product(*kinds):
        every = np.array(list(itertools.product(*(lengths for lengths, _ in pieces))), np.int64).T.reshape(5, -1)
        full, short = (chain_cycles(target, convolution, order, every, terms) for terms in (first, last))
        one = each * full if each < len(spans) else (each - 1) * full + short
        total += math.prod(times for _, times in pieces) * int(one.max(initial=0))
    if len(spans) == 1 and order.accumulate == order.out:
        return total
    return total + int(_summing(target, convolution, order, len(spans)))


def _summing(target: Target, convolution: Convolution, order: Accumulation, parts: int) -> Any:
    """Cycles of the stages on the tile with the largest block of results."""
    summed = np.asarray(math.prod(sum_block(target, convolution.result)) * math.prod(convolution.result[3:]))
    size = item_bytes(order.accumulate)
    return sum(stage_cycles(target, b - a, summed, size) for runs in order.stage_runs(parts) for a, b in runs)


def _sent(target: Target, convolution: Convolution, turns: Ints) -> Any:
    """Elements that the busiest tile gives in a step: all it has of both operands, but for cuts of the last axis."""
    _, _, channels, by_group, by_output, _ = turns
    x = linear_layout(target, convolution.seen()).chunk / (
        by_group * channels if convolution.kind == "weight" else by_group
    )
    outputs = convolution.result[3] * convolution.result[4]
    return x + linear_layout(target, (*convolution.inner, outputs)).chunk / (by_group * by_output)


def _chunk(target: Target, convolution: Convolution) -> int:
    """Elements of the result on a tile, in the layout that every array of its shape gets."""
    *outer, groups, outputs = convolution.result
    return linear_layout(target, (*outer, groups * outputs)).chunk


def sum_block(target: Target, result: Five) -> tuple[int, int, int]:
    """Lengths along the first three result axes of the block in which one tile sums the parts."""
    left, found = target.tiles, []
    for size in result[:3]:
        cuts = max(1, min(size, left))
        found.append(max(1, _ceil(size, cuts)))
        left //= max(1, _ceil(size, found[-1]))
    return found[0], found[1], found[2]


def _ceil(a: Any, b: Any) -> Any:
    return -(-a // b)
