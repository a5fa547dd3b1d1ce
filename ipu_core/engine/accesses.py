"""What the vertices of a compute set access in each variable, as sets of elements that vertices share."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ipu_core.graph.regions import axis_runs, canonical
from ipu_core.graph.tensor import Tensor, Variable
from ipu_core.graph.vertices import Operand, VertexGroup
from ipu_core.integers import Ints

__all__ = ["Access", "AccessedSets", "Runs", "accesses_of", "pair_runs", "sets_of"]


class Access(NamedTuple):
    """One field of one group: vertices (numbered through the compute set), their tiles, their operand."""

    tiles: Ints
    vertices: Ints
    operand: Operand


class AccessedSets(NamedTuple):
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


class Runs(NamedTuple):
    """Runs of elements with the pair each belongs to."""

    pair: Ints
    starts: Ints
    lengths: Ints


def accesses_of(groups: Sequence[VertexGroup], *, reads: bool) -> dict[Variable, list[Access]]:
    """The fields that read (or, with reads=False, write) each variable."""
    found: dict[Variable, list[Access]] = {}
    first = 0
    for group in groups:
        vertices = np.arange(first, first + group.vertices, dtype=np.int64)
        first += group.vertices
        for operand in group.operands.values():
            if operand.field.reads if reads else operand.field.writes:
                access = Access(group.tiles.ravel(), vertices, operand)
                found.setdefault(operand.variable, []).append(access)
    return found


def sets_of(accesses: Sequence[Access]) -> AccessedSets:
    """Joins all accesses of one variable; vertices with the same elements share a set."""
    affine: dict[tuple[tuple[int, int], ...], list[tuple[Access, Ints]]] = {}
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
    base, joined = 0, []
    for part in parts:
        joined.append(part._replace(which=part.which + base, run_set=part.run_set + base))
        base += part.number
    return (
        joined[0]
        if len(joined) == 1
        else AccessedSets(*(np.concatenate(columns) for columns in zip(*joined, strict=True)))
    )


def pair_runs(sets: AccessedSets) -> Runs:
    """The runs of every pair, written out."""
    counts = np.bincount(sets.run_set, minlength=sets.number) if sets.number else np.zeros(0, np.int64)
    first = np.cumsum(counts) - counts
    each = counts[sets.which]
    pair = np.repeat(np.arange(sets.which.size), each)
    run = np.arange(pair.size) - np.repeat(np.cumsum(each) - each - first[sets.which], each)
    return Runs(pair, sets.run_starts[run], sets.run_lengths[run])


def _affine(inner: tuple[tuple[int, int], ...], members: Sequence[tuple[Access, Ints]]) -> AccessedSets:
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


def _indexed(access: Access) -> AccessedSets:
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
