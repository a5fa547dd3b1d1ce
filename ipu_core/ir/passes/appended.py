"""Equations that a pass adds to a typed Block: each with a fresh number, its type inferred."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from ipu_core.ir.block import Atom, Equation, EquationArithmetic, Literal, Params, RecomputedPart, Var
from ipu_core.ir.ops import OPS, infer
from lowprec import FloatFormat, Rounding
from lowprec.values.rounding import NEAREST_EVEN, STOCHASTIC

ON_ONE_TILE = 256  # elements; the maximum of more is found in stages, of which all but the last spread over the tiles


@dataclass
class Appended:
    """Equations under construction.

    Attributes:
        number: of the next new equation.
        equations: so far.
    """

    number: int
    equations: list[Equation] = field(default_factory=list)

    def emit(
        self,
        op: str,
        *inputs: Atom,
        fmt: FloatFormat | None = None,
        role: str = "optimizer",
        family: str | None = None,
        parameter: str | None = None,
        checkpoint: RecomputedPart | None = None,
        rounding: Rounding = NEAREST_EVEN,
        once: bool = False,
        **params: Any,
    ) -> Var:
        """Appends an equation; gives its result. `once`: see `EquationArithmetic`."""
        kind = infer(op, tuple(x if isinstance(x, Literal) else x.type for x in inputs), Params(params), fmt)
        out = Var(str(self.number), kind)
        family = OPS[op].family if family is None else family
        equation = Equation(
            self.number, op, inputs, (out,), Params(params), role, family, parameter,
            EquationArithmetic(rounding, once=once or rounding not in (NEAREST_EVEN, STOCHASTIC)),
            checkpoint=checkpoint,
        )  # fmt: skip
        self.equations.append(equation)
        self.number += 1
        return out

    def largest(self, var: Var, **about: Any) -> Var:
        """The largest magnitude of a value, one number in its format; NaN if it holds one.

        Args:
            var: a float value that is not empty.
            about: role, family, parameter and checkpoint of the equations.
        """
        fmt = var.type.format
        assert isinstance(fmt, FloatFormat)
        size = self.emit("absolute", var, fmt=fmt, **about)
        # Rows near the root make the fewest stages. A prime number of elements has no rows: one tile looks at all.
        while size.type.size > ON_ONE_TILE and (each := _divisor(size.type.size)) > 1:
            rows = self.emit("reshape", size, shape=(size.type.size // each, each), **about)
            size = self.emit("reduce_max", rows, fmt=fmt, axis=(1,), keepdims=False, **about)
        if size.type.shape:
            every = tuple(range(len(size.type.shape)))
            size = self.emit("reduce_max", size, fmt=fmt, axis=every, keepdims=False, **about)
        return size


def _divisor(number: int) -> int:
    """The largest divisor that is no larger than the root."""
    return next(divisor for divisor in range(math.isqrt(number), 0, -1) if number % divisor == 0)
