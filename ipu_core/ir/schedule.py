"""Passes over the order of a Block: what is needed."""

from __future__ import annotations

from dataclasses import replace

from ipu_core.ir.block import Block, Var


def dead_code(block: Block) -> Block:
    """The Block without equations and constants that no output needs; numbers stay."""
    needed: set[Var] = set(block.outputs)
    kept = []
    for equation in reversed(block.equations):
        if equation.output in needed:
            kept.append(equation)
            needed.update(equation.operands)
    constants = {var: array for var, array in block.constants.items() if var in needed}
    return replace(block, equations=tuple(reversed(kept)), constants=constants)
