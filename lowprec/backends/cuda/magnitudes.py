"""Counts of a CuPy array's special values, exponents and squares, by the kernels of magnitudes.cu."""

from __future__ import annotations

from typing import Any

import numpy as np

from lowprec.backends.cuda.device import bits, cupy, empty, host_copy, kernel, launch, upload
from lowprec.backends.cuda.records import COUNTS, MAGNITUDES, format_record
from lowprec.backends.cuda.rounding import stored_type
from lowprec.backends.cuda.sums import set_numbers
from lowprec.backends.owner import is_cupy
from lowprec.backends.reference.counting import SIXTEEN_AT_A_TIME, SUMS
from lowprec.integers import ceil_div
from lowprec.types import Array
from lowprec.values.formats import as_format


def magnitudes(
    x: Any, count: int, step: int, histogram: Array, factor: float = 1.0, piece: int | None = None
) -> tuple[int, int, int, float, float]:
    """As `lowprec.backends.reference.counting.magnitudes`; the call waits for the result, which comes to the host.

    The sixteen sums of squares of a piece are made by sixteen threads, in the order of the contract: those of a float32
    array, which is one piece, take as long as a sixteenth of its additions, one after the other.

    Args:
        x, count, step, histogram, factor: as there; x of CuPy, of any strides, or of NumPy, which travels.
        piece: elements whose squares are added up by themselves; None: as there, by x's dtype.
    """
    if not is_cupy(x):
        return magnitudes(upload(x), count, step, histogram, factor, piece)
    if x.size == 0:
        return 0, 0, 0, 0.0, 0.0
    if piece is None:
        piece = int(x.size) if x.dtype == np.float32 else SIXTEEN_AT_A_TIME
    pieces = ceil_div(int(x.size), piece)
    record = np.zeros((), MAGNITUDES)
    set_numbers(record, size=int(x.size), piece=piece, pieces=pieces, count=count, apart=step)
    record["source"], record["factor"] = format_record(as_format(x.dtype))[()], factor
    with x.device as device:
        whole = cupy().ascontiguousarray(bits(x))
        squares = empty((pieces, SUMS), np.dtype(np.float64))
        counts = cupy().zeros((COUNTS.itemsize,), np.uint8)
        for squared, units, to in (("1", pieces * SUMS, squares), ("0", int(x.size), counts)):
            defines = (("LP_SQUARES", squared), ("LP_FROM", stored_type(x.dtype)))
            function = kernel("magnitudes.cu", "lowprec_magnitudes", defines, device.id)
            launch(function, units, device.id, (record, whole, to))
    found = host_copy(counts).view(COUNTS)[0]
    histogram += found["exponents"].astype(np.int64)
    # In order, piece by piece, as the sums of a piece.
    total = np.add.accumulate(np.add.accumulate(host_copy(squares), axis=1)[:, -1])[-1]
    largest = float(found["largest"].view(np.float32))
    return int(found["zeros"]), int(found["infinite"]), int(found["nan"]), float(total), largest
