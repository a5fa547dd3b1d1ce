"""What an equation's own programs make bit by bit, in a loop: nothing of it is there from the iteration before."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from collections.abc import Sequence as Listed

from ipu_core.graph.program import Copies, Copy, Execute, Program, Sequence, WriteUndef
from ipu_core.graph.tensor import Variable, whole


def undefined(born: Listed[Variable], programs: Listed[Program]) -> list[Program]:
    """Says of variables that several of an equation's programs write that they hold nothing before.

    In a loop a variable that no single step writes whole would else live all the time: what an iteration leaves there
    might be what the next one reads.

    Args:
        born: the variables that the equation's lowering added.
        programs: those of the equation.
    """
    own = {variable for variable in born if variable.temporary}
    times = Counter(variable for program in programs for variable in _written(program) if variable in own)
    return [WriteUndef(whole(variable)) for variable, count in times.items() if count > 1]


def _written(program: Program) -> Iterator[Variable]:
    """The variables that a program writes, once for each of its steps."""
    match program:
        case Sequence(steps) | Copies(steps):
            for step in steps:
                yield from _written(step)
        case Copy(_, destination):
            yield destination.variable
        case Execute(compute_set):
            operands = (operand for group in compute_set.groups for operand in group.operands.values())
            yield from {operand.variable for operand in operands if operand.field.writes}
