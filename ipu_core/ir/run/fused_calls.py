"""Fusions bound to their arrays: a run of them as one call, from the key of the step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ipu_core.chip.control import FloatingPointControl
from ipu_core.ir.block import Block, Equation, Var
from ipu_core.ir.liveness.lifetimes import lifetimes
from ipu_core.ir.ops import COMPUTED_AS, ELEMENTWISE
from ipu_core.ir.run.buffers import Buffers
from ipu_core.ir.run.fusions import Fusion, computed, folded
from ipu_core.ir.run.kernels import BoundCall, given_order, order_of
from lowprec import Accumulation
from lowprec.pipeline import Pipeline


def bind_fusions(
    block: Block,
    fusions: Sequence[Fusion],
    buffers: Buffers,
    orders: Mapping[int, Accumulation],
    control: FloatingPointControl,
) -> BoundCall:
    """Fusions that follow one another as one call, which takes the key of the step, in a loop of the iteration.

    Args:
        block: in which their equations are.
        fusions: the fusions.
        buffers: the Block's arrays, made for these fusions.
        orders: of the sums, by equation number; those that are missing have the default.
        control: the machine's floating-point control; no exception may be enabled.
    """
    call, views = Pipeline(buffers.pieces), lifetimes(block).views
    for fusion in fusions:
        call.part(fusion.rows, fusion.piece)
        for _, equation in computed(block, fusion):
            atoms = (*equation.inputs, equation.output)
            roots = [views[x].root if isinstance(x, Var) else None for x in atoms]
            inside = [root if root in buffers.in_pieces else None for root in roots]
            rows = [root.type.nbytes // fusion.rows if root else 0 for root in inside]
            values = [buffers.arrays[x] if isinstance(x, Var) else x.value for x in atoms]
            _add(call, equation, values, rows, given_order(equation, orders), control)
    return call


def _add(
    call: Pipeline,
    equation: Equation,
    values: list[Any],
    rows: list[int],
    order: Accumulation | None,
    control: FloatingPointControl,
) -> None:
    """Adds an equation: its operands and its result, and the bytes of a row of each that lies in pieces."""
    if equation.op in ELEMENTWISE:
        _add_elementwise(call, equation, values, rows, control)
    else:
        _add_reduction(call, equation, values, rows, order, control)


def _add_elementwise(
    call: Pipeline, equation: Equation, values: list[Any], rows: list[int], control: FloatingPointControl
) -> None:
    *operands, out = values
    formats = [x.dtype if isinstance(x, np.ndarray) else None for x in operands]
    rounding = control.rounding(equation.arithmetic.rounding, out.dtype)
    call.add(COMPUTED_AS[equation.op], formats, out.dtype, rounding, tuple(operands), out, rows, _folds(equation))


def _add_reduction(
    call: Pipeline,
    equation: Equation,
    values: list[Any],
    rows: list[int],
    order: Accumulation | None,
    control: FloatingPointControl,
) -> None:
    how, (x, out) = folded(equation), values
    terms, sums = how.view(x), out.reshape(how.shape[0], how.shape[2])
    if equation.op == "reduce_max":
        call.add_maximum(terms, sums, rows)
        return
    typed = order_of(equation, order)
    rounding = control.rounding(equation.arithmetic.rounding, typed.accumulate)
    call.add_sum(typed, rounding, terms, sums, rows, _folds(equation))


def _folds(equation: Equation) -> list[int]:
    """What is folded into the key of the step for an equation's random bits."""
    return [] if equation.draws is None else [equation.draws]
