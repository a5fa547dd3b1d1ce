"""Values and the functions on them: traced values append equations, NumPy arrays are computed with at once."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from ipu_core.ir.block import (
    NEAREST,
    Atom,
    EquationArithmetic,
    Format,
    Literal,
    Params,
    RecomputedPart,
    Var,
    format_name,
)
from ipu_core.ir.ops import INT32, OPS
from ipu_core.ir.pytree import flatten
from ipu_core.ir.trace.builder import Builder
from ipu_core.ir.trace.eager import as_array, compute, format_of, is_number
from ipu_core.ir.trace.indexing import select
from lowprec import FloatFormat, Rounding, as_format
from lowprec import float32 as FLOAT32
from lowprec import float64 as FLOAT64
from lowprec.checks import integer, listed, shown, truth

Value = Any
"""What the functions below take and give: a Traced value, a NumPy array or a Python number."""


class Traced:
    """A value of a function that is being traced: a shape and a format, and no numbers (see `TracedArray`)."""

    __slots__ = ("builder", "node")

    def __init__(self, builder: Builder, var: Var) -> None:
        self.builder = builder
        self.node = var

    @property
    def atom(self) -> Atom:
        """The operand of an equation that it is."""
        return self.node

    def known(
        self, op: str, operands: Sequence[Value], params: Mapping[str, Any], fmt: FloatFormat | None
    ) -> Value | None:
        """The result of an operation on it and others that is known without an equation."""
        return None

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the axes."""
        return self.node.type.shape

    @property
    def format(self) -> Format:
        """The element format: a FloatFormat or "int32"."""
        return self.node.type.format

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.node.type.size

    def made(self, var: Var) -> Traced:
        """Another value of the trace."""
        return type(self)(self.builder, var)

    def __repr__(self) -> str:
        return f"Traced({self.node}: {self.node.type})"


class TwoTraces(ValueError):
    """Values of two traces in one operation."""


def builder_of(values: Sequence[Value]) -> Builder | None:
    """The trace the values belong to; None if all are arrays and numbers.

    Raises:
        TwoTraces: to several.
    """
    builders = {id(value.builder): value.builder for value in values if isinstance(value, Traced)}
    if len(builders) > 1:
        raise TwoTraces("values of two different traces meet in one operation")
    return next(iter(builders.values()), None)


def scope(values: Any, *, role: str | None = None, family: str | None = None, parameter: str | None = None,
          layer: str | None = None, checkpoint: RecomputedPart | None = None,
          of: int | None = None) -> AbstractContextManager[None]:  # fmt: skip
    """A context that marks the equations emitted inside it; does nothing when the values are arrays.

    Args:
        values: any nested value of the trace to be marked.
        role: see `ROLES`.
        family: what the precision table calls the equations ("loss", "norm", "softmax", ...).
        parameter: name of the parameter concerned.
        layer, checkpoint, of: see `Equation`.
    """
    builder = builder_of(flatten(values)[0])
    if builder is None:
        return nullcontext()
    return builder.scoped(role=role, family=family, parameter=parameter, layer=layer, checkpoint=checkpoint, of=of)


def name_scope(name: str, values: Any) -> AbstractContextManager[None]:
    """A context that names what is computed inside it, for rules of a `Precision`, tables and reports.

        with nn.name_scope("attention", x):
            x = nn.attention(q, k, v)  # its equations are "attention.dot", "attention.exp", ...

    Names in names are joined by dots; a derivative has the name of what it is the derivative of. Equations of a
    parameter have its path as a name too. Nothing else changes, and nothing at all where the values are arrays.

    Args:
        name: such as "blocks.0.attention".
        values: any nested value of the trace that computes it.

    Raises:
        ValueError: an empty name.
    """
    if not isinstance(name, str) or not name:
        raise ValueError(f"a name scope needs a name such as 'attention', not {name!r}")
    builder = builder_of(flatten(values)[0])
    if builder is None:
        return nullcontext()
    outer = builder.scope.layer
    return builder.scoped(layer=f"{outer}.{name}" if outer else name)


