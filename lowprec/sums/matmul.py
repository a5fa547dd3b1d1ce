"""Matrix products with a chosen accumulator: `matmul`, and `matmul_part`, chains on their own for a tile's vertices.

The docstring of `matmul` gives the order and the rounding of every addition.
"""

from __future__ import annotations

from typing import Any, Protocol, Unpack

import numpy as np
import numpy.typing as npt

from lowprec import backends, threads
from lowprec._caching import cached
from lowprec.arrays import only_arrays, whole_array
from lowprec.backends.owner import is_cupy
from lowprec.foreign import library_of, through
from lowprec.random import KeyLike
from lowprec.types import Array
from lowprec.values.accumulation import Accumulation
from lowprec.values.keys import ORIGIN, Coordinates, coordinates, first_element, key_value
from lowprec.values.keywords import ProductChainKeywords, ProductKeywords, RoundingLike, as_sum, refuse_unhashable
from lowprec.values.operands import factor_dtypes
from lowprec.values.outputs import into, straight
from lowprec.values.rounding import Rounding
from lowprec.values.sum_rules import part_rules, sum_rules


class PreparedMatmul(Protocol):
    """A checked `matmul` for operands of two dtypes."""

    def __call__(
        self,
        a: Array,
        b: Array,
        key: KeyLike | None = None,
        offset: tuple[int, int] = (0, 0),
        out: Array | None = None,
    ) -> Array: ...


class PreparedChain(Protocol):
    """A checked `matmul_part` for operands of two dtypes."""

    def __call__(
        self,
        a: Array,
        b: Array,
        key: KeyLike | None = None,
        place: Coordinates = ORIGIN,
        out: Array | None = None,
        initial: Array | None = None,
    ) -> Array: ...


