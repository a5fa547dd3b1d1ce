"""What a graphics card does with lowprec: every family of calls against the CPU's bits, and times; one report to paste.

`python -m lowprec.testing gpu` prints it, for issues and for README's line of where it last ran.
"""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

import numpy as np

import lowprec as lp
from lowprec import statistics
from lowprec.backends.cuda import check
from lowprec.backends.cuda.device import cupy, host_copy, upload
from lowprec.testing.gpu_benchmark import rows
from lowprec.types import Array
from lowprec.values.block_format import block_formats
from lowprec.values.elementwise_op import OPERATIONS
from lowprec.values.rounding import MODES

Make = Callable[[Array], Any]
"""An array of NumPy as one of the library that a family is computed with."""

STOCHASTIC: Mapping[str, Any] = MappingProxyType({"rounding": "stochastic", "key": 0x0123456789ABCDEF})
ORDERS = ("sequential", "blocked", "pairwise", "kahan")


def numbers(*shape: int, seed: int = 0, dtype: Any = np.float32) -> Array:
    """Numbers of both signs and many sizes, a few infinities and NaN among float32's."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(shape) * 2.0 ** rng.integers(-12, 12, shape)
    if dtype == np.float32:
        x.reshape(-1)[::9973], x.reshape(-1)[1::9967] = np.inf, np.nan
    return x.astype(dtype)


def finite(*shape: int, seed: int = 0) -> Array:
    """The same in float16, without infinities and NaN."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float16)


def rounding(make: Make, size: int) -> Iterator[Any]:
    """Every mode into 16 and 8 bits, at any offset, from three dtypes."""
    for mode in MODES:
        for fmt in ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2fnuz"):
            for dtype in (np.float32, np.float64, np.float16):
                yield lp.encode(make(numbers(size, dtype=dtype)), fmt, mode, key=5, offset=3)


def decoding(make: Make, size: int) -> Iterator[Any]:
    """Every code of the named formats of at most 16 bits."""
    del size
    for fmt in lp.formats.values():
        if fmt.bits <= 16:
            yield lp.decode(make(np.arange(1 << fmt.bits).astype(fmt.code_dtype)), fmt)


def arithmetic(make: Make, size: int) -> Iterator[Any]:
    """Exact operations, rounded once."""
    a, b, c = (make(numbers(size, seed=seed)) for seed in range(3))
    for op, arrays in (("add", (a, b)), ("multiply", (a, b)), ("divide", (a, b)), ("sqrt", (a,)), ("fma", (a, b, c))):
        for mode in ("nearest_even", "stochastic", "down"):
            yield getattr(lp, op)(*arrays, "bfloat16", mode, key=1)


def functions(make: Make, size: int) -> Iterator[Any]:
    """Every operation of float32_op."""
    arrays = [make(numbers(size, seed=seed)) for seed in range(3)]
    for op, count in OPERATIONS.items():
        yield lp.float32_op(op, *arrays[:count])
        yield lp.float32_op(op, *arrays[:count], fmt="float16", **STOCHASTIC)