def lift(builder: Builder, value: Value) -> Atom:
    """A value as an operand of an equation."""
    if isinstance(value, Traced):
        if value.node in builder.gone:
            raise ValueError(
                f"{value.node} is a value inside a scan's function, which has one for each place: what is read of it "
                "after the scan must be part of its new state or of its result"
            )
        return value.atom
    if is_number(value):
        return Literal(float(value))
    array = as_array(value)
    fmt = format_of(array)
    # The format alone: its numbers stay whole until a precision rounds them, once, to what it says.
    if fmt == FLOAT64:
        fmt = FLOAT32
    return builder.constant(array, fmt)


def apply(op: str, *operands: Value, fmt: FloatFormat | None = None, **params: Any) -> Value:
    """One operation on values: an equation if one of them is traced, else computed now (see `eager.compute`)."""
    builder = builder_of(operands)
    if builder is None:
        return compute(op, operands, Params(params), fmt)
    for operand in operands:
        if isinstance(operand, Traced) and (known := operand.known(op, operands, params, fmt)) is not None:
            return known
    how = params.get("rounding")
    arithmetic = NEAREST if how is None else EquationArithmetic(how, once=True)
    atom = builder.emit(op, tuple(lift(builder, x) for x in operands), Params(params), fmt=fmt, arithmetic=arithmetic)
    return atom.value if isinstance(atom, Literal) else next(x for x in operands if isinstance(x, Traced)).made(atom)


def elementwise(op: str, *operands: Value, fmt: FloatFormat | None = None) -> Value:
    """An elementwise operation with NumPy's broadcasting written out as equations; numbers stay numbers.

    Traced, adding or subtracting the number 0 and multiplying or dividing by 1 is nothing.
    """
    for position, neutral in OPS[op].neutral.items():
        if (
            is_number(operands[position])
            and operands[position] == neutral
            and isinstance(operands[1 - position], Traced)
        ):
            return operands[1 - position]
    shapes = {shape_of(x) for x in operands} - {()}
    if len(shapes) > 1:
        try:
            shape = np.broadcast_shapes(*shapes)
        except ValueError:
            raise ValueError(f"{op}: the shapes {' and '.join(map(str, map(shape_of, operands)))} do not fit") from None
        operands = tuple(x if shape_of(x) == () else broadcast(x, shape) for x in operands)
    return apply(op, *operands, fmt=fmt)


def shape_of(value: Value) -> tuple[int, ...]:
    """The shape of a value, () for a number."""
    if isinstance(value, Traced | np.ndarray):
        return value.shape
    return () if is_number(value) else as_array(value).shape


def axes_of(value: Value, axis: int | Sequence[int] | None) -> tuple[int, ...]:
    """The axes that are meant, ascending and from 0 on; None: all.

    Raises:
        ValueError: one that there is not.
    """
    ndim = len(shape_of(value))
    axes = tuple(range(ndim)) if axis is None else _numbers("axis", axis)
    if any(not -ndim <= a < ndim for a in axes):
        raise ValueError(f"axis {shown(axis)} is no axis of the shape {shape_of(value)}")
    return tuple(sorted(a % ndim for a in axes))


def _numbers(name: str, given: Any) -> tuple[int, ...]:
    """One whole number or several."""
    if isinstance(given, int | np.integer):
        return (integer(name, given),)
    return tuple(integer(name, each) for each in listed(name, given))


