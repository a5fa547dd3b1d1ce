"""The arrays that measures take: of real numbers, none of them masked, none rounded on the way to float64."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lowprec._pieces import pieces
from lowprec.arrays import whole_array
from lowprec.backends.owner import is_cupy, refuse_cupy
from lowprec.types import Array
from lowprec.values.formats import format_of_dtype

_WHOLE_FLOAT64 = 1 << 53  # up to here float64 holds every integer


def real_array(x: ArrayLike) -> Array:
    """An array of NumPy or another library as NumPy's, in its own dtype.

    Raises:
        TypeError: complex, bool, extended precision or no numbers at all; masked elements; a GPU array.
    """
    array = real_numbers(x)
    refuse_cupy(array)
    return array


def real_operands(*given: ArrayLike) -> tuple[Array, ...]:
    """Arrays that are measured in float64 where they lie: as `held_by_float64`, but CuPy's are let through.

    Raises:
        TypeError, ValueError: as `held_by_float64`.
    """
    return tuple(_whole_numbers_held(real_numbers(x)) for x in given)


def held_by_float64(x: ArrayLike) -> Array:
    """`real_array` of what is measured in float64.

    Raises:
        TypeError: as `real_array`.
        ValueError: integers that float64 does not hold.
    """
    return _whole_numbers_held(real_array(x))


def real_numbers(x: ArrayLike) -> Array:
    """`real_array` that lets CuPy's through."""
    # Masked elements are refused: as plain numbers they would be measured.
    array = whole_array(x)
    if format_of_dtype(array.dtype) is None and (array.dtype.kind not in "iu" or array.dtype.itemsize > 8):
        raise TypeError(f"measured are arrays of real numbers of at most 64 bits, not of {array.dtype}")
    return array


def _whole_numbers_held(array: Array) -> Array:
    if array.dtype.kind in "iu" and array.dtype.itemsize == 8 and array.size:
        runs = [(array,)] if is_cupy(array) else (runs for _, runs in pieces(array))
        # Not by abs: that of int64's smallest number is negative.
        if any(int(run.max()) > _WHOLE_FLOAT64 or int(run.min()) < -_WHOLE_FLOAT64 for (run,) in runs):
            raise ValueError("integers beyond 2^53 would be rounded before they are measured: give them as float64")
    return array


def as_float64(x: ArrayLike) -> NDArray[np.float64]:
    """As `held_by_float64`, converted to float64."""
    with np.errstate(invalid="ignore"):  # signalling NaN
        return held_by_float64(x).astype(np.float64, copy=False)
