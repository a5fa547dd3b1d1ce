"""Arrays with one power-of-two scale for the whole tensor, such as the IPU's fp8 tensors, and exact scaling."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from lowprec.arrays import input_array
from lowprec.float_format import FloatFormat
from lowprec.formats import as_format, format_of_dtype
from lowprec.rounding import decode, encode

IPU_EXPONENTS = (-32, 31)  # the 6-bit signed scale of a quarter tensor


@dataclass(frozen=True, eq=False)
class ScaledArray:
    """An array of elements that share the factor 2^exponent, made by `to_scaled`.

    Attributes:
        format: format of the elements.
        elements: storage dtype of `format` (its codes where it has none), shape of the original array.
        exponent: value = element * 2^exponent.
    """

    format: FloatFormat
    elements: NDArray[Any]
    exponent: int

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array."""
        return self.elements.shape

    def dequantize(self, dtype: DTypeLike = np.float32) -> NDArray[Any]:
        """The values, element * 2^exponent, in float32 or float64: exact while they are within that dtype's range.

        Raises:
            TypeError: another dtype.
        """
        dtype = checked_float(dtype)
        values = from_storage(self.elements, self.format).astype(np.float64)
        with np.errstate(over="ignore", under="ignore"):
            return np.asarray(np.ldexp(values, self.exponent), dtype)

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        if copy is False:
            raise ValueError("a ScaledArray becomes an array only by dequantizing, which copies")
        wide = dtype is not None and np.dtype(dtype) == np.float64
        values = self.dequantize(np.float64 if wide else np.float32)
        return values if dtype is None else values.astype(dtype, copy=False)

    def __repr__(self) -> str:
        return f"<ScaledArray {self.format.name} {self.shape}, times 2^{self.exponent}>"


def to_scaled(
    x: ArrayLike,
    fmt: Any,
    exponent: int | Literal["auto"] = "auto",
    *,
    limits: tuple[int, int] = IPU_EXPONENTS,
    rounding: str = "nearest_even",
    key: Any = None,
    random_bits: int | str = 16,
    overflow: str | None = None,
    infinite_input: str | None = None,
    offset: int = 0,
) -> ScaledArray:
    """Quantises x to `fmt` after dividing it by 2^exponent, exactly, with one rounding per element.

    Args:
        x: Floating-point array of any shape (or integers that float64 holds exactly).
        fmt: Format of the elements: a format, a name or a dtype. The IPU's are float8_e4m3fnuz and float8_e5m2fnuz.
        exponent: "auto" takes the smallest exponent within `limits` for which no finite value of x exceeds the largest
            element before rounding; 0 if x has no finite value but zero.
        limits: Smallest and largest exponent allowed; the default is what an fp8 tensor of the IPU can carry.
        rounding, key, random_bits, overflow, infinite_input, offset: As in `lowprec.round`. overflow="ipu" is the
            machine with `nanoo` off: finite values saturate and infinities become NaN.

    Raises:
        ValueError: an exponent outside of `limits`; unknown format or mode.
        TypeError: complex, bool or extended-precision x.
    """
    fmt = as_format(fmt)
    values = as_carrier(x, fmt)
    power = _fitting_exponent(values, fmt, limits) if exponent == "auto" else int(exponent)
    if not limits[0] <= power <= limits[1]:
        raise ValueError(f"the exponent {power} is outside of {limits[0]}..{limits[1]}")
    codes = encode(
        scale_by_power(values, -power),
        fmt,
        rounding,
        key=key,
        random_bits=random_bits,
        overflow=overflow,
        infinite_input=infinite_input,
        offset=offset,
    )
    return ScaledArray(fmt, in_storage(codes, fmt), power)


def _fitting_exponent(values: NDArray[Any], fmt: FloatFormat, limits: tuple[int, int]) -> int:
    magnitudes = np.abs(values)
    amax = float(magnitudes.max(initial=0, where=np.isfinite(magnitudes)))
    if amax == 0:
        return min(max(0, limits[0]), limits[1])
    fraction, exponent = math.frexp(amax)
    power = exponent - 1 - fmt.emax + (2 * fraction > fmt.max / 2.0**fmt.emax)
    return min(max(power, limits[0]), limits[1])


# ---- what block formats and tensor scales share ----


def checked_float(dtype: DTypeLike) -> np.dtype[Any]:
    """float32 or float64, the dtypes in which quantised values come back."""
    dtype = np.dtype(dtype)
    if dtype not in (np.float32, np.float64):
        raise TypeError(f"dequantize gives float32 or float64, not {dtype}")
    return dtype


