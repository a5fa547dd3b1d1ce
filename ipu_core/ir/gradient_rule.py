"""A gradient that is given, as data: what a call of `custom_gradient` leaves in a Block, and the end of it.

Each result of the call is an equation of its own, `ops.CUSTOM`: the result as it is, then all that it is a function of,
then all that was kept for the gradient. Differentiating runs the rule once for all results of a call. Until that, and
for a derivative of the derivative, the equations hold alive what is kept; a program that is run has views instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from ipu_core.ir.block import Block, Equation, Literal, Type, Var, per_block
from ipu_core.ir.bodies import equations_of
from ipu_core.ir.ops import CUSTOM, GROUP_SUM, STRUCTURE


@dataclass(frozen=True, eq=False)
class GradientRule:
    """A backward function, traced.

    Attributes:
        name: of the function that it is the gradient of.
        block: its equations: inputs are what is kept, then the cotangents of the float results.
        arguments: how many values the results are a function of.
        results: the types of the results.
        cotangents: by argument, the position of its cotangent in the outputs of the block; None: it has no gradient.
        again: by argument, that of its value made again, which earlier rules of this kind take for what they kept of
            it; empty: the rule makes none and takes none.
    """

    name: str
    block: Block
    arguments: int
    results: tuple[Type, ...]
    cotangents: tuple[int | None, ...]
    again: tuple[int | None, ...] = ()

    def __repr__(self) -> str:
        return self.name

    @cached_property
    def computes_forwards(self) -> bool:
        """Whether it has equations of the forward part, made again."""
        return any(equation.role == "forward" for equation in equations_of(self.block))

    @cached_property
    def proportional(self) -> bool:
        """Whether cotangents that are all multiplied by one positive number give such times that number.

        It is seen from the equations, so some are taken for others though they are.
        """
        seeds = self.block.inputs[len(self.block.inputs) - sum(not isinstance(t.format, str) for t in self.results) :]
        reached = set(seeds)
        for equation in self.block.equations:
            touched = [atom in reached for atom in equation.inputs]
            if any(touched) and equation.region is not None:
                return False  # what goes from place to place would have to be followed
            if any(touched) and equation.op != "dropout_mask":
                if not _passes_factors(equation, touched):
                    return False
                reached.add(equation.output)
        return all(self.block.outputs[at] in reached for at in self.cotangents if at is not None)


ALL = frozenset(("add", "subtract", "maximum", "minimum", "concatenate"))
"""Pass a factor that all operands have, numbers other than 0 among them having none."""
ONE = frozenset(("multiply", "dot", "conv2d", "conv2d_input_gradient", "conv2d_weight_gradient", "scaled_dot"))
"""Pass a factor that one operand has."""
FIRST = frozenset(("negative", "absolute", "relu", "scale", "divide", "convert", "hadamard", "reduce_sum",
                   "reduce_max", "all_reduce", GROUP_SUM, "gather", "take_along", CUSTOM)) | STRUCTURE  # fmt: skip
SECOND = frozenset(("scatter_add", "scatter_max", "put_along"))


def _passes_factors(equation: Equation, touched: list[bool]) -> bool:
    """Whether a positive factor of the operands that have it is one of the result."""
    zero = [isinstance(atom, Literal) and atom.value == 0 for atom in equation.inputs]
    each = [one or none for one, none in zip(touched, zero, strict=True)]
    if equation.op in ALL:
        return all(each)
    if equation.op == "select":
        return not touched[0] and all(each[1:])
    if equation.op in ONE:
        return sum(touched) == 1
    if equation.op == CUSTOM:
        return touched[0]
    places = (0,) if equation.op in FIRST else (1,) if equation.op in SECOND else ()
    return bool(places) and [i for i, one in enumerate(touched) if one] == list(places)


@dataclass(frozen=True, eq=False)
class GradientCall:
    """The equations of one call, in order: those of its results that something needs.

    Attributes:
        arguments, kept: the values that the rule is of.
    """

    equations: tuple[Equation, ...]

    @property
    def rule(self) -> GradientRule:
        """How the gradient is made."""
        rule = self.equations[0].params["rule"]
        assert isinstance(rule, GradientRule)
        return rule

    @property
    def arguments(self) -> tuple[Var | Literal, ...]:
        """What the results are a function of."""
        return self.equations[0].inputs[1 : 1 + self.rule.arguments]

    @property
    def kept(self) -> tuple[Var | Literal, ...]:
        """What the gradient reads."""
        return self.equations[0].inputs[1 + self.rule.arguments :]


@per_block
def calls_of(block: Block) -> dict[int, GradientCall]:
    """The calls in a Block and the bodies in it, by the number of their first equation."""
    found: dict[object, list[Equation]] = {}
    for equation in equations_of(block):
        if equation.op == CUSTOM:
            found.setdefault((equation.params["rule"], equation.inputs[1:]), []).append(equation)
    return {equations[0].number: GradientCall(tuple(equations)) for equations in found.values()}


def ways(equation: Equation) -> Iterator[Var]:
    """The values that an equation of a call gives a gradient to."""
    rule: GradientRule = equation.params["rule"]
    for atom, at in zip(equation.inputs[1:], rule.cotangents, strict=False):
        if isinstance(atom, Var) and at is not None:
            yield atom
