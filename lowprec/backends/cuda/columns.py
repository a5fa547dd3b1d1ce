"""Sums whose every addition is rounded once, on CuPy arrays, by the kernel of columns.cu."""

from __future__ import annotations

from typing import Any

import numpy as np

from lowprec.backends.cuda.device import bits, cupy, download, empty, kernel, launch, upload
from lowprec.backends.cuda.records import COLUMN, format_record, rounding_record
from lowprec.backends.cuda.rounding import decode, stored_type
from lowprec.backends.owner import is_cupy
from lowprec.types import Array
from lowprec.values.column_sums import ColumnSum
from lowprec.values.formats import float32, float64, format_of_dtype
from lowprec.values.rounding import MODES, rounding_rule


def column_sums(job: ColumnSum, x: Any, y: Any, key: int, offset: int, out: Any) -> None:
    """Sums over the middle axis of x (outer, size, inner), every step exact and rounded once, into `out`.

    Args:
        job: the kind of sum and its rounding.
        x: terms.
        y: what they are multiplied by, exactly; None: nothing.
        key, offset: of the random bits.
        out: (outer, results, inner), C-contiguous; float32, or float64 for a format that float32 does not hold.

    Raises:
        ValueError: a format that no kernel has.
    """
    if not is_cupy(x):
        there = empty(out.shape, out.dtype)
        column_sums(job, upload(x), None if y is None else upload(y), key, offset, there)
        return download(there, out)
    rule = job.rule
    if not rule.fmt.within_kernels:
        raise ValueError(f"{rule.fmt.name} reaches below float64's normal values and runs on NumPy arrays only")
    if out.size == 0:
        return None
    outer, size, inner = x.shape
    record = np.zeros((), COLUMN)
    record["rounding"] = rounding_record(rule)[()]
    sizes = {"outer": outer, "size": size, "inner": inner, "block": job.block, "results": out.shape[1]}
    for name, number in {**sizes, "key": key, "offset": offset}.items():
        record[name] = number
    for n, array in enumerate((x,) if y is None else (x, y)):
        fmt = format_of_dtype(array.dtype)
        assert fmt is not None
        record["step"][n], record["data"][n] = array.strides, array.data.ptr
        record["format"][n] = format_record(fmt)[()]
    # IEEE's own addition is one instruction there; all else takes a rounding of the exact sum.
    ieee = rule.fmt == float64 or rule == rounding_rule(float32)
    defines = (
        ("LP_KIND", f"{job.kind}_sum"),
        ("LP_A", stored_type(x.dtype)),
        ("LP_B", "Number" if y is None else stored_type(y.dtype)),
        ("LP_MODE", "-1" if ieee else str(MODES.index(rule.mode))),
        ("LP_TO", stored_type(out.dtype)[8:-1]),
    )
    with x.device as device:
        units = outer * inner * (1 if job.kind == "running" else out.shape[1])
        launch(kernel("columns.cu", "lowprec_columns", defines, device.id), units, device.id, (record, out))
    return None


def values(x: Any, dtype: np.dtype[Any]) -> Any:
    """The values of a CuPy array of floats in float32 or float64, which holds them; x itself in that dtype."""
    fmt = format_of_dtype(x.dtype)
    if x.dtype == dtype:
        return x
    assert fmt is not None
    with x.device:
        out = empty(x.shape, dtype)
    decode(fmt, x.view(fmt.code_dtype), out)
    return out


def joined(first: Any, second: Any) -> Any:
    """Two CuPy arrays (outer, .., inner) of float32 or float64, one behind the other along the middle axis."""
    with first.device:
        return cupy().concatenate([first, second], axis=1)


def broadcast(a: Any, b: Any) -> tuple[Any, Any]:
    """Two CuPy arrays as views of one shape."""
    xp = cupy()
    left, right = xp.broadcast_arrays(bits(a), bits(b))
    return left.view(a.dtype), right.view(b.dtype)


def new_array(like: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """A new C-contiguous CuPy array on the device of another one."""
    with like.device:
        return empty(shape, dtype)  # type: ignore[no-any-return]
