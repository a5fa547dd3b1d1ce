"""A number format as data: a handful of numbers from which every other property derives."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, cast

import ml_dtypes
import numpy as np

from lowprec._caching import cached
from lowprec.processor import in_default_state
from lowprec.values.describe import format_html, format_text

NanStyle = Literal["ieee", "top", "negative_zero", "none"]
NAN_STYLES = ("ieee", "top", "negative_zero", "none")
MAX_BITS = 31

# Formats whose codes are the bytes of a dtype: every number of the format but its name -> the dtype. The name is left
# out, so that a format built by hand from float16's numbers is stored as float16.
STORAGE: dict[tuple[object, ...], np.dtype[Any]] = {
    (11, 52, 1023, True, True, "ieee", True, True): np.dtype(np.float64),
    (8, 23, 127, True, True, "ieee", True, True): np.dtype(np.float32),
    (8, 7, 127, True, True, "ieee", True, True): np.dtype(ml_dtypes.bfloat16),
    (5, 10, 15, True, True, "ieee", True, True): np.dtype(np.float16),
    (4, 3, 7, True, False, "top", True, True): np.dtype(ml_dtypes.float8_e4m3fn),
    (5, 2, 15, True, True, "ieee", True, True): np.dtype(ml_dtypes.float8_e5m2),
    (4, 3, 8, True, False, "negative_zero", True, True): np.dtype(ml_dtypes.float8_e4m3fnuz),
    (5, 2, 16, True, False, "negative_zero", True, True): np.dtype(ml_dtypes.float8_e5m2fnuz),
    (4, 3, 7, True, True, "ieee", True, True): np.dtype(ml_dtypes.float8_e4m3),
    (3, 4, 3, True, True, "ieee", True, True): np.dtype(ml_dtypes.float8_e3m4),
    (4, 3, 11, True, False, "negative_zero", True, True): np.dtype(ml_dtypes.float8_e4m3b11fnuz),
    (8, 0, 127, False, False, "top", False, False): np.dtype(ml_dtypes.float8_e8m0fnu),
    (2, 3, 1, True, False, "none", True, True): np.dtype(ml_dtypes.float6_e2m3fn),
    (3, 2, 3, True, False, "none", True, True): np.dtype(ml_dtypes.float6_e3m2fn),
    (2, 1, 1, True, False, "none", True, True): np.dtype(ml_dtypes.float4_e2m1fn),
}


@dataclass(frozen=True, eq=False, repr=False)
# Equality and hash are written out below: the ones of dataclass would compare and hash nine fields at every call.
class FloatFormat:
    """A binary floating-point format of at most 31 bits (float32 and float64 are the two larger ones).

    Attributes:
        name: what it is called in messages and specs.
        exponent_bits: width of the exponent field, at least 1.
        mantissa_bits: stored bits of the significand (0 for powers of two only).
        bias: exponent bias; None means 2^(exponent_bits - 1) - 1.
        signed: whether the top bit is a sign.
        infinities: whether there is an infinity (positive and, if signed, negative).
        nan: where NaN is. "ieee": the top exponent is reserved for infinity and NaNs. "top": the magnitude with
            all bits set. "negative_zero": the code of -0 (so there is no -0). "none": there is no NaN.
        subnormals: False: between 0 and the smallest normal value there is nothing.
        zero: False: there is no zero and code 0 is the smallest power of two (e8m0).

    Raises:
        TypeError: a number that is no integer, a flag that is neither True nor False.
        ValueError: the numbers do not make a format, or one that float64 cannot hold.
    """

    name: str
    exponent_bits: int
    mantissa_bits: int = None  # type: ignore[assignment]  # always an int after construction
    bias: int = None  # type: ignore[assignment]  # always an int after construction
    signed: bool = True
    infinities: bool = True
    nan: NanStyle = "ieee"
    subnormals: bool = True
    zero: bool = True

    def __post_init__(self) -> None:
        given: object = self.name
        if not isinstance(given, str):
            meant = f"; by its widths alone it is as_format('e{given}m{self.exponent_bits}')"
            told = meant if isinstance(given, int) else ""
            raise TypeError(f"a format's name must be a string, not {given!r}{told}")
        if cast("int | None", self.mantissa_bits) is None:
            raise TypeError(f"format {self.name!r} needs exponent_bits and mantissa_bits")
        if cast("int | None", self.bias) is None:
            # An absurd width is refused by `_check`, in words; the power must not be computed before.
            width = _integer(self, "exponent_bits")
            object.__setattr__(self, "bias", 2 ** (width - 1) - 1 if 0 < width < 64 else 0)
        for field in ("exponent_bits", "mantissa_bits", "bias"):
            object.__setattr__(self, field, _integer(self, field))
        for field in ("signed", "infinities", "subnormals", "zero"):
            if not isinstance(getattr(self, field), bool):
                raise TypeError(f"format {self.name!r}: {field} must be True or False, not {getattr(self, field)!r}")
        # Formats are keys of every cache: hashed once.
        object.__setattr__(self, "_hash", hash(self._numbers))
        _check(self)

    @cached_property
    def _numbers(self) -> tuple[object, ...]:
        return tuple(getattr(self, field) for field in self.__dataclass_fields__)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, FloatFormat) and self._numbers == other._numbers)

    def __hash__(self) -> int:
        return int(self._hash)  # type: ignore[attr-defined]

    def __reduce__(self) -> tuple[type[FloatFormat], tuple[object, ...]]:
        # By its numbers: the stored hash is this process's own, and `__post_init__` must run.
        return FloatFormat, self._numbers

    # ---- widths and codes ----

    @cached_property
    def bits(self) -> int:
        """Width of a code."""
        return int(self.signed) + self.exponent_bits + self.mantissa_bits

    @cached_property
    def precision(self) -> int:
        """Bits of the significand with the implicit one."""
        return self.mantissa_bits + 1

    @cached_property
    def sign_bit(self) -> int:
        """The code's sign bit; 0 for unsigned formats."""
        return 1 << (self.bits - 1) if self.signed else 0

    @cached_property
    def max_code(self) -> int:
        """Code of the largest finite value; magnitude codes above it are special."""
        top = (1 << (self.exponent_bits + self.mantissa_bits)) - 1
        # The mantissas beside the top exponent's infinity are all NaN; the other styles give NaN and infinity one code
        # each.
        if self.nan == "ieee":
            return top - (1 << self.mantissa_bits)
        return top - (self.nan == "top") - self.infinities

    @cached_property
    def inf_code(self) -> int | None:
        """Code of +infinity; None if there is none."""
        return self.max_code + 1 if self.infinities else None

    @cached_property
    def nan_code(self) -> int | None:
        """Code of the canonical NaN (positive where there is a choice); None if there is none."""
        top = (1 << (self.exponent_bits + self.mantissa_bits)) - 1
        match self.nan:
            case "ieee":
                # The top mantissa bit makes it quiet.
                return (top + 1 - (1 << self.mantissa_bits)) | (1 << (self.mantissa_bits - 1))
            case "top":
                return top
            case "negative_zero":
                return self.sign_bit
            case _:
                return None

    @cached_property
    def negative_zero(self) -> bool:
        """Whether there is a -0."""
        return self.signed and self.zero and self.nan != "negative_zero"

    @cached_property
    def min_normal_code(self) -> int:
        """Code of the smallest normal value."""
        # Without a zero code 0 is a normal value already (float8_e8m0fnu).
        return 1 << self.mantissa_bits if self.zero else 0

    # ---- values, exact in float64 ----

    @cached_property
    def emin(self) -> int:
        """Exponent of the smallest normal value."""
        return 1 - self.bias if self.zero else -self.bias

    @cached_property
    def emax(self) -> int:
        """Exponent of the largest finite value."""
        return math.frexp(self.max)[1] - 1

    @in_default_state
    def value_of(self, code: int) -> float:
        """The value of one code, exact.

        Raises:
            ValueError: the code is wider than the format.
        """
        if not 0 <= code < 1 << self.bits:
            raise ValueError(f"code {code:#x} does not fit the {self.bits} bits of {self.name}")
        magnitude = code & ~self.sign_bit
        sign = -1.0 if code & self.sign_bit else 1.0
        if code == self.nan_code or (magnitude > self.max_code and magnitude != self.inf_code):
            return math.nan
        if magnitude == self.inf_code:
            return sign * math.inf
        # Computed by ldexp, exact also among float64's subnormals, but not where the processor flushes them: hence the
        # default state. A zero so made would stay, in the properties that are computed once.
        if magnitude < self.min_normal_code:
            return sign * (math.ldexp(magnitude, self.emin - self.mantissa_bits) if self.subnormals else 0.0)
        field, mantissa = divmod(magnitude - self.min_normal_code, 1 << self.mantissa_bits)
        # As a whole number times a power of two: no rounding on the way.
        significand = (1 << self.mantissa_bits) + mantissa
        return sign * math.ldexp(significand, self.emin + field - self.mantissa_bits)

    @cached_property
    def max(self) -> float:
        """Largest finite value."""
        return self.value_of(self.max_code)

    @cached_property
    def min(self) -> float:
        """Smallest (most negative) finite value."""
        if self.signed:
            return -self.max
        return 0.0 if self.zero else self.smallest_normal

    @cached_property
    def eps(self) -> float:
        """Distance from 1 to the next larger value in a binade, 2^-mantissa_bits."""
        return math.ldexp(1.0, -self.mantissa_bits)

    @cached_property
    @in_default_state
    def smallest_normal(self) -> float:
        """Smallest positive normal value, 2^emin."""
        return math.ldexp(1.0, self.emin)

    @cached_property
    @in_default_state
    def smallest_subnormal(self) -> float:
        """Smallest positive value."""
        if self.subnormals and self.zero:
            return math.ldexp(1.0, self.emin - self.mantissa_bits)
        return self.smallest_normal

    # ---- storage ----

    @cached_property
    def dtype(self) -> np.dtype[Any] | None:
        """The NumPy or ml_dtypes dtype whose bytes are this format's codes; None for formats without one."""
        # Without the name, which is the first.
        return STORAGE.get(self._numbers[1:])

    @cached_property
    def code_dtype(self) -> np.dtype[Any]:
        """The unsigned integer dtype that `encode` returns."""
        return np.dtype(f"u{1 if self.bits <= 8 else 2 if self.bits <= 16 else 4 if self.bits <= 32 else 8}")

    @cached_property
    def within_kernels(self) -> bool:
        """Whether the compiled loops round to it: all normal values of the format must be normal in float64.

        The reference rounds to other formats (exponents below -1022), on NumPy arrays only: exactly, but slowly, so
        that the first call warns. Products, the machine's sums and elementwise operations refuse them.
        """
        return self.emin > -1022 or (self.emin == -1022 and self.subnormals)

    def contains(self, other: FloatFormat) -> bool:
        """Whether every value of `other`, with its infinities, NaN and -0, is a value of this format."""
        # Most questions are of a format about itself.
        return self == other or _contains(self, other)

    def __repr__(self) -> str:
        layout = f"e{self.exponent_bits}m{self.mantissa_bits}"
        return f"<FloatFormat {self.name}: {self.bits} bits, {layout}, bias {self.bias}>"

    def __str__(self) -> str:
        return format_text(self)

    def _repr_html_(self) -> str:
        return format_html(self)


