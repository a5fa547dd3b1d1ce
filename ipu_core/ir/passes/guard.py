"""The pass that guards a step: where a gradient is not to be trusted the state stays as it was."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ipu_core.ir.block import Atom, Block, Equation, Format, Literal, Var
from ipu_core.ir.bodies import (
    carries_of,
    closed,
    equations_of,
    fresh,
    own_values,
    region,
    replicas_of,
    rewritten,
    with_body,
)
from ipu_core.ir.ops import COLLECTIVES, STRUCTURE, SUMS
from ipu_core.ir.passes.appended import Appended
from ipu_core.ir.precision.scaled_products import SCALED_CAST
from ipu_core.ir.regions import Branch, Loop
from lowprec import FloatFormat
from lowprec import float32 as FLOAT32

BACKWARD = ("grad_input", "grad_weight")
UNSCALE = "unscale"
"""Family of the equations that divide the gradients of parameters by the loss scale."""
GUARD = "guard"
"""Family of the equations that look whether gradients are to be trusted."""


Found = dict[tuple[FloatFormat, float], list[tuple[Var, str]]]
Parts = list[tuple[Var, list[str]]]


@dataclass
class _Checks(Appended):
    """Equations under construction with checks among them.

    Attributes:
        found: the largest magnitudes of what is checked, each of shape (1,), with names, by format and by what they
            must be below.
        wires: what travelled between replicas, by the sum that was made of it in a narrower format than its own.
        parts: of what loops have checked, 1 for every check that found something bad in an iteration; with names.
    """

    found: Found = field(default_factory=dict)
    parts: Parts = field(default_factory=list)
    wires: Mapping[Var, FloatFormat] = field(default_factory=dict)

    def emit(self, op: str, *inputs: Atom, family: str | None = GUARD, **about: Any) -> Var:
        """Appends an equation of the guard's own family; gives its result."""
        return super().emit(op, *inputs, family=family, **about)

    def check(self, var: Var, name: str) -> None:
        """Finds the largest magnitude of a value; NaN if it holds one."""
        fmt = var.type.format
        assert isinstance(fmt, FloatFormat)
        size = self.largest(var)
        # What saturated on the wire is a number like any other in a wider format.
        limit = min(_limit(fmt), _limit(self.wires.get(var, fmt)))
        self.found.setdefault((fmt, limit), []).append((self.emit("reshape", size, shape=(1,)), name))

    def gathered(self) -> tuple[Var, list[str]]:
        """1 for every check that found infinities, NaN or a saturated value, else 0; with their names."""
        parts = list(self.parts)
        for (_, limit), found in self.found.items():
            # Asked in this direction: of a NaN no comparison is true, so it counts as bad.
            good = self.emit("greater", Literal(limit), self.joined([var for var, _ in found]), fmt=FLOAT32)
            parts.append((self.emit("subtract", Literal(1.0), good), [name for _, name in found]))
        self.found, self.parts = {}, []
        return self.joined([var for var, _ in parts]), [name for _, names in parts for name in names]

    def together(self, block: Block) -> tuple[Var, list[str]]:
        """`gathered`, and what replicas found of their own before they met is what one of them did."""
        if (replicas := replicas_of(block)) == 1:
            return self.gathered()
        own = self.beside(_after_meeting(self.equations))
        found, parts = self.found, self.parts
        self.found, self.parts = own
        ours = list[tuple[Var, list[str]]]()
        if self.found or self.parts:
            bad, names = self.gathered()
            ours.append((self.emit("all_reduce_max", bad, replicas=replicas), names))
        self.found, self.parts = found, [*ours, *parts]
        return self.gathered()

    def beside(self, made: set[Var]) -> tuple[Found, Parts]:
        """Takes away what is none of some values, which was found before a loop and is no matter of its iterations."""
        found, parts = self.found, self.parts
        self.found = {kind: [each for each in some if each[0] in made] for kind, some in found.items()}
        self.found = {kind: some for kind, some in self.found.items() if some}
        self.parts = [each for each in parts if each[0] in made]
        others = {kind: [each for each in some if each[0] not in made] for kind, some in found.items()}
        return {kind: some for kind, some in others.items() if some}, [each for each in parts if each[0] not in made]

    def restore(self, found: Found, parts: Parts) -> None:
        """Takes up again what was found before a loop."""
        self.found, self.parts = found, [*parts, *self.parts]

    def joined(self, parts: Sequence[Var]) -> Var:
        """Values of one axis, one after another."""
        return parts[0] if len(parts) == 1 else self.emit("concatenate", *parts, axis=0)


