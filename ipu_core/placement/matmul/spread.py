"""How the parts of sums of a single row are summed: in every stage a block's tiles share its runs, and their columns.

The tiles of a block of several rows share the rows, and move partial sums once. Where there is one row, a stage of many
parts would be summed on one tile: so its runs lie on tiles of their own, and the columns of each on several.
"""

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np

from ipu_core.chip.integers import Ints
from ipu_core.chip.target import Target
from ipu_core.placement.cuts import stage_cycles
from lowprec import Accumulation
from lowprec.integers import ceil_div

GRAIN: Final = 4  # columns are shared in whole vectors of halves


def stages_of(accumulation: Accumulation, parts: Any) -> tuple[Any, Any]:
    """(summing stages, parts in a run of all stages but the last) for numbers of parts."""
    array = np.asarray(parts)
    kinds, which = np.unique(array, return_inverse=True)
    stages, runs = np.array([accumulation.stage_shape(int(n)) for n in kinds]).reshape(-1, 2).T
    return stages[which].reshape(array.shape), runs[which].reshape(array.shape)


class SpreadStage(NamedTuple):
    """A stage on the tiles of a block: one vertex for every run and share of the columns.

    Attributes:
        runs: first and last of the earlier results that become one.
        each: columns of a vertex; a run's last may have fewer.
        tiles: of the block.
    """

    runs: tuple[tuple[int, int], ...]
    each: int
    tiles: int

    def tile(self, run: Any, share: Any) -> Any:
        """The number among the block's tiles of a vertex: numbers, or arrays that broadcast."""
        count = len(self.runs)
        return run * self.tiles // count + 0 * share if count >= self.tiles else run * (self.tiles // count) + share

    def borders(self, columns: int) -> Ints:
        """Where the shares of so many columns begin, and the last one's end."""
        return np.append(np.arange(0, columns, self.each), columns)


class StageMoves(NamedTuple):
    """What a stage does on each tile of a block: cycles, and bytes received and sent."""

    cycles: Ints
    received: Ints
    sent: Ints


def spread_stages(order: Accumulation, parts: int, tiles: int, columns: int) -> list[SpreadStage]:
    """The stages of a block of so many parts, tiles and columns."""
    found = []
    for runs in order.stage_runs(parts):
        shares = max(1, tiles // len(runs))
        found.append(SpreadStage(runs, _width(columns, shares), tiles))
    return found


def moves(target: Target, stages: list[SpreadStage], block: int, columns: int, size: int) -> Iterator[StageMoves]:
    """What stages do on a block of so many columns.

    Args:
        target: the chip.
        stages: of whole blocks.
        block: parts on a tile; all columns of each lie there.
        columns: of the block.
        size: bytes of a partial sum.
    """
    parts = stages[0].runs[-1][1]
    holder, borders = np.arange(parts)[:, None] // block, np.array([0, columns])
    for stage in stages:
        to = stage.borders(columns)
        lengths = np.array([last - first for first, last in stage.runs])
        at = stage.tile(np.arange(lengths.size)[:, None], np.arange(to.size - 1))
        # Every partial sum goes to the one vertex that adds it: elements by (earlier result, its shares, new shares).
        common = np.minimum(borders[1:, None], to[1:]) - np.maximum(borders[:-1, None], to[:-1])
        elements = np.broadcast_to(np.maximum(common, 0) * size, (holder.shape[0], *common.shape))
        senders = np.broadcast_to(holder[:, :, None], elements.shape)
        receivers = np.broadcast_to(np.repeat(at, lengths, axis=0)[:, None, :], elements.shape)
        foreign = senders != receivers
        received, sent = (np.bincount(end[foreign], elements[foreign], stage.tiles) for end in (receivers, senders))
        each = stage_cycles(target, lengths[:, None], np.diff(to), size)
        cycles = np.bincount(at.ravel(), each.ravel(), stage.tiles)
        yield StageMoves(*(numbers.astype(np.int64) for numbers in (cycles, received, sent)))
        holder, borders = at, to


class StageSizes(NamedTuple):
    """The largest vertex of a stage, by candidate: whether there is one, its terms, its columns, vertices on a tile."""

    there: Any
    terms: Any
    columns: Any
    vertices: Any


def stage_sizes(order: Accumulation, parts: Any, tiles: Any, columns: Any) -> Iterator[StageSizes]:
    """The sizes of stages of many candidates at once."""
    stages, run = stages_of(order, parts)
    left = np.asarray(parts)
    for number in range(int(stages.max())):
        final = stages == number + 1
        terms = np.where(final, left, np.minimum(run, left))
        runs = np.where(final, 1, ceil_div(left, np.maximum(1, terms)))
        width = _width(columns, np.maximum(1, tiles // np.maximum(1, runs)))
        yield StageSizes(stages > number, terms, width, ceil_div(runs, tiles))
        left = runs


def _width(columns: Any, shares: Any) -> Any:
    grains = np.maximum(1, ceil_div(columns, GRAIN))
    width = np.minimum(np.maximum(1, columns), GRAIN * ceil_div(grains, shares))
    return int(width) if np.ndim(width) == 0 else width
