"""The race check: in one compute set no element is written twice, and none that is written is read by somebody else.

Within a vertex, what it writes is no Input of it. Of copies that pass at once none reads or writes what another writes.
"""

import math
from collections.abc import Sequence

import numpy as np

from ipu_core.chip.integers import Ints
from ipu_core.engine.accesses import AccessedSets, Accesses
from ipu_core.errors import DataRace
from ipu_core.graph.phases import Phase
from ipu_core.graph.program import Copy
from ipu_core.graph.regions import axis_runs, canonical
from ipu_core.graph.tensor import Variable
from ipu_core.graph.vertices import ComputeSet, Operand, VertexGroup


def check_races(compute_set: ComputeSet, groups: Sequence[VertexGroup], accesses: Accesses) -> None:
    """Checks one compute set, given as groups and what they access.

    Raises:
        DataRace: naming the compute set, the variable, the element and both vertices, or the vertex and its fields.
    """
    for group in groups:
        for name, operand in group.operands.items():
            if operand.field.writes:
                _no_element_twice(compute_set, group, name, operand)
        # A trusted codelet is taken at its word, and some of this package's update an operand in place.
        if not group.codelet.trusted:
            _no_input_written(compute_set, group)
    for variable, written in accesses.writes.items():
        begin, end, writer = _written_once(compute_set, groups, variable, written)
        if variable in accesses.reads:
            _no_foreign_reader(compute_set, groups, variable, accesses.reads[variable], (begin, end, writer))


def check_phase(copies: Sequence[Copy]) -> None:
    """Checks the copies of one phase, of which the engine runs one after another.

    Raises:
        DataRace: naming both copies' tensors and the variable.
    """
    phase = Phase()
    for copy in copies:
        if (other := phase.clash(copy)) is not None:
            raise DataRace(f"Copies: {copy.source} -> {copy.destination} meets {other}, which another of them moves")
        phase.add(copy)


def _no_element_twice(compute_set: ComputeSet, group: VertexGroup, name: str, operand: Operand) -> None:
    """Refuses a field of a vertex that writes an element twice."""
    own = operand.shape[operand.vertex_axes :]
    # Of an affine field the runs tell: as many different elements as it has places. Listing them all takes 8 bytes for
    # each.
    if operand.tensor is not None:
        _, lengths = axis_runs(canonical(own, operand.tensor.strides[operand.vertex_axes :])[1])
        if int(lengths.sum()) == math.prod(own):
            return
    line = np.sort(_elements(group, operand).ravel())
    if (twice := np.flatnonzero(line[1:] == line[:-1])).size:
        vertex, element = divmod(int(line[twice[0]]), operand.variable.size)
        raise DataRace(
            f"compute set {compute_set.name!r}: element {element} of {operand.variable} is written twice by "
            f"{_describe([group], vertex)}: field {name!r} has it twice"
        )


def _no_input_written(compute_set: ComputeSet, group: VertexGroup) -> None:
    """Refuses an Input of a vertex with elements that the vertex writes."""
    for name, written in group.operands.items():
        for other, read in group.operands.items():
            if written.field.writes and not read.field.writes and written.variable is read.variable:
                both = np.intersect1d(_elements(group, written), _elements(group, read))
                if both.size:
                    vertex, element = divmod(int(both[0]), written.variable.size)
                    raise DataRace(
                        f"compute set {compute_set.name!r}: element {element} of {written.variable} is written by "
                        f"{_describe([group], vertex)} through {name!r} and is its Input {other!r}: what a vertex "
                        "reads and writes is an InOut"
                    )


def _elements(group: VertexGroup, operand: Operand) -> Ints:
    """The elements of every vertex of a group (vertices, ...), all numbers different from one vertex to the next."""
    found = operand.indices if operand.tensor is None else operand.tensor.indices()
    assert found is not None
    first = np.arange(group.vertices, dtype=np.int64)[:, None] * operand.variable.size
    return found.reshape(group.vertices, -1) + first


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
