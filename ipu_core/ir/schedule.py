"""Passes over the order of a Block: what is needed."""

from __future__ import annotations

from dataclasses import replace

from ipu_core.ir.block import Block, Var


def dead_code(block: Block) -> Block:
    """The Block without equations and constants that no output needs; numbers stay."""
    needed: set[Var] = {*block.outputs, *(new for _, new in block.totals)}
    kept = []
    looped = 0
    for position, equation in reversed(list(enumerate(block.equations))):
        if equation.output in needed:
            kept.append(equation)
            needed.update(equation.operands)
            looped += position < block.looped
    constants = {var: array for var, array in block.constants.items() if var in needed}
    rounds = replace(block.rounds, equations=looped) if block.rounds else None
    return replace(block, equations=tuple(reversed(kept)), constants=constants, rounds=rounds)
