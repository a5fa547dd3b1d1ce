"""Sensible arguments of lowprec's public calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import lowprec
from lowprec.values.collective import ALGORITHMS
from tests.fuzz.wild import FLOATS, OPERANDS, Draw

Arguments = dict[str, Any]
Make = Callable[[Draw], Arguments]


def _convert(d: Draw) -> Arguments:
    return {"x": d.array(), "fmt": d.fmt(), **d.rounding(), "flush": d.chance(0.2), "offset": d.integer(0, 9)}


def _out(d: Draw, shape: tuple[int, ...], *wanted: Any) -> Arguments:
    """Sometimes a place for the result: of the right shape and dtype, or nearly."""
    if not d.chance(0.3):
        return {}
    shape = shape if d.chance(0.8) else d.shape()
    return {"out": d.layout(np.zeros(shape, np.dtype(d.one_of((*wanted * 3, "f4", ">f4", "i4")))))}


def _binary(d: Draw) -> Arguments:
    shape = d.shape()
    return {"a": d.array(shape), "b": d.one_of((d.array(shape), 2.5)), "fmt": d.fmt(), **d.rounding(few=False)}


def _unary(d: Draw) -> Arguments:
    return {"x": d.array(), "fmt": d.fmt(), **d.rounding(few=False)}


def _product(d: Draw) -> Arguments:
    m, k, n = d.integer(0, 9), d.integer(0, 40), d.integer(0, 20)
    batch = d.shape(d.one_of((0, 0, 1)))
    order = d.order()
    a, b = d.array((*batch, m, k), OPERANDS), d.array((*batch, k, n), OPERANDS)
    return {"a": a, "b": b, **order, **d.rounding(few=False), **d.adder(),
            **_out(d, (*batch, m, n), order["accumulate"])}  # fmt: skip


def _product_part(d: Draw) -> Arguments:
    found = _product(d)
    for name in ("splits", "stages"):
        del found[name]
    return found | {name: d.integer(0, 99) for name in ("row", "column", "first_group", "batch")}


def _reduction(d: Draw) -> Arguments:
    order = d.order()
    x = d.array(d.shape(3), OPERANDS)
    return {"x": x, "axis": d.integer(-3, 2), **order, **d.rounding(few=False), "keepdims": d.chance(0.3)}


def _reduction_part(d: Draw) -> Arguments:
    order = {name: value for name, value in d.order().items() if name in ("group", "accumulate")}
    x = d.array(d.shape(3), OPERANDS)
    return {"x": x, **order, **d.rounding(few=False), "row": d.integer(0, 9),
            **_out(d, (x.shape[0], x.shape[2]), order["accumulate"])}  # fmt: skip


def _parts(d: Draw) -> Arguments:
    return {"parts": d.array(d.shape(3), OPERANDS), "fmt": d.one_of(("float16", "float32")), **d.rounding(few=False),
            "tag": d.one_of(("stage", "output"))}  # fmt: skip


def _scatter(d: Draw) -> Arguments:
    rows, count = d.integer(1, 6), d.integer(0, 12)
    order = {name: value for name, value in d.order().items() if name in ("group", "accumulate")}
    return {"indices": d.integers((count,), rows), "updates": d.array((count, *d.shape(1)), OPERANDS), "rows": rows,
            **order, **d.rounding(few=False)}  # fmt: skip


WIRES = ("float32", "float16", "bfloat16", "float8_e4m3fn", "e6m5", lowprec.fixed_point(8, 4))


def _all_reduce(d: Draw) -> Arguments:
    algorithm = d.one_of(ALGORITHMS)
    group = d.integer(1, 3) if algorithm == "two_level" else None
    rounding = lowprec.Rounding(d.one_of(("nearest_even", "stochastic", "up", "odd")))
    how = lowprec.Collective(algorithm, d.integer(0, 9), group, d.one_of(WIRES), d.one_of((None, "float32")), rounding)
    return {"x": d.array((d.integer(0, 6), *d.shape(2))), "collective": d.one_of((how, how, None)),
            "key": d.one_of((3, 5, None))}  # fmt: skip


def _sum(d: Draw) -> Arguments:
    return {"x": d.array(), "fmt": d.fmt(), **d.rounding(few=False), "axis": d.one_of((None, -1, 0, 1)),
            "order": d.one_of(("sequential", "blocked", "pairwise", "kahan")), "block": d.integer(1, 9)}  # fmt: skip


def _dot(d: Draw) -> Arguments:
    found = _sum(d)
    shape = found.pop("x").shape
    return {"a": d.array(shape), "b": d.array(shape), **found}


def _convolution(d: Draw) -> Arguments:
    c, n, kernel = d.integer(1, 5), d.integer(1, 5), (d.integer(1, 3), d.integer(1, 3))
    return {"x": d.array((d.integer(1, 2), 6, 5, c), OPERANDS), "weight": d.array((*kernel, c, n), OPERANDS),
            "stride": d.integer(1, 2), "padding": d.one_of((0, 1, "same", "valid", (1, 0))), **d.order(),
            **d.rounding(few=False)}  # fmt: skip


def _weight_gradient(d: Draw) -> Arguments:
    c, n = d.integer(1, 5), d.integer(1, 5)
    return {"x": d.array((2, 6, 5, c), OPERANDS), "gradient": d.array((2, 4, 3, n), OPERANDS), "kernel": 3, **d.order(),
            **d.rounding(few=False)}  # fmt: skip


def _input_gradient(d: Draw) -> Arguments:
    c, n = d.integer(1, 5), d.integer(1, 5)
    return {"gradient": d.array((2, 4, 3, n), OPERANDS), "weight": d.array((3, 3, c, n), OPERANDS), "size": (6, 5),
            **d.order(), **d.rounding(few=False)}  # fmt: skip


def _blocks(d: Draw) -> Arguments:
    x = d.array((d.integer(0, 3), 32 * d.integer(0, 2)), FLOATS)
    return {"x": x, "fmt": d.one_of(sorted(lowprec.block_formats)),
            **{name: value for name, value in d.rounding(few=False).items() if name != "infinite_input"}}  # fmt: skip


def _packed(d: Draw) -> Arguments:
    bits = d.one_of((4, 6))
    return {"codes": d.integers(d.shape(2), 1 << bits), "fmt": f"float{bits}_e2m{bits - 3}fn"}


def hadamard_arguments(d: Draw, dtypes: Sequence[Any] = FLOATS) -> Arguments:
    """An axis of some blocks, which may not fit it."""
    block, axis = 1 << d.integer(0, 6), d.integer(-3, 2)
    shape = list(d.shape(3))
    shape[axis] = block * d.integer(1, 3)
    block = block if d.chance(0.8) else d.integer(0, 9)
    return {"x": d.array(tuple(shape), dtypes), "axis": axis, "block": d.one_of((block, block, None)),
            "key": d.one_of((None, 3, lowprec.Key(7))), "inverse": d.chance(0.5)}  # fmt: skip


CALLS: dict[str, tuple[Callable[..., Any], Make]] = {
    **{name: (getattr(lowprec, name), _convert) for name in ("round", "astype", "encode")},
    "decode": (lowprec.decode, lambda d: {"codes": d.integers(d.shape(), 256), "fmt": d.fmt()}),
    **{name: (getattr(lowprec, name), _binary) for name in ("add", "subtract", "multiply", "divide")},
    "sqrt": (lowprec.sqrt, _unary),
    "fma": (lowprec.fma, lambda d: {**_binary(d), "c": 1.0}),
    "scaled_add": (lowprec.scaled_add, lambda d: {
        "a": d.array((4,)), "b": d.array((4,)), "s": 0.5, "fmt": d.fmt(), **d.rounding(few=False)}),
    **{name: (getattr(lowprec, name), lambda d: {"x": d.array(None, OPERANDS)}) for name in (
        "exp", "log", "tanh", "erf", "sigmoid", "rsqrt", "sin", "cos", "gelu")},
    "matmul": (lowprec.matmul, _product),
    "matmul_part": (lowprec.matmul_part, _product_part),
    "conformance": (lowprec.conformance, lambda d: {
        "f": np.matmul, "accumulation": lowprec.Accumulation(), "operands": d.fmt(), "terms": d.integer(1, 40),
        "trials": d.integer(1, 50), "kind": "product"}),
    "reduce_sum": (lowprec.reduce_sum, _reduction),
    "reduce_part": (lowprec.reduce_part, _reduction_part),
    "reduce_max": (lowprec.reduce_max, lambda d: {"x": d.array(d.shape(2), OPERANDS), "axis": d.integer(-2, 1)}),
    "sum_parts": (lowprec.sum_parts, _parts),
    "scatter_add": (lowprec.scatter_add, _scatter),
    "all_reduce": (lowprec.all_reduce, _all_reduce),
    **{name: (getattr(lowprec, name), _sum) for name in ("sum", "mean", "norm")},
    "cumulative_sum": (lowprec.cumulative_sum, lambda d: {
        "x": d.array(d.shape(2)), "fmt": d.fmt(), **d.rounding(few=False), "axis": d.integer(-2, 1)}),
    "dot": (lowprec.dot, _dot),
    "conv2d": (lowprec.conv2d, _convolution),
    "conv2d_weight_gradient": (lowprec.conv2d_weight_gradient, _weight_gradient),
    "conv2d_input_gradient": (lowprec.conv2d_input_gradient, _input_gradient),
    "to_blocks": (lowprec.to_blocks, _blocks),
    "to_scaled": (lowprec.to_scaled, lambda d: {"x": d.array(), "fmt": d.fmt(), **d.rounding(few=False)}),
    "hadamard": (lowprec.hadamard, hadamard_arguments),
    "pack": (lowprec.pack, _packed),
    "unpack": (lowprec.unpack, lambda d: {"packed": d.integers((d.integer(0, 9),), 256), "fmt": "float4_e2m1fn",
                                          "size": d.integer(0, 18)}),
    "random_bits": (lowprec.random_bits, lambda d: {"key": 3, "shape": d.shape(), "bits": d.integer(1, 32)}),
    "Key": (lowprec.Key, lambda d: {"seed": d.integer(0, 2**64 - 1)}),
    "Accumulation": (lowprec.Accumulation, lambda d: {**d.order(), **d.adder()}),
    "Rounding": (lowprec.Rounding, lambda d: {"mode": "up", "random_bits": 3}),
    "FloatFormat": (lowprec.FloatFormat, lambda d: {
        "name": "own", "exponent_bits": d.integer(0, 11), "mantissa_bits": d.integer(0, 12),
        "bias": d.integer(-3, 20)}),
    "p3109": (lowprec.p3109, lambda d: {"k": d.integer(2, 16), "p": d.integer(0, 15)}),
    "as_format": (lowprec.as_format, lambda d: {"spec": d.fmt()}),
    "finfo": (lowprec.finfo, lambda d: {"spec": d.fmt()}),
    "explain": (lowprec.explain, lambda d: {"x": d.one_of((0.1, -3.0, float("nan"))), "fmt": d.fmt()}),
    "num_threads": (lowprec.num_threads, lambda d: {"n": d.integer(1, 4)}),
    "statistics.shares": (lowprec.statistics.shares, lambda d: {"x": d.array(), "fmt": d.fmt()}),
    **{f"statistics.{name}": (getattr(lowprec.statistics, name), lambda d: {"x": d.array((3,)), "exact": d.array((3,))})
       for name in ("relative_error", "signal_to_noise_ratio")},
}  # fmt: skip
