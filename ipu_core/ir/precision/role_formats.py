"""What a precision says of each equation of a step: its formats, how its operands are cast, and rules for parts."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Self

from ipu_core.ir.block import Block, Equation, is_wide
from ipu_core.ir.bodies import equations_of
from ipu_core.ir.ops import PRODUCTS
from ipu_core.ir.own_rounding import OwnRounding
from ipu_core.ir.precision.operand_scaling import NOT_CAST, OperandScaling
from ipu_core.ir.precision.overrides import SWITCHES, with_format
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
from ipu_core.ir.precision.said_rounding import RoundedFormat, as_rounded, written
from ipu_core.ir.precision.whitening import NORMS
from lowprec import Accumulation, FloatFormat, Rounding
from lowprec import float16 as FLOAT16
from lowprec import float32 as FLOAT32
from lowprec.checks import expect, listed
from lowprec.values.accumulation import accumulator_format
from lowprec.values.rounding import NEAREST_EVEN

ALIGNED = re.compile(r"aligned([0-9]{1,3})")
"""An aligned adder as a precision says it, with the bits that it keeps."""

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
        rounding: how the result is rounded, where its role has a rounding of its own.
        partials: the same of the partial sums.
    """

    output: FloatFormat
    accumulate: FloatFormat = FLOAT32
    convert: bool = True
    rounding: Rounding | None = None
    partials: Rounding | None = None


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
    group: int | None = None
    splits: int | None = None
    adder: str | None = None
    unit_scaled: bool = False
    everywhere: bool = False
    norms: str = NORMS[0]
    roundings: tuple[tuple[str, Rounding], ...] = ()
    rules: tuple[PrecisionRule, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "roundings", self._sorted_roundings())
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
        accumulator_format(self.partials)
        if not isinstance(self.rounding, Rounding):
            raise TypeError(f"rounding must be a lowprec.Rounding, not {self.rounding!r}")
        self._check_sums()
        for field in ("streamed", *SWITCHES):
            if not isinstance(getattr(self, field), bool):
                raise TypeError(f"{field} must be True or False, not {getattr(self, field)!r}")
        if self.norms not in NORMS:
            raise ValueError(f"norms must be {' or '.join(map(repr, NORMS))}, not {self.norms!r}")
        if self.everywhere and self.norms != NORMS[0]:
            words = f"beside it norms={self.norms!r} does nothing"
            raise ValueError(f"everywhere, which every= sets too, has all of a norm in the operands' format: {words}")
        if type(self.scaled_state) not in (int, float) or not 0 < self.scaled_state <= LARGEST_SCALE:
            raise ValueError(f"scaled_state must be a number in (0, 2^60], not {self.scaled_state!r}")
        if not isinstance(self.scaling, OperandScaling | None):
            raise TypeError(f"scaling must be an OperandScaling or None, not {self.scaling!r}")
        if self.promote is not None and (type(self.promote) is not int or self.promote < 1):
            raise ValueError(f"promote must be a number of products of at least 1, not {self.promote!r}")
        if self.promote is not None and self.splits is not None:
            raise ValueError(f"promote={self.promote} says the parts: beside it splits={self.splits} does nothing")
        _ = self.order  # refuses one that there is not

    @cached_property
    def order(self) -> Accumulation | None:
        """The order of products that it says, in no types of its own; None: as it is planned.

        Raises:
            ValueError: groups or splits of less than 1, an unknown adder, one whose group is too long.
        """
        if self.group is None and self.splits is None and self.adder is None:
            return None
        name = "sequential" if self.adder is None else self.adder
        if name == "aligned":
            raise ValueError("adder=aligned says how many bits it keeps: adder=aligned13")
        kept = ALIGNED.fullmatch(name) if isinstance(name, str) else None
        return Accumulation(
            16 if self.group is None else self.group,
            1 if self.splits is None else self.splits,
            adder="aligned" if kept else name,  # type: ignore[arg-type]  # checked there
            aligned_bits=int(kept[1]) if kept else None,
        )

    def _sorted_roundings(self) -> tuple[tuple[str, Rounding], ...]:
        """The roundings of single fields, in the order of these."""
        try:
            said = dict(self.roundings)
        except (TypeError, ValueError):
            raise TypeError(
                f"roundings must be by field, {{'weights': Rounding(...)}}, not {self.roundings!r}"
            ) from None
        for field, rounding in said.items():
            if field not in FORMATS:
                raise ValueError(f"roundings are of {', '.join(FORMATS)}, not of {field!r}")
            if not isinstance(rounding, Rounding):
                raise TypeError(f"the rounding of {field} must be a lowprec.Rounding, not {rounding!r}")
            fmt = getattr(self, field)
            if fmt.contains(FLOAT32) and not isinstance(rounding, OwnRounding):
                raise ValueError(
                    f"{field} are {fmt.name}, in which results are not rounded: {written(rounding)} does nothing"
                )
        return tuple((field, said[field]) for field in FORMATS if field in said)

    def _check_sums(self) -> None:
        """Refuses roundings that narrow partial sums do not have.

        Raises:
            ValueError: few-bit modes, "exact" random bits, flushing.
        """
        how = self.rounding_said("partials") or self.rounding
        if not self.partials.contains(FLOAT32):
            how.refuse("partial sums (say partials=FORMAT@MODE to round them otherwise)", exact=True, flush=True)

    def rounding_said(self, field: str) -> Rounding | None:
        """How what a field is the format of is rounded, where that is said of it alone."""
        return dict(self.roundings).get(field)

    def rule(self, role: str, family: str) -> Rule:
        """What the table says for an equation of that role and family."""
        expect(str, role=role, family=family)
        results = "gradients" if role in ("grad_input", "grad_weight") else "operands"
        # The first that fits counts: what is kept of a parameter comes before the rest of the optimizer's arithmetic.
        match role, family:
            case ("update", _) | (_, "compensation"):
                return self._of("weights", convert=False)
            case _, "first_moment" | "second_moment" | "gradient_sum":
                return self._of(family, convert=False)
            case "optimizer", _:
                return self._of("weights", convert=False) if self.everywhere else Rule(FLOAT32, convert=False)
            case _, "loss" | "norm" | "softmax" if not self.everywhere:
                return Rule(FLOAT32, convert=False)
            case _, "matmul" | "conv":
                return self._of("output", sums=True)
            case _, "reduction":
                return self._of(results, sums=True)
            case _:
                return self._of(results, sums=self.everywhere)

    def _of(self, field: str, *, sums: bool = False, convert: bool = True) -> Rule:
        """The rule for results in the format of a field, whether or not they are sums."""
        accumulate, partials = (self.partials, self.rounding_said("partials")) if sums else (FLOAT32, None)
        return Rule(getattr(self, field), accumulate, convert, self.rounding_said(field), partials)

    def rounding_of(self, op: str, operands: Sequence[FloatFormat], output: FloatFormat) -> Rounding:
        """How a rounded result of that operation is rounded."""
        expect(str, op=op)
        operands = listed("operands", operands)
        expect(FloatFormat, output=output, **{f"operands[{i}]": fmt for i, fmt in enumerate(operands)})
        if output.contains(FLOAT32):
            return NEAREST_EVEN
        # The register's bit is for conversions; a rounding or a format that no machine has is meant for every result.
        ours = self.rounding in ROUNDINGS.values() and output.dtype is not None
        plain = op in PLAIN and all(output.contains(fmt) for fmt in operands)
        return NEAREST_EVEN if ours and plain else self.rounding

    @property
    def rounding_name(self) -> str:
        """How its name says that it rounds: nearest, stochastic, toward_zero, stochastic(bits=5) ..."""
        return written(self.rounding)

    @property
    def of_no_machine(self) -> str | None:
        """A format that no tile stores, or a rounding that none has, in words; None: it has neither."""
        parts: list[FloatFormat] = [getattr(self, field) for field in FORMATS]
        parts += [as_rounded(rule.field, rule.value).format for rule in self.rules if rule.field in FORMATS]
        if odd := [fmt.name for fmt in parts if fmt.dtype is None or is_wide(fmt)]:
            return odd[0]
        ruled = [rule.value for rule in self.rules]
        said: list[Rounding | None] = [*dict(self.roundings).values()]
        said += [value.rounding for value in ruled if isinstance(value, RoundedFormat)]
        everywhere = (self.rounding, *(value for value in ruled if isinstance(value, Rounding)))
        said += [how for how in everywhere if how not in ROUNDINGS.values()]
        found = next((how for how in said if how is not None), None)
        return None if found is None else written(found)

    @property
    def stochastic(self) -> bool:
        """Whether anything is rounded stochastically."""
        said = [self.rounding, *dict(self.roundings).values()]
        said += [rule.value for rule in self.rules if isinstance(rule.value, Rounding)]
        own = [rule.value.rounding for rule in self.rules if isinstance(rule.value, RoundedFormat)]
        said += [rounding for rounding in own if rounding is not None]
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
        if rule.field in FORMATS:
            return replace(self, **with_format(self.roundings, rule.field, as_rounded(rule.field, rule.value)))
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
        return as_rounded("weights", said[-1]).format if said else self.weights


def may_be_cast(equation: Equation) -> bool:
    """Whether the operands of an equation are cast where a precision says how: it is a product of a layer."""
    return equation.op in PRODUCTS and equation.role in PASSES and equation.family in ("matmul", "conv")


FORMATS = tuple(f.name for f in fields(RoleFormats) if f.type in (FloatFormat, "FloatFormat"))
"""The fields that are formats, which an override may name."""
FIELDS = (*FORMATS, "rounding", *SCALING)
"""Those that a rule may."""

LARGEST_SCALE = 2**60  # its square is a float32
