"""Elementary functions of float32 as fixed sequences of IEEE double operations (the text of functions_exact.h).

Every function takes a Python float that is exact in float32 and returns the double whose rounding to float32 is the
result. The sequences use only +, -, *, /, sqrt and exact scalings by powers of two, never a library function, so that
every machine gives the same bits; each is within 2**-38 of the true value, relative to it, so the rounded result is
within 0.501 units in the last place of float32.
"""

import math
from collections.abc import Callable, Sequence

_SHIFT = 1.5 * 2.0**52  # adding and subtracting it rounds a double below 2**51 to an integer, ties to even
_LOG2_E = float.fromhex("0x1.71547652b82fep+0")
_LN2_HIGH = float.fromhex("0x1.62e42fefa3800p-1")  # 42 bits: exact times any exponent of a float32
_LN2_LOW = float.fromhex("0x1.ef35793c76730p-45")
_TWO_OVER_PI = float.fromhex("0x1.45f306dc9c883p-1")
_HALF_PI = float.fromhex("0x1.921fb54442d18p+0")
# The first two have at most 32 bits: times a number of quarter turns below 2^15 they are exact.
_HALF_PI_PARTS = tuple(
    float.fromhex(x) for x in ("0x1.921fb54400000p+0", "0x1.0b4611a600000p-34", "0x1.3198a2e037073p-69")
)
_TWO_OVER_PI_BITS = 0xA2F9836E_4E441529_FC2757D1_F534DDC0_DB629599_3C439041_FE5163AB_DEBBC561  # times 2**-256
_SQRT_HALF = float.fromhex("0x1.6a09e667f3bcdp-1")
_DENSITY = float.fromhex("0x1.9884533d43651p-2")  # 1 / sqrt(2 pi)

_EXPM1 = tuple(1.0 / math.factorial(n) for n in range(1, 13))
_ATANH = tuple(1.0 / (2 * n + 1) for n in range(9))
_SIN = tuple((-1.0) ** n / math.factorial(2 * n + 1) for n in range(8))
_COS = tuple((-1.0) ** n / math.factorial(2 * n) for n in range(9))
# Chebyshev fits: erf(x) / x in x**2 on [0, 1]; exp(z**2) * erfc(z) * (1 + 2z) in (z - 3.75) / (z + 3.75), z >= 0
# (the variable of Shepherd and Laframboise, Mathematics of Computation 36, 1981).
_ERF = (
    1.1283791670955121, -0.376126389031744, 0.11283791670580423, -0.026866170586496874, 0.005223977154105304,
    -0.0008548304871782741, 0.00012054681918310599, -1.4913300906316395e-05, 1.631035651387174e-06,
    -1.5188281247335167e-07, 9.428596956834164e-09,
)  # fmt: skip
_ERFC = (
    1.2375126308367923, -0.14024059858547028, 0.0035854156533391994, 0.08227673847770144, -0.1088039346394731,
    0.09230432149469189, -0.05869335199612734, 0.02836227393817239, -0.009746822711336535, 0.0017556441634478089,
    0.0002944324640493049, -0.0002902088610730323, 5.0383095381402655e-05, 2.248246706206872e-05,
    -1.0108068004577932e-05, -1.080129997549226e-06, 9.389140006861069e-07, 1.0583134067995278e-08,
)  # fmt: skip


def exp(x: float) -> float:
    """e**x; 0 for -inf, inf for inf."""
    if math.isnan(x):
        return x
    # Clamped where float32 is 0 or infinite all the same, so that 2^k stays a normal double.
    fraction, scale = _expm1_parts(_clamp(x, -110.0, 90.0))
    return scale * fraction + scale


def log(x: float) -> float:
    """Natural logarithm; -inf for a zero of either sign, NaN below zero."""
    if math.isnan(x) or x < 0.0:
        return math.nan
    if x == 0.0 or x == math.inf:
        return -math.inf if x == 0.0 else x
    mantissa, exponent = math.frexp(x)
    # Near 1 the exponent is then 0 on both sides, and the small logarithm is no difference of two large terms.
    if mantissa < _SQRT_HALF:
        mantissa, exponent = mantissa * 2.0, exponent - 1
    s = (mantissa - 1.0) / (mantissa + 1.0)
    tail = 2.0 * s * _polynomial(_ATANH, s * s)
    # The small terms are added first; the large one is exact.
    return exponent * _LN2_HIGH + (tail + exponent * _LN2_LOW)


def tanh(x: float) -> float:
    """Hyperbolic tangent, by (exp(2|x|) - 1) / (exp(2|x|) + 1) without cancellation; keeps the sign of zero."""
    if math.isnan(x):
        return x
    # From 80 on the quotient below is 1 in double.
    fraction, scale = _expm1_parts(_clamp(2.0 * abs(x), 0.0, 80.0))
    # Not exp(..) - 1, in which all bits of a small x cancel.
    expm1 = scale * fraction + (scale - 1.0)
    return math.copysign(expm1 / (expm1 + 2.0), x)


def sigmoid(x: float) -> float:
    """1 / (1 + exp(-x))."""
    if math.isnan(x):
        return x
    fraction, scale = _expm1_parts(_clamp(-x, -110.0, 110.0))
    return 1.0 / (1.0 + (scale * fraction + scale))


def rsqrt(x: float) -> float:
    """1 / sqrt(x); an infinity of x's sign at zero, NaN below zero."""
    if math.isnan(x) or x < 0.0:
        return math.nan
    return math.copysign(math.inf, x) if x == 0.0 else 1.0 / math.sqrt(x)


