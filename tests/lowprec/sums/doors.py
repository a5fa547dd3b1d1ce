"""Every door of a float32 sum as a call of two small arrays' numbers: f(numbers, **how).

`numbers(shape)` gives float32 values around the ends of the accumulator, `numbers(shape, largest)` small ones. `how`
are a sum's keywords; doors of one chain take those of a chain.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

import lowprec as lp
from lowprec.convolution.parts import prepare_correlation, prepare_weight_sums
from lowprec.values.keywords import SumKeywords, as_sum
from lowprec.values.windows import BlockPlace, window_view
from tests.lowprec.sums_cases import Array

Numbers = Callable[..., Array]
Door = Callable[..., Any]

POLICIES = ("rounding", "key", "random_bits", "overflow", "infinite_input")
CONVOLUTIONS: dict[str, tuple[int, int, int]] = {
    "dense": (1, 3, 5),
    "dense to many": (1, 2, 17),
    "of many channels": (1, 65, 1),
    "grouped": (2, 2, 9),
    "depthwise": (6, 1, 1),
    "narrow": (4, 2, 2),
}
"""Kind -> convolution groups, channels and outputs of each: what the compiled loops tell apart."""


def matmul(numbers: Numbers, **how: Any) -> Any:
    return lp.matmul(numbers((2, 5)), numbers((5, 3), 2.0).astype(np.float16), **how)


def reduce_sum(numbers: Numbers, **how: Any) -> Any:
    return lp.reduce_sum(numbers((2, 5, 3)), 1, **how)


def sums_of_rows(numbers: Numbers, **how: Any) -> Any:
    return lp.reduce_sum(numbers((3, 5)), 1, **how)


def scatter_add(numbers: Numbers, **how: Any) -> Any:
    policies = {name: how.pop(name) for name in POLICIES if name in how}
    order, _ = as_sum(SumKeywords, None, None, "nearest_even", **how | {"splits": 1})
    return lp.scatter_add([1, 1, 0, 1, 3], numbers((5, 3)), 4, accumulation=order, **policies)


def scaled_matmul(numbers: Numbers, **how: Any) -> Any:
    return lp.scaled_matmul(numbers((2, 5)), numbers((5, 3), 2.0), **how)


def block_scaled_matmul(numbers: Numbers, **how: Any) -> Any:
    a = lp.to_blocks(np.nan_to_num(numbers((2, 40))), "mxfp8_e5m2")
    return lp.scaled_matmul(a, numbers((40, 2), 2.0).astype(ml_dtypes.bfloat16), **how)


def conv2d(kind: str) -> Door:
    groups, channels, outputs = CONVOLUTIONS[kind]

    def call(numbers: Numbers, **how: Any) -> Any:
        x = numbers((1, 2, 5, groups * channels))
        return lp.conv2d(x, numbers((1, 2, channels, groups * outputs), 2.0), groups=groups, **how)

    return call


def conv2d_input_gradient(kind: str) -> Door:
    groups, channels, outputs = CONVOLUTIONS[kind]

    def call(numbers: Numbers, **how: Any) -> Any:
        gradient, weight = numbers((1, 2, 4, groups * outputs)), numbers((1, 2, channels, groups * outputs), 2.0)
        return lp.conv2d_input_gradient(gradient, weight, (2, 5), groups=groups, **how)

    return call


def conv2d_weight_gradient(kind: str) -> Door:
    groups, channels, outputs = CONVOLUTIONS[kind]

    def call(numbers: Numbers, **how: Any) -> Any:
        x, gradient = numbers((1, 2, 5, groups * channels)), numbers((1, 2, 4, groups * outputs), 2.0)
        return lp.conv2d_weight_gradient(x, gradient, (1, 2), groups=groups, **how)

    return call


def matmul_part(numbers: Numbers, **how: Any) -> Any:
    a, b = numbers((2, 5)), numbers((5, 3), 2.0).astype(np.float16)
    return lp.matmul_part(a, b, initial=numbers((2, 3)), **how)


def reduce_part(numbers: Numbers, **how: Any) -> Any:
    return lp.reduce_part(numbers((2, 5, 3)), **how)


def correlation_part(numbers: Numbers, **how: Any) -> Any:
    """Two of the four groups of windows of 1 x 2 positions with channels of their own."""
    how, rounding = dict(how), lp.Rounding(**{name: how[name] for name in POLICIES if name in how and name != "key"})
    order = lp.Accumulation(2, accumulate=how["accumulate"])
    x, weight = numbers((1, 1, 5, 1, 3)), numbers((1, 2, 1, 3, 4), 2.0)
    out = np.zeros((1, 1, 4, 1, 4), order.out.dtype)
    call = prepare_correlation(x.dtype, weight.dtype, order, rounding)
    call(window_view(x, (1, 2), (1, 1), (1, 1), (1, 4)), weight, out, BlockPlace(0, 0, 0, 4, 4), how.get("key"), (1, 3))
    return out


def weight_part(numbers: Numbers, **how: Any) -> Any:
    """Three of four output positions."""
    how, rounding = dict(how), lp.Rounding(**{name: how[name] for name in POLICIES if name in how and name != "key"})
    order = lp.Accumulation(how.get("group"), accumulate=how["accumulate"])
    x, gradient = numbers((1, 1, 5, 1, 3)), numbers((1, 1, 4, 1, 4), 2.0)
    out = np.zeros((1, 2, 1, 3, 4), order.out.dtype)
    call = prepare_weight_sums(x.dtype, gradient.dtype, order, rounding)
    seen = window_view(x, (1, 2), (1, 1), (1, 1), (1, 4))
    call(seen, gradient, out, BlockPlace(0, 0, 0, 6, 3), how.get("key"), (0, 3))
    return out


WHOLE: dict[str, Door] = {
    **{call.__name__: call for call in (matmul, reduce_sum, sums_of_rows, scatter_add)},
    **{call.__name__: call for call in (scaled_matmul, block_scaled_matmul)},
    **{f"conv2d, {kind}": conv2d(kind) for kind in CONVOLUTIONS},
    **{f"conv2d_input_gradient, {kind}": conv2d_input_gradient(kind) for kind in CONVOLUTIONS},
    **{f"conv2d_weight_gradient, {kind}": conv2d_weight_gradient(kind) for kind in CONVOLUTIONS},
}
PARTS: dict[str, Door] = {call.__name__: call for call in (matmul_part, reduce_part, correlation_part, weight_part)}
