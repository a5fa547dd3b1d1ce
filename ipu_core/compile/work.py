"""What the equations of a Block compute, counted from their shapes: flops, bytes of tile memory, layer and line."""

from __future__ import annotations

import math

from ipu_core.compile.operands import phase_sums, sizes
from ipu_core.compile.planning import BlockPlan
from ipu_core.engine.work import Work, Works
from ipu_core.ir.block import Block, Equation, Format, dtype_of, format_name
from ipu_core.ir.bodies import equations_of
from ipu_core.ir.convolution import place_of
from ipu_core.ir.ops import DOTS, OPS, PRODUCTS, VIEWS
from ipu_core.ir.passes.guard import GUARD
from lowprec.values.windows import phase_blocks


def works_of(block: Block, plan: BlockPlan) -> Works:
    """The work of one execution of each equation, by its name; of regions that of what is in them."""
    return {each.name: _work(each, plan) for each in equations_of(block) if each.region is None}


def _work(equation: Equation, plan: BlockPlan) -> Work:
    # A parameter's module where nobody named the part of the model: what updates weights is of their layer, too.
    module = (equation.parameter or "").rpartition(".")[0] or equation.parameter
    return Work(
        GUARD if equation.family == GUARD else equation.role,
        equation.op,
        equation.layer or module or "",
        equation.source or "",
        flops(equation),
        memory_bytes(equation),
        _formats(equation, plan),
    )


def flops(equation: Equation) -> int:
    """Floating-point operations of an equation, see `Work`."""
    if equation.op in PRODUCTS:
        return 2 * products(equation)
    match OPS[equation.op].kind:
        case "elementwise":
            return equation.output.type.size
        case "reduction" | "scatter":
            return max((var.type.size for var in equation.operands), default=0)
    return 0


def memory_bytes(equation: Equation) -> int:
    """Bytes of tile memory: every operand read once and the result written once; views move nothing."""
    if equation.op in VIEWS:
        return 0
    return sum(var.type.size * dtype_of(var.type.format).itemsize for var in (equation.output, *equation.operands))


def products(equation: Equation) -> int:
    """Multiply-accumulates of a product or a convolution."""
    if equation.op in DOTS:
        size = sizes(equation)
        return size.batch * size.m * size.k * size.n
    if equation.op == "conv2d_input_gradient":
        fmt = _family(equation.operands[0].type.format)
        phases = [phase_sums(equation, phase, fmt) for phase in phase_blocks(place_of(equation))]
        return sum(math.prod(phase.result) * math.prod(phase.inner) for phase in phases)
    second = equation.operands[1].type.shape
    if equation.op == "conv2d":
        return math.prod(equation.output.type.shape) * math.prod(second[:3])
    # Of a weight's gradient each output's gradient meets the kernel's places and the channels of its group.
    return math.prod(second) * math.prod(equation.output.type.shape[:3])


def _formats(equation: Equation, plan: BlockPlan) -> tuple[str, str]:
    """The formats of operands and partial sums; of what is no sum the result's."""
    planned = plan.sums.get(equation.number)
    if planned is None or not equation.operands:
        own = format_name(equation.output.type.format)
        return own, own
    widest = max((var.type.format for var in equation.operands[:2]), key=lambda fmt: dtype_of(fmt).itemsize)
    return _family(widest), planned.accumulation.accumulate.name


def operand_format(equation: Equation) -> str:
    """The format by which products are counted: that of their first operand, all of 8 bits as one."""
    return _family(equation.operands[0].type.format)


def _family(fmt: Format) -> str:
    name = format_name(fmt)
    return "float8" if name.startswith("float8") else name
