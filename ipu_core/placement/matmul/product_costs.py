"""What cuts of a product or sum cost: modelled cycles and bytes per tile of many candidates at once, as arrays.

How often a tile cuts its k's in time follows from the memory: as seldom as it allows. So every candidate costs the
less the more memory there is.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from ipu_core.chip.integers import Ints
from ipu_core.chip.target import Target
from ipu_core.chip.traffic import shared_weight
from ipu_core.placement.cuts import Cuts, PlacementProblem, item_bytes, stage_cycles
from ipu_core.placement.layout import Stored
from ipu_core.placement.matmul.product import Product, chain_cycles
from ipu_core.placement.matmul.spread import stage_sizes, stages_of
from ipu_core.placement.matmul.working_set import Piece, chain_bytes, working_set
from ipu_core.placement.search import UNBOUNDED, Candidates, Costed
from lowprec.integers import ceil_div

Floats = npt.NDArray[np.float64]


def costed(problem: PlacementProblem[Product], candidates: Candidates, memory: int) -> Costed:
    """What candidates cost.

    Args:
        problem: what is to be placed.
        candidates: where.
        memory: bytes per tile; those that need more even with their k's cut as often as can be keep all cuts.
    """
    target, product, accumulation = problem
    found = candidates._replace(turns=_without_empty_pieces(product, candidates))
    piece, depths = _piece(problem, found, memory)
    turns = found.turns.rows * found.turns.columns
    direct = piece.direct(accumulation)
    results = piece.batch * np.where(direct, piece.rows, piece.share) * piece.columns * item_bytes(accumulation.out)
    summing = np.where(direct, 0, _summing(problem, piece, found.over.parts))
    taken = product.out.chunk * item_bytes(accumulation.out) / found.turns.columns  # by a tile of the result
    written = _phase(target, np.maximum(results, taken))
    cycles = turns * (piece.batch * piece.each * _chains(problem, piece) + summing + written)
    cycles = cycles + _gathers(problem, piece, found, depths)
    needed = np.broadcast_to(working_set(product, accumulation, piece), cycles.shape)
    return Costed(found._replace(turns=found.turns._replace(parts=depths)), cycles, needed)


def lower_bound(problem: PlacementProblem[Product], whole: Costed, memory: int) -> Floats:
    """Cycles that no cut of rows or columns in time stays below, for candidates costed with unbounded memory.

    Pieces of rows and columns are so many that the partial results of one fit. Either operand comes again for every
    piece of the other's axis, unless it is held, and then its own pieces are small enough to be.
    """
    target, product, accumulation = problem
    piece, _ = _piece(problem, whole.candidates, UNBOUNDED)
    a, b = _received(problem, piece, whole.candidates, least=True)
    stays = piece.batch * item_bytes(accumulation.out)
    stays = np.where(piece.direct(accumulation), stays, piece.batch * piece.each * item_bytes(accumulation.accumulate))
    room = max(1, memory)
    turns = np.maximum(2, piece.rows * piece.columns * stays / room)
    columns = np.clip(np.sqrt(turns * b / np.maximum(1, a)), 1, turns)
    passing = columns * a + turns / columns * b
    if product.b is not None:
        full_a, full_b = piece.operands(product)
        passing = np.minimum(passing, a + np.maximum(1, full_a / room) * b)
        passing = np.minimum(passing, b + np.maximum(1, full_b / room) * a)
    leaving = _leaving(product, whole.candidates.turns, 1)
    more = np.maximum(0, passing - np.maximum(a + b, leaving)) / target.exchange_bytes_per_cycle
    bound: Floats = whole.cycles + more + target.sync_cycles + target.exchange_fixed_cycles
    return bound


def least_memory(problem: PlacementProblem[Product], candidates: Candidates) -> Ints:
    """Bytes per tile that candidates need at least with these turns or fewer, however their k's are cut."""
    _, product, accumulation = problem
    found = candidates._replace(turns=_without_empty_pieces(product, candidates))
    piece, _ = _piece(problem, found, UNBOUNDED)
    part, _ = _parts(problem)
    depth = part if product.b is None else min(part, accumulation.group_of(product.k))
    least: Ints = working_set(product, accumulation, piece._replace(depth=np.minimum(depth, piece.whole)))
    return np.broadcast_to(least, np.shape(candidates.over.rows))


def _without_empty_pieces(product: Product, candidates: Candidates) -> Cuts:
    """The turns, only as many as there is something to do in."""
    over, turns = candidates.over, candidates.turns
    rows = np.maximum(1, ceil_div(product.m, over.rows))
    grains = np.maximum(1, ceil_div(ceil_div(product.n, product.grain), over.columns))
    return turns._replace(
        rows=ceil_div(rows, ceil_div(rows, turns.rows)), columns=ceil_div(grains, ceil_div(grains, turns.columns))
    )


