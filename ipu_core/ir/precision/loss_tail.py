"""What a loss is made of: the equations from the last product to it, typed by what they are, a loss, in float32."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ipu_core.ir.block import Block, Equation, Var
from ipu_core.ir.ops import ELEMENTWISE, OPS, STRUCTURE

LOSS = "loss"
"""The family, which every precision computes in float32."""


def as_loss(block: Block, loss: Var) -> Block:
    """The Block with what its loss is made of in family "loss".

    These are the single numbers that it is computed from, and the arrays that these are sums of: elementwise operations
    and sums that nothing else reads, back to a product, a conversion, or what has a family other than its operation's.
    Norms count too, such as `np.linalg.norm` of an error: they are float32 anyway. In a format of activations a mean of
    squares would be rounded to it, or saturate.
    """
    uses: dict[Var, list[Equation]] = {}
    for equation in block.equations:
        for var in equation.operands:
            uses.setdefault(var, []).append(equation)
    tail, kept = set[int](), set(block.outputs)  # numbers of equations, moves among them
    for equation in reversed(block.equations):
        if equation.region is not None:
            continue
        readers = uses.get(equation.output, [])
        inside = [reader for reader in readers if reader.number in tail]
        number = equation.output.type.size == 1 and any(one.output.type.size == 1 for one in inside)
        # What anything else reads is an activation as well, and has its format.
        alone = len(inside) == len(readers) > 0 and equation.output not in kept and _is_array_of_a_loss(equation)
        if equation.role == "forward" and (equation.output is loss or number or alone):
            tail.add(equation.number)
    return replace(block, equations=tuple(_marked(block.equations, tail)))


def _is_array_of_a_loss(equation: Equation) -> bool:
    op = OPS[equation.op]
    plain = equation.op in ELEMENTWISE - {"convert"} or op.kind == "reduction"
    return equation.op in STRUCTURE or (plain and equation.family in (op.family, "norm"))


def _marked(equations: Sequence[Equation], tail: set[int]) -> list[Equation]:
    return [replace(e, family=LOSS) if e.number in tail and e.op not in STRUCTURE else e for e in equations]
