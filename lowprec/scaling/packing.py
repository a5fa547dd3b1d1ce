"""Packing of 4- and 6-bit codes (any width up to 8 bits) into bytes, an explicit step: arrays hold one code per byte.

The codes of a row (the last axis) form one stream of bits, the lowest bit first: code i takes bits b*i to b*i + b - 1.
So two 4-bit codes share a byte with the even one in its low half, as in torch's float4_e2m1fn_x2, and four 6-bit codes
take three bytes. Every row begins at a byte; what is left of its last byte is zero.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from lowprec import backends
from lowprec.arrays import input_array, new_array
from lowprec.foreign import takes_foreign
from lowprec.integers import ceil_div
from lowprec.types import Array
from lowprec.values.float_format import FloatFormat
from lowprec.values.formats import FormatLike, as_format


@takes_foreign
def pack(codes: npt.ArrayLike, fmt: FormatLike) -> npt.NDArray[np.uint8]:
    """Codes packed along the last axis.

    Args:
        codes: (..., n) codes as `encode` gives them, or an array of the format's storage dtype.
        fmt: a format of at most 8 bits.

    Returns:
        (..., ceil(n * bits / 8)) bytes.

    Raises:
        TypeError: codes are neither integers nor of the format's storage dtype.
        ValueError: a wider format, a code that does not fit, or a 0-d array.
    """
    fmt = _narrow(fmt)
    array, _ = input_array(codes)
    if array.dtype == fmt.dtype:
        array = array.view(np.uint8)
    if array.dtype.kind not in "iu":
        raise TypeError(f"pack needs integer codes or an array of {fmt.dtype}, not {array.dtype}")
    if array.ndim == 0:
        raise ValueError("pack needs at least one axis, not a single code")
    refused = f"codes of {fmt.name} must be in [0, {1 << fmt.bits})"
    if array.dtype != np.uint8:
        # Wider codes are checked here, before a conversion to bytes cuts them; the loops check those in bytes.
        if array.size and (int(array.min()) < 0 or int(array.max()) >= 1 << fmt.bits):
            raise ValueError(refused)
        array = array.astype(np.uint8)
    *outer, size = array.shape
    out = new_array(array, (*outer, ceil_div(size * fmt.bits, 8)), np.dtype(np.uint8))
    if backends.of(array).pack(fmt.bits, *_rows(outer, size, fmt.bits), array, out):
        raise ValueError(refused)
    return out


@takes_foreign
def unpack(packed: npt.ArrayLike, fmt: FormatLike, size: int) -> Array:
    """The codes that `pack` packed.

    Args:
        packed: (..., ceil(size * bits / 8)) bytes.
        fmt: the format they were packed in.
        size: number of codes in a row.

    Returns:
        (..., size) codes, uint8; `decode` gives their values, `.view(fmt.dtype)` the storage array.

    Raises:
        TypeError: packed is not uint8, or size no integer.
        ValueError: a format wider than 8 bits, a negative size, or rows of another length than size needs.
    """
    fmt = _narrow(fmt)
    array, _ = input_array(packed)
    if array.dtype != np.uint8:
        raise TypeError(f"unpack needs uint8 bytes, not {array.dtype}")
    if not isinstance(size, (int, np.integer)) or isinstance(size, bool):
        raise TypeError(f"size must be an integer, the number of codes in a row, not {size!r}")
    if size < 0:
        raise ValueError(f"size must be at least 0, not {size}")
    size = int(size)
    expected = ceil_div(size * fmt.bits, 8)
    if array.ndim == 0 or array.shape[-1] != expected:
        raise ValueError(f"{size} codes of {fmt.name} take rows of {expected} bytes; the shape given is {array.shape}")
    outer = array.shape[:-1]
    out = new_array(array, (*outer, size), np.dtype(np.uint8))
    backends.of(array).unpack(fmt.bits, *_rows(outer, size, fmt.bits), array, out)
    return out


def _rows(outer: Sequence[int], size: int, bits: int) -> tuple[int, int]:
    """Rows, and codes of a row, as the backends are asked for; rows that fill whole bytes are joined to one."""
    rows = math.prod(outer)
    # Rows that end within a byte have a gap behind them, which one joined row would not have.
    return (1, rows * size) if size * bits % 8 == 0 and rows else (rows, size)


def _narrow(fmt: FormatLike) -> FloatFormat:
    fmt = as_format(fmt)
    if fmt.bits > 8:
        raise ValueError(f"only codes of at most 8 bits are packed into bytes; {fmt.name} has {fmt.bits}")
    return fmt