@cached
@in_default_state
def _contains(wide: FloatFormat, narrow: FloatFormat) -> bool:
    return (
        (wide.signed or not narrow.signed)
        and (wide.infinities or not narrow.infinities)
        and (wide.nan != "none" or narrow.nan == "none")
        and (wide.negative_zero or not narrow.negative_zero)
        and (wide.zero or not narrow.zero)
        and wide.max >= narrow.max
        and _grid_contains(wide, narrow)
    )


def _spacing(fmt: FloatFormat, exponent: int) -> int:
    """Exponent of the distance between neighbours in the binade of 2^exponent."""
    return max(exponent, fmt.emin) - fmt.mantissa_bits


def _grid_contains(wide: FloatFormat, narrow: FloatFormat) -> bool:
    """Whether every finite value of `narrow` lies on `wide`'s grid (the range is checked elsewhere)."""
    lowest = math.frexp(narrow.smallest_subnormal)[1] - 1
    if lowest < math.frexp(wide.smallest_subnormal)[1] - 1:
        return False
    # Both spacings grow by 0 or 1 from binade to binade and change their slope at these exponents only: where the
    # comparison holds at all of them, it holds between them.
    bends = {e for e in (lowest, narrow.emin, wide.emin, narrow.emax) if lowest <= e <= narrow.emax}
    return all(_spacing(wide, e) <= _spacing(narrow, e) for e in bends)


