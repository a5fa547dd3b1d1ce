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
of the pair, as (row, pair, column); the last operation of `mean` and `norm`, and the rounding to `out_format`,
key.fold_in(2^32) and the result's index.

`offset` is added to the index of every element, as in `lowprec.round`: x[i : i + n] summed over later axes, with the
offset i * x[0].size, gives the same bits as that slice of the whole. The indices of runs, pairs and results are then
those of the whole too, which exist where the offset is a number of whole rows.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import NoneType
from typing import Any, TypeVar, Unpack, cast

import numpy as np
import numpy.typing as npt

from lowprec import arithmetic, backends
from lowprec.arrays import new_array, whole_array
from lowprec.backends.owner import is_cupy, load
from lowprec.foreign import library_of, through
from lowprec.random import Key, KeyLike
from lowprec.rounding import astype, round
from lowprec.sums.ordered_plan import ORDERS, OrderedPlan, OrderedSum, SumOrder, checked_sum
from lowprec.types import Array
from lowprec.values.axes import Axis, fold
from lowprec.values.formats import FormatLike, as_format, float32, float64, format_of_dtype
from lowprec.values.keywords import RoundingKeywords, RoundingLike
from lowprec.values.operands import operand_format
from lowprec.values.outputs import into

R = TypeVar("R")
LAST = 1 << 32  # folded into the key of a mean's division and a norm's root


def _axis_or_format(arrays: int) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """Decorator of sums f(arrays.., axis, fmt, rounding): a format may stand in the place of the axis, then a rounding.

    The decorated sum takes the arrays of torch and JAX too.

    Args:
        arrays: how many operands the sum has.
    """

    def decorate(call: Callable[..., R]) -> Callable[..., R]:
        @functools.wraps(call)
        def either(*args: Any, **keywords: Any) -> R:
            # sum(x, "float16") reads as add(x, y, "float16") does; an axis is never a name or a format, so nothing is
            # guessed.
            if len(args) > arrays and not isinstance(args[arrays], (int, np.integer, tuple, NoneType)):
                named = dict(zip(("fmt", "rounding"), args[arrays:], strict=False))
                if twice := sorted(named.keys() & keywords.keys()):
                    raise TypeError(f"{call.__name__} is given {twice[0]} twice: {args[arrays]!r}, and by its name")
                if len(args) > arrays + 2:
                    raise TypeError(f"{call.__name__} takes at most a format and a rounding after its operands")
                return either(*args[:arrays], **named, **keywords)
            library = library_of(*args, *keywords.values())
            return call(*args, **keywords) if library is None else cast(R, through(library, call, *args, **keywords))

        return either

    return decorate


@_axis_or_format(1)
def sum(
    x: npt.ArrayLike,
    axis: Axis = None,
    fmt: FormatLike = "float32",
    rounding: RoundingLike = "nearest_even",
    *,
    order: SumOrder = "sequential",
    block: int = 128,
    key: KeyLike | None = None,
    keepdims: bool = False,
    offset: int = 0,
    accumulate: FormatLike | None = None,
    out_format: FormatLike | None = None,
    out: Array | None = None,
    **options: Unpack[RoundingKeywords],
) -> Any:
    """The sum over axes, or over all elements, in a format and an order of additions.

    Args:
        x: float32 or a narrower float array.
        axis: the axis or a tuple of axes, negative ones from the end; None: all. Over several axes the terms are taken
            in C order, the last of these axes fastest. (): every element is a sum of one term.
        fmt: the format of every partial sum and of the result. It may stand second, its rounding after it, as in
            `lowprec.add`: ``sum(x, "float16", "stochastic", key=1)``.
        rounding: a `lowprec.Rounding`, or nearest_even, nearest_away, toward_zero, up, down, odd or stochastic (then
            `key` is needed). float64 sums round to nearest even only.
        order: sequential, blocked, pairwise or kahan, as `help("lowprec.sums.ordered")` defines them.
        block: terms of a run of the blocked order.
        keepdims: keep the axes with length 1.
        offset: index of x's first element among the random bits (see the module); for the blocked and pairwise orders,
            means and norms a multiple of a row's elements, which is what one index before the summed axes holds.
        accumulate: `fmt` by the name that `lowprec.matmul` has for it.
        out_format: the result is rounded to it once more, as `rounding` says; None: it has the partial sums' format.
        out: where to put the result, of its dtype and shape.
        options: random_bits (up to 28 in float32), overflow, infinite_input and flush, as of `lowprec.round`.

    Returns:
        An array of the storage dtype of fmt, or of out_format (values in float32 or float64 where it has none); a
        scalar for one sum. No terms give +0.

    Raises:
        TypeError: other dtypes; fmt and accumulate both.
        ValueError: unknown names, an axis that x does not have or one named twice, stochastic without a key, a format
            without sign or zero, or a NaN into a format without NaN.
    """
    view, shape = _around(_terms(x), axis, keepdims)
    fmt = fmt if accumulate is None else _partials(fmt, accumulate)
    task = checked_sum(fmt, rounding, order, block, key, offset, view.size, options)
    if out_format is not None:
        return _stored(task, view, _total(task, view, None), shape, out_format, out)
    return _shaped(task.plan, _total(task, view, None), shape, out)


