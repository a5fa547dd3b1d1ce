"""What each parameter is for in a Block, which u-muP's learning rates depend on."""

from __future__ import annotations

import math
from typing import NamedTuple

from ipu_core.ir.block import Equation, Var
from ipu_core.ir.ops import PRODUCTS, STRUCTURE
from ipu_core.ir.unit_scaling.results import Results


class Role(NamedTuple):
    """What a parameter is for.

    Attributes:
        kind: "weight" (of a product), "output" (of the last one), "table" (of vectors that are looked up or added) or
            "vector" (biases and scales).
        inputs: of a product, how many of them one result is a sum of; of a table, the size of a vector.
        branches: how many residual branches there are, if it is in one; 0: it is in none.
    """

    kind: str
    inputs: int
    branches: int


def role_of(parameter: Var, results: Results) -> Role:
    """The role of a parameter."""
    graph = results.graph
    shape = parameter.type.shape
    if len(shape) < 2:
        return Role("vector", math.prod(shape), 0)
    users = _users(parameter, results)
    product = next((user for user in users if user.op in PRODUCTS), None)
    branches = len(results.residuals) if any(_in_branch(user, results) for user in users) else 0
    if product is None:
        return Role("table", shape[-1], branches)
    if results.is_last(product):
        return Role("output", math.prod(shape[:-1]), branches)
    inner = graph.shown(product.inputs[1]) is parameter if isinstance(product.inputs[1], Var) else True
    return Role("weight", math.prod(shape[:-1]) if inner else shape[-1], branches)


def _users(var: Var, results: Results) -> list[Equation]:
    """The equations that use a parameter together with data, by way of moves or of others on it alone."""
    found = []
    for reader in results.graph.readers.get(var, ()):
        on_it_alone = results.graph.origin(reader.output).pure or (reader.op in STRUCTURE and len(reader.operands) == 1)
        found += _users(reader.output, results) if on_it_alone else [reader]
    return found


def _in_branch(user: Equation, results: Results) -> bool:
    for equation in results.residuals:
        skip = results.skip(equation)
        assert skip is not None
        before, branch = equation.operands[skip], equation.operands[1 - skip]
        if results.above[branch] >> user.number & 1 and not results.above[before] >> user.number & 1:
            return True
    return False
