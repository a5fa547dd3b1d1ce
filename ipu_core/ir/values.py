"""Values and the functions on them: traced values append equations, NumPy arrays are computed with at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from ipu_core.ir.block import Atom, Format, Literal, Params, Var
from ipu_core.ir.builder import Builder
from ipu_core.ir.eager import as_array, compute, format_of, is_number
from ipu_core.ir.indexing import select
from ipu_core.ir.ops import ELEMENTWISE, OPS
from ipu_core.ir.pytree import flatten
from lowprec import FloatFormat, as_format
from lowprec import float32 as FLOAT32
from lowprec import float64 as FLOAT64

Value = Any
"""What the functions below take and give: a Traced value, a NumPy array or a Python number."""


class Traced:
    """A value of a function that is being traced: a shape and a format, and no numbers.

    Python's operators, `@`, basic indexing, comparisons, the usual array methods and NumPy's own functions
    (`np.exp(x)`, `np.sum(x, 0)`) all append equations to the Block.
    """

    __slots__ = ("builder", "var")

    def __init__(self, builder: Builder, var: Var) -> None:
        self.builder = builder
        self.var = var

    @property
    def atom(self) -> Atom:
        """The operand of an equation that it is."""
        return self.var

    def known(
        self, op: str, operands: Sequence[Value], params: Mapping[str, Any], fmt: FloatFormat | None
    ) -> Value | None:
        """The result of an operation on it and others that is known without an equation."""
        return None

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the axes."""
        return self.var.type.shape

    @property
    def format(self) -> Format:
        """The element format: a FloatFormat or "int32"."""
        return self.var.type.format

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.var.type.size

    @property
    def T(self) -> Value:
        """The axes in reverse order."""
        return transpose(self)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("a traced value without axes has no len()")
        return self.shape[0]

    def __repr__(self) -> str:
        return f"Traced({self.var}: {self.var.type})"

    def __bool__(self) -> bool:
        raise TypeError(f"{self!r} has no numbers yet: use where(condition, a, b) instead of if, and, or, not")

    def __float__(self) -> float:
        raise TypeError(f"{self!r} has no numbers yet: it cannot become a Python number while a function is traced")

    __int__ = __index__ = __float__

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(f"{self!r} has no numbers yet: it cannot become a NumPy array while a function is traced")

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        if method != "__call__" or kwargs or ufunc.__name__ not in UFUNCS:
            raise TypeError(f"np.{ufunc.__name__} cannot be traced; these can: {', '.join(sorted(UFUNCS))}")
        return UFUNCS[ufunc.__name__](*inputs)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if function.__name__ not in FUNCTIONS:
            raise TypeError(f"np.{function.__name__} cannot be traced; these can: {', '.join(sorted(FUNCTIONS))}")
        return FUNCTIONS[function.__name__](*args, **kwargs)

    def __add__(self, other: Value) -> Value:
        return elementwise("add", self, other)

    def __radd__(self, other: Value) -> Value:
        return elementwise("add", other, self)

    def __sub__(self, other: Value) -> Value:
        return elementwise("subtract", self, other)

    def __rsub__(self, other: Value) -> Value:
        return elementwise("subtract", other, self)

    def __mul__(self, other: Value) -> Value:
        return elementwise("multiply", self, other)

    def __rmul__(self, other: Value) -> Value:
        return elementwise("multiply", other, self)

    def __truediv__(self, other: Value) -> Value:
        return elementwise("divide", self, other)

    def __rtruediv__(self, other: Value) -> Value:
        return elementwise("divide", other, self)

    def __neg__(self) -> Value:
        return elementwise("negative", self)

    def __abs__(self) -> Value:
        return elementwise("absolute", self)

    def __pow__(self, exponent: float) -> Value:
        return power(self, exponent)

    def __matmul__(self, other: Value) -> Value:
        return matmul(self, other)

    def __rmatmul__(self, other: Value) -> Value:
        return matmul(other, self)

    def __gt__(self, other: Value) -> Value:
        return elementwise("greater", self, other)

    def __lt__(self, other: Value) -> Value:
        return elementwise("greater", other, self)

    def __ge__(self, other: Value) -> Value:
        return elementwise("maximum", self > other, elementwise("equal", self, other))

    def __le__(self, other: Value) -> Value:
        return elementwise("maximum", self < other, elementwise("equal", self, other))

    def __eq__(self, other: object) -> Any:
        return elementwise("equal", self, other)

    def __ne__(self, other: object) -> Any:
        return 1.0 - elementwise("equal", self, other)

    __hash__ = None  # type: ignore[assignment]

    def __getitem__(self, index: Any) -> Value:
        return index_basic(self, index)

    def reshape(self, *shape: Any) -> Value:
        """The same elements in C order in another shape; one size may be -1."""
        return reshape(self, shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape)

    def transpose(self, *perm: Any) -> Value:
        """The axes in another order (reversed if none is given)."""
        return transpose(self, perm[0] if len(perm) == 1 and not isinstance(perm[0], int) else perm or None)

    def sum(self, axis: Any = None, keepdims: bool = False) -> Value:
        """The sum over axes."""
        return reduce_sum(self, axis, keepdims)

    def mean(self, axis: Any = None, keepdims: bool = False) -> Value:
        """The mean over axes."""
        return mean(self, axis, keepdims)

    def max(self, axis: Any = None, keepdims: bool = False) -> Value:
        """The maximum over axes; NaN if there is one."""
        return reduce_max(self, axis, keepdims)


