"""Times of a GPU: rounding and decoding against a device copy, products against CuPy's float32.

CuPy's product is of plain float32 unless CUPY_TF32 is set. All times are of the device, between two events on the
current stream, with `out=` where there is one; the smallest of several runs counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import lowprec as lp
from lowprec.values.rounding import Mode

RUNS = 20
Work = Callable[[], object]


def milliseconds(cupy: Any, work: Work) -> float:
    """Device time of one call, after one that compiles and warms up."""
    work()
    times = []
    for _ in range(RUNS):
        start, end = cupy.cuda.Event(), cupy.cuda.Event()
        start.record()
        work()
        end.record()
        end.synchronize()
        times.append(cupy.cuda.get_elapsed_time(start, end))
    return float(min(times))


def cases(cupy: Any, count: int) -> dict[str, tuple[int, Work]]:
    """Name -> bytes read and written, and the call."""
    host = np.random.default_rng(0).standard_normal(count, dtype=np.float32)
    x, double = cupy.asarray(host), cupy.asarray(host[: count // 2].astype(np.float64))
    half, byte, single = (cupy.zeros(count, dtype) for dtype in (np.uint16, np.uint8, np.float32))
    square, narrow = x.reshape(count >> 15, -1), half.view(np.float16)

    def to(fmt: str, out: Any, rounding: Mode, source: Any = x, **more: Any) -> tuple[int, Work]:
        return source.nbytes + out.nbytes, lambda: lp.encode(source, fmt, rounding, key=1, out=out, **more)

    def op(name: str, *operands: Any, **how: Any) -> Work:
        return lambda: lp.float32_op(name, *operands, fmt="float16", out=narrow, **how)

    return {
        "float16 nearest": to("float16", half, "nearest_even"),
        "float16 stochastic": to("float16", half, "stochastic"),
        "bfloat16 stochastic": to("bfloat16", half, "stochastic"),
        "bfloat16 stochastic, 24 random bits": to("bfloat16", half, "stochastic", random_bits=24),
        "float8_e4m3fn nearest": to("float8_e4m3fn", byte, "nearest_even"),
        "float8_e4m3fn stochastic": to("float8_e4m3fn", byte, "stochastic"),
        "float8_e4m3fn stochastic, odd offset": to("float8_e4m3fn", byte, "stochastic", offset=1),
        "float64 -> float8_e4m3fn stochastic": to("float8_e4m3fn", byte[: count // 2], "stochastic", double),
        "transposed -> float16 stochastic": to("float16", half.reshape(square.T.shape), "stochastic", square.T),
        "round in place to float8_e5m2, stochastic": (
            8 * count,
            lambda: lp.round(single, "float8_e5m2", "stochastic", key=1, out=single),
        ),
        "decode float8_e4m3fn": (5 * count, lambda: lp.decode(byte, "float8_e4m3fn", out=single)),
        "decode bfloat16": (6 * count, lambda: lp.decode(half, "bfloat16", out=single)),
        "float32_op multiply -> float16, stochastic": (
            10 * count,
            op("multiply", x, single, rounding="stochastic", key=1),
        ),
        "float32_op exp -> float16": (6 * count, op("exp", x)),
        "add, exact, -> float16": (10 * count, lambda: lp.add(x, single, "float16", out=narrow)),
        "reduce_sum of rows of 32768": (4 * count, lambda: lp.reduce_sum(square, 1)),
        "reduce_max of everything": (4 * count, lambda: lp.reduce_max(x)),
        "to_blocks mxfp8_e4m3": (5 * count, lambda: lp.to_blocks(square, "mxfp8_e4m3")),
        "hadamard of blocks of 16": (32 * count, lambda: lp.hadamard(square, block=16)),
    }


def products(cupy: Any, side: int) -> dict[str, tuple[float, Work]]:
    """Name -> multiplications and the call: products of float32 matrices, CuPy's own first, and a convolution."""
    generator = np.random.default_rng(1)
    a, b = (cupy.asarray(generator.standard_normal((side, side), dtype=np.float32)) for _ in range(2))

    def with_accumulator(accumulate: str, rounding: str, group: int = 16) -> tuple[float, Work]:
        how: dict[str, Any] = {"accumulate": accumulate, "rounding": rounding, "group": group, "key": 1}
        return float(side) ** 3, lambda: lp.matmul(a, b, **how)

    images = cupy.asarray(generator.standard_normal((side // 64, 64, 64, 16), dtype=np.float32))
    kernel = cupy.asarray(generator.standard_normal((3, 3, 16, 64), dtype=np.float32))
    return {
        "CuPy, float32": (float(side) ** 3, lambda: a @ b),
        "float32": with_accumulator("float32", "nearest_even"),
        "float16, nearest 16": with_accumulator("float16", "nearest_even"),
        "float16, nearest 1": with_accumulator("float16", "nearest_even", 1),
        "float16, stochastic 16": with_accumulator("float16", "stochastic"),
        "bfloat16, nearest 16": with_accumulator("bfloat16", "nearest_even"),
        "conv2d 3 x 3, float16, nearest 16": (
            images.size * 9.0 * 64,
            lambda: lp.conv2d(images, kernel, padding=1, accumulate="float16"),
        ),
    }


def copy_speed(cupy: Any, count: int) -> float:
    """Bytes read and written per millisecond by a copy of float32 on the device."""
    source, target = (cupy.zeros(count, np.float32) for _ in range(2))

    def copy() -> None:
        target[...] = source

    return 8 * count / milliseconds(cupy, copy)


def rows(cupy: Any, count: int, side: int) -> Iterator[str]:
    """One line per case.

    Args:
        cupy: the CuPy module.
        count: elements of the arrays, a multiple of 2^15.
        side: rows and columns of the matrices, a multiple of 64.
    """
    speed = copy_speed(cupy, count)
    yield f"{count} elements, copy {speed / 1e6:.0f} GB/s (bytes read plus bytes written)"
    for name, (moved, work) in cases(cupy, count).items():
        time = milliseconds(cupy, work)
        yield f"{name:45s} {time:9.3f} ms  {moved / time / 1e6:6.0f} GB/s  {moved / time / speed:5.2f} of copy"
    own = None
    for name, (multiplied, work) in products(cupy, side).items():
        time = milliseconds(cupy, work)
        rate = 2e-9 * multiplied / time
        own = own or rate
        yield f"product {name:37s} {time:9.3f} ms  {rate:6.1f} TFLOP/s  {rate / own:5.2f} of CuPy's"
