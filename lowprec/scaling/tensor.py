"""Arrays with a scale, one for the whole tensor or one for each index of an axis, and exact scaling.

A power of two (`exponent`) is what the IPU's fp8 tensors carry; any float32 (`scale`), for the tensor or per axis, is
what fp8 recipes on other machines use.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, Unpack

import numpy as np
from numpy.lib.array_utils import normalize_axis_tuple
from numpy.typing import ArrayLike, DTypeLike, NDArray

from lowprec import backends
from lowprec.arrays import whole_array
from lowprec.backends.owner import is_cupy, refuse_cupy
from lowprec.foreign import as_array_of, takes_foreign
from lowprec.processor import in_default_state
from lowprec.rounding import decode, encode
from lowprec.scaling.quotients import quotient, scale_by_power
from lowprec.types import Array
from lowprec.values.float_format import FloatFormat
from lowprec.values.formats import as_format, format_of_dtype
from lowprec.values.keys import KeyLike, key_value, word
from lowprec.values.keywords import FewBitRoundingLike, PolicyKeywords, as_rounding, refuse_unhashable, refuse_unknown
from lowprec.values.operands import is_narrow
from lowprec.values.outputs import check_out
from lowprec.values.rounding import Rounding

IPU_EXPONENTS = (-32, 31)  # the 6-bit signed scale of a quarter tensor


@dataclass(frozen=True, eq=False)
class ScaledArray:
    """An array of elements that share the factor scale * 2^exponent, made by `to_scaled`.

    Attributes:
        format: format of the elements.
        elements: storage dtype of `format` (its codes where it has none), shape of the original array.
        exponent: value = element * scale * 2^exponent.
        scale: a float32 value, or float32 values of a shape that broadcasts to the elements'; 1.0 where there is none.
        library: whose arrays `dequantize` gives: "numpy", "torch" or "jax", as `to_scaled` had one. `elements` and
            `scale` are NumPy's.
    """

    format: FloatFormat
    elements: Array
    exponent: int
    scale: float | Array = 1.0
    library: str = "numpy"

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array."""
        return self.elements.shape

    @takes_foreign
    def dequantize(self, dtype: DTypeLike | None = None, out: Array | None = None) -> Any:
        """The values, element * scale * 2^exponent, in float32 or float64, rounded once where that does not hold them.

        Args:
            dtype: float32 or float64; None means out's, or float32.
            out: Where to put them: a C-contiguous array of that dtype and this shape.

        Raises:
            TypeError: another dtype, or an out of another one.
            ValueError: an out of another shape, or one that cannot be written in place.
        """
        values = self._values(dtype, out)
        return values if out is not None else as_array_of(self.library, values)

    @in_default_state
    def _values(self, dtype: DTypeLike | None, out: Array | None) -> Array:
        dtype = output_dtype(dtype, out)
        target = checked_out("out", out, self.shape, dtype, self.elements)
        codes = kept_from(self.elements.view(self.format.code_dtype), target)
        plain = not isinstance(self.scale, np.ndarray) and self.scale == 1.0
        if plain and backends.of(codes).spread_power(codes, self.format, self.exponent, target):
            return target
        refuse_undone(False, codes, f"a scale of {self.scale!r} times 2^{self.exponent} and {self.format.name}")
        values = from_storage(self.elements, self.format).astype(np.float64)
        with np.errstate(over="ignore", under="ignore"):
            # An element times a float32 is exact in float64; it is rounded once, where it is written to float32.
            target[...] = np.ldexp(values * np.asarray(self.scale, np.float64), self.exponent)
        return target

    def of_library(self, name: str) -> ScaledArray:
        """This array, but `dequantize` gives its values as arrays of that library."""
        return replace(self, library=name)

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> Array:
        if copy is False:
            raise ValueError("a ScaledArray becomes an array only by dequantizing, which copies")
        refuse_cupy(self.elements)
        wide = dtype is not None and np.dtype(dtype) == np.float64
        values = self._values(np.float64 if wide else np.float32, None)
        return values if dtype is None else values.astype(dtype, copy=False)

    def __repr__(self) -> str:
        one = not isinstance(self.scale, np.ndarray)
        if one and self.scale == 1.0:
            return f"<ScaledArray {self.format.name} {self.shape}, times 2^{self.exponent}>"
        scale = f"{self.scale:g}" if one else f"scales of shape {np.shape(self.scale)}"
        return f"<ScaledArray {self.format.name} {self.shape}, times {scale}>"


