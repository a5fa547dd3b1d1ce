"""Roundings to whole numbers, remainders and quotients without fractions, by `floor`, `rint` and `fmod`.

They are NumPy's and Python's, bit for bit, of arrays of float32 and float64: at ties, of negative numbers, zeros of
either sign, infinities, NaN, and of a divisor that is 0. In narrower formats each operation is rounded. Roundings have
no gradient; a remainder has that of x1 - n x2 with a constant n.
"""

from __future__ import annotations

from ipu_core.ir.ops import INT32
from ipu_core.ir.trace.eager import as_array, format_of, is_number
from ipu_core.ir.trace.values import Traced, Value, apply, elementwise, shape_of, where
from lowprec.checks import integer


def floor(x: Value) -> Value:
    """The largest whole number that is not above x; its gradient is 0."""
    return elementwise("floor", x)


def ceil(x: Value) -> Value:
    """The smallest whole number that is not below x; its gradient is 0."""
    return elementwise("negative", elementwise("floor", elementwise("negative", x)))


def rint(x: Value) -> Value:
    """The nearest whole number, of two the even one; its gradient is 0."""
    return elementwise("rint", x)


def trunc(x: Value) -> Value:
    """The whole part of x: the next whole number towards 0; its gradient is 0."""
    return where(elementwise("greater", x, 0.0), floor(x), ceil(x))


def round_decimals(a: Value, decimals: int = 0) -> Value:
    """The nearest number with so many decimals, by way of a 10^decimals (a / 10^-decimals of negative ones)."""
    if not integer("decimals", decimals):
        return rint(a)
    up, down = ("multiply", "divide") if decimals > 0 else ("divide", "multiply")
    power = 10.0 ** abs(decimals)
    return elementwise(down, rint(elementwise(up, a, power)), power)


def fmod(x1: Value, x2: Value) -> Value:
    """x1 - n x2, n the whole part of x1 / x2: exact, with the sign of x1; NaN of an infinite x1 and where x2 is 0.

    Its gradient is 1 for x1 and -n for x2.
    """
    return elementwise("fmod", x1, x2)


def remainder(x1: Value, x2: Value) -> Value:
    """x1 - n x2, n the floor of x1 / x2: `fmod`, to which x2 is added where the signs differ; a 0 has the sign of x2.

    Its gradient is 1 for x1 and -n for x2.
    """
    _of_floats("%, remainder", x1, x2)
    left = fmod(x1, x2)
    # 0 is added by `apply`, which leaves it: -0 becomes +0, and the gradient is still 1.
    below = elementwise("negative", apply("add", elementwise("negative", left), 0.0))
    return where(left, on_side_of(left, x2), _where(_below_zero(x2), below, apply("add", left, 0.0)))


def on_side_of(left: Value, x2: Value) -> Value:
    """What `fmod` leaves by x2, plus x2 where the signs of the two differ (and where it is 0 and x2 below)."""
    return where(elementwise("equal", _below_zero(left), _below_zero(x2)), left, elementwise("add", left, x2))


def floor_divide(x1: Value, x2: Value) -> Value:
    """The floor of x1 / x2, as if it had not been rounded before; x1 / x2 itself where x2 is 0. Its gradient is 0."""
    _of_floats("//, floor_divide", x1, x2)
    x1, x2 = (x if is_number(x) else apply("stop_gradient", x) for x in (x1, x2))
    left, plain = fmod(x1, x2), elementwise("divide", x1, x2)
    # A whole number, but for the two roundings.
    quotient = elementwise("divide", elementwise("subtract", x1, left), x2)
    other = where(left, elementwise("equal", _below_zero(left), _below_zero(x2)), 1.0)
    quotient = where(other, quotient, elementwise("subtract", quotient, 1.0))
    low = floor(quotient)
    close = where(
        elementwise("greater", elementwise("subtract", quotient, low), 0.5), elementwise("add", low, 1.0), low
    )
    # Of a quotient that is 0, the sign is that of x1 / x2.
    signed = where(quotient, close, elementwise("multiply", plain, 0.0))
    return _where(elementwise("equal", x2, 0.0), plain, signed)


def _of_floats(name: str, *operands: Value) -> None:
    """Refuses integers by the name of what was asked for, which is made of operations of other names."""
    for position, x in enumerate(operands):
        if (x.format if isinstance(x, Traced) else format_of(as_array(x))) == INT32 and not is_number(x):
            raise TypeError(
                f"{name}: operand {position} must be floats (int32 numbers are compared, index and label), not int32"
            )


def divmod_of(x1: Value, x2: Value) -> tuple[Value, Value]:
    """`floor_divide` and `remainder`."""
    return floor_divide(x1, x2), remainder(x1, x2)


def _below_zero(x: Value) -> Value:
    return elementwise("greater", 0.0, x)


def _where(condition: Value, a: Value, b: Value) -> Value:
    """`where`, which is no choice if the condition is a number."""
    known = shape_of(condition) == () and not isinstance(condition, Traced)
    return where(condition, a, b) if not known else a if condition else b
