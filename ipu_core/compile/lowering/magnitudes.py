"""Magnitudes that are only compared: the vertices that find the largest take them, and no array of them is made.

An IPU has one instruction for the larger of two magnitudes (`f16v4absmax`, `f32v2absmax` in its compiler's intrinsics).
"""

from __future__ import annotations

from ipu_core.ir.block import Block, Equation, Var, per_block
from ipu_core.ir.bodies import equations_of, inputs_of, outputs_of
from ipu_core.ir.liveness.lifetimes import Lifetimes, lifetimes


@per_block
def compared_magnitudes(block: Block) -> frozenset[Var]:
    """The results of `absolute` that nothing reads but maxima, of what lies where they would, and as long."""
    known, equations = lifetimes(block), equations_of(block)
    far = known.roots(*(var for i in block.streamed for var in (block.inputs[i], outputs_of(block)[i])))
    # What an input holds may be written over before all maxima are found.
    fleeting = {*far, *known.roots(*block.offloaded), *inputs_of(block)}
    found = (e for e in equations if e.op == "absolute" and _is_compared(e, known, equations))
    return frozenset(e.output for e in found if known.views[e.operands[0]].root not in fleeting)


def _is_compared(equation: Equation, known: Lifetimes, equations: tuple[Equation, ...] | list[Equation]) -> bool:
    (operand,), result = equation.operands, equation.output
    readers = known.readers[result]
    # Where it is needed beyond its last reader it is an output, or a loop reads it again.
    if not readers or known.last[result] != readers[-1] or any(equations[at].op != "reduce_max" for at in readers):
        return False
    view = known.views[operand]
    return view.whole and view.root in known.made and operand.type == result.type