def reduce_sum(x: Value, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Value:
    """The sum over axes (all by default), in the order its Accumulation says."""
    axes = axes_of(x, axis)
    return apply("reduce_sum", x, axis=axes, keepdims=truth("keepdims", keepdims)) if axes else x


def reduce_max(x: Value, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Value:
    """The maximum over axes (all by default); NaN if there is one. Equal maxima share its gradient equally."""
    axes = axes_of(x, axis)
    return apply("reduce_max", x, axis=axes, keepdims=truth("keepdims", keepdims)) if axes else x


def mean(x: Value, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Value:
    """The mean over axes (all by default): the sum times the reciprocal of the number of elements."""
    count = math.prod(shape_of(x)[a] for a in axes_of(x, axis))
    if count == 0:
        raise ValueError(f"no mean over no elements (shape {shape_of(x)}, axis {axis})")
    return elementwise("multiply", reduce_sum(x, axis, keepdims), 1.0 / count)


def transpose(x: Value, perm: Sequence[int] | None = None) -> Value:
    """The axes in another order, reversed by default."""
    order = tuple(reversed(range(len(shape_of(x))))) if perm is None else _numbers("perm", perm)
    return x if order == tuple(range(len(order))) else apply("transpose", x, perm=order)


def swap(x: Value) -> Value:
    """The last two axes exchanged.

    Raises:
        ValueError: fewer than two.
    """
    axes = range(len(shape_of(x)))
    if len(axes) < 2:
        raise ValueError(f"two axes at least are exchanged, the shape is {shape_of(x)}")
    return transpose(x, (*axes[:-2], axes[-1], axes[-2]))


def reshape(x: Value, shape: int | Sequence[int]) -> Value:
    """The same elements in C order in another shape; one size may be -1."""
    new = _numbers("shape", shape)
    if new.count(-1) == 1:
        rest = math.prod(n for n in new if n != -1)
        new = tuple(math.prod(shape_of(x)) // rest if n == -1 and rest else n for n in new)
    return x if new == shape_of(x) else apply("reshape", x, shape=new)


def broadcast(x: Value, shape: Sequence[int]) -> Value:
    """The value repeated along new or length-one axes, as NumPy does."""
    return x if tuple(shape) == shape_of(x) else apply("broadcast", x, shape=tuple(shape))


def power(x: Value, exponent: float) -> Value:
    """x to a power that is a small integer, 0.5 or -0.5."""
    if isinstance(exponent, (int, float)):
        if exponent in (0.5, -0.5):
            return apply("sqrt" if exponent > 0 else "rsqrt", x)
        if math.isfinite(exponent) and exponent == int(exponent) and 1 <= abs(exponent) <= 16:
            result = x
            # From the highest bit on, which is x itself: 16 takes four roundings, where products one by one take
            # fifteen.
            for bit in bin(abs(int(exponent)))[3:]:
                result = apply("square", result)
                result = elementwise("multiply", result, x) if bit == "1" else result
            return result if exponent > 0 else apply("reciprocal", result)
    raise ValueError(
        f"a power must be a whole number from 1 to 16, its negative, 0.5 or -0.5, not {exponent!r}; "
        "np.exp(y * np.log(x)) is that of positive numbers"
    )


def matmul(a: Value, b: Value) -> Value:
    """The matrix product with NumPy's rules for one axis and for leading axes.

    A matrix b shared by all leading axes of a is one product with the leading axes folded into rows.
    """
    shape_a, shape_b = shape_of(a), shape_of(b)
    if not shape_a or not shape_b:
        raise ValueError(f"dot: {shape_a} @ {shape_b}: both need at least one axis")
    if len(shape_a) == 1:
        product = matmul(reshape(a, (1, -1)), b)
        return reshape(product, (*shape_of(product)[:-2], shape_of(product)[-1]) if len(shape_b) > 1 else ())
    if len(shape_b) == 1:
        product = matmul(a, reshape(b, (-1, 1)))
        return reshape(product, shape_of(product)[:-1])
    if shape_a[-1] != shape_b[-2]:
        turned = "; the second operand's .T would fit" if shape_a[-1] == shape_b[-1] else ""
        raise ValueError(f"dot: {shape_a} @ {shape_b}: inner sizes {shape_a[-1]} and {shape_b[-2]} differ{turned}")
    if len(shape_b) == 2 and len(shape_a) > 2:
        # One product for all: a sum per weight over all rows in its gradient, where one for each leading index would
        # have to be added up again.
        rows = math.prod(shape_a[:-1])
        return reshape(apply("dot", reshape(a, (rows, shape_a[-1])), b), (*shape_a[:-1], shape_b[-1]))
    try:
        lead = np.broadcast_shapes(shape_a[:-2], shape_b[:-2])
    except ValueError:
        raise ValueError(f"dot: {shape_a} @ {shape_b}: leading sizes do not fit") from None
    return apply("dot", broadcast(a, (*lead, *shape_a[-2:])), broadcast(b, (*lead, *shape_b[-2:])))


def index_basic(x: Value, index: Any) -> Value:
    """x[index] for whole numbers, slices with a positive step, None and ...; or one array or list of row numbers.

    Raises:
        TypeError, ValueError: see `indexing.select`.
    """
    if isinstance(index, list) and index and all(isinstance(i, int) and not isinstance(i, bool) for i in index):
        index = np.array(index, np.int32)
    if isinstance(index, (Traced, np.ndarray)):
        if (fmt := index.format if isinstance(index, Traced) else format_of(index)) != INT32:
            raise TypeError(
                f"an array as an index must hold int32 numbers, not {format_name(fmt)}: with a mask the shape would "
                "depend on numbers; np.where(mask, x, 0.0) keeps it"
            )
        return apply("gather", x, index)
    bounds, shape = select(shape_of(x), index)
    if any(bound != (0, n, 1) for bound, n in zip(bounds, shape_of(x), strict=True)):
        start, stop, step = zip(*bounds, strict=True)
        x = apply("slice", x, start=start, stop=stop, step=step)
    return reshape(x, shape)


def where(condition: Value, a: Value, b: Value) -> Value:
    """a where the condition is not 0, else b."""
    return elementwise("select", condition, a, b)


def logical_and(a: Value, b: Value) -> Value:
    """b where a is not 0, else 0: of truth values (1 and 0, as comparisons give), whether both are true."""
    return where(a, b, 0.0)


def logical_or(a: Value, b: Value) -> Value:
    """1 where a is not 0, else b: of truth values, whether one of them is true."""
    return where(a, 1.0, b)


def logical_not(a: Value) -> Value:
    """1 where a is 0, else 0."""
    return elementwise("equal", a, 0.0)


def topk(x: Value, k: int, *, largest: bool = True) -> tuple[Value, Value]:
    """The k largest along the last axis, the largest first, and their int32 indices.

    Of equal ones the lowest index comes first, NaN before all numbers. The gradient goes to the chosen elements.

    Args:
        x: (..., n).
        k: from 1 to n.
        largest: False: the smallest, the smallest first (and NaN before all numbers).

    Raises:
        ValueError: a k that is not from 1 to n, or no axis.
    """
    of = x if truth("largest", largest) else elementwise("negative", x)
    indices = apply("top_indices", of, k=integer("k", k))
    return apply("take_along", x, indices), indices


def concatenate(values: Sequence[Value], axis: int = 0) -> Value:
    """Values joined along an axis.

    Raises:
        TypeError: no list of values.
        ValueError: none, no such axis, or shapes that do not fit.
    """
    values = listed("values", values)
    if not values or not shape_of(values[0]):
        raise ValueError(f"concatenate needs one value at least, with an axis, not {shown(values)}")
    return apply("concatenate", *values, axis=axes_of(values[0], integer("axis", axis))[0])


def convert(x: Value, fmt: Any) -> Value:
    """The value rounded to a format, in every precision; int32 numbers become float32 first, to nearest even.

    Traced, it asks for a format that the precision keeps to: what is computed from the value alone, or from it and
    others element by element, is in that format too where it is wider than the precision's, until another conversion.
    Gradients have the precision's formats.
    """
    if isinstance(x, Traced) and x.format == as_format(fmt):
        return apply("convert", x, fmt=as_format(fmt))
    return in_format(x, fmt)


def rounded(x: Traced, fmt: FloatFormat, rounding: Rounding) -> Value:
    """`convert` of a traced value that is rounded once, in a way of its own, with random bits of its own."""
    draws = {"operation": x.builder.number} if rounding.stochastic else {}
    return apply("convert", x, fmt=fmt, rounding=rounding, **draws)


def in_format(x: Value, fmt: Any) -> Value:
    """`convert` of a value that is in another format; one that has it already is left to the precision."""
    wanted = as_format(fmt)
    given = x.format if isinstance(x, Traced) else format_of(as_array(x))
    if given == INT32 and wanted not in (FLOAT32, FLOAT64):
        x = apply("convert", x, fmt=FLOAT32)
    return x if given == wanted else apply("convert", x, fmt=wanted)
