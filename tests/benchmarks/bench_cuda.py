"""Rounding and decoding on a GPU against a device copy, products against CuPy's float32; says why it cannot run.

CuPy's product is of plain float32 unless CUPY_TF32 is set: the benchmark refuses to run where it is.

All times are of the device, between two events on the current stream, with `out=`; the smallest of several runs counts.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np

import lowprec as lp
from lowprec import backends
from lowprec.backends.cuda import device as gpu

COUNT = 1 << 28
SIDE = 4096
RUNS = 20


def milliseconds(cupy: Any, work: Callable[[], object]) -> float:
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


def cases(cupy: Any) -> dict[str, tuple[int, Callable[[], object]]]:
    """Name -> bytes read and written, and the call."""
    host = np.random.default_rng(0).standard_normal(COUNT, dtype=np.float32)
    x, double = cupy.asarray(host), cupy.asarray(host[: COUNT // 2].astype(np.float64))
    half, byte, single = (cupy.empty(COUNT, dtype) for dtype in (np.uint16, np.uint8, np.float32))
    square, narrow = x.reshape(1 << 13, -1), half.view(np.float16)

    def to(fmt: str, out: Any, rounding: str, source: Any = x, **more: Any) -> tuple[int, Callable[[], object]]:
        moved = source.nbytes + out.nbytes
        return moved, lambda: lp.encode(source, fmt, rounding, key=1, out=out, **more)

    return {
        "float16 nearest": to("float16", half, "nearest_even"),
        "float16 stochastic": to("float16", half, "stochastic"),
        "bfloat16 stochastic": to("bfloat16", half, "stochastic"),
        "bfloat16 stochastic, 24 random bits": to("bfloat16", half, "stochastic", random_bits=24),
        "float8_e4m3fn nearest": to("float8_e4m3fn", byte, "nearest_even"),
        "float8_e4m3fn stochastic": to("float8_e4m3fn", byte, "stochastic"),
        "float8_e4m3fn stochastic, odd offset": to("float8_e4m3fn", byte, "stochastic", offset=1),
        "float64 -> float8_e4m3fn stochastic": to("float8_e4m3fn", byte[: COUNT // 2], "stochastic", double),
        "transposed -> float16 stochastic": to("float16", half.reshape(square.T.shape), "stochastic", square.T),
        "round in place to float8_e5m2, stochastic": (
            8 * COUNT,
            lambda: lp.round(single, "float8_e5m2", "stochastic", key=1, out=single),
        ),
        "decode float8_e4m3fn": (5 * COUNT, lambda: lp.decode(byte, "float8_e4m3fn", out=single)),
        "float32_op multiply -> float16, stochastic": (
            10 * COUNT,
            lambda: lp.float32_op("multiply", x, single, fmt="float16", rounding="stochastic", key=1, out=narrow),
        ),
        "float32_op exp -> float16": (6 * COUNT, lambda: lp.float32_op("exp", x, fmt="float16", out=narrow)),
        "add, exact, -> float16": (10 * COUNT, lambda: lp.add(x, single, "float16", out=narrow)),
        "reduce_sum of rows of 16384": (4 * COUNT, lambda: lp.reduce_sum(square, 1)),
        "reduce_max of everything": (4 * COUNT, lambda: lp.reduce_max(x)),
        "decode bfloat16": (6 * COUNT, lambda: lp.decode(half, "bfloat16", out=single)),
    }


def products(cupy: Any) -> dict[str, Callable[[], object]]:
    """Name -> a product of SIDE x SIDE float32 matrices, CuPy's own first."""
    generator = np.random.default_rng(1)
    a, b = (cupy.asarray(generator.standard_normal((SIDE, SIDE), dtype=np.float32)) for _ in range(2))

    def with_accumulator(accumulate: str, rounding: str, group: int = 16) -> Callable[[], object]:
        how: dict[str, Any] = {"accumulate": accumulate, "rounding": rounding, "group": group, "key": 1}
        return lambda: lp.matmul(a, b, **how)

    return {
        "CuPy, float32": lambda: a @ b,
        "float32": with_accumulator("float32", "nearest_even"),
        "float16, nearest 16": with_accumulator("float16", "nearest_even"),
        "float16, nearest 1": with_accumulator("float16", "nearest_even", 1),
        "float16, stochastic 16": with_accumulator("float16", "stochastic"),
        "bfloat16, nearest 16": with_accumulator("bfloat16", "nearest_even"),
    }


def copy_speed(cupy: Any) -> float:
    """Bytes read and written per millisecond by a device-to-device copy."""
    size = 3 * COUNT
    source, target = (cupy.cuda.alloc(size) for _ in range(2))
    stream = cupy.cuda.get_current_stream()
    return 2 * size / milliseconds(cupy, lambda: target.copy_from_device_async(source, size, stream))


def main() -> None:
    """Prints one line per case."""
    try:
        with backends.backend("cuda"):
            cupy = gpu.cupy()
    except (ImportError, RuntimeError) as error:
        print(f"not run: {error}")
        return
    if os.environ.get("CUPY_TF32", "0") != "0":
        print("not run: CUPY_TF32 is set, and CuPy's products would be of fewer bits")
        return
    copy = copy_speed(cupy)
    device = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)["name"].decode()
    print(f"{device}, {COUNT} elements, copy {copy / 1e6:.0f} GB/s (bytes read plus bytes written)")
    for name, (moved, work) in cases(cupy).items():
        time = milliseconds(cupy, work)
        print(f"{name:45s} {time:8.3f} ms  {moved / time / 1e6:6.0f} GB/s  {moved / time / copy:5.2f} of copy")
    own = None
    for name, work in products(cupy).items():
        time = milliseconds(cupy, work)
        own = own or time
        print(f"product {name:37s} {time:8.3f} ms  {2e-9 * SIDE**3 / time:6.1f} TFLOP/s  {own / time:5.2f} of CuPy's")


if __name__ == "__main__":
    main()
