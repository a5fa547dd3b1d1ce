"""What the vertices of compute sets access and what is moved for it, made once for all that access alike variables."""

from collections.abc import Hashable, Sequence

from ipu_core.chip.target import Target
from ipu_core.chip.traffic import Traffic
from ipu_core.engine.accesses import Access, AccessedSets, Accesses, accesses_of, joined_sets
from ipu_core.engine.exchange import gather_traffic, scatter_traffic
from ipu_core.engine.likeness import how_it_lies, place_of
from ipu_core.graph.tensor import Variable
from ipu_core.graph.vertices import VertexGroup


class Moves:
    """The accesses of an engine's compute sets.

    Of a training step two thirds are repetitions: compute sets differ by what they compute, and by how their operands
    are combined, more than by where each operand lies.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        self._sets: dict[Hashable, AccessedSets] = {}
        self._gathered: dict[AccessedSets, Traffic] = {}
        self._scattered: dict[AccessedSets, Traffic] = {}

    def accesses(self, groups: Sequence[VertexGroup]) -> Accesses:
        """Everything that groups access. Sets of elements are the same object only where variables lie alike."""
        return accesses_of(groups, self._joined)

    def gathered(self, variable: Variable, sets: AccessedSets) -> Traffic:
        """What fetching these operands from a variable moves."""
        if sets not in self._gathered:
            self._gathered[sets] = gather_traffic(variable, sets, self._target)
        return self._gathered[sets]

    def scattered(self, variable: Variable, sets: AccessedSets) -> Traffic:
        """What sending these results to a variable moves."""
        if sets not in self._scattered:
            self._scattered[sets] = scatter_traffic(variable, sets, self._target)
        return self._scattered[sets]

    def _joined(self, accesses: Sequence[Access]) -> AccessedSets:
        parts = [(each.group.where, each.first, each.operand.vertex_axes, place_of(each.operand)) for each in accesses]
        key = how_it_lies(accesses[0].operand.variable), tuple(parts)
        if key not in self._sets:
            self._sets[key] = joined_sets(accesses)
        return self._sets[key]
