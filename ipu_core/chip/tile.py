"""A tile's arithmetic: lowprec's kernels under floating-point control, as prepared calls.

The machine computes only here. Elementwise operations are evaluated in float32 (one IEEE operation, or a fixed double
sequence rounded once) and then converted once; products and sums follow an accumulation (group, splits, stages, types,
adder). The caller says how an operation rounds, to nearest or stochastically (on the machine the ESR bit does, which
can be cleared around single vertices); what becomes of an overflow is the control's to say.

Exceptions: with `inv`, `div0` or `oflo` enabled the operands and results are inspected after each call, at the cost of
reading them again. An elementwise overflow is found from its float32 value before conversion; in a product or sum a
result of the format's largest magnitude counts as one.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from ipu_core.chip.control import FloatingPointControl
from ipu_core.chip.tile_integers import has_integers, of_integers
from ipu_core.errors import FloatingPointException
from lowprec import Accumulation, Key, Rounding, as_format, random_bits
from lowprec.elementwise import prepare as prepare_elementwise
from lowprec.sums.matmul import prepare as prepare_matmul
from lowprec.sums.matmul import prepare_part
from lowprec.sums.reduce import prepare_reduce, prepare_reduce_part, prepare_sum
from lowprec.sums.reduce import reduce_max as exact_max
from lowprec.values.keys import Coordinates
from lowprec.values.rounding import NEAREST_EVEN

Array = NDArray[Any]
_HALF = np.dtype(np.float16)
_BYTE = 8  # bits
RANDOM_BITS = 16  # random bits per rounding, and per element of a mask
SECOND_ROUNDING = 1  # folded into the key for the second of two roundings
Elementwise = Callable[[tuple[Any, ...], Key | None, int, Array], Array]
Bound = Callable[[Key | None], None]
Dtypes = tuple[np.dtype[Any], np.dtype[Any]]
"""The dtypes of the two operands of a product."""


class Position(Protocol):
    """Where vertices' blocks lie in a whole result: numbers, or arrays that broadcast to the vertex axes."""

    @property
    def row(self) -> Any:
        """First row."""

    @property
    def column(self) -> Any:
        """First column."""

    @property
    def first_group(self) -> Any:
        """Number of the first group of products in the whole sum."""

    @property
    def batch(self) -> Any:
        """Number of the product in a batch."""


def elementwise(
    op: str, formats_in: Sequence[Any], out_format: Any, rounding: Rounding, control: FloatingPointControl
) -> Elementwise:
    """A prepared elementwise operation.

    Results in an 8-bit format are rounded twice, to half and from there, as on the machine; both steps draw their own
    bits when stochastic.

    Args:
        op: see `lowprec.elementwise.float32_op`.
        formats_in: format or dtype of each operand, None for a Python number; with int32 see `of_integers`.
        out_format: format of the result.
        rounding: of the result; its overflow is the control's.
        control: overflow and exceptions.

    Returns:
        f(operands, key, offset, out): `offset` is the index of the first element among the random bits.
    """
    if has_integers(formats_in):
        return of_integers(op)
    dtypes = tuple(None if spec is None else _dtype(spec) for spec in formats_in)
    call = _converting(op, dtypes, out_format, rounding, control)
    return trapping(op, dtypes, call, out_format, control) if control.traps else call


def _converting(
    op: str, dtypes: tuple[Any, ...], out_format: Any, rounding: Rounding, control: FloatingPointControl
) -> Elementwise:
    def prepare(name: str, sources: tuple[Any, ...], fmt: Any) -> Elementwise:
        prepared: Elementwise = prepare_elementwise(name, sources, fmt, control.rounding(rounding, fmt))
        return prepared

    narrow = as_format(out_format)
    if narrow.bits > _BYTE or (op == "identity" and dtypes[0] == _HALF):
        return prepare(op, dtypes, narrow)
    first, second = prepare(op, dtypes, "float16"), prepare("identity", (_HALF,), narrow)

    def twice(operands: tuple[Any, ...], key: Key | None, offset: int, out: Array) -> Array:
        half = first(operands, key, offset, np.empty(out.shape, _HALF))
        return second((half,), None if key is None else key.fold_in(SECOND_ROUNDING), offset, out)

    return twice


