"""Packing of codes into bytes and Hadamard rotations of CuPy arrays by the kernels of layouts.cu."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from lowprec.backends.cuda.columns import values
from lowprec.backends.cuda.device import bits, copied, cupy, download, kernel, launch, upload
from lowprec.backends.cuda.records import PACK, ROTATE, Record
from lowprec.backends.cuda.sums import set_numbers
from lowprec.backends.owner import is_cupy
from lowprec.integers import ceil_div


def pack(width: int, rows: int, size: int, codes: Any, out: Any) -> bool:
    """Packs rows of so many codes (any strides) into out; True where a code has more bits, for which the call waits."""
    if not is_cupy(codes):
        there = upload(out)
        bad = pack(width, rows, size, upload(codes), there)
        download(there, out)
        return bad
    if out.size == 0:
        return False
    with out.device:
        bad = cupy().zeros((), np.uint32)
    _launched("pack", _pack_record(width, rows, size), cupy().ascontiguousarray(codes), out, out.size, bad=bad)
    return bool(bad.get())


def unpack(width: int, rows: int, size: int, packed: Any, out: Any) -> None:
    """Unpacks rows of so many codes into out."""
    if not is_cupy(packed):
        there = upload(out)
        unpack(width, rows, size, upload(packed), there)
        download(there, out)
    elif out.size:
        _launched("unpack", _pack_record(width, rows, size), cupy().ascontiguousarray(packed), out, out.size)


def rotated(x: Any, axis: int, block: int, signs: Any, inverse: bool, dtype: np.dtype[Any]) -> Any:
    """Blocks along an axis of a CuPy array times a Hadamard matrix (see `lowprec.hadamard`), in a new array.

    Args:
        x: of any strides.
        axis, block: where the blocks lie, and how many elements they have.
        signs: float32 of NumPy, one for each index of the axis, multiplied with first (last: `inverse`); None: none.
        inverse: whether the rotation is undone.
        dtype: of the computation and the result, float32 or float64, which holds x's values.
    """
    with x.device:
        wide = values(x, dtype)
        result = copied(cupy().ascontiguousarray(wide)) if wide is x else cupy().ascontiguousarray(wide)
        sign = None if signs is None else upload(signs)
    record = np.zeros((), ROTATE)
    length, columns = x.shape[axis], math.prod(x.shape[axis + 1 :])
    # Every step is a launch, which sees all that the one before wrote.
    steps = [1 << n for n in range(block.bit_length() - 1)] or [0]
    for half in steps:
        last = half == steps[-1]
        set_numbers(record, pairs=x.size // 2 if half else x.size, length=length, columns=columns, half=half)
        record["factor"] = dtype.type(1 / math.sqrt(block)) if last else 1.0
        record["before"] = signs is not None and not inverse and half == steps[0]
        record["after"] = signs is not None and inverse and last
        if result.size:
            _launched("rotate", record.copy(), result, result, int(record["pairs"]), signs=sign)
    return result


def _pack_record(width: int, rows: int, size: int) -> Record:
    record = np.zeros((), PACK)
    set_numbers(record, rows=rows, size=size, bytes=ceil_div(size * width, 8), bits=width)
    return record


def _launched(name: str, record: Record, x: Any, out: Any, units: int, *, signs: Any = None, bad: Any = None) -> None:
    """Starts one of the kernels of layouts.cu over so many units."""
    real = "double" if out.dtype == np.float64 else "float"
    with out.device as device:
        function = kernel("layouts.cu", "lowprec_layouts", (("LP_KERNEL", name), ("LP_REAL", real)), device.id)
        launch(function, units, device.id, (record, bits(x), out, signs, bad))