def in_storage(codes: NDArray[Any], fmt: FloatFormat) -> NDArray[Any]:
    """Codes seen in the format's storage dtype, where it has one."""
    return codes if fmt.dtype is None else codes.view(fmt.dtype)


def from_storage(elements: NDArray[Any], fmt: FloatFormat) -> NDArray[Any]:
    """The values of `in_storage`'s result, in float32 (float64 for float64)."""
    return np.asarray(decode(elements.view(fmt.code_dtype), fmt))


def as_carrier(x: ArrayLike, fmt: FloatFormat) -> NDArray[Any]:
    """x as float32 or float64, exactly, wide enough to be scaled by the powers of two that bring it near fmt's range.

    Raises:
        TypeError: x is complex, bool or of extended precision.
        ValueError: an integer beyond 2^53.
    """
    array, _ = input_array(x)
    if not isinstance(array, np.ndarray):
        raise TypeError(
            f"scaling works on NumPy arrays; {type(array).__module__} arrays must be copied to the host first"
        )
    if array.dtype.kind in "iu":
        if array.dtype.itemsize == 8 and array.size and max(abs(int(array.min())), abs(int(array.max()))) > 2**53:
            raise ValueError("integers beyond 2^53 would be rounded twice: pass floating-point values")
        return array.astype(np.float64)
    narrow = array.dtype != np.float64
    if format_of_dtype(array.dtype) is None:
        raise TypeError(f"expected real floating-point values of at most 64 bits, got {array.dtype}")
    central = fmt.emax < 64 and fmt.smallest_subnormal > 2.0**-64
    return array.astype(np.float32 if narrow and central else np.float64, copy=False)


def scale_by_power(values: NDArray[Any], exponents: NDArray[Any] | int) -> NDArray[Any]:
    """values * 2^exponents, exact within the dtype's range.

    Beyond it a finite non-zero value stays finite and non-zero. That is all a later rounding can see of it, because
    the grid lies far inside that range (see `as_carrier`).
    """
    with np.errstate(under="ignore", over="ignore"):
        scaled = np.asarray(np.ldexp(values, exponents))
    return _kept_in_range(scaled, values)


def quotient(x: NDArray[Any], divisor: NDArray[np.float64], bits: int = 64) -> NDArray[np.float64]:
    """x / divisor in float64, such that one later rounding decides as it would on the exact quotient.

    Rounding to odd always does. The nearest float64 does for a float32 x, if m * divisor has at most 52 bits for every
    boundary m of that rounding: both are then multiples of a unit so large that a quotient other than m is more than
    2^-53 m away from it.

    Args:
        x: float32 or float64.
        divisor: Positive.
        bits: Bits of the longest m * divisor.
    """
    with np.errstate(under="ignore", over="ignore", invalid="ignore"):
        q = np.asarray(x / divisor, dtype=np.float64)
    if x.dtype == np.float32 and bits <= 52:
        return _kept_in_range(q, x)
    remainder = _remainder(x.astype(np.float64, copy=False), q, divisor)
    codes = q.view(np.int64)
    # A quotient rounded away from zero steps back; then an inexact one gets an odd last bit.
    inexact = (remainder != 0) & np.isfinite(remainder) & (q != 0)
    codes -= inexact & ((remainder < 0) != (q < 0))
    codes |= inexact
    return _kept_in_range(q, x)


def _remainder(x: NDArray[np.float64], q: NDArray[np.float64], divisor: NDArray[np.float64]) -> NDArray[np.float64]:
    """x - q * divisor, exactly, for q the nearest float64 quotient (Dekker's product)."""
    with np.errstate(all="ignore"):
        product = q * divisor
        q_high, d_high = _high_half(q), _high_half(divisor)
        q_low, d_low = q - q_high, divisor - d_high
        error = ((q_high * d_high - product) + q_high * d_low + q_low * d_high) + q_low * d_low
        return np.asarray((x - product) - error)


def _high_half(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """The upper 26 bits of a float64's significand (Veltkamp)."""
    shifted = x * 134217729.0  # 2^27 + 1
    return np.asarray(shifted - (shifted - x))


def _kept_in_range(scaled: NDArray[Any], values: NDArray[Any]) -> NDArray[Any]:
    """Non-zero finite values stay so: what under- or overflowed in scaling becomes the smallest or largest float."""
    info = np.finfo(scaled.dtype)
    if np.count_nonzero(scaled) != np.count_nonzero(values):
        lost = (scaled == 0) & (values != 0)
        scaled = np.where(lost, np.copysign(info.smallest_normal, scaled), scaled)
    infinite = np.isinf(scaled)
    if infinite.any():
        scaled = np.where(infinite & np.isfinite(values), np.copysign(info.max, scaled), scaled)
    return scaled