def _integer(fmt: FloatFormat, field: str) -> int:
    """One of a format's numbers as an int."""
    value = getattr(fmt, field)
    try:
        return operator.index(value) + 0  # True becomes 1, lest two equal formats print differently
    except TypeError:
        raise TypeError(f"format {fmt.name!r}: {field} must be an integer, not {value!r}") from None


def _check(fmt: FloatFormat) -> None:
    """Refuses numbers that do not make a format."""
    e, m = fmt.exponent_bits, fmt.mantissa_bits
    problem = None
    if e < 1 or m < 0:
        problem = f"needs exponent_bits >= 1 and mantissa_bits >= 0, not {e} and {m}"
    elif fmt.nan not in NAN_STYLES:
        problem = f"has nan={fmt.nan!r}; allowed are {', '.join(NAN_STYLES)}"
    elif fmt.bits > MAX_BITS and (e, m, fmt.signed) not in ((8, 23, True), (11, 52, True)):
        problem = f"has {fmt.bits} bits; formats have at most {MAX_BITS}, beside float32 and float64"
    elif fmt.nan == "ieee" and (m == 0 or not fmt.infinities):
        # Without a mantissa bit the top exponent has one code, which cannot be infinity and NaN.
        problem = 'has nan="ieee", which needs infinities and at least one mantissa bit'
    elif fmt.nan == "negative_zero" and not fmt.signed:
        problem = 'has nan="negative_zero" but no sign'
    # What 0 and negative numbers become there is NaN, so it must exist; and the kernels know no other such format.
    elif not fmt.zero and (fmt.signed or fmt.subnormals or m > 0 or fmt.nan == "none"):
        problem = "has no zero, so it must be unsigned, without mantissa and subnormals, and have a NaN"
    elif fmt.max_code < (1 if fmt.subnormals else fmt.min_normal_code):
        problem = "has no finite value beside zero"
    # In whole numbers: `max` and `smallest_subnormal` themselves would overflow or underflow here.
    elif fmt.emin - m < -1074 or fmt.emin + (fmt.max_code >> m) - fmt.zero > 1023:
        problem = "reaches beyond float64, in which its values could not be given"
    if problem:
        raise ValueError(f"format {fmt.name!r} {problem}")