def sin(x: float) -> float:
    """Sine of x radians, exact reduction for every float32; NaN for an infinity."""
    return _sine(x, 0)


def cos(x: float) -> float:
    """Cosine of x radians, exact reduction for every float32; NaN for an infinity."""
    return _sine(x, 1)


def erf(x: float) -> float:
    """Error function; keeps the sign of zero."""
    if math.isnan(x):
        return x
    if abs(x) < 1.0:
        return x * _polynomial(_ERF, x * x)
    # erfc(12) is below 2^-200: 1 - erfc is 1 from there on.
    z = _clamp(abs(x), 0.0, 12.0)
    return math.copysign(1.0 - _erfc(z, z * z), x)


def gelu(x: float) -> float:
    """x * Phi(x) with the normal distribution function Phi (not the tanh approximation); -0 for -inf."""
    # -inf times a distribution of 0 would be NaN; -40 times one rounds to -0.
    return x if math.isnan(x) else max(x, -40.0) * _normal_distribution(x)


def gelu_gradient(x: float) -> float:
    """Derivative of gelu: Phi(x) + x * phi(x) with the normal density phi."""
    if math.isnan(x):
        return x
    bounded = _clamp(x, -40.0, 40.0)
    fraction, scale = _expm1_parts(_clamp(-0.5 * (bounded * bounded), -700.0, 0.0))
    return _normal_distribution(x) + bounded * (_DENSITY * (scale * fraction + scale))


def _expm1_parts(x: float) -> tuple[float, float]:
    """(q, s) with exp(x) = s * (1 + q), s a power of two, |q| < 0.42; |x| <= 708."""
    k = (x * _LOG2_E + _SHIFT) - _SHIFT
    # In two parts (Cody and Waite): a k * ln 2 that is rounded once would leave its error in r.
    r = (x - k * _LN2_HIGH) - k * _LN2_LOW
    return r * _polynomial(_EXPM1, r), math.ldexp(1.0, int(k))


def _erfc(z: float, square: float) -> float:
    """erfc(z) for 0 <= z <= 29, given z * z."""
    fraction, scale = _expm1_parts(max(-square, -700.0))
    t = (z - 3.75) / (z + 3.75)
    # The fit is of exp(z^2) erfc(z) (1 + 2z), which changes little over the whole range.
    return (scale * fraction + scale) * (_polynomial(_ERFC, t) / (1.0 + 2.0 * z))


def _normal_distribution(x: float) -> float:
    """Phi(x) = erfc(-x / sqrt(2)) / 2."""
    magnitude = _clamp(abs(x), 0.0, 40.0)
    # Half of x squared, exact in double, and not the square of x / sqrt(2), which is rounded.
    upper = 0.5 * _erfc(magnitude * _SQRT_HALF, 0.5 * (magnitude * magnitude))
    return upper if x < 0.0 else 1.0 - upper


def _sine(x: float, quadrant: int) -> float:
    """sin(x + quadrant * pi / 2)."""
    if not math.isfinite(x):
        return math.nan
    # Up to here the products with the first two parts of pi / 2 are exact (_HALF_PI_PARTS).
    turns, r = _reduce_small(x) if abs(x) <= 32768.0 else _reduce_large(x)
    turns = (turns + quadrant) & 3
    square = r * r
    value = _polynomial(_COS, square) if turns & 1 else r * _polynomial(_SIN, square)
    return -value if turns & 2 else value


def _reduce_small(x: float) -> tuple[int, float]:
    """x as turns * (pi / 2) + r with |r| <= pi / 4, by three parts of pi / 2 (Cody and Waite)."""
    k = (x * _TWO_OVER_PI + _SHIFT) - _SHIFT
    first, second, third = _HALF_PI_PARTS
    return int(k) & 3, ((x - k * first) - k * second) - k * third


def _reduce_large(x: float) -> tuple[int, float]:
    """As `_reduce_small`, for |x| > 32768: x times those bits of 2 / pi that matter, in integers (Payne and Hanek)."""
    mantissa, exponent = math.frexp(abs(x))
    integer, exponent = int(mantissa * 2.0**24), exponent - 24
    window = (_TWO_OVER_PI_BITS >> (256 - 126 - exponent)) & (2**128 - 1)  # 2 integer bits, 126 of fraction
    # What falls off at the top are whole turns of 2 pi.
    product = (integer * window) & (2**128 - 1)
    high, low = product >> 64, product & (2**64 - 1)
    # To the nearest quarter turn, so that |r| is at most pi / 4, as the polynomials need.
    turns = (high + 2**61) >> 62
    r = (float(high - (turns << 62)) * 2.0**-62 + float(low) * 2.0**-126) * _HALF_PI
    return (turns & 3, r) if x > 0.0 else (-turns & 3, -r)


def _polynomial(coefficients: Sequence[float], x: float) -> float:
    """Horner's rule, lowest coefficient first."""
    total = coefficients[-1]
    for coefficient in reversed(coefficients[:-1]):
        total = total * x + coefficient
    return total


def _clamp(x: float, low: float, high: float) -> float:
    return low if x < low else high if x > high else x


FUNCTIONS: dict[str, Callable[[float], float]] = {
    "exp": exp, "log": log, "tanh": tanh, "erf": erf, "sigmoid": sigmoid, "rsqrt": rsqrt,
    "sin": sin, "cos": cos, "gelu": gelu, "gelu_gradient": gelu_gradient,
}  # fmt: skip
