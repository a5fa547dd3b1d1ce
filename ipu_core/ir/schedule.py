"""Passes over the order of a Block: what is needed, and how long each value lives."""

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


def last_uses(block: Block) -> dict[Var, int]:
    """For every value the position of the last equation that reads it; outputs live to the end."""
    uses = {var: position for position, equation in enumerate(block.equations) for var in equation.operands}
    return uses | dict.fromkeys(block.outputs, len(block.equations))
