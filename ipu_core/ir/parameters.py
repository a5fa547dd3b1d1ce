"""Which parameter an equation concerns: the one that its operands come from, by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from ipu_core.ir.block import Block, Var
from ipu_core.ir.bodies import equations_of, mapped


def sources(block: Block, parameters: dict[Var, str]) -> dict[Var, frozenset[str]]:
    """For every value that is made of parameters and constants alone: the names of the parameters."""
    return pure_values(block, {var: frozenset({name}) for var, name in parameters.items()})


def pure_values(block: Block, given: Mapping[Var, frozenset[str]]) -> dict[Var, frozenset[str]]:
    """For every value that is made of some and of constants alone: the names of the parameters that those have."""
    pure = dict(given) | dict.fromkeys(block.constants, frozenset[str]())
    for equation in equations_of(block):
        if all(var in pure for var in equation.operands):
            pure[equation.output] = frozenset().union(*(pure[var] for var in equation.operands))
    return pure


def name_of(pure: Mapping[Var, frozenset[str]], values: Iterable[Var]) -> str | None:
    """The one parameter that values made of parameters alone come from."""
    names = frozenset().union(*(pure.get(var, frozenset()) for var in values))
    return next(iter(names)) if len(names) == 1 else None


def name_parameters(block: Block, parameters: dict[Var, str]) -> Block:
    """The Block with the parameter's name on every equation that has one parameter among its operands."""
    pure = sources(block, parameters)
    return mapped(block, lambda e: replace(e, parameter=e.parameter or name_of(pure, e.operands)))
