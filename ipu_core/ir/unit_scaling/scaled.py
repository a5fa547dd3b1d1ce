"""The pass: a Block with the factors of unit scaling, and a function whose Block has them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ipu_core.ir.block import Block, Equation, Literal, Var
from ipu_core.ir.passes.cotangents import gradient_edges, needed_values
from ipu_core.ir.passes.scale_check import arriving
from ipu_core.ir.passes.schedule import dead_code
from ipu_core.ir.precision.loss_tail import LOSS, as_loss
from ipu_core.ir.pytree import PyTree, flatten, paths, unflatten
from ipu_core.ir.trace.builder import Builder
from ipu_core.ir.trace.traced import TracedArray
from ipu_core.ir.trace.tracing import interpret, trace, unrolled
from ipu_core.ir.trace.values import Traced, Value, apply, elementwise, lift, scope
from ipu_core.ir.unit_scaling.gradients import SAME, gradient_factors
from ipu_core.ir.unit_scaling.nodes import REGIONS, Node, ScaleGraph
from ipu_core.ir.unit_scaling.results import Results, Rules
from ipu_core.ir.unit_scaling.roles import Role, role_of
from ipu_core.ir.unit_scaling.rules import results_of
from lowprec.checks import shown, truth
from lowprec.processor import in_default_state


class _SignatureOfTheFunction:
    """The signature of an object that is called as a function is, whose names its parameters have; the class has its
    own."""

    def __get__(self, instance: UnitScaled | None, owner: type[UnitScaled]) -> inspect.Signature:
        if instance is None:
            raise AttributeError("__signature__")  # as of any class, for inspect to look at __init__
        return inspect.signature(instance.function)


@dataclass(frozen=True)
class UnitScaled:
    """A function with the factors of unit scaling: what `unit_scale` makes of one. Called as the function is."""

    function: Callable[..., Any]
    rules: Rules = Rules()  # noqa: RUF009  # frozen

    def __call__(self, *arguments: Any) -> Any:
        """The function's result, on arrays or traced values."""
        leaves, _ = flatten(arguments)
        block = self.block(*arguments)
        assert block.result is not None
        return unflatten(block.result, _run(block, Factors.of(block, self.rules), leaves))

    def block(self, *arguments: Any) -> Block:
        """The function's own Block for such arguments, without factors; every place of a scan has some of its own."""
        leaves, tree = flatten(arguments)
        types = [x.node.type if isinstance(x, Traced) else x for x in leaves]
        return unrolled(trace(self.function, *unflatten(tree, types)))

    def roles(self, *arguments: Any) -> dict[str, Role]:
        """What each parameter is for, by name."""
        block = self.block(*arguments)
        tree = block.arguments[0]
        results = Factors.of(block, self.rules).results
        return {name: role_of(var, results) for name, var in zip(paths(tree), block.inputs, strict=False)}

    __signature__ = _SignatureOfTheFunction()


@dataclass(frozen=True, eq=False)
class Factors:
    """What the pass has found for a Block.

    Attributes:
        graph: its nodes.
        results: factors of results and of operands.
        gradients: factors of gradients by (node, operand).
    """

    graph: ScaleGraph
    results: Results
    gradients: Mapping[tuple[Node, Var], float]

    @staticmethod
    def of(block: Block, rules: Rules) -> Factors:
        """The factors of a Block, whose first argument holds the parameters and whose first output is the loss."""
        tree = block.arguments[0] if block.arguments else PyTree(list, (0,) * len(block.inputs))
        parameters = [var for var in block.inputs[: tree.leaves] if not isinstance(var.type.format, str)]
        if block.outputs[0].type.shape == ():  # what the loss is not made of has no part in its factors, and gets none
            block = dead_code(replace(block, outputs=block.outputs[:1], result=None))
            if not any(equation.family == LOSS for equation in block.equations):
                block = as_loss(block, block.outputs[0])
        edges: dict[Var, list[Equation]] = {}
        needed = needed_values(block, parameters)
        for edge in arriving(gradient_edges(block, needed), block.outputs[0]):
            edges.setdefault(edge.operand, []).append(edge.equation)
        graph = ScaleGraph(block, parameters, edges)
        results = results_of(graph, rules)
        return Factors(graph, results, gradient_factors(graph, results))


