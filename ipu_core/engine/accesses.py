"""What the vertices of a compute set access in each variable, as sets of elements that vertices share."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from ipu_core.graph.regions import axis_runs, canonical
from ipu_core.graph.tensor import Tensor, Variable
from ipu_core.graph.vertices import Operand, VertexGroup
from ipu_core.integers import Ints


class Runs(NamedTuple):
    """Runs of elements with the pair each belongs to."""

    pair: Ints
    starts: Ints
    lengths: Ints


@dataclass(frozen=True, eq=False)
class AccessedSets:
    """Distinct sets of elements of one variable and who accesses them.

    Pair i says that vertex `vertices[i]` on tile `tiles[i]` accesses the set `which[i]`. Set s consists of the runs
    with run_set == s; runs are listed set after set.
    """

    tiles: Ints
    vertices: Ints
    which: Ints
    run_set: Ints
    run_starts: Ints
    run_lengths: Ints

    @property
    def number(self) -> int:
        """How many sets."""
        return int(self.run_set[-1]) + 1 if self.run_set.size else 0

    @cached_property
    def runs(self) -> Runs:
        """The runs of every pair, written out."""
        counts = np.bincount(self.run_set, minlength=self.number) if self.number else np.zeros(0, np.int64)
        first = np.cumsum(counts) - counts
        each = counts[self.which]
        pair = np.repeat(np.arange(self.which.size), each)
        run = np.arange(pair.size) - np.repeat(np.cumsum(each) - each - first[self.which], each)
        return Runs(pair, self.run_starts[run], self.run_lengths[run])


class Accesses(NamedTuple):
    """What the vertices of a compute set read and write, by variable. Vertices are numbered through the compute set."""

    reads: Mapping[Variable, AccessedSets]
    writes: Mapping[Variable, AccessedSets]


class _Access(NamedTuple):
    """One field of one group: its vertices, their tiles, their operand."""

    tiles: Ints
    vertices: Ints
    operand: Operand


def accesses_of(groups: Sequence[VertexGroup]) -> Accesses:
    """Everything that groups access."""
    reads: dict[Variable, list[_Access]] = {}
    writes: dict[Variable, list[_Access]] = {}
    first = 0
    for group in groups:
        vertices, tiles = np.arange(first, first + group.vertices, dtype=np.int64), group.tiles.ravel()
        first += group.vertices
        for operand in group.operands.values():
            for how, found in ((operand.field.reads, reads), (operand.field.writes, writes)):
                if how:
                    found.setdefault(operand.variable, []).append(_Access(tiles, vertices, operand))
    return Accesses(*({variable: _sets(found) for variable, found in side.items()} for side in (reads, writes)))


def _sets(accesses: Sequence[_Access]) -> AccessedSets:
    """Joins all accesses of one variable; vertices with the same elements share a set."""
    affine: dict[tuple[tuple[int, int], ...], list[tuple[_Access, Ints]]] = {}
    parts: list[AccessedSets] = []
    for access in accesses:
        tensor, axes = access.operand.tensor, access.operand.vertex_axes
        if tensor is None:
            parts.append(_indexed(access))
            continue
        shift, inner = canonical(tensor.shape[axes:], tensor.strides[axes:])
        outer = Tensor(tensor.variable, tensor.offset + shift, tensor.shape[:axes], tensor.strides[:axes])
        affine.setdefault(inner, []).append((access, outer.indices().ravel()))
    parts += [_affine(inner, members) for inner, members in affine.items()]
    if len(parts) == 1:
        return parts[0]
    base = np.cumsum([0, *(part.number for part in parts)])
    return AccessedSets(
        np.concatenate([part.tiles for part in parts]),
        np.concatenate([part.vertices for part in parts]),
        np.concatenate([part.which + before for part, before in zip(parts, base, strict=False)]),
        np.concatenate([part.run_set + before for part, before in zip(parts, base, strict=False)]),
        np.concatenate([part.run_starts for part in parts]),
        np.concatenate([part.run_lengths for part in parts]),
    )


def _affine(inner: tuple[tuple[int, int], ...], members: Sequence[tuple[_Access, Ints]]) -> AccessedSets:
    offsets, which = np.unique(np.concatenate([at for _, at in members]), return_inverse=True)
    starts, lengths = axis_runs(inner)
    if not starts.size:
        empty = np.zeros(0, np.int64)
        return AccessedSets(empty, empty, empty, empty, empty, empty)
    return AccessedSets(
        np.concatenate([access.tiles for access, _ in members]),
        np.concatenate([access.vertices for access, _ in members]),
        which.astype(np.int64).ravel(),
        np.repeat(np.arange(offsets.size), starts.size),
        (offsets[:, None] + starts).ravel(),
        np.tile(lengths, offsets.size),
    )


def _indexed(access: _Access) -> AccessedSets:
    """Each vertex its own set, its indices joined to runs."""
    indices = access.operand.indices
    count = access.tiles.size
    if indices is None or indices.size == 0:
        empty = np.zeros(0, np.int64)
        return AccessedSets(empty, empty, empty, empty, empty, empty)
    size = access.operand.variable.size + 1  # one more: runs never join from one vertex to the next
    rows = np.arange(count, dtype=np.int64)[:, None] * size
    line = np.unique(rows + indices.reshape(count, -1))
    first = np.flatnonzero(np.concatenate([[True], np.diff(line) != 1]))
    lengths = np.diff(np.append(first, line.size))
    starts = line[first]
    return AccessedSets(access.tiles, access.vertices, np.arange(count), starts // size, starts % size, lengths)
