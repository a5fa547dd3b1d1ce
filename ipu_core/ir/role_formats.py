"""The formats of a training step, and what they say for an equation of a role and family."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

from ipu_core.ir.rules import ROUNDINGS
from lowprec import FloatFormat, Rounding
from lowprec import float32 as FLOAT32
from lowprec.checks import expect, listed
from lowprec.spec.accumulation import accumulator_format
from lowprec.spec.rounding import NEAREST_EVEN

PLAIN = frozenset({"add", "subtract", "multiply", "scale", "square"})
"""Half operations the machine does in half registers, apparently to nearest even even when stochastic rounding is on
(derived from comments in PopLibs). Everything else computes in float32 and converts, which is stochastic."""


@dataclass(frozen=True)
class Rule:
    """What a precision's table says for one kind of equation.

    Attributes:
        output: format of the result.
        accumulate: format of the partial sums of a product or reduction.
        convert: whether the equation works in the narrow formats: products and reductions then convert all their
            operands, the others only inputs of the Block (weights, data) and take results as they are.
    """

    output: FloatFormat
    accumulate: FloatFormat = FLOAT32
    convert: bool = True


@dataclass(frozen=True)
class RoleFormats:
    """What a `Precision` says of formats and rounding, where its attributes are told."""

    name: str
    operands: FloatFormat = FLOAT32
    gradients: FloatFormat = FLOAT32
    partials: FloatFormat = FLOAT32
    output: FloatFormat = FLOAT32
    weights: FloatFormat = FLOAT32
    gradient_sum: FloatFormat = FLOAT32
    first_moment: FloatFormat = FLOAT32
    second_moment: FloatFormat = FLOAT32
    rounding: Rounding = NEAREST_EVEN

    def check_formats(self) -> None:
        """Refuses formats and roundings that the machine does not have.

        Raises:
            TypeError, ValueError: see `Precision`.
        """
        for field in FORMATS:
            fmt = getattr(self, field)
            if not isinstance(fmt, FloatFormat):
                raise TypeError(f"{field} must be a FloatFormat such as lowprec.float16, not {fmt!r}")
            if not FLOAT32.contains(fmt):
                raise ValueError(f"{field} cannot be {fmt.name}: it has values that float32, the widest here, lacks")
        accumulator_format(self.partials)
        if self.rounding not in ROUNDINGS.values():
            raise ValueError(f"the machine rounds {' or '.join(ROUNDINGS)}, not as {self.rounding!r}")

    def rule(self, role: str, family: str) -> Rule:
        """What the table says for an equation of that role and family."""
        expect(str, role=role, family=family)
        backwards = role in ("grad_input", "grad_weight")
        results = self.gradients if backwards else self.operands
        match role, family:
            case "update", _:
                return Rule(self.weights, convert=False)
            case _, "compensation":
                return Rule(self.weights, convert=False)
            case _, "first_moment":
                return Rule(self.first_moment, convert=False)
            case _, "second_moment":
                return Rule(self.second_moment, convert=False)
            case _, "gradient_sum":
                return Rule(self.gradient_sum, convert=False)
            case "optimiser", _:
                return Rule(FLOAT32, convert=False)
            case _, "loss" | "norm" | "softmax":
                return Rule(FLOAT32, convert=False)
            case _, "matmul" | "conv":
                return Rule(self.output, self.partials)
            case _, "reduction":
                return Rule(results, self.partials)
            case _:
                return Rule(results)

    def rounding_of(self, op: str, operands: Sequence[FloatFormat], output: FloatFormat) -> Rounding:
        """How a rounded result of that operation is rounded."""
        expect(str, op=op)
        operands = listed("operands", operands)
        expect(FloatFormat, output=output, **{f"operands[{i}]": fmt for i, fmt in enumerate(operands)})
        if output.contains(FLOAT32) or (op in PLAIN and all(output.contains(fmt) for fmt in operands)):
            return NEAREST_EVEN
        return self.rounding


FORMATS = tuple(f.name for f in fields(RoleFormats) if f.type in (FloatFormat, "FloatFormat"))
"""The fields that are formats, which an override may name."""