def trapping(
    op: str, dtypes: tuple[Any, ...], call: Elementwise, out_format: Any, control: FloatingPointControl
) -> Elementwise:
    """Inspects operands and result after the call; the float32 value before conversion is computed once more."""
    wide: Elementwise = prepare_elementwise(op, dtypes, "float32")
    largest = float(as_format(out_format).max)

    def checked(operands: tuple[Any, ...], key: Key | None, offset: int, out: Array) -> Array:
        with np.errstate(over="ignore"):  # a number beyond float32 is infinite, as in the kernel
            values = [np.asarray(operand, np.float32) for operand in operands]
        exact = wide(operands, None, 0, np.empty(out.shape, np.float32))
        finite = np.logical_and.reduce(np.broadcast_arrays(*(np.isfinite(value) for value in values)))
        known = np.logical_and.reduce(np.broadcast_arrays(*(~np.isnan(value) for value in values)))
        divisor = _divisor(op, values)
        zero, over = _is_zero(divisor), np.abs(exact) > largest
        result = call(operands, key, offset, out)  # which may be written over an operand
        if control.div0 and bool((zero & finite & np.isinf(exact)).any()):
            raise FloatingPointException(f"{op}: division by zero")
        if control.inv and bool((np.isnan(np.asarray(result, np.float32)) & known).any()):
            raise FloatingPointException(f"{op}: invalid operation: NaN from operands that are none")
        if control.oflo and bool((over & finite & ~zero).any()):
            raise FloatingPointException(f"{op}: overflow: a result beyond {largest:g}")
        return result

    return checked


def _divisor(op: str, values: Sequence[Array]) -> Array | None:
    if op == "divide":
        return values[1]
    return values[0] if op in ("reciprocal", "rsqrt", "log") else None


def _is_zero(divisor: Array | None) -> Any:
    return np.False_ if divisor is None else divisor == 0


def _dtype(spec: Any) -> np.dtype[Any]:
    return np.dtype(as_format(spec).dtype)


def matmul(
    order: Accumulation, rounding: Rounding, control: FloatingPointControl, operands: Dtypes | None = None
) -> Callable[[Array, Array, Key | None, Array], Array]:
    """A prepared product of whole matrices, batched over leading axes: f(a, b, key, out).

    Args:
        order: the Accumulation; its second type is the result's format.
        rounding: of partial sums, stages and result; its overflow is the control's.
        control: overflow and exceptions.
        operands: dtypes of those to come, where an order that does not take them is to be refused now.
    """
    rounded = control.rounding(rounding, order.accumulate)
    prepared: dict[Dtypes, Callable[..., Array]] = {}

    def ready(given: Dtypes) -> Callable[..., Array]:
        if given not in prepared:
            prepared[given] = prepare_matmul(*given, order, rounded)
        return prepared[given]

    def product(a: Array, b: Array, key: Key | None, out: Array) -> Array:
        ready((a.dtype, b.dtype))(a, b, key, (0, 0), out)
        return out

    if operands is not None:
        ready(operands)

    if not control.traps:
        return product

    def checked(a: Array, b: Array, key: Key | None, out: Array) -> Array:
        return check_sum("matmul", control, (a, b), product(a, b, key, out))

    return checked


def scaled(
    dtype: np.dtype[Any], scale: np.dtype[Any], control: FloatingPointControl
) -> Callable[[Array, Array, Array], Array]:
    """A prepared operand of a product times a power of two: f(operand, scale, out) with a float32 `out`, exact.

    The AMP unit multiplies the scale of fp8 tensors into products before it adds them.
    """
    # exact, so that exceptions are the sum's that follows
    kernel = elementwise("multiply", [dtype, scale], np.float32, Rounding(), replace(control, inv=False, oflo=False))
    return lambda operand, factor, out: kernel((operand, factor), None, 0, out)


def reduce_sum(
    order: Accumulation, rounding: Rounding, control: FloatingPointControl
) -> Callable[[Array, Key | None, Array], Array]:
    """A prepared sum over the k of (.., m, k, n): f(x, key, out) with out (.., m, n). Arguments as `matmul`."""
    rounded = control.rounding(rounding, order.accumulate)
    prepared: dict[Any, Callable[..., Array]] = {}

    def total(x: Array, key: Key | None, out: Array) -> Array:
        call = prepared.get(x.dtype)
        if call is None:
            call = prepared[x.dtype] = prepare_reduce(x.dtype, order, rounded)
        call(x, key, out=out)
        return out

    if not control.traps:
        return total

    def checked(x: Array, key: Key | None, out: Array) -> Array:
        return check_sum("reduce_sum", control, (x,), total(x, key, out))

    return checked


def matmul_part(
    a: Array, b: Array, out: Array, order: Accumulation, place: Position, rounding: Rounding,
    control: FloatingPointControl, initial: Array | None = None, scale: Array | None = None,
) -> Bound:  # fmt: skip
    """Chains of products of many vertices, one part each, bound to their arrays: f(key).

    Args:
        a, b, out: (vertex axes.., m, k), (.., k, n) and (.., m, n); `out` has the accumulator's storage dtype.
        order: group, accumulator and adder count here; `sum_parts` adds the parts.
        place: the blocks' places in the whole results.
        rounding: of the partial sums; its overflow is the control's.
        control: overflow and exceptions.
        initial: partial sums that the chains go on from, shaped as `out` (which they may be); None: +0.
        scale: one number that products are multiplied by before they are added, a power of two; None: 1.
    """
    first = _plain(a) if scale is None else _scaled(a, scale, control)
    dtype = a.dtype if scale is None else np.dtype(np.float32)
    call = prepare_part(dtype, b.dtype, order, control.rounding(rounding, order.accumulate))
    where = _coordinates(place)

    def part(key: Key | None) -> None:
        call(first(), b, key, where, out, initial)

    return watched("matmul", part, (a, b) if initial is None else (a, b, initial), out, control)


