"""The race check: in one compute set no element has two writers, and none that is written has a reader elsewhere."""

from collections.abc import Sequence

import numpy as np

from ipu_core.chip.integers import Ints
from ipu_core.engine.accesses import AccessedSets, Accesses
from ipu_core.errors import DataRace
from ipu_core.graph.tensor import Variable
from ipu_core.graph.vertices import ComputeSet, VertexGroup


def check_races(compute_set: ComputeSet, groups: Sequence[VertexGroup], accesses: Accesses) -> None:
    """Checks one compute set, given as groups and what they access.

    Raises:
        DataRace: naming the compute set, the variable, the element and both vertices.
    """
    for variable, written in accesses.writes.items():
        begin, end, writer = _written_once(compute_set, groups, variable, written)
        if variable in accesses.reads:
            _no_foreign_reader(compute_set, groups, variable, accesses.reads[variable], (begin, end, writer))


def _written_once(
    compute_set: ComputeSet, groups: Sequence[VertexGroup], variable: Variable, sets: AccessedSets
) -> tuple[Ints, Ints, Ints]:
    """Ascending disjoint runs (start, end, vertex) of what is written."""
    runs = sets.ascending
    begin, end, writer = runs.starts, runs.starts + runs.lengths, sets.vertices[runs.pair]
    if (twice := np.flatnonzero(begin[1:] < end[:-1])).size:
        i = int(twice[0])
        first, second = (_describe(groups, int(writer[j])) for j in (i, i + 1))
        raise DataRace(
            f"compute set {compute_set.name!r}: element {begin[i + 1]} of {variable} is written by {first} "
            f"and by {second}"
        )
    return begin, end, writer


def _no_foreign_reader(
    compute_set: ComputeSet,
    groups: Sequence[VertexGroup],
    variable: Variable,
    sets: AccessedSets,
    written: tuple[Ints, Ints, Ints],
) -> None:
    begin, end, writer = written
    runs = sets.runs
    first = np.searchsorted(end, runs.starts, side="right")
    counts = np.searchsorted(begin, runs.starts + runs.lengths, side="left") - first
    hit = np.flatnonzero(counts > 0)
    if not hit.size:
        return
    read = np.repeat(hit, counts[hit])
    wrote = np.arange(read.size) - np.repeat(np.cumsum(counts[hit]) - counts[hit] - first[hit], counts[hit])
    reader = sets.vertices[runs.pair[read]]
    if (foreign := np.flatnonzero(reader != writer[wrote])).size:
        i = foreign[0]
        element = max(int(runs.starts[read[i]]), int(begin[wrote[i]]))
        raise DataRace(
            f"compute set {compute_set.name!r}: element {element} of {variable} is written by "
            f"{_describe(groups, int(writer[wrote[i]]))} and read by {_describe(groups, int(reader[i]))}"
        )


def _describe(groups: Sequence[VertexGroup], vertex: int) -> str:
    for group in groups:
        if vertex < group.vertices:
            index = np.unravel_index(vertex, group.tiles.shape) if group.tiles.ndim else ()
            place = ", ".join(str(int(i)) for i in index)
            return f"{group.codelet.__name__}[{place}] on tile {group.tiles.ravel()[vertex]}"
        vertex -= group.vertices
    raise IndexError(vertex)