def guarded(block: Block) -> Block:
    """A typed training step that keeps its state where its gradients hold infinities, NaN or saturated values.

    Looked at are the gradient of every parameter, as an "unscale" equation takes it, and what cannot be told from it:
    sums, and operands of sums, on the way to it in formats narrower than float32, and sums over micro-batches. The new
    last output holds 1 for each of them that is bad, over all iterations; `Branch.names` says which is which.

    Args:
        block: typed; no pass may follow.

    Raises:
        ValueError: no equation takes the gradient of a parameter.
    """
    needed = _checked(block)
    checks = _Checks(fresh(block.equations), wires=_wires(block))

    def straight(equations: Sequence[Equation]) -> Sequence[Equation]:
        checks.equations = []
        for equation in equations:
            checks.equations.append(equation)
            if equation.output in needed:
                checks.check(equation.output, needed.pop(equation.output))
        return checks.equations

    def close(equation: Equation, body: list[Equation]) -> Equation:
        loop, checks.equations = equation.region, body
        if not isinstance(loop, Loop):
            raise ValueError("the step is guarded already")
        made = own_values(body)
        outside = checks.beside(made)
        if checks.found or checks.parts:
            now, names = checks.gathered()
            old = Var("total.bad", now.type)
            # A later round must not make up for a bad one.
            new = checks.emit("maximum", old, now)
            equation = replace(equation, region=loop.carrying((old, new)))
            checks.parts = [(new, names)]
        checks.restore(*outside)
        return with_body(equation, body)

    # A branch comes behind all regions there are: only what stands there can be skipped as a whole.
    last = 1 + max((place for place, each in enumerate(block.equations) if each.region is not None), default=-1)
    equations = rewritten(block.equations[:last], straight, close)
    first, second = _split(block, block.equations[last:], needed)
    checks.equations = equations
    for var in (*block.inputs, *block.constants, *(new for _, new in carries_of(block))):
        if var in needed:  # a gradient that is a constant, or is finished when the iterations are
            checks.check(var, needed.pop(var))
    equations += straight(first)
    checks.equations = equations
    bad, names = checks.together(block)
    worst = checks.emit("reduce_max", bad, fmt=FLOAT32, axis=(0,), keepdims=False)
    flag = checks.emit("subtract", Literal(1.0), worst)
    chosen = [(Var(f"{old.name}.next", old.type), new, old)
              for old, new in zip(block.inputs[: block.carried], block.outputs, strict=False)]  # fmt: skip
    branch = Branch(Block((), (), tuple(second)), flag, tuple(chosen), tuple(names))
    outputs = (*branch.results, *block.outputs[block.carried :], bad)
    equations.append(region(branch, "branch", equations))
    return closed(replace(block, equations=tuple(equations), outputs=outputs, result=None))


def _after_meeting(equations: Sequence[Equation]) -> set[Var]:
    """What is made of what replicas made together."""
    after = set[Var]()
    for equation in equations:
        if equation.op in COLLECTIVES or not after.isdisjoint(equation.operands):
            after.update(equation.outputs)
    return after


def _wires(block: Block) -> dict[Var, FloatFormat]:
    """The wire's format of every sum over replicas that has an order of its own."""
    orders = {e.output: e.params.get("collective") for e in block.equations if e.op in COLLECTIVES}
    return {var: order.wire for var, order in orders.items() if order is not None}


def _checked(block: Block) -> dict[Var, str]:
    """What is to be looked at, with its name."""
    made, replicas = {equation.output: equation for equation in equations_of(block)}, replicas_of(block)

    def origin(var: Var) -> Var:
        """What moves show, and casts whose scale leaves nothing but the largest to saturate."""
        while (maker := made.get(var)) is not None and (maker.op in STRUCTURE or maker.family == SCALED_CAST):
            var = maker.operands[0]
        return var

    # A value that saturated is a number like any other to what reads it, and the gradient behind it looks sound: in
    # narrow formats values are looked at where they are made.
    found: dict[Var, str] = {}
    for equation in equations_of(block):
        if equation.family == "gradient_sum" or (equation.op in SUMS and equation.role in BACKWARD):
            looked = (*map(origin, equation.operands), equation.output)
            if replicas > 1 and equation.op in ("multiply", "all_reduce"):
                # The share that a replica adds is a number where its gradient is one, which is looked at.
                looked = looked[:1] if equation.op == "multiply" else looked[-1:]
            for var in looked:
                maker = made.get(var)
                if maker is not None and maker.role in BACKWARD and _narrow(var.type.format):
                    found[var] = maker.name
    last = {origin(e.operands[0]): e.parameter or "" for e in equations_of(block) if e.family == UNSCALE}
    if not last:
        raise ValueError("no equation takes the gradient of a parameter: there is nothing to guard")
    return found | {var: f"gradient of {name}" for var, name in last.items()}


def _split(
    block: Block, equations: Sequence[Equation], needed: dict[Var, str]
) -> tuple[list[Equation], list[Equation]]:
    """Of equations those behind what is looked at and behind what is no state, and the others."""
    wanted = {*needed, *block.outputs[block.carried :]}
    first, second = list[Equation](), list[Equation]()
    for equation in reversed(equations):
        if equation.output in wanted or equation.op in COLLECTIVES:  # all replicas come there, or none goes on
            wanted.update(equation.operands)
            first.append(equation)
        else:
            second.append(equation)
    return first[::-1], second[::-1]


def _narrow(fmt: Format) -> bool:
    return isinstance(fmt, FloatFormat) and fmt != FLOAT32


def _limit(fmt: FloatFormat) -> float:
    """The magnitude from which on a value is not to be trusted: the largest, where it saturates, or infinity."""
    return float(fmt.max) if _narrow(fmt) else float("inf")