@takes_foreign
@in_default_state
def to_scaled(
    x: ArrayLike,
    fmt: Any,
    exponent: int | Literal["auto"] = "auto",
    *,
    scale: float | ArrayLike | Literal["auto"] | None = None,
    axis: int | tuple[int, ...] | None = None,
    limits: tuple[int, int] = IPU_EXPONENTS,
    rounding: FewBitRoundingLike = "nearest_even",
    key: KeyLike | None = None,
    offset: int = 0,
    out: Array | None = None,
    **policies: Unpack[PolicyKeywords],
) -> ScaledArray:
    """Quantises x to `fmt` after dividing it by a scale, exactly, with one rounding per element.

    Args:
        x: Floating-point array of any shape (or integers that float64 holds exactly); of NumPy, torch or JAX.
        fmt: Format of the elements: a format, a name or a dtype. The IPU's are float8_e4m3fnuz and float8_e5m2fnuz.
        exponent: The scale is 2^exponent. "auto" takes the smallest within `limits` for which no finite value of x
            exceeds the largest element before rounding; 0 if x has no finite value but zero.
        scale: A scale that is no power of two, in place of the exponent: a positive number, or an array of them that
            broadcasts to x's shape, in float32 (others are rounded to it, to nearest). "auto" is the largest finite
            magnitude divided by the format's largest value, rounded up to a normal float32; 1 where that is 0.
        axis: For "auto" the axis or axes that keep scales of their own: ``to_scaled(w, "e4m3", scale="auto", axis=0)``
            has one per row of a matrix. With exponent="auto" these are powers of two, in `scale`. None: one for all.
            For given scales the axis along which a vector of them lies.
        limits: Smallest and largest exponent allowed; the default is what an fp8 tensor of the IPU can carry.
        rounding, key, offset: As in `lowprec.round`, with the keywords random_bits, overflow and infinite_input.
            overflow="ipu" is the machine with `nanoo` off: finite values saturate and infinities become NaN.
        out: Where to put the elements: a C-contiguous array of x's shape and the dtype that `elements` has; may share
            memory with x.

    Raises:
        ValueError: an exponent outside of `limits`; scales that are not positive or do not broadcast to x; an axis that
            x does not have; unknown format or mode.
        TypeError: an exponent or limits that are no integers; a scale or an axis beside an exponent; complex, bool or
            extended-precision x.
    """
    fmt = as_format(fmt)
    how = element_rounding("to_scaled", rounding, policies, PolicyKeywords)
    values = readable_or_carrier(x, fmt)
    limits = _checked_limits(limits)
    elements = checked_out("out", out, values.shape, fmt.dtype or fmt.code_dtype, values)
    values = kept_from(values, elements)
    start = random_start(how, key, offset)
    if scale is not None or axis is not None:
        if is_cupy(values):
            raise ValueError("scale= and axis= are for NumPy arrays: on a GPU a tensor has one power of two, exponent=")
        divisor = _scales(values, fmt, exponent, scale, axis, limits)
        divided = quotient(as_carrier(values, fmt), divisor.astype(np.float64))
        elements[...] = in_storage(np.asarray(encode(divided, fmt, how, key=key, offset=offset)), fmt)
        return ScaledArray(fmt, elements, 0, divisor if divisor.ndim else float(divisor))
    power = _power(values, fmt, exponent, limits)
    done = backends.of(values).scale_and_round(values, fmt, power, how, *start, elements.view(fmt.code_dtype))
    if not refuse_undone(done, values, f"{how.mode} to {fmt.name} times 2^{power}"):
        codes = encode(scale_by_power(as_carrier(values, fmt), -power), fmt, how, key=key, offset=offset)
        elements[...] = in_storage(np.asarray(codes), fmt)
    return ScaledArray(fmt, elements, power)


def _power(values: Array, fmt: FloatFormat, exponent: Any, limits: tuple[int, int]) -> int:
    """The exponent of the scale of a whole tensor: the given one, checked, or for "auto" the smallest that fits."""
    if isinstance(exponent, str) and exponent == "auto":
        power = _fitting_exponent(backends.of(values).largest_magnitude(values), fmt, limits)
    elif isinstance(exponent, (int, np.integer)) and not isinstance(exponent, bool):
        power = int(exponent)
    else:
        raise TypeError(f"exponent must be 'auto' or an integer, not {exponent!r}; any other scale is scale=")
    if not limits[0] <= power <= limits[1]:
        raise ValueError(f"the exponent {power} is outside of {limits[0]}..{limits[1]}")
    return power


