"""What of a carried state may live in streaming memory, and which of it are an optimiser's moments."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from dataclasses import replace

from ipu_core.ir.block import Block, Equation, Var, per_block
from ipu_core.ir.ops import STRUCTURE
from ipu_core.ir.pytree import paths

MOMENTS = ("first_moment", "second_moment")
"""Families of the equations that make the new moments."""

PHASES = {"forward": 0, "grad_input": 1, "grad_weight": 1, "optimiser": 2, "update": 2}
"""What is read in several of these parts of a step is loaded anew for each: it need not stay in between."""

LEAST = 2  # elements: what is smaller stays on the tiles


@per_block
def streamable(block: Block) -> frozenset[int]:
    """Positions in the carried state of what is made anew by an equation and has more than one element."""
    made = {equation.output for equation in block.equations}
    new = block.outputs[: block.carried]
    return frozenset(i for i, var in enumerate(new) if var in made and new.count(var) == 1 and var.type.size >= LEAST)


def moments(block: Block) -> frozenset[int]:
    """Positions in the carried state of the moments that may be streamed."""
    definitions = {equation.output: equation for equation in block.equations}
    return frozenset(i for i in streamable(block) if _origin(definitions, block.outputs[i]).family in MOMENTS)


def _origin(definitions: dict[Var, Equation], var: Var) -> Equation:
    """The equation whose result a chain of moves shows."""
    equation = definitions[var]
    while equation.op in STRUCTURE and equation.operands[0] in definitions:
        equation = definitions[equation.operands[0]]
    return equation


def streaming(block: Block, patterns: str | Sequence[str]) -> Block:
    """The step with more of its state in streaming memory: what has one of these names and can be streamed.

    Raises:
        ValueError: a name that fits nothing that can be streamed.
    """
    names = paths(block.arguments[0])
    far = set(block.streamed)
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        found = {number for number in streamable(block) if fnmatch.fnmatchcase(names[number], pattern)}
        if not found:
            there = ", ".join(names[number] for number in sorted(streamable(block)))
            raise ValueError(f"no part of the state that can be streamed is called {pattern!r}; there are {there}")
        far |= found
    return replace(block, streamed=frozenset(far))
