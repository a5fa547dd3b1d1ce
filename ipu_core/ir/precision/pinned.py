"""Formats a function asked for: `nn.convert(x, "float32")` and what is computed from it, whatever the precision."""

from __future__ import annotations

from collections.abc import Callable

from ipu_core.ir.block import Block, Equation, Var
from ipu_core.ir.bodies import equations_of
from ipu_core.ir.ops import COMPARISONS, ELEMENTWISE, OPS, PLANNED, STRUCTURE
from lowprec import FloatFormat

TRUTHS = COMPARISONS | {"step"}


def pinned_formats(block: Block, default: Callable[[Equation], FloatFormat | None]) -> dict[Var, FloatFormat]:
    """The values that a forward conversion asked to be in a format, and those that follow, by value.

    A value that is computed from one in a wider format than its own is in that format: of an elementwise operation from
    any operand's, of a product or sum from all. Comparisons give truth values in their own format, and gradients have
    that of the precision.

    Args:
        block: as it was traced.
        default: the format that a precision has for the result of an equation; None: it is not to be asked.
    """
    found: dict[Var, FloatFormat] = {}
    for equation in equations_of(block):
        asked = _asked(equation, found)
        own = default(equation)
        if asked is not None and (equation.op in STRUCTURE | {"convert"} or _wider(asked, own)):
            found[equation.output] = asked
    return found


def _asked(equation: Equation, found: dict[Var, FloatFormat]) -> FloatFormat | None:
    """What is asked of a result, by itself or by its operands."""
    fmt = equation.output.type.format
    if equation.role != "forward" or isinstance(fmt, str) or equation.op in TRUTHS:
        return None
    if equation.op == "convert":
        return fmt if equation.family == OPS["convert"].family else None
    # Of a look-up the table counts, not the indices.
    operands = equation.operands[:1] if equation.op in ("gather", "take_along") else equation.operands
    # The condition chooses, and is no part of the result.
    if equation.op == "select":
        operands = tuple(x for x in equation.inputs[1:] if isinstance(x, Var))
    each = [found.get(var) for var in operands]
    asked = [one for one in each if one is not None]
    enough = any if equation.op in ELEMENTWISE else all if equation.op in PLANNED | STRUCTURE else None
    if not asked or enough is None or not enough(one is not None for one in each):
        return None
    widest = asked[0]
    for one in asked:
        widest = one if one.contains(widest) else widest
    return widest


def _wider(asked: FloatFormat, own: FloatFormat | None) -> bool:
    return own is not None and asked != own and asked.contains(own)
