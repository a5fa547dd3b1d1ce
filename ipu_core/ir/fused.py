"""Chains bound to their arrays: a run of them as one call, from the key of the step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ipu_core.control import FloatingPointControl
from ipu_core.ir.block import Atom, Block, Equation, Var
from ipu_core.ir.buffers import Buffers
from ipu_core.ir.chains import Chain, computed
from ipu_core.ir.kernels import BoundCall
from ipu_core.ir.lifetimes import lifetimes
from ipu_core.ir.ops import COMPUTED_AS
from lowprec.pipeline import Pipeline


def bind_chains(block: Block, chains: Sequence[Chain], buffers: Buffers, control: FloatingPointControl) -> BoundCall:
    """Chains that follow one another as one call, which takes the key of the step (of the round, in rounds).

    Args:
        block: in which their equations are.
        chains: the chains.
        buffers: the Block's arrays, made for these chains.
        control: the machine's floating-point control; no exception may be enabled.
    """
    call = Pipeline(buffers.pieces)
    for chain in chains:
        call.part(chain.size, chain.piece)
        for _, equation in computed(block, chain):
            _add(call, block, equation, buffers, control)
    return call


def _add(call: Pipeline, block: Block, equation: Equation, buffers: Buffers, control: FloatingPointControl) -> None:
    operands = tuple(buffers.arrays[x] if isinstance(x, Var) else x.value for x in equation.inputs)
    out, views = buffers.arrays[equation.output], lifetimes(block).views
    formats = [x.dtype if isinstance(x, np.ndarray) else None for x in operands]
    rounding = control.rounding(equation.arithmetic.rounding, out.dtype)

    def row(x: Atom) -> int:
        """Bytes of an element of what lies in pieces."""
        return buffers.arrays[x].itemsize if isinstance(x, Var) and views[x].root in buffers.in_pieces else 0

    rows: list[Any] = [row(x) for x in (*equation.inputs, equation.output)]
    folds = [] if equation.draws is None else [equation.draws]
    call.add(COMPUTED_AS[equation.op], formats, out.dtype, rounding, operands, out, rows, folds)