def kahan_sum(x: npt.ArrayLike, *args: Any, **options: Any) -> Any:
    """Kahan's compensated sum: `sum` with order="kahan" (arguments as there)."""
    return sum(x, *args, **{**options, "order": "kahan"})


@_axis_or_format(1)
def mean(
    x: npt.ArrayLike,
    axis: Axis = None,
    fmt: FormatLike = "float32",
    rounding: RoundingLike = "nearest_even",
    *,
    order: SumOrder = "sequential",
    block: int = 128,
    key: KeyLike | None = None,
    keepdims: bool = False,
    offset: int = 0,
    out: Array | None = None,
    **options: Unpack[RoundingKeywords],
) -> Any:
    """`sum`, then one division by the number of terms, exact and rounded once (arguments as of `sum`).

    No terms give NaN.
    """
    view, shape = _around(_terms(x), axis, keepdims)
    task = checked_sum(fmt, rounding, order, block, key, offset, view.size, options)
    _, size, inner = view.shape
    # Before the sum is made: an offset that gives the last rounding no index is refused here.
    first = task.first(size, inner, 1)
    return _shaped(task.plan, _last(task, "divide", (_total(task, view, None), float(size)), first), shape, out)


@_axis_or_format(2)
def dot(
    a: npt.ArrayLike,
    b: npt.ArrayLike,
    axis: Axis = -1,
    fmt: FormatLike = "float32",
    rounding: RoundingLike = "nearest_even",
    *,
    order: SumOrder = "sequential",
    block: int = 128,
    key: KeyLike | None = None,
    keepdims: bool = False,
    offset: int = 0,
    accumulate: FormatLike | None = None,
    out_format: FormatLike | None = None,
    out: Array | None = None,
    **options: Unpack[RoundingKeywords],
) -> Any:
    """The sum of products over an axis of both operands, which are broadcast together first (arguments as of `sum`).

    Products are exact; a sequential or blocked step rounds once, fl(s + a[k] * b[k]). There is no Kahan order.
    """
    left, right, shape = _factors(_terms(a), _terms(b), axis, keepdims)
    fmt = fmt if accumulate is None else _partials(fmt, accumulate)
    task = checked_sum(fmt, rounding, order, block, key, offset, left.size, options)
    if out_format is not None:
        return _stored(task, left, _products(task, left, right), shape, out_format, out)
    return _shaped(task.plan, _products(task, left, right), shape, out)


@_axis_or_format(1)
def norm(
    x: npt.ArrayLike,
    axis: Axis = None,
    fmt: FormatLike = "float32",
    rounding: RoundingLike = "nearest_even",
    *,
    order: SumOrder = "sequential",
    block: int = 128,
    key: KeyLike | None = None,
    keepdims: bool = False,
    offset: int = 0,
    out: Array | None = None,
    **options: Unpack[RoundingKeywords],
) -> Any:
    """The Euclidean norm: `dot(x, x)`, then one square root, exact and rounded once (arguments as of `sum`).

    The sum of squares may overflow or underflow in the format; nothing is scaled.
    """
    view, shape = _around(_terms(x), axis, keepdims)
    task = checked_sum(fmt, rounding, order, block, key, offset, view.size, options)
    # As in `mean`: before the sum is made.
    first = task.first(view.shape[1], view.shape[2], 1)
    return _shaped(task.plan, _last(task, "sqrt", (_products(task, view, view),), first), shape, out)


