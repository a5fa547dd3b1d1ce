"""What cuts of a convolution cost: modelled cycles and bytes per tile of many candidates at once, as arrays."""

import itertools
import math
from collections import Counter
from typing import Any, Final, NamedTuple

import numpy as np

from ipu_core.chip.integers import Ints
from ipu_core.chip.target import Target
from ipu_core.placement.axis_blocks import COLUMN_GRAIN, Blocks
from ipu_core.placement.convolution.sizes import (
    Convolution,
    ConvPlacement,
    Five,
    along,
    blocks,
    chain_cycles,
    chain_pieces,
    combined,
    goes_on,
    part_spans,
    piece_length,
)
from ipu_core.placement.cuts import Cuts, PlacementProblem, item_bytes, stage_cycles
from ipu_core.placement.layout import linear_layout
from ipu_core.placement.search import Candidates, Costed
from lowprec import Accumulation
from lowprec.integers import ceil_div

SUM_GRAIN: Final = 4  # outputs that tiles share where they sum parts are cut in whole vectors of halves
SUM_SHARE: Final = 16  # tiles that sum parts have so small a share of their memory full of partials at a time [model]


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


def costs(problem: PlacementProblem[Convolution], over: Cuts, turns: Cuts) -> Costs:
    """What candidates cost; all pieces in time are taken to be as long as the first.

    Args:
        problem: what is to be placed.
        over: cuts over tiles.
        turns: cuts in time.
    """
    target, convolution, order = problem
    spans = part_spans(convolution, order)
    parts, terms = len(spans), spans[0][1] - spans[0][0]
    block = block_lengths(convolution, over)
    piece = _piece_lengths(block, turns)
    blocks_in_time = _elements(Cuts(*(np.maximum(1, ceil_div(a, b)) for a, b in zip(block, piece, strict=True))))
    each = ceil_div(parts, over.parts)
    # Parts that a tile takes at a time are gathered once: what they share of the images comes once.
    at_once = ceil_div(each, turns.parts)
    length, pieces = _pieces(problem, terms, turns.parts)
    chain = chain_cycles(problem, piece, length) * (pieces - 1)
    chain = chain + chain_cycles(problem, piece, terms - length * (pieces - 1))
    compute = blocks_in_time * each * chain
    # A vertex has one element at least, but an empty block gathers nothing.
    piece = Cuts(*map(np.minimum, piece, block))
    x, other = gathered(convolution, order, piece, at_once, length)
    size, partial, out = item_bytes(convolution.operands), *(item_bytes(fmt) for fmt in (order.accumulate, order.out))
    operands = (x + other) * size
    zeros = (combined(problem, piece) - 1) * other * size  # between groups that share passes
    results = _elements(block)
    leaving = np.maximum(results, _chunk(target, convolution)) * out  # what its blocks send, what its own tiles receive
    loads = blocks_in_time * ceil_div(each, at_once) * pieces
    busiest = np.maximum(operands, _sent(target, convolution, turns) * size)
    exchange = loads * (target.exchange_fixed_cycles + busiest / target.exchange_bytes_per_cycle)
    if parts == 1 and order.one_format:
        # One part, and nothing to convert: chains write the result, each turn in a superstep of its own.
        exchange = exchange + blocks_in_time * target.exchange_fixed_cycles + leaving / target.exchange_bytes_per_cycle
        memory = operands + zeros + _elements(piece) * out + np.where(pieces > 1, results * partial, 0)
        sync = (loads + blocks_in_time) * target.sync_cycles
        return Costs(compute, exchange.astype(np.int64), sync, memory.astype(np.int64))
    summed = sum_results(target, convolution.result)
    stages, each_time = order.stage_runs(parts), summed_in_turn(problem, parts)
    times, most = each_time.size, int(each_time.max())
    compute = compute + _summing(problem, parts)
    received = parts * summed * partial + max(summed, _chunk(target, convolution)) * out
    exchange = exchange + 2 * times * target.exchange_fixed_cycles + received / target.exchange_bytes_per_cycle
    # Of several stages the first one's results lie there whole.
    kept = summed * len(stages[0]) * partial if len(stages) > 1 else most * out
    # Operands have gone when the stages gather their partials; the tile's own partials are there all the while.
    memory = np.maximum(operands + zeros, most * parts * partial + kept) + each * results * partial
    sync = (loads + times * (1 + len(stages))) * target.sync_cycles
    return Costs(compute, exchange.astype(np.int64), sync, memory.astype(np.int64))


