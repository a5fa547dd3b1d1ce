"""What the lowering of a Block has made so far: tensors of values, programs, and helpers all families use."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ipu_core.chip.system import System
from ipu_core.chip.target import Target
from ipu_core.compile.labelled import NONE, Labelled
from ipu_core.compile.planning import BlockPlan
from ipu_core.graph.graph import Graph
from ipu_core.graph.program import Program
from ipu_core.graph.tensor import Tensor
from ipu_core.ir.block import Atom, Equation, Literal, Var
from ipu_core.ir.liveness.views import StridedView
from ipu_core.library.elementwise import add_array
from ipu_core.library.places import PlaceTable
from ipu_core.library.sides import copied
from ipu_core.placement.matmul import SumPlan


@dataclass
class Lowering:
    """What the lowering of one Block has made so far.

    Attributes:
        graph: the tiled graph.
        plan: of the Block's products and sums.
        views: in whose memory every value lies.
        places: values that an equation computes straight into a tensor that exists already (a state's).
        fused: groups of equation numbers; the equations of a group share compute sets.
        magnitudes: values that are not made: the maxima that read them take what they are magnitudes of.
        labelled: values that are not made either: labels are compared where those would be read.
        overwritten: by value, one in whose memory it is made, see `overwritten`.
        tensors: where every value lies.
        programs: in order.
        entries: of the streamed state, see `Lowered`.
        tables: of arrays whose rows places of a loop find or leave, where they lie for that.
        counters: the numbers of these places.
        system: whose links replicas meet over; None: one of chips like this.
    """

    graph: Graph
    plan: BlockPlan
    views: Mapping[Var, StridedView]
    places: Mapping[Var, Tensor]
    fused: Sequence[Sequence[int]] = ()
    magnitudes: frozenset[Var] = frozenset()
    labelled: Labelled = NONE
    overwritten: Mapping[Var, Var] = field(default_factory=dict)
    tensors: dict[Var, Tensor] = field(default_factory=dict)
    programs: list[Program] = field(default_factory=list)
    entries: tuple[Tensor, Tensor] | None = None
    tables: dict[Var, PlaceTable] = field(default_factory=dict)
    counters: set[Var] = field(default_factory=set)
    system: System | None = None

    @property
    def target(self) -> Target:
        """The chip."""
        return self.graph.target

    def operand(self, atom: Atom) -> Tensor | float:
        """The tensor of a value, or a literal's number."""
        return atom.value if isinstance(atom, Literal) else self.tensors[atom]

    def sum_plan(self, equation: Equation) -> SumPlan:
        """The plan of a product of matrices or a sum."""
        found = self.plan.sums[equation.number]
        assert isinstance(found, SumPlan), equation
        return found

    def result(self, equation: Equation) -> Tensor:
        """Where an equation's result goes: a new temporary, unless its place is given."""
        var = equation.output
        if var in self.places:
            self.tensors[var] = self.places[var]
        elif (old := self.overwritten.get(var)) is not None and _lies_whole(self.tensors.get(old)):
            self.tensors[var] = self.tensors[old]
        else:
            self.tensors[var] = self.add(var, equation.name)
        return self.tensors[var]

    def add(self, var: Var, name: str) -> Tensor:
        """A new temporary for a value, where the plan has it begin."""
        return add_array(self.graph, var.type.format, var.type.shape, name, first=self.plan.starts.get(var, 0))

    def copy(self, source: Tensor, name: str) -> Tensor:
        """A new temporary in the layout of its shape, filled from a tensor."""
        return copied(self.graph, self.programs, source, name)


def _lies_whole(tensor: Tensor | None) -> bool:
    """Whether a tensor is a temporary variable in the layout of its own shape."""
    return tensor is not None and tensor.variable.temporary and tensor.variable.shape == tensor.shape
