"""Elementary functions with reproducible bits: within 0.501 ulp of float32, then converted once to a format.

Each is a fixed sequence of IEEE double operations (kernels/include/lowprec/functions_exact.h), so that results do not
differ between machines or library versions, as those of libm, NumPy and BLAS do.
"""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from lowprec.elementwise import function_op
from lowprec.values.formats import FormatLike
from lowprec.values.keywords import RoundingLike


def exp(x: npt.ArrayLike, fmt: FormatLike = "float32", rounding: RoundingLike = "nearest_even", **options: Any) -> Any:
    """e**x. 0 for -inf, inf for inf and where float32 overflows.

    Args:
        x: float32 or a narrower float array, or a Python number (rounded to float32).
        fmt: format of the result.
        rounding: of the conversion from float32 to fmt.
        options: key, random_bits, overflow, infinite_input, offset and out, as of `lowprec.float32_op`.

    Returns:
        An array of fmt's storage dtype. NaN stays NaN.

    Raises:
        TypeError, ValueError: as `lowprec.float32_op`.
    """
    return function_op("exp", x, fmt, rounding, options)


def log(x: npt.ArrayLike, fmt: FormatLike = "float32", rounding: RoundingLike = "nearest_even", **options: Any) -> Any:
    """Natural logarithm (arguments as of `exp`). -inf for zeros, NaN below zero, inf for inf."""
    return function_op("log", x, fmt, rounding, options)


def tanh(x: npt.ArrayLike, fmt: FormatLike = "float32", rounding: RoundingLike = "nearest_even", **options: Any) -> Any:
    """Hyperbolic tangent (arguments as of `exp`); keeps -0."""
    return function_op("tanh", x, fmt, rounding, options)


def erf(x: npt.ArrayLike, fmt: FormatLike = "float32", rounding: RoundingLike = "nearest_even", **options: Any) -> Any:
    """Error function (arguments as of `exp`); keeps -0."""
    return function_op("erf", x, fmt, rounding, options)


def sigmoid(
    x: npt.ArrayLike, fmt: FormatLike = "float32", rounding: RoundingLike = "nearest_even", **options: Any
) -> Any:
    """1 / (1 + exp(-x)) (arguments as of `exp`)."""
    return function_op("sigmoid", x, fmt, rounding, options)


def rsqrt(
    x: npt.ArrayLike, fmt: FormatLike = "float32", rounding: RoundingLike = "nearest_even", **options: Any
) -> Any:
    """1 / sqrt(x) (arguments as of `exp`). An infinity of x's sign at zeros, NaN below zero, 0 for inf."""
    return function_op("rsqrt", x, fmt, rounding, options)


def sin(x: npt.ArrayLike, fmt: FormatLike = "float32", rounding: RoundingLike = "nearest_even", **options: Any) -> Any:
    """Sine of x radians, any float32 (arguments as of `exp`). NaN for infinities; keeps -0."""
    return function_op("sin", x, fmt, rounding, options)


def cos(x: npt.ArrayLike, fmt: FormatLike = "float32", rounding: RoundingLike = "nearest_even", **options: Any) -> Any:
    """Cosine of x radians, any float32 (arguments as of `exp`). NaN for infinities."""
    return function_op("cos", x, fmt, rounding, options)


def gelu(x: npt.ArrayLike, fmt: FormatLike = "float32", rounding: RoundingLike = "nearest_even", **options: Any) -> Any:
    """x * Phi(x) with the normal distribution function, not its tanh approximation (arguments as of `exp`)."""
    return function_op("gelu", x, fmt, rounding, options)
