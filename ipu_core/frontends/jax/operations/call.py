"""What the functions of the table know of an equation besides its operands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ipu_core.ir.trace.values import Traced, Value


class EquationCall(NamedTuple):
    """An equation of a jaxpr.

    Attributes:
        equation: the equation.
        bind: the equation's primitive in JAX, on other constants: bind(*arrays, **changed parameters).
        columns: of a gather or scatter, the values that its indices are put together from, each with a last axis of 1.
        from_end: whether all its indices count from the end below 0, as NumPy's do: JAX drops others there.
    """

    equation: Any
    bind: Any
    columns: Sequence[Value] = ()
    from_end: bool = False

    @property
    def params(self) -> dict[str, Any]:
        """The equation's parameters."""
        return dict(self.equation.params)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the first result."""
        return tuple(self.equation.outvars[0].aval.shape)

    def kind(self, position: int | None = None) -> str:
        """What the elements of an operand, or of the result, are for JAX: "bool", "int", "float" or "key"."""
        var = self.equation.outvars[0] if position is None else self.equation.invars[position]
        return kind_of(var.aval.dtype)


def kind_of(dtype: Any) -> str:
    """ "bool", "int", "float", or "key" for whatever else there is."""
    name = str(dtype)
    kinds = (("bool", "bool"), ("uint", "int"), ("int", "int"), ("float", "float"), ("bfloat", "float"))
    return next((kind for start, kind in kinds if name.startswith(start)), "key")


def as_value(constant: Any) -> Value:
    """A constant of JAX as an operand: truth values and floats in float32, integers in int32, without axes a number.

    Those of float64, which a function captured under jax_enable_x64 has, stay.

    Raises:
        TypeError: keys and other elements that are no numbers.
    """
    if isinstance(constant, Traced | bool | int | float):
        return constant
    kind = kind_of(constant.dtype)
    if kind == "key":
        raise TypeError(f"elements of {constant.dtype}")
    array = np.asarray(constant)
    if array.dtype != np.float64:
        array = array.astype(np.int32 if kind == "int" else np.float32)
    return array if array.ndim else array.item()
