"""What of a carried state and of what gradients read may live in streaming memory, and which of it are moments."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from itertools import groupby

from ipu_core.ir.block import Block, Equation, Var, per_block
from ipu_core.ir.bodies import carries_of, equations_of, outputs_of, runs_of
from ipu_core.ir.lifetimes import lifetimes
from ipu_core.ir.ops import STRUCTURE
from ipu_core.ir.precision.rules import named, names_of
from ipu_core.ir.pytree import paths

MOMENTS = ("first_moment", "second_moment")
"""Families of the equations that make the new moments."""

PHASES = {"forward": 0, "grad_input": 1, "grad_weight": 1, "optimizer": 2, "update": 2}
"""What is read in several of these parts of a step is loaded anew for each: it need not stay in between."""

LEAST = 2  # elements: what is smaller stays on the tiles
NEAR = 8  # names that a refusal offers


def phase(equation: Equation) -> int:
    """The part of the step that an equation belongs to; a copy of a forward one is made for the gradients."""
    return PHASES["forward" if equation.drawn is None else "grad_input"] or PHASES[equation.role]


def spans(equations: Sequence[Equation], readers: Iterable[int]) -> list[list[int]]:
    """Those that read a value, by their places and in order, cut where another part of the step begins."""
    return [list(group) for _, group in groupby(readers, key=lambda place: phase(equations[place]))]


def returns(equations: Sequence[Equation], readers: Iterable[int]) -> tuple[list[int], list[list[int]]]:
    """Those that read an offloaded value where it is made, and those for which it is loaded again, by load."""
    found = spans(equations, readers)
    here = found.pop(0) if found and not phase(equations[found[0][0]]) else []
    return here, found


@per_block
def streamable(block: Block) -> frozenset[int]:
    """Positions in the carried state of what is made anew by an equation and has more than one element."""
    made = {equation.output for equation in equations_of(block)}
    new = outputs_of(block)[: block.carried]
    return frozenset(i for i, var in enumerate(new) if var in made and new.count(var) == 1 and var.type.size >= LEAST)


@per_block
def offloadable(block: Block) -> Mapping[Var, Equation]:
    """The values of the forward part that lie in memory of their own and are kept for gradients alone."""
    views, equations = lifetimes(block).views, equations_of(block)
    read: dict[Var, list[int]] = {}
    for position, equation in enumerate(equations):
        for var in equation.operands if views[equation.output].root is equation.output else ():
            read.setdefault(views[var].root, []).append(position)
    kept = {views[var].root for var in (*outputs_of(block), *(new for _, new in carries_of(block)))}
    found = {}
    for run in runs_of(block):
        for position in range(run.first, run.last):
            equation = equations[position]
            var, readers = equation.output, read.get(equation.output, [])
            phases = [phase(equations[one]) for one in (position, *readers)]
            stays = var in kept or var.type.size < LEAST or (readers and readers[-1] >= run.last)
            if not stays and not phases[0] and set(phases) <= {0, 1} and phases[-1]:
                found[var] = equation
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
