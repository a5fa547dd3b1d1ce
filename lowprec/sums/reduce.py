"""Sums and maxima over axes in a stated order, and sums of parts.

A sum of K terms is the product of `lowprec.matmul` with every factor 1: a float32 chain from +0, ascending, rounded to
`accumulate` after every group, cut into parts that are summed in stages. Over several axes the terms are taken in C
order, the last of these axes fastest.

Row and column of its random bits are the positions among the kept axes before the last reduced axis, and among those
after it, each in C order: x is seen as (row, term, column). The batch is 0.
"""

from __future__ import annotations

from typing import Any, Literal, Protocol, Unpack, get_args

import numpy as np
import numpy.typing as npt

from lowprec import backends, threads
from lowprec._caching import cached
from lowprec.arrays import only_arrays, whole_array
from lowprec.backends.owner import is_cupy
from lowprec.foreign import takes_foreign
from lowprec.random import KeyLike
from lowprec.types import Array
from lowprec.values.accumulation import Accumulation
from lowprec.values.axes import Axis, Fold, fold, vertices
from lowprec.values.formats import FormatLike
from lowprec.values.keys import ORIGIN, Coordinates, coordinates, first_element, native
from lowprec.values.keywords import (
    ChainKeywords,
    PolicyKeywords,
    RoundingLike,
    SumKeywords,
    as_rounding,
    as_sum,
    refuse_unhashable,
)
from lowprec.values.operands import operand_dtype
from lowprec.values.outputs import into as copied
from lowprec.values.outputs import straight
from lowprec.values.rounding import Rounding
from lowprec.values.sum_rules import SumRules, part_rules, sum_rules

Tag = Literal["stage", "output"]
MOST_VERTEX_AXES = 8  # max_axes of the kernels


class PreparedReduction(Protocol):
    """Checked sums of x (v.., m, k, n) over k."""

    def __call__(
        self, x: Array, key: KeyLike | None = None, place: Coordinates = ORIGIN, out: Array | None = None
    ) -> Array: ...


class PreparedSum(Protocol):
    """Checked sums of parts (P, v.., m, n), results of a number."""

    def __call__(
        self,
        parts: Array,
        key: KeyLike | None = None,
        index: int | Array = 0,
        place: Coordinates = ORIGIN,
        out: Array | None = None,
    ) -> Array: ...


@takes_foreign
def reduce_sum(
    x: npt.ArrayLike,
    axis: Axis = -1,
    *,
    accumulation: Accumulation | None = None,
    rounding: RoundingLike = "nearest_even",
    key: KeyLike | None = None,
    keepdims: bool = False,
    offset: tuple[int, int] = (0, 0),
    out: Array | None = None,
    **keywords: Unpack[SumKeywords],
) -> Any:
    """The sum over one axis or more, in order, with the accumulator, parts and stages of `lowprec.matmul`.

    Args:
        x: float32 or a narrower float array, any strides. Nothing is copied, except where several axes are reduced
            and do not lie at one stride.
        axis: the axis or a tuple of axes to sum over, negative ones from the end; None: all; (): none, so that every
            element is a sum of one term.
        accumulation: as of `matmul`; or the keywords accumulate, splits, stages, out_format and group: terms between
            two roundings (None: all of a part).
        keepdims: keep the axes with length 1.
        offset: row and column of the result's first element among the random bits, as `help("lowprec.sums.reduce")`
            defines them: a part of x along kept axes that is summed alone gives the same bits.
        out: where to put the result (of the result's shape, keepdims considered).
        rounding, key: as `matmul`, with the keywords random_bits, overflow and infinite_input.

    Returns:
        An array of out_format's (or accumulate's) storage dtype; a scalar for one sum. No terms give +0.

    Raises:
        TypeError, ValueError: as `matmul`; an axis that x does not have, or one named twice.
    """
    array, (row, column) = whole_array(x), first_element(offset)
    how = fold(array.shape, axis, keepdims)
    try:
        call = _from_keywords(array.dtype, accumulation, rounding, **keywords)
    except TypeError:
        refuse_unhashable(rounding=rounding, **keywords)
        raise
    first = Coordinates(row, column)
    # Where the kept axes cannot be joined the view would be a copy of the whole array: they become vertex axes instead.
    if not how.is_view(array) and (result := _uncopied(call, array, how, key, first)) is not None:
        return _shaped(result, how.result, out)
    view = backends.load("cuda").folded(array, how) if is_cupy(array) else how.view(array)
    # Straight into out only where out has the folded shape without a copy; else through a result of its own.
    if out is None or is_cupy(array) or (into := _folded_out(out, how, array)) is None:
        return _shaped(call(view, key, first), how.result, out)
    call(view, key, first, into)
    return out


