"""Additions: of biases, of two values alike, of residual branches, of what gates let pass."""

from __future__ import annotations

import math

from ipu_core.ir.block import Equation, Var
from ipu_core.ir.unit_scaling.laws import normal, rounded
from ipu_core.ir.unit_scaling.nodes import Node
from ipu_core.ir.unit_scaling.results import Results


def add(results: Results, equation: Equation, node: Node) -> None:
    """The rule of additions, and of differences, which are left as they are."""
    if (straight := results.graph.straight(equation)) is not None:
        results.grow(node, straight.x, 1.0)
        results.pass_on(equation, straight.y)
        return
    arrays = [(i, x) for i, x in enumerate(equation.inputs) if isinstance(x, Var)]
    data = [(i, x) for i, x in arrays if not (results.graph.origin(x).vector or results.graph.origin(x).constant)]
    if len(data) < 2:
        for _, var in arrays:
            results.grow(node, var, 1.0)
        if data:
            results.pass_on(equation, data[0][1])
        else:
            results.give(equation, normal())
        return
    shares, factor = _shares(results, equation, dict(data))
    for i, var in data:
        results.grow(node, var, shares[i])
        if shares[i] != 1:
            results.shares[equation.number, i] = shares[i]
    sign = -1 if equation.op == "subtract" else 1
    mean = sum(shares[i] * results.law(var).mean * (sign if i else 1) for i, var in data)
    deviation = math.hypot(*(shares[i] * results.law(var).std for i, var in data))
    squares = [(shares[i] * results.law(var).rms) ** 2 for i, var in data]
    alike = sum(results.common_part(var) * square for (_, var), square in zip(data, squares, strict=True))
    results.common[equation.output] = alike / max(sum(squares), 1e-12)
    gated = any(var in results.gates for _, var in data)
    plain = gated or equation.op == "subtract" or not results.statistics.isdisjoint(var for _, var in data)
    results.give(equation, normal(deviation, mean), factor if plain else 1 / max(deviation, 1e-12))


def mix(results: Results, equation: Equation, node: Node) -> None:
    """The rule of a `Mix`, which is left as it is, its gate too."""
    parts = results.graph.mix(equation)
    assert parts is not None
    a, b = results.law(parts.a), results.law(parts.b)
    gate = results.law(parts.gate)
    closed = math.sqrt(max(1 - 2 * gate.mean + gate.rms**2, 0.0))
    results.grow(node, parts.a, closed)
    results.grow(node, parts.b, gate.rms)
    results.grow(node, parts.gate, math.hypot(a.rms, b.rms))
    results.give(equation, normal(math.hypot(closed * a.rms, gate.rms * b.rms)))


def _shares(results: Results, equation: Equation, operands: dict[int, Var]) -> tuple[dict[int, float], float]:
    """What each operand of an addition is multiplied by, and the sum where it is left as it is.

    What a gate let pass by the inverse of the gate's factor, so that gates stay between 0 and 1; a residual branch
    and what it is added to by their shares of variance.
    """
    shares = {i: 1 / results.gates.get(var, 1.0) for i, var in operands.items()}
    tau = _tau(results, equation)
    if len(set(shares.values())) == 1 and (tau is None or shares[0] != 1):
        return dict.fromkeys(shares, 1.0), shares[0]
    if tau is not None and all(share == 1 for share in shares.values()):
        skip = results.skip(equation)
        for i, var in operands.items():
            shares[i] = math.sqrt(1 - tau if i == skip else tau) / max(results.law(var).std, 1e-12)
    return {i: rounded(share) for i, share in shares.items()}, 1.0


def _tau(results: Results, equation: Equation) -> float | None:
    """The share of variance that a residual branch is to bring; None: as it comes."""
    if equation not in results.residuals:
        return None
    if results.rules.by_depth:
        return 1 / (len(results.residuals) / 2 + results.residuals.index(equation) + 1)
    return results.rules.tau
