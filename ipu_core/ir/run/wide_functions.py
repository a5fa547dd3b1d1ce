"""Elementary functions in float64, as fixed sequences of IEEE operations on NumPy arrays: the same bits everywhere.

NumPy's own, and a libm's, differ between processors and versions. Results are within 5 units of the last place, those
of `sin`, `cos` and `gelu_gradient` within 2^-51, as `tests/ipu_core/ir/test_wide_functions.py` measures; they are not
correctly rounded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[Any]
"""Of float64."""

_LOG2_E = float.fromhex("0x1.71547652b82fep+0")
# Parts of ln 2 and of pi / 2: the first ones so short that their products with whole numbers are exact.
_LN2 = float.fromhex("0x1.62e42fefa3800p-1"), float.fromhex("0x1.ef35793c76730p-45")
_HALF_PI = tuple(map(float.fromhex, ("0x1.921fb54400000p+0", "0x1.0b4611a600000p-34", "0x1.3198a2e037073p-69")))
_FARTHEST = 2.0**20
"""The largest number of which there is a sine: beyond, products with the parts of pi / 2 are not exact."""

_EXP = tuple(1 / math.factorial(n) for n in range(14, 0, -1))
_LOG = tuple(1 / (2 * n + 1) for n in range(12, -1, -1))
_ERF = tuple((-1) ** n * 2 / math.sqrt(math.pi) / (math.factorial(n) * (2 * n + 1)) for n in range(20, -1, -1))
_SINE = tuple((-1) ** n / math.factorial(2 * n + 1) for n in range(9, 0, -1))
_COSINE = tuple((-1) ** n / math.factorial(2 * n) for n in range(9, 1, -1))
_ERFC = (
    1.1775789345674017, -0.004590054580646478, -0.08424913336651792, 0.05920993999819189, -0.026658668435305753,
    0.009074997670705265, -0.002413163540417608, 0.0004907758365258086, -6.916973302501207e-05, 4.13902798607301e-06,
    7.74038306619849e-07, -2.1886401049234397e-07, 1.0764999465670902e-08, 4.521959811218278e-09,
    -7.754400208831422e-10, -6.318088340887232e-11, 2.8687950109303248e-11, 1.9455868545659023e-13,
    -9.654696748421755e-13, 3.2525481484920246e-14, 3.347811948831491e-14, -1.864562873354153e-15,
    -1.2507950448975515e-15, 7.418236125220511e-17, 5.068149762055784e-17,
)  # fmt: skip
"""Chebyshev coefficients, computed to 60 digits, of (1 + 2z) exp(z^2) erfc(z) in (z - 3.75) / (z + 3.75), the variable
of Shepherd and Laframboise (Math. Comp. 36, 1981)."""


def _horner(x: Floats, coefficients: Sequence[float]) -> Any:
    """A polynomial, its highest coefficient first."""
    total = np.full_like(x, coefficients[0])
    for each in coefficients[1:]:
        total = total * x + each
    return total


def _exp_parts(x: Floats) -> tuple[Floats, npt.NDArray[np.int64]]:
    """(q, k) with exp(x) = 2^k (1 + q)."""
    bounded = np.where(np.isnan(x), 0.0, np.clip(x, -760.0, 720.0))
    k = np.rint(bounded * _LOG2_E)
    r = (bounded - k * _LN2[0]) - k * _LN2[1]
    return r * _horner(r, _EXP), k.astype(np.int64)


def exp(x: Any) -> Any:
    """e**x; 0 and inf beyond the range."""
    x = np.asarray(x, np.float64)
    fraction, power = _exp_parts(x)
    # In two steps: 2^1024 is no number, and a subnormal result is rounded once.
    half = power // 2
    result = np.ldexp(np.ldexp(1.0 + fraction, half), power - half)
    return np.where(np.isnan(x), x, result)


def log(x: Any) -> Any:
    """The natural logarithm; -inf for zeros, NaN below."""
    x = np.asarray(x, np.float64)
    fraction, power = np.frexp(np.where((x > 0) & (x < np.inf), x, 1.0))
    low = fraction < math.sqrt(0.5)
    m, e = np.where(low, fraction * 2, fraction), power - low * 1.0
    s = (m - 1) / (m + 1)
    result = e * _LN2[0] + ((2 * s) * _horner(s * s, _LOG) + e * _LN2[1])
    result = np.where(x == 0, -np.inf, np.where(x == np.inf, x, result))
    return np.where(x >= 0, result, np.nan)


def tanh(x: Any) -> Any:
    """The hyperbolic tangent; keeps -0."""
    x = np.asarray(x, np.float64)
    fraction, power = _exp_parts(np.minimum(2 * np.abs(x), 80.0))
    scale = np.ldexp(1.0, power)
    less_one = scale * fraction + (scale - 1)
    return np.where(np.isnan(x), x, np.copysign(less_one / (less_one + 2), x))


def sigmoid(x: Any) -> Any:
    """1 / (1 + exp(-x))."""
    return 1 / (1 + exp(-np.asarray(x, np.float64)))


def _erfc(z: Floats, square: tuple[Floats, Floats]) -> Any:
    """erfc(z) for z >= 0, given z^2 as a number and what is missing of it."""
    t = (z - 3.75) / (z + 3.75)
    one, two = np.zeros_like(t), np.zeros_like(t)
    for each in _ERFC[:0:-1]:  # Clenshaw's recurrence
        one, two = 2 * t * one - two + each, one
    fit = t * one - two + _ERFC[0]
    decay = exp(-square[0]) * (1 - square[1])
    return decay * (fit / (1 + 2 * z))


def _squared(z: Floats) -> tuple[Floats, Floats]:
    """z^2 as a rounded square and its error, for z below 64 (Dekker's product)."""
    high = np.rint(z * 2.0**20) * 2.0**-20  # at most 26 bits
    low = z - high
    square = z * z
    return square, ((high * high - square) + 2 * high * low) + low * low


def erf(x: Any) -> Any:
    """The error function; keeps -0."""
    x = np.asarray(x, np.float64)
    z = np.where(np.isnan(x), 0.0, np.minimum(np.abs(x), 12.0))
    small = np.where(z < 1, z, 0.0)
    result = np.where(z < 1, small * _horner(small * small, _ERF), 1 - _erfc(z, _squared(z)))
    return np.where(np.isnan(x), x, np.copysign(result, x))


def _normal_distribution(x: Floats) -> Any:
    """Phi(x)."""
    size = np.where(np.isnan(x), 0.0, np.minimum(np.abs(x), 40.0))
    whole, missing = _squared(size)
    upper = 0.5 * _erfc(size * math.sqrt(0.5), (0.5 * whole, 0.5 * missing))
    return np.where(np.isnan(x), x, np.where(x < 0, upper, 1 - upper))


def gelu(x: Any) -> Any:
    """x Phi(x)."""
    x = np.asarray(x, np.float64)
    return np.maximum(x, -40.0) * _normal_distribution(x)


def gelu_gradient(x: Any) -> Any:
    """Phi(x) + x phi(x)."""
    x = np.asarray(x, np.float64)
    bounded = np.clip(x, -40.0, 40.0)
    density = exp(-0.5 * (bounded * bounded)) * (1 / math.sqrt(2 * math.pi))
    return _normal_distribution(x) + bounded * density


def _sine(x: Any, quadrant: int) -> Any:
    x = np.asarray(x, np.float64)
    far = np.isfinite(x) & (np.abs(x) > _FARTHEST)
    if far.any():
        raise ValueError(f"there is no sine of {x[far].flat[0]:g} in float64, only up to 2^20: of a float32 there is")
    known = np.where(np.isfinite(x), x, 0.0)
    k = np.rint(known * (2 / math.pi))
    r = ((known - k * _HALF_PI[0]) - k * _HALF_PI[1]) - k * _HALF_PI[2]
    turns, square = k.astype(np.int64) + quadrant, r * r
    sine = r + r * (square * _horner(square, _SINE))
    cosine = 1 + (square * square * _horner(square, _COSINE) - 0.5 * square)
    result = np.where(turns & 1, cosine, sine)
    return np.where(np.isfinite(x), np.where(turns & 2, -result, result), np.nan)


FUNCTIONS: Mapping[str, Callable[[Any], Any]] = {
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "exp": exp,
    "log": log,
    "tanh": tanh,
    "erf": erf,
    "sigmoid": sigmoid,
    "sin": lambda x: _sine(x, 0),
    "cos": lambda x: _sine(x, 1),
    "gelu": gelu,
    "gelu_gradient": gelu_gradient,
}
"""By operation."""
