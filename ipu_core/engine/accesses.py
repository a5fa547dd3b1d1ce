"""What the vertices of a compute set access in each variable, as sets of elements that vertices share."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from ipu_core.chip.integers import Ints, distinct, numbered
from ipu_core.graph.regions import axis_runs, canonical, merge_runs
from ipu_core.graph.tensor import Tensor, Variable
from ipu_core.graph.vertices import Operand, VertexGroup


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

    def columns(self, before: int) -> tuple[Ints, ...]:
        """All of them, with sets numbered from `before`."""
        return self.tiles, self.vertices, self.which + before, self.run_set + before, self.run_starts, self.run_lengths

    @property
    def number(self) -> int:
        """How many sets."""
        return int(self.run_set[-1]) + 1 if self.run_set.size else 0

    @cached_property
    def union(self) -> tuple[Ints, Ints]:
        """Starts and lengths of disjoint ascending runs of all elements."""
        return merge_runs(self.run_starts, self.run_lengths)

    @cached_property
    def ascending(self) -> Runs:
        """The runs of every pair by where they begin."""
        runs = self.runs
        order = np.argsort(runs.starts, kind="stable")
        return Runs(*(column[order] for column in runs))

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


class Access(NamedTuple):
    """One field of one group, whose vertices are numbered from `first`."""

    group: VertexGroup
    first: int
    operand: Operand

    @property
    def tiles(self) -> Ints:
        """Of each vertex."""
        return self.group.tiles.ravel()

    @property
    def vertices(self) -> Ints:
        """Their numbers."""
        return np.arange(self.first, self.first + self.group.vertices, dtype=np.int64)


def accesses_of(groups: Sequence[VertexGroup], join: Callable[[Sequence[Access]], AccessedSets]) -> Accesses:
    """Everything that groups access; `join` is `joined_sets`, or remembers what that gave."""
    reads: dict[Variable, list[Access]] = {}
    writes: dict[Variable, list[Access]] = {}
    first = 0
    for group in groups:
        for operand in group.operands.values():
            for how, found in ((operand.field.reads, reads), (operand.field.writes, writes)):
                if how:
                    found.setdefault(operand.variable, []).append(Access(group, first, operand))
        first += group.vertices
    return Accesses(*({variable: join(found) for variable, found in side.items()} for side in (reads, writes)))


def joined_sets(accesses: Sequence[Access]) -> AccessedSets:
    """Joins all accesses of one variable; vertices with the same elements share a set."""
    affine: dict[tuple[tuple[int, int], ...], list[tuple[Access, Ints]]] = {}
    parts: list[AccessedSets] = []
    for access in accesses:
        tensor, axes = access.operand.tensor, access.operand.vertex_axes
        if tensor is None:
            parts.append(_indexed(access))
            continue
        # What one vertex sees, apart from where it begins: vertices that see alike are told apart by one number each.
        shift, inner = canonical(tensor.shape[axes:], tensor.strides[axes:])
        outer = Tensor(tensor.variable, tensor.offset + shift, tensor.shape[:axes], tensor.strides[:axes])
        affine.setdefault(inner, []).append((access, outer.indices().ravel()))
    parts += [_affine(inner, members) for inner, members in affine.items()]
    if len(parts) == 1:
        return parts[0]
    base = np.cumsum([0, *(part.number for part in parts)])
    columns = zip(*(part.columns(int(before)) for part, before in zip(parts, base, strict=False)), strict=True)
    return AccessedSets(*map(np.concatenate, columns))


def _affine(inner: tuple[tuple[int, int], ...], members: Sequence[tuple[Access, Ints]]) -> AccessedSets:
    offsets, which = numbered(np.concatenate([at for _, at in members]))
    starts, lengths = axis_runs(inner)
    if not starts.size:
        return AccessedSets(*[np.zeros(0, np.int64)] * 6)
    return AccessedSets(
        np.concatenate([access.tiles for access, _ in members]),
        np.concatenate([access.vertices for access, _ in members]),
        which,
        np.repeat(np.arange(offsets.size), starts.size),
        (offsets[:, None] + starts).ravel(),
        np.tile(lengths, offsets.size),
    )


def _indexed(access: Access) -> AccessedSets:
    """Each vertex its own set, its indices joined to runs."""
    indices = access.operand.indices
    count = access.group.vertices
    if indices is None or indices.size == 0:
        return AccessedSets(*[np.zeros(0, np.int64)] * 6)
    size = access.operand.variable.size + 1  # one more: runs never join from one vertex to the next
    rows = np.arange(count, dtype=np.int64)[:, None] * size
    line = distinct((rows + indices.reshape(count, -1)).ravel())
    first = np.flatnonzero(np.concatenate([[True], np.diff(line) != 1]))
    lengths = np.diff(np.append(first, line.size))
    starts = line[first]
    return AccessedSets(access.tiles, access.vertices, np.arange(count), starts // size, starts % size, lengths)