@cached
def _from_keywords(
    dtype: np.dtype[Any], accumulation: Accumulation | None, rounding: RoundingLike, **keywords: Any
) -> PreparedReduction:
    return prepare_reduce(dtype, *as_sum(SumKeywords, None, accumulation, rounding, **keywords))


@cached
def prepare_reduce(dtype: npt.DTypeLike, accumulation: Accumulation, rounding: Rounding) -> PreparedReduction:
    """The checked form of `reduce_sum` for x of a dtype.

    Returns:
        f(x, key=None, place=ORIGIN, out=None); x is (v.., m, k, n), summed over k.

    Raises:
        TypeError, ValueError: as `reduce_sum`.
    """
    return _prepared(dtype, order_of_sums(accumulation), sum_rules(accumulation, rounding))


@cached
def prepare_reduce_part(dtype: npt.DTypeLike, accumulation: Accumulation, rounding: Rounding) -> PreparedReduction:
    """The checked form of `reduce_part`, called as that of `reduce_sum` is.

    Raises:
        TypeError, ValueError: as `reduce_part`.
    """
    # Splits and stages are the caller's, who sums the parts (`sum_parts`).
    part = order_of_sums(accumulation.one_part())
    return _prepared(dtype, part, part_rules(part, rounding))


def _prepared(dtype: npt.DTypeLike, accumulation: Accumulation, rules: SumRules) -> PreparedReduction:
    chosen = backends.prepared("reduce", operand_dtype(dtype), accumulation, rules)
    thread_count = threads.current

    def call(x: Array, key: KeyLike | None = None, place: Coordinates = ORIGIN, out: Array | None = None) -> Array:
        result: Array = chosen(x)(x, key, *place, out, thread_count())
        return result

    return call


def order_of_sums(accumulation: Accumulation) -> Accumulation:
    """The Accumulation, checked to be one for sums of single terms.

    Raises:
        ValueError: an adder of products, of which a sum without products has none.
    """
    if accumulation.adder != "sequential":
        raise ValueError(f"adder={accumulation.adder!r} is for products, not for sums")
    return accumulation


def reduce_part(
    x: Array,
    *,
    accumulation: Accumulation | None = None,
    rounding: RoundingLike = "nearest_even",
    key: KeyLike | None = None,
    row: int | Array = 0,
    column: int | Array = 0,
    first_group: int | Array = 0,
    batch: int | Array = 0,
    out: Array | None = None,
    **keywords: Unpack[ChainKeywords],
) -> Array:
    """One chain per vertex over x (v.., m, k, n), without stage or output rounding (arguments as of `matmul_part`).

    Returns:
        (v.., m, n) in the storage dtype of `accumulate`.

    Raises:
        TypeError, ValueError: as `matmul_part`.
    """
    (x,) = only_arrays(x=x)
    if x.ndim < 3:
        raise ValueError(f"x has axes (.., m, k, n), at least three; given was the shape {x.shape}")
    refuse_unhashable(rounding=rounding, **keywords)
    how, rounded = as_sum(ChainKeywords, None, accumulation, rounding, **keywords)
    call = prepare_reduce_part(x.dtype, how, rounded)
    target = None if out is None else straight(out, x)
    result = call(x, key, coordinates(row, column, first_group, batch), target)
    return result if out is None or target is not None else copied(out, result)


def sum_parts(
    parts: Array,
    *,
    fmt: FormatLike,
    rounding: RoundingLike = "nearest_even",
    key: KeyLike | None = None,
    tag: Tag = "stage",
    index: int | Array = 0,
    row: int | Array = 0,
    column: int | Array = 0,
    batch: int | Array = 0,
    out: Array | None = None,
    **policies: Unpack[PolicyKeywords],
) -> Array:
    """Parts added in float32, ascending from the first one, and rounded once.

    Args:
        parts: (P, v.., m, n).
        fmt: format of the result.
        tag: "stage" for an intermediate result, "output" for the last one: which random bits round it.
        index: number of the intermediate result (stage 0's from 0, the next stage's after them); 0 for "output".
        row, column, batch: coordinates of each vertex's first element, as in `matmul_part`.
        rounding, key, out: as `matmul`, with the keywords random_bits, overflow and infinite_input.

    Returns:
        (v.., m, n) in fmt's storage dtype; +0 for no parts.

    Raises:
        TypeError, ValueError: as `matmul_part`; an unknown tag.
    """
    (parts,) = only_arrays(parts=parts)
    if parts.ndim < 3:
        raise ValueError(f"parts has axes (parts, .., m, n), at least three; given was the shape {parts.shape}")
    # Several caches follow, none of which could say which argument is unhashable.
    refuse_unhashable(fmt=fmt, rounding=rounding, tag=tag, **policies)
    call = prepare_sum(parts.dtype, fmt, as_rounding(rounding, **policies), tag)
    target = None if out is None else straight(out, parts)
    result = call(parts, key, native(index), coordinates(row, column, batch=batch), target)
    return result if out is None or target is not None else copied(out, result)


