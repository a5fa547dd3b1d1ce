"""Sums, means, dot products and norms in a format: every addition is the exact one of two values, rounded once.

The order of additions is part of the answer. Over the K terms of an axis it is one of

    sequential   s = 0; then s = fl(s + x[k]) for k = 0, 1, ... (in `dot`: fl(s + a[k] * b[k]), a fused step)
    blocked      the same over each run of `block` terms (the last may be short), every run from 0; then the runs' sums
                 the same way, from 0
    pairwise     the terms fl(x[k]) (in `dot`: fl(a[k] * b[k])); then neighbours 0 and 1, 2 and 3, ... are added, and
                 again, until one is left; an odd last one moves up unchanged
    kahan        s = c = 0; then y = fl(x[k] - c), t = fl(s + y), c = fl(fl(t - s) - y), s = t (Kahan, CACM 8, 1965)

fl rounds to the format, in the given mode. `lowprec.reduce_sum` is the machine's sum: a float32 chain that is rounded
to its accumulator after every group.

Over several axes the terms are taken in C order, the last of these axes fastest: x is seen as (row, term, column), the
kept axes before the last summed one, the summed axes and the kept axes after it.

In stochastic mode the step of element i (C order of that view; of x itself where one axis or all are summed) takes the
random bits that `lowprec.round` gives index i, and Kahan's four steps those of 4 i to 4 i + 3. The sums of runs take
key.fold_in(1) and their own index, as (row, run, column); level l = 1, 2, ... of the pairs key.fold_in(l) and the index
of the pair, as (row, pair, column); the last operation of `mean` and `norm` key.fold_in(2^32) and the result's index.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypedDict, Unpack

import numpy as np
import numpy.typing as npt

from lowprec import arithmetic, backends
from lowprec.arrays import whole_array
from lowprec.axes import Axis, fold
from lowprec.caching import cached
from lowprec.exact_sums import ColumnSum, Kind, carrier
from lowprec.formats import FormatLike, as_format, float32, float64, format_of_dtype
from lowprec.random import Key, KeyLike, as_key
from lowprec.rounding import astype, round
from lowprec.rule import RoundingRule, rounding_rule
from lowprec.sums import operand_format

Array = npt.NDArray[Any]
ORDERS = ("sequential", "blocked", "pairwise", "kahan")
LAST = 1 << 32  # folded into the key of a mean's division and a norm's root
POLICIES = {"overflow", "infinite_input", "flush"}  # options that may change values of the format itself
MOST_BITS = 28  # random bits that a double carries beside a float32


class Options(TypedDict, total=False):
    """Keyword arguments of every rounding, with the meanings and defaults of `lowprec.round`."""

    random_bits: int
    overflow: str | None
    infinite_input: str | None
    flush: bool


@dataclass(frozen=True)
class Sum:
    """A checked sum: order, rounding of every step, key and what `lowprec.add` needs for a step of its own."""

    order: str
    block: int
    rule: RoundingRule
    key: Key | None
    options: Options

    def step_key(self, n: int) -> Key | None:
        """The key of a later stage."""
        return None if self.key is None else self.key.fold_in(n)

    def step(self, n: int) -> dict[str, Any]:
        """Arguments after the operands of an operation of `lowprec.arithmetic` at a later stage."""
        key = self.key if n == 0 else self.step_key(n)
        return {"fmt": self.rule.fmt, "rounding": self.rule.mode, "key": key, **self.options}


def sum(
    x: npt.ArrayLike,
    fmt: FormatLike = "float32",
    rounding: str = "nearest_even",
    *,
    axis: Axis = None,
    order: str = "sequential",
    block: int = 128,
    key: KeyLike | None = None,
    keepdims: bool = False,
    out: Array | None = None,
    **options: Unpack[Options],
) -> Any:
    """The sum over axes, or over all elements, in a format and an order of additions.

    Args:
        x: float32 or a narrower float array.
        fmt: the format of every partial sum and of the result.
        rounding: nearest_even, nearest_away, toward_zero, up, down, odd or stochastic (then `key` is needed). float64
            sums round to nearest even only.
        axis: the axis or a tuple of axes, negative ones from the end; None: all. Over several axes the terms are taken
            in C order, the last of these axes fastest. (): every element is a sum of one term.
        order: sequential, blocked, pairwise or kahan, as `help("lowprec.summation")` defines them.
        block: terms of a run of the blocked order.
        keepdims: keep the axes with length 1.
        out: where to put the result, of its dtype and shape.
        options: random_bits (up to 28 in float32), overflow, infinite_input and flush, as of `lowprec.round`.

    Returns:
        An array of fmt's storage dtype (values in float32 or float64 where it has none); a scalar for one sum. No terms
        give +0.

    Raises:
        TypeError: other dtypes.
        ValueError: unknown names, an axis that x does not have or one named twice, stochastic without a key, a format
            without sign or zero, or a NaN into a format without NaN.
    """
    task = _task(fmt, rounding, order, block, key, options)
    view, shape = _around(_terms(x), axis, keepdims)
    return _shaped(_total(task, view, None), task.rule, shape, out)


def kahan_sum(x: npt.ArrayLike, fmt: FormatLike = "float32", rounding: str = "nearest_even", **options: Any) -> Any:
    """Kahan's compensated sum: `sum` with order="kahan" (arguments as there)."""
    return sum(x, fmt, rounding, **{**options, "order": "kahan"})


