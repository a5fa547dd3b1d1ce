"""Operations on elements: arithmetic, comparisons, functions, activations."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from ipu_core.capture.operations.call import Call, axis, combined
from ipu_core.ir.values import Traced, Value, apply, power, reshape, shape_of, where
from ipu_core.nn import stop_gradient

LN2 = math.log(2)
SELU_SCALE, SELU_ALPHA = 1.0507009873554805, 1.6732632423543772


def unary(op: str) -> Callable[..., Value]:
    """A function of one value that has the same meaning here."""
    return lambda call, x, *_: combined(op, x)


def binary(op: str) -> Callable[..., Value]:
    """A function of two values that has the same meaning here."""
    return lambda call, a, b, *_: combined(op, a, b)


def scaled(op: str) -> Callable[..., Value]:
    """A sum or difference of which the second operand is multiplied by a number."""
    return lambda call, a, b, alpha=1: combined(op, a, b if alpha == 1 else combined("multiply", b, alpha))


def negated(x: Value) -> Value:
    """1 for 0 and 0 for 1."""
    return combined("subtract", 1.0, x)


def greater(a: Value, b: Value) -> Value:
    return combined("greater", a, b)


def at_least(a: Value, b: Value) -> Value:
    return combined("maximum", combined("greater", a, b), combined("equal", a, b))


def raised(call: Call, x: Value, exponent: Value) -> Value:
    """A power: small whole numbers by products, halves by a root too, others by the logarithm (NaN below 0)."""
    if not isinstance(exponent, int | float):
        return apply("exp", combined("multiply", exponent, apply("log", x)))
    if isinstance(x, int | float):
        return apply("exp", combined("multiply", exponent, math.log(x)))
    if exponent == 0:
        return combined("add", combined("multiply", x, 0.0), 1.0)
    whole, half = divmod(exponent, 1)
    if abs(exponent) <= 16 and (half == 0 or abs(exponent) == 0.5):
        return power(x, exponent)
    if half == 0.5 and 1 <= whole <= 16:
        return combined("multiply", power(x, whole), apply("sqrt", x))
    return apply("exp", combined("multiply", apply("log", x), exponent))


def divided(call: Call, a: Value, b: Value, rounding_mode: str | None = None) -> Value:
    if rounding_mode is not None:
        raise NotImplementedError("it rounds the quotient to a whole number")
    return combined("divide", a, b)


def clamped(call: Call, x: Value, low: Value | None = None, high: Value | None = None) -> Value:
    """The gradient passes at the bounds themselves."""
    x = x if low is None else where(greater(low, x), low, x)
    return x if high is None else where(greater(x, high), high, x)


def clamped_inside(x: Value, low: float, high: float) -> Value:
    """The gradient passes between the bounds alone."""
    return where(greater(x, low), where(greater(high, x), x, high), low)


def softplus(call: Call, x: Value, beta: float = 1, threshold: float = 20) -> Value:
    x = combined("multiply", x, beta)
    return combined("divide", where(greater(x, threshold), x, log_of_1_and_exp(x)), beta)


def log_of_1_and_exp(x: Value) -> Value:
    """Without overflow: the exponential is of a number below 0."""
    return combined("add", apply("relu", x), logarithm_of_1_and(apply("exp", combined("negative", magnitude(x)))))


def magnitude(x: Value) -> Value:
    return apply("absolute", x)


def logarithm_of_1_and(x: Value) -> Value:
    return apply("log", combined("add", x, 1.0))


def log_sigmoid(call: Call, x: Value) -> Value:
    return combined("negative", log_of_1_and_exp(combined("negative", x)))


def silu(call: Call, x: Value, *_: Any) -> Value:
    return combined("multiply", x, apply("sigmoid", x))


def gelu(call: Call, x: Value, approximate: str = "none") -> Value:
    if approximate == "none":
        return apply("gelu", x)
    inner = combined("add", x, combined("multiply", power(x, 3), 0.044715))
    inner = combined("multiply", inner, math.sqrt(2 / math.pi))
    return combined("multiply", combined("multiply", x, 0.5), combined("add", apply("tanh", inner), 1.0))


def elu(call: Call, x: Value, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Value:
    low = combined("minimum", combined("multiply", x, input_scale), 0.0)
    below = combined("multiply", combined("subtract", apply("exp", low), 1.0), alpha)
    return combined("multiply", where(greater(x, 0.0), x, below), scale)


def leaky(call: Call, x: Value, slope: Value = 0.01) -> Value:
    return where(greater(x, 0.0), x, combined("multiply", x, slope))


def prelu(call: Call, x: Value, weight: Value) -> Value:
    ndim = len(shape_of(x))
    places = [1] * ndim
    places[1 if ndim > 1 else 0] = -1
    return leaky(call, x, reshape(weight, places) if shape_of(weight) else weight)


def hard_sigmoid(call: Call, x: Value) -> Value:
    return combined("multiply", clamped_inside(combined("add", x, 3.0), 0.0, 6.0), 1 / 6)


def glu(call: Call, x: Value, dim: int = -1) -> Value:
    place, half = axis(x, dim), shape_of(x)[dim] // 2
    first, second = (x[(slice(None),) * place + (slice(i * half, (i + 1) * half),)] for i in (0, 1))
    return combined("multiply", first, apply("sigmoid", second))


def sign(call: Call, x: Value) -> Value:
    return combined("subtract", greater(x, 0.0), greater(0.0, x))


def converted(call: Call, x: Value, *_: Any) -> Value:
    """Floats stay as they are: the precision says in which format. Integers become floats where torch makes such."""
    if call.kind() == "float":
        return combined("add", x, 0.0) if call.kind(0) == "int" else x
    if call.kind() == call.kind(0) or call.kind(0) == "bool":
        return x
    if call.kind() == "bool":
        return negated(combined("equal", x, 0.0))
    raise NotImplementedError("numbers that are computed cannot become integers")


def selected(call: Call, condition: Value, a: Value, b: Value) -> Value:
    return combined("select", condition, a, b)


def filled(call: Call, x: Value, mask: Value, number: Value) -> Value:
    return combined("select", mask, number, x)


def full(call: Call, x: Value, number: Value, *_: Any) -> Value:
    """An array full of a number, in the shape of another."""
    return combined("add", call.full(0.0, shape_of(x)), number) if isinstance(number, Traced) else number


def interpolated(call: Call, a: Value, b: Value, weight: Value) -> Value:
    return combined("add", a, combined("multiply", weight, combined("subtract", b, a)))


def both(call: Call, a: Value, b: Value) -> Value:
    if call.kind() != "bool":
        raise NotImplementedError("bits of integers")
    return combined("minimum", a, b)


def either(call: Call, a: Value, b: Value) -> Value:
    if call.kind() != "bool":
        raise NotImplementedError("bits of integers")
    return combined("maximum", a, b)


def opposite(call: Call, x: Value) -> Value:
    if call.kind() != "bool":
        raise NotImplementedError("bits of integers")
    return negated(x)


TABLE: dict[str, Callable[..., Any]] = {
    **{name: unary(op) for name, op in {
        "neg": "negative", "abs": "absolute", "relu": "relu", "square": "square", "reciprocal": "reciprocal",
        "sqrt": "sqrt", "rsqrt": "rsqrt", "exp": "exp", "log": "log", "tanh": "tanh", "erf": "erf",
        "sigmoid": "sigmoid", "sin": "sin", "cos": "cos",
    }.items()},
    "add": scaled("add"), "sub": scaled("subtract"), "mul": binary("multiply"), "div": divided, "pow": raised,
    "rsub": lambda call, a, b, alpha=1: scaled("subtract")(call, b, a, alpha),
    "maximum": binary("maximum"), "minimum": binary("minimum"), "max.other": binary("maximum"),
    "min.other": binary("minimum"),
    "addcmul": lambda call, x, a, b, value=1: scaled("add")(call, x, combined("multiply", a, b), value),
    "addcdiv": lambda call, x, a, b, value=1: scaled("add")(call, x, combined("divide", a, b), value),
    "lerp": interpolated,
    "exp2": lambda call, x: apply("exp", combined("multiply", x, LN2)),
    "expm1": lambda call, x: combined("subtract", apply("exp", x), 1.0),
    "log1p": lambda call, x: logarithm_of_1_and(x),
    "log2": lambda call, x: combined("multiply", apply("log", x), 1 / LN2),
    "log10": lambda call, x: combined("multiply", apply("log", x), 1 / math.log(10)),
    "erfc": lambda call, x: combined("subtract", 1.0, apply("erf", x)),
    "tan": lambda call, x: combined("divide", apply("sin", x), apply("cos", x)),
    "sign": sign,
    "eq": binary("equal"), "ne": lambda call, a, b: negated(combined("equal", a, b)),
    "gt": lambda call, a, b: greater(a, b), "lt": lambda call, a, b: greater(b, a),
    "ge": lambda call, a, b: at_least(a, b), "le": lambda call, a, b: at_least(b, a),
    "logical_and": lambda call, a, b: combined("minimum", *(negated(combined("equal", x, 0.0)) for x in (a, b))),
    "logical_or": lambda call, a, b: combined("maximum", *(negated(combined("equal", x, 0.0)) for x in (a, b))),
    "logical_not": lambda call, x: combined("equal", x, 0.0),
    "bitwise_and": both, "bitwise_or": either, "bitwise_not": opposite, "__and__": both, "__or__": either,
    "isnan": lambda call, x: negated(combined("equal", x, x)),
    "where.self": selected, "where.ScalarOther": selected, "where.ScalarSelf": selected, "where.Scalar": selected,
    "masked_fill": filled, "fill": full, "zero": lambda call, x: full(call, x, 0.0),
    "copy": lambda call, x, new, *_: new,
    "clamp": clamped, "clip": clamped, "clamp_min": clamped,
    "clamp_max": lambda call, x, high: clamped(call, x, None, high),
    "silu": silu, "gelu": gelu, "softplus": softplus, "log_sigmoid": log_sigmoid,
    "relu6": lambda call, x: clamped_inside(x, 0.0, 6.0),
    "hardtanh": lambda call, x, low=-1, high=1: clamped_inside(x, float(low), float(high)),
    "hardsigmoid": hard_sigmoid,
    "hardswish": lambda call, x: combined("multiply", x, hard_sigmoid(call, x)),
    "mish": lambda call, x: combined("multiply", x, apply("tanh", softplus(call, x))),
    "elu": elu, "selu": lambda call, x: elu(call, x, SELU_ALPHA, SELU_SCALE),
    "celu": lambda call, x, alpha=1: elu(call, x, alpha, 1.0, 1 / alpha),
    "leaky_relu": leaky, "prelu": prelu, "glu": glu,
    "threshold": lambda call, x, bound, other: where(greater(x, bound), x, other),
    "hardshrink": lambda call, x, lambd=0.5: where(greater(magnitude(x), lambd), x, 0.0),
    "softshrink": lambda call, x, lambd=0.5: combined("subtract", x, clamped_inside(x, -lambd, lambd)),
    "to": converted, "type_as": converted,
    **dict.fromkeys(("contiguous", "clone", "alias", "lift_fresh_copy"), lambda call, x, *_: x),
    "detach": lambda call, x: x if isinstance(getattr(x, "format", None), str) else stop_gradient(x),
}  # fmt: skip
