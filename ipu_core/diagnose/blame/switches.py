"""Switches: one cause of error put into float32, in one part of the model or everywhere, by rules of a precision."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ipu_core.ir.block import Block, Equation, Var
from ipu_core.ir.bodies import equations_of
from ipu_core.ir.ops import STRUCTURE
from ipu_core.ir.precision.precision import Precision
from ipu_core.ir.precision.rules import PrecisionRule, names_of
from ipu_core.ir.precision.scaled_products import SCALED_CAST
from lowprec import float32 as FLOAT32

FIELDS: dict[str, tuple[tuple[str | None, str], ...]] = {
    "weights": ((None, "weights"),),
    "first_moment": ((None, "first_moment"),),
    "second_moment": ((None, "second_moment"),),
    "gradient_sum": ((None, "gradient_sum"),),
    "partials": ((None, "partials"),),
    "forward": (("forward", "operands"), ("forward", "output"), ("forward", "scaling")),
    "backward": tuple((role, field) for role in ("grad_input", "grad_weight")
                      for field in ("gradients", "operands", "output", "scaling")),
}  # fmt: skip
"""By cause, the (product, field)s of a precision. "forward" and "backward" are the values of these passes, and what
their products cast them to."""

WORDS = {
    "weights": "weights", "first_moment": "first moments", "second_moment": "second moments",
    "gradient_sum": "sums of gradients", "partials": "partial sums", "forward": "forward values and operands",
    "backward": "gradients and their operands",
}  # fmt: skip

PASSES = ("forward", "backward", "partials")
"""Causes that are in one product or another; the others are in what is kept from step to step."""


@dataclass(frozen=True, order=True)
class CauseSwitch:
    """A cause in a part of the model.

    Attributes:
        cause: a key of `FIELDS`.
        part: the name of a part, as the pattern of a rule; "" for the whole model.
        others: further parts.
        product: "forward", "grad_input" or "grad_weight", where the cause is in one of them alone; "": in all.
    """

    cause: str
    part: str = ""
    others: tuple[str, ...] = ()
    product: str = ""

    def off(self, precision: Precision, block: Block) -> Precision:
        """A precision with rules that switch this cause off: its fields are float32, its operands not cast.

        Rules that would set nothing in the step are left out, since a precision refuses them.

        Args:
            precision: to be changed.
            block: the ideal step.
        """
        fields = [(product or self.product or None, field) for product, field in FIELDS[self.cause]]
        every = (
            PrecisionRule(part, field, None if field == "scaling" else FLOAT32, product)
            for part in (self.part, *self.others)
            for product, field in fields
            if (field != "scaling" or casts(precision)) and self.product in ("", product)
        )
        return precision.with_rules([rule for rule in every if precision.sets(rule, block)])

    def __str__(self) -> str:
        return f"float32 {WORDS[self.cause]}{f' of {self.parts()}' if self.part else ''}"

    def parts(self) -> str:
        """Its parts in words."""
        return " and ".join(filter(None, (", ".join((self.part, *self.others[:-1])), *self.others[-1:])))


def casts(precision: Precision) -> bool:
    """Whether operands of products are cast for them, anywhere."""
    return precision.scaling is not None or any(rule.field == "scaling" for rule in precision.rules)


def trimmed(precision: Precision, base: Precision, block: Block) -> Precision:
    """A precision without those of its rules that change nothing in an ideal step; its name says the rules it keeps.

    Args:
        precision: begins with the rules of the base.
        base: whose rules and name stay.
        block: the step.
    """
    wanted, own = str(precision.apply(block)), len(base.rules)
    rules = precision.rules
    # From the last: a later rule wins over an earlier one.
    for position in reversed(range(own, len(rules))):
        fewer = rules[:position] + rules[position + 1 :]
        if str(replace(precision, name="", rules=fewer).apply(block)) == wanted:
            rules = fewer
    return base.with_rules(rules[own:])


class Parts:
    """The parts that the equations of a typed step belong to."""

    def __init__(self, block: Block) -> None:
        self._readers: dict[Var, list[Equation]] = {}
        for equation in equations_of(block):
            for var in equation.operands:
                self._readers.setdefault(var, []).append(equation)

    def switch(self, equation: Equation) -> CauseSwitch | None:
        """The switch that puts an equation's result into float32; None where every precision has it in float32."""
        owner = self.owner(equation)
        match equation.role, equation.family:
            case "update", _:
                cause = "weights"
            case _, "compensation":
                cause = "weights"
            case _, "first_moment" | "second_moment" | "gradient_sum":
                cause = equation.family
            case "optimizer", _:
                return None
            case _:
                cause = "forward" if owner.role == "forward" else "backward"
        return CauseSwitch(cause, part_of(owner))

    def owner(self, equation: Equation) -> Equation:
        """The equation itself; of a conversion that has no name, and of a cast, what first takes its result."""
        if equation.family != SCALED_CAST and (equation.op != "convert" or equation.parameter):
            return equation
        pending = [equation.output]
        # Moves and reshapes are passed through: the first equation that computes with the cast is its owner.
        while pending:
            for reader in self._readers.get(pending.pop(0), ()):
                if reader.op in STRUCTURE:
                    pending.append(reader.output)
                elif not _guards(reader):
                    return reader
        return equation


def _guards(equation: Equation) -> bool:
    """Whether an equation only looks whether a gradient is to be trusted, see `ir.passes.guard`."""
    return equation.role == "optimizer" and equation.op == "absolute" and not equation.parameter


def part_of(equation: Equation) -> str:
    """The part of the model that an equation is in: what holds its parameter, or else its own name."""
    if equation.parameter:
        return equation.parameter.rpartition(".")[0] or equation.parameter
    return next(names_of(equation))
