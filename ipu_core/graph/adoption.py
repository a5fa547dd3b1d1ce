"""Adoption: what was built in a graph of its own becomes part of another one, on tiles of that."""

from collections.abc import Collection, Mapping
from dataclasses import replace

import numpy as np

from ipu_core.chip.integers import Ints
from ipu_core.graph.graph import Graph
from ipu_core.graph.tensor import Tensor, Variable
from ipu_core.graph.vertices import ComputeSet, Operand


def adopt(
    graph: Graph,
    other: Graph,
    tiles: Ints,
    *,
    instead: Mapping[Variable, Variable],
    name: str,
    operation: int,
    inside: Collection[ComputeSet] = (),
) -> None:
    """Gives a graph all variables and compute sets of another one, which must not be used any more.

    Args:
        graph: takes them.
        other: has no single vertices.
        tiles: the tile of the graph for each of the other's; every one differs.
        instead: variables of the other that the graph has already, each with its own, whose elements lie alike.
        name: comes before the names of what is taken.
        operation: folded into the key before the vertices' own numbers.
        inside: compute sets of loops, whose keys have it already.
    """
    # On the tiles where it was built, variables keep the mappings that they share, and their digests.
    moved = not np.array_equal(tiles, np.arange(tiles.size))
    for variable in other.variables:
        if variable not in instead:
            variable.number, variable.name = len(graph.variables), f"{name}.{variable.name}"
            if moved:
                variable.move(tiles)
            graph.variables.append(variable)
    for compute_set, called in other.joined.items():
        graph.joined[compute_set] = tuple(f"{name}.{each}" for each in called)
    for compute_set in other.compute_sets:
        compute_set.number, compute_set.name = len(graph.compute_sets), f"{name}.{compute_set.name}"
        compute_set.groups = [
            replace(
                group,
                tiles=tiles[group.tiles],
                operands={field: _seen(operand, instead) for field, operand in group.operands.items()},
                within=None if compute_set in inside else operation,
            )
            for group in compute_set.groups
        ]
        graph.compute_sets.append(compute_set)


def in_place_of(tensor: Tensor, instead: Mapping[Variable, Variable]) -> Tensor:
    """The tensor, or the same view of the variable that is there instead of its own."""
    variable = instead.get(tensor.variable)
    return tensor if variable is None else replace(tensor, variable=variable)


def _seen(operand: Operand, instead: Mapping[Variable, Variable]) -> Operand:
    if operand.variable not in instead:
        return operand
    tensor = None if operand.tensor is None else in_place_of(operand.tensor, instead)
    return replace(operand, variable=instead[operand.variable], tensor=tensor)
