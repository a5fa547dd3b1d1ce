"""Products of CuPy arrays: the chains of product.cu, then the launch of sums.cu that sums parts, rounds and stores."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from lowprec.backends.cpu.rounding import fits_narrow_lanes
from lowprec.backends.cuda.device import Defines, bits, cupy, empty, host_copy, kernel, launch, output_for, upload
from lowprec.backends.cuda.records import PRODUCT, Record, format_record
from lowprec.backends.cuda.rounding import decode, stored_type
from lowprec.backends.cuda.sums import finish_parts, mode_number, numbers_on_device, set_numbers, sum_record
from lowprec.backends.owner import is_cupy
from lowprec.integers import ceil_div
from lowprec.values.accumulation import Accumulation
from lowprec.values.formats import float32
from lowprec.values.keys import KeyLike
from lowprec.values.operands import operand_format
from lowprec.values.outputs import into
from lowprec.values.sum_rules import SumRules

LONGEST = 1 << 62
_THREADS, _SIDE = 256, 16  # `threads` and `side` of product.cu


@lru_cache(maxsize=4096)
def product(a: np.dtype[Any], b: np.dtype[Any], accumulation: Accumulation, rules: SumRules) -> Callable[..., Any]:
    """f(a, b, key, row, column, first_group, batch, out, threads, initial=None), as the cpu backend's.

    Launches are asynchronous; only a result's format without NaN makes the call wait, to refuse one.

    Raises:
        ValueError: an adder other than the sequential one.
    """
    if accumulation.adder != "sequential":
        raise ValueError(f"on a GPU products are made by the sequential adder, not {accumulation.adder!r}")

    def call(
        a: Any,
        b: Any,
        key: KeyLike | None,
        row: Any,
        column: Any,
        first_group: Any,
        batch: Any,
        out: Any,
        threads: int,
        initial: Any = None,
    ) -> Any:
        place = {"row": row, "column": column, "first_group": first_group, "batch": batch}
        if is_cupy(a):
            return _multiplied(a, b, initial, accumulation, rules, key, place, out)
        # NumPy arrays, which come here inside `backend("cuda")`: they travel to the GPU and back.
        start = None if initial is None else upload(np.asarray(initial, np.float32))
        result = host_copy(_multiplied(upload(a), upload(b), start, accumulation, rules, key, place, None))
        return result if out is None else into(out, result)

    return call


def _multiplied(
    a: Any,
    b: Any,
    initial: Any,
    accumulation: Accumulation,
    rules: SumRules,
    key: KeyLike | None,
    place: dict[str, Any],
    out: Any,
) -> Any:
    """The product of CuPy arrays a (.., m, k) and b (.., k, n), either of which may be a vector."""
    if not a.ndim or not b.ndim:
        raise ValueError("a product needs operands of one axis or more")
    left, right = a if a.ndim > 1 else a[None, :], b if b.ndim > 1 else b[:, None]
    if left.shape[-1] != right.shape[-2]:
        raise ValueError(f"the inner lengths differ: {left.shape[-1]} and {right.shape[-2]}")
    vertices = np.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    (m, k), n = left.shape[-2:], right.shape[-1]
    shape = vertices + ((m,) if a.ndim > 1 else ()) + ((n,) if b.ndim > 1 else ())
    cut = accumulation.cut(k)
    inputs = (a, b) if initial is None else (a, b, initial)
    result = output_for(out, shape, rules.out_dtype, *inputs)
    if result.size == 0:
        return result
    parts, sizes = max(1, cut.parts), (*vertices, m, n)  # no products: the part is what its chain starts from
    # Held until the kernels are launched: the pool would give freed memory to the next that asks.
    place = numbers_on_device(place, vertices)
    sums = sum_record(vertices, _steps(left, vertices), rules, key, place)
    # Where nothing is rounded between them groups mean nothing.
    group = LONGEST if rules.step is None else max(1, min(cut.group, LONGEST))
    set_numbers(sums, m=m, k=k, n=n, group=group, part=min(cut.part, LONGEST), parts=parts)
    set_numbers(sums, x=a.data.ptr, x_row=left.strides[-2], x_k=left.strides[-1])
    sums["source"] = format_record(operand_format(a.dtype))[()]
    record = np.zeros((), PRODUCT)
    record["sums"], record["b_format"] = sums, format_record(operand_format(b.dtype))[()]
    record["b_step"][: len(vertices)] = _steps(right, vertices)
    set_numbers(record, b=b.data.ptr, b_k=right.strides[-2], b_column=right.strides[-1])
    with a.device as device:
        start = _start(initial, rules, shape, len(vertices), parts)
        if start is not None:
            start = start if b.ndim > 1 else start[..., None]
            start = start if a.ndim > 1 else start[..., None, :]
            record["start_step"][: len(vertices)] = _steps(start, vertices)
            set_numbers(record, start=start.data.ptr, start_row=start.strides[-2], start_column=start.strides[-1])
        chains = launched(record, a.dtype, b.dtype, rules, device.id)
    target = result if a.ndim > 1 and b.ndim > 1 else result[..., None] if a.ndim > 1 else _row(result, b.ndim)
    finish_parts(sums, chains, sizes, (cut.stages, cut.run), rules, target)
    return result


def launched(
    record: Record, a: np.dtype[Any], b: np.dtype[Any], rules: SumRules, device: int, *, windows: bool = False
) -> Any:
    """Starts the chains of a job on a device, which must be current: its parts, float32 (parts, elements).

    Args:
        record: the job, as `struct ProductJob` of product.cu.
        a, b: the operands' dtypes.
        rules: of the sums.
        device: the device's number.
        windows: whether the operands lie as the record's windows say.
    """
    chip, sums = cupy().cuda.Device(device), record["sums"]
    m, n, parts, vertices = (int(sums[name]) for name in ("m", "n", "parts", "vertices"))
    # From sm_100 on the compiler spills the registers of large squares that draw random bits.
    drawn = rules.step is not None and rules.step.mode == "stochastic" and int(chip.compute_capability) >= 100
    # Windows ask for more registers than two strides do.
    most = 4 if drawn or windows else 8
    each, squares = _sums_of_a_thread(m, n, vertices * parts, chip.attributes["MultiProcessorCount"], most)
    chains = empty((parts, vertices * m * n), np.dtype(np.float32))
    defines = product_defines(a, b, rules, each, windows=windows)
    launch(kernel("product.cu", "lowprec_product", defines, device), squares * _THREADS, device, (record, chains))
    return chains


def _row(result: Any, own: int) -> Any:
    """The result of a vector and b, seen with the axes of rows and columns."""
    return result[..., None, :] if own > 1 else result[..., None, None]


def _steps(x: Any, vertices: tuple[int, ...]) -> tuple[int, ...]:
    """Bytes along the vertex axes of x (.., rows, columns), 0 where it is broadcast."""
    own = [0 if size == 1 else step for size, step in zip(x.shape[:-2], x.strides[:-2], strict=True)]
    return (*[0] * (len(vertices) - len(own)), *own)


def _start(initial: Any, rules: SumRules, shape: tuple[int, ...], axes: int, parts: int) -> Any:
    """What the chains start from, as float32 with the result's own axes; None for +0.

    Raises:
        TypeError: neither of the result's dtype nor of float32.
        ValueError: another shape, or a product of several parts.
    """
    if initial is None:
        return None
    if not is_cupy(initial) or initial.dtype not in (np.float32, rules.out_dtype):
        given = getattr(initial, "dtype", type(initial).__name__)
        raise TypeError(f"initial must be a CuPy array of {rules.out_dtype} or of float32, not {given}")
    own = initial.shape[max(0, initial.ndim - len(shape) + axes) :]
    if parts > 1 or own != shape[axes:] or np.broadcast_shapes(initial.shape, shape) != shape:
        raise ValueError("initial needs the result's shape, and a product of one part")
    if initial.dtype == np.float32:
        return initial
    start = empty(initial.shape, np.dtype(np.float32))
    decode(rules.out, bits(initial), start)
    return start


def _sums_of_a_thread(m: int, n: int, matrices: int, processors: int, most: int) -> tuple[int, int]:
    """Sums of a thread along either axis, and squares in all: large ones where there are enough for all processors."""
    for each in (8, 4) if most == 8 else (4,):
        squares = ceil_div(m, each * _SIDE) * ceil_div(n, each * _SIDE) * matrices
        if min(m, n) > each * _SIDE // 2 and squares >= processors:
            break
    return each, squares


def product_defines(
    a: np.dtype[Any], b: np.dtype[Any], rules: SumRules, each: int, *, windows: bool = False
) -> Defines:
    """The combination of product.cu for operands of two dtypes."""

    def lane(dtype: np.dtype[Any]) -> str:
        return "u32" if operand_format(dtype).emin >= float32.emin else "u64"

    return (
        ("LP_A", stored_type(a)),
        ("LP_A_READ", lane(a)),
        ("LP_B", stored_type(b)),
        ("LP_B_READ", lane(b)),
        ("LP_STEP", mode_number(rules.step)),
        ("LP_STEP_LANE", "u64" if rules.step is not None and not fits_narrow_lanes(rules.step) else "u32"),
        ("LP_SUMS", str(each)),
        ("LP_WINDOWS", str(int(windows))),
    )