@cached
def prepare_sum(dtype: npt.DTypeLike, fmt: FormatLike, rounding: Rounding, tag: Tag = "stage") -> PreparedSum:
    """The checked form of `sum_parts`, for parts of a dtype.

    Returns:
        f(parts, key=None, index=0, place=ORIGIN, out=None); the place's first group plays no part.

    Raises:
        TypeError, ValueError: as `sum_parts`.
    """
    if tag not in get_args(Tag):
        raise ValueError(f"unknown tag {tag!r}; allowed are {', '.join(get_args(Tag))}")
    # Only the result's format counts: the parts are rounded once, at the end.
    chosen = backends.prepared("sum_parts", operand_dtype(dtype), sum_rules(Accumulation(out=fmt), rounding), tag)
    thread_count = threads.current

    def call(
        parts: Array,
        key: KeyLike | None = None,
        index: int | Array = 0,
        place: Coordinates = ORIGIN,
        out: Array | None = None,
    ) -> Array:
        result: Array = chosen(parts)(parts, key, index, place.row, place.column, place.batch, out, thread_count())
        return result

    return call


@takes_foreign
def reduce_max(x: npt.ArrayLike, axis: Axis = -1, *, keepdims: bool = False, out: Array | None = None) -> Any:
    """The largest element over one axis or more, exact; NaN wins, +0 is larger than -0.

    Args:
        x: float32 or a narrower float array with NaN; there must be elements to choose from.
        axis: the axis or axes, as of `reduce_sum`.
        keepdims: keep the axes with length 1.
        out: where to put the result.

    Returns:
        An array of x's dtype; a scalar for one maximum.

    Raises:
        TypeError: other dtypes.
        ValueError: no elements, an axis that x does not have, or one named twice.
    """
    array = whole_array(x)
    dtype = operand_dtype(array.dtype)
    how = fold(array.shape, axis, keepdims)
    # A maximum has no neutral element in formats without infinity.
    if how.shape[1] == 0:
        raise ValueError("the largest of no elements is not defined")
    view = backends.load("cuda").folded(array, how) if is_cupy(array) else how.view(array)
    result = backends.of(array).maximum(dtype)(view, None, threads.current())
    return _shaped(result, how.result, out)


def _uncopied(call: PreparedReduction, x: Array, how: Fold, key: KeyLike | None, first: Coordinates) -> Array | None:
    """The sums of x with kept axes as vertex axes, in the result's order of axes.

    None where the terms do not lie at one stride or there are more axes than the loops take: then x is copied.
    """
    blocks = vertices(x, how)
    if blocks is None or blocks.x.ndim - 3 > MOST_VERTEX_AXES:
        return None
    result = call(blocks.x, key, Coordinates(blocks.row + first.row, blocks.column + first.column))
    return result.transpose(*np.argsort(blocks.perm).tolist())


def _folded_out(out: Array, how: Fold, x: Array) -> Array | None:
    """`out` as (outer, inner), a view; None where that needs a copy or out shares memory with x."""
    if straight(out, x) is None or out.shape != how.result:
        return None
    into = out.reshape(how.shape[0], how.shape[2])
    # reshape copies where strides do not allow the shape; a result written to the copy would be lost.
    return into if np.may_share_memory(into, out) else None


def _shaped(result: Array, shape: tuple[int, ...], out: Array | None) -> Any:
    """The result in its shape, in `out` if there is one; a scalar where it has no axes, as NumPy's sums give."""
    if is_cupy(result):
        return backends.load("cuda").shaped(result, shape, out)
    result = result.reshape(shape)
    if out is None:
        return result if shape else result[()]
    return copied(out, result)