def _scales(
    values: Array, fmt: FloatFormat, exponent: Any, scale: Any, axis: Any, limits: tuple[int, int]
) -> NDArray[np.float32]:
    """The scales that are divided by, as float32 of a shape that broadcasts to the values'."""
    if not (isinstance(exponent, str) and exponent == "auto"):
        raise TypeError("give an exponent for the whole tensor, or scale= or axis=, not both")
    if scale is not None and not (isinstance(scale, str) and scale == "auto"):
        return _given_scales(scale, values.shape, axis)
    kept = () if axis is None else normalize_axis_tuple(axis, values.ndim, "axis")
    others = tuple(set(range(values.ndim)) - set(kept))
    wide = values.astype(np.float64)
    amax = np.max(np.abs(wide), axis=others, where=np.isfinite(wide), initial=0.0, keepdims=bool(kept))
    if scale is None:
        powers = [_fitting_exponent(float(each), fmt, limits) for each in amax.ravel()]
        return np.ldexp(np.ones(amax.shape, np.float32), np.reshape(powers, amax.shape))
    made = np.asarray(amax / fmt.max).astype(np.float32)
    # Rounded up: with a scale rounded down the largest value itself would overflow.
    made = np.where(made.astype(np.float64) * fmt.max < amax, np.nextafter(made, np.float32(np.inf)), made)
    # A normal float32: dividing by a subnormal one, or by 0, would overflow.
    return np.where(amax > 0, np.maximum(made, np.finfo(np.float32).tiny), np.float32(1))


def _given_scales(scale: Any, shape: tuple[int, ...], axis: Any) -> NDArray[np.float32]:
    """Scales that a user gives, checked, in float32; a vector along an axis is given the shape that broadcasts so."""
    with np.errstate(over="ignore"):
        given = None if isinstance(scale, str) else whole_array(scale)
        made = np.zeros((), np.float32) if given is None else given.astype(np.float64).astype(np.float32)
    if not ((made > 0) & np.isfinite(made)).all():
        raise ValueError(f"scale must hold positive numbers that float32 holds, or be 'auto', not {scale!r}")
    if axis is not None:
        places = normalize_axis_tuple(axis, len(shape), "axis")
        wanted = tuple(shape[n] for n in sorted(places))
        # A vector alone would broadcast along the last axis, whatever axis was meant.
        if made.shape not in (wanted, tuple(size if n in places else 1 for n, size in enumerate(shape))):
            raise ValueError(f"x's {shape} has {wanted} scales along axis {axis}, not an array of shape {made.shape}")
        made = made.reshape([size if n in places else 1 for n, size in enumerate(shape)])
    fits = all(n in (1, size) for n, size in zip(made.shape[::-1], shape[::-1], strict=False))
    if made.ndim > len(shape) or not fits:
        raise ValueError(f"scales of shape {made.shape} do not broadcast to x's {shape}")
    return made


def _checked_limits(limits: object) -> tuple[int, int]:
    """Smallest and largest exponent as integers, in order."""
    pair = limits if isinstance(limits, (tuple, list)) else ()
    if len(pair) != 2 or not all(isinstance(x, (int, np.integer)) for x in pair) or pair[0] > pair[1]:
        raise TypeError(f"limits must be two integers, the smallest and the largest exponent, not {limits!r}")
    return int(pair[0]), int(pair[1])


def _fitting_exponent(amax: float, fmt: FloatFormat, limits: tuple[int, int]) -> int:
    # Of zeros alone: 0 where the limits allow it, else the limit next to it.
    if amax == 0:
        return min(max(0, limits[0]), limits[1])
    fraction, exponent = math.frexp(amax)
    # By the significands, exactly: one more where amax's is beyond that of the largest element.
    power = exponent - 1 - fmt.emax + (2 * fraction > fmt.max / 2.0**fmt.emax)
    return min(max(power, limits[0]), limits[1])


# ---- what block formats and tensor scales share ----


def element_rounding(what: str, rounding: FewBitRoundingLike, policies: Mapping[str, Any], allowed: type) -> Rounding:
    """The Rounding of quantised elements.

    Raises:
        TypeError, ValueError: as `lowprec.round`; a Rounding that flushes.
    """
    refuse_unhashable(rounding=rounding, **policies)
    refuse_unknown(policies, allowed)
    how = as_rounding(rounding, **policies)
    if how.flush:
        raise ValueError(f"flush=True is for single roundings; {what} does not flush subnormal elements")
    return how


