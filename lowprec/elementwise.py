"""Elementwise float32 arithmetic with one fused conversion, as a machine computes: `float32_op` and its prepared form.

The operands are float32 values (narrower formats are exact in float32). An operation is one IEEE operation of
float32, or a function evaluated by a fixed sequence of double operations and rounded once to float32; the float32
is then converted once to the wanted format. The bits are the same on every machine, backend and thread count.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, Unpack

import numpy as np
import numpy.typing as npt

from lowprec import backends, threads
from lowprec._caching import cached
from lowprec.arrays import apart, as_subclass, input_array
from lowprec.backends.cpu import plain_dtypes, ready_output
from lowprec.backends.owner import is_cupy
from lowprec.foreign import library_of, through
from lowprec.types import Array
from lowprec.values.conversion import conversion_of
from lowprec.values.elementwise_op import OPERATIONS, ElementwiseOp
from lowprec.values.formats import FormatLike
from lowprec.values.keys import KeyLike, first_index
from lowprec.values.keywords import PolicyKeywords, RoundingLike, as_rounding, refuse_unhashable, refuse_unknown
from lowprec.values.operands import operand_format
from lowprec.values.outputs import straight
from lowprec.values.rounding import NEAREST_EVEN, Rounding

_FLOAT32 = np.dtype(np.float32)


class PreparedOp(Protocol):
    """A checked `float32_op`: operands as a tuple of arrays of the prepared dtypes, or Python numbers."""

    def __call__(
        self, operands: tuple[Any, ...], key: KeyLike | None = None, offset: int = 0, out: Array | None = None
    ) -> Array: ...


def float32_op(
    op: str,
    *operands: npt.ArrayLike,
    fmt: FormatLike = "float32",
    rounding: RoundingLike = "nearest_even",
    key: KeyLike | None = None,
    offset: int = 0,
    out: Array | None = None,
    **policies: Unpack[PolicyKeywords],
) -> Any:
    """One operation in float32, then one conversion to a format.

    Args:
        op: identity, negative, absolute, relu, step (1 where x > 0, else 0), square, reciprocal, sqrt, rsqrt, exp,
            log, tanh, erf, sigmoid, sin, cos, gelu (x * Phi(x)), gelu_gradient; add, subtract, multiply, divide,
            maximum, minimum (NaN wins; of equal operands the first), greater, equal (1 or 0); select(c, a, b) (a where
            c is not 0) and scaled_add(a, b, s) = a + (s * b), the product rounded to float32 first; floor, rint (the
            nearest whole number, of two the even one) and fmod(a, b) = a - n b, n the whole part of a / b, exactly and
            with the sign of a (NaN of an infinite a and of b = 0).
        operands: arrays of float32 or narrower floats, broadcast together, or Python numbers (rounded to float32).
            CuPy arrays are computed with on their GPU (see lowprec.backends.cuda).
        fmt: format of the result; it must have a storage dtype.
        rounding: of the conversion; see `lowprec.round` for it, for key and for the keywords random_bits, overflow and
            infinite_input. There is no flushing here.
        offset: index of the result's first element (C order) among the random bits.
        out: where to put the result; may share memory with the operands.

    Returns:
        An array of fmt's storage dtype; a scalar where every operand is one.

    Raises:
        TypeError: float64 or integer arrays; a format without storage dtype.
        ValueError: unknown names, wrong number of operands, shapes that do not broadcast, stochastic without a key, or
            a NaN into a format without NaN.
    """
    plain = plain_dtypes(operands)
    if plain is not None and (out is None or ready_output(out, operands, True)):  # most calls, quickly
        call = _prepared(op, plain, fmt, rounding, policies)
        if offset:
            offset = first_index(offset, np.broadcast(*operands).size)
        return call(operands, key, offset, out)
    if (library := library_of(*operands, out)) is not None:
        options = dict(fmt=fmt, rounding=rounding, key=key, offset=offset, **policies)
        return through(library, float32_op, op, *operands, out=out, **options)
    given = [_operand(x) for x in operands]
    arrays = tuple(x for x, _ in given)
    on_gpu = any(map(is_cupy, arrays))
    dtypes = tuple(x.dtype if isinstance(x, np.ndarray) or is_cupy(x) else None for x in arrays)
    call = _prepared(op, dtypes, fmt, rounding, policies)
    if offset:
        offset = first_index(offset, math.prod(np.broadcast_shapes(*map(np.shape, arrays))))
    if on_gpu:
        how = specified(op, dtypes, fmt, as_rounding(rounding, **policies))
        return backends.load("cuda").elementwise(how)(arrays, key, offset, out, 0)
    if out is not None:
        straight(out)
        # The loops read and write element by element: an operand that lies shifted in out's memory is copied first.
        arrays = tuple(apart(x, out) for x in arrays)
    # The loops read and write whole floats, which may not lie at any address on every machine.
    if isinstance(out, np.ndarray) and out.flags.writeable and not out.flags.aligned:
        out[...] = call(arrays, key, offset, out.copy())
        return out
    result = call(arrays, key, offset, out)
    if out is not None:
        return result
    return result[()] if all(scalar for _, scalar in given) else as_subclass(result, operands)


def function_op(op: str, x: npt.ArrayLike, fmt: FormatLike, rounding: RoundingLike, options: Mapping[str, Any]) -> Any:
    """`float32_op` of one operand; a plain array without options skips its checks of out, offset and libraries."""
    if not options and (dtypes := plain_dtypes((x,))) is not None:
        return _prepared(op, dtypes, fmt, rounding, {})((x,))
    return float32_op(op, x, fmt=fmt, rounding=rounding, **options)


def _operand(x: Any) -> tuple[Any, bool]:
    """An operand as a native array or a Python number, and whether it was a scalar."""
    if type(x) is np.ndarray and x.dtype.isnative:
        return x if x.flags.aligned else x.copy(), False
    if isinstance(x, (float, int)) and not isinstance(x, bool):
        return x, True
    return input_array(x)


def _prepared(
    op: str,
    in_dtypes: tuple[npt.DTypeLike | None, ...],
    fmt: FormatLike,
    rounding: RoundingLike,
    policies: PolicyKeywords,
) -> PreparedOp:
    try:
        return _from_keywords(op, in_dtypes, fmt, rounding, **policies)
    except TypeError:
        refuse_unhashable(op=op, fmt=fmt, rounding=rounding, **policies)
        raise


@cached
def _from_keywords(
    op: str, in_dtypes: tuple[npt.DTypeLike | None, ...], fmt: FormatLike, rounding: RoundingLike, **policies: Any
) -> PreparedOp:
    refuse_unknown(policies, PolicyKeywords)
    return prepare(op, in_dtypes, fmt, as_rounding(rounding, **policies))


@cached
def prepare(
    op: str,
    in_dtypes: Sequence[npt.DTypeLike | None],
    fmt: FormatLike = "float32",
    rounding: Rounding = NEAREST_EVEN,
) -> PreparedOp:
    """The checked form of `float32_op` for hot loops: about a microsecond per call.

    Args:
        in_dtypes: a tuple with every operand's dtype, None for a Python number.

    Returns:
        f(operands, key=None, offset=0, out=None); operands is a tuple. An operand may be a Python number in any case.
        `out` may be an operand itself, but not share memory with one in another way.

    Raises:
        TypeError, ValueError: as `float32_op`.
    """
    chosen = backends.prepared("elementwise", specified(op, in_dtypes, fmt, rounding))
    thread_count = threads.current

    def call(operands: tuple[Any, ...], key: KeyLike | None = None, offset: int = 0, out: Array | None = None) -> Array:
        result: Array = chosen()(operands, key, offset, out, thread_count())
        return result

    return call


@cached
def specified(op: str, in_dtypes: Sequence[npt.DTypeLike | None], fmt: FormatLike, rounding: Rounding) -> ElementwiseOp:
    """The operation, the operands' dtypes and the conversion of the result, checked: what backends make a call of."""
    count = OPERATIONS.get(op)
    if count is None:
        raise ValueError(f"unknown operation {op!r}; known are {', '.join(OPERATIONS)}")
    if len(in_dtypes) != count:
        raise ValueError(f"{op} takes {count} operand{'s'[: count > 1]}, not {len(in_dtypes)}")
    dtypes = tuple(None if dtype is None else np.dtype(dtype) for dtype in in_dtypes)
    for dtype in dtypes:
        if dtype is not None:
            operand_format(dtype)
    rounding.refuse("float32_op", exact=True, flush=True)
    conversion = conversion_of("storage", _FLOAT32, fmt, rounding)
    return ElementwiseOp(op, dtypes, conversion)
