"""The search for the cuts of a convolution that take the fewest cycles, and what cuts cost."""

import itertools
import math
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ipu_core.plan.accumulation import Accumulation
from ipu_core.plan.convolved import Convolution, ConvPlacement, chain_cycles, part_spans
from ipu_core.plan.layout import linear_layout
from ipu_core.plan.placement import COLUMN_GRAIN
from ipu_core.plan.product import item_bytes, stage_cycles
from ipu_core.target import Target

__all__ = ["cheapest", "costs", "sum_block"]

Ints = npt.NDArray[np.int64]
Five = tuple[int, int, int, int, int]

MOST_CUTS: Final = 12  # candidates along an axis


def cheapest(target: Target, convolution: Convolution, order: Accumulation, parts: int, room: int) -> ConvPlacement:
    """The cuts with the fewest cycles among those that fit, then with the fewest tiles."""
    sizes = (*convolution.result[:4], _ceil(convolution.result[4], COLUMN_GRAIN), parts)
    grid = np.array(list(itertools.product(*map(_candidates, sizes))), np.int64).T
    grid = grid[:, grid.prod(axis=0) <= target.tiles]
    compute, exchange, sync, memory = costs(target, convolution, order, grid, parts)
    fits = memory <= room
    penalty = np.where(fits, 0, memory) if not fits.any() else np.where(fits, 0, np.iinfo(np.int64).max // 4)
    best = np.lexsort((grid.prod(axis=0), compute + exchange + sync, penalty))[0]
    cuts = tuple(int(n) for n in grid[:, best])
    return ConvPlacement((cuts[0], cuts[1], cuts[2], cuts[3], cuts[4]), cuts[5])


def _candidates(size: int) -> list[int]:
    """Numbers of blocks that an axis can be cut into: all that differ, thinned out for long axes."""
    counts = sorted({_ceil(size, block) for block in range(1, size + 1)}) or [1]
    if len(counts) <= MOST_CUTS:
        return counts
    chosen = np.unique(np.rint(np.geomspace(1, len(counts), MOST_CUTS)).astype(int)) - 1
    return [counts[i] for i in chosen]


def costs(
    target: Target, convolution: Convolution, order: Accumulation, grid: Ints, parts: int
) -> tuple[Ints, Ints, Ints, Ints]:
    """(compute, exchange, sync, memory) of candidates: rows of cuts along the result's axes and the parts."""
    sizes = np.array(convolution.result, np.int64)[:, None]
    grains = np.array([1, 1, 1, 1, COLUMN_GRAIN])[:, None]
    block = np.minimum(_ceil(_ceil(sizes, grains), grid[:5]) * grains, sizes)
    each = _ceil(parts, grid[5])
    spans = part_spans(convolution, order)
    compute = each * chain_cycles(target, convolution, order, block, spans[0][1] - spans[0][0])
    x, other = convolution.footprint(block)
    size, partial, out = item_bytes(convolution.operands), *(item_bytes(name) for name in order.types)
    share = np.minimum(1.0, each / parts)
    gathered = ((x if convolution.kind == "image" else x * share) + other * share) * size
    results = block.prod(axis=0)
    leaving = np.maximum(results, _chunk(target, convolution)) * out  # what its blocks send, what its own tiles receive
    sync = np.full(grid.shape[1], target.sync_cycles, np.int64)
    exchange = target.exchange_fixed_cycles + gathered / target.exchange_bytes_per_cycle
    if parts == 1 and order.types[0] == order.types[1]:
        exchange = exchange + target.exchange_fixed_cycles + leaving / target.exchange_bytes_per_cycle
        return compute, exchange.astype(np.int64), 2 * sync, (gathered + results * out).astype(np.int64)
    summed = math.prod(sum_block(target, convolution.result)) * convolution.result[3] * convolution.result[4]
    stages = order.stage_runs(parts)
    for a, b in (run for runs in stages for run in runs):
        compute = compute + stage_cycles(target, b - a, np.asarray(summed), partial)
    exchange = exchange + 2 * target.exchange_fixed_cycles
    exchange = (
        exchange
        + (parts * summed * partial + max(summed, _chunk(target, convolution)) * out) / target.exchange_bytes_per_cycle
    )
    memory = np.maximum(gathered, parts * summed * partial) + each * results * partial
    return compute, exchange.astype(np.int64), (2 + len(stages)) * sync, memory.astype(np.int64)


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
