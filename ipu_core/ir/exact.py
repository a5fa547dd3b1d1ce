"""Ideal arithmetic: every operation in float64 on NumPy, one rule per operation."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ipu_core.ir import convolution
from ipu_core.ir.block import Array, Params
from lowprec import hadamard
from lowprec.arrays import whole_array

ROOT_HALF = math.sqrt(0.5)
ROOT_TAU = math.sqrt(2 * math.pi)


def _erf(x: Any) -> Any:
    array = np.asarray(x, np.float64)
    return np.fromiter(map(math.erf, array.reshape(-1).tolist()), np.float64, array.size).reshape(array.shape)


def _cumulative_normal(x: Any) -> Any:
    return 0.5 * (1 + _erf(np.asarray(x) * ROOT_HALF))


def _sigmoid(x: Any) -> Any:
    return 0.5 * (1 + np.tanh(0.5 * x))


def _pad(x: Array, p: Params) -> Array:
    sizes = zip(x.shape, p["low"], p["high"], p["interior"], strict=True)
    result = np.zeros([a + n + max(0, n - 1) * i + b for n, a, b, i in sizes], x.dtype)
    result[inner(x.shape, p)] = x
    return result


def inner(shape: tuple[int, ...], p: Params) -> tuple[slice, ...]:
    """Where the operand of a pad lies in its result."""
    sizes = zip(shape, p["low"], p["interior"], strict=True)
    return tuple(slice(a, a + max(0, (n - 1) * (i + 1) + 1) if n else a, i + 1) for n, a, i in sizes)


def _scatter_add(indices: Array, updates: Array, p: Params) -> Array:
    result = np.zeros((p["rows"], *updates.shape[indices.ndim :]), updates.dtype)
    # `result[indices] += updates` would keep one of several updates of a row.
    np.add.at(result, indices, updates)
    return result


def _scatter_max(indices: Array, updates: Array, p: Params) -> Array:
    result = np.full((p["rows"], *updates.shape[indices.ndim :]), -np.inf, updates.dtype)
    np.maximum.at(result, indices, updates)
    hit = np.zeros(p["rows"], np.bool_)
    hit[indices] = True
    result[~hit] = 0
    result[result == 0] = 0  # of either sign, as the machine has it
    return result


def _put_along(indices: Array, updates: Array, p: Params) -> Array:
    result = np.zeros((*indices.shape[:-1], p["size"]), updates.dtype)
    rows = np.ix_(*map(np.arange, indices.shape))[:-1]
    np.add.at(result, (*rows, indices), updates)
    return result


def _top_indices(x: Array, p: Params) -> Array:
    """The largest first; of equal ones the lowest index, NaN before all."""
    down = np.argsort(-x, axis=-1, kind="stable")
    # NumPy sorts NaN last, whatever the sign: a second stable sort brings them to the front.
    numbers = ~np.isnan(np.take_along_axis(x, down, -1))
    return np.take_along_axis(down, np.argsort(numbers, axis=-1, kind="stable"), -1)[..., : p["k"]]


def _gather(x: Array, indices: Array) -> Array:
    try:
        return np.asarray(x[indices])
    except IndexError as error:
        raise IndexError(f"gather: {error}") from None


def _set_row(row: Array, place: Array, table: Array) -> Array:
    result = np.array(table)
    result[place] = row
    return result


EXACT: dict[str, Callable[..., Any]] = {
    "negative": np.negative,
    "absolute": np.abs,
    "relu": lambda x: np.maximum(x, 0.0),
    # NaN of NaN, as relu gives: its derivative must not hide one.
    "step": lambda x: np.where(np.isnan(x), x, np.greater(x, 0)),
    "square": np.square,
    "reciprocal": lambda x: 1 / x,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "exp": np.exp,
    "log": np.log,
    "tanh": np.tanh,
    "erf": _erf,
    "sigmoid": _sigmoid,
    "sin": np.sin,
    "cos": np.cos,
    "gelu": lambda x: x * _cumulative_normal(x),
    "gelu_gradient": lambda x: _cumulative_normal(x) + x * np.exp(-0.5 * np.square(x)) / ROOT_TAU,
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "scale": np.multiply,
    "divide": np.divide,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "greater": lambda a, b: np.greater(a, b) * 1.0,
    "equal": lambda a, b: np.equal(a, b) * 1.0,
    "select": lambda c, a, b: np.where(np.not_equal(c, 0), a, b),
    "scaled_add": lambda a, b, s: a + s * b,
    "floor": np.floor,
    "rint": np.rint,
    "fmod": np.fmod,
    "convert": lambda x: np.asarray(x, np.float64),
    "dot": lambda a, b: a @ b,
    "scaled_dot": lambda a, b, s: (a @ b) * s,
    "conv2d": convolution.exact_conv2d,
    "conv2d_input_gradient": convolution.exact_input_gradient,
    "conv2d_weight_gradient": convolution.exact_weight_gradient,
    "reduce_sum": lambda x, p: np.sum(x, p["axis"], keepdims=p["keepdims"]),
    "reduce_max": lambda x, p: np.max(x, p["axis"], keepdims=p["keepdims"]),
    "scatter_add": _scatter_add,
    "scatter_max": _scatter_max,
    "put_along": _put_along,
    "transpose": lambda x, p: x.transpose(p["perm"]),
    "reshape": lambda x, p: x.reshape(p["shape"]),
    "broadcast": lambda x, p: np.broadcast_to(x, p["shape"]),
    "slice": lambda x, p: x[tuple(map(slice, p["start"], p["stop"], p["step"]))],
    "stop_gradient": lambda x: x,
    "scale_gradient": lambda x, p: x,
    "custom_gradient": lambda y, *rest: y,
    "concatenate": lambda *a: np.concatenate(a[:-1], a[-1]["axis"]),
    "pad": _pad,
    "gather": _gather,
    "set_row": _set_row,
    "take_along": lambda x, i: np.take_along_axis(x, i, -1),
    "top_indices": _top_indices,
    "to_blocks": lambda x, p: np.asarray(x, np.float64),
    "hadamard": lambda x, p: hadamard(x, p["axis"], block=p["block"]),
    **dict.fromkeys(("all_reduce", "group_all_reduce"), lambda x, p: x * p["replicas"]),
    "reduce_scatter": lambda x, p: np.resize(x * p["replicas"], (-(-np.size(x) // p["replicas"]),)),
    "all_gather": lambda x, p: np.resize(x, p["shape"]),
    "all_reduce_max": lambda x, p: x,
    "first_replica": lambda x, p: x,
    "each_replica": lambda x, p: x,
    "one_hot": lambda i, p: (i[..., None] == np.arange(p["classes"])).astype(np.float64),
}
"""By operation; the parameters are the last argument where it has any. What moves elements takes any dtype."""


def exact(op: str, operands: Sequence[Any], params: Params) -> Any:
    """One operation in float64; what moves elements, in any dtype.

    Overflow, division by zero and invalid operations give inf and NaN silently.
    """
    with np.errstate(all="ignore"):
        return EXACT[op](*operands, params) if params else EXACT[op](*operands)


def as_exact(value: Any) -> Array:
    """An array as ideal arithmetic takes it: float64, or int64 for integers."""
    array = np.asarray(whole_array(value))
    return array.astype(np.int64 if array.dtype.kind in "iu" else np.float64)
