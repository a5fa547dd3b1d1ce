"""Gradients that are given, where differentiating meets them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ipu_core.ir.block import Array, Block, Equation, Literal, Var
from ipu_core.ir.bodies import equations_of, mapped
from ipu_core.ir.gradient_rule import GradientCall, GradientRule, calls_of
from ipu_core.ir.ops import CUSTOM, ELEMENTWISE, OPS
from ipu_core.ir.parameters import name_of, pure_values
from ipu_core.ir.precision.loss_tail import LOSS
from ipu_core.ir.regions import Scan
from ipu_core.ir.trace.builder import Builder
from ipu_core.ir.trace.full import Full
from ipu_core.ir.trace.traced import TracedArray
from ipu_core.ir.trace.tracing import interpret
from ipu_core.ir.trace.values import Traced, Value, apply, lift, scope

Pure = Mapping[Var, frozenset[str]]
"""Of what is made of parameters and constants alone, the names of the parameters."""


@dataclass
class GivenGradients:
    """The calls of a Block that is differentiated.

    Attributes:
        builder: what receives the equations of the gradients.
        pure: what is made of parameters alone.
        needed: the values that have a cotangent.
        again: by value, what a rule has made it again.
    """

    builder: Builder
    block: Block
    pure: Pure
    needed: set[Var]
    again: dict[Var, Value] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.calls = calls_of(self.block)
        self._made = {equation.output: equation for equation in equations_of(self.block)} if self.calls else {}

    def run(self, equation: Equation, cotangents: dict[Var, Traced], read: Callable[[Var], Value]) -> None:
        """Adds the cotangents of what a call is a function of, at its first equation: all that reads it comes after.

        Args:
            equation: of a call.
            cotangents: of all values so far; those of the call's results go.
            read: what stands for a value of the forward pass.
        """
        call = self.calls.get(equation.number)
        if call is None:
            return
        rule = call.rule
        seeds = {each.params["result"]: cotangents.pop(each.output) for each in call.equations
                 if each.output in cotangents}  # fmt: skip
        if not seeds:
            return
        floats = [(number, kind) for number, kind in enumerate(rule.results) if not isinstance(kind.format, str)]
        outgoing = [seeds.get(number, Full(self.builder, 0.0, kind.shape)) for number, kind in floats]
        kept = [self._kept(atom, rule, read) for atom in call.kept]
        block = self._named(call)
        constants = [self._constant(array, var) for var, array in block.constants.items()]
        open_block = replace(block, inputs=(*block.inputs, *block.constants), constants={})
        with self.builder.scoped(of=equation.number):
            values = interpret(open_block, [*kept, *outgoing, *constants])
        for atom, at in zip(call.arguments, rule.cotangents, strict=True):
            if isinstance(atom, Var) and at is not None and atom in self.needed:
                new: Value = self._traced(values[at], atom)
                if atom in cotangents:
                    role = "grad_weight" if atom in self.pure else "grad_input"
                    parameter = name_of(self.pure, [atom])
                    with scope(new, role=role, parameter=parameter, layer=equation.layer, of=equation.number):
                        new = cotangents[atom] + new
                cotangents[atom] = new
        for atom, at in zip(call.arguments, rule.again, strict=False):
            if isinstance(atom, Var) and at is not None:
                self.again[self._seen(atom)] = values[at]

    def _kept(self, atom: Var | Literal, rule: GradientRule, read: Callable[[Var], Value]) -> Value:
        """What a rule reads for a value that is kept."""
        if isinstance(atom, Literal):
            return atom.value
        found = self.again.get(self._seen(atom)) if rule.again else None
        value = read(atom) if found is None else found
        # What is computed forwards again must not become one with what was: then that would be kept, not the value.
        return apply("scale_gradient", value, factor=1.0) if rule.computes_forwards else value

    def _constant(self, array: Array, var: Var) -> Value:
        """A constant of a rule in the program: what is computed with it is rounded as the rest is."""
        atom = self.builder.constant(array, var.type.format)
        return atom.value if isinstance(atom, Literal) else TracedArray(self.builder, atom)

    def _seen(self, var: Var) -> Var:
        """The value that results of calls show."""
        while (maker := self._made.get(var)) is not None and maker.op == CUSTOM:
            var = maker.operands[0]
        return var

    def _traced(self, value: Value, like: Var) -> Traced:
        if isinstance(value, Traced):
            return value
        atom = lift(self.builder, value)
        if isinstance(atom, Literal):
            return Full(self.builder, atom.value, like.type.shape)
        return TracedArray(self.builder, atom)

    def _named(self, call: GradientCall) -> Block:
        """The rule's equations with roles, parameters, layers and families as derivatives have them."""
        block, layer, pure = call.rule.block, call.equations[0].layer, self._pure(call)
        targets = self._targets(call)
        makers = [self._made.get(each.operands[0]) for each in call.equations]
        of_loss = all(maker is not None and maker.family == LOSS for maker in makers)

        def named(equation: Equation) -> Equation:
            ends = targets.get(equation.output, {None})
            weights = [end for end in ends if end is not None]
            role, name = "grad_input", name_of(pure, equation.operands)
            if equation.role == "forward":
                role = "forward"
            elif len(weights) == len(ends):
                role, name = "grad_weight", name_of(self.pure, weights) or name
            op, family = OPS[equation.op], equation.family
            plain = equation.op in ELEMENTWISE - {"convert"} or op.kind == "reduction"
            family = LOSS if of_loss and plain and family == op.family else family
            return replace(equation, role=role, parameter=name, family=family, layer=equation.layer or layer)

        return mapped(block, named)

    def _pure(self, call: GradientCall) -> dict[Var, frozenset[str]]:
        """What of a rule's values is made of parameters and constants alone."""
        block = call.rule.block
        pairs = zip(block.inputs, call.kept, strict=False)
        names = {var: self.pure[atom] for var, atom in pairs if isinstance(atom, Var) and atom in self.pure}
        return pure_values(block, names)

    def _targets(self, call: GradientCall) -> dict[Var, set[Var | None]]:
        """By value of a rule, the parameters whose cotangents it goes into; None stands for all other arguments."""
        block, found = call.rule.block, dict[Var, set[Var | None]]()
        # A rule that makes nothing again has no `again`: the arguments' second round falls off the end.
        every = zip((*call.rule.cotangents, *call.rule.again), (*call.arguments, *call.arguments), strict=False)
        for at, atom in every:
            if at is not None:
                end = atom if isinstance(atom, Var) and atom in self.pure else None
                found.setdefault(block.outputs[at], set()).add(end)
        _follow(block.equations, found)
        return found


def _follow(equations: Sequence[Equation], found: dict[Var, set[Var | None]]) -> None:
    """Adds to what equations read what their results go into."""
    for equation in reversed(equations):
        if isinstance(scan := equation.region, Scan):
            known = -1
            while known != (known := sum(map(len, found.values()))):  # what one place leaves the next one has
                for old, new in scan.carries:
                    found.setdefault(new, set()).update(found.get(old, ()))
                _follow(scan.body.equations, found)
            for (old, _), start in zip(scan.carries, scan.starts, strict=True):
                if isinstance(start, Var):
                    found.setdefault(start, set()).update(found.get(old, ()))
            continue
        for var in equation.operands:
            found.setdefault(var, set()).update(found.get(equation.output, ()))
