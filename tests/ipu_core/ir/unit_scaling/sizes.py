"""How large a model under unit scaling begins: every activation, its whole cotangent and every weight's gradient.

Values are those of the function as it was written, each with its factor. What lies within a norm, a softmax or a loss,
which are one operation, is no value of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from ipu_core import nn, unit_scale
from ipu_core.ir.block import NEAREST, Block, Equation, Params, Var
from ipu_core.ir.ops import COMPARISONS, OPS, STRUCTURE
from ipu_core.ir.passes.autodiff import differentiate
from ipu_core.ir.passes.cotangents import needed_values
from ipu_core.ir.passes.schedule import dead_code
from ipu_core.ir.pytree import LEAF, PyTree, flatten
from ipu_core.ir.run.evaluate import as_exact, exact_result, run
from ipu_core.ir.trace.builder import Builder
from ipu_core.ir.trace.traced import TracedArray
from ipu_core.ir.trace.values import lift
from ipu_core.ir.unit_scaling.nodes import REGIONS
from ipu_core.ir.unit_scaling.scaled import Factors, _run
from lowprec import Key

LEAST = 64  # elements of which a size says something


class Size(NamedTuple):
    """Root mean squares at the beginning.

    Attributes:
        name: of a parameter, or the operation that makes a value and its line.
        value: of the value itself.
        gradient: of its gradient; None: none comes to it.
    """

    name: str
    value: float
    gradient: float | None


class Sizes(NamedTuple):
    """Of a model."""

    activations: list[Size]
    weights: list[Size]

    def outside(self, low: float = 0.5, high: float = 2.0) -> list[str]:
        """What does not lie between two numbers, in words."""
        found = [f"value {s.name} {s.value:.3g}" for s in self.activations if not low <= s.value <= high]
        for kind, sizes in (("cotangent", self.activations), ("gradient", self.weights)):
            for s in sizes:
                if s.gradient is not None and not low <= s.gradient <= high:
                    found.append(f"{kind} {s.name} {s.gradient:.3g}")
        return found

    def range(self, kind: str) -> tuple[float, float]:
        """The smallest and the largest: of "values", "cotangents" or "gradients" (of weights)."""
        sizes = self.weights if kind == "gradients" else self.activations
        found = [s.value if kind == "values" else s.gradient for s in sizes]
        known = [x for x in found if x is not None]
        return min(known), max(known)


def sizes(loss: Callable[..., Any], params: Any, *others: Any, key: int = 1, **rules: Any) -> Sizes:
    """Of a loss under unit scaling, whose parameters are drawn anew, in float64."""
    scaled = unit_scale(loss, **rules)
    params = nn.unit_parameters(key, params)
    block = scaled.block(params, *others)
    inputs = flatten((params, *others))[0]
    factors = Factors.of(block, scaled.rules)
    seen = _seen(factors, block)
    builder = Builder()
    traced = [TracedArray(builder, var) for var in block.inputs]
    shown = replace(block, outputs=(block.outputs[0], *(e.output for e in seen)))
    total, *values = (lift(builder, x) for x in _run(shown, factors, traced))
    block = dead_code(replace(shown, outputs=(total, *values), equations=tuple(builder.equations),
                              constants=builder.constants, result=None))  # fmt: skip
    count = block.arguments[0].leaves
    probed, probes = _probed(block, values)
    zeros = [np.zeros(var.type.shape) for var in probes]
    found = iter(run(differentiate(probed, has_aux=True), [*inputs[:count], *zeros, *inputs[count:]],
                     lambda x, _: as_exact(x), lambda e, x, n: exact_result(e, x, Key(key))))  # fmt: skip
    next(found)
    own = [_rms(next(found)) for _ in range(count)]
    back = {value: _rms(next(found)) for value in dict.fromkeys(values)}
    needed = needed_values(block, block.inputs[:count])
    activations = [
        Size(f"{e.op} {e.layer or ''} {e.source or ''}", _rms(next(found)), (back[v] or None) if v in needed else None)
        for e, v in zip(seen, values, strict=True)
    ]
    weights = [Size(var.name, _rms(x), g) for var, x, g in zip(block.inputs, inputs, own, strict=False)]
    return Sizes(activations, weights)


def _rms(x: Any) -> float:
    return float(np.sqrt(np.mean(np.square(np.asarray(x, np.float64)))))


def _seen(factors: Factors, block: Block) -> list[Equation]:
    """The equations that make a value of its own, which others than what it is a part of read."""
    graph = factors.graph

    def is_value(equation: Equation) -> bool:
        var, ends = equation.output, graph.ends(equation.output)
        sized = not isinstance(var.type.format, str) and var.type.size >= LEAST and not graph.origin(var).pure
        truth = OPS[equation.op].kind in ("mask", "order") or equation.op in (*COMPARISONS, "step")
        inside = equation.family in REGIONS and all(end.family == equation.family for end in ends)
        left = var in block.outputs or (graph.left_by(var) and not inside)
        return sized and left and not truth and equation.op not in STRUCTURE

    return list(filter(is_value, graph.block.equations))


def _probed(block: Block, values: list[Any]) -> tuple[Block, list[Var]]:
    """The Block with an input of zeros added to each of these values, whose gradient is the value's."""
    wanted = dict.fromkeys(values)
    after: dict[Var, Var] = {}
    equations: list[Equation] = []
    for equation in block.equations:
        given = tuple(after.get(x, x) if isinstance(x, Var) else x for x in equation.inputs)
        equations.append(replace(equation, number=len(equations), inputs=given))
        if (var := equation.output) in wanted:
            probe, moved = Var(f"probe{len(after)}", var.type), Var(f"{var.name}.probed", var.type)
            wanted[var], after[var] = probe, moved
            equations.append(Equation(len(equations), "add", (var, probe), (moved,), Params({}), arithmetic=NEAREST))
    probes = [wanted[v] for v in wanted]
    count = block.arguments[0].leaves
    return replace(
        block,
        inputs=(*block.inputs[:count], *probes, *block.inputs[count:]),
        outputs=tuple(after.get(v, v) for v in block.outputs),
        equations=tuple(equations),
        arguments=(PyTree(list, (0,) * (count + len(probes)), (LEAF,) * (count + len(probes))), *block.arguments[1:]),
    ), probes
