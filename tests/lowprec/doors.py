"""Every kind of call that lowprec computes with, on numbers that show how they were computed: subnormal, inexact."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

import lowprec as lp
from lowprec import statistics
from lowprec.pipeline import Pipeline
from lowprec.values.elementwise_op import OPERATIONS

Array = npt.NDArray[Any]
Door = Callable[[], Any]

EXACT = ("add", "subtract", "multiply", "divide", "scaled_add")
FUNCTIONS = ("exp", "log", "tanh", "erf", "sigmoid", "rsqrt", "sin", "cos", "gelu")
TINY = 1.3e-38  # just above float32's smallest normal number


def numbers(size: int, seed: int = 0, dtype: Any = np.float32) -> Array:
    """Numbers of all sizes that float32 has, a third of them subnormal in the dtype or just above."""
    rng = np.random.default_rng(seed)
    info = ml_dtypes.finfo(dtype)
    low = int(np.floor(np.log2(float(info.smallest_normal))))
    exponents = np.where(rng.random(size) < 1 / 3, rng.integers(low - 5, low + 3, size), rng.integers(low, 7, size))
    return np.asarray(rng.normal(size=size) * 2.0**exponents).astype(dtype)


def _pipeline(x: Array) -> Array:
    """Each number times 0.3, which lies in pieces, and the number itself added."""
    piece, ieee, size = 512, lp.Rounding(), x.itemsize
    inside, out = np.empty(piece * size, np.uint8), np.empty_like(x)
    between = np.lib.stride_tricks.as_strided(inside.view(x.dtype), x.shape)  # never read beyond a piece
    line = Pipeline(inside)
    line.part(len(x), piece)
    line.add("multiply", (x.dtype, None), "float32", ieee, (x, 0.3), between, (0, 0, size))
    line.add("add", (x.dtype, x.dtype), "float32", ieee, (between, x), out, (size, 0, 0))
    line(None)
    return out


def doors(scale: int = 1) -> dict[str, Door]:
    """Calls by name; `scale` 16 has work for several threads in each."""
    n = 4096 * scale
    x, y, small = numbers(n), numbers(n, 1), numbers(n, 2, np.float16)
    wide = numbers(n, 3, np.float64) * 1e-300
    rows, more = x.reshape(-1, 64) * np.float32(TINY), y.reshape(-1, 64)
    images = (numbers(64 * scale * 64, 4) * np.float32(0.1)).reshape(-1, 8, 8, 16)
    kernel = np.full((3, 3, 16, 16), TINY, np.float32) * numbers(2304, 5).reshape(3, 3, 16, 16).clip(-2, 2)
    nearly = np.asarray(rows, np.float64) * 1.0000001
    faint = images * np.float32(TINY)
    tap = np.ascontiguousarray(kernel[:, :, :1, :])
    places = np.arange(len(rows)) * 7 % 50
    found: dict[str, Door] = {
        "matmul": lambda: lp.matmul(rows, more.T[:, :48]),
        "matmul, float16": lambda: lp.matmul(small.reshape(-1, 64), small[:3072].reshape(64, 48), accumulate="float16"),
        "matmul, stochastic": lambda: lp.matmul(
            rows, more.T[:, :48], accumulate="bfloat16", rounding="stochastic", key=1
        ),
        "matmul, aligned": lambda: lp.matmul(
            small.reshape(-1, 64), small[:3072].reshape(64, 48), adder="aligned", aligned_bits=12
        ),
        "matmul, dot4": lambda: lp.matmul(small.reshape(-1, 64), small[:3072].reshape(64, 48), adder="dot4"),
        "matmul_part": lambda: lp.matmul_part(rows, more.T[:, :48]),
        "reduce_sum": lambda: lp.reduce_sum(rows),
        "reduce_sum, parts": lambda: lp.reduce_sum(rows, 0, splits=3, group=4),
        "reduce_part": lambda: lp.reduce_part(rows.reshape(-1, 4, 4, 16)),
        "sum_parts": lambda: lp.sum_parts(rows.reshape(4, -1, 64), fmt="float32"),
        "reduce_max": lambda: lp.reduce_max(rows),
        "scatter_add": lambda: lp.scatter_add(places, rows, 50),
        "all_reduce": lambda: lp.all_reduce(rows.reshape(8, -1), lp.Collective(wire="float16")),
        "sum": lambda: lp.sum(rows, -1),
        "sum, pairwise": lambda: lp.sum(rows, -1, order="pairwise"),
        "kahan_sum": lambda: lp.kahan_sum(rows, -1),
        "mean": lambda: lp.mean(rows, 0, "float16"),
        "dot": lambda: lp.dot(rows, more),
        "norm": lambda: lp.norm(more, -1),
        "cumulative_sum": lambda: lp.cumulative_sum(rows, -1),
        "conv2d": lambda: lp.conv2d(images, kernel, padding=1),
        "conv2d, depthwise": lambda: lp.conv2d(images, tap, padding=1, groups=16),
        "conv2d_input_gradient": lambda: lp.conv2d_input_gradient(images, kernel, (8, 8), padding=1),
        "conv2d_weight_gradient": lambda: lp.conv2d_weight_gradient(faint, images, (3, 3), padding=1),
        "conv2d_weight_gradient, depthwise": lambda: lp.conv2d_weight_gradient(
            faint, images, (3, 3), padding=1, groups=16
        ),
        "sqrt": lambda: lp.sqrt(abs(x), "float32", "up"),
        "fma": lambda: lp.fma(x, y, x, "float32"),
        "a float and an array": lambda: lp.add(x, 1e-40, "float32"),
        "a number of float64": lambda: lp.float32_op("multiply", x, 0.1, fmt="float32"),
        "add, float64": lambda: lp.add(wide, wide[::-1], "float64"),
        "round, float64": lambda: lp.round(wide, "float64", flush=True),
        "decode": lambda: lp.decode(np.arange(n, dtype=np.uint16), "float16"),
        "decode, float64": lambda: lp.decode(np.arange(n, dtype=np.uint64), "float64"),
        "to_blocks": lambda: lp.to_blocks(rows, "mxfp8_e4m3").dequantize(),
        "to_scaled": lambda: lp.to_scaled(rows, "float8_e4m3fn").dequantize(),
        "to_scaled, rows": lambda: lp.to_scaled(rows, "float8_e4m3fn", scale="auto", axis=0).dequantize(),
        "to_scaled, float64": lambda: lp.to_scaled(wide, "float8_e5m2", scale=0.3).dequantize(np.float64),
        "to_blocks, nvfp4": lambda: lp.to_blocks(rows, "nvfp4").dequantize(),
        "scaled_matmul, blocks": lambda: lp.scaled_matmul(
            lp.to_blocks(rows, "mxfp8_e4m3", axis=1), lp.to_blocks(more.T, "mxfp8_e4m3", axis=0)
        ),
        "scaled_matmul": lambda: lp.scaled_matmul(
            lp.to_scaled(rows, "float8_e4m3fn"), lp.to_scaled(more.T, "float8_e4m3fn")
        ),
        "hadamard": lambda: lp.hadamard(rows),
        "pack": lambda: lp.pack(lp.encode(rows, "float4_e2m1fn"), "float4_e2m1fn"),
        "pipeline": lambda: _pipeline(x),
        "random_bits": lambda: lp.random_bits(1, n),
        "magnitudes": lambda: statistics.magnitudes(rows),
        "exponent_histogram": lambda: statistics.exponent_histogram(rows).counts,
        "lost_updates": lambda: statistics.lost_updates(rows, more, rows),
        "UpdateCount": lambda: statistics.UpdateCount.of(rows, more, rows),
        "underflow": lambda: statistics.underflow(rows, more),
        "shares": lambda: statistics.shares(rows, "float16"),
        "ulp_error": lambda: statistics.ulp_error(rows, nearly, "float32"),
        "finfo": lambda: [vars(lp.finfo(name)) for name in lp.formats],
        "explain": lambda: [str(lp.explain(value, "float16")) for value in (0.1, 1e-7, 65519.9)],
    }
    for fmt in ("float16", "bfloat16", "float8_e4m3fn", "float8_e8m0fnu", "float32", "tfloat32"):
        for mode in ("nearest_even", "stochastic", "up"):
            for name, source in (("float32", x), ("float64", wide), ("float16", small)):
                values = abs(source) if fmt == "float8_e8m0fnu" else source
                found[f"encode {name} to {fmt}, {mode}"] = partial(lp.encode, values, fmt, mode, key=1)
    for fmt in ("float32", "bfloat16", "float16"):
        found[f"encode to {fmt}, stochastic_half"] = partial(
            lp.encode, x * np.float32(TINY), fmt, "stochastic_half", key=1
        )
    for op, count in OPERATIONS.items():
        given = (x, y, x[::-1].copy())[:count]
        found[f"float32_op {op}"] = partial(lp.float32_op, op, *given, fmt="float32")
        found[f"float32_op {op}, float16"] = partial(lp.float32_op, op, *given, fmt="float16")
    for name in EXACT:
        operation = partial(getattr(lp, name), x, y, *((0.1,) if name == "scaled_add" else ()))
        found[f"{name} exact"] = partial(operation, "float32")
        found[f"{name} exact, stochastic"] = partial(operation, "float16", "stochastic", key=3)
    for name in FUNCTIONS:
        found[name] = partial(getattr(lp, name), x, "float32")
        found[f"{name}, float16"] = partial(getattr(lp, name), small, "float16")
    return found


def bits(result: Any) -> bytes:
    """What a call gave, as bytes; NaN is NaN."""
    if not isinstance(result, np.ndarray):
        return repr(result).encode()
    result = result.copy()
    if result.dtype.kind in "fV" and result.dtype.itemsize > 1:
        result[np.isnan(result)] = np.nan  # by itself, not with numbers that would be computed with
    return result.tobytes()
