"""A pass that computes again what the gradients need, where that is cheap, instead of keeping it.

What the backward part of a step reads of the forward part has to be kept, or be made anew from what is. Kept are the
values of a minimum cut between what only costly operations make and what the gradients read, where to keep a value
costs its bytes and to make it anew nothing (the idea of Chen et al. 2016, arXiv 1604.06174, with the cut that
functorch's min-cut partitioner takes). Cheap are operations element by element, masks and copies to known places; no
sum and no look-up is made twice. Where the work counts too, to make a value anew costs what it is worth in bytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from ipu_core.ir.block import Block, Equation, Var, dtype_of
from ipu_core.ir.bodies import (
    carries_of,
    closed,
    equations_of,
    flat,
    fresh,
    inner_regions,
    mapped_inside,
    outputs_of,
    per_body,
)
from ipu_core.ir.liveness.lifetimes import lifetimes
from ipu_core.ir.ops import GATHERS, OPS, SET_ROW
from ipu_core.ir.passes.guard import BACKWARD
from lowprec.extras import optional

CHEAP = frozenset(name for name, op in OPS.items() if op.kind in ("elementwise", "mask", "move")) - GATHERS - {SET_ROW}
UNITS = 2**29  # capacities are 32-bit integers


def nothing(equation: Equation) -> float:
    """What it costs to make a value anew where the work does not count."""
    return 0.0


def recompute(block: Block, price: Callable[[Equation], float] = nothing) -> Block:
    """The Block whose gradients make cheap values of the forward part anew; the same bits in all outputs.

    Each copy of an equation draws the random bits of the first. In a loop that makes gradients so are the copies.

    Args:
        block: typed; every format must have a storage dtype.
        price: How many kept bytes it is worth not to compute an equation once more.
    """
    recomputing = _Recomputing(block, price)
    return closed(replace(block, equations=tuple(per_body(block.equations, recomputing.part))))


class _Recomputing:
    """What has been made anew.

    Attributes:
        equations: so far of those that stand together.
        again: by value, the copy that the gradients read.
    """

    def __init__(self, block: Block, price: Callable[[Equation], float]) -> None:
        self._price = price
        self.equations: list[Equation] = []
        self.again: dict[Var, Var] = {}
        self._fresh = fresh(block.equations)
        self._views = lifetimes(block).views
        self._made = {equation.output: equation for equation in equations_of(block)}
        kept = (*outputs_of(block), *block.offloaded, *(new for _, new in carries_of(block)))
        self._kept = {self._views[var].root for var in kept}

    def part(self, equations: Sequence[Equation]) -> Sequence[Equation]:
        """New equations for those of a body."""
        self.equations = []
        anew = self._anew(equations)
        for equation in equations:
            if equation.region is not None:
                equation = self._region(equation, anew)
            elif equation.role in BACKWARD:
                inputs = tuple(self._copied(x, anew) if isinstance(x, Var) else x for x in equation.inputs)
                equation = equation if inputs == equation.inputs else replace(equation, inputs=inputs)
            self.equations.append(equation)
        return self.equations

    def _region(self, equation: Equation, anew: frozenset[Var]) -> Equation:
        """A region whose gradients read copies, which are made once before it."""

        def reading(inner: Equation) -> Equation:
            if inner.role not in BACKWARD:
                return inner
            inputs = tuple(self._copied(x, anew) if isinstance(x, Var) else x for x in inner.inputs)
            return inner if inputs == inner.inputs else replace(inner, inputs=inputs)

        return mapped_inside(equation, reading)

    def _copied(self, var: Var, anew: frozenset[Var]) -> Var:
        """The value that the gradients read for one of the forward part, made before them if it is to be."""
        if var not in self._views or self._views[var].root not in anew or self._made[var].role in BACKWARD:
            return var  # it is kept, or a view that the gradients made, of the copy by now
        if var not in self.again:
            equation = self._made[var]
            inputs = tuple(self._copied(x, anew) if isinstance(x, Var) else x for x in equation.inputs)
            output = Var(f"{var.name}.again", var.type)
            copy = replace(equation, number=self._fresh, inputs=inputs, outputs=(output,), drawn=equation.keyed)
            self._fresh += 1
            self.again[var] = output
            self.equations.append(copy)
        return self.again[var]

    def _anew(self, equations: Sequence[Equation]) -> frozenset[Var]:
        """The arrays of the forward part that are made anew for the gradients."""
        root = {var: view.root for var, view in self._views.items()}
        here = [e for e in equations if e.region is None]
        forward = {e.output: e for e in here if e.role not in BACKWARD and root[e.output] is e.output}
        # What a region begins with or reads forwards lives until then, whatever its gradients read.
        begun = (x for e in equations for inner in inner_regions(e) for x in inner.operands)
        kept = self._kept | {root[x] for x in begun if x in root}
        forward = {var: equation for var, equation in forward.items() if var not in kept}
        read = {var for e in flat(equations) if e.role in BACKWARD for var in e.operands if var in root}
        needed = {root[var] for var in read} & forward.keys()
        sources = {var: {root[x] for x in e.operands} & forward.keys() for var, e in forward.items()}
        cheap = {var: self._price(equation) for var, equation in forward.items() if equation.op in CHEAP}
        return _far_side(sources, cheap, needed)


def _far_side(sources: Mapping[Var, set[Var]], cheap: Mapping[Var, float], needed: set[Var]) -> frozenset[Var]:
    """The values that need not be kept: on the far side of the minimum cut that lies nearest to what is needed.

    Args:
        sources: by value, what it is made of.
        cheap: those that may be made again, with what that costs in bytes.
        needed: those that must be there.
    """
    sparse, csgraph = (optional(name, extra="study") for name in ("scipy.sparse", "scipy.sparse.csgraph"))
    if not needed:
        return frozenset()
    place = {var: 2 * number for number, var in enumerate(sources)}  # before the keeping of it; after it is one more
    source, sink = 2 * len(place), 2 * len(place) + 1
    sizes = {var: max(1, var.type.size) * dtype_of(var.type.format).itemsize for var in sources}
    everything = sum(sizes.values())
    unit = max(1, -(-everything // UNITS))
    edges = {(at, at + 1): -(-sizes[var] // unit) for var, at in place.items()}
    # More than a cut through everything costs: no minimum cut goes through such an edge.
    never = 1 + sum(edges.values())
    for var, at in place.items():
        edges |= {(place[one] + 1, at): never for one in sources[var]} if var in cheap else {}
        edges[source, at] = min(never, math.ceil(cheap[var] / unit)) if var in cheap else never
    edges |= {(place[var] + 1, sink): never for var in needed}
    rows, columns = np.array(list(edges), np.int32).T
    capacity = sparse.csr_array((np.array(list(edges.values()), np.int32), (rows, columns)), (sink + 1, sink + 1))
    left = capacity - csgraph.maximum_flow(capacity, source, sink).flow
    left.eliminate_zeros()
    # Backwards from the gradients: of all cuts that cost the same the nearest to them, so that least is made anew.
    reached = csgraph.breadth_first_order(left.T.tocsr(), sink, return_predecessors=False)
    behind = frozenset(reached.tolist())
    return frozenset(var for var, at in place.items() if at in behind)