def sums(make: Make, size: int) -> Iterator[Any]:
    """Sums in every order, maxima, and rows added at indices."""
    x = make(finite(16, size // 64, 4))
    for order in ORDERS:
        yield lp.sum(x, 1, "float16", "stochastic", order=order, block=8, key=2)
    for axis in (0, 1, (0, 2)):
        yield lp.reduce_sum(x, axis, accumulate="float16", group=4, splits=3, **STOCHASTIC)
        yield lp.reduce_max(x, axis)
    indices = make(np.random.default_rng(1).integers(0, 7, 16))
    yield lp.scatter_add(indices, x, 7, accumulate="float16", **STOCHASTIC)


def products(make: Make, size: int) -> Iterator[Any]:
    """Products in every kind of accumulator."""
    side = max(20, round(size ** (1 / 3)) * 4)
    a, b = make(finite(side, side + 1)), make(finite(side + 1, side - 1, seed=1))
    for accumulate in ("float32", "float16", "bfloat16", "float8_e5m2"):
        for group in (1, 16):
            for how in ({}, STOCHASTIC):
                yield lp.matmul(a, b, accumulate=accumulate, group=group, splits=2, **how)


def convolutions(make: Make, size: int) -> Iterator[Any]:
    """A convolution with padding, strides and groups, and its gradients."""
    side = max(6, round(size ** (1 / 3)))
    x, w = make(finite(2, side, side, 6)), make(finite(3, 3, 3, 10, seed=1))
    for how in ({"accumulate": "float32"}, {"accumulate": "float16", "group": 2, **STOCHASTIC}):
        where: dict[str, Any] = {"stride": (2, 1), "padding": 1, "groups": 2, **how}
        y = lp.conv2d(x, w, **where)
        yield y
        yield lp.conv2d_input_gradient(y, w, (side, side), **where)
        yield lp.conv2d_weight_gradient(x, y, (3, 3), **where)


def blocks(make: Make, size: int) -> Iterator[Any]:
    """Every block format and back, arrays with one scale, packed codes, rotations."""
    x = make(numbers(8, size // 8))
    for name in block_formats:
        made = lp.to_blocks(x, name, **STOCHASTIC)
        yield from (made.elements, made.scales, made.dequantize())
    yield lp.to_scaled(x, "float8_e4m3fnuz", overflow="ipu").elements
    yield lp.pack(lp.encode(make(finite(8, 99)), "float4_e2m1fn"), "float4_e2m1fn")
    yield lp.hadamard(x, block=4, key=1)


def measures(make: Make, size: int) -> Iterator[Any]:
    """Distances between arrays, and counts of values by kind. (Of NaN no bits are promised.)"""
    x, y = make(finite(size)), make(finite(size, seed=1))
    yield from (statistics.ulp_distance(x, y), statistics.ulp_error(x, y), statistics.relative_error(x, y))
    z = make(numbers(size))
    yield np.array(statistics.shares(z, "float8_e4m3fn", "stochastic", key=1))
    yield statistics.exponent_histogram(z).counts
    yield np.array(statistics.underflow(z, make(finite(size))))
    yield from map(np.asarray, statistics.magnitudes(z))


FAMILIES: tuple[Callable[[Make, int], Iterator[Any]], ...] = (
    rounding, decoding, arithmetic, functions, sums, products, convolutions, blocks, measures,
)  # fmt: skip


def digest(arrays: Iterator[Any]) -> str:
    """The first 16 digits of the SHA-256 of arrays' bits, dtypes and shapes."""
    state = hashlib.sha256()
    for array in arrays:
        here = array if isinstance(array, np.ndarray) else host_copy(array)
        state.update(f"{here.dtype} {here.shape}".encode() + np.ascontiguousarray(here).tobytes())
    return state.hexdigest()[:16]


def machine() -> list[str]:
    """Lines that say what it ran on."""
    xp = cupy()
    device, runtime = xp.cuda.Device(), xp.cuda.runtime
    name = runtime.getDeviceProperties(device.id)["name"].decode()
    nvrtc = ".".join(map(str, xp.cuda.nvrtc.getVersion()))

    def version(number: int) -> str:
        return f"{number // 1000}.{number % 1000 // 10}"

    return [
        f"lowprec {lp.__version__} on a GPU, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        f"device    {name}, compute capability {device.compute_capability}, "
        f"{device.attributes['MultiProcessorCount']} multiprocessors",
        f"driver    CUDA {version(runtime.driverGetVersion())}, "
        f"runtime {version(runtime.runtimeGetVersion())}, NVRTC {nvrtc}",
        f"versions  CuPy {xp.__version__}, NumPy {np.__version__}, Python {platform.python_version()}, "
        f"{platform.system()} {platform.machine()}",
    ]


def report(*, size: int = 1 << 16, count: int = 1 << 28, side: int = 4096) -> Iterator[tuple[str, bool]]:
    """The report's lines, and whether each is as it should be.

    Args:
        size: about how many elements the arrays of a family have.
        count: elements of the benchmark's arrays; the device needs room for 40 bytes each.
        side: rows and columns of the benchmark's matrices.

    Raises:
        ImportError, RuntimeError: CuPy, a driver or a GPU is missing; one sentence says which.
    """
    check()
    yield from ((line, True) for line in machine())
    yield f"\n{'family':14s} {'CPU':18s} GPU", True
    for family in FAMILIES:
        here, there = digest(family(lambda x: x, size)), digest(family(upload, size))
        same = here == there
        yield f"{family.__name__:14s} {here:18s} {there}{'' if same else '  DIFFERENT'}", same
    yield "", True
    yield from ((line, True) for line in rows(cupy(), count, side))
