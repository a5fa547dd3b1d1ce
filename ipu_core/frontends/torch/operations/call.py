"""What functions of the table know of a call besides its arguments, and helpers for values of several kinds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ipu_core.ir.trace.builder import Builder
from ipu_core.ir.trace.values import Traced, Value, apply, elementwise, in_format, matmul, reshape, scope, shape_of
from lowprec import float32 as FLOAT32


class NodeCall(NamedTuple):
    """A call of an operation: its node in the graph of torch, and the trace that it joins."""

    node: Any
    builder: Builder

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the result.

        Raises:
            NotImplementedError: torch does not know it.
        """
        shape = tuple(self.node.meta["val"].shape)
        if not all(isinstance(n, int) for n in shape):
            raise NotImplementedError("the shape of its result depends on numbers in tensors")
        return shape

    def kind(self, position: int | None = None) -> str:
        """What the elements of an operand, or of the result, are for torch: "bool", "int" or "float"."""
        if position is None:
            given = self.node
        else:
            given = in_order(self.node.target._schema, self.node.args, self.node.kwargs)[position]
        if not hasattr(given, "meta"):
            return type(given).__name__
        fake = given.meta["val"]
        fake = fake[0] if isinstance(fake, list | tuple) else fake
        name = str(fake.dtype).removeprefix("torch.")
        return "bool" if name == "bool" else "float" if "float" in name else "int"

    @property
    def width(self) -> Any:
        """The dtype of constants that take part in the result: float64 where that is of float64, else float32."""
        found = self.node.meta.get("val")
        found = found[0] if isinstance(found, list | tuple) else found
        return np.float64 if "float64" in str(getattr(found, "dtype", "")) else np.float32

    def full(self, number: float, shape: tuple[int, ...]) -> Value:
        """A traced array full of a number, which float32 has."""
        atom = self.builder.constant(np.full(shape, number, np.float32), FLOAT32)
        assert shape
        return Traced(self.builder, atom)  # type: ignore[arg-type]  # an array with axes is a value


def in_order(schema: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """All arguments by position, as the schema of an operation lists them."""
    rest = schema.arguments[len(args) :]
    return [*args, *(kwargs.get(argument.name, argument.default_value) for argument in rest)]


def is_integer(value: Value) -> bool:
    """Whether a value holds int32 numbers."""
    if isinstance(value, Traced):
        return isinstance(value.format, str)
    return isinstance(value, np.ndarray) and value.dtype.kind in "iu"


def numbers(value: Value) -> Value:
    """A value as floats: integers become float32, whole up to 2^24."""
    if not is_integer(value):
        return value
    return in_format(value, FLOAT32) if isinstance(value, Traced) else value.astype(np.float32)


def ones_at(rows: Value, classes: int) -> Value:
    """One-hot rows: 1 where the index along a new last axis is the number, else 0; computed integers are floats."""
    if is_integer(rows):
        return apply("one_hot", rows, classes=classes)
    # float32 whatever the precision: a half holds class numbers up to 2,048 alone
    with scope(rows, family="loss"):
        return elementwise("equal", reshape(rows, (*shape_of(rows), 1)), np.arange(classes, dtype=np.float32))


def looked_up(table: Value, rows: Value) -> Value:
    """Rows of a table by number; by computed numbers it is a product with ones and zeros."""
    if is_integer(rows):
        return apply("gather", table, rows)
    # a product needs a matrix: what a row has is one line of it
    if len(shape_of(table)) != 2:
        one = reshape(table, (shape_of(table)[0], -1))
        return reshape(looked_up(one, rows), (*shape_of(rows), *shape_of(table)[1:]))
    # a gather takes int32 indices, and computed numbers are floats here
    return matmul(ones_at(rows, shape_of(table)[0]), table)


def combined(op: str, *values: Value) -> Value:
    """An elementwise operation; integer operands are converted to float32."""
    if any(isinstance(x, Traced) and is_integer(x) for x in values):
        with scope(list(values), family="loss"):
            return elementwise(op, *map(numbers, values))
    return elementwise(op, *map(numbers, values))


def axis(value: Value, dim: int) -> int:
    """An axis counted from the first one."""
    ndim = len(shape_of(value))
    return dim % ndim if ndim else 0


def axes(value: Value, dims: Any) -> tuple[int, ...]:
    """Axes counted from the first one; all where none are given."""
    given = range(len(shape_of(value))) if dims is None or dims == [] else [dims] if isinstance(dims, int) else dims
    return tuple(sorted(axis(value, dim) for dim in given)) if shape_of(value) else ()