@in_default_state
def unit_scale(
    f: Callable[..., Any] | Block,
    *,
    tau: float | str | None = "depth",
    mup: bool = False,
    deviation: float = 1.0,
) -> Any:
    """A loss function, or its Block, with the factors of unit scaling: activations and gradients begin near size 1.

    Every operation of the function gets a factor for its result, and the gradients of its operands get factors of
    their own (Blake, Orr and Luschi, arXiv 2303.11257). The weights are to begin as normal numbers of deviation 1
    (`nn.unit_parameters`), biases as 0 and the scales of norms as 1; then no loss scale is needed, and learning rates
    are those of such weights. Norms, softmax and losses stay what they are; what a gate (a sigmoid that multiplies)
    lets pass is added as it was; a number that scales what goes into a product falls away, the product's own factor
    takes its place. All gradients are those of the function with its factors, each times one positive number.

    What no gradient passes (running statistics, comparisons, what is stopped) decides no factor of a gradient. What a
    function gives beside its loss, and the loss is not made of, is computed as it is written. x + stop_gradient(y - x)
    stays y.

    Args:
        f: a function of (parameters, ...) whose first result is a loss without axes, or of which only the values are
            wanted, as the scores that a model gives; or its Block.
        tau: share of variance that the branch of a residual addition x + f(x) brings, in (0, 1): the rest is x's (0.5
            is the published library's ratio 1); "depth": so that all branches together bring as much as what they are
            added to (u-muP, arXiv 2407.17465, appendix G), which is the default of the published library's stack of
            transformer layers too; None: as they come, with which gradients of more than four layers leave [0.5, 2].
        mup: the rules of u-muP beside: the last product is divided by its inputs, scores of attention by the width.
            Learning rates of parameters are then to follow `mup_groups`.
        deviation: standard deviation of the data, the floats of the other arguments.

    Returns:
        For a function, a function of the same arguments. For a Block, a Block.

    Raises:
        ValueError: a number out of range.
    """
    known = tau is None or (isinstance(tau, str) and tau == "depth")
    if not (known or (isinstance(tau, int | float) and 0 < tau < 1)):
        raise ValueError(f"unit_scale: tau must lie between 0 and 1, or be 'depth', not {shown(tau)}")
    mup = truth("unit_scale: mup", mup)
    if not isinstance(deviation, int | float) or not 0 < deviation < float("inf"):
        raise ValueError(f"unit_scale: deviation must be a positive number, not {deviation!r}")
    share = None if isinstance(tau, str) else tau
    rules = Rules(share, tau == "depth", bool(mup), float(deviation))
    if not isinstance(f, Block):
        return UnitScaled(f, rules)
    builder, f = Builder(), unrolled(f)
    results = _run(f, Factors.of(f, rules), [TracedArray(builder, var) for var in f.inputs])
    outputs = tuple(x for x in (lift(builder, value) for value in results) if isinstance(x, Var))
    return dead_code(replace(f, outputs=outputs, equations=tuple(builder.equations), constants=builder.constants))


def _run(block: Block, factors: Factors, values: Sequence[Value]) -> list[Value]:
    """The Block's outputs, with factors: equations of a node see each other's results without the node's factors."""
    graph, results = factors.graph, factors.results
    inside: dict[Var, Value] = {}
    entered: dict[tuple[Node, Var, float], Value] = {}

    def operand(node: Node, equation: Equation, position: int, value: Value) -> Value:
        var = equation.inputs[position]
        if isinstance(var, Literal):
            return value
        if var in inside and graph.node(graph.made[var]) is node:
            return inside[var]
        share = results.shares.get((equation.number, position), 1.0)
        if (node, var, share) not in entered:
            factor = share * factors.gradients.get((node, var), 1.0)
            scaled = value if abs(factor - 1) < SAME else apply("scale_gradient", value, factor=factor)
            entered[node, var, share] = scaled if share == 1 else elementwise("scale", scaled, share)
        return entered[node, var, share]

    def change(equation: Equation, operands: list[Value], compute: Callable[[list[Value]], Value]) -> Value:
        if equation.output not in graph.made:
            return compute(operands)
        node, factor = graph.node(equation), results.factors.get(equation.output)
        with scope(operands, family=_family(equation)):
            given = [operand(node, equation, i, x) for i, x in enumerate(operands)]
        if equation.number in results.dropped:
            return next(x for x, atom in zip(given, equation.inputs, strict=True) if isinstance(atom, Var))
        if factor is None:
            result = inside[equation.output] = compute(given)
            return result
        with scope(given, family=node.kind if node.kind in REGIONS else None):  # rounded once, after the factor
            result = inside[equation.output] = compute(given)
        with scope(result, family=_family(equation)):
            return elementwise("scale", result, factor)

    return interpret(block, values, change)


def _family(equation: Equation) -> str:
    """The family of the factors that an equation gets: its own where that is not rounded to narrow formats."""
    return equation.family if equation.family in REGIONS else "elementwise"
