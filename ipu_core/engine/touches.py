"""What the vertices of a compute set touch in each variable, as blocks of elements shared by vertices."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ipu_core.graph.mapping import Ints
from ipu_core.graph.regions import axis_runs, canonical
from ipu_core.graph.tensor import Tensor, Variable
from ipu_core.graph.vertices import Operand, VertexGroup

__all__ = ["Blocks", "Runs", "Touch", "blocks_of", "pair_runs", "touches_of"]


class Touch(NamedTuple):
    """One field of one group: vertices (numbered through the compute set), their tiles, their operand."""

    tiles: Ints
    vertices: Ints
    operand: Operand


class Blocks(NamedTuple):
    """Distinct element sets ("blocks") of one variable and who touches them.

    Pair i says that vertex `vertices[i]` on tile `tiles[i]` touches block `block[i]`. Block b consists of the runs with
    run_block == b; runs are listed block after block.
    """

    tiles: Ints
    vertices: Ints
    block: Ints
    run_block: Ints
    run_starts: Ints
    run_lengths: Ints

    @property
    def number(self) -> int:
        """How many blocks."""
        return int(self.run_block[-1]) + 1 if self.run_block.size else 0


class Runs(NamedTuple):
    """Runs of elements with the pair each belongs to."""

    pair: Ints
    starts: Ints
    lengths: Ints


def touches_of(groups: Sequence[VertexGroup], *, reads: bool) -> dict[Variable, list[Touch]]:
    """The fields that read (or, with reads=False, write) each variable."""
    found: dict[Variable, list[Touch]] = {}
    first = 0
    for group in groups:
        vertices = np.arange(first, first + group.vertices, dtype=np.int64)
        first += group.vertices
        for operand in group.operands.values():
            if operand.field.reads if reads else operand.field.writes:
                touch = Touch(group.tiles.ravel(), vertices, operand)
                found.setdefault(operand.variable, []).append(touch)
    return found


def blocks_of(touches: Sequence[Touch]) -> Blocks:
    """Joins all touches of one variable; vertices with the same elements share a block."""
    affine: dict[tuple[tuple[int, int], ...], list[tuple[Touch, Ints]]] = {}
    parts: list[Blocks] = []
    for touch in touches:
        tensor, axes = touch.operand.tensor, touch.operand.vertex_axes
        if tensor is None:
            parts.append(_indexed(touch))
            continue
        shift, inner = canonical(tensor.shape[axes:], tensor.strides[axes:])
        outer = Tensor(tensor.variable, tensor.offset + shift, tensor.shape[:axes], tensor.strides[:axes])
        affine.setdefault(inner, []).append((touch, outer.indices().ravel()))
    parts += [_affine(inner, members) for inner, members in affine.items()]
    base, joined = 0, []
    for part in parts:
        joined.append(part._replace(block=part.block + base, run_block=part.run_block + base))
        base += part.number
    return (
        joined[0] if len(joined) == 1 else Blocks(*(np.concatenate(columns) for columns in zip(*joined, strict=True)))
    )


def pair_runs(blocks: Blocks) -> Runs:
    """The runs of every pair, written out."""
    counts = np.bincount(blocks.run_block, minlength=blocks.number) if blocks.number else np.zeros(0, np.int64)
    first = np.cumsum(counts) - counts
    each = counts[blocks.block]
    pair = np.repeat(np.arange(blocks.block.size), each)
    run = np.arange(pair.size) - np.repeat(np.cumsum(each) - each - first[blocks.block], each)
    return Runs(pair, blocks.run_starts[run], blocks.run_lengths[run])


def _affine(inner: tuple[tuple[int, int], ...], members: Sequence[tuple[Touch, Ints]]) -> Blocks:
    offsets, block = np.unique(np.concatenate([at for _, at in members]), return_inverse=True)
    starts, lengths = axis_runs(inner)
    if not starts.size:
        empty = np.zeros(0, np.int64)
        return Blocks(empty, empty, empty, empty, empty, empty)
    return Blocks(
        np.concatenate([touch.tiles for touch, _ in members]),
        np.concatenate([touch.vertices for touch, _ in members]),
        block.astype(np.int64).ravel(),
        np.repeat(np.arange(offsets.size), starts.size),
        (offsets[:, None] + starts).ravel(),
        np.tile(lengths, offsets.size),
    )


def _indexed(touch: Touch) -> Blocks:
    """Each vertex its own block, its indices joined to runs."""
    indices = touch.operand.indices
    count = touch.tiles.size
    if indices is None or indices.size == 0:
        empty = np.zeros(0, np.int64)
        return Blocks(empty, empty, empty, empty, empty, empty)
    size = touch.operand.variable.size + 1  # one more: runs never join from one vertex to the next
    rows = np.arange(count, dtype=np.int64)[:, None] * size
    line = np.unique(rows + indices.reshape(count, -1))
    first = np.flatnonzero(np.concatenate([[True], np.diff(line) != 1]))
    lengths = np.diff(np.append(first, line.size))
    starts = line[first]
    return Blocks(touch.tiles, touch.vertices, np.arange(count), starts // size, starts % size, lengths)
