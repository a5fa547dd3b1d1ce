"""Primitives on elements: arithmetic, comparisons, functions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ipu_core.frontends.jax.operations.call import EquationCall
from ipu_core.frontends.torch.operations.call import combined, numbers
from ipu_core.frontends.torch.operations.elementwise import LN2, at_least, greater, magnitude, negated
from ipu_core.ir.trace.array_formulas import cosh, tan
from ipu_core.ir.trace.array_functions import arcsinh, arctanh, expm1, log1p, sign, sinh
from ipu_core.ir.trace.values import Value, apply, power, shape_of
from ipu_core.ir.trace.whole_numbers import ceil, rint, trunc
from ipu_core.nn import stop_gradient


def unary(op: str) -> Callable[..., Value]:
    """A function of one value that has the same meaning here."""
    return lambda call, x: combined(op, x)


def binary(op: str) -> Callable[..., Value]:
    """A function of two values that has the same meaning here."""
    return lambda call, a, b: combined(op, a, b)


def extreme(op: str, nothing: float) -> Callable[..., Value]:
    """A maximum or minimum; beside its neutral element (-inf or inf) the other operand itself."""

    def chosen(call: EquationCall, a: Value, b: Value) -> Value:
        if isinstance(a, float) and a == nothing:
            return b
        return a if isinstance(b, float) and b == nothing else combined(op, a, b)

    return chosen


def logical(op: str) -> Callable[..., Value]:
    """A logical operation on truth values (0 and 1); refused for bits of integers."""

    def made(call: EquationCall, *values: Value) -> Value:
        if call.kind() != "bool":
            raise NotImplementedError("bits of integers")
        return negated(values[0]) if op == "not" else combined(op, *values)

    return made


def raised(call: EquationCall, x: Value, exponent: Value) -> Value:
    """A power: small whole numbers by products, halves by a root too, others by the logarithm (NaN below 0)."""
    if not isinstance(exponent, int | float):
        return apply("exp", combined("multiply", exponent, apply("log", x)))
    whole, half = divmod(exponent, 1)
    if exponent == 0:
        return np.ones(shape_of(x), np.float32)  # of an infinity and NaN too
    # `power` takes exponents up to 16
    if abs(exponent) <= 16 and (half == 0 or abs(exponent) == 0.5):
        return power(x, exponent)
    if half == 0.5 and 1 <= whole <= 16:
        return combined("multiply", power(x, whole), apply("sqrt", x))
    if exponent < 1:
        return apply("exp", combined("multiply", apply("log", x), exponent))
    zero = combined("equal", x, 0.0)  # where the logarithm has no gradient and the power has 0
    logarithm = apply("log", combined("select", zero, 1.0, x))
    return combined("select", zero, 0.0, apply("exp", combined("multiply", logarithm, exponent)))


def clamped(call: EquationCall, low: Value, x: Value, high: Value) -> Value:
    """x limited to [low, high]; the gradient passes at the bounds themselves."""
    x = combined("select", greater(low, x), low, x)
    return combined("select", greater(x, high), high, x)


def converted(call: EquationCall, x: Value) -> Value:
    """Floats stay as they are: the precision says in which format. Integers become floats."""
    before, after = call.kind(0), call.kind()
    if after == "float":
        return numbers(x)
    # truth values are 0 and 1 in float32 already
    if before == after or before == "bool":
        return x
    if after == "bool":
        return negated(combined("equal", x, 0.0))
    raise NotImplementedError("numbers that are computed cannot become integers")


def selected(call: EquationCall, which: Value, *cases: Value) -> Value:
    """The second case where the condition is true."""
    if call.kind(0) != "bool":
        raise NotImplementedError("a choice by a number")
    return combined("select", which, cases[1], cases[0])


def rounded(call: EquationCall, x: Value) -> Value:
    """The nearest whole number; of two the even one, or the one away from 0, as the method says."""
    if int(call.params["rounding_method"]):
        return rint(x)
    up = combined("subtract", x, trunc(x))  # exact, unlike x + 0.5
    return combined("select", at_least(magnitude(up), 0.5), combined("add", trunc(x), sign(x)), trunc(x))


def passed(call: EquationCall, x: Value) -> Value:
    """x as a constant for differentiation; integers are one anyway."""
    return x if call.kind() != "float" else stop_gradient(x)


TABLE: dict[str, Callable[..., Any]] = {
    **{name: unary(op) for name, op in {
        "neg": "negative", "abs": "absolute", "square": "square", "sqrt": "sqrt", "rsqrt": "rsqrt", "exp": "exp",
        "log": "log", "tanh": "tanh", "erf": "erf", "logistic": "sigmoid", "sin": "sin", "cos": "cos", "floor": "floor",
    }.items()},
    **{name: binary(op) for name, op in {
        "add": "add", "add_any": "add", "sub": "subtract", "mul": "multiply", "div": "divide", "eq": "equal",
        "gt": "greater", "rem": "fmod",
    }.items()},
    "max": extreme("maximum", -math.inf), "min": extreme("minimum", math.inf),
    "lt": lambda call, a, b: greater(b, a), "ge": lambda call, a, b: at_least(a, b),
    "le": lambda call, a, b: at_least(b, a), "ne": lambda call, a, b: negated(combined("equal", a, b)),
    "and": logical("minimum"), "or": logical("maximum"), "not": logical("not"),
    "xor": lambda call, a, b: negated(logical("equal")(call, a, b)),
    "exp2": lambda call, x: apply("exp", combined("multiply", x, LN2)),
    "expm1": lambda call, x: expm1(x), "log1p": lambda call, x: log1p(x), "tan": lambda call, x: tan(x),
    "sinh": lambda call, x: sinh(x), "cosh": lambda call, x: cosh(x), "asinh": lambda call, x: arcsinh(x),
    "atanh": lambda call, x: arctanh(x),
    "erfc": lambda call, x: combined("subtract", 1.0, apply("erf", x)),
    "sign": lambda call, x: sign(numbers(x)), "ceil": lambda call, x: ceil(x), "round": rounded,
    "is_finite": lambda call, x: combined("equal", combined("subtract", x, x), 0.0),
    "pow": raised, "integer_pow": lambda call, x: raised(call, x, call.params["y"]),
    "clamp": clamped, "select_n": selected, "convert_element_type": converted, "stop_gradient": passed,
    **dict.fromkeys(("copy", "copy_p", "reduce_precision"), lambda call, x: x),
}  # fmt: skip
