"""Distances between CuPy arrays, and counts of their values by kind, by the kernel of measures.cu.

Both are of values in float64, which other dtypes are widened to on the device first.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowprec.backends.cuda.device import bits, cupy, empty, host_copy, kernel, launch, upload
from lowprec.backends.cuda.records import MEASURE, Record, format_record
from lowprec.backends.cuda.rounding import convert
from lowprec.backends.owner import is_cupy
from lowprec.values.conversion import Conversion, conversion_of
from lowprec.values.float_format import FloatFormat
from lowprec.values.formats import float64
from lowprec.values.rounding import Rounding

_KERNEL = "lowprec_measure"
KINDS = {"underflow": 2, "binade": 3 + 1074 + 1024, "share": 7}
"""Measures that count, with how many kinds of values they tell apart."""


def distances(measure: str, x: Any, y: Any, fmt: FloatFormat = float64, codes: Conversion | None = None) -> Any:
    """A measure of each pair of elements, in float64; the arguments are CuPy arrays, one of them perhaps a number.

    Only with `codes` does the call wait, to see whether all elements are values of the format.

    Args:
        measure: relative_error, ulp_error or ulp_distance.
        x, y: of numbers that float64 holds, broadcast together.
        fmt: the format whose grid measures.
        codes: float64's conversion to its codes, where the measure needs them.

    Raises:
        TypeError: a NumPy array beside one of CuPy.
        ValueError: arrays of two devices; an element that is no value of the format.
    """
    with _device_of(x, y) as device:
        x, y = _together(x, y)
        to, off = empty(x.shape, np.dtype(np.float64)), cupy().zeros((2,), np.uint64)
        given = [None, None] if codes is None else [_codes(codes, values) for values in (x, y)]
        if x.size == 0:
            return to
        defines = (("LP_MEASURE", measure), ("LP_COUNTS", "0"), ("LP_CODE", f"u{8 * fmt.code_dtype.itemsize}"))
        function = kernel("measures.cu", _KERNEL, defines, device.id)
        launch(function, int(x.size), device.id, (_record(fmt, x.size), x, y, *given, to, off))
        if codes is not None:
            for values, first in zip((x, y), host_copy(off).tolist(), strict=True):
                if first:
                    value = host_copy(values.reshape(-1)[2**64 - 1 - first, ...])[()]
                    raise ValueError(f"{value!r} is not a value of {fmt.name}; ulp_error measures such distances")
    return to


def counts(measure: str, x: Any, y: Any = None, codes: Conversion | None = None, key: int = 0) -> NDArray[np.int64]:
    """How many elements are of each kind; the call waits for the result, which comes to the host.

    Args:
        measure: one of `KINDS`.
        x: a CuPy array of numbers that float64 holds.
        y: another, broadcast with it, or a number; None: the measure has none.
        codes: the conversion of x's dtype to codes, where the measure needs them.
        key: of that conversion.

    Raises:
        TypeError, ValueError: as `distances`.
    """
    fmt = float64 if codes is None else codes.rule.fmt
    with _device_of(x, y) as device:
        numbers = None if codes is None else _codes(codes, x, key)
        values, other = (_wide(x), None) if y is None else _together(x, y)
        found = cupy().zeros((KINDS[measure],), np.uint64)
        if values.size:
            width = f"u{8 * fmt.code_dtype.itemsize}"
            defines = (("LP_MEASURE", measure), ("LP_COUNTS", str(KINDS[measure])), ("LP_CODE", width))
            function = kernel("measures.cu", _KERNEL, defines, device.id)
            launch(
                function,
                int(values.size),
                device.id,
                (_record(fmt, values.size), values, other, numbers, None, found),
            )
        return host_copy(found).astype(np.int64)


def _device_of(*operands: Any) -> Any:
    """The device of the CuPy arrays.

    Raises:
        TypeError: a NumPy array beside them.
        ValueError: two devices.
    """
    arrays = [x for x in operands if is_cupy(x)]
    for x in operands:
        if not is_cupy(x) and x is not None and np.ndim(x):
            raise TypeError("arrays lie on a GPU (CuPy arrays) and here: move them together")
    if any(x.device != arrays[0].device for x in arrays):
        raise ValueError(f"arrays are on {' and '.join(str(x.device) for x in arrays)}: move them together")
    return arrays[0].device


def _together(x: Any, y: Any) -> tuple[Any, Any]:
    """Two arrays, or an array and a number, in float64 and of one shape, each C-contiguous."""
    xp = cupy()
    a, b = xp.broadcast_arrays(_wide(x), _wide(y))
    return xp.ascontiguousarray(a), xp.ascontiguousarray(b)


def _wide(x: Any) -> Any:
    """Values in a C-contiguous array of float64, which holds them."""
    if not is_cupy(x):
        return upload(np.asarray(x, np.float64))
    if x.dtype == np.float64:
        return cupy().ascontiguousarray(x)
    wide = empty(x.shape, np.dtype(np.float64))
    convert(conversion_of("storage", x.dtype, float64, Rounding()), x, 0, 0, wide)
    return wide


def _codes(conversion: Conversion, x: Any, key: int = 0) -> Any:
    """The codes of an array, as unsigned integers; of a NaN in a format without NaN whatever was there.

    Raises:
        ValueError: a format that no kernel has.
    """
    fmt = conversion.rule.fmt
    if not fmt.within_kernels:
        raise ValueError(f"{fmt.name} reaches below float64's normal values and runs on NumPy arrays only")
    codes = empty(x.shape, conversion.out_dtype)
    convert(conversion, x, key, 0, codes)
    return bits(codes)


def _record(fmt: FloatFormat, size: int) -> Record:
    record = np.zeros((), MEASURE)
    record["format"], record["size"] = format_record(fmt)[()], size
    record["largest"], record["least"] = fmt.max, fmt.smallest_normal
    return record