@_axis_or_format(1)
def cumulative_sum(
    x: npt.ArrayLike,
    axis: Axis = None,
    fmt: FormatLike = "float32",
    rounding: RoundingLike = "nearest_even",
    *,
    key: KeyLike | None = None,
    offset: int = 0,
    out: Array | None = None,
    **options: Unpack[RoundingKeywords],
) -> Any:
    """Every partial sum of the sequential order (arguments as of `sum`).

    Returns:
        An array of x's shape; of one axis where `axis` is None.
    """
    # Over several axes there is no one row of partial sums; numpy.cumsum takes no tuple either.
    if isinstance(axis, tuple):
        raise TypeError(f"a cumulative sum runs along one axis or all, not {axis!r}")
    terms = _terms(x)
    view, _ = _around(terms, axis, False)
    task = checked_sum(fmt, rounding, "sequential", 1, key, offset, view.size, options)
    values = _columns(task.plan, "running", view, None, task.key, task.offset)
    return _shaped(task.plan, values, terms.shape if axis is not None else (terms.size,), out)


def _terms(x: npt.ArrayLike) -> Array:
    """x as an array whose every element is a float32.

    Raises:
        TypeError: masked elements, or a dtype that float32 does not hold.
    """
    array = whole_array(x)
    operand_format(array.dtype)
    return array


def _around(x: Array, axis: Axis, keepdims: bool) -> tuple[Array, tuple[int, ...]]:
    """x as (before, axes, after), a view where its strides allow one, and the shape of a result."""
    if axis is None and not keepdims and not is_cupy(x):  # most calls, quickly
        return x.reshape(1, x.size, 1), ()
    how = fold(x.shape, axis, keepdims)
    return load("cuda").folded(x, how) if is_cupy(x) else how.view(x), how.result


def _factors(a: Array, b: Array, axis: Axis, keepdims: bool) -> tuple[Array, Array, tuple[int, ...]]:
    """Two factors as (before, axes, after), and the shape of a result."""
    # broadcast_arrays would add a fifth to the time of a call on ten elements.
    if a.shape != b.shape:
        a, b = (load("cuda").broadcast if is_cupy(a) else np.broadcast_arrays)(a, b)
    left, shape = _around(a, axis, keepdims)
    return left, _around(b, axis, keepdims)[0], shape


def _products(task: OrderedSum, x: Array, y: Array) -> Array:
    if task.plan.order == "kahan":
        raise ValueError(f"products are summed in the orders {', '.join(ORDERS[:-1])}")
    return _total(task, x, y)


def _total(task: OrderedSum, x: Array, y: Array | None) -> Array:
    """The sums of x, or of x * y, (outer, terms, inner) over the middle axis: values (outer, inner)."""
    plan, key = task.plan, task.key
    outer, size, inner = x.shape
    if size == 0:
        # A sum of no terms is +0 in every order; the loops and the pairs below suppose that there is a term.
        nothing = new_array(x, (outer, inner), plan.values)
        nothing[...] = 0
        return nothing
    if plan.order == "pairwise":
        return _pairwise(task, x, y)
    sums = _columns(plan, plan.order, x, y, key, task.offset)
    if plan.order == "blocked":
        results = sums.shape[1]
        # Another key: the runs' sums have indices of their own, which are the indices of terms too.
        sums = _columns(plan, "sequential", sums, None, task.step_key(1), task.first(size, inner, results))
    return sums.reshape(outer, inner)


def _last(task: OrderedSum, operation: str, operands: tuple[Array | float, ...], offset: int) -> Array:
    """The last operation of a mean (divide) or a norm (sqrt), on sums, with random bits that no addition has."""
    return arithmetic.apply(operation, task.plan.step, operands, task.step_seed(LAST), offset)


