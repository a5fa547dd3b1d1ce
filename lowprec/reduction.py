"""Sums and maxima over axes in a stated order, and sums of parts.

A sum of K terms is the product of `lowprec.matmul` with every factor 1: a float32 chain from +0, ascending, rounded to
`accumulate` after every group, cut into parts that are summed in stages. Over several axes the terms are taken in C
order, the last of these axes fastest.

Row and column of its random bits are the positions among the kept axes before the last reduced axis, and among those
after it, each in C order: x is seen as (row, term, column). The batch is 0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from lowprec import backends, threads
from lowprec.arrays import into as copied
from lowprec.arrays import whole_array
from lowprec.axes import Axis, Fold, fold, vertices
from lowprec.backends import cpu
from lowprec.caching import cached
from lowprec.formats import FormatLike
from lowprec.random import KeyLike
from lowprec.sums import accumulator, first_element, operand_format, order

Array = npt.NDArray[Any]
Prepared = Callable[..., Array]
"""A checked call for hot loops; its optional arguments are positional."""
MOST_VERTEX_AXES = 8


def reduce_sum(
    x: npt.ArrayLike,
    axis: Axis = -1,
    *,
    accumulate: FormatLike = "float32",
    group: int | None = None,
    splits: int = 1,
    stages: int | None = None,
    out_format: FormatLike | None = None,
    rounding: str = "nearest_even",
    key: KeyLike | None = None,
    random_bits: int = 16,
    overflow: str | None = None,
    infinite_input: str | None = None,
    keepdims: bool = False,
    offset: tuple[int, int] = (0, 0),
    out: Array | None = None,
) -> Any:
    """The sum over one axis or more, in order, with the accumulator, parts and stages of `lowprec.matmul`.

    Args:
        x: float32 or a narrower float array, any strides. Nothing is copied, except where several axes are reduced
            and do not lie at one stride.
        axis: the axis or a tuple of axes to sum over, negative ones from the end; None: all; (): none, so that every
            element is a sum of one term.
        group: terms between two roundings to `accumulate`; None: all of a part.
        keepdims: keep the axes with length 1.
        offset: row and column of the result's first element among the random bits, as `help("lowprec.reduction")`
            defines them: a part of x along kept axes that is summed alone gives the same bits.
        out: where to put the result (of the result's shape, keepdims considered).
        accumulate, splits, stages, out_format, rounding, key, random_bits, overflow, infinite_input: as `matmul`.

    Returns:
        An array of out_format's (or accumulate's) storage dtype; a scalar for one sum. No terms give +0.

    Raises:
        TypeError, ValueError: as `matmul`; an axis that x does not have, or one named twice.
    """
    array, (row, column) = whole_array(x), first_element(offset)
    how = fold(array.shape, axis, keepdims)
    call = prepare_reduce(
        *(array.dtype, accumulate, group, splits, stages, out_format, rounding),
        *(random_bits, overflow, infinite_input),
    )
    if not how.is_view(array) and (result := _uncopied(call, array, how, key, row, column)) is not None:
        return _shaped(result, how.result, out)
    view = how.view(array)
    if out is None or (into := _folded_out(out, how, array)) is None:
        return _shaped(call(view, key, row, column), how.result, out)
    call(view, key, row, column, 0, 0, into)
    return out


@cached
def prepare_reduce(
    dtype: npt.DTypeLike,
    accumulate: FormatLike = "float32",
    group: int | None = None,
    splits: int = 1,
    stages: int | None = None,
    out_format: FormatLike | None = None,
    rounding: str = "nearest_even",
    random_bits: int = 16,
    overflow: str | None = None,
    infinite_input: str | None = None,
) -> Prepared:
    """The checked form of `reduce_sum` and `reduce_part`, for x of a dtype.

    Returns:
        f(x, key=None, row=0, column=0, first_group=0, batch=0, out=None); x is (v.., m, k, n), summed over k.

    Raises:
        TypeError, ValueError: as `reduce_sum`.
    """
    sums = accumulator(accumulate, out_format, rounding, random_bits, overflow, infinite_input)
    sequence = order(group, splits, stages, "sequential")
    return prepared("reduce", cpu.reduce, (operand_dtype(dtype), sums, sequence), (None, 0, 0, 0, 0, None))


def prepared(
    name: str,
    make: Callable[..., Prepared],
    specification: tuple[Any, ...],
    defaults: tuple[Any, ...],
    required: int = 1,
) -> Prepared:
    """A call that runs on the backend in force.

    Args:
        name: of the function that makes the call, in every backend.
        make: the compiled backend's.
        specification: its arguments.
        defaults: of the call's optional arguments, which stand between `required` others and the number of threads.
    """
    native, current, thread_count = make(*specification), backends.current, threads.current

    def call(*given: Any) -> Array:
        backend = current()
        function = native if backend is cpu else getattr(backend, name)(*specification)
        result: Array = function(*given, *defaults[len(given) - required :], thread_count())
        return result

    return call


def operand_dtype(dtype: npt.DTypeLike) -> np.dtype[Any]:
    """The dtype of an operand, checked (as `lowprec.sums.operand_format`)."""
    kind = np.dtype(dtype)
    operand_format(kind)
    return kind


def reduce_part(
    x: Array,
    *,
    accumulate: FormatLike = "float32",
    group: int | None = None,
    rounding: str = "nearest_even",
    key: KeyLike | None = None,
    random_bits: int = 16,
    overflow: str | None = None,
    infinite_input: str | None = None,
    row: int | Array = 0,
    column: int | Array = 0,
    first_group: int | Array = 0,
    batch: int | Array = 0,
    out: Array | None = None,
) -> Array:
    """One chain per vertex over x (v.., m, k, n), without stage or output rounding (as `matmul_part`).

    Returns:
        (v.., m, n) in the storage dtype of `accumulate`.

    Raises:
        TypeError, ValueError: as `matmul_part`.
    """
    if x.ndim < 3:
        raise ValueError(f"x has axes (.., m, k, n), at least three; given was the shape {x.shape}")
    call = prepare_reduce(x.dtype, accumulate, group, 1, 1, None, rounding, random_bits, overflow, infinite_input)
    return call(x, key, row, column, first_group, batch, out)


def sum_parts(
    parts: Array,
    *,
    fmt: FormatLike,
    rounding: str = "nearest_even",
    key: KeyLike | None = None,
    random_bits: int = 16,
    overflow: str | None = None,
    infinite_input: str | None = None,
    tag: str = "stage",
    index: int | Array = 0,
    row: int | Array = 0,
    column: int | Array = 0,
    batch: int | Array = 0,
    out: Array | None = None,
) -> Array:
    """Parts added in float32, ascending from the first one, and rounded once.

    Args:
        parts: (P, v.., m, n).
        fmt: format of the result.
        tag: "stage" for an intermediate result, "output" for the last one: which random bits round it.
        index: number of the intermediate result (stage 0's from 0, the next stage's after them); 0 for "output".
        row, column, batch: coordinates of each vertex's first element, as in `matmul_part`.
        rounding, key, random_bits, overflow, infinite_input, out: as `matmul`.

    Returns:
        (v.., m, n) in fmt's storage dtype; +0 for no parts.

    Raises:
        TypeError, ValueError: as `matmul_part`; an unknown tag.
    """
    if parts.ndim < 3:
        raise ValueError(f"parts has axes (parts, .., m, n), at least three; given was the shape {parts.shape}")
    call = prepare_sum(parts.dtype, fmt, rounding, random_bits, overflow, infinite_input, tag)
    return call(parts, key, index, row, column, batch, out)


@cached
def prepare_sum(
    dtype: npt.DTypeLike,
    fmt: FormatLike,
    rounding: str = "nearest_even",
    random_bits: int = 16,
    overflow: str | None = None,
    infinite_input: str | None = None,
    tag: str = "stage",
) -> Prepared:
    """The checked form of `sum_parts`, for parts of a dtype.

    Returns:
        f(parts, key=None, index=0, row=0, column=0, batch=0, out=None).

    Raises:
        TypeError, ValueError: as `sum_parts`.
    """
    if tag not in ("stage", "output"):
        raise ValueError(f"unknown tag {tag!r}; allowed are stage, output")
    sums = accumulator("float32", fmt, rounding, random_bits, overflow, infinite_input)
    return prepared("sum_parts", cpu.sum_parts, (operand_dtype(dtype), sums, tag), (None, 0, 0, 0, 0, None))


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
    fmt = operand_format(array.dtype)
    how = fold(array.shape, axis, keepdims)
    if how.shape[1] == 0:
        raise ValueError("the largest of no elements is not defined")
    sums = accumulator("float32", fmt, "nearest_even", 16, None, None)
    result = backends.current().maximum(array.dtype, sums)(how.view(array), None, threads.current())
    return _shaped(result, how.result, out)


def _uncopied(call: Prepared, x: Array, how: Fold, key: KeyLike | None, row: int, column: int) -> Array | None:
    """The sums where kept axes cannot be joined: these become vertex axes; None where that does not help."""
    blocks = vertices(x, how)
    if blocks is None or blocks.x.ndim - 3 > MOST_VERTEX_AXES:
        return None
    result = call(blocks.x, key, blocks.row + row, blocks.column + column)
    return result.transpose(*np.argsort(blocks.perm).tolist())


def _folded_out(out: Array, how: Fold, x: Array) -> Array | None:
    """`out` as (outer, inner), if the kernels can write there while they read x."""
    if not isinstance(out, np.ndarray) or out.shape != how.result or np.may_share_memory(out, x):
        return None
    into = out.reshape(how.shape[0], how.shape[2])
    return into if np.may_share_memory(into, out) else None


def _shaped(result: Array, shape: tuple[int, ...], out: Array | None) -> Any:
    result = result.reshape(shape)
    if out is None:
        return result if shape else result[()]
    return copied(out, result)
