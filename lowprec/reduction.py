"""Sums and maxima over an axis in a stated order, and sums of parts.

A sum of K terms is the product of `lowprec.matmul` with every factor 1: a float32 chain from +0, ascending, rounded to
`accumulate` after every group, cut into parts that are summed in stages. Row and column of its random bits are the
positions before and after the reduced axis.
"""

from __future__ import annotations

import math
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from lowprec import backends, threads
from lowprec.arrays import input_array
from lowprec.backends import cpu
from lowprec.caching import cached
from lowprec.formats import FormatLike
from lowprec.random import KeyLike
from lowprec.sums import accumulator as make_accumulator
from lowprec.sums import operand_format
from lowprec.sums import order as make_order

Array = npt.NDArray[Any]


class PreparedReduce(Protocol):
    """A checked sum over the middle one of the last three axes: x (v.., m, k, n) -> (v.., m, n)."""

    def __call__(
        self,
        x: Array,
        key: KeyLike | None = None,
        row: int | Array = 0,
        column: int | Array = 0,
        first_group: int | Array = 0,
        batch: int | Array = 0,
        out: Array | None = None,
    ) -> Array: ...


class PreparedSum(Protocol):
    """A checked `sum_parts`."""

    def __call__(
        self,
        parts: Array,
        key: KeyLike | None = None,
        index: int | Array = 0,
        row: int | Array = 0,
        column: int | Array = 0,
        batch: int | Array = 0,
        out: Array | None = None,
    ) -> Array: ...


def reduce_sum(
    x: npt.ArrayLike,
    axis: int = -1,
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
    out: Array | None = None,
) -> Any:
    """The sum over one axis, in order, with the accumulator, parts and stages of `lowprec.matmul`.

    Args:
        x: float32 or a narrower float array of at least one axis.
        axis: the axis to sum over.
        group: terms between two roundings to `accumulate`; None: all of a part.
        keepdims: keep the axis with length 1.
        out: where to put the result (of the result's shape, keepdims considered).
        accumulate, splits, stages, out_format, rounding, key, random_bits, overflow, infinite_input: as `matmul`.

    Returns:
        An array of out_format's (or accumulate's) storage dtype; a scalar for one axis. No terms give +0.

    Raises:
        TypeError, ValueError: as `matmul`; an axis that x does not have.
    """
    array = input_array(x)[0]
    view, shape = _around(array, axis, keepdims)
    call = prepare_reduce(
        *(array.dtype, accumulate, group, splits, stages, out_format, rounding),
        *(random_bits, overflow, infinite_input),
    )
    return _shaped(call(view, key), shape, out)


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
) -> PreparedReduce:
    """The checked form of `reduce_sum` and `reduce_part`: f(x, key, row, column, first_group, batch, out).

    x is (v.., m, k, n), summed over k; all arguments but x are optional.

    Raises:
        TypeError, ValueError: as `reduce_sum`.
    """
    sums = make_accumulator(accumulate, out_format, rounding, random_bits, overflow, infinite_input)
    sequence = make_order(group, splits, stages, "sequential")
    kind = np.dtype(dtype)
    operand_format(kind)
    native, current, thread_count = cpu.reduce(kind, sums, sequence), backends.current, threads.current

    def call(
        x: Array,
        key: KeyLike | None = None,
        row: int | Array = 0,
        column: int | Array = 0,
        first_group: int | Array = 0,
        batch: int | Array = 0,
        out: Array | None = None,
    ) -> Array:
        backend = current()
        function = native if backend is cpu else backend.reduce(kind, sums, sequence)
        result: Array = function(x, key, row, column, first_group, batch, out, thread_count())
        return result

    return call


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
) -> PreparedSum:
    """The checked form of `sum_parts`: f(parts, key, index, row, column, batch, out), all but parts optional.

    Raises:
        TypeError, ValueError: as `sum_parts`.
    """
    if tag not in ("stage", "output"):
        raise ValueError(f"unknown tag {tag!r}; allowed are stage, output")
    sums = make_accumulator("float32", fmt, rounding, random_bits, overflow, infinite_input)
    kind = np.dtype(dtype)
    operand_format(kind)
    native, current, thread_count = cpu.sum_parts(kind, sums, tag), backends.current, threads.current

    def call(
        parts: Array,
        key: KeyLike | None = None,
        index: int | Array = 0,
        row: int | Array = 0,
        column: int | Array = 0,
        batch: int | Array = 0,
        out: Array | None = None,
    ) -> Array:
        backend = current()
        function = native if backend is cpu else backend.sum_parts(kind, sums, tag)
        result: Array = function(parts, key, index, row, column, batch, out, thread_count())
        return result

    return call


def reduce_max(x: npt.ArrayLike, axis: int = -1, *, keepdims: bool = False, out: Array | None = None) -> Any:
    """The largest element over one axis, exact; NaN wins, +0 is larger than -0.

    Args:
        x: float32 or a narrower float array with NaN; the axis must not be empty.
        axis: the axis.
        keepdims: keep the axis with length 1.
        out: where to put the result.

    Returns:
        An array of x's dtype; a scalar for one axis.

    Raises:
        TypeError: other dtypes.
        ValueError: an empty axis, or one that x does not have.
    """
    array = input_array(x)[0]
    fmt = operand_format(array.dtype)
    view, shape = _around(array, axis, keepdims)
    if view.shape[1] == 0:
        raise ValueError("the largest of no elements is not defined")
    sums = make_accumulator("float32", fmt, "nearest_even", 16, None, None)
    result = backends.current().maximum(array.dtype, sums)(view, None, threads.current())
    return _shaped(result, shape, out)


def _around(x: Array, axis: int, keepdims: bool) -> tuple[Array, tuple[int, ...]]:
    """x as (before, axis, after), and the shape of a result without (or with length 1 of) the axis."""
    if not -x.ndim <= axis < x.ndim:
        raise ValueError(f"axis {axis} is out of bounds for an array of {x.ndim} axes")
    axis %= x.ndim
    before, after = x.shape[:axis], x.shape[axis + 1 :]
    shape = (*before, 1, *after) if keepdims else (*before, *after)
    return x.reshape(math.prod(before), x.shape[axis], math.prod(after)), shape


def _shaped(result: Array, shape: tuple[int, ...], out: Array | None) -> Any:
    result = result.reshape(shape)
    if out is None:
        return result if shape else result[()]
    if out.dtype != result.dtype or out.shape != shape:
        raise ValueError(f"out must be an array of {result.dtype} and shape {shape}, not {out.dtype} {out.shape}")
    out[...] = result
    return out