def builder_of(values: Sequence[Value]) -> Builder | None:
    """The trace the values belong to; None if all are arrays and numbers."""
    builders = {id(value.builder): value.builder for value in values if isinstance(value, Traced)}
    if len(builders) > 1:
        raise ValueError("values of two different traces meet in one operation")
    return next(iter(builders.values()), None)


def scope(values: Any, *, role: str | None = None, family: str | None = None,
          parameter: str | None = None) -> AbstractContextManager[None]:  # fmt: skip
    """A context that marks the equations emitted inside it; does nothing when the values are arrays.

    Args:
        values: any nested value of the trace to be marked.
        role: see `ROLES`.
        family: what the precision table calls the equations ("loss", "norm", "softmax", ...).
        parameter: name of the parameter concerned.
    """
    builder = builder_of(flatten(values)[0])
    return builder.scoped(role=role, family=family, parameter=parameter) if builder else nullcontext()


def lift(builder: Builder, value: Value) -> Atom:
    """A value as an operand of an equation."""
    if isinstance(value, Traced):
        return value.atom
    if is_number(value):
        return Literal(float(value))
    array = as_array(value)
    fmt = format_of(array)
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
    atom = builder.emit(op, tuple(lift(builder, x) for x in operands), Params(params), fmt=fmt)
    return atom.value if isinstance(atom, Literal) else Traced(builder, atom)


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
    shapes = {np.shape(x) if not isinstance(x, Traced) else x.shape for x in operands} - {()}
    if len(shapes) > 1:
        try:
            shape = np.broadcast_shapes(*shapes)
        except ValueError:
            raise ValueError(f"{op}: the shapes {' and '.join(map(str, map(shape_of, operands)))} do not fit") from None
        operands = tuple(x if shape_of(x) == () else broadcast(x, shape) for x in operands)
    return apply(op, *operands, fmt=fmt)


def shape_of(value: Value) -> tuple[int, ...]:
    """The shape of a value, () for a number."""
    return value.shape if isinstance(value, Traced) else np.shape(value)


def _axes(value: Value, axis: int | Sequence[int] | None) -> tuple[int, ...]:
    ndim = len(shape_of(value))
    axes = range(ndim) if axis is None else (axis,) if isinstance(axis, int) else axis
    if any(not -ndim <= a < ndim for a in axes):
        raise ValueError(f"axis {axis} is no axis of the shape {shape_of(value)}")
    return tuple(sorted(a % ndim for a in axes))


