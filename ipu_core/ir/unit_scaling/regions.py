"""Norms, softmax and losses, which unit scaling leaves as they are: what they make, and how gradients grow in them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from ipu_core.ir.block import Equation, Literal, Var
from ipu_core.ir.unit_scaling.laws import Softmax, normal, rounded, softmax
from ipu_core.ir.unit_scaling.nodes import Node
from ipu_core.ir.unit_scaling.results import Results

SOME = 12  # numbers of keys for which a softmax is measured, where rows have many


def region(results: Results, equation: Equation, node: Node) -> None:
    """The rule of an equation of a region: only the weights of attention get a factor."""
    growth = {"norm": _norm_growth, "softmax": _softmax_growth, "loss": _loss_growth}[node.kind]
    for var in set(equation.operands) - {e.output for e in node.equations}:
        results.growth[node, var] = growth(results, node, var)
    if not results.graph.left_by(equation.output):
        return
    if node.kind != "softmax":
        results.give(equation, normal())
        results.common[equation.output] = max(map(results.common_part, _entering(results, node)), default=0.0)
        return
    keys, sums = _softmax(results, node)
    mean = 1 / keys
    std = math.sqrt(max(sums.squares / keys - mean**2, 1e-12))
    ends = results.graph.ends(equation.output)
    weighs = equation.op == "divide" and ends and all(end.op == "dot" for end in ends)
    results.give(equation, normal(std, mean), 1 / std if weighs else 1.0)


def _entering(results: Results, node: Node) -> list[Var]:
    """The values with data in them that a region takes."""
    made = {e.output for e in node.equations}
    return [v for e in node.equations for v in e.operands if v not in made and not results.graph.origin(v).pure]


def _norm_growth(results: Results, node: Node, var: Var) -> float:
    return 1 / max(results.law(var).std, 1e-6)


def _softmax(results: Results, node: Node) -> tuple[int, Softmax]:
    """Over how many elements a region's softmax is, and the means of its sums over rows, masked as they are."""
    total = next((e for e in node.equations if e.op == "reduce_sum"), None)
    if total is None:
        return 1, Softmax(1.0, 1.0)
    shape = total.operands[0].type.shape
    keys = math.prod(shape[axis] for axis in total.params["axis"])
    apart = [results.law(v).std * math.sqrt(1 - results.level.get(v, 0.0)) for v in _entering(results, node)]
    deviation = rounded(max(apart, default=1.0))
    rows, counts = np.unique(_open_keys(results, node, keys), return_counts=True)
    some = np.unique(np.geomspace(1, len(rows), min(len(rows), SOME)).astype(int)) - 1
    known = [softmax(deviation, int(rows[i])) for i in some]
    sums = (np.interp(rows, rows[some], column) @ counts / counts.sum() for column in zip(*known, strict=True))
    return keys, Softmax(*map(float, sums))


def _open_keys(results: Results, node: Node, keys: int) -> npt.NDArray[Any]:
    """How many elements of each row count, where the mask is known; else all."""
    for equation in node.equations:
        mask = results.graph.shown(equation.operands[0]) if equation.op == "select" else None
        array = None if mask is None else results.graph.block.constants.get(mask)
        if array is not None and array.ndim and array.shape[-1] == keys:
            return np.asarray(np.maximum(np.count_nonzero(array, -1), 1)).ravel()
    return np.array([keys])


def _softmax_growth(results: Results, node: Node, var: Var) -> float:
    """Gradients that all elements of a row have in common come to nothing: those of what the values have so."""
    keys, sums = _softmax(results, node)
    made = {e.output for e in node.equations}
    weighed = [results.common_part(v) for e in node.equations for end in results.graph.ends(e.output) if end.op == "dot"
               for v in end.operands if results.graph.shown(v) not in made]  # fmt: skip
    return math.sqrt(sums.turned / keys * (1 - max(weighed, default=0.0)))


def _loss_growth(results: Results, node: Node, var: Var) -> float:
    """Of the mean over rows (or numbers) of a cross-entropy, of a square, or of anything else."""
    ops = {e.op for e in node.equations}
    labels = next((int(e.params["classes"]) for e in node.equations if e.op == "one_hot"), None)
    rows = var.type.size / labels if labels else float(var.type.size)
    share = 1.0
    for equation in node.equations:
        number = next((x.value for x in equation.inputs if isinstance(x, Literal)), None)
        if equation.output.type.size == 1 and equation.op == "multiply" and number:
            share *= float(abs(number))
        elif equation.output.type.size == 1 and equation.op == "divide":
            share /= rows if number is None else abs(number)
    if labels and labels > 1:
        return share * math.sqrt(labels - 1) / labels
    return share * (math.sqrt(8) if {"square", "subtract"} <= ops else 2.0 if "square" in ops else 1.0)