def mean(
    x: npt.ArrayLike,
    fmt: FormatLike = "float32",
    rounding: str = "nearest_even",
    *,
    axis: Axis = None,
    order: str = "sequential",
    block: int = 128,
    key: KeyLike | None = None,
    keepdims: bool = False,
    out: Array | None = None,
    **options: Unpack[Options],
) -> Any:
    """`sum`, then one division by the number of terms, exact and rounded once (arguments as of `sum`).

    No terms give NaN.
    """
    task = _task(fmt, rounding, order, block, key, options)
    view, shape = _around(_terms(x), axis, keepdims)
    total = _total(task, view, None)
    return _shaped(arithmetic.divide(total, float(view.shape[1]), **task.step(LAST)), task.rule, shape, out)


def dot(
    a: npt.ArrayLike,
    b: npt.ArrayLike,
    fmt: FormatLike = "float32",
    rounding: str = "nearest_even",
    *,
    axis: Axis = -1,
    order: str = "sequential",
    block: int = 128,
    key: KeyLike | None = None,
    keepdims: bool = False,
    out: Array | None = None,
    **options: Unpack[Options],
) -> Any:
    """The sum of products over an axis of both operands, which are broadcast together first (arguments as of `sum`).

    Products are exact; a sequential or blocked step rounds once, fl(s + a[k] * b[k]). There is no Kahan order.
    """
    task = _task(fmt, rounding, order, block, key, options)
    return _shaped(*_dot(task, _terms(a), _terms(b), axis, keepdims), out)


def norm(
    x: npt.ArrayLike,
    fmt: FormatLike = "float32",
    rounding: str = "nearest_even",
    *,
    axis: Axis = None,
    order: str = "sequential",
    block: int = 128,
    key: KeyLike | None = None,
    keepdims: bool = False,
    out: Array | None = None,
    **options: Unpack[Options],
) -> Any:
    """The Euclidean norm: `dot(x, x)`, then one square root, exact and rounded once (arguments as of `sum`).

    The sum of squares may overflow or underflow in the format; nothing is scaled.
    """
    task = _task(fmt, rounding, order, block, key, options)
    terms = _terms(x)
    squares, rule, shape = _dot(task, terms, terms, axis, keepdims)
    return _shaped(arithmetic.sqrt(squares, **task.step(LAST)), rule, shape, out)


def cumulative_sum(
    x: npt.ArrayLike,
    fmt: FormatLike = "float32",
    rounding: str = "nearest_even",
    *,
    axis: Axis = None,
    key: KeyLike | None = None,
    out: Array | None = None,
    **options: Unpack[Options],
) -> Any:
    """Every partial sum of the sequential order (arguments as of `sum`).

    Returns:
        An array of x's shape; of one axis where `axis` is None.
    """
    task = _task(fmt, rounding, "sequential", 1, key, options)
    if isinstance(axis, tuple):
        raise TypeError(f"a cumulative sum runs along one axis or all, not {axis!r}")
    terms = _terms(x)
    view, _ = _around(terms, axis, False)
    values = _columns(task, "running", view, None, task.key, max(view.shape[1], 1))
    return _shaped(values, task.rule, terms.shape if axis is not None else (terms.size,), out)


def _task(fmt: FormatLike, rounding: str, order: str, block: int, key: KeyLike | None, options: Options) -> Sum:
    """The checked arguments."""
    if order not in ORDERS:
        raise ValueError(f"unknown order {order!r}; allowed are {', '.join(ORDERS)}")
    if not isinstance(block, int) or block < 1:
        raise ValueError(f"block must be an integer of at least 1, not {block!r}")
    if unknown := options.keys() - Options.__annotations__.keys():
        raise TypeError(f"unknown options {sorted(unknown)}; allowed are {', '.join(Options.__annotations__)}")
    if rounding == "stochastic" and key is None:
        raise ValueError("stochastic rounding needs key=, a lowprec.Key or an integer")
    rule = _rule(fmt, rounding, **options)
    return Sum(order, block, rule, None if key is None else as_key(key), options)


