"""float32_op element by element: one float32 operation or function, then one exact rounding."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from fractions import Fraction
from types import MappingProxyType
from typing import Any

import numpy as np

from lowprec.backends.reference.functions import FUNCTIONS
from lowprec.backends.reference.random import rounding_bits
from lowprec.backends.reference.rounding import round_number
from lowprec.types import Array
from lowprec.values.elementwise_op import ElementwiseOp
from lowprec.values.keys import KeyLike, key_value
from lowprec.values.outputs import into


def float32(x: float) -> float:
    """The double x rounded once to float32 (a C cast: nearest-even, infinity beyond the range)."""
    # Not struct.pack, which raises where the float32 overflows.
    return ctypes.c_float(x).value


def divide(a: float, b: float) -> float:
    """IEEE division of doubles."""
    if b != 0.0 or math.isnan(a):
        # Python raises for a division by zero, where IEEE gives an infinity or NaN.
        return a / b if b != 0.0 else math.nan
    return math.nan if a == 0.0 else math.copysign(math.inf, a) * math.copysign(1.0, b)


def square_root(x: float) -> float:
    return math.nan if x < 0.0 else math.sqrt(x)


def larger(a: float, b: float) -> float:
    """The maximum: NaN wins, and of equal operands (+0 and -0 too) the first."""
    return a if math.isnan(a) or not (b > a or math.isnan(b)) else b


def smaller(a: float, b: float) -> float:
    """The minimum: NaN wins, and of equal operands (+0 and -0 too) the first."""
    return a if math.isnan(a) or not (b < a or math.isnan(b)) else b


def whole(x: float, choose: Callable[[float], int]) -> float:
    """The whole number that is chosen for x, with its sign; infinities and NaN are left as they are."""
    return math.copysign(choose(x), x) if math.isfinite(x) else x


def remainder(a: float, b: float) -> float:
    """a - n b, n the whole part of a / b, with the sign of a; NaN where a is infinite or b is 0."""
    if math.isnan(a) or math.isnan(b) or math.isinf(a) or b == 0.0:
        return math.nan
    return a if math.isinf(b) else math.copysign(float(abs(Fraction(a)) % abs(Fraction(b))), a)


# A double has more than twice the bits of a float32, so that rounding the double result of one +, -, *, / or sqrt of
# float32 operands to float32 is the float32 operation.
_OPERATIONS: MappingProxyType[str, Callable[..., float]] = MappingProxyType(
    {
        "identity": lambda a: a,
        "negative": lambda a: -a,
        "absolute": abs,
        # So written NaN stays NaN, and -0 becomes +0.
        "relu": lambda a: 0.0 if a <= 0.0 else a,
        "step": lambda a: 1.0 if a > 0.0 else 0.0,
        "square": lambda a: a * a,
        "reciprocal": lambda a: divide(1.0, a),
        "sqrt": square_root,
        "add": lambda a, b: a + b,
        "subtract": lambda a, b: a - b,
        "multiply": lambda a, b: a * b,
        "divide": divide,
        "maximum": larger,
        "minimum": smaller,
        "greater": lambda a, b: 1.0 if a > b else 0.0,
        "equal": lambda a, b: 1.0 if a == b else 0.0,
        "select": lambda c, a, b: a if c != 0.0 else b,
        # Two roundings, as the machine's multiplier and adder make them; `lowprec.scaled_add` makes one.
        "scaled_add": lambda a, b, s: a + float32(s * b),
        "floor": lambda a: whole(a, math.floor),
        "rint": lambda a: whole(a, round),
        "fmod": remainder,
        **FUNCTIONS,
    }
)


def evaluate(operation: str, operands: tuple[float, ...]) -> float:
    """The float32 result of an operation on float32 operands."""
    return float32(_OPERATIONS[operation](*operands))


def elementwise(op: ElementwiseOp) -> Callable[..., Array]:
    """The call f(operands, key, offset, out, threads) of a prepared operation."""

    def call(operands: tuple[Any, ...], key: KeyLike | None, offset: int, out: Array | None, threads: int) -> Array:
        del threads
        with np.errstate(invalid="ignore", over="ignore"):  # signalling NaN, numbers beyond float32
            # Through float32: Python numbers are rounded to it; all else is a float32 already.
            values = [np.asarray(x).astype(np.float32).astype(np.float64) for x in operands]
        arrays = np.broadcast_arrays(*values)
        result = np.empty(arrays[0].shape, op.conversion.out_dtype)
        _fill(op, [array.ravel() for array in arrays], key, offset, result.reshape(-1))
        return stored(result, out)

    return call


def stored(result: Array, out: Array | None) -> Array:
    """The result, in `out` where that is given."""
    return result if out is None else into(out, result)


def _fill(
    op: ElementwiseOp,
    operands: list[Array],
    key: KeyLike | None,
    offset: int,
    to: Array,
) -> None:
    rule = op.conversion.rule
    random = rule.mode == "stochastic"
    if random and key is None:
        raise ValueError("stochastic rounding needs key=, a lowprec.Key or an integer")
    bits = rule.random_bits
    codes = to.view(rule.fmt.code_dtype)
    for i in range(to.size):
        value = evaluate(op.operation, tuple(float(operand[i]) for operand in operands))
        draw = Fraction(0)
        if random and key is not None:
            draw = Fraction(rounding_bits(bits, key_value(key), offset + i), 1 << bits)
        code = round_number(value, rule, draw)
        if code is None:
            raise ValueError("a NaN was met and the format has none")
        codes[i] = code
