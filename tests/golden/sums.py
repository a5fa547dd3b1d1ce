"""Golden bits of the functions, of products, of reductions and of convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

import lowprec as lp
from tests.golden import hexadecimal

FUNCTIONS = ("exp", "log", "tanh", "erf", "sigmoid", "rsqrt", "sin", "cos", "gelu", "gelu_gradient", "floor", "rint")
ACCUMULATORS = ("float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2fnuz")


def numbers(shape: tuple[int, ...], seed: int, dtype: str) -> npt.NDArray[Any]:
    """Numbers of both signs and many sizes; made of integers only, so the same on every machine."""
    i = np.arange(int(np.prod(shape)), dtype=np.int64) * 2654435761 + seed * 40503
    significand = 1 + (i % 1048573) / 1048576.0
    x = np.where(i // 7 % 2 == 0, significand, -significand) * 2.0 ** (i // 1000 % 9 - 6)
    return np.asarray(lp.astype(x.astype(np.float32), dtype)).reshape(shape)


def codes(x: Any) -> str:
    """The bits of an array."""
    fmt = lp.as_format(x.dtype)
    return hexadecimal(np.ascontiguousarray(x).view(fmt.code_dtype))


def functions() -> dict[str, Any]:
    """Every function over numbers of every size."""
    i = np.arange(200)
    x = np.ldexp(1 + (i * 40503 % 65536) / 65536.0, i // 2 - 60).astype(np.float32) * np.where(i % 2, 1, -1)
    x = np.concatenate([x.astype(np.float32), np.float32([0.0, -0.0, np.inf, -np.inf])])
    results = {name: codes(_one_nan(lp.float32_op(name, x))) for name in FUNCTIONS}
    options: dict[str, Any] = {"fmt": "float8_e4m3fn", "rounding": "stochastic", "key": 3, "offset": 40}
    results["fmod"] = codes(_one_nan(lp.float32_op("fmod", x, np.roll(x, 7))))
    return {**results, "tanh float8_e4m3fn stochastic": codes(lp.float32_op("tanh", x, **options))}


def _one_nan(x: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    return np.where(np.isnan(x), np.float32(np.nan), x)


def products(
    dtypes: Sequence[str] = ("float16", "float32", "bfloat16", "float8_e4m3fn"),
    adders: Sequence[str] = ("dot4", "pairwise"),
) -> dict[str, Any]:
    """Products over operands, accumulators, groups, splits and roundings, and in other adders' orders."""
    results = {}
    for dtype in dtypes:
        a, b = numbers((3, 70), 1, dtype), numbers((70, 5), 2, dtype)
        for accumulate in ACCUMULATORS:
            for rounding, bits in (("nearest_even", 16), ("stochastic", 16), ("stochastic", 5), ("stochastic", 20)):
                for group, splits in ((16, 1), (1, 1), (4, 18)):
                    name = f"{dtype} {accumulate} {rounding} {bits} bits, group {group}, splits {splits}"
                    results[name] = codes(
                        lp.matmul(
                            *(a, b),
                            accumulate=accumulate,
                            group=group,
                            splits=splits,
                            rounding=rounding,
                            key=0x0123456789ABCDEF,
                            random_bits=bits,
                            offset=(2, 13),
                        )
                    )
        for adder in adders[dtype == "float32" :]:
            results[f"{dtype} {adder}"] = codes(lp.matmul(a, b, accumulate="float16", adder=adder))
    return results


def aligned() -> dict[str, Any]:
    """Products and convolutions with terms cut behind the largest exponent, and sums in formats of 20 to 31 bits."""
    wide = {"e8m13": lp.FloatFormat("e8m13", 8, 13), "e6m22": lp.FloatFormat("e6m22", 6, 22)}
    results = {}
    for dtype in ("float16", "float32", "bfloat16", "float8_e4m3fn", "float8_e5m2"):
        a, b = numbers((3, 70), 1, dtype), numbers((70, 5), 2, dtype)
        for accumulate in ("float32", "float16", "e8m13", "e6m22"):
            for rounding in ("nearest_even", "toward_zero", "stochastic"):
                options: dict[str, Any] = {"accumulate": wide.get(accumulate, accumulate), "out_format": "float32"}
                options |= {"rounding": rounding, "key": 0x0123456789ABCDEF, "offset": (2, 13)}
                name = f"{dtype} {accumulate} {rounding}"
                results[name] = codes(lp.matmul(a, b, group=4, splits=3, **options))
                for group, bits in ((32, 13), (4, 23), (7, 3)):
                    how = {"group": group, "adder": "aligned", "aligned_bits": bits}
                    results[f"{name}, {group} to {bits} bits"] = codes(lp.matmul(a, b, **how, **options))
    x, w = numbers((2, 6, 5, 6), 5, "float16"), numbers((3, 2, 6, 5), 6, "float16")
    results["convolution"] = codes(lp.conv2d(x, w, group=4, splits=2, adder="aligned", aligned_bits=12))
    return results


def reductions() -> dict[str, Any]:
    """Sums over each axis, and sums of parts."""
    x = numbers((3, 40, 5), 3, "float16")
    options: dict[str, Any] = {"rounding": "stochastic", "key": 5}
    results = {
        f"axis {axis}, accumulate {accumulate}": codes(
            lp.reduce_sum(x, axis, accumulate=accumulate, group=8, splits=2, **options)
        )
        for axis in (0, 1, 2)
        for accumulate in ("float32", "float16", "float8_e5m2")
    }
    parts = numbers((4, 3, 20), 4, "float16")
    for tag in ("stage", "output"):
        results[f"parts {tag}"] = codes(
            lp.sum_parts(parts, fmt="float16", tag=tag, index=6, row=3, column=9, **options)
        )
    return results


def convolutions() -> dict[str, Any]:
    """A convolution with short groups, strides, dilation, padding and groups, and its gradients."""
    x, w, g = (
        numbers((2, 6, 5, 6), 5, "float16"),
        numbers((3, 2, 3, 34), 6, "float16"),
        numbers((2, 3, 4, 34), 7, "float16"),
    )
    where: dict[str, Any] = {"stride": (2, 1), "dilation": (1, 2), "padding": ((1, 0), (0, 1)), "groups": 2}
    results = {}
    for accumulate in ("float32", "float16", "float8_e4m3fn"):
        for rounding in ("nearest_even", "stochastic"):
            options = where | dict(accumulate=accumulate, rounding=rounding, key=0x0123456789ABCDEF, group=2, splits=2)
            name = f"{accumulate} {rounding}"
            results[name] = codes(lp.conv2d(x, w, **options))
            results[f"{name} input gradient"] = codes(lp.conv2d_input_gradient(g, w, (6, 5), **options))
            results[f"{name} weight gradient"] = codes(lp.conv2d_weight_gradient(x, g, (3, 2), **options))
    return results


def build() -> dict[str, Any]:
    """Every file of this module."""
    return {
        "functions.json": functions(),
        "products.json": products(),
        "aligned.json": aligned(),
        "reductions.json": reductions(),
        "convolutions.json": convolutions(),
    }