def _plain(operand: Array) -> Callable[[], Array]:
    return lambda: operand


def _scaled(operand: Array, scale: Array, control: FloatingPointControl) -> Callable[[], Array]:
    multiply, out = scaled(operand.dtype, scale.dtype, control), np.empty(operand.shape, np.float32)
    return lambda: multiply(operand, scale, out)


def reduce_part(
    x: Array, out: Array, order: Accumulation, place: Position, rounding: Rounding, control: FloatingPointControl
) -> Bound:
    """Chains of terms of many vertices: x (vertex axes.., m, k, n) to out (.., m, n), as `matmul_part`."""
    call = prepare_reduce_part(x.dtype, order, control.rounding(rounding, order.accumulate))
    where = _coordinates(place)

    def part(key: Key | None) -> None:
        call(x, key, where, out)

    return watched("reduce_sum", part, (x,), out, control)


def sum_parts(
    parts: Array, out: Array, fmt: Any, tag: Literal["stage", "output"], index: Any, place: Position,
    rounding: Rounding, control: FloatingPointControl,
) -> Bound:  # fmt: skip
    """Sums of parts of many vertices in float32, ascending, rounded once: f(key).

    Args:
        parts, out: (vertex axes.., P, m, n) and (.., m, n).
        fmt: format of the result.
        tag: whether this is an intermediate stage or gives the result.
        index: running number of the intermediate result.
        place: the blocks' places in the whole results.
        rounding: of the sums; its overflow is the control's.
        control: overflow and exceptions.
    """
    first = np.moveaxis(parts, -3, 0)
    call = prepare_sum(parts.dtype, fmt, control.rounding(rounding, fmt), tag)
    where = _coordinates(place)

    def total(key: Key | None) -> None:
        call(first, key, index, where, out)

    return watched("sum of parts", total, (parts,), out, control)


def reduce_max(x: Array, out: Array) -> Bound:
    """The largest over the terms of x (vertex axes.., m, k, n) to out (.., m, n); exact, NaN wins: f(key)."""

    def largest(key: Key | None) -> None:
        exact_max(x, axis=-2, out=out)

    return largest


def largest_magnitude(x: Array, out: Array, control: FloatingPointControl) -> Bound:
    """The largest magnitude, as `reduce_max` of what `elementwise` makes: f(key)."""
    sizes, fmt = np.empty(x.shape, x.dtype), as_format(x.dtype)
    absolute, find = elementwise("absolute", (fmt,), fmt, NEAREST_EVEN, control), reduce_max(sizes, out)

    def largest(key: Key | None) -> None:
        absolute((x,), None, 0, sizes)
        find(key)

    return largest


def dropout_mask(rate: float) -> Callable[[Key | None, int, Array], Array]:
    """A prepared random mask: f(key, offset, out) writes 1 for what is kept and 0 for what is dropped.

    Args:
        rate: share that is dropped, in steps of 2^-16. An element is dropped where its 16 random bits, those of its
            index (from `offset` on, in C order) under the tag "dropout", are below rate * 2^16.
    """
    dropped = round(rate * 2**RANDOM_BITS)

    def mask(key: Key | None, offset: int, out: Array) -> Array:
        if key is None:
            raise ValueError("a dropout mask needs a key")
        np.copyto(out, random_bits(key, out.shape, RANDOM_BITS, use="dropout", offset=offset) >= dropped)
        return out

    return mask


def _coordinates(place: Position) -> Coordinates:
    return Coordinates(place.row, place.column, place.first_group, place.batch)


def watched(name: str, call: Bound, operands: Sequence[Array], out: Array, control: FloatingPointControl) -> Bound:
    """The call of a sum, and where exceptions are enabled an inspection after it."""
    if not control.traps:
        return call

    def checked(key: Key | None) -> None:
        call(key)
        check_sum(name, control, operands, out)

    return checked


def check_sum(name: str, control: FloatingPointControl, operands: Sequence[Array], out: Array) -> Array:
    """Inspects a sum after the fact: from finite operands, NaN is invalid and the largest magnitude an overflow."""
    result = np.asarray(out, np.float32)
    if control.inv and bool(np.isnan(result).any()) and not any(_has(np.isnan, x) for x in operands):
        raise FloatingPointException(f"{name}: invalid operation: NaN from operands that are none")
    largest = float(as_format(out.dtype).max)
    if control.oflo and bool((np.abs(result) >= largest).any()) and all(_has_only(np.isfinite, x) for x in operands):
        raise FloatingPointException(f"{name}: overflow: a result of at least {largest:g}")
    return out


def _has(test: Any, x: Array) -> bool:
    return bool(test(np.asarray(x, np.float32)).any())


def _has_only(test: Any, x: Array) -> bool:
    return bool(test(np.asarray(x, np.float32)).all())