@cached
def _rule(fmt: FormatLike, rounding: str, **options: Any) -> RoundingRule:
    """The checked rounding of every step."""
    fmt = as_format(fmt)
    if not (fmt.signed and fmt.zero):
        raise ValueError(f"{fmt.name} cannot hold sums: it has no negative numbers or no zero")
    rule = rounding_rule(fmt, rounding, **options)
    if fmt == float64 and (rounding != "nearest_even" or any(options.values())):
        raise ValueError("sums in float64 are IEEE's: rounding='nearest_even' and no other policy")
    if fmt == float32 and rule.random_bits > MOST_BITS:
        raise ValueError(f"sums in float32 take at most {MOST_BITS} random bits, not {rule.random_bits}")
    return rule


def _terms(x: npt.ArrayLike) -> Array:
    """x as an array that float32 holds."""
    array = whole_array(x)
    operand_format(array.dtype)
    return array


def _around(x: Array, axis: Axis, keepdims: bool) -> tuple[Array, tuple[int, ...]]:
    """x as (before, axes, after), a view where its strides allow one, and the shape of a result."""
    how = fold(x.shape, axis, keepdims)
    return how.view(x), how.result


def _dot(task: Sum, a: Array, b: Array, axis: Axis, keepdims: bool) -> tuple[Array, RoundingRule, tuple[int, ...]]:
    if task.order == "kahan":
        raise ValueError(f"products are summed in the orders {', '.join(ORDERS[:-1])}")
    left, right = np.broadcast_arrays(a, b)
    view, shape = _around(left, axis, keepdims)
    return _total(task, view, _around(right, axis, keepdims)[0]), task.rule, shape


def _total(task: Sum, x: Array, y: Array | None) -> Array:
    """The sums of x, or of x * y, over the middle axis: values as an array (outer, inner)."""
    outer, size, inner = x.shape
    if size == 0:
        return np.zeros((outer, inner))
    if task.order == "pairwise":
        return _pairwise(task, x, y)
    if task.order == "kahan":
        return _columns(task, "kahan", x, None, task.key, size).reshape(outer, inner)
    block = min(task.block, size) if task.order == "blocked" else size
    sums = _columns(task, "sequential", x, y, task.key, block)
    if task.order == "blocked":
        sums = _columns(task, "sequential", sums, None, task.step_key(1), sums.shape[1])
    return sums.reshape(outer, inner)


def _columns(task: Sum, kind: Kind, x: Array, y: Array | None, key: Key | None, block: int) -> Array:
    """Compiled (or reference) sums: (outer, results, inner), float32 or, where the format needs it, float64."""
    outer, size, inner = x.shape
    results = {"running": size, "kahan": 1, "sequential": -(-size // block), "pair": size // 2}[kind]
    out = np.empty((outer, results, inner), carrier(task.rule.fmt))
    backends.current().column_sums(ColumnSum(task.rule, kind, block), x, y, 0 if key is None else key.value, out)
    return out


def _pairwise(task: Sum, x: Array, y: Array | None) -> Array:
    values = _rounded(task, x) if y is None else arithmetic.multiply(x, y, **task.step(0))
    level = 0
    while (size := values.shape[1]) > 1:
        level += 1
        sums = _columns(task, "pair", values[:, : size // 2 * 2], None, task.step_key(level), 2)
        rest = values[:, size // 2 * 2 :]
        values = np.concatenate([sums, rest.astype(sums.dtype)], axis=1) if rest.size else sums
    return values[:, 0]


def _rounded(task: Sum, x: Array) -> Array:
    """fl(x), element by element."""
    fmt, step = task.rule.fmt, task.step(0)
    if fmt.contains(format_of_dtype(x.dtype) or float64) and not POLICIES & task.options.keys():
        return x
    rounded: Array = astype(x, **step) if fmt.dtype is not None else round(x.astype(carrier(fmt)), **step)
    return rounded


def _shaped(values: Array, rule: RoundingRule, shape: tuple[int, ...], out: Array | None) -> Any:
    """Values of the format in its storage dtype, or in a float dtype that holds them."""
    dtype = rule.fmt.dtype if rule.fmt.dtype is not None else carrier(rule.fmt)
    if values.dtype != dtype:
        values = astype(values, dtype)
    result = values.reshape(shape)
    if out is None:
        return result if shape else result[()]
    if out.dtype != result.dtype or out.shape != shape:
        raise ValueError(f"out must be an array of {result.dtype} and shape {shape}, not {out.dtype} {out.shape}")
    out[...] = result
    return out