def costed(problem: PlacementProblem[Convolution], candidates: Candidates, memory: int) -> Costed:
    """What candidates cost, whatever the memory."""
    found = costs(problem, candidates.over, candidates.turns)
    return Costed(candidates, found.cycles, np.broadcast_to(found.memory, found.cycles.shape))


def compute_cycles(problem: PlacementProblem[Convolution], placement: ConvPlacement) -> int:
    """Compute cycles of all supersteps, exactly as an engine counts them: the slowest tile of each.

    A short last block may take longer than a whole one: the unit's cycles do not always rise with the positions.
    """
    _, convolution, order = problem
    spans = part_spans(convolution, order)
    kinds = []
    for axis in blocks(convolution, placement):
        lengths = [{segment.length for segment in axis.segments(piece)} for piece in range(axis.turns)]
        kinds.append(Counter(map(frozenset, lengths)).items())
    each = ceil_div(len(spans), placement.parts)
    cut = [end - start for start, end in chain_pieces(convolution, order, placement.serial_parts)]
    first, last = (end - start for start, end in (spans[0], spans[-1]))
    total = 0
    for turn in itertools.product(*kinds):
        # Turns of the same lengths cost the same: at most two lengths an axis, whatever the number of turns.
        every = np.array(list(itertools.product(*(lengths for lengths, _ in turn))), np.int64).T.reshape(5, -1)
        times = math.prod(times for _, times in turn)
        if len(cut) > 1:
            total += times * sum(int(chain_cycles(problem, along(every), terms).max(initial=0)) for terms in cut)
            continue
        full, short = (chain_cycles(problem, along(every), terms) for terms in (first, last))
        one = each * full if each < len(spans) else (each - 1) * full + short
        total += times * int(one.max(initial=0))
    if len(spans) == 1 and order.one_format:
        return total
    return total + int(_summing(problem, len(spans)))


def block_lengths(convolution: Convolution, over: Cuts) -> Cuts:
    """Lengths of the largest block along the result's axes."""
    *rows, groups, outputs = convolution.result
    return Cuts(
        ceil_div(groups, over.batch),
        ceil_div(np.array(rows)[:, None], over.rows),
        np.minimum(ceil_div(ceil_div(outputs, COLUMN_GRAIN), over.columns) * COLUMN_GRAIN, outputs),
        1,
    )


def _piece_lengths(block: Cuts, turns: Cuts) -> Cuts:
    """Lengths of the largest piece of a block, 1 at least."""
    columns = np.minimum(ceil_div(ceil_div(block.columns, COLUMN_GRAIN), turns.columns) * COLUMN_GRAIN, block.columns)
    batch, rows = ceil_div(block.batch, turns.batch), ceil_div(block.rows, turns.rows)
    return Cuts(np.maximum(1, batch), np.maximum(1, rows), np.maximum(1, columns), 1)


def _elements(lengths: Cuts) -> Ints:
    """Elements of blocks of the result."""
    found: Ints = np.prod(lengths.rows, axis=0) * lengths.batch * lengths.columns
    return found


def gathered(
    convolution: Convolution, order: Accumulation, block: Cuts, parts: Ints, length: Any = None
) -> tuple[Any, Any]:
    """Elements of both operands that so many parts, one after the other, of a block are made of, at most.

    Args:
        convolution, order: of the sums.
        block: lengths of a block of the result.
        parts: how many.
        length: terms of a part, or of a piece of a chain that is cut in time; default all of a part.
    """
    start, end = part_spans(convolution, order)[0]
    terms = end - start if length is None else length
    together = convolution.footprint(block, convolution.box(order, parts * terms))
    apart = convolution.footprint(block, convolution.box(order, terms))
    # The box around all parts may hold more than the parts do; one by one, what they share counts several times. Both
    # are bounds.
    x, other = (np.minimum(whole, parts * one) for whole, one in zip(together, apart, strict=True))
    return x, other


