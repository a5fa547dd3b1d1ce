"""Counts of an array's values in one pass: special values, sum of squares, largest magnitude, exponents."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from lowprec import backends
from lowprec.arrays import whole_array
from lowprec.backends.owner import is_cupy, load
from lowprec.foreign import takes_foreign
from lowprec.rounding import decode
from lowprec.types import Array
from lowprec.values.formats import FloatFormat, as_format

PIECE = 1 << 16  # elements at a time, which stay in the cache
EXPONENTS = 256
COUNTED = frozenset(map(np.dtype, (np.float32, np.float16, ml_dtypes.bfloat16)))
"""The dtypes that backends count as they are; arrays of others are decoded to float32 first, a piece at a time."""


class Magnitudes(NamedTuple):
    """Counts of an array's values. Those of several arrays are added up, except `largest`, of which the larger stays.

    Attributes:
        zeros, infinite, nan: How many elements are.
        squares: The sum of the squares of the finite elements, in float64.
        largest: Their largest magnitude; 0 where there are none.
        exponents: int64 of shape (256,): how many of the sample have each biased exponent of float32 (127 is that of
            1.0; 0 that of zeros and of what is subnormal in float32, 255 that of infinities and NaN).
    """

    zeros: int
    infinite: int
    nan: int
    squares: float
    largest: float
    exponents: NDArray[np.int64]


@takes_foreign
def magnitudes(x: Any, fmt: Any = None, *, sample: int | None = None) -> Magnitudes:
    """Counts an array's special values, squares and exponents, with the same bits on every machine.

    The order in which squares are added is fixed.

    Args:
        x: an array of float32, or of a format's storage dtype or codes; of NumPy, torch or JAX, or of CuPy, which is
            counted on its GPU.
        fmt: the format, name or dtype; None: that of x's dtype.
        sample: of how many elements, evenly spaced, the exponents are counted; None: of all.

    Raises:
        TypeError: no array, masked elements, or codes that `decode` does not take.
        ValueError: an unknown format, or one whose values float32 does not hold; a negative sample.
    """
    if not isinstance(x, np.ndarray) and not is_cupy(x):
        raise TypeError(f"magnitudes are those of an array, not of {type(x).__name__}")
    x = whole_array(x)
    fmt = as_format(x.dtype if fmt is None else fmt)
    if sample is not None and sample < 0:
        raise ValueError(f"the sample must be of 0 elements or more, not {sample}")
    most = x.size if sample is None else min(sample, x.size)
    exponents = np.zeros(EXPONENTS, np.int64)
    return Magnitudes._make((*counted(x, fmt, most, step_through(x.size, most), exponents), exponents))


def counted(
    x: Array, fmt: FloatFormat, count: int, step: int, exponents: Array, factor: float = 1.0
) -> tuple[int, int, int, float, float]:
    """The first five of `Magnitudes` of an array times a factor, in float32; adds to exponents those of a sample.

    Args:
        x, fmt: as `magnitudes` takes them.
        count, step: how many elements are the sample, and how far apart they are.
        exponents: int64 of shape (256,).
        factor: a number that float32 holds.
    """
    if is_cupy(x):
        return _counted_there(x, fmt, count, step, exponents, factor)
    door = backends.current().magnitudes
    if _as_it_is(x, fmt):
        return door(x, count, step, exponents, factor)  # type: ignore[no-any-return]
    if x.size <= PIECE:
        return door(_single(x, fmt), count, step, exponents, factor)  # type: ignore[no-any-return]
    flat = x.reshape(-1)
    zeros = infinite = nan = 0
    squares = largest = 0.0
    for begin in range(0, flat.size, PIECE):
        # No exponents yet: the sample is of the whole array, not of each piece.
        found = door(_single(flat[begin : begin + PIECE], fmt), 0, 0, exponents, factor)
        zeros, infinite, nan = zeros + found[0], infinite + found[1], nan + found[2]
        squares, largest = squares + found[3], max(largest, found[4])
    sampled = _single(flat[np.arange(count, dtype=np.int64) * step % flat.size], fmt)
    door(sampled, count, 1, exponents, factor)
    return zeros, infinite, nan, squares, largest


def _counted_there(
    x: Any, fmt: FloatFormat, count: int, step: int, exponents: Array, factor: float
) -> tuple[int, int, int, float, float]:
    """`counted` of a CuPy array, decoded on its device; squares are added up in the pieces that are decoded here."""
    plain = _as_it_is(x, fmt)
    single = x if plain else decode(x, fmt)
    _refuse_wide(single, fmt)
    piece = None if plain else PIECE
    return load("cuda").magnitudes(single, count, step, exponents, factor, piece)  # type: ignore[no-any-return]


def as_counted(x: Array, fmt: FloatFormat) -> Array:
    """An array of a format as the backends' counting functions take it: as it is, or decoded to float32."""
    return x if _as_it_is(x, fmt) else _single(x, fmt)


def _as_it_is(x: Array, fmt: FloatFormat) -> bool:
    return x.dtype == np.float32 or (x.dtype in COUNTED and fmt.dtype == x.dtype)


@lru_cache(maxsize=1024)
def step_through(size: int, count: int) -> int:
    """The step of a walk of `count` elements through an array of `size`, going round at its end.

    No element is met twice, and no period of the array's shape is followed. 0 for an array without elements.
    """
    if size <= count:
        return 1 if size else 0
    # The golden ratio of the size spreads the places evenly; a step that divides a row would look at one column alone.
    step = max(1, round(size * 0.6180339887))
    while math.gcd(step, size) > 1:
        step += 1
    return step


def _single(x: Array, fmt: FloatFormat) -> Array:
    """Values in float32, exactly."""
    if x.dtype == np.float32:
        return x
    values = np.asarray(decode(x, fmt))
    _refuse_wide(values, fmt)
    return values


def _refuse_wide(values: Array, fmt: FloatFormat) -> None:
    if values.dtype not in COUNTED:
        raise ValueError(f"magnitudes are counted of what float32 holds, not of {fmt.name}")
