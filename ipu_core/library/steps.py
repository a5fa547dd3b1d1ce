"""Steps of a layer on tiles: operations that add what they need to a graph and append what is to be run to a list."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ipu_core.graph.graph import Graph
from ipu_core.graph.program import Program
from ipu_core.graph.tensor import Tensor, element_type
from ipu_core.library.elementwise import Operand, add_array, elementwise
from ipu_core.library.matmul import matmul, reduce
from ipu_core.library.sides import arranged, planned, product_sides, product_sizes, sum_side, sum_sizes
from ipu_core.plan.orders import OrderRule, product_order, reduction_order
from lowprec import Accumulation

Axes = int | Sequence[int]
HALF_REGISTERS = frozenset({"add", "subtract", "multiply", "square"})
"""Of halves: computed in half registers, to nearest even (see `ipu_core.ir.role_formats.PLAIN`)."""


@dataclass
class Steps:
    """The steps of one layer under construction.

    Attributes:
        graph: what they are added to.
        programs: where the programs go, in order; a `Sequence(*programs)` runs them.
        name: of the layer, before that of each step.
        stochastic: whether results that are narrower than float32 are rounded stochastically.
        operation: number of the next step that draws random bits, which are those of the engine's key folded with it.
    """

    graph: Graph
    programs: list[Program]
    name: str
    stochastic: bool = False
    operation: int = 0

    def elementwise(self, op: str, *operands: Operand, fmt: Any = "float32") -> Tensor:
        """An elementwise operation of operands that broadcast together, as a new array.

        What is computed in half registers is rounded to nearest even in either case, as on the machine.
        """
        shape = np.broadcast_shapes(*(x.shape for x in operands if isinstance(x, Tensor)))
        out = add_array(self.graph, fmt, shape, self._named(op))
        wide = any(isinstance(x, Tensor) and x.dtype == np.float32 for x in operands)
        rounding = {} if op in HALF_REGISTERS and not wide else self._rounding(fmt)
        seen = [x.broadcast_to(shape) if isinstance(x, Tensor) else x for x in operands]
        self.programs += elementwise(self.graph, op, seen, out, name=self._named(op), **rounding)
        return out

    def reduce_sum(self, x: Tensor, axes: Axes, *, fmt: Any = "float32", accumulate: Any = "float32") -> Tensor:
        """The sum over axes, which stay with length one, in the order that the rule gives its sizes."""
        size = sum_sizes(x.shape, _ascending(x, axes))
        order = reduction_order(OrderRule.of(self.graph.target), size.m, size.k, size.n)
        return self._reduce(x, axes, order.with_types(accumulate, fmt), maximum=False)

    def reduce_mean(self, x: Tensor, axes: Axes, *, fmt: Any = "float32", accumulate: Any = "float32") -> Tensor:
        """The sum over axes times the reciprocal of the number of terms."""
        terms = math.prod(x.shape[axis] for axis in _ascending(x, axes))
        return self.elementwise(
            "multiply", self.reduce_sum(x, axes, fmt=fmt, accumulate=accumulate), 1.0 / terms, fmt=fmt
        )

    def reduce_max(self, x: Tensor, axes: Axes) -> Tensor:
        """The largest over axes, which stay with length one, in the operand's own format."""
        return self._reduce(x, axes, Accumulation().with_types(*(_format_name(x),) * 2), maximum=True)

    def _reduce(self, x: Tensor, axes: Axes, order: Accumulation, *, maximum: bool) -> Tensor:
        target, over = self.graph.target, _ascending(x, axes)
        shape = tuple(1 if axis in over else size for axis, size in enumerate(x.shape))
        name = self._named("maximum" if maximum else "sum")
        out, side = add_array(self.graph, order.out, shape, name), sum_side(target, x, over)
        plan = planned(target, sum_sizes(x.shape, over), [side], _format_name(x), shape, order)
        (terms,) = arranged(self.graph, self.programs, [x], [side], name)
        rounding = {} if maximum else self._rounding(order.out)
        self.programs += reduce(self.graph, terms, out, plan, maximum=maximum, name=name, **rounding)
        return out

    def matmul(self, a: Tensor, b: Tensor, *, fmt: Any, accumulate: Any) -> Tensor:
        """The matrix product of two tensors of one format, in the order that the rule gives its sizes."""
        target, name = self.graph.target, self._named("product")
        size, lie = product_sizes(a.shape, b.shape), product_sides(target, a, b)
        order = product_order(OrderRule.of(target), *size[:3], batch=size.batch, operands=_format_name(a))
        order = order.with_types(accumulate, fmt)
        out = add_array(self.graph, fmt, (*a.shape[:-1], b.shape[-1]), name)
        plan = planned(target, size, lie, _format_name(a), out.shape, order)
        left, right = arranged(self.graph, self.programs, [a, b], lie, name)
        place = out.reshape(size.batch, size.m, size.n)
        rounding = self._rounding(fmt, accumulate)
        _, programs = matmul(self.graph, left, right, plan, out=place, name=name, **rounding)
        self.programs += programs
        return out

    def _named(self, step: str) -> str:
        return f"{self.name}: {step}"

    def _rounding(self, *formats: Any) -> dict[str, Any]:
        """How a step rounds, and its number if it draws random bits."""
        if not self.stochastic or all(element_type(fmt)[1] == np.float32 for fmt in formats):
            return {}
        self.operation += 1
        return {"stochastic": True, "operation": self.operation - 1}


def _ascending(x: Tensor, axes: Axes) -> tuple[int, ...]:
    given = (axes,) if isinstance(axes, int) else axes
    return tuple(sorted(axis % x.ndim for axis in given))


def _format_name(x: Tensor) -> str:
    fmt = x.format
    return fmt if isinstance(fmt, str) else fmt.name
