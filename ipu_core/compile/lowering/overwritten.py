"""Results written over an operand that nothing needs any more: element by element, an array does not take room twice.

PopART does so by its pattern `InPlace`, with the `...InPlace` functions of popops.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ipu_core.compile.schedule.starts import Starts
from ipu_core.ir.block import Block, Var
from ipu_core.ir.bodies import equations_of, regions_of
from ipu_core.ir.liveness.lifetimes import in_place, lifetimes
from ipu_core.ir.ops import ELEMENTWISE
from ipu_core.ir.regions import Loop


def overwritten(
    block: Block, starts: Starts, together: Sequence[Sequence[int]], kept: Mapping[Var, int]
) -> dict[Var, Var]:
    """By result, the operand in whose memory it may be made: of its type, on its tiles, read here for the last time.

    Args:
        block: in the order in which it runs.
        starts: where arrays begin.
        together: numbers of equations that run at once: none of them may read what another one writes over.
        kept: by value whose last reader is not the Block's, that reader's position.
    """
    known, equations, found = lifetimes(block), equations_of(block), dict[Var, Var]()
    views, state = known.views, in_place(block)
    # Where state, or what is in streaming memory, lies its own rules say.
    fixed = {*state, *known.roots(*block.offloaded)}
    loops = [(step.first, step.last) for _, step in regions_of(block, Loop)]
    group = {number: set(numbers) for numbers in together for number in numbers}
    for position in known.computing:
        equation = equations[position]
        made = equation.output
        if equation.op not in ELEMENTWISE or made in state or made.type.size == 1:  # a word, which has its own name
            continue
        beside = group.get(equation.number, set())
        for var in equation.operands:
            root = views[var].root
            if root in fixed or root not in known.made or root.type != made.type or known.last.get(root) != position:
                continue
            # What a loop only reads it reads again in the next round.
            again = any(first <= position < last and known.made[root] < first for first, last in loops)
            if again or kept.get(root, position) > position:
                continue
            seen = all(views[one].whole for one in equation.operands if views[one].root is root)
            shared = any(at != position and equations[at].number in beside for at in known.readers[root])
            if seen and not shared and starts.get(root, 0) == starts.get(made, 0):
                found[made] = root
                break
    return found