def _columns(plan: OrderedPlan, name: str, x: Array, y: Array | None, key: Key | None, offset: int) -> Array:
    """The sums of one job of the plan by the backend in force: (outer, results, inner) in the plan's `values` dtype."""
    job = plan.jobs[name]
    outer, size, inner = x.shape
    out = new_array(x, (outer, job.results(size), inner), plan.values)
    backends.of(x).column_sums(job, x, y, 0 if key is None else key.value, offset, out)
    return out


def _pairwise(task: OrderedSum, x: Array, y: Array | None) -> Array:
    plan, (_, terms, inner) = task.plan, x.shape
    if y is None:
        # Level 0: terms that the format does not hold are rounded before the first pair is added.
        values = _rounded(task, x)
    else:
        seed = 0 if task.key is None else task.key.value
        # A product of a pair is rounded by itself; only chains have fused steps.
        values = arithmetic.apply("multiply", plan.step, (x, y), seed, task.offset)
    level = 0
    while (size := values.shape[1]) > 1:
        level += 1
        # A key for each level: pairs of two levels have the same indices.
        key, offset = task.step_key(level), task.first(terms, inner, size // 2)
        sums = _columns(plan, "pair", values[:, : size // 2 * 2], None, key, offset)
        # An odd last one moves up unchanged, without a rounding: it would take random bits that no addition is there
        # for.
        rest = values[:, size // 2 * 2 :]
        if is_cupy(rest):
            values = load("cuda").joined(sums, load("cuda").values(rest, sums.dtype)) if rest.size else sums
        else:
            values = np.concatenate([sums, rest.astype(sums.dtype)], axis=1) if rest.size else sums
    return values[:, 0]


def _rounded(task: OrderedSum, x: Array) -> Array:
    """fl(x), element by element: x rounded to the plan's format."""
    plan, fmt = task.plan, task.plan.rule.fmt
    # A policy may change a value that the format holds: flush its subnormals, replace its infinities.
    if fmt.contains(format_of_dtype(x.dtype) or float64) and not plan.policies:
        return x
    # A format without dtype has its values in float32 or float64, which hold every x.
    wide = load("cuda").values if is_cupy(x) else np.ndarray.astype
    call, values = (astype, x) if fmt.dtype is not None else (round, wide(x, plan.values))
    rounded: Array = call(values, fmt, plan.rounding, key=task.key, offset=task.offset)
    return rounded


def _partials(fmt: FormatLike, accumulate: FormatLike) -> FormatLike:
    """The format of partial sums, by either name."""
    if as_format(fmt) not in (float32, as_format(accumulate)):
        raise TypeError(f"fmt and accumulate are both the format of partial sums: {fmt!r} and {accumulate!r}")
    return accumulate


def _stored(
    task: OrderedSum, view: Array, values: Array, shape: tuple[int, ...], out_format: FormatLike, out: Array | None
) -> Any:
    """Sums rounded once more, with the random bits of a last operation."""
    fmt = as_format(out_format)
    first = task.first(view.shape[1], view.shape[2], 1)
    call = round if fmt.dtype is None else astype
    stored = call(values.reshape(shape), fmt, task.plan.rounding, key=task.step_key(LAST), offset=first)
    if out is None:
        return stored
    return load("cuda").shaped(stored, shape, out) if is_cupy(stored) else into(out, np.asarray(stored))


def _shaped(plan: OrderedPlan, values: Array, shape: tuple[int, ...], out: Array | None) -> Any:
    """Sums as the caller gets them: in the plan's dtype, in `shape` (a scalar for ()), in `out` if it is given.

    Raises:
        ValueError: a NaN in a format without NaN.
    """
    if values.dtype == plan.dtype:
        result = values.reshape(shape)
    elif plan.store is not None and values.dtype == plan.values:
        result = new_array(values, shape, plan.dtype)
        if backends.of(values).convert(plan.store, values.reshape(shape), 0, 0, result):
            raise ValueError(f"NaN cannot be represented in {plan.rule.fmt.name}, which has no NaN")
    else:
        stored = astype(values, plan.dtype)
        result = stored if is_cupy(stored) else np.asarray(stored).reshape(shape)
    if is_cupy(result):
        return load("cuda").shaped(result, shape, out)
    if out is not None:
        return into(out, result)
    return result if shape else result[()]