def reduce_sum(x: Value, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Value:
    """The sum over axes (all by default), in the order its Accumulation says."""
    axes = _axes(x, axis)
    return apply("reduce_sum", x, axis=axes, keepdims=bool(keepdims)) if axes else x


def reduce_max(x: Value, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Value:
    """The maximum over axes (all by default); NaN if there is one. Equal maxima share its gradient equally."""
    axes = _axes(x, axis)
    return apply("reduce_max", x, axis=axes, keepdims=bool(keepdims)) if axes else x


def mean(x: Value, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Value:
    """The mean over axes (all by default): the sum times the reciprocal of the number of elements."""
    count = math.prod(shape_of(x)[a] for a in _axes(x, axis))
    if count == 0:
        raise ValueError(f"no mean over no elements (shape {shape_of(x)}, axis {axis})")
    return elementwise("multiply", reduce_sum(x, axis, keepdims), 1.0 / count)


def transpose(x: Value, perm: Sequence[int] | None = None) -> Value:
    """The axes in another order, reversed by default."""
    order = tuple(reversed(range(len(shape_of(x))))) if perm is None else tuple(int(a) for a in perm)
    return x if order == tuple(range(len(order))) else apply("transpose", x, perm=order)


def swap(x: Value) -> Value:
    """The last two axes exchanged."""
    axes = range(len(shape_of(x)))
    return transpose(x, (*axes[:-2], axes[-1], axes[-2]))


def reshape(x: Value, shape: int | Sequence[int]) -> Value:
    """The same elements in C order in another shape; one size may be -1."""
    new = (shape,) if isinstance(shape, int) else tuple(int(n) for n in shape)
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
        if exponent == int(exponent) and 1 <= abs(exponent) <= 16:
            result = x
            for bit in bin(abs(int(exponent)))[3:]:
                result = apply("square", result)
                result = elementwise("multiply", result, x) if bit == "1" else result
            return result if exponent > 0 else apply("reciprocal", result)
    raise ValueError(f"a power must be a whole number from 1 to 16, its negative, 0.5 or -0.5, not {exponent!r}")


def matmul(a: Value, b: Value) -> Value:
    """The matrix product with NumPy's rules for one axis and for leading axes.

    A matrix b shared by all leading axes of a is one product with the leading axes folded into rows.
    """
    shape_a, shape_b = shape_of(a), shape_of(b)
    if not shape_a or not shape_b:
        raise ValueError(f"dot: {shape_a} @ {shape_b}: both need at least one axis")
    if len(shape_a) == 1:
        product = matmul(reshape(a, (1, -1)), b)
        return reshape(product, (*shape_of(product)[:-2], shape_of(product)[-1]))
    if len(shape_b) == 1:
        product = matmul(a, reshape(b, (-1, 1)))
        return reshape(product, shape_of(product)[:-1])
    if shape_a[-1] != shape_b[-2]:
        raise ValueError(f"dot: {shape_a} @ {shape_b}: inner sizes {shape_a[-1]} and {shape_b[-2]} differ")
    if len(shape_b) == 2 and len(shape_a) > 2:
        rows = math.prod(shape_a[:-1])
        return reshape(apply("dot", reshape(a, (rows, shape_a[-1])), b), (*shape_a[:-1], shape_b[-1]))
    try:
        lead = np.broadcast_shapes(shape_a[:-2], shape_b[:-2])
    except ValueError:
        raise ValueError(f"dot: {shape_a} @ {shape_b}: leading sizes do not fit") from None
    return apply("dot", broadcast(a, (*lead, *shape_a[-2:])), broadcast(b, (*lead, *shape_b[-2:])))


def index_basic(x: Value, index: Any) -> Value:
    """x[index] for whole numbers, slices with a positive step, None and ...; or one array of int32 row numbers.

    Raises:
        TypeError, ValueError: see `indexing.select`.
    """
    if isinstance(index, (Traced, np.ndarray)):
        return apply("gather", x, index)
    bounds, shape = select(shape_of(x), index)
    if any(bound != (0, n, 1) for bound, n in zip(bounds, shape_of(x), strict=True)):
        start, stop, step = zip(*bounds, strict=True)
        x = apply("slice", x, start=start, stop=stop, step=step)
    return reshape(x, shape)


def where(condition: Value, a: Value, b: Value) -> Value:
    """a where the condition is not 0, else b."""
    return elementwise("select", condition, a, b)


def concatenate(values: Sequence[Value], axis: int = 0) -> Value:
    """Values joined along an axis."""
    return apply("concatenate", *values, axis=_axes(values[0], axis)[0])


def convert(x: Value, fmt: Any) -> Value:
    """The value rounded to a format; nothing happens if it has it already."""
    wanted = as_format(fmt)
    given = x.format if isinstance(x, Traced) else format_of(as_array(x))
    return x if given == wanted else apply("convert", x, fmt=wanted)


NUMPY = {name for name, function in vars(np).items() if isinstance(function, np.ufunc)}
UFUNCS: dict[str, Callable[..., Value]] = {
    **{op: (lambda *x, op=op: elementwise(op, *x)) for op in ELEMENTWISE & NUMPY},
    "matmul": matmul, "power": power, "less": lambda a, b: elementwise("greater", b, a),
}  # fmt: skip
FUNCTIONS: dict[str, Callable[..., Value]] = {
    "sum": reduce_sum, "mean": mean, "max": reduce_max, "amax": reduce_max, "transpose": transpose,
    "reshape": reshape, "broadcast_to": broadcast, "where": where, "concatenate": concatenate, "shape": shape_of,
    "ndim": lambda x: x.ndim,
}  # fmt: skip