def _parts(problem: PlacementProblem[Product]) -> tuple[int, int]:
    """k's of a whole part of the sums, and parts."""
    _, product, accumulation = problem
    return min(max(1, product.k), accumulation.part_length(product.k)), max(1, len(accumulation.parts(product.k)))


def _piece(problem: PlacementProblem[Product], candidates: Candidates, memory: int) -> tuple[Piece, Any]:
    """The pieces of work, and in how many turns a tile works off its k's: as few as its memory allows."""
    _, product, accumulation = problem
    over, turns = candidates.over, candidates.turns
    part, parts = _parts(problem)
    rows = ceil_div(ceil_div(product.m, over.rows), turns.rows)
    grains = ceil_div(ceil_div(ceil_div(product.n, product.grain), over.columns), turns.columns)
    each = ceil_div(parts, over.parts)
    whole = np.minimum(each * part, max(1, product.k))
    batch, columns = ceil_div(product.batch, over.batch), np.minimum(product.grain * grains, max(1, product.n))
    share, hold = ceil_div(rows, over.parts), np.asarray(candidates.hold)
    plain = Piece(batch, rows, columns, whole, whole, each, parts, share, hold, False)
    # Without a bound nothing is cut, as in the first search of `plan_sum`.
    if memory >= UNBOUNDED:
        return plain, np.ones_like(each)
    # An operand that is held stays whole on its tile: there is nothing to cut in time.
    cuts = (chain_bytes(product, accumulation, plain) > memory) & (hold == 0)
    if not cuts.any():
        return plain, np.ones_like(each)
    # As if chains went on from one piece to the next, which needs the partials as well: a piece that fits so fits in
    # any case.
    rest = chain_bytes(product, accumulation, plain._replace(depth=0, whole=0, goes_on=True))  # beside the operands
    a, b = plain._replace(depth=1).operands(product)
    room = np.maximum(0, (memory - rest) // np.maximum(1, a + b))
    group = accumulation.group_of(product.k)
    apart = cuts & (room < part) & (part > group) & (product.b is not None)
    groups = ceil_div(part, group)
    depth = group * ceil_div(groups, ceil_div(groups, np.clip(room // group, 1, groups)))
    pieces = ceil_div(each, np.clip(room // np.maximum(1, part), 1, each))  # of whole parts
    together = ceil_div(each, pieces) * part
    deep = np.where(cuts, np.minimum(np.where(apart, depth, together), whole), whole)
    depths = np.where(cuts, np.where(apart, each * ceil_div(part, depth), pieces), 1)
    return plain._replace(depth=deep, goes_on=apart), depths


def _chains(problem: PlacementProblem[Product], piece: Piece) -> Any:
    """Cycles of the chains of one part, for a piece of rows and columns."""
    part, _ = _parts(problem)
    first = np.where(piece.goes_on, piece.depth, part)
    chains = chain_cycles(problem, piece.rows, first, piece.columns)
    pieces = np.where(piece.goes_on, ceil_div(part, np.maximum(1, piece.depth)), 1)
    if (pieces > 1).any():
        last = np.where(pieces > 1, part - (pieces - 1) * first, first)
        shorter = chain_cycles(problem, piece.rows, last, piece.columns, True)
        more = chain_cycles(problem, piece.rows, first, piece.columns, True)
        chains = chains + np.where(pieces > 1, (pieces - 2) * more + shorter, 0)
    return chains


def _phase(target: Target, size: Any) -> Floats:
    """Cycles of a barrier and an exchange of so many bytes at the busiest tile."""
    fixed = target.sync_cycles + target.exchange_fixed_cycles
    cycles: Floats = fixed + np.asarray(size) / target.exchange_bytes_per_cycle
    return cycles


def _gathers(problem: PlacementProblem[Product], piece: Piece, candidates: Candidates, depths: Any) -> Floats:
    """Cycles of bringing all pieces of both operands to the tiles, over all turns.

    A short last block takes a copy of its own where its operand is held.
    """
    target, product, _ = problem
    over, turns = candidates.over, candidates.turns
    a, b = _received(problem, piece, candidates)
    arriving = (a + b) * (piece.whole / np.maximum(1, depths * piece.depth))  # the last piece may be short
    number = turns.rows * turns.columns
    cycles: Floats = number * depths * _phase(target, np.maximum(arriving, _leaving(product, turns, depths)))
    hold = np.asarray(candidates.hold)
    if product.b is None or not hold.any():
        return cycles
    short_a = product.m % np.maximum(1, ceil_div(product.m, over.rows)) > 0
    short_b = product.n % np.maximum(1, ceil_div(product.n, over.columns)) > 0
    phase_a = _phase(target, np.maximum(a, _sent(product, product.a, "m", turns.rows, 1)))
    phase_b = _phase(target, np.maximum(b, _sent(product, product.b, "n", turns.columns, 1)))
    hold_a = turns.rows * (1 + short_a) * phase_a + number * phase_b
    hold_b = turns.columns * (1 + short_b) * phase_b + number * phase_a
    held: Floats = np.where(hold == 1, hold_a, hold_b)
    return np.where(hold == 0, cycles, held)


def _received(
    problem: PlacementProblem[Product], piece: Piece, at: Candidates, *, least: bool = False
) -> tuple[Any, Any]:
    """Bytes of both operands that a turn brings to a tile, those that neighbours in a supertile share at their weight.

    Args:
        problem: what is placed.
        piece: a turn's work.
        at: the candidates.
        least: count as shared what a cut in time might make so.
    """
    target, product, _ = problem
    a, b = piece.operands(product)
    if product.b is None:
        return np.where(_at_home(problem, at.over), 0, a), b
    grains, saved = ceil_div(product.n, product.grain), 1 - shared_weight(target)
    share_a = 1 if least else _paired(grains, at.over.columns, at.turns.columns)
    share_b = 1 if least else _paired(product.m, at.over.rows, at.turns.rows)
    return (
        np.where((at.rows_fastest == 0) & (at.over.columns % 2 == 0), a * (1 - share_a * saved), a),
        np.where((at.rows_fastest == 1) & (at.over.rows % 2 == 0), b * (1 - share_b * saved), b),
    )


def _at_home(problem: PlacementProblem[Product], over: Cuts) -> Any:
    """Whether every tile adds up terms of its own, one part: parts are as long as what it has of them."""
    product, (part, parts) = problem.sums, _parts(problem)
    fits = (
        product.m == 1 and product.a.axes.index("k") < product.a.axes.index("n") and part * product.n == product.a.chunk
    )
    return fits & (over.parts == parts) & (over.columns == 1)


def _paired(size: int, cuts: Any, turns: Any) -> Any:
    """The share of an axis's turns in which the last block, which may be short, works as its neighbour does."""
    block = np.maximum(1, ceil_div(size, cuts))
    piece = ceil_div(block, turns)
    return ceil_div(size - (ceil_div(size, block) - 1) * block, piece) / np.maximum(1, ceil_div(block, piece))


def _leaving(product: Product, turns: Cuts, depths: Any) -> Any:
    """Bytes of the operands that leave the busiest tile in a turn."""
    leaving = _sent(product, product.a, "m", turns.rows, depths)
    return leaving if product.b is None else leaving + _sent(product, product.b, "n", turns.columns, depths)


def _sent(product: Product, operand: Stored, axis: str, turns: Any, depths: Any) -> Any:
    """Bytes of an operand that leave the busiest tile in a turn.

    A cut in time along the axis stored innermost takes its share of every tile's elements in each turn, one along an
    outer axis all that some of the tiles have.
    """
    inner = operand.axes[-1]
    share = (turns if inner == axis else 1) * (depths if inner == "k" else 1)
    return operand.chunk * item_bytes(product.operands) / share


def _summing(problem: PlacementProblem[Product], piece: Piece, part_tiles: Ints) -> Floats:
    """Cycles of summing the parts on one tile's share of the results, with the exchange before the first stage."""
    target, product, accumulation = problem
    size = item_bytes(accumulation.accumulate)
    if product.m == 1 and product.batch == 1:
        return _summing_spread(problem, piece, part_tiles)
    results = piece.batch * piece.share * piece.columns
    exchanged = np.where(part_tiles > 1, (piece.parts - piece.each) * results * size, 0)
    cycles = np.where(part_tiles > 1, _phase(target, exchanged), target.sync_cycles)
    left = piece.parts
    stages, run = stages_of(accumulation, piece.parts)
    for number in range(int(stages.max())):
        final = stages == number + 1
        terms = np.where(final, left, np.minimum(run, left))
        runs = np.where(final, 1, ceil_div(left, terms))
        one = stage_cycles(target, terms, results, size)
        cycles = cycles + np.where(stages > number, runs * one + (number > 0) * target.sync_cycles, 0)
        left = runs
    return cycles


def _summing_spread(problem: PlacementProblem[Product], piece: Piece, part_tiles: Ints) -> Floats:
    """The same of a single row, see `spread`: an exchange before every stage."""
    target, _, accumulation = problem
    size = item_bytes(accumulation.accumulate)
    tiles = np.maximum(1, ceil_div(piece.parts, piece.each))
    cycles = np.zeros(np.broadcast_shapes(np.shape(tiles), np.shape(piece.columns)))
    for stage in stage_sizes(accumulation, piece.parts, tiles, piece.columns):
        one = stage_cycles(target, stage.terms, stage.columns, size)
        moved = np.where(part_tiles > 1, stage.vertices * stage.terms * stage.columns * size, 0)
        phase = np.where(part_tiles > 1, _phase(target, moved), target.sync_cycles)
        cycles = cycles + np.where(stage.there, stage.vertices * one + phase, 0)
    return cycles
