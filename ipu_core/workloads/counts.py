"""What a Block multiplies and moves in its tiles' memories, counted from its equations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from ipu_core.compile.work import memory_bytes, operand_format, products
from ipu_core.ir.block import Block, Equation
from ipu_core.ir.bodies import equations_of
from ipu_core.ir.ops import PRODUCTS
from ipu_core.ir.regions import Loop


def counted(block: Block) -> Mapping[str, int]:
    """Multiply-accumulates by the format of their operands, and bytes of tile memory.

    Every operand of an equation is read once and every result written once [model]: what the matrix unit reads again,
    and what a product gathers, is not in it. Loops count as often as they run.
    """
    total = Counter[str]()
    times = _times(block)
    for equation in equations_of(block):
        often = times.get(equation.number, 1)
        if equation.op in PRODUCTS:
            total[operand_format(equation)] += often * products(equation)
        total["tile memory"] += often * memory_bytes(equation)
    return total


def _times(block: Block) -> dict[int, int]:
    """How often each equation runs that is in a loop."""
    times = dict[int, int]()

    def within(equations: Sequence[Equation], often: int) -> None:
        for equation in equations:
            if equation.region is None:
                times[equation.number] = often
            else:
                count = equation.region.count if isinstance(equation.region, Loop) else 1
                within(equation.region.body.equations, often * count)

    within(block.equations, 1)
    return times
