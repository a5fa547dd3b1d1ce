"""What of a carried state and of what gradients read may live in streaming memory, and which of it are moments."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches

from ipu_core.ir.block import Block, Equation, Var, per_block
from ipu_core.ir.bodies import carries_of, equations_of, outputs_of, runs_of
from ipu_core.ir.liveness.lifetimes import lifetimes
from ipu_core.ir.liveness.stays import phase
from ipu_core.ir.ops import STRUCTURE
from ipu_core.ir.precision.rules import named, names_of
from ipu_core.ir.pytree import paths

MOMENTS = ("first_moment", "second_moment")
"""Families of the equations that make the new moments."""

LEAST = 2  # elements: what is smaller stays on the tiles
NEAR = 8  # names that a refusal offers


@per_block
def streamable(block: Block) -> frozenset[int]:
    """Positions in the carried state of what is made anew by an equation and has more than one element."""
    made = {equation.output for equation in equations_of(block)}
    new = outputs_of(block)[: block.carried]
    # A value that replaces two old ones lies in two places of streaming memory, and one tensor moves to one.
    return frozenset(i for i, var in enumerate(new) if var in made and new.count(var) == 1 and var.type.size >= LEAST)


@per_block
def offloadable(block: Block) -> Mapping[Var, Equation]:
    """The values of the forward part that lie in memory of their own and are kept for gradients alone."""
    known, equations, found = lifetimes(block), equations_of(block), dict[Var, Equation]()
    kept = known.roots(*outputs_of(block), *(new for _, new in carries_of(block)))
    for position, end in ((one, run.last) for run in runs_of(block) for one in known.between(run.first, run.last)):
        var = equations[position].output
        readers = known.readers[var]
        phases = [phase(equations[one]) for one in (position, *readers)]
        # What is read behind its part of the step, as totals are, lives there in any case.
        stays = var in kept or var.type.size < LEAST or (readers and readers[-1] >= end)
        if not stays and not phases[0] and set(phases) <= {0, 1} and phases[-1]:
            found[var] = equations[position]
    return found


def moments(block: Block) -> frozenset[int]:
    """Positions in the carried state of the moments that may be streamed."""
    definitions, outputs = {equation.output: equation for equation in equations_of(block)}, outputs_of(block)
    return frozenset(i for i in streamable(block) if _origin(definitions, outputs[i]).family in MOMENTS)


def _origin(definitions: dict[Var, Equation], var: Var) -> Equation:
    """The equation whose result a chain of moves shows."""
    equation = definitions[var]
    while equation.op in STRUCTURE and equation.operands[0] in definitions:
        equation = definitions[equation.operands[0]]
    return equation


def of_state(block: Block, pattern: str) -> frozenset[int]:
    """Positions in the carried state of what may be streamed and has such a name."""
    names = paths(block.arguments[0])
    return frozenset(number for number in streamable(block) if fnmatch.fnmatchcase(names[number], pattern))


def streaming(block: Block, patterns: str | Sequence[str]) -> Block:
    """The step with more in streaming memory: what of its state, or else of its activations, has one of these names.

    Activations are called as in rules of a precision, by layer and operation, and go where gradients read them later.

    Raises:
        ValueError: a name that fits nothing that can be streamed.
    """
    names = paths(block.arguments[0])
    far, offloaded = set(block.streamed), set(block.offloaded)
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        found = of_state(block, pattern)
        made = {} if found else offloadable(block)
        kept = {var for var, e in made.items() if any(named(pattern, name) for name in names_of(e))}
        if not found | kept:
            there = dict.fromkeys(names[number] for number in sorted(streamable(block)))
            there |= dict.fromkeys(name for equation in made.values() for name in names_of(equation))
            raise ValueError(
                f"no part of the state and no activation that can be streamed is called {pattern!r}; nearest are "
                + ", ".join(get_close_matches(pattern, there, NEAR, cutoff=0))
            )
        far |= found
        offloaded |= kept
    return replace(block, streamed=frozenset(far), offloaded=frozenset(offloaded))