def _pieces(problem: PlacementProblem[Convolution], terms: int, turns: Any) -> tuple[Any, Any]:
    """Terms of the pieces in time of a chain, and how many there are; of a chain that is not cut all, and 1."""
    _, convolution, order = problem
    if not goes_on(convolution, order):
        return terms, 1
    length = piece_length(convolution, order, turns)
    return length, ceil_div(terms, length)


def _summing(problem: PlacementProblem[Convolution], parts: int) -> Any:
    """Cycles of the stages on the tile with the largest block of results."""
    target, _, order = problem
    summed, size = summed_in_turn(problem, parts), item_bytes(order.accumulate)
    return sum(stage_cycles(target, b - a, summed, size).sum() for runs in order.stage_runs(parts) for a, b in runs)


def _sent(target: Target, convolution: Convolution, turns: Cuts) -> Any:
    """Elements that the busiest tile gives in a turn: all it has of both operands, but for cuts of the last axis."""
    channels = turns.rows[2] if convolution.kind == "weight" else 1
    x = linear_layout(target, convolution.seen()).chunk / (turns.batch * channels)
    outputs = convolution.result[3] * convolution.result[4]
    return x + linear_layout(target, (*convolution.inner, outputs)).chunk / (turns.batch * turns.columns)


def _chunk(target: Target, convolution: Convolution) -> int:
    """Elements of the result on a tile, in the layout that every array of its shape gets."""
    *outer, groups, outputs = convolution.result
    return linear_layout(target, (*outer, groups * outputs)).chunk


def sum_results(target: Target, result: Five) -> int:
    """Results of the largest block in which one tile sums the parts; it has all groups."""
    return math.prod(sum_block(target, result)) * result[3]


def sum_blocks(target: Target, result: Five, partials: int) -> tuple[Blocks, ...]:
    """Images, rows, columns and outputs of the result in the blocks in which tiles sum the parts, and their pieces in
    time, which are as few as keep what a tile gathers within SUM_SHARE.

    Args:
        target: the chip.
        result: lengths of the result axes.
        partials: bytes of all parts of an element.
    """
    lengths, found = sum_block(target, result), []
    left = max(1, ceil_div(sum_results(target, result) * partials * SUM_SHARE, target.tile_memory))
    for size, length, grain in zip((*result[:3], result[4]), lengths, (1, 1, 1, SUM_GRAIN), strict=True):
        grains = ceil_div(length, grain)
        found.append(Blocks(size, length, min(length, ceil_div(grains, min(grains, left)) * grain)))
        left = ceil_div(left, found[-1].turns)
    return tuple(found)


def summed_in_turn(problem: PlacementProblem[Convolution], parts: int) -> Ints:
    """Results that the tile with the largest block sums in each turn."""
    target, convolution, order = problem
    axes = sum_blocks(target, convolution.result, parts * item_bytes(order.accumulate))
    pieces = [[min(axis.piece, axis.block - turn * axis.piece) for turn in range(axis.turns)] for axis in axes]
    results: Ints = np.prod(np.meshgrid(*pieces), axis=0).ravel() * convolution.result[3]
    return results


def sum_block(target: Target, result: Five) -> tuple[int, int, int, int]:
    """Lengths along the first three result axes and the outputs of the block in which one tile sums the parts."""
    left, found = target.tiles, []
    for size in result[:3]:
        # Outermost axes first: a tile then sums neighbours, which lie together in the result.
        cuts = max(1, min(size, left))
        found.append(max(1, ceil_div(size, cuts)))
        left //= max(1, ceil_div(size, found[-1]))
    # Where positions are few, tiles share the outputs of one, in whole vectors.
    outputs = max(1, result[4])
    shares = max(1, min(ceil_div(outputs, SUM_GRAIN), left))
    return found[0], found[1], found[2], min(outputs, SUM_GRAIN * ceil_div(ceil_div(outputs, SUM_GRAIN), shares))
