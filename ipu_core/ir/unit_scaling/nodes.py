"""What unit scaling takes as one operation: a norm, a softmax, a loss; elementwise functions of one value; the rest."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from ipu_core.ir.block import Block, Equation, Var
from ipu_core.ir.gradient_rule import calls_of
from ipu_core.ir.ops import CUSTOM, ELEMENTWISE, SCALES, STRUCTURE
from ipu_core.ir.precision.loss_tail import LOSS

REGIONS = ("norm", "softmax", LOSS)
"""Families whose equations are left as they are, one operation as far as they hang together."""
GIVEN = "given"
MOVES = STRUCTURE - {CUSTOM}


@dataclass(eq=False)
class Node:
    """Equations that are one operation.

    Attributes:
        kind: a family of REGIONS, "function" (elementwise, of one value), "mix" (see `Mix`), "given" (a call of
            `custom_gradient`, with all that its result and what is kept are made of) or "single".
        equations: in their order.
        root: of a function: the value that it is one of.
        fixed: whether gradients within have no factor: what is given for theirs is not proportional to them.
    """

    kind: str
    equations: list[Equation] = field(default_factory=list)
    root: Var | None = None
    fixed: bool = False


class Mix(NamedTuple):
    """An addition a + gate * (b - a): b where the gate is open, a where it is not.

    Attributes:
        a, b, gate: its operands.
        product: the equation that multiplies.
        difference: the one that subtracts.
    """

    a: Var
    b: Var
    gate: Var
    product: Equation
    difference: Equation


class Straight(NamedTuple):
    """An addition x + stop_gradient(y - x): y, whose gradient is x's.

    Attributes:
        x, y: the two values.
        difference: the equation that subtracts.
    """

    x: Var
    y: Var
    difference: Equation


class Origin(NamedTuple):
    """What a value is made of: nothing but parameters and constants, or more.

    Attributes:
        vector: made of parameters with fewer than two axes alone, as biases and the scales of norms are.
        weight: made of parameters and constants alone, and no vector.
        constant: made of constants alone.
    """

    vector: bool = False
    weight: bool = False
    constant: bool = False

    @property
    def pure(self) -> bool:
        """Whether no data are in it."""
        return self.vector or self.weight or self.constant


class ScaleGraph:
    """The nodes of a Block and what its values are made of.

    Args:
        block: whose factors are wanted.
        parameters: its inputs that are trained.
        edges: by value the equations by way of which gradients come to it.
    """

    def __init__(self, block: Block, parameters: Iterable[Var], edges: Mapping[Var, list[Equation]]) -> None:
        self.block, self.edges = block, edges
        self.made = {equation.output: equation for equation in block.equations}
        self.readers: dict[Var, list[Equation]] = {}
        for equation in block.equations:
            for var in dict.fromkeys(equation.operands):
                self.readers.setdefault(var, []).append(equation)
        self.origins = self._origins(parameters)
        self._differences = {s.difference.number for s in map(self.straight, block.equations) if s is not None}
        self._nodes: dict[int, Node] = {}
        self._functions: dict[Var, Node] = {}
        self._give()
        for equation in block.equations:
            if equation.number not in self._nodes:
                self._join(equation)
        for equation in block.equations:
            if self.node(equation).kind != GIVEN and (mix := self.mix(equation)) is not None:
                node = Node("mix", [mix.difference, mix.product, equation])
                self._nodes |= {part.number: node for part in node.equations}

    def _give(self) -> None:
        """Gives the calls of `custom_gradient` their nodes, the outer ones first in calls in calls."""
        for call in reversed(calls_of(self.block).values()):
            if call.equations[0].number in self._nodes:
                continue
            node = Node(GIVEN, fixed=not call.rule.proportional)
            inside, pending = set[int](), list(call.equations)
            while pending:
                equation = pending.pop()
                if equation.number in inside or equation.number in self._nodes:
                    continue
                inside.add(equation.number)
                outside = (var for var in equation.operands if var not in call.arguments)
                pending += [self.made[var] for var in outside if var in self.made]
            node.equations = [equation for equation in self.block.equations if equation.number in inside]
            self._nodes |= dict.fromkeys(inside, node)

    def node(self, equation: Equation) -> Node:
        """The node of an equation."""
        return self._nodes[equation.number]

    def left_by(self, var: Var) -> bool:
        """Whether a value is used outside the node that makes it."""
        own = self.node(self.made[var])
        outside = any(self.node(reader) is not own for reader in self.readers.get(var, ()))
        return outside or var in self.block.outputs

    def returned_to(self, var: Var) -> bool:
        """Whether a gradient comes to a value from outside the node that makes it."""
        own = self.node(self.made[var])
        return var is self.block.outputs[0] or any(self.node(reader) is not own for reader in self.edges.get(var, ()))

    def ends(self, var: Var) -> list[Equation]:
        """The equations that use a value, by way of moves or at once."""
        found = []
        for reader in self.readers.get(var, ()):
            found += self.ends(reader.output) if reader.op in MOVES else [reader]
        return found

    def shown(self, var: Var) -> Var:
        """The value that a chain of moves shows (the first, where several are joined)."""
        while (equation := self.made.get(var)) is not None and equation.op in MOVES:
            var = equation.operands[0]
        return var

    def mix(self, equation: Equation) -> Mix | None:
        """The parts of an addition that mixes two values by a sigmoid, used by nothing else."""
        if equation.op != "add" or len(equation.operands) != 2:
            return None
        for a, added in (equation.operands, equation.operands[::-1]):
            product = self.made.get(added)
            if product is None or product.op != "multiply" or len(product.operands) != 2:
                continue
            for gate, change in (product.operands, product.operands[::-1]):
                maker, difference = self.made.get(self.shown(gate)), self.made.get(change)
                alone = len(self.readers[added]) == 1 == len(self.readers[change])
                by_gate = maker is not None and maker.op == "sigmoid" and alone
                if by_gate and difference is not None and difference.op == "subtract" and difference.inputs[1] is a:
                    return Mix(a, difference.operands[0], gate, product, difference)
        return None

    def straight(self, equation: Equation) -> Straight | None:
        """The parts of an addition by which a gradient goes straight through."""
        if equation.op != "add" or len(equation.operands) != 2:
            return None
        for x, added in (equation.operands, equation.operands[::-1]):
            stopped = self.made.get(added)
            made = None if stopped is None or stopped.op != "stop_gradient" else self.made.get(stopped.operands[0])
            if made is not None and made.op == "subtract" and len(made.operands) == 2 and made.inputs[1] is x:
                return Straight(x, made.operands[0], made)
        return None

    def _origins(self, parameters: Iterable[Var]) -> dict[Var, Origin]:
        origins = {var: Origin(constant=True) for var in self.block.constants}
        for var in parameters:
            small = len(var.type.shape) < 2
            origins[var] = Origin(vector=small, weight=not small)
        for equation in self.block.equations:
            made_of = [origins.get(var, Origin()) for var in equation.operands]
            if not all(origin.pure for origin in made_of):
                continue
            constant = all(origin.constant for origin in made_of)
            weight = any(origin.weight for origin in made_of)
            origins[equation.output] = Origin(not weight and not constant, weight, constant)
        return origins

    def origin(self, var: Var) -> Origin:
        """What a value is made of."""
        return self.origins.get(var, Origin())

    def _join(self, equation: Equation) -> None:
        """Gives an equation its node: one of those that made its operands, or a new one."""
        makers = [self.node(self.made[var]) for var in equation.operands if var in self.made]
        if equation.number in self._differences:  # of values as others see them, so that the sum is one of these
            self._unite(equation, Node("single"), [])
        elif equation.family in REGIONS:
            self._unite(equation, Node(equation.family), [node for node in makers if node.kind == equation.family])
        elif region := self._finished(equation, makers):
            self._unite(equation, region, [])
        elif equation.op in ELEMENTWISE - SCALES and (root := self._root(equation)) is not None:
            self._unite(equation, self._functions.setdefault(root, Node("function", root=root)), [])
        else:
            self._unite(equation, Node("single"), [])

    def _unite(self, equation: Equation, new: Node, nodes: list[Node]) -> None:
        node = nodes[0] if nodes else new
        for other in nodes[1:]:
            if other is not node:
                node.equations += other.equations
                self._nodes |= {moved.number: node for moved in other.equations}
                other.equations = []
        node.equations.append(equation)
        self._nodes[equation.number] = node

    def _finished(self, equation: Equation, makers: list[Node]) -> Node | None:
        """The region to which an equation of no such family belongs: a move within it, or what joins its results."""
        nodes = list(dict.fromkeys(makers))
        if len(nodes) != 1 or nodes[0].kind not in REGIONS:
            return None
        if equation.op in STRUCTURE:
            readers = self.readers.get(equation.output, ())
            inside = equation.op == "broadcast" or (readers and all(r.family == nodes[0].kind for r in readers))
        else:
            inside = equation.op in ELEMENTWISE - SCALES and len(makers) == len(equation.operands) > 1
        return nodes[0] if inside else None

    def _root(self, equation: Equation) -> Var | None:
        """The one value with data in it that an elementwise equation is a function of; None: several.

        A sum that becomes a mean is none yet: what comes after is a function of the mean.
        """
        makers = [self.made[var] for var in equation.operands if var in self.made]
        if equation.op in ("multiply", "divide") and [maker.op for maker in makers] == ["reduce_sum"]:
            return None
        roots = set()
        for var in equation.operands:
            maker = self.made.get(var)
            node = None if maker is None else self.node(maker)
            roots.add(var if node is None or node.root is None else node.root)
        root = roots.pop() if len(roots) == 1 else None
        return None if root is None or self.origin(root).pure else root