def matmul(
    a: npt.ArrayLike,
    b: npt.ArrayLike,
    *,
    accumulation: Accumulation | None = None,
    rounding: RoundingLike = "nearest_even",
    key: KeyLike | None = None,
    offset: tuple[int, int] = (0, 0),
    out: Array | None = None,
    **keywords: Unpack[ProductKeywords],
) -> Any:
    """The product of a (.., m, k) and b (.., k, n); the order and rounding of every addition are part of the contract.

    An element's K products a[k] * b[k] are added to a float32 partial sum that starts at +0. Inside a group the order
    is the `adder`'s; after every `group` products the partial sum is rounded to `accumulate`. This is what the IPU's
    AMP unit does: FP16.16 is accumulate="float16", group=16, FP16.32 and FP32.32 are accumulate="float32".

        sequential   k ascending, one fused rounding to float32 per product (a product of halves is exact in float32,
                     so fused and unfused agree there)
        dot4         four products and the partial sum added exactly, then one rounding to float32; significands of at
                     most 11 bits
        pairwise     (p0 + p1) + (p2 + p3) in float32, each pair one product rounded and one fused, then added to the
                     partial sum
        aligned      all products of a group and the partial sum: each is cut toward zero `aligned_bits` places behind
                     the largest exponent among them, and they are added exactly; the sum is normalised once, to
                     float32

    Aligned is what tensor cores were measured to do. A product's exponent is the sum of its factors', before it is
    normalised, so that it is less than 4 in units of 2^exponent; a subnormal number has the exponent of its format's
    smallest normal one, and zeros take no part. The sum is cut toward zero to float32's 24 bits; where it is then
    rounded to a narrower `accumulate`, it is rounded to odd instead, so that an accumulator of at most 21 mantissa bits
    gets the exact sum rounded once. From 2^128 on it is infinite; a sum of zero is +0. Measured (products of a group,
    places, accumulator): V100 4, 23, float32; A100 8, 24, float32; H100 16, 25, float32; H100 on 8-bit operands 32, 13,
    e8m13 (`FloatFormat("e8m13", 8, 13)`, "FP22"), all with rounding="toward_zero".

    Fours are counted from a group's first product; its last four may have fewer (a pair of one is that product,
    rounded). Roundings to float32 are to nearest, ties to even; `rounding` is for those to the two other formats.

    Parts: with c = group * ceil(ceil(K / group) / splits), part p is a chain of its own, from +0, over k in
    [p c, min(K, (p + 1) c)); empty parts vanish, a short last group is rounded once. group=None stands for
    max(1, ceil(K / splits)): one rounding per part.

    Stages: P parts are summed in S = 1 stage up to 15, 2 up to 124, else 3, or as `stages` says. Every stage but the
    last cuts what there is into contiguous runs of r, the smallest integer with r^S >= P (the last run may be shorter),
    and rounds the sum of each to `accumulate`; the last one rounds the sum of what is left, if only of one part, to
    `out_format`. Sums are made in float32, ascending, from the first of a run.

    Random bits: each stochastic rounding takes its own, made of the key, the element's batch, row and column, and the
    number of what is rounded: of a group k // group, counted over all of K whatever the parts; of results between
    stages 0, 1, .. on through all stages; the last rounding has bits apart. Batches are numbered in C order over the
    broadcast leading axes; rows and columns from `offset` on, and an operand of one axis has row or column 0. So a row
    or column computed alone, with `offset`, equals that of the whole (for one matrix of a batch `matmul_part` takes its
    number). The map to Philox is `lowprec.backends.reference.chains.sum_bits`.

    Args:
        a, b: float32, float16, bfloat16 or 8-, 6- or 4-bit float arrays of one or more axes, any strides; leading axes
            broadcast as in `numpy.matmul`, a missing axis is treated as there.
        accumulation: order and types of the sum as one value, a `lowprec.Accumulation`; or by keywords:
            accumulate: the format partial sums are rounded to ("float32": no rounding beside the chain's own). It has
                a sign and a zero, and no value that float32 lacks.
            group: products between two roundings (16); None: all of a part.
            splits: parts into which K is cut (1).
            stages: stages in which parts are summed, 1 to 3; None: by their number.
            out_format: the result's format; None: `accumulate`.
            adder: "sequential" (the fast one), "dot4", "pairwise" or "aligned".
            aligned_bits: places kept by the aligned adder, 1 to 35 (it also needs a group of at most 32768 products).
        rounding: of groups, stages and result alike: a `lowprec.Rounding`; or a mode, and by keywords random_bits (16),
            overflow and infinite_input, as of `lowprec.round`. Sums take no few-bit modes, no "exact" bits and do not
            flush. Infinities and NaN in the operands give what float32 arithmetic gives.
        key: as of `lowprec.round`.
        offset: row and column of the result's first element among the random bits.
        out: where to put the result.

    Returns:
        An array of out_format's storage dtype; a scalar for two vectors. K = 0 gives +0.

    Raises:
        TypeError: float64 or integer operands (convert with `astype`), or operands with scales, which `scaled_matmul`
            multiplies; a result format without storage dtype; a value
            together with a keyword that it stands for.
        ValueError: shapes that do not match, unknown names, numbers out of range, a format that cannot accumulate,
            stochastic without a key, or a NaN that arose where the result's format has none (`out` is then undefined).

    References:
        Graphcore, "AI-Float: Mixed Precision Arithmetic for AI" (white paper, 2023), for the AMP unit's order.
        Fasi, Higham, Mikaitis, Pranesh, "Numerical behavior of NVIDIA tensor cores" (PeerJ Computer Science 7, 2021),
        and Xie, Wang, Yang, Yang, "MMA-Sim" (arXiv 2511.10909, 2025), for the aligned adder.
    """
    if (library := library_of(a, b, out)) is not None:
        options = dict(accumulation=accumulation, rounding=rounding, key=key, offset=offset, **keywords)
        return through(library, matmul, a, b, out=out, **options)
    left, right, offset = _plain("a", a), _plain("b", b), first_element(offset)
    on_gpu = _on_gpu(left, right)
    # The GPU's backend refuses an `out` that shares memory with an operand.
    target = out if out is None or on_gpu else straight(out, left, right)
    try:
        call = _from_keywords(left.dtype, right.dtype, accumulation, rounding, **keywords)
    except TypeError:
        # Only now: a cache's "unhashable type" names no argument, and asking each one costs time in every call.
        refuse_unhashable(rounding=rounding, **keywords)
        raise
    key = None if key is None else key_value(key)
    try:
        result = call(left, right, key, offset, target)
    # The loops check the shapes: here they would be looked at a second time at every call that is right.
    except ValueError as error:
        if left.ndim and right.ndim and left.shape[-1] != right.shape[max(-2, -right.ndim)]:
            # Weights of torch's linear layers have their axes so.
            turned = "; b.T would fit" if right.ndim > 1 and left.shape[-1] == right.shape[-1] else ""
            raise ValueError(f"a has shape {left.shape}, b {right.shape}: {error}{turned}") from None
        raise
    if out is not None:
        # Where out shares memory with an operand it is written last of all.
        return into(out, result) if target is None else out
    return result[()] if result.ndim == 0 else result


def _on_gpu(a: Array, b: Array) -> bool:
    """Whether the operands are CuPy's.

    Raises:
        TypeError: one of them alone.
    """
    if type(a) is np.ndarray is type(b):  # most calls, quickly
        return False
    if is_cupy(a) != is_cupy(b):
        raise TypeError("a and b lie on a GPU (CuPy arrays) and here: move them together")
    return is_cupy(a)


def _plain(name: str, x: npt.ArrayLike) -> Array:
    """An operand as an array.

    Raises:
        TypeError: it has scales, which a sum of its values in float32 would round.
    """
    # BlockArray and ScaledArray have `__array__`, so that NumPy would make values of them in silence.
    if type(x) is not np.ndarray and hasattr(x, "dequantize"):
        raise TypeError(
            f"{name} is a {type(x).__name__}: scaled_matmul(a, b) multiplies operands with scales, "
            f"matmul its values, {name}.dequantize()"
        )
    return whole_array(x)


