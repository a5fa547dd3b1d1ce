"""What replicas of a program make together: the Collective of an equation, and the phases between which they meet."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from ipu_core.chip import tile_replicas
from ipu_core.chip.control import FloatingPointControl
from ipu_core.ir.block import Array, Block, Equation, Var, is_wide, per_block
from ipu_core.ir.bodies import flat, reads_of
from ipu_core.ir.ops import COLLECTIVES
from ipu_core.ir.own_rounding import OwnRounding
from ipu_core.ir.verify import InvalidBlock
from lowprec import Collective, FloatFormat, Key

REPLICA = 1 << 63
"""Added to a replica's number before it is folded into a step's key: iterations of loops never have such numbers."""


def replica_key(key: Key, number: int) -> Key:
    """The key of a replica in a step: the first one's is the step's own, which all have after they have met."""
    return key.fold_in(REPLICA + number) if number else key


def collective_of(equation: Equation) -> Collective:
    """The Collective of an all-reduce: as it is given, or a ring from chip 0 in the equation's format and rounding.

    Raises:
        ValueError: the equation rounds by a function of the user's, which no wire has.
    """
    given, fmt, rounding = equation.params["collective"], equation.output.type.format, equation.arithmetic.rounding
    assert isinstance(fmt, FloatFormat)
    if equation.family == "loss" and is_wide(fmt):  # the mean of losses, in float32 where they are no wider
        return Collective(wire=fmt)
    if isinstance(given, Collective):
        return given
    if isinstance(rounding, OwnRounding):
        raise ValueError(f"{equation.name}: chips do not round by a function of one's own: collective= says how")
    return Collective(wire=fmt, rounding=rounding)


def meeting(equation: Equation, control: FloatingPointControl) -> Callable[[Array, Key | None, Array], None]:
    """The prepared sum of an all-reduce: f(every, key, out), every (replicas, ...)."""
    return tile_replicas.all_reduce(collective_of(equation), equation.output.type.format, control)


@per_block
def around_meetings(block: Block) -> Block:
    """The Block with all that replicas make before they meet first, then what they make together, then the rest.

    Raises:
        InvalidBlock: they meet in a loop or branch, or twice, or go on with what each has of its own.
    """
    meet = [equation for equation in block.equations if equation.op in COLLECTIVES]
    inside = {e.number for each in block.equations if each.region is not None
              for e in flat(each.region.body.equations) if e.op in COLLECTIVES}  # fmt: skip
    if inside:
        raise InvalidBlock(f"replicas meet in a region, in the equations {sorted(inside)}: they do so outside alone")
    made = {var: equation for equation in block.equations for var in equation.outputs}
    before = set[Equation]()
    waiting = [var for equation in meet for var in equation.operands]
    while waiting:
        equation = made.get(waiting.pop())
        if equation is not None and equation not in before:
            before.add(equation)
            waiting += reads_of(equation)
    if twice := [equation.name for equation in meet if equation in before]:
        raise InvalidBlock(f"replicas meet a second time after {twice[0]}: they meet once in a step")
    first = [equation for equation in block.equations if equation in before]
    rest = [equation for equation in block.equations if equation not in before and equation.op not in COLLECTIVES]
    _check_alike(block, first, rest)
    return replace(block, equations=(*first, *meet, *rest))


def _check_alike(block: Block, first: Sequence[Equation], rest: Iterable[Equation]) -> None:
    """Refuses what goes on with values that replicas have of their own."""
    own = {*block.inputs[block.carried :], *block.constants} & set(batch_inputs(block))
    for equation in first:
        every = [equation] if equation.region is None else [*flat(equation.region.body.equations)]
        draws = any(each.draws is not None for each in every)
        if draws or any(var in own for var in reads_of(equation)):
            own.update(equation.outputs)
    outputs = [var for var in block.outputs if var in own]
    for equation in rest:
        every = [equation] if equation.region is None else [*flat(equation.region.body.equations)]
        own_reads = [var for each in every for var in each.operands if var in own]
        if own_reads:
            raise InvalidBlock(f"{equation.name} goes on with {own_reads[0]}, which every replica has of its own")
    if outputs:
        raise InvalidBlock(f"the output {outputs[0]} is every replica's own: all_reduce or first_replica make it one")


def batch_inputs(block: Block) -> tuple[Var, ...]:
    """The inputs that replicas have of their own: all but the state and the numbers without axes."""
    return tuple(var for var in block.inputs[block.carried :] if var.type.shape)