def random_start(rounding: Rounding, key: KeyLike | None, offset: int) -> tuple[int, int]:
    """Key and first index of the random bits.

    Raises:
        ValueError: stochastic rounding without a key, or an offset out of range.
    """
    if rounding.stochastic and key is None:
        raise ValueError("stochastic rounding needs key=, a lowprec.Key or an integer")
    return 0 if key is None else key_value(key), word("offset", offset)


def readable_or_carrier(x: ArrayLike, fmt: FloatFormat) -> Array:
    """x as it is where backends read its dtype, else as `as_carrier` gives it (which says what is raised)."""
    array = whole_array(x)
    return array if is_narrow(array.dtype) else as_carrier(array, fmt)


def refuse_undone(done: bool, array: Array, what: str) -> bool:
    """Whether a backend did the work itself; on a GPU there are no steps in NumPy that could.

    Raises:
        ValueError: it did not, and the array is CuPy's.
    """
    if not done and is_cupy(array):
        raise ValueError(
            f"{what} runs on NumPy arrays only: on a GPU formats lie within 2^128, and roundings draw "
            "a fixed number of random bits in mode stochastic"
        )
    return done


def output_dtype(dtype: DTypeLike | None, out: Array | None) -> np.dtype[Any]:
    """float32 or float64, the dtypes in which quantised values come back."""
    if dtype is None:
        dtype = np.float32 if out is None else getattr(out, "dtype", np.float32)
    dtype = np.dtype(dtype)
    if dtype not in (np.float32, np.float64):
        raise TypeError(f"dequantize gives float32 or float64, not {dtype}")
    return dtype


def checked_out(
    what: str, out: Array | None, shape: tuple[int, ...], dtype: np.dtype[Any], like: Array | None = None
) -> Array:
    """`out`, or a new array for None: NumPy's, or CuPy's where `like` is.

    Raises:
        TypeError: out is no array of that dtype.
        ValueError: it has another shape, or is not C-contiguous and writable.
    """
    if is_cupy(like):
        out = backends.load("cuda").output_of_any(out, like, shape, dtype)
        fits = out.flags.c_contiguous
    else:
        if out is None:
            return np.empty(shape, dtype)
        check_out(out, shape, dtype, what)
        fits = out.flags.carray
    # No hidden copy: `out` is there so that memory is written in place.
    if not fits:
        raise ValueError(f"{what} must be C-contiguous and writable")
    return out


def kept_from(values: Array, *outputs: Array) -> Array:
    """Values that are still to be read when outputs are written: a copy where they share memory."""
    if is_cupy(values):
        cuda = backends.load("cuda")
        return cuda.copied(values) if any(cuda.overlap(values, out) for out in outputs) else values
    return values.copy() if any(np.may_share_memory(values, out) for out in outputs) else values


def in_storage(codes: Array, fmt: FloatFormat) -> Array:
    """Codes seen in the format's storage dtype, where it has one."""
    return codes if fmt.dtype is None else codes.view(fmt.dtype)


def from_storage(elements: Array, fmt: FloatFormat) -> Array:
    """The values of `in_storage`'s result, in float32 (float64 for float64)."""
    return np.asarray(decode(elements.view(fmt.code_dtype), fmt))


def as_carrier(x: ArrayLike, fmt: FloatFormat) -> Array:
    """x as float32 or float64, exactly, wide enough to be scaled by the powers of two that bring it near fmt's range.

    Raises:
        TypeError: x is complex, bool or of extended precision.
        ValueError: an integer beyond 2^53.
    """
    array = whole_array(x)
    if not isinstance(array, np.ndarray):
        raise TypeError(f"on a GPU floating-point arrays are scaled, not {array.dtype}")
    if array.dtype.kind in "iu":
        # abs of Python's integers: NumPy's of the smallest int64 is negative.
        if array.dtype.itemsize == 8 and array.size and max(abs(int(array.min())), abs(int(array.max()))) > 2**53:
            raise ValueError("integers beyond 2^53 would be rounded twice: pass floating-point values")
        return array.astype(np.float64)
    narrow = array.dtype != np.float64
    if format_of_dtype(array.dtype) is None:
        raise TypeError(f"expected real floating-point values of at most 64 bits, got {array.dtype}")
    # Formats far inside of float32's range: scaled values at its ends are beyond all that a rounding distinguishes.
    central = fmt.emax < 64 and fmt.smallest_subnormal > 2.0**-64
    return array.astype(np.float32 if narrow and central else np.float64, copy=False)