@cached
def _from_keywords(
    a: np.dtype[Any], b: np.dtype[Any], accumulation: Accumulation | None, rounding: RoundingLike, **keywords: Any
) -> PreparedMatmul:
    return prepare(a, b, *as_sum(ProductKeywords, 16, accumulation, rounding, **keywords))


@cached
def prepare(
    a_dtype: npt.DTypeLike, b_dtype: npt.DTypeLike, accumulation: Accumulation, rounding: Rounding
) -> PreparedMatmul:
    """The checked form of `matmul` for hot loops: f(a, b, key=None, offset=(0, 0), out=None).

    Raises:
        TypeError, ValueError: as `matmul`.
    """
    left, right = factor_dtypes(a_dtype, b_dtype, accumulation.adder)
    rules = sum_rules(accumulation, rounding)
    # Both are asked at every call: a prepared call outlives the contexts of backends and numbers of threads.
    chosen, thread_count = backends.prepared("product", left, right, accumulation, rules), threads.current

    def call(
        a: Array,
        b: Array,
        key: KeyLike | None = None,
        offset: tuple[int, int] = (0, 0),
        out: Array | None = None,
    ) -> Array:
        result: Array = chosen(a)(a, b, key, offset[0], offset[1], 0, None, out, thread_count())
        return result

    return call


def matmul_part(
    a: Array,
    b: Array,
    *,
    accumulation: Accumulation | None = None,
    rounding: RoundingLike = "nearest_even",
    key: KeyLike | None = None,
    row: int | Array = 0,
    column: int | Array = 0,
    first_group: int | Array = 0,
    batch: int | Array = 0,
    out: Array | None = None,
    initial: Array | None = None,
    **keywords: Unpack[ProductChainKeywords],
) -> Array:
    """One chain per vertex: blocks of larger products, computed where they lie, without stage or output rounding.

    Chains may go on from given partial sums. Cut at multiples of `group`, slices of K one after the other, each from
    the result of the one before and with its own `first_group`, give bit for bit what one call over all of K gives.

    Args:
        a, b: (v.., m, k) and (v.., k, n); the leading *vertex* axes broadcast together and may have any strides.
        accumulation: how the whole sum is made; its group, accumulator and adder count here. Or the keywords
            accumulate, group and adder of `matmul`.
        row, column: global coordinates of each vertex's first element: ints or int64 arrays that broadcast over the
            vertex axes.
        first_group: global number of each chain's first group (its first k // group).
        batch: number of the product each vertex belongs to.
        initial: (v.., m, n), what each chain starts from (None: +0), in the storage dtype of `accumulate` or in
            float32; may be `out` itself. K = 0 gives it back, rounded to `accumulate` (whose infinities stay).
        rounding, key, out: as `matmul`, with the keywords random_bits, overflow and infinite_input.

    Returns:
        (v.., m, n) in the storage dtype of `accumulate`.

    Raises:
        TypeError, ValueError: as `matmul`.
    """
    if not (type(a) is np.ndarray is type(b) and a.dtype.isnative and b.dtype.isnative):  # most calls, quickly
        a, b = only_arrays(a=a, b=b)
    target = None if out is None else straight(out, a, b)
    try:
        call = _part_from_keywords(a.dtype, b.dtype, accumulation, rounding, **keywords)
    except TypeError:
        refuse_unhashable(rounding=rounding, **keywords)
        raise
    key = None if key is None else key_value(key)
    result = call(a, b, key, coordinates(row, column, first_group, batch), target, initial)
    return result if out is None or target is not None else into(out, result)


@cached
def _part_from_keywords(
    a: np.dtype[Any], b: np.dtype[Any], accumulation: Accumulation | None, rounding: RoundingLike, **keywords: Any
) -> PreparedChain:
    return prepare_part(a, b, *as_sum(ProductChainKeywords, 16, accumulation, rounding, **keywords))


@cached
def prepare_part(
    a_dtype: npt.DTypeLike, b_dtype: npt.DTypeLike, accumulation: Accumulation, rounding: Rounding
) -> PreparedChain:
    """The checked form of `matmul_part`: f(a, b, key=None, place=ORIGIN, out=None, initial=None).

    Raises:
        TypeError, ValueError: as `matmul`.
    """
    # Splits and stages are the caller's, who sums the parts (`sum_parts`).
    part = accumulation.one_part()
    left, right = factor_dtypes(a_dtype, b_dtype, part.adder)
    rules = part_rules(part, rounding)
    chosen, thread_count = backends.prepared("product", left, right, part, rules), threads.current

    def call(
        a: Array,
        b: Array,
        key: KeyLike | None = None,
        place: Coordinates = ORIGIN,
        out: Array | None = None,
        initial: Array | None = None,
    ) -> Array:
        result: Array = chosen()(a, b, key, *place, out, thread_count(), initial)
        return result

    return call
