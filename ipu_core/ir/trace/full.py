"""A traced array full of one number: what the gradient of a sum begins as, before anything is computed with it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ipu_core.ir.block import Array, Atom, Params, Type, Var
from ipu_core.ir.ops import CUSTOM, ELEMENTWISE, WHOLE_VIEWS, infer
from ipu_core.ir.trace.builder import Builder
from ipu_core.ir.trace.traced import TracedArray
from ipu_core.ir.trace.values import Traced, Value, broadcast, elementwise
from lowprec import FloatFormat
from lowprec import float32 as FLOAT32


class Full(TracedArray):
    """An array full of one number, of format float32 as a program's constants are: its number is kept whole.

    Elementwise operations take the number, moves and sums of it are full again; only what needs an array (a product, a
    slice) makes it a constant of the Block.
    """

    __slots__ = ("_array", "number")

    def __init__(self, builder: Builder, number: float, shape: tuple[int, ...]) -> None:
        super().__init__(builder, Var(f"full of {number}", Type(shape, FLOAT32)))
        self.number = number
        self._array: Array | None = None

    def made(self, var: Var) -> Traced:
        """A value of the trace that is computed."""
        return TracedArray(self.builder, var)

    @property
    def atom(self) -> Atom:
        """A constant of the Block, made when first asked for; without axes, the number."""
        if self._array is None:
            self._array = np.full(self.shape, self.number)
        return self.builder.constant(self._array, FLOAT32)

    def known(
        self, op: str, operands: Sequence[Value], params: Mapping[str, Any], fmt: FloatFormat | None
    ) -> Value | None:
        """The result of an operation that needs no array."""
        if op == "convert":
            return None if "rounding" in params else self  # a number has no format
        if op == CUSTOM:
            return operands[0] if isinstance(operands[0], Full) else None  # what is kept may be full too
        if op in ELEMENTWISE:
            shape = next((x.shape for x in operands if isinstance(x, Traced) and x.shape), ())
            result = elementwise(op, *(x.number if isinstance(x, Full) else x for x in operands), fmt=fmt)
            return broadcast(result, shape) if isinstance(result, Traced) else Full(self.builder, float(result), shape)
        if op in WHOLE_VIEWS:
            return Full(self.builder, self.number, infer(op, (self.node.type,), Params(params)).shape)
        if op == "reduce_sum":
            terms = math.prod(self.shape[axis] for axis in params["axis"])
            return Full(self.builder, self.number * terms, infer(op, (self.node.type,), Params(params)).shape)
        return None
