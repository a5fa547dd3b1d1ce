"""The working set of a tile: what it works on in one turn of a product or sum, and the bytes it needs for that."""

from typing import Any, NamedTuple

import numpy as np

from ipu_core.placement.cuts import item_bytes
from ipu_core.placement.matmul.product import Product
from ipu_core.placement.matmul.spread import stage_sizes, stages_of
from lowprec import Accumulation
from lowprec.integers import ceil_div


class Piece(NamedTuple):
    """What the fullest tile works off in a turn: ints, or arrays with an entry per candidate.

    Attributes:
        batch, rows, columns, depth: products, rows, columns and k's on the tile.
        whole: k's of all parts on the tile, of which `depth` are worked off in this turn.
        each: parts on the tile, one vertex for each.
        parts: of the whole sum.
        share: rows whose parts the tile sums.
        held: which operand's piece stays, with all k's, while the other's pass: 0 none, 1 a, 2 b.
        goes_on: whether the chain of a part is cut in time, its partial results staying on the tile.
    """

    batch: Any
    rows: Any
    columns: Any
    depth: Any
    whole: Any
    each: Any
    parts: Any
    share: Any
    held: Any
    goes_on: Any

    def operands(self, product: Product) -> tuple[Any, Any]:
        """Bytes of both operands; a sum has one, with rows and columns."""
        size = item_bytes(product.operands)
        if product.b is None:
            return self.batch * self.rows * self.depth * self.columns * size, 0
        held = np.asarray(self.held)
        deep_a, deep_b = (np.where(held == side, self.whole, self.depth) for side in (1, 2))
        return self.batch * self.rows * deep_a * size, self.batch * deep_b * self.columns * size

    def direct(self, accumulation: Accumulation) -> Any:
        """Whether the chains write the result themselves."""
        return (np.asarray(self.parts) == 1) & (accumulation.one_format)


def chain_bytes(product: Product, accumulation: Accumulation, piece: Piece) -> Any:
    """Bytes that a tile needs while it makes chains: gathered operands, partial results, results."""
    a, b = piece.operands(product)
    results = piece.batch * piece.rows * piece.columns * item_bytes(accumulation.out)
    return a + b + _partials(accumulation, piece) + np.where(piece.direct(accumulation), results, 0)


def working_set(product: Product, accumulation: Accumulation, piece: Piece) -> Any:
    """Bytes that a tile needs at once for gathered operands, partial sums and results, without the arrays' own."""
    partial, out = (item_bytes(fmt) for fmt in (accumulation.accumulate, accumulation.out))
    a, b = piece.operands(product)
    held = np.where(np.asarray(piece.held) == 1, a, np.where(np.asarray(piece.held) == 2, b, 0))
    direct = piece.direct(accumulation)
    if product.m == 1 and product.batch == 1:
        partials = np.where(direct, 0, _partials(accumulation, piece))
        summing = held + np.where(direct, 0, _spread_bytes(accumulation, piece, partials))
        return np.maximum(chain_bytes(product, accumulation, piece), summing)
    mine = piece.batch * piece.share * piece.columns
    stages, run = stages_of(accumulation, piece.parts)
    firsts = np.where(stages > 1, ceil_div(piece.parts, run) * mine * partial, 0)
    results = np.where(direct, piece.batch * piece.rows * piece.columns, mine) * out
    gathered = np.where(direct, 0, (piece.parts - piece.each) * mine * partial)
    partials = np.where(direct, 0, _partials(accumulation, piece))
    summing = held + partials + gathered + np.where(stages > 1, firsts, results)
    # Three moments: chains under way, the first stage, and the last one with the sums of the first; the fullest counts.
    return np.maximum(chain_bytes(product, accumulation, piece), np.maximum(summing, held + 2 * firsts + results))


def _spread_bytes(accumulation: Accumulation, piece: Piece, partials: Any) -> Any:
    """The fullest moment of the stages of a single row, see `spread`: what a stage reads, gathers and makes."""
    partial, out = (item_bytes(fmt) for fmt in (accumulation.accumulate, accumulation.out))
    tiles = np.maximum(1, ceil_div(piece.parts, piece.each))
    found, there = np.zeros(()), partials
    stages, _ = stages_of(accumulation, piece.parts)
    for number, stage in enumerate(stage_sizes(accumulation, piece.parts, tiles, piece.columns)):
        made = stage.vertices * stage.columns * np.where(stages == number + 1, out, partial)
        gathered = np.where(tiles > 1, stage.vertices * stage.terms * stage.columns * partial, 0)
        found = np.maximum(found, np.where(stage.there, there + gathered + made, 0))
        there = made
    return found.astype(np.int64)


def _partials(accumulation: Accumulation, piece: Piece) -> Any:
    """Bytes of the tile's parts: none where a chain is made in one go and writes the result itself."""
    none = piece.direct(accumulation) & ~np.asarray(piece.goes_on, bool)
    return np.where(
        none, 0, piece.each * piece.batch * piece.rows * piece.columns * item_bytes(accumulation.accumulate)
    )
