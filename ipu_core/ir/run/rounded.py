"""Results that no tile rounds: computed in float32, then rounded once by lowprec, whatever the format and mode.

These are those in formats without a storage dtype (e5m3, fixed point), which are kept as float32 on the format's grid
(as float64 where float32 lacks values of theirs, see `wide`), and those that a precision rounds in a way of its own.
Overflow, infinities and subnormals are then what the rounding says, or the format, and not what the machine's
floating-point control does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ipu_core.ir.block import Array, Equation, EquationArithmetic, Type, Var, dtype_of, is_wide
from ipu_core.ir.ops import COLLECTIVES, LARGEST, OPS, STRUCTURE, WHOLE_NUMBERS
from ipu_core.ir.own_rounding import OwnRounding
from lowprec import FloatFormat, Key, Rounding, astype
from lowprec import float32 as FLOAT32
from lowprec import round as rounded_values
from lowprec.values.rounding import NEAREST_EVEN


def is_rounded_apart(equation: Equation) -> bool:
    """Whether the result of an equation is computed in float32 and rounded from there."""
    fmt = equation.output.type.format
    if not isinstance(fmt, FloatFormat) or equation.op in STRUCTURE | LARGEST | COLLECTIVES:
        return False
    arithmetic = equation.arithmetic
    if fmt.dtype is not None and not is_wide(fmt):
        return arithmetic.once or arithmetic.partials is not None
    # One of the operands' values, 0 or 1 is on the grid already, if these are.
    formats = [x.type.format if isinstance(x, Var) else None for x in equation.inputs]
    op = OPS[equation.op]
    exact = op.exact and op.kind != "mask" and op.name not in WHOLE_NUMBERS  # 1 need not be a number of the format
    return not (exact and all(isinstance(x, FloatFormat) and fmt.contains(x) for x in formats))


def round_once(
    wide: Array, fmt: FloatFormat, rounding: Rounding, key: Key | None, out: Array | None = None
) -> Array:  # fmt: skip
    """float32 or float64 values in a format: in its dtype, or in the one that holds it where it has none.

    Args:
        wide: float32, or float64.
        fmt, rounding: the format, and how.
        key: of stochastic modes.
        out: where they go; None: into an array of their own.
    """
    own_key, dtype = key if rounding.stochastic else None, dtype_of(fmt)
    if is_wide(fmt):
        wide = wide.astype(np.float64, copy=False)
    make = rounded_values if fmt.dtype is None else astype
    if isinstance(rounding, OwnRounding):
        result = rounding.called(wide, fmt, own_key)
    elif make is astype or wide.dtype == dtype:
        return np.asarray(make(wide, fmt, rounding, key=own_key, out=out))
    else:
        result = make(wide, fmt, rounding, key=own_key)
    result = np.asarray(result, dtype)
    if out is not None:
        np.copyto(out, result)
    return result


def in_float32(equation: Equation) -> Equation:
    """What is computed before the result is rounded: the equation with a float32 result."""
    arithmetic, output = equation.arithmetic, equation.output
    # Partial sums in float32 are not rounded.
    narrow = arithmetic.accumulate is not None and not arithmetic.accumulate.contains(FLOAT32)
    rounding = (arithmetic.partials or arithmetic.rounding) if narrow else NEAREST_EVEN
    plain = EquationArithmetic(rounding, arithmetic.accumulate, arithmetic.promote, arithmetic.order)
    wide = Var(output.name, Type(output.type.shape, FLOAT32))
    return replace(equation, outputs=(wide,), arithmetic=plain)


def rounded(equation: Equation, wide: Array, key: Key | None, out: Array | None = None) -> Array:
    """The float32 result of `in_float32`, or a float64 one, as the equation's own.

    Args:
        equation: whose result it is.
        wide: float32, or float64.
        key: of the equation in this step.
        out: where it goes, which may be `wide` where both are float32; None: into an array of its own.
    """
    fmt = equation.output.type.format
    assert isinstance(fmt, FloatFormat)
    try:
        return round_once(wide, fmt, equation.arithmetic.rounding, key, out)
    except ValueError as error:  # a NaN into a format without NaN, or what a rounding of one's own gave
        raise ValueError(f"{equation.name}: {error}") from error


def then_rounded(
    equation: Equation, out: Array, bind: Callable[[Equation, Array], Callable[[Key | None], object]]
) -> Callable[[Key | None], None]:
    """A call that computes an equation's float32 result and rounds it into an array.

    Args:
        equation: for which `is_rounded_apart`.
        out: in the equation's own storage.
        bind: makes the call of an equation for an array.
    """
    wide = out if out.dtype == np.float32 else np.empty(out.shape, np.float32)
    call = bind(in_float32(equation), wide)

    def both(key: Key | None) -> None:
        call(key)
        rounded(equation, wide, key, out)

    return both
