"""Blocks of a product's grid as tensors: fields of groups of vertices, partials, held pieces, and their tiles."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ipu_core.chip.integers import Ints
from ipu_core.graph.graph import Graph
from ipu_core.graph.program import Copy
from ipu_core.graph.tensor import Tensor
from ipu_core.library.matmul.chains import BlockPosition
from ipu_core.placement.axis_blocks import Segment
from ipu_core.placement.matmul.geometry import Geometry, TurnGroup


class GroupCuts(NamedTuple):
    """How a group cuts the axes: its vertex axes, outermost first, as (letter, runs, step), and each axis's first run.

    Attributes:
        vertex: (axis, number of vertices along it, numbers from one to the next).
        own: by axis the (start, length) of the first vertex.
    """

    vertex: tuple[tuple[str, int, int], ...]
    own: Mapping[str, tuple[int, int]]

    @property
    def shape(self) -> tuple[int, ...]:
        """Numbers of vertices along the vertex axes."""
        return tuple(runs for _, runs, _ in self.vertex)


def group_cuts(grid: Geometry, group: TurnGroup) -> GroupCuts:
    """The cuts of a group of chains: along parts, rows and columns, or along the batch instead of the parts."""
    parts, rows, columns, _ = group
    batch = grid.batch.size
    # with a batch every part is a group of its own, so one of the two axes is enough
    first = ("k", parts.runs, parts.step) if batch == 1 else ("b", batch, 1)
    vertex = (first, ("m", rows.runs, rows.step), ("n", columns.runs, columns.step))
    own = {axis: (segment.start, segment.length) for axis, segment in zip("kmn", group[:3], strict=True)}
    return GroupCuts(vertex, own | {"b": (0, 1)})


def field(tensor: Tensor, letters: str, cuts: GroupCuts, own: str) -> Tensor:
    """The field of a group: vertex axes, then the axes `own` of a tensor whose axes are `letters`.

    Vertices share elements along axes the tensor lacks.
    """
    strides = dict(zip(letters, tensor.strides, strict=True))
    offset = tensor.offset + sum(cuts.own[axis][0] * stride for axis, stride in strides.items())
    outer = tuple(step * strides.get(axis, 0) for axis, _, step in cuts.vertex)  # 0: they share it
    lengths = tuple(cuts.own[axis][1] for axis in own)
    return Tensor(tensor.variable, offset, cuts.shape + lengths, outer + tuple(strides[axis] for axis in own))


def block_tiles(grid: Geometry, parts: Any, rows: Any, columns: Any, batch: Any = 0) -> Ints:
    """Tiles of vertices from the numbers of their product, part, block of rows and block of columns."""
    return grid.tile(np.asarray(batch) // grid.batch.block, np.asarray(parts), np.asarray(rows), np.asarray(columns))


def chain_tiles(grid: Geometry, group: TurnGroup) -> Ints:
    """Tiles of a group of chains, shaped like its vertex axes."""
    rows = group.rows.first + np.arange(group.rows.runs)[:, None]
    columns = group.columns.first + np.arange(group.columns.runs)
    parts = group.parts.first + group.apart * np.arange(group.parts.runs)[:, None, None]
    batch = np.arange(grid.batch.size)[:, None, None]
    # a tile has neighbouring parts: their number over the parts of a tile is the tile's
    tiles = block_tiles(grid, parts // grid.parts.block, rows, columns, batch)
    return np.broadcast_to(tiles, group_cuts(grid, group).shape)


def origin_of(cuts: GroupCuts, group_size: int) -> BlockPosition:
    """Where the vertices' blocks lie in the whole product: arrays over the vertex axes (1 where all agree)."""
    axes = len(cuts.vertex)
    found: dict[str, Any] = {}
    for letter in "mnkb":
        total: Any = cuts.own[letter][0]
        for position, (axis, runs, step) in enumerate(cuts.vertex):
            if axis == letter:
                total = total + (np.arange(runs) * step).reshape((-1,) + (1,) * (axes - 1 - position))
        found[letter] = total
    return BlockPosition(found["m"], found["n"], found["k"] // group_size, found["b"])


def compact(segments: Sequence[Segment]) -> list[Segment]:
    """The segments moved up to each other without gaps, as they lie in an array that holds one turn only."""
    result, at = [], 0
    for segment in segments:
        result.append(Segment(segment.first, segment.runs, at, segment.length, segment.length))
        at += segment.runs * segment.length
    return result


def partials(
    graph: Graph,
    grid: Geometry,
    fmt: str,
    counts: Ints,
    rows: Sequence[Segment],
    columns: Sequence[Segment],
    each: int,
    name: str,
) -> Tensor:
    """Adds a temporary (parts, batch, rows, columns) for one turn, mapped block by block.

    Args:
        counts: borders of the parts that lie together on a tile; a single run of parts if the tiles share rows instead.
        each: rows of a tile's share of a block, or 0 if a block lies whole.
    """
    borders = [counts, _borders(grid.batch.size, grid.batch.block)]
    shape = [int(counts[-1]), grid.batch.size]
    row_borders, row_blocks, row_shares = _row_borders(rows, each)
    shape += [row_borders[-1], sum(s.runs * s.length for s in columns)]
    borders += [np.array(row_borders), np.cumsum([0, *(s.length for s in columns for _ in range(s.runs))])]
    tensor = graph.add_variable(fmt, shape, name, temporary=True)
    # in a stage the tiles of the parts share the rows instead, and each has all parts of its share
    part = np.arange(len(counts) - 1) if not each else np.zeros(1, np.int64)
    block_columns = np.array([s.first + i for s in columns for i in range(s.runs)])
    tiles = block_tiles(
        grid,
        part[:, None, None, None] + np.array(row_shares)[:, None],
        np.array(row_blocks)[:, None],
        block_columns,
        (np.arange(len(borders[1]) - 1) * grid.batch.block)[:, None, None],
    )
    graph.map_blocks(tensor, borders, tiles)
    return tensor


def _borders(size: int, block: int) -> Ints:
    return np.append(np.arange(0, size, block), size)


def _row_borders(rows: Sequence[Segment], each: int) -> tuple[list[int], list[int], list[int]]:
    """Borders of (shares of) blocks of rows pushed together, and block and share number of each."""
    lengths, blocks, shares = [], [], []
    for segment in rows:
        cut = each or segment.length
        for block in range(segment.runs):
            for share, start in enumerate(range(0, segment.length, cut)):
                lengths.append(min(cut, segment.length - start))
                blocks.append(segment.first + block)
                shares.append(share)
    return list(itertools.accumulate(lengths, initial=0)), blocks, shares


def hold_piece(
    graph: Graph, grid: Geometry, side: str, tensor: Tensor, segment: Segment, others: int, name: str
) -> tuple[Tensor, Copy]:
    """Adds a variable with a copy of an operand's piece on every tile that needs it, and the Copy that fills it.

    Args:
        side: "a", whose blocks of rows go to all `others` blocks of columns, or "b", the other way round.
        tensor: (batch, m, k) or (batch, k, n).
        segment: the blocks along m or n.

    Returns:
        The variable, (batch, others, blocks, rows or columns, k), and the program.
    """
    batch, axis, depth = (0, 1, 2) if side == "a" else (0, 2, 1)
    stride = tensor.strides[axis]
    shape = (tensor.shape[batch], others, segment.runs, segment.length, tensor.shape[depth])
    # stride 0: the copy gives each of the others the same piece
    strides = (tensor.strides[batch], 0, segment.step * stride, stride, tensor.strides[depth])
    source = Tensor(tensor.variable, tensor.offset + segment.start * stride, shape, strides)
    held = graph.add_variable(tensor.format, shape, name, temporary=True)
    # a tile holds the k's of its own parts alone, not the whole depth
    part_borders = np.array(
        [*(grid.spans[p][0] for p in range(0, len(grid.spans), grid.parts.block)), grid.spans[-1][1]]
    )
    batch_borders = _borders(grid.batch.size, grid.batch.block)
    blocks = segment.first + np.arange(segment.runs)[:, None, None]
    across = np.arange(others)[:, None, None, None]
    rows, columns = (blocks, across) if side == "a" else (across, blocks)
    batches = (np.arange(len(batch_borders) - 1) * grid.batch.block)[:, None, None, None, None]
    tiles = block_tiles(grid, np.arange(len(part_borders) - 1), rows, columns, batches)
    borders = [
        batch_borders,
        np.arange(others + 1),
        np.arange(segment.runs + 1),
        np.array([0, segment.length]),
        part_borders,
    ]
    graph.map_blocks(held, borders, tiles)
    return held, Copy(source, held, name)


def held_field(held: Tensor, side: str, cuts: GroupCuts, group: TurnGroup) -> Tensor:
    """The field of a group in a held piece."""
    _, across, block, inner, depth = held.strides
    other = group.columns if side == "a" else group.rows
    along = "m" if side == "a" else "n"
    # a held piece has axes for blocks and for the others: a step of blocks is one index there
    steps = {"b": held.strides[0], along: block, "n" if side == "a" else "m": across, "k": group.parts.step * depth}
    outer = tuple(steps[axis] for axis, _, _ in cuts.vertex)
    lengths = {along: (held.shape[3], inner), "k": (cuts.own["k"][1], depth)}
    own = [lengths[axis] for axis in ("mk" if side == "a" else "kn")]
    offset = held.offset + other.first * across + cuts.own["k"][0] * depth
    shape, strides = zip(*own, strict=True)
    return Tensor(held.variable, offset, cuts.shape + shape, outer + strides)
