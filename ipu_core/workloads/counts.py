"""What a Block multiplies and moves in its tiles' memories, counted from its equations."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from ipu_core.compile.operands import phase_sums, sizes
from ipu_core.ir.block import Block, Equation, dtype_of, format_name
from ipu_core.ir.bodies import equations_of
from ipu_core.ir.convolution import place_of
from ipu_core.ir.ops import CONVOLUTIONS, DOTS, VIEWS
from ipu_core.ir.regions import Loop
from lowprec.values.windows import phase_blocks


def counted(block: Block) -> Mapping[str, int]:
    """Multiply-accumulates by the format of their operands, and bytes of tile memory.

    Every operand of an equation is read once and every result written once [model]: what the matrix unit reads again,
    and what a product gathers, is not in it. Loops count as often as they run.
    """
    total = Counter[str]()
    times = _times(block)
    for equation in equations_of(block):
        often = times.get(equation.number, 1)
        if equation.op in DOTS or equation.op in CONVOLUTIONS:
            total[_format(equation)] += often * products(equation)
        if equation.op not in VIEWS:
            total["tile memory"] += often * sum(
                var.type.size * dtype_of(var.type.format).itemsize for var in (equation.output, *equation.operands)
            )
    return total


def products(equation: Equation) -> int:
    """Multiply-accumulates of a product or a convolution."""
    if equation.op in DOTS:
        size = sizes(equation)
        return size.batch * size.m * size.k * size.n
    if equation.op == "conv2d_input_gradient":
        fmt = _format(equation)
        phases = [phase_sums(equation, phase, fmt) for phase in phase_blocks(place_of(equation))]
        return sum(math.prod(phase.result) * math.prod(phase.inner) for phase in phases)
    second = equation.operands[1].type.shape
    if equation.op == "conv2d":
        return math.prod(equation.output.type.shape) * math.prod(second[:3])
    # Of a weight's gradient each output's gradient meets the kernel's places and the channels of its group.
    return math.prod(second) * math.prod(equation.output.type.shape[:3])


def _format(equation: Equation) -> str:
    name = format_name(equation.operands[0].type.format)
    return "float8" if name.startswith("float8") else name


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
