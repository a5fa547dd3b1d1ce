"""The factors of results: with which every operation makes values of deviation 1 of such, rule by rule."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ipu_core.ir.block import Equation, Literal, Var
from ipu_core.ir.convolution import place
from ipu_core.ir.exact import EXACT
from ipu_core.ir.ops import ELEMENTWISE, PRODUCTS, STRUCTURE
from ipu_core.ir.unit_scaling.laws import Law, Softmax, normal, of_array, of_one, rounded, softmax, together
from ipu_core.ir.unit_scaling.nodes import Graph, Node
from lowprec.spec.windows import Windows

ACTIVATIONS = frozenset(("relu", "gelu", "tanh", "sigmoid", "erf", "sin", "cos", "select", "maximum", "minimum"))
"""Make a function of one value a nonlinearity, whose result is scaled; squares, roots and quotients alone do not."""

NEAR = 1e-3  # a factor so near to 1 is none
SOME = 12  # numbers of keys for which a softmax is measured, where rows have many


@dataclass(frozen=True)
class Rules:
    """What unit scaling may be asked for.

    Attributes:
        tau: share of variance that the branch of a residual addition brings; None: both operands as they come.
        by_depth: whether all residual branches bring as much together as what they are added to, as u-muP has it.
        mup: whether the last product is divided by its inputs, and attention's by the width, as u-muP has it.
        deviation: standard deviation of the data.
    """

    tau: float | None = None
    by_depth: bool = False
    mup: bool = False
    deviation: float = 1.0


class Results:
    """The factors of a Block's results, the laws of its values, and how much gradients grow on their way back.

    Attributes:
        laws: of every value with data or weights in it, as others see it.
        factors: of results, where they are not 1.
        shares: factors of operands of additions, by (number of the equation, position).
        dropped: numbers of the equations that multiply by a number which the next factor takes up.
        above: by value, the equations that it is made by, as bits of their numbers.
        residuals: the additions of which one operand is made of the other.
        growth: by (node, operand): root mean square of what one gradient of 1 of the node brings to the operand.
    """

    def __init__(self, graph: Graph, rules: Rules) -> None:
        self.graph, self.rules = graph, rules
        self.laws: dict[Var, Law] = {}
        self.factors: dict[Var, float] = {}
        self.shares: dict[tuple[int, int], float] = {}
        self.dropped: set[int] = set()
        self.growth: dict[tuple[Node, Var], float] = {}
        self.sizes: dict[Var, float] = {}  # for products, where it is not the root mean square
        self.common: dict[Var, float] = {}  # share of the mean square that all rows have in common
        self.level: dict[Var, float] = {}  # share of the mean square that is the same along the last axis
        self.gates: dict[Var, float] = {}  # by how much a gate, or what it lets pass, is multiplied
        self._statistics: set[Var] = set()
        self._inside: dict[Var, Law] = {}
        self.above = ancestors(graph)
        self.residuals = [e for e in graph.block.equations if self._is_residual(e)]
        for var in graph.block.inputs:
            self.laws[var] = normal() if graph.origin(var).pure else normal(rules.deviation)
        for var, array in graph.block.constants.items():
            self.laws[var] = of_array(array)
        for equation in graph.block.equations:
            if not isinstance(equation.output.type.format, str):
                self._run(equation)

    def _run(self, equation: Equation) -> None:
        node = self.graph.node(equation)
        match node.kind:
            case "norm" | "softmax" | "loss":
                self._region(equation, node)
            case "function":
                self._function(equation, node)
            case _:
                RULES.get(equation.op, Results._elementwise)(self, equation, node)
        known = [var for var in equation.operands if var in self._statistics]
        if known and equation.op not in PRODUCTS and node.kind != "norm":
            self._statistics.add(equation.output)

    def _give(self, equation: Equation, law: Law, factor: float = 1.0) -> None:
        """Says what a result is, times its factor."""
        var = equation.output
        small = var.type.size == 1 or self.graph.origin(var).vector
        scaled = abs(factor - 1) > NEAR and math.isfinite(factor) and factor > 0 and not small
        if scaled:
            factor = self.factors[var] = rounded(factor)
        self.laws[var] = law.times(factor).root() if scaled else law

    def _grow(self, node: Node, var: Var, by: float) -> None:
        """One more way from a node to an operand: independent ones add squares."""
        self.growth[node, var] = math.hypot(self.growth.get((node, var), 0.0), by)

    def _common(self, var: Var) -> float:
        return self.common.get(var, 0.0)

    def _law(self, var: Var) -> Law:
        return self.laws.get(var) or normal()

    # Regions ------------------------------------------------------------------------------------------------------

    def _region(self, equation: Equation, node: Node) -> None:
        growth = {"norm": self._norm_growth, "softmax": self._softmax_growth, "loss": self._loss_growth}[node.kind]
        for var in set(equation.operands) - {e.output for e in node.equations}:
            self.growth[node, var] = growth(node, var)
        if not self.graph.left_by(equation.output):
            return
        if node.kind != "softmax":
            self._give(equation, normal())
            self.common[equation.output] = max(map(self._common, self._entering(node)), default=0.0)
            return
        keys, sums = self._softmax(node)
        mean = 1 / keys
        std = math.sqrt(max(sums.squares / keys - mean**2, 1e-12))
        ends = self.graph.ends(equation.output)
        weighs = equation.op == "divide" and ends and all(end.op == "dot" for end in ends)
        self._give(equation, normal(std, mean), 1 / std if weighs else 1.0)

    def _entering(self, node: Node) -> list[Var]:
        """The values with data in them that a region takes."""
        made = {e.output for e in node.equations}
        return [v for e in node.equations for v in e.operands if v not in made and not self.graph.origin(v).pure]

    def _norm_growth(self, node: Node, var: Var) -> float:
        return 1 / max(self._law(var).std, 1e-6)

    def _softmax(self, node: Node) -> tuple[int, Softmax]:
        """Over how many elements a region's softmax is, and the means of its sums over rows, masked as they are."""
        total = next((e for e in node.equations if e.op == "reduce_sum"), None)
        if total is None:
            return 1, Softmax(1.0, 1.0)
        shape = total.operands[0].type.shape
        keys = math.prod(shape[axis] for axis in total.params["axis"])
        apart = [self._law(v).std * math.sqrt(1 - self.level.get(v, 0.0)) for v in self._entering(node)]
        deviation = rounded(max(apart, default=1.0))
        rows, counts = np.unique(self._open_keys(node, keys), return_counts=True)
        some = np.unique(np.geomspace(1, len(rows), min(len(rows), SOME)).astype(int)) - 1
        known = [softmax(deviation, int(rows[i])) for i in some]
        sums = (np.interp(rows, rows[some], column) @ counts / counts.sum() for column in zip(*known, strict=True))
        return keys, Softmax(*map(float, sums))

    def _open_keys(self, node: Node, keys: int) -> npt.NDArray[Any]:
        """How many elements of each row count, where the mask is known; else all."""
        for equation in node.equations:
            mask = self.graph.shown(equation.operands[0]) if equation.op == "select" else None
            array = None if mask is None else self.graph.block.constants.get(mask)
            if array is not None and array.ndim and array.shape[-1] == keys:
                return np.asarray(np.maximum(np.count_nonzero(array, -1), 1)).ravel()
        return np.array([keys])

    def _softmax_growth(self, node: Node, var: Var) -> float:
        """Gradients that all elements of a row have in common come to nothing: those of what the values have so."""
        keys, sums = self._softmax(node)
        made = {e.output for e in node.equations}
        weighed = [self._common(v) for e in node.equations for end in self.graph.ends(e.output) if end.op == "dot"
                   for v in end.operands if self.graph.shown(v) not in made]  # fmt: skip
        return math.sqrt(sums.turned / keys * (1 - max(weighed, default=0.0)))

    def _loss_growth(self, node: Node, var: Var) -> float:
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

    # Functions of one value ---------------------------------------------------------------------------------------

    def _function(self, equation: Equation, node: Node) -> None:
        assert node.root is not None
        if node.root not in self._inside:
            self._inside[node.root] = self._law(node.root).root()
        operands = [x.value if isinstance(x, Literal) else self._inside[x] for x in equation.inputs]
        law = self._inside[equation.output] = of_one(EXACT[equation.op], operands)
        if not self.graph.left_by(equation.output):
            return
        self._grow(node, node.root, self._chosen(equation, law).slope)
        so_far = [e for e in node.equations if e.number <= equation.number]
        bent = any(e.op in ACTIVATIONS for e in so_far)
        if not bent and any(e.op not in LINEAR for e in so_far):
            self._statistics.add(equation.output)
        if len(so_far) == 1 and self._taken_up(equation):
            self.dropped.add(equation.number)
            self.growth[node, node.root] = 1.0
            self._pass_on(equation, node.root)
            return
        factor = 1 / law.std if bent and law.std > 0 else 1.0
        if bent and self._is_gate(equation):
            factor = self.gates[equation.output] = rounded(1 / math.sqrt(law.rms * law.std))
        self._give(equation, law, factor)
        if bent:
            self.sizes[equation.output] = law.std * factor
        together = law.mean**2 + self._common(node.root) * (law.line * self._law(node.root).std) ** 2
        self.common[equation.output] = min(1.0, together / max(law.rms**2, 1e-12))

    def _chosen(self, equation: Equation, law: Law) -> Law:
        """The law of the elements that have a gradient: of a maximum's only the largest."""
        ends = self.graph.ends(equation.output)
        if not ends or any(end.op != "reduce_max" for end in ends):
            return law
        return law.largest(equation.output.type.size // max(1, ends[0].output.type.size))

    def _taken_up(self, equation: Equation) -> bool:
        """Whether a number is one that the next factor makes nothing of: of a mean, before products and dropout."""
        if equation.op not in ("multiply", "divide") or not isinstance(equation.inputs[-1], Literal):
            return False
        maker = self.graph.made.get(equation.operands[0])
        summed = maker is not None and maker.op == "reduce_sum" and maker.output not in self._statistics
        ends = self.graph.ends(equation.output)
        return equation.output.type.size > 1 and (
            summed or bool(ends and all(e.op in PRODUCTS or self._drops(e) for e in ends))
        )

    def _drops(self, equation: Equation) -> bool:
        """Whether an equation sets elements to 0 by a mask of dropout."""
        maker = self.graph.made.get(equation.operands[0]) if equation.op == "select" else None
        return maker is not None and maker.op == "dropout_mask"

    def _is_gate(self, equation: Equation) -> bool:
        """Whether a sigmoid is used to multiply others with alone."""
        own = self.graph.node(equation)
        ends = [end for end in self.graph.ends(equation.output) if self.graph.node(end) is not own]
        return equation.op == "sigmoid" and bool(ends) and all(end.op == "multiply" for end in ends)

    # Single equations -----------------------------------------------------------------------------------------------

    def _move(self, equation: Equation, node: Node) -> None:
        sizes = [var.type.size for var in equation.operands]
        if equation.op in ("slice", "gather", "take_along", "broadcast"):
            self._grow(node, equation.operands[0], math.sqrt(equation.output.type.size / max(1, sizes[0])))
        else:
            by = float(equation.params["factor"]) if equation.op == "scale_gradient" else 1.0
            for var in equation.operands:
                self._grow(node, var, by)
        self._pass_on(equation, equation.operands[0])
        if equation.op == "concatenate":
            self.laws[equation.output] = of_array(np.concatenate([self._law(var).few for var in equation.operands]))

    def _pass_on(self, equation: Equation, var: Var) -> None:
        """Says that a result is distributed as an operand is."""
        self.laws[equation.output] = self._law(var)
        for known in (self.sizes, self.gates, self.common, self.level):
            if var in known:
                known[equation.output] = known[var]

    def _dot(self, equation: Equation, node: Node) -> None:
        a, b = equation.operands if len(equation.operands) == 2 else equation.operands * 2
        inner, columns, rows = a.type.shape[-1], b.type.shape[-1], a.type.shape[-2]
        self._product(equation, node, (a, b), inner, (columns, rows))

    def _conv2d(self, equation: Equation, node: Node) -> None:
        x, weight = equation.operands
        kh, kw, inputs, outputs = weight.type.shape
        inside = kh * kw * _share_inside(place("conv2d", x.type.shape, weight.type.shape, equation.params))
        back = inside * outputs / equation.params["groups"] / math.prod(equation.params["stride"])
        places = equation.output.type.size / outputs * inside / (kh * kw)
        self._product(equation, node, (x, weight), inside * inputs, (back, places))

    def _product(
        self, equation: Equation, node: Node, operands: tuple[Var, Var], inner: float, terms: tuple[float, float]
    ) -> None:
        """A sum of so many products, and for each operand of how many products its gradient is a sum."""
        data = [not self.graph.origin(var).weight for var in operands]
        sizes = [self._size(var, published=not all(data)) for var in operands]
        last = self.rules.mup and sum(data) == 1 and self.is_last(equation)
        scores = self.rules.mup and all(data) and self._is_scored(equation)
        squares = inner * math.prod(sizes) ** 2
        if all(data):  # what all rows of one have in common is added up by the mean of the other
            pairs = zip(operands, reversed(operands), strict=True)
            together = sum(self._common(a) * self._law(a).rms ** 2 * (inner * self._law(b).mean) ** 2 for a, b in pairs)
            squares += together
            common = together / squares
            self.level[equation.output] = self._common(operands[1])
        else:
            common = max(self._common(var) for var in operands)
        size = math.sqrt(squares)
        factor = (inner**-0.5 if last or scores else 1.0) / size
        for var, count, other in zip(operands, terms, reversed(sizes), strict=True):
            self._grow(node, var, math.sqrt(count) * other)
        self._give(equation, normal(size), factor)
        self.common[equation.output] = common

    def _size(self, var: Var, *, published: bool) -> float:
        """How large the numbers of an operand are. The published rules take nonlinearities by their deviation, in
        products with weights; else it is the root mean square. Zeros, as states begin with, count as 1."""
        law = self._law(var)
        size = self.sizes.get(var, law.rms) if published else law.rms
        return size if size > 0 else 1.0

    def is_last(self, equation: Equation) -> bool:
        """Whether no other product comes after one."""
        return not any(self.above.get(e.output, 0) >> equation.number & 1 and e.op in PRODUCTS and e is not equation
                       for e in self.graph.block.equations)  # fmt: skip

    def _is_scored(self, equation: Equation) -> bool:
        ends = self.graph.ends(equation.output)
        return bool(ends) and all(self.graph.node(end).kind == "softmax" for end in ends)

    def _sum(self, equation: Equation, node: Node) -> None:
        (x,) = equation.operands
        law, terms = self._law(x), x.type.size // max(1, equation.output.type.size)
        self._grow(node, x, 1.0)
        apart = 1 - max(self._common(x), law.mean**2 / max(law.rms**2, 1e-12))
        deviation, mean = math.sqrt(terms * apart) * law.rms, terms * math.sqrt(1 - apart) * law.rms
        if self._meets_itself(equation, x):
            self._statistics.add(equation.output)
        plain = not self._statistics.isdisjoint((x, equation.output))
        self._give(equation, normal(deviation, mean), 1.0 if plain else 1 / max(math.hypot(deviation, mean), 1e-12))

    def _meets_itself(self, equation: Equation, x: Var) -> bool:
        """Whether a sum is used beside what it is a sum of, as a mean that is subtracted: then it is left as it is."""
        maker = self.graph.made.get(x)
        ends = self.graph.ends(equation.output)
        ends += [after for end in ends if len(end.operands) == 1 for after in self.graph.ends(end.output)]
        others = {self.graph.shown(var) for end in ends if end.op in ELEMENTWISE for var in end.operands}
        return x in others or (maker is not None and any(
            self.above.get(var, 0) >> maker.number & 1 and not self.above[var] >> equation.number & 1
            for var in others
        ))  # fmt: skip

    def _largest(self, equation: Equation, node: Node) -> None:
        (x,) = equation.operands
        terms = x.type.size // max(1, equation.output.type.size)
        law = self._law(x).largest(terms).root()
        self._grow(node, x, terms**-0.5)
        self._give(equation, law, 1.0 if x in self._statistics else 1 / math.sqrt(law.rms * law.std))

    def _add(self, equation: Equation, node: Node) -> None:
        arrays = [(i, x) for i, x in enumerate(equation.inputs) if isinstance(x, Var)]
        data = [(i, x) for i, x in arrays if not (self.graph.origin(x).vector or self.graph.origin(x).constant)]
        if len(data) < 2:
            for _, var in arrays:
                self._grow(node, var, 1.0)
            if data:
                self._pass_on(equation, data[0][1])
            else:
                self._give(equation, normal())
            return
        shares, factor = self._shares(equation, dict(data))
        for i, var in data:
            self._grow(node, var, shares[i])
            if shares[i] != 1:
                self.shares[equation.number, i] = shares[i]
        sign = -1 if equation.op == "subtract" else 1
        mean = sum(shares[i] * self._law(var).mean * (sign if i else 1) for i, var in data)
        deviation = math.hypot(*(shares[i] * self._law(var).std for i, var in data))
        squares = [(shares[i] * self._law(var).rms) ** 2 for i, var in data]
        alike = sum(self._common(var) * square for (_, var), square in zip(data, squares, strict=True))
        self.common[equation.output] = alike / max(sum(squares), 1e-12)
        gated = any(var in self.gates for _, var in data)
        plain = gated or equation.op == "subtract" or not self._statistics.isdisjoint(var for _, var in data)
        self._give(equation, normal(deviation, mean), factor if plain else 1 / max(deviation, 1e-12))

    def _shares(self, equation: Equation, operands: dict[int, Var]) -> tuple[dict[int, float], float]:
        """What each operand of an addition is multiplied by, and the sum where it is left as it is.

        What a gate let pass by the inverse of the gate's factor, so that gates stay between 0 and 1; a residual branch
        and what it is added to by their shares of variance.
        """
        shares = {i: 1 / self.gates.get(var, 1.0) for i, var in operands.items()}
        tau = self._tau(equation)
        if len(set(shares.values())) == 1 and (tau is None or shares[0] != 1):
            return dict.fromkeys(shares, 1.0), shares[0]
        if tau is not None and all(share == 1 for share in shares.values()):
            skip = self.skip(equation)
            for i, var in operands.items():
                shares[i] = math.sqrt(1 - tau if i == skip else tau) / max(self._law(var).std, 1e-12)
        return {i: rounded(share) for i, share in shares.items()}, 1.0

    def _tau(self, equation: Equation) -> float | None:
        if equation not in self.residuals:
            return None
        if self.rules.by_depth:
            return 1 / (len(self.residuals) / 2 + self.residuals.index(equation) + 1)
        return self.rules.tau

    def _is_residual(self, equation: Equation) -> bool:
        return equation.op == "add" and len(equation.operands) == 2 and self.skip(equation) is not None

    def skip(self, equation: Equation) -> int | None:
        """The position of the operand of an addition that the other one is made of."""
        made = self.graph.made
        for i, j in ((0, 1), (1, 0)):
            skip, branch = equation.operands[i], equation.operands[j]
            own = made.get(skip)
            if own is not None and self.above.get(branch, 0) >> own.number & 1:
                return i
        return None

    def _multiply(self, equation: Equation, node: Node) -> None:
        vectors = [var for var in equation.operands if self.graph.origin(var).vector]
        if len(equation.operands) == 2 and len(vectors) == 1:  # the scale of a norm, 1 at first
            other = next(var for var in equation.operands if var is not vectors[0])
            self._grow(node, other, 1.0)
            self._grow(node, vectors[0], self._law(other).rms)
            self._pass_on(equation, other)
            return
        if len(equation.operands) == 1 and self._taken_up(equation):
            self.dropped.add(equation.number)
            self._grow(node, equation.operands[0], 1.0)
            self._pass_on(equation, equation.operands[0])
            return
        self._elementwise(equation, node)
        if len(equation.operands) == 1:
            return
        gate = math.prod(self.gates.get(var, 1.0) for var in equation.operands)
        pure = any(self.graph.origin(var).constant for var in equation.operands)
        law = self._law(equation.output)
        if gate != 1:
            self.gates[equation.output] = gate
        elif not pure and self._statistics.isdisjoint(equation.operands) and law.std > 0:
            self._give(equation, normal(law.std, law.mean), 1 / law.std)

    def _select(self, equation: Equation, node: Node) -> None:
        arrays = [x for x in equation.inputs[1:] if isinstance(x, Var)]
        if self._drops(equation) and len(arrays) == 1:
            kept = 1 - float(self.graph.made[equation.operands[0]].params["rate"])
            self._grow(node, arrays[0], math.sqrt(kept))
            self.factors[equation.output] = rounded(kept**-0.5)
        else:
            for var in arrays:
                self._grow(node, var, len(arrays) ** -0.5)
        if arrays:
            self._pass_on(equation, arrays[0])
        else:
            self._give(equation, normal())

    def _scale(self, equation: Equation, node: Node) -> None:
        number = equation.inputs[1]
        self._grow(node, equation.operands[0], 1.0)
        factor = number.value if isinstance(number, Literal) else 1.0
        self._give(equation, self._law(equation.operands[0]).times(factor).root())

    def _elementwise(self, equation: Equation, node: Node) -> None:
        """Any function of several values, left as it is."""
        laws = [x.value if isinstance(x, Literal) else self._law(x) for x in equation.inputs]
        if equation.op not in ELEMENTWISE or not all(math.isfinite(x.rms) for x in laws if isinstance(x, Law)):
            for var in equation.operands:
                self._grow(node, var, 1.0)
            self._give(equation, normal())
            return
        law, slopes = together(EXACT[equation.op], laws)
        for x, slope in zip(equation.inputs, slopes, strict=True):
            if isinstance(x, Var):
                self._grow(node, x, slope if math.isfinite(slope) and slope > 0 else 1.0)
        self._give(equation, law if math.isfinite(law.rms) else normal())
        if equation.op not in LINEAR | {"multiply"}:
            self._statistics.add(equation.output)


LINEAR = frozenset(("add", "subtract", "multiply", "divide", "negative", "convert"))
"""With numbers: leave a value of deviation 1 a multiple of it."""

RULES = {
    **dict.fromkeys(STRUCTURE, Results._move),
    "dot": Results._dot,
    "conv2d": Results._conv2d,
    "reduce_sum": Results._sum,
    "reduce_max": Results._largest,
    "add": Results._add,
    "subtract": Results._add,
    "multiply": Results._multiply,
    "select": Results._select,
    "scale": Results._scale,
}


def _share_inside(where: Windows) -> float:
    """The share of the windows' places that lie in the image, not in its padding."""
    share = 1.0
    for axis in range(2):
        starts = np.arange(where.count[axis]) * where.stride[axis] - where.padding[axis][0]
        places = starts[:, None] + np.arange(where.kernel[axis]) * where.dilation[axis]
        share *= float(np.mean((places >= 0) & (places < where.size[axis])))
    return share


def ancestors(graph: Graph) -> dict[Var, int]:
    """For every value the equations that it is made by, as bits of their numbers, its own among them."""
    above: dict[Var, int] = {}
    for equation in graph.block.equations:
        bits = 1 << equation.number
        for var in equation.operands:
            bits |= above.get(var, 0)
        above[equation.output] = bits
    return above
