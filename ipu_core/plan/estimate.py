"""What cuts of a product or sum cost: modelled cycles and bytes per tile of many candidates at once, as arrays.

A candidate is a dict of ints or arrays that broadcast: cuts over tiles of rows `m`, columns `n`, parts `p` and batch
`b`, the tile `order`, the `chunk` (k's) and number of `parts` of the sum; cuts in time of rows `sm` and columns `sn`,
and which operand to `hold` (0 none, 1 a, 2 b). How often a tile cuts its k's in time follows from the memory: as
seldom as it allows. So every candidate costs the less the more memory there is.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from ipu_core import cost
from ipu_core.plan.product import Operand, Product, chain_cycles, item_bytes
from ipu_core.plan.under_way import Piece, bytes_under_way, chain_bytes, stages_of
from ipu_core.target import Target
from lowprec import Accumulation

__all__ = ["UNBOUNDED", "Cut", "Task", "ceil", "costed", "lower_bound"]

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Cut = Mapping[str, Any]

UNBOUNDED: Final = 1 << 60  # bytes: cut nothing in time


class Task(NamedTuple):
    """What is to be placed: sizes, formats and layouts on a chip, and the order and types of the sums."""

    target: Target
    product: Product
    accumulation: Accumulation


def ceil(a: Any, b: Any) -> Any:
    """a / b rounded up."""
    return -(-a // b)


def costed(task: Task, cut: Cut, memory: int) -> dict[str, Any]:
    """The candidates with `cycles`, `memory` (bytes a tile needs) and `depths` (cuts of its k's in time).

    Args:
        task: what is to be placed.
        cut: candidates, see the module.
        memory: bytes per tile; those that need more even with their k's cut as often as can be keep all cuts.
    """
    cut = _without_empty_pieces(task.product, cut)
    target, product, accumulation = task
    piece, depths = _piece(task, cut, memory)
    steps = cut["sm"] * cut["sn"]
    direct = piece.direct(accumulation)
    results = piece.batch * np.where(direct, piece.rows, piece.share) * piece.columns * item_bytes(accumulation.out)
    summing = np.where(direct, 0, _summing(task, piece, cut["p"]))
    taken = product.out.chunk * item_bytes(accumulation.out) / cut["sn"]  # in a step, by a tile of the result
    written = _phase(target, np.maximum(results, taken))
    cycles = steps * (piece.batch * piece.each * _chains(task, piece, cut) + summing + written)
    cycles = cycles + _gathers(task, piece, cut, depths)
    found = dict(cut) | {"depths": depths, "memory": bytes_under_way(product, accumulation, piece)}
    return {name: np.broadcast_to(value, cycles.shape) for name, value in found.items()} | {"cycles": cycles}


def lower_bound(task: Task, whole: Cut, memory: int) -> Floats:
    """Cycles that no cut of rows or columns in time stays below, for candidates costed with unbounded memory.

    Pieces of rows and columns are so many that the partial results of one fit. Either operand comes again for every
    piece of the other's axis, unless it is held, and then its own pieces are small enough to be.
    """
    target, product, accumulation = task
    piece, _ = _piece(task, whole, UNBOUNDED)
    a, b = _received(product, piece, whole, least=True)
    stays = piece.batch * item_bytes(accumulation.out)
    stays = np.where(piece.direct(accumulation), stays, piece.batch * piece.each * item_bytes(accumulation.accumulate))
    room = max(1, memory)
    steps = np.maximum(2, piece.rows * piece.columns * stays / room)
    columns = np.clip(np.sqrt(steps * b / np.maximum(1, a)), 1, steps)
    passing = columns * a + steps / columns * b
    if product.b is not None:
        full_a, full_b = piece.operands(product)
        passing = np.minimum(passing, a + np.maximum(1, full_a / room) * b)
        passing = np.minimum(passing, b + np.maximum(1, full_b / room) * a)
    more = np.maximum(0, passing - np.maximum(a + b, _leaving(product, whole, 1))) / target.exchange_bytes_per_cycle
    bound: Floats = whole["cycles"] + more + target.sync_cycles + target.exchange_fixed_cycles
    return bound


def _without_empty_pieces(product: Product, cut: Cut) -> dict[str, Any]:
    """The same with pieces in time only where there is something to do."""
    rows = np.maximum(1, ceil(product.m, cut["m"]))
    grains = np.maximum(1, ceil(ceil(product.n, product.grain), cut["n"]))
    return dict(cut) | {
        "sm": ceil(rows, ceil(rows, cut["sm"])),
        "sn": ceil(grains, ceil(grains, cut["sn"])),
    }


def _piece(task: Task, cut: Cut, memory: int) -> tuple[Piece, Any]:
    """The pieces of work, and in how many steps a tile works off its k's: as few as its memory allows."""
    _, product, accumulation = task
    rows = ceil(ceil(product.m, cut["m"]), cut["sm"])
    grains = ceil(ceil(ceil(product.n, product.grain), cut["n"]), cut["sn"])
    each = ceil(cut["parts"], cut["p"])
    whole = np.minimum(each * cut["chunk"], max(1, product.k))
    batch, columns = ceil(product.batch, cut["b"]), np.minimum(product.grain * grains, max(1, product.n))
    share, hold = ceil(rows, cut["p"]), np.asarray(cut["hold"])
    plain = Piece(batch, rows, columns, whole, whole, each, cut["parts"], share, hold, False)
    if memory >= UNBOUNDED:
        return plain, np.ones_like(each)
    cuts = (chain_bytes(product, accumulation, plain) > memory) & (hold == 0)
    if not cuts.any():
        return plain, np.ones_like(each)
    rest = chain_bytes(product, accumulation, plain._replace(depth=0, whole=0, goes_on=True))  # beside the operands
    a, b = plain._replace(depth=1).operands(product)
    room = np.maximum(0, (memory - rest) // np.maximum(1, a + b))
    group = accumulation.group_of(product.k)
    apart = cuts & (room < cut["chunk"]) & (cut["chunk"] > group) & (product.b is not None)
    groups = ceil(cut["chunk"], group)
    depth = group * ceil(groups, ceil(groups, np.clip(room // group, 1, groups)))
    pieces = ceil(each, np.clip(room // np.maximum(1, cut["chunk"]), 1, each))  # of whole parts
    together = ceil(each, pieces) * cut["chunk"]
    deep = np.where(cuts, np.minimum(np.where(apart, depth, together), whole), whole)
    depths = np.where(cuts, np.where(apart, each * ceil(cut["chunk"], depth), pieces), 1)
    return plain._replace(depth=deep, goes_on=apart), depths


def _chains(task: Task, piece: Piece, cut: Cut) -> Any:
    """Cycles of the chains of one part, for a piece of rows and columns."""
    chunk = cut["chunk"]
    first = np.where(piece.goes_on, piece.depth, chunk)
    chains = chain_cycles(*task, piece.rows, first, piece.columns)
    pieces = np.where(piece.goes_on, ceil(chunk, np.maximum(1, piece.depth)), 1)
    if (pieces > 1).any():
        last = np.where(pieces > 1, chunk - (pieces - 1) * first, first)
        shorter = chain_cycles(*task, piece.rows, last, piece.columns, True)
        more = chain_cycles(*task, piece.rows, first, piece.columns, True)
        chains = chains + np.where(pieces > 1, (pieces - 2) * more + shorter, 0)
    return chains


def _phase(target: Target, size: Any) -> Floats:
    """Cycles of a barrier and an exchange of so many bytes at the busiest tile."""
    fixed = target.sync_cycles + target.exchange_fixed_cycles
    cycles: Floats = fixed + np.asarray(size) / target.exchange_bytes_per_cycle
    return cycles


def _gathers(task: Task, piece: Piece, cut: Cut, depths: Any) -> Floats:
    """Cycles of bringing all pieces of both operands to the tiles, over all serial steps.

    A short last block takes a copy of its own where its operand is held.
    """
    target, product, _ = task
    a, b = _received(product, piece, cut)
    arriving = (a + b) * (piece.whole / np.maximum(1, depths * piece.depth))  # the last piece may be short
    steps = cut["sm"] * cut["sn"]
    cycles: Floats = steps * depths * _phase(target, np.maximum(arriving, _leaving(product, cut, depths)))
    if product.b is None:
        return cycles
    short_a = product.m % np.maximum(1, ceil(product.m, cut["m"])) > 0
    short_b = product.n % np.maximum(1, ceil(product.n, cut["n"])) > 0
    phase_a = _phase(target, np.maximum(a, _sent(product, product.a, "m", cut["sm"], 1)))
    phase_b = _phase(target, np.maximum(b, _sent(product, product.b, "n", cut["sn"], 1)))
    hold_a = cut["sm"] * (1 + short_a) * phase_a + steps * phase_b
    hold_b = cut["sn"] * (1 + short_b) * phase_b + steps * phase_a
    hold = np.asarray(cut["hold"])
    held: Floats = np.where(hold == 1, hold_a, hold_b)
    return np.where(hold == 0, cycles, held)


def _received(product: Product, piece: Piece, cut: Cut, *, least: bool = False) -> tuple[Any, Any]:
    """Bytes of both operands that a step brings to a tile: what neighbours in a supertile share counts half.

    Args:
        product: sizes.
        piece: a step's work.
        cut: the candidates.
        least: count as shared what a cut in time might make so.
    """
    a, b = piece.operands(product)
    if product.b is None:
        return a, b
    grains = ceil(product.n, product.grain)
    share_a = 1 if least else _paired(grains, cut["n"], cut["sn"])
    share_b = 1 if least else _paired(product.m, cut["m"], cut["sm"])
    return (
        np.where((cut["order"] == 0) & (cut["n"] % 2 == 0), a * (1 - share_a / 2), a),
        np.where((cut["order"] == 1) & (cut["m"] % 2 == 0), b * (1 - share_b / 2), b),
    )


def _paired(size: int, cuts: Any, serial: Any) -> Any:
    """The share of an axis's serial steps in which the last block, which may be short, works as its neighbour does."""
    block = np.maximum(1, ceil(size, cuts))
    piece = ceil(block, serial)
    return ceil(size - (ceil(size, block) - 1) * block, piece) / np.maximum(1, ceil(block, piece))


def _leaving(product: Product, cut: Cut, depths: Any) -> Any:
    """Bytes of the operands that leave the busiest tile in a step."""
    leaving = _sent(product, product.a, "m", cut["sm"], depths)
    return leaving if product.b is None else leaving + _sent(product, product.b, "n", cut["sn"], depths)


def _sent(product: Product, operand: Operand, axis: str, cuts: Any, depths: Any) -> Any:
    """Bytes of an operand that leave the busiest tile in a step.

    A cut in time along the axis stored innermost takes its share of every tile's elements in each step, one along an
    outer axis all that some of the tiles have.
    """
    inner = operand.axes[-1]
    share = (cuts if inner == axis else 1) * (depths if inner == "k" else 1)
    return operand.chunk * item_bytes(product.operands) / share


def _summing(task: Task, piece: Piece, part_tiles: Ints) -> Floats:
    """Cycles of summing the parts on one tile's share of the results, with the exchange before the first stage."""
    target, _, accumulation = task
    size = item_bytes(accumulation.accumulate)
    results = piece.batch * piece.share * piece.columns
    exchanged = np.where(part_tiles > 1, (piece.parts - piece.each) * results * size, 0)
    cycles = np.where(part_tiles > 1, _phase(target, exchanged), target.sync_cycles)
    left = piece.parts
    stages, run = stages_of(accumulation, piece.parts)
    for number in range(int(stages.max())):
        final = stages == number + 1
        terms = np.where(final, left, np.minimum(run, left))
        runs = np.where(final, 1, ceil(left, terms))
        one = np.where(terms == 1, cost.cast(target, results, size), cost.reduce(target, terms, results, size))
        cycles = cycles + np.where(stages > number, runs * one + (number > 0) * target.sync_cycles, 0)
        left = runs
    return cycles
