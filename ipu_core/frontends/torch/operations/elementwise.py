"""Operations on elements: arithmetic, comparisons, functions, activations."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from ipu_core.frontends.torch.operations.call import NodeCall, axis, combined, numbers
from ipu_core.ir.trace.array_functions import expm1, log1p
from ipu_core.ir.trace.values import Traced, Value, apply, power, reshape, scope, shape_of, where
from ipu_core.nn import stop_gradient
from ipu_core.nn.operations import narrow, widen
from lowprec.extras import optional

LN2 = math.log(2)
SELU_SCALE, SELU_ALPHA = 1.0507009873554805, 1.6732632423543772
LARGEST_PRODUCT = 64  # whole powers beyond it are exponentials of logarithms
TAIL = (0.17087277, -0.82215223, 1.48851587, -1.13520398, 0.27886807, -0.18628806, 0.09678418, 0.37409196, 1.00002368,
        -1.26551223)  # fmt: skip
"""log(erfc(x) / t) + x^2 as a polynomial in t = 1 / (1 + x / 2), to 1.2e-7 (Press et al., Numerical Recipes, erfcc)."""


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


def root(x: Value) -> Value:
    """The square root, whose gradient at 0 is 0: torch has it so in norms and deviations, not in `sqrt` itself."""
    zero = combined("equal", x, 0.0)
    # two choices: the inner one keeps 1 / sqrt(0) out of the gradient, where it would be infinite and 0 * inf NaN
    return where(zero, 0.0, apply("sqrt", where(zero, 1.0, x)))


def small_power(x: Value, exponent: float) -> Value:
    """A whole power, or that of a half or minus a half."""
    # `power` takes exponents up to 16; larger ones are powers of the 16th
    many, few = divmod(abs(exponent), 16)
    if not many:
        return power(x, exponent)
    high = power(power(x, 16), many)
    result = combined("multiply", high, power(x, few)) if few else high
    return result if exponent > 0 else apply("reciprocal", result)


def raised(call: NodeCall, x: Value, exponent: Value) -> Value:
    """A power: small whole numbers by products, halves by a root too, others by the logarithm (NaN below 0)."""
    if not isinstance(exponent, int | float):
        return apply("exp", combined("multiply", exponent, apply("log", x)))
    if isinstance(x, int | float):
        return apply("exp", combined("multiply", exponent, math.log(x)))
    if exponent == 0:
        return np.ones(call.shape, np.int32 if call.kind() == "int" else np.float32)
    whole, half = divmod(exponent, 1)
    if (half == 0 and abs(exponent) <= LARGEST_PRODUCT) or abs(exponent) == 0.5:
        return small_power(x, exponent)
    if half == 0.5 and 1 <= whole <= 16:
        return combined("multiply", power(x, whole), root(x))
    if exponent < 1:
        return apply("exp", combined("multiply", apply("log", x), exponent))
    zero = combined("equal", x, 0.0)  # where the logarithm has no gradient and the power has 0
    return where(zero, 0.0, apply("exp", combined("multiply", apply("log", where(zero, 1.0, x)), exponent)))


def clamped(call: NodeCall, x: Value, low: Value | None = None, high: Value | None = None) -> Value:
    """x limited to [low, high]; the gradient passes at the bounds themselves."""
    # a choice: the gradient of maximum and minimum is halved at the bound
    x = x if low is None else where(greater(low, x), low, x)
    return x if high is None else where(greater(x, high), high, x)


@lru_cache(maxsize=1)
def passes_at_bounds() -> bool:
    """Whether torch's clamp passes the gradient at its bounds: 2.14.1 passes none, or half of it where the bound is a
    tensor; older versions pass all."""
    torch = optional("torch", extra="torch")
    with torch.enable_grad():
        x = torch.ones(1, requires_grad=True)
        torch.clamp(x, 1.0, 2.0).sum().backward()
    return bool(x.grad.item())


def clamp(call: NodeCall, x: Value, low: Value | None = None, high: Value | None = None) -> Value:
    """x limited to [low, high], with the gradient at the bounds that this version of torch has."""
    if passes_at_bounds():
        return clamped(call, x, low, high)
    for op, bound in (("maximum", low), ("minimum", high)):
        if bound is None:
            continue
        if not isinstance(bound, int | float):
            x = combined(op, x, bound)  # equal elements share the gradient
        else:
            # NaN is beyond no bound, and stays
            x = where(at_least(bound, x) if op == "maximum" else at_least(x, bound), bound, x)
    return x


def clamped_inside(x: Value, low: float, high: float) -> Value:
    """x limited to [low, high]; the gradient passes between the bounds alone."""
    # relu6 and hardtanh of torch pass nothing at the bounds, clamp does
    return where(greater(x, low), where(greater(high, x), x, high), low)


def softplus(call: NodeCall, x: Value, beta: float = 1, threshold: float = 20) -> Value:
    x = combined("multiply", x, beta)
    return combined("divide", where(greater(x, threshold), x, log_of_1_and_exp(x)), beta)


def log_of_1_and_exp(x: Value) -> Value:
    """log(1 + e^x) without overflow, by an exponential of -|x|. The gradient is the sigmoid, at 0 too."""
    above = greater(x, 0.0)
    # -|x| by a choice: at 0 the gradient of abs is 0, and softplus's would lack its half
    small = log1p(apply("exp", where(above, combined("negative", x), x)))
    # both parts are kept: log(1 + e^x) as one would be 0 far below 0
    return combined("add", where(above, x, 0.0), small)


def magnitude(x: Value) -> Value:
    return apply("absolute", x)


def complementary(call: NodeCall, x: Value) -> Value:
    """1 - erf(x), above 1 from the exponential of -x^2: to 2^-17 of itself wherever float32 has it."""
    if call.width is np.float64:
        raise NotImplementedError("float64: its coefficients have eight digits")
    # float32 in every precision: the coefficients have eight digits
    with scope(x, family="norm"):
        wide = widen(x)
        rough, far = combined("subtract", 1.0, apply("erf", wide)), greater(wide, 1.0)
        # 1 - erf cancels above 1; the tail only adds what it lacks, so that the gradient stays that of erf
        high = stop_gradient(where(far, wide, 1.0))
        t = apply("reciprocal", combined("add", combined("multiply", high, 0.5), 1.0))
        sums: Value = TAIL[0]
        for coefficient in TAIL[1:]:
            sums = combined("add", combined("multiply", sums, t), coefficient)
        tail = combined("multiply", t, apply("exp", combined("subtract", sums, apply("square", high))))
        lacks = stop_gradient(where(far, combined("subtract", tail, rough), 0.0))
        result = combined("add", rough, lacks)
    return narrow(result, x)


def log_sigmoid(call: NodeCall, x: Value) -> Value:
    return combined("negative", log_of_1_and_exp(combined("negative", x)))


def silu(call: NodeCall, x: Value, *_: Any) -> Value:
    return combined("multiply", x, apply("sigmoid", x))


def gelu(call: NodeCall, x: Value, approximate: str = "none") -> Value:
    if approximate == "none":
        return apply("gelu", x)
    inner = combined("add", x, combined("multiply", power(x, 3), 0.044715))
    inner = combined("multiply", inner, math.sqrt(2 / math.pi))
    return combined("multiply", combined("multiply", x, 0.5), combined("add", apply("tanh", inner), 1.0))


def elu(call: NodeCall, x: Value, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Value:
    """scale * (x above 0, else alpha * (e^(x * input_scale) - 1)); at 0 the gradient is that from below."""
    above = greater(x, 0.0)
    # 0 above: e^x of large numbers would be infinite, and its gradient times 0 NaN
    below = combined("multiply", expm1(where(above, 0.0, combined("multiply", x, input_scale))), alpha)
    return combined("multiply", where(above, x, below), scale)


def leaky(call: NodeCall, x: Value, slope: Value = 0.01) -> Value:
    return where(greater(x, 0.0), x, combined("multiply", x, slope))


def prelu(call: NodeCall, x: Value, weight: Value) -> Value:
    ndim = len(shape_of(x))
    places = [1] * ndim
    places[1 if ndim > 1 else 0] = -1
    return leaky(call, x, reshape(weight, places) if shape_of(weight) else weight)


def hard_sigmoid(call: NodeCall, x: Value) -> Value:
    return combined("multiply", clamped_inside(combined("add", x, 3.0), 0.0, 6.0), 1 / 6)


def glu(call: NodeCall, x: Value, dim: int = -1) -> Value:
    place, half = axis(x, dim), shape_of(x)[dim] // 2
    first, second = (x[(slice(None),) * place + (slice(i * half, (i + 1) * half),)] for i in (0, 1))
    return combined("multiply", first, apply("sigmoid", second))


def sign(call: NodeCall, x: Value) -> Value:
    return combined("subtract", greater(x, 0.0), greater(0.0, x))


def selected(call: NodeCall, condition: Value, a: Value, b: Value) -> Value:
    return combined("select", condition, a, b)


def filled(call: NodeCall, x: Value, mask: Value, number: Value) -> Value:
    return combined("select", mask, number, x)


def full(call: NodeCall, x: Value, number: Value, *_: Any) -> Value:
    """An array full of a number, in the shape of another."""
    # a number that is traced has no shape to fill; constants need none
    return combined("add", call.full(0.0, shape_of(x)), number) if isinstance(number, Traced) else number


def interpolated(call: NodeCall, a: Value, b: Value, weight: Value) -> Value:
    return combined("add", a, combined("multiply", weight, combined("subtract", b, a)))


def finite(call: NodeCall, x: Value) -> Value:
    # infinity less itself is NaN, which equals nothing
    return combined("equal", combined("subtract", x, x), 0.0)


def infinite(call: NodeCall, x: Value) -> Value:
    return combined("subtract", combined("equal", x, x), finite(call, x))


def numbered(
    call: NodeCall, x: Value, nan: float | None = None, high: float | None = None, low: float | None = None
) -> Value:
    """x with numbers in the place of NaN (0 if nothing is said) and of infinities (the format's largest)."""
    largest = float(np.finfo(call.width).max)
    high, low = largest if high is None else high, -largest if low is None else low
    bounded = where(combined("equal", x, math.inf), high, where(combined("equal", x, -math.inf), low, x))
    return where(combined("equal", x, x), bounded, nan or 0.0)


def log_of_sum(call: NodeCall, a: Value, b: Value) -> Value:
    """log(e^a + e^b), also of infinities."""
    same = combined("equal", a, b)
    apart = combined("subtract", combined("minimum", a, b), combined("maximum", a, b))
    # an infinity less itself would be NaN
    return combined("add", combined("maximum", a, b), log_of_1_and_exp(where(same, 0.0, apart)))


def hyperbolic(call: NodeCall, x: Value) -> Value:
    """The sine: by e^x - 1, in which nothing cancels near 0."""
    grown = expm1(x)
    return combined("multiply", combined("add", grown, combined("divide", grown, combined("add", grown, 1.0))), 0.5)


def hyperbolic_cosine(call: NodeCall, x: Value) -> Value:
    return combined("multiply", combined("add", apply("exp", x), apply("exp", combined("negative", x))), 0.5)


def times_log(call: NodeCall, x: Value, y: Value) -> Value:
    """x log y, 0 where x is 0."""
    zero = combined("equal", x, 0.0)
    return where(zero, 0.0, combined("multiply", x, apply("log", where(zero, 1.0, y))))


def one_of_two(call: NodeCall, a: Value, b: Value) -> Value:
    return negated(combined("equal", *(combined("equal", x, 0.0) for x in (a, b))))


def both(call: NodeCall, a: Value, b: Value) -> Value:
    if call.kind() != "bool":
        raise NotImplementedError("bits of integers")
    return combined("minimum", a, b)


def either(call: NodeCall, a: Value, b: Value) -> Value:
    if call.kind() != "bool":
        raise NotImplementedError("bits of integers")
    return combined("maximum", a, b)


def opposite(call: NodeCall, x: Value) -> Value:
    if call.kind() != "bool":
        raise NotImplementedError("bits of integers")
    return negated(x)


TABLE: dict[str, Callable[..., Any]] = {
    **{name: unary(op) for name, op in {
        "neg": "negative", "abs": "absolute", "relu": "relu", "square": "square", "reciprocal": "reciprocal",
        "sqrt": "sqrt", "rsqrt": "rsqrt", "exp": "exp", "log": "log", "tanh": "tanh", "erf": "erf",
        "sigmoid": "sigmoid", "sin": "sin", "cos": "cos",
    }.items()},
    "add": scaled("add"), "sub": scaled("subtract"), "mul": binary("multiply"), "pow": raised,
    "rsub": lambda call, a, b, alpha=1: scaled("subtract")(call, b, a, alpha),
    "maximum": binary("maximum"), "minimum": binary("minimum"), "max.other": binary("maximum"),
    "min.other": binary("minimum"),
    "addcmul": lambda call, x, a, b, value=1: scaled("add")(call, x, combined("multiply", a, b), value),
    "addcdiv": lambda call, x, a, b, value=1: scaled("add")(call, x, combined("divide", a, b), value),
    "lerp": interpolated,
    "exp2": lambda call, x: apply("exp", combined("multiply", x, LN2)),
    "expm1": lambda call, x: expm1(numbers(x)), "log1p": lambda call, x: log1p(numbers(x)),
    "log2": lambda call, x: combined("multiply", apply("log", x), 1 / LN2),
    "log10": lambda call, x: combined("multiply", apply("log", x), 1 / math.log(10)),
    "erfc": complementary,
    "tan": lambda call, x: combined("divide", apply("sin", x), apply("cos", x)),
    "sign": sign,
    "eq": binary("equal"), "ne": lambda call, a, b: negated(combined("equal", a, b)),
    "gt": lambda call, a, b: greater(a, b), "lt": lambda call, a, b: greater(b, a),
    "ge": lambda call, a, b: at_least(a, b), "le": lambda call, a, b: at_least(b, a),
    "logical_and": lambda call, a, b: combined("minimum", *(negated(combined("equal", x, 0.0)) for x in (a, b))),
    "logical_or": lambda call, a, b: combined("maximum", *(negated(combined("equal", x, 0.0)) for x in (a, b))),
    "logical_not": lambda call, x: combined("equal", x, 0.0),
    "bitwise_and": both, "bitwise_or": either, "bitwise_not": opposite, "__and__": both, "__or__": either,
    "logical_xor": one_of_two, "isfinite": finite, "isinf": infinite, "nan_to_num": numbered,
    "logaddexp": log_of_sum, "sinh": hyperbolic, "cosh": hyperbolic_cosine, "xlogy": times_log, "float_power": raised,
    "isnan": lambda call, x: negated(combined("equal", x, x)),
    "where.self": selected, "where.ScalarOther": selected, "where.ScalarSelf": selected, "where.Scalar": selected,
    "masked_fill": filled, "fill": full, "zero": lambda call, x: full(call, x, 0.0),
    "copy": lambda call, x, new, *_: new,
    "clamp": clamp, "clip": clamp, "clamp_min": clamp, "clamp_max": lambda call, x, high: clamp(call, x, None, high),
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
    "softshrink": lambda call, x, lambd=0.5: combined("subtract", x, clamped(call, x, -lambd, lambd)),
    **dict.fromkeys(("contiguous", "clone", "alias", "lift_fresh_copy"), lambda call, x, *_: x),
    "detach": lambda call, x: x if isinstance(getattr(x, "format", None), str) else stop_gradient(x),
}  # fmt: skip
