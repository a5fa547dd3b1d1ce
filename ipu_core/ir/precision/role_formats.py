"""What a precision says of each equation of a step: its formats, how its operands are cast, and rules for parts."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Self

from ipu_core.ir.block import Block, Equation
from ipu_core.ir.bodies import equations_of
from ipu_core.ir.ops import PRODUCTS
from ipu_core.ir.precision.operand_scaling import NOT_CAST, OperandScaling
from ipu_core.ir.precision.overrides import SWITCHES
from ipu_core.ir.precision.rules import (
    OF_COTANGENTS,
    PASSES,
    ROUNDINGS,
    SCALING,
    STATE,
    PrecisionRule,
    names_of,
    ruled,
    rules_of,
)
from lowprec import FloatFormat, Rounding
from lowprec import float16 as FLOAT16
from lowprec import float32 as FLOAT32
from lowprec.checks import expect, listed
from lowprec.values.accumulation import accumulator_format
from lowprec.values.rounding import NEAREST_EVEN

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
    """What a `Precision` says, as the passes that type a step read it; its attributes are told there."""

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
    running_mean: bool = False
    streamed: bool = False
    scaled_state: float = 1.0
    store_root: bool = False
    scaling: OperandScaling | None = None
    promote: int | None = None
    unit_scaled: bool = False
    rules: tuple[PrecisionRule, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.rules, str | PrecisionRule | Sequence):
            raise TypeError(f"rules must be a list of them, such as 'layers.0.*:weights=float32', not {self.rules!r}")
        texts = (self.rules,) if isinstance(self.rules, str | PrecisionRule) else self.rules
        object.__setattr__(self, "rules", tuple(rule for text in texts for rule in rules_of(text, FORMATS)))
        self._check_fields()
        for number, rule in enumerate(self.rules):
            if rule.field not in FIELDS:
                raise ValueError(f"unknown field {rule.field!r} in {str(rule)!r}; there are {ruled(FORMATS)}")
            # Rules are taken in order: one for casts needs something before it that casts.
            if rule.field in SCALING[1:] and not self._scalings(self.rules[:number]):
                raise ValueError(f"the rule {str(rule)!r} is for operands that are cast; {NOT_CAST}")
            for scaling in (*self._scalings(self.rules[:number]),) or (None,):
                replace(self, name="", rules=(), scaling=scaling)._ruled(rule)  # refuses a value not for the field

    def _check_fields(self) -> None:
        for field in FORMATS:
            fmt = getattr(self, field)
            if not isinstance(fmt, FloatFormat):
                raise TypeError(f"{field} must be a FloatFormat such as lowprec.float16, not {fmt!r}")
            if not FLOAT32.contains(fmt):
                raise ValueError(f"{field} cannot be {fmt.name}: it has values that float32, the widest here, lacks")
        accumulator_format(self.partials)
        if self.rounding not in ROUNDINGS.values():
            raise ValueError(f"the machine rounds {' or '.join(ROUNDINGS)}, not as {self.rounding!r}")
        for field in ("streamed", *SWITCHES):
            if not isinstance(getattr(self, field), bool):
                raise TypeError(f"{field} must be True or False, not {getattr(self, field)!r}")
        if type(self.scaled_state) not in (int, float) or not 0 < self.scaled_state <= LARGEST_SCALE:
            raise ValueError(f"scaled_state must be a number in (0, 2^60], not {self.scaled_state!r}")
        if not isinstance(self.scaling, OperandScaling | None):
            raise TypeError(f"scaling must be an OperandScaling or None, not {self.scaling!r}")
        if self.promote is not None and (type(self.promote) is not int or self.promote < 1):
            raise ValueError(f"promote must be a number of products of at least 1, not {self.promote!r}")

    def rule(self, role: str, family: str) -> Rule:
        """What the table says for an equation of that role and family."""
        expect(str, role=role, family=family)
        backwards = role in ("grad_input", "grad_weight")
        results = self.gradients if backwards else self.operands
        # The first that fits counts: what is kept of a parameter comes before the rest of the optimizer's arithmetic.
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
            case "optimizer", _:
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

    @property
    def rounding_name(self) -> str:
        """How its name says that it rounds, nearest or stochastic."""
        return next(name for name, rounding in ROUNDINGS.items() if rounding == self.rounding)

    @property
    def stochastic(self) -> bool:
        """Whether anything is rounded stochastically."""
        said = [self.rounding, *(rule.value for rule in self.rules if isinstance(rule.value, Rounding))]
        cast = [rule.value for rule in self.rules if rule.field in ("forward_rounding", "backward_rounding")]
        cast += [r for one in self._scalings(self.rules) for r in (one.forward_rounding, one.backward_rounding)]
        return "stochastic" in cast or any(one.stochastic for one in said)

    def at(self, equation: Equation) -> Self:
        """The precision without rules that an equation has."""
        expect(Equation, equation=equation)
        if not self.rules:
            return self
        names = (equation.role, *names_of(equation))
        if names not in self._known:
            fitting = tuple(rule for rule in self.rules if rule.matches(equation))
            if fitting not in self._parts:
                self._parts[fitting] = functools.reduce(type(self)._ruled, fitting, replace(self, name="", rules=()))
            self._known[names] = self._parts[fitting]
        return self._known[names]

    @cached_property
    def _known(self) -> dict[tuple[str, ...], Self]:
        """What `at` gave, by an equation's role and names: all that rules look at."""
        return {}

    @cached_property
    def _parts(self) -> dict[tuple[PrecisionRule, ...], Self]:
        """The same by the rules that are for an equation."""
        return {}

    def _ruled(self, rule: PrecisionRule) -> Self:
        """The precision with what a rule says; of operands that are not cast, that they are not."""
        said: dict[str, Any] = {rule.field: rule.value}
        if rule.field not in SCALING[1:]:
            return replace(self, **said)
        return self if self.scaling is None else replace(self, scaling=replace(self.scaling, **said))

    def _scalings(self, rules: Sequence[PrecisionRule]) -> list[OperandScaling]:
        """How operands are cast by the precision itself and by rules."""
        every = (self.scaling, *(rule.value for rule in rules))
        return [one for one in every if isinstance(one, OperandScaling)]

    def sets(self, rule: PrecisionRule, block: Block) -> bool:
        """Whether one more rule would set something in a training step."""
        reads = functools.partial(self._reads, True, len(self.rules), rule.field)
        return any(rule.matches(equation) and reads(equation) for equation in equations_of(block))

    def _reads(self, trained: bool, number: int, field: str, equation: Equation) -> bool:
        """Whether an equation has a field as far as the rules before that of a number leave it one."""
        role, family = equation.role, equation.family
        if field in STATE and not trained:
            return True  # what updates it is not there
        if field in OF_COTANGENTS and role == "forward":
            return False
        if field in SCALING:
            before = replace(self, name="", rules=self.rules[:number])
            return may_be_cast(equation) and (field == "scaling" or before.at(equation).scaling is not None)
        plain = RoleFormats("").rule(role, family)
        if field in ("operands", "gradients"):
            return plain.convert
        # Whether a field counts for an equation is found by setting it: half precision shows in what the table says, or
        # not.
        other: dict[str, Any] = {field: FLOAT16}
        return field == "rounding" or plain != RoleFormats("", **other).rule(role, family)

    def weights_of(self, parameter: str) -> FloatFormat:
        """The format in which a parameter is kept, by its dotted name."""
        said = [rule.value for rule in self.rules if rule.field == "weights" and rule.names(parameter)]
        fmt = said[-1] if said else self.weights
        assert isinstance(fmt, FloatFormat)
        return fmt


def may_be_cast(equation: Equation) -> bool:
    """Whether the operands of an equation are cast where a precision says how: it is a product of a layer."""
    return equation.op in PRODUCTS and equation.role in PASSES and equation.family in ("matmul", "conv")


FORMATS = tuple(f.name for f in fields(RoleFormats) if f.type in (FloatFormat, "FloatFormat"))
"""The fields that are formats, which an override may name."""
FIELDS = (*FORMATS, "rounding", *SCALING)
"""Those that a rule may."""

LARGEST_SCALE = 2**60  # its square is a float32
