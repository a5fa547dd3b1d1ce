"""The equations of a Block under construction: numbers, scopes, and one value for one meaning."""

from __future__ import annotations

import sys
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from types import FrameType
from typing import Any

from ipu_core.ir.block import (
    NEAREST,
    Array,
    Atom,
    Block,
    Equation,
    EquationArithmetic,
    Format,
    Literal,
    Params,
    RecomputedPart,
    Region,
    Type,
    Var,
)
from ipu_core.ir.bodies import flat, fresh, region
from ipu_core.ir.exact import exact
from ipu_core.ir.ops import OPS, STRUCTURE, infer
from lowprec import FloatFormat

PACKAGE = Path(__file__).parent.parent.parent
MACHINERY = tuple(f"{PACKAGE / room}/" for room in ("ir", "nn", "train", "frontends/torch"))
"""Whose lines nobody asks for: those of the functions that call them say more."""
TRACE = str(PACKAGE / "ir" / "trace" / "tracing.py"), "trace"


@dataclass(frozen=True, slots=True)
class Scope:
    """What the equations emitted now are for; family None means the operation's own."""

    role: str = "forward"
    family: str | None = None
    parameter: str | None = None
    layer: str | None = field(default=None, compare=False)  # one meaning is computed once, wherever it is asked for
    checkpoint: RecomputedPart | None = field(default=None, compare=False)
    of: int | None = field(default=None, compare=False)


class Builder:
    """Collects equations. A value computed twice in one scope is computed once; numbers go on from a given Block's."""

    def __init__(self, block: Block | None = None) -> None:
        self.equations: list[Equation] = list(block.equations) if block else []
        self.constants: dict[Var, Array] = dict(block.constants) if block else {}
        self.wholes: dict[Var, Var] = {}  # of inputs that a loop has in parts, by part
        self.scope = Scope()
        self.source: str | None = None
        self.number = fresh(self.equations)
        self._seen: dict[Hashable, Var] = {}
        self._captured: dict[int, tuple[Array, Var]] = {}
        self._outside: list[list[Equation]] = []  # of the bodies that are being made, the outermost first
        self.gone: set[Var] = set()  # values of bodies that are made

    @contextmanager
    def scoped(
        self, *, role: str | None = None, family: str | None = None, parameter: str | None = None,
        layer: str | None = None, checkpoint: RecomputedPart | None = None, of: int | None = None,
    ) -> Iterator[None]:  # fmt: skip
        """Marks the equations emitted inside; what is not given stays as it is outside, and so does a checkpoint."""
        outer = self.scope
        changes = {"role": role, "family": family, "parameter": parameter, "layer": layer, "of": of}
        inner: dict[str, Any] = {key: value for key, value in changes.items() if value is not None}
        self.scope = replace(outer, **inner, checkpoint=outer.checkpoint or checkpoint)
        try:
            yield
        finally:
            self.scope = outer

    @contextmanager
    def of_line(self, source: str | None) -> Iterator[None]:
        """Says of which line the equations emitted inside are; None: of the line that calls."""
        outer, self.source = self.source, source
        try:
            yield
        finally:
            self.source = outer

    @contextmanager
    def body(self) -> Iterator[list[Equation]]:
        """The equations emitted inside are those of a body; what was computed before it is not computed again."""
        equations, seen = self.equations, self._seen
        self._outside.append(equations)
        self.equations, self._seen = [], dict(seen)
        try:
            yield self.equations
        finally:
            self.equations, self._seen = self._outside.pop(), seen

    def add_region(self, kind: Region, op: str) -> None:
        """Appends a region, with a number that no other of the trace has."""
        self.equations.append(region(kind, op, [*chain(*self._outside, self.equations)]))

    def role_of(self, var: Var) -> str | None:
        """The role of the equation that gives a value; None for inputs and constants."""
        every = flat(chain(*self._outside, self.equations))
        return next((equation.role for equation in reversed([*every]) if equation.output == var), None)

    def constant(self, array: Array, fmt: Format) -> Atom:
        """A value that is part of the program: a captured array (one value however often it is used) or a number."""
        if array.ndim == 0 and fmt != "int32":
            return Literal(float(array))
        if id(array) not in self._captured:
            var = Var(f"constant{len(self.constants)}", Type(array.shape, fmt))
            self.constants[var] = array
            self._captured[id(array)] = (array, var)
        return self._captured[id(array)][1]

    def emit(
        self,
        op: str,
        inputs: tuple[Atom, ...],
        params: Params,
        *,
        fmt: FloatFormat | None = None,
        arithmetic: EquationArithmetic = NEAREST,
    ) -> Atom:
        """Appends one equation and returns its value. An operation on numbers alone is a number.

        Raises:
            ValueError, TypeError: the operands do not fit the operation, see `ops.check`.
        """
        type_ = infer(op, tuple(x.type if isinstance(x, Var) else x for x in inputs), params, fmt)
        if all(isinstance(x, Literal) for x in inputs) and "rounding" not in params:
            return Literal(float(exact(op, [x.value for x in inputs if isinstance(x, Literal)], params)))
        scope = Scope() if op in STRUCTURE else self.scope
        meaning = (op, inputs, params, fmt, arithmetic, scope)
        known = self._seen.get(meaning)
        if known is None:
            known = self._seen[meaning] = self.append(op, inputs, params, type_, arithmetic)
        return known

    def append(
        self, op: str, inputs: tuple[Atom, ...], params: Params, type_: Type, arithmetic: EquationArithmetic
    ) -> Var:
        """Appends one equation as it is, with the next number."""
        var = Var(str(self.number), type_)
        scope = self.scope
        family = scope.family if scope.family and op not in STRUCTURE else OPS[op].family
        equation = Equation(
            self.number, op, inputs, (var,), params, scope.role, family, scope.parameter, arithmetic,
            scope.layer, self.source or calling_line(), checkpoint=scope.checkpoint, of=scope.of,
        )  # fmt: skip
        self.equations.append(equation)
        self.number += 1
        return var


def calling_line() -> str | None:
    """The innermost line outside the machinery of tracing, as "model.py:41"; None if the traced function has none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if not code.co_filename.startswith(MACHINERY):
            return f"{Path(code.co_filename).name}:{frame.f_lineno}"
        if (code.co_filename, code.co_name) == TRACE:
            return None
        frame = frame.f_back
    return None
